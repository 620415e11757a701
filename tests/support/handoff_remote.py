"""Child processes of tests, as their tests see them."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Self

import pytest
from handoff_children import TIMEOUT_S

CONTEXT = multiprocessing.get_context("forkserver")


class Remote:
    """A child process that runs `Puppet`, or one function."""

    @classmethod
    def start(cls, method: str, target: Callable[..., None], *args: object) -> Self:
        """Start a process that is given a connection to the test, and the arguments."""
        here, there = CONTEXT.Pipe()
        process = multiprocessing.get_context(method).Process(target=target, args=(there, *args))
        process.start()
        there.close()
        return cls(process, here)

    def __init__(self, process: BaseProcess, control: Connection) -> None:
        self.process = process
        self._control = control

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def begin(self, name: str, *args: object, **kwargs: object) -> None:
        """Have it start something, which may wait for the test."""
        self._control.send((name, args, kwargs))

    def end(self) -> Any:
        """The result of what it was told to `begin`, or the error that ended it."""
        succeeded, result = self.receive()
        if not succeeded:
            raise result
        return result

    def do(self, name: str, *args: object, **kwargs: object) -> Any:
        """Have it do something; the result."""
        self.begin(name, *args, **kwargs)
        return self.end()

    def receive(self) -> Any:
        """What its function has sent."""
        if not self._control.poll(TIMEOUT_S):
            pytest.fail(f"process {self.pid} has not answered in {TIMEOUT_S} s")
        return self._control.recv()

    def send(self, value: object) -> None:
        """Send something to its function."""
        self._control.send(value)

    def has_answered(self) -> bool:
        """Whether there is something for `end`."""
        return self._control.poll(0)

    def kill(self) -> None:
        """Kill it, and wait until it is gone."""
        self.process.kill()
        self.process.join(TIMEOUT_S)
        assert self.process.exitcode is not None

    def finish(self) -> int:
        """Wait until it ends by itself, as it does when it is told no more; its exit code."""
        self._control.close()
        self.process.join(TIMEOUT_S)
        code = self.process.exitcode
        assert code is not None
        return code

    def close(self) -> None:
        """Kill it if need be, and forget it."""
        if self.process.is_alive():
            self.kill()
        self.process.close()
        self._control.close()
