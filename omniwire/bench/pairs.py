"""A pair of processes, from the side of the parent: started, asked, watched, ended."""

import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from omniwire.bench.content import Case
from omniwire.bench.peers import PEERS, Peer
from omniwire.bench.processes import Exchanges, Failed, receiver_main, sender_main
from omniwire.bench.usage import Usage, descendants, memory_of, usage_of

_SILENCE_S: Final = 300.0
"""Seconds without an answer after which a pair counts as hung."""

_SAMPLING_S: Final = 0.001
_EXIT_S: Final = 30.0


class PairFailed(Exception):
    """A pair broke; its text is one line."""


def start_server() -> ForkServerContext:
    """Start the process that pairs are forked from: everything imported, one thread for torch."""
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("forkserver")
    # Ray has threads once it is imported, and is imported where it is used.
    peers = [peer for peer in PEERS if not peer.missing and "ray" not in peer.needs]
    context.set_forkserver_preload(
        [
            "omniwire.serialization",
            "omniwire.bench.processes",
            *dict.fromkeys(peer.module for peer in peers),
        ]
    )
    resource_tracker.ensure_running()  # unblocks Ctrl-C, so not below
    # Children inherit that Ctrl-C is blocked: the parent ends them, in silence.
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
    return context


class Pair:
    """A sender and a receiver; a context manager that ends both.

    Args:
        context: What `start_server` returned.
        peer: How to send.
        case: What to send.

    Raises:
        PairFailed: They do not come up.
    """

    def __init__(self, context: ForkServerContext, peer: Peer, case: Case) -> None:
        self._context = context
        self._controls: list[Connection] = []
        self._processes: list[ForkServerProcess] = []
        self._is_broken = False
        # A short path, since sockets are put there.
        self._folder = tempfile.mkdtemp(prefix="ow-")
        try:
            self._come_up(peer, case)
        except BaseException:
            self._end(self._pids())
            raise

    def exchange(self, number: int) -> tuple[Exchanges, Usage]:
        """Send this many messages.

        Returns:
            What the sender measured, and what all other processes used meanwhile.

        Raises:
            PairFailed: One of the two broke.
        """
        others = self._pids()[1:]
        before = usage_of(others)
        exchanges = self._exchange(number)
        after = usage_of(others)
        return exchanges, sum((after[pid] - before[pid] for pid in after), Usage())

    def peak_memory(self, number: int) -> int:
        """Send this many messages, and watch the memory of all processes meanwhile.

        Returns:
            Bytes by which it grew at most, since before the connection was made.

        Raises:
            PairFailed: One of the two broke.
        """
        samples: list[int] = []

        def watch() -> None:
            # The receiver first: memory that goes over to it meanwhile is not counted twice.
            samples.append(memory_of(reversed(self._pids())))

        self._exchange(number, watch)
        watch()
        return max(samples) - self._memory_before

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pids = self._pids()
        try:
            for receiver in self._processes[1:]:
                receiver.terminate()
            if error is None and not self._is_broken:
                self._controls[0].send(None)
                self._wait_for(self._controls[:1])
                self._processes[0].join(_EXIT_S)
        finally:
            self._end(pids)

    def _come_up(self, peer: Peer, case: Case) -> None:
        transport = peer.load()
        sender_end, receiver_end = transport.make_ends(self._folder)
        self._start(sender_main, peer, sender_end, case, self._folder)
        if transport.open_receiver is not None:
            self._start(receiver_main, peer, receiver_end)
        self._wait_for(self._controls)
        self._memory_before = memory_of(self._pids())
        for control in self._controls:
            control.send(None)
        self._wait_for(self._controls)

    def _start(self, body: Callable[..., None], *args: object) -> None:
        control, childs_control = self._context.Pipe()
        self._controls.append(control)
        process = self._context.Process(target=body, args=(childs_control, *args), daemon=True)
        process.start()
        self._processes.append(process)
        childs_control.close()  # only the child holds it now, so that its end is noticed

    def _pids(self) -> list[int]:
        """The sender, and all others."""
        pids: list[int] = []
        for process in self._processes:
            assert process.pid is not None
            pids += [process.pid, *descendants(process.pid)]
        return pids

    def _exchange(self, number: int, watch: Callable[[], None] | None = None) -> Exchanges:
        self._controls[0].send(number)
        deadline = time.monotonic() + _SILENCE_S
        while not (ready := wait(self._controls, _SAMPLING_S if watch else _SILENCE_S)):
            if time.monotonic() > deadline:
                raise self._failure(f"no answer for {_SILENCE_S:.0f} seconds")
            if watch:
                watch()
        # The receiver only says why it cannot go on.
        answers = [self._read(control) for control in reversed(self._controls) if control in ready]
        assert isinstance(answers[-1], Exchanges)
        return answers[-1]

    def _wait_for(self, controls: list[Connection]) -> None:
        """Wait for a word from each."""
        pending = list(controls)
        while pending:
            ready = [control for control in wait(pending, _SILENCE_S) if control in pending]
            if not ready:
                raise self._failure(f"no answer for {_SILENCE_S:.0f} seconds")
            for control in ready:
                assert isinstance(control, Connection)
                self._read(control)
                pending.remove(control)

    def _read(self, control: Connection) -> object:
        try:
            answer = control.recv()
        except (EOFError, ConnectionError) as error:
            index = self._controls.index(control)
            self._processes[index].join(_EXIT_S)
            name = ("sender", "receiver")[index]
            exit_code = self._processes[index].exitcode
            raise self._failure(f"the {name} ended with exit code {exit_code}") from error
        if isinstance(answer, Failed):
            raise self._failure(answer.text)
        return answer

    def _failure(self, text: str) -> PairFailed:
        self._is_broken = True
        return PairFailed(text)

    def _end(self, pids: list[int]) -> None:
        for process in self._processes:
            if process.is_alive():
                process.terminate()
            process.join(_EXIT_S)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        for control in self._controls:
            control.close()
        # What they had started ends after them, and writes to the folder until then.
        deadline = time.monotonic() + _EXIT_S
        while any(Path("/proc", str(pid)).exists() for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.01)
        shutil.rmtree(self._folder)
