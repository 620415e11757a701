"""The bodies of the two processes of a pair; light to import, since the parent does so too."""

import contextlib
import multiprocessing
import os
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final

from omniwire.bench.content import Case
from omniwire.bench.peers import Peer
from omniwire.bench.peers.base import Sender
from omniwire.bench.usage import Usage, own_usage

NUM_VALUES: Final = 100
"""Messages carry the values from 1 to this one in turn, so that an old one would be noticed."""


@dataclass(frozen=True)
class Failed:
    """Why a process cannot go on, in one line."""

    text: str


@dataclass(frozen=True)
class Exchanges:
    """Messages that were sent and answered.

    Attributes:
        seconds: For each message, from its sending to the arrival of the answer.
        usage: What the sender used between those two moments, all messages together.
    """

    seconds: list[float]
    usage: Usage


def sender_main(control: Connection, peer: Peer, end: Any, case: Case, folder: str) -> None:
    """Body of the sending process.

    Args:
        control: Its line to the parent, which asks for exchanges by their number, and ends it
            with None.
        peer: How to send.
        end: What the peer's sending end is opened with.
        case: What to send.
        folder: For temporary files.
    """

    def work() -> None:
        transport = peer.load()
        transport.set_up(folder)
        _report_ready(control)
        sender = transport.open_sender(end)
        control.send(None)
        while (number := control.recv()) is not None:
            control.send(_exchange(sender, case, number))
        sender.close()
        control.send(None)

    _run(control, work)


def receiver_main(control: Connection, peer: Peer, end: Any) -> None:
    """Body of the receiving process, which answers until it is terminated."""

    def work() -> None:
        open_receiver = peer.load().open_receiver
        assert open_receiver is not None
        _report_ready(control)
        receiver = open_receiver(end)
        control.send(None)
        while True:
            receiver.answer()

    _run(control, work)


def _report_ready(control: Connection) -> None:
    """Wait for the parent, which measures memory before there is anything to send."""
    control.send(None)
    control.recv()


def _exchange(sender: Sender[Any], case: Case, number: int) -> Exchanges:
    seconds = []
    used = Usage()
    num_floats = len(case.packed) + len(case.shared)
    for index in range(number):
        value = 1 + index % NUM_VALUES
        message = sender.make(case, value)
        before = own_usage()
        started = time.perf_counter()
        total = sender.hand_over(message)
        seconds.append(time.perf_counter() - started)
        used += own_usage() - before
        if total != value * (num_floats + len(case.batched)):
            raise RuntimeError(f"the receiver found a sum of {total} in tensors of {value}")
        del message
    return Exchanges(seconds, used)


def _run(control: Connection, work: Callable[[], None]) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Tensors from memory that is not to be written to are what most peers hand out.
    warnings.filterwarnings("ignore", "The given (buffer|NumPy array) is not writable")
    try:
        work()
    except EOFError:  # the parent is gone
        return
    except Exception as error:  # noqa: BLE001  # a peer may fail in any way, and the others go on
        with contextlib.suppress(ConnectionError):  # what failed may be the line to the parent
            control.send(Failed(f"{type(error).__name__}: {error}".splitlines()[0]))


def _end_with_parent() -> None:
    """Not every peer notices that nobody will ask or answer any more."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
