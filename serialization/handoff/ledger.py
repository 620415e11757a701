"""Ledgers: the few shared bytes through which a reader gives slots back without a message.

A ledger belongs to one direction of a channel. Its memory:

    0        the sender waits for a slot: set by the sender
    1        the sender's end was closed: set by the sender
    64       how often the reader lost descriptors: counted by the reader
    128      how many messages the reader has received: uint64, by the reader
    192      one byte per device of the sender: whether the reader can open its memory, by the
             reader: 1 if it can, 2 if it cannot, 0 if it was never tried
    4096     one byte per cell, by the reader

A message that refers to a slot takes a cell and says which of two values will mean that the
reader is done; that is the other one than last time, so every cell has a single writer and is
never reset. All numbers are in native byte order: both ends run on one machine.
"""

import mmap
import select
import struct
import threading
from collections.abc import Callable
from typing import Final, Protocol

import numpy as np

from omniwire.contracts.errors import HandoffError
from omniwire.serialization.handoff.arena import check_sealed, new_shared_file
from omniwire.serialization.handoff.descriptors import Descriptor, is_event, signal_event

WAITING: Final = 0
CLOSED: Final = 1
LOST: Final = 64
RECEIVED: Final = 128
DEVICES: Final = 192
FIRST_CELL: Final = 4096
NUM_CELLS: Final = 60 * 1024
LEDGER_BYTES: Final = FIRST_CELL + NUM_CELLS

MAX_DEVICES: Final = 64
"""Memory of devices with higher numbers is always copied."""

_COUNT: Final = struct.Struct("=Q")
_NEVER: Final = 2  # a cell never has this value
_FEW: Final = 8
_FENCE: Final = threading.Lock()

BOOKS: Final = threading.RLock()
"""Guards the books of every pool and ledger of this process; held for microseconds.

One lock, since a slot may be held through the ledgers of several channels. Finalizers, which
may run while it is held, never take it.
"""


class Hold(Protocol):
    """What is kept for a reader."""

    def release(self) -> None:
        """The reader needs it no more."""
        ...


class Ledger:
    """The sender's side of a ledger.

    Not thread-safe. What it refers to is held until the reader released it or is gone.

    Attributes:
        event: Signaled when a slot is free again while the sender waits; also the reader's.
        is_retired: Whether the sender's end is closed, so that nothing new is held.
        notice_reader: Looks whether the reader has said hello, or ended before that.
    """

    def __init__(self, event: Descriptor) -> None:
        self.event = event
        self.descriptor = new_shared_file(LEDGER_BYTES)
        self.memory = mmap.mmap(self.descriptor.number, LEDGER_BYTES)
        self._reader: Descriptor | None = None
        self._poll = select.poll()
        self.is_retired = False
        self.notice_reader: Callable[[], None] = lambda: None
        self._busy: dict[int, tuple[Hold, int, int]] = {}  # cell -> hold, value, message
        self._free: list[int] = []  # of those that were used before
        self._last = bytearray(NUM_CELLS)
        self._cells = np.frombuffer(self.memory, np.uint8, NUM_CELLS, FIRST_CELL)
        self._expected = np.full(NUM_CELLS, _NEVER, np.uint8)
        self._used_to = 0

    def __len__(self) -> int:
        return len(self._busy)

    @property
    def reader(self) -> Descriptor | None:
        """Becomes readable when the reader's process ends; None before its hello."""
        return self._reader

    @reader.setter
    def reader(self, process: Descriptor | None) -> None:
        if self._reader is None and process is not None:
            self._poll.register(process, select.POLLIN)
        self._reader = process

    def has_lost_reader(self) -> bool:
        """Whether the reader's process has ended; what it held is released."""
        with BOOKS:  # nor can two threads poll at once
            if not self._poll.poll(0):
                return False
            self.collect_all()
        return True

    @property
    def num_free_cells(self) -> int:
        """How many more references messages may have at once."""
        return len(self._free) + NUM_CELLS - self._used_to

    def set_flag(self, place: int, *, on: bool) -> None:
        """Set or clear `WAITING` or `CLOSED`."""
        self.memory[place] = on

    def num_lost(self) -> int:
        """How often the reader has lost descriptors, modulo 256."""
        return self.memory[LOST]

    def opens(self, device: int) -> bool | None:
        """Whether the reader can open memory of a device; None if it was never tried."""
        if device >= MAX_DEVICES:
            return False
        reported = self.memory[DEVICES + device]
        return reported == 1 if reported else None

    def hold(self, hold: Hold, message: int) -> tuple[int, int]:
        """Keep something until the reader of a message is done with it.

        Returns:
            The cell, and the value it will have then.
        """
        if self._free:
            cell = self._free.pop()
        else:
            cell = self._used_to
            self._used_to += 1
        value = self._last[cell] ^ 1
        self._busy[cell] = hold, value, message
        self._expected[cell] = value
        return cell, value

    def take_back(self, cell: int) -> None:
        """Undo `hold`, for a message that was not sent."""
        hold = self._forget(cell)
        self._last[cell] ^= 1  # the reader never saw the new value
        hold.release()

    def collect(self) -> None:
        """Release what the reader has released."""
        busy = self._busy
        if not busy:
            return
        if len(busy) <= _FEW:
            memory = self.memory
            done = [
                cell for cell, (_, value, _) in busy.items() if memory[FIRST_CELL + cell] == value
            ]
        else:
            extent = self._used_to
            done = np.flatnonzero(self._cells[:extent] == self._expected[:extent]).tolist()
        for cell in done:
            self._forget(cell).release()

    def collect_unreceived(self) -> None:
        """Release what is in messages that the reader, which has closed its end, never took."""
        received = _COUNT.unpack_from(self.memory, RECEIVED)[0]
        unread = [cell for cell, (_, _, message) in self._busy.items() if message >= received]
        for cell in unread:
            self._forget(cell).release()

    def collect_all(self) -> None:
        """Release everything, for a reader that is gone."""
        for cell in list(self._busy):
            self._forget(cell).release()

    def _forget(self, cell: int) -> Hold:
        hold, value, _ = self._busy.pop(cell)
        self._last[cell] = value
        self._expected[cell] = _NEVER
        self._free.append(cell)
        return hold


