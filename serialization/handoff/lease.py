"""Memory of a slot as Python sees it, and what gives the slot back when the last view dies."""

import os
import sys
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from omniwire.contracts.errors import HandoffError
from omniwire.serialization.handoff.arena import Mapping, Slot
from omniwire.serialization.handoff.ledger import Hold, ReaderLedger
from omniwire.serialization.handoff.pool import Pool


class Lease:
    """A reader's hold on what one cell of a ledger stands for; given back once.

    It is given back when this is garbage-collected: in the process that received it, not in a
    forked child, and not while the interpreter exits, when the peer notices by itself.
    """

    __slots__ = ("_cell", "_ledger", "_pid", "_value")

    def __init__(self, ledger: ReaderLedger, cell: int, value: int) -> None:
        self._ledger: ReaderLedger | None = ledger
        self._cell = cell
        self._value = value
        self._pid = os.getpid()

    def release(self) -> None:
        """Give it back now. No view of the memory may be used any more."""
        ledger, self._ledger = self._ledger, None
        if ledger is not None and os.getpid() == self._pid:
            ledger.release(self._cell, self._value)

    def moved(self) -> "Lease":
        """The same hold as another object; this one holds nothing any more."""
        ledger, self._ledger = self._ledger, None
        if ledger is None:
            raise HandoffError("expected what a message refers to, got it when it was given back")
        return Lease(ledger, self._cell, self._value)

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _is_finalizing():
            self.release()


class OwnHold:
    """This process's hold on a slot that a tensor of its own lies in; given back as a lease."""

    __slots__ = ("_pool", "_slot")

    def __init__(self, pool: Pool, slot: Hold) -> None:
        self._pool = pool
        self._slot = slot

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _is_finalizing():
            self._pool.drop(self._slot)


class SlotBytes(np.ndarray[Any, Any]):
    """Bytes of a slot, which hold it: every view of them keeps this array, and so the hold."""

    hold: object = None


_UINT8: Final = np.dtype(np.uint8)


def slot_bytes(mapping: Mapping, offset: int, size: int, hold: object) -> SlotBytes:
    """Bytes of an arena as an array.

    Args:
        mapping: The arena's memory.
        offset: The first byte.
        size: How many, > 0.
        hold: Kept alive by the array and every view of it.
    """
    array = SlotBytes((size,), _UINT8, mapping.memory, offset)
    array.hold = hold
    return array


def own_bytes(slot: Slot, size: int) -> "np.ndarray[Any, Any]":
    """The first bytes of a slot of this process, for writing to; they hold nothing."""
    return np.ndarray((size,), _UINT8, slot.arena.mapping.memory, slot.offset)