class ReaderLedger:
    """The reader's side of a ledger; kept by everything that was received, until it is dropped.

    Args:
        descriptor: Of the memory that the sender made.
        event: The sender's eventfd.

    Raises:
        HandoffError: The memory is not a ledger, or the event not one.
    """

    __slots__ = ("_event", "memory")

    def __init__(self, descriptor: Descriptor, event: Descriptor) -> None:
        check_sealed(descriptor.number)
        if not is_event(event.number):
            raise HandoffError("expected an eventfd, got another descriptor")
        try:
            self.memory = mmap.mmap(descriptor.number, LEDGER_BYTES)
        except (ValueError, OSError) as error:
            raise HandoffError(f"expected a ledger of {LEDGER_BYTES} bytes: {error}") from None
        self._event = event

    @property
    def is_awaited(self) -> bool:
        """Whether the sender waits for a slot."""
        return bool(self.memory[WAITING])

    @property
    def is_closed(self) -> bool:
        """Whether the sender's end was closed, as opposed to lost."""
        return bool(self.memory[CLOSED])

    def count_received(self, messages: int) -> None:
        """Tell the sender how many messages have been taken out of the socket."""
        _COUNT.pack_into(self.memory, RECEIVED, messages)

    def count_lost(self) -> None:
        """Tell the sender that descriptors it sent did not arrive."""
        self.memory[LOST] = (self.memory[LOST] + 1) & 0xFF

    def report(self, device: int, *, opens: bool) -> None:
        """Tell the sender whether memory of one of its devices can be opened here."""
        self.memory[DEVICES + device] = 1 if opens else 2

    def release(self, cell: int, value: int) -> None:
        """Give a slot back. Takes no lock: it may run in the collector, on any thread."""
        self.memory[FIRST_CELL + cell] = value
        _fence()
        if self.memory[WAITING]:
            signal_event(self._event.number)


def has_ended(process: Descriptor, within: float = 0.0) -> bool:
    """Whether a process has ended.

    Args:
        process: Its pidfd.
        within: Seconds to wait for that.
    """
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(within * 1000))


def _fence() -> None:
    """Order a store before a load, as the flag of a waiting sender needs.

    An atomic read-modify-write does. Where that is not a full barrier, a sender may miss the
    store; that is why it looks again after `POLL_AGAIN_S`.
    """
    if _FENCE.acquire(blocking=False):
        _FENCE.release()
