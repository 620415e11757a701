"""A pool: the arenas that one end of a channel sends from."""

import collections
import math
import os
import time
from collections.abc import Iterator, Sequence
from typing import Final

from omniwire.contracts.errors import ArenaFull
from omniwire.serialization.handoff.arena import Arena, Slot, round_to_pages
from omniwire.serialization.handoff.descriptors import clear_event, new_event, signal_event
from omniwire.serialization.handoff.ledger import BOOKS, NUM_CELLS, WAITING, Hold, Ledger

_TURN_S: Final = 10.0
_KEPT_FREE_S: Final = 1.0
"""For so much of every turn, memory is kept free for the sender that has waited for longest."""

_COLLECT_AGAIN_S: Final = 5.0

IDLE_S: Final = 1.0
"""An arena that the pool grew by is given up after being empty for so long."""


class Pool:
    """Arenas that grow in number on demand, up to a bound, and shrink when idle.

    Args:
        arena_bytes: Size of an arena; a larger slot gets an arena of its own size.
        max_bytes: Bound of all arenas together.
    """

    def __init__(self, arena_bytes: int, max_bytes: int) -> None:
        self.max_bytes = round_to_pages(max_bytes)
        self.arena_bytes = min(round_to_pages(arena_bytes), self.max_bytes)
        self.arenas: dict[int, Arena] = {}
        self.ledgers: list[Ledger] = []
        """Those through which readers may hold slots of this pool."""
        self.event = new_event()
        self._pid = os.getpid()
        self._dropped: collections.deque[Hold] = collections.deque()
        self._waiting: list[object] = []  # the first has waited for longest
        self._first_since = 0.0
        self._collected_at = -math.inf
        self._empty_since: dict[int, float] = {}

    def allocate(self, sizes: Sequence[int], ticket: object = None) -> list[Slot] | None:
        """Slots of these sizes, multiples of 64 and > 0, all or none; each with one hold.

        Args:
            sizes: Their sizes.
            ticket: What `begin_waiting` returned, for who waits.

        Returns:
            The slots, or None if some reader or this process has to release others first, or
            others wait for longer.

        Raises:
            ArenaFull: They can never fit.
        """
        rest = sum(sizes)
        if rest > self.max_bytes or len(sizes) > NUM_CELLS:
            expected = f"expected at most {self.max_bytes} bytes at once, the bound of this channel"
            raise ArenaFull(f"{expected}, in {NUM_CELLS} pieces, got {rest} in {len(sizes)}")
        with BOOKS:
            self._collect()
            if self._waiting and self._waiting[0] is not ticket and self._is_kept_free():
                return None
            slots = self._allocate(sizes)
            if slots is not None:
                return slots
            if all(arena.is_empty for arena in self.arenas.values()):
                self._shrink(at_once=True)  # they may be too small, each for itself
                slots = self._allocate(sizes)
                if slots is not None:
                    return slots
                expected = f"expected slots of {sum(sizes)} bytes to fit an empty pool"
                raise ArenaFull(f"{expected} of {self.max_bytes}, got too many or too large pieces")
        return None

    def _allocate(self, sizes: Sequence[int]) -> list[Slot] | None:
        rest = sum(sizes)
        slots: list[Slot] = []
        try:
            for size in sizes:
                slot = self._find(size) or self._grow(size, rest, first=not slots)
                if slot is None:
                    return None
                slots.append(slot)
                rest -= size
            complete, slots = slots, []
            return complete
        finally:
            for slot in slots:
                slot.release()

    def drop(self, hold: Hold) -> None:
        """Give up a hold of this process. Takes no lock, as `ReaderLedger.release`."""
        if os.getpid() == self._pid:
            self._dropped.append(hold)
            if self._waiting:
                signal_event(self.event.number)

    def locate(self, address: int, size: int) -> tuple[Slot, int] | None:
        """The slot of a tensor of this process that holds all these bytes, and where they are."""
        with BOOKS:
            for arena in self.arenas.values():
                offset = address - arena.mapping.address
                if offset >= 0 and offset + size <= arena.size:
                    slot = arena.owner_of(offset)
                    if slot is None or offset + size > slot.offset + slot.size:
                        return None
                    slot.holds += 1
                    return slot, offset
        return None

    def begin_waiting(self) -> object:
        """Queue up for memory; readers signal what they release from now on.

        Returns:
            A ticket for `allocate` and `end_waiting`.
        """
        ticket = object()
        with BOOKS:
            if not self._waiting:
                self._first_since = time.monotonic()
                self.clear_event()
            self._waiting.append(ticket)
            for ledger in self.ledgers:
                ledger.set_flag(WAITING, on=True)
        return ticket

    def clear_event(self, ticket: object = None) -> None:
        """Forget past signals; to be followed by looking whether there is free memory.

        Of those who wait only the first does, or it could miss what wakes others too.

        Args:
            ticket: What `begin_waiting` returned, for who waits.
        """
        if ticket is not None and self._waiting[0] is not ticket:
            return
        for event in {self.event, *[ledger.event for ledger in self.ledgers]}:
            clear_event(event.number)

    def may_collect(self) -> bool:
        """Whether it is time to collect garbage again, as that takes long in a large process."""
        now = time.monotonic()
        if now - self._collected_at < _COLLECT_AGAIN_S:
            return False
        self._collected_at = now
        return True

    def notice_readers(self) -> None:
        """Get to know the readers of other channels too, so that the end of one is noticed."""
        for ledger in list(self.ledgers):
            if ledger.reader is None and len(ledger):
                ledger.notice_reader()

    def end_waiting(self, ticket: object) -> None:
        """Leave the queue; the next in it may try."""
        with BOOKS:
            self._waiting.remove(ticket)
            self._first_since = time.monotonic()
            if self._waiting:
                signal_event(self.event.number)
                return
            for ledger in self.ledgers:
                ledger.set_flag(WAITING, on=False)

    def watched(self) -> Iterator[int]:
        """Descriptors that become readable when there may be more free memory."""
        for ledger in list(self.ledgers):
            yield ledger.event.number
            if len(ledger) and ledger.reader is not None:
                yield ledger.reader.number

    def occupancy(self) -> tuple[int, int]:
        """Bytes of the arenas, at least of one, and how many of them are held."""
        with BOOKS:
            self._collect()
            sizes = sum(arena.size for arena in self.arenas.values())
            free = sum(arena.ranges.free_bytes for arena in self.arenas.values())
            return max(sizes, self.arena_bytes), sizes - free

    def _collect(self) -> None:
        """Release what was dropped, here or by a reader; let go of idle arenas."""
        dropped = self._dropped
        while dropped:
            dropped.popleft().release()
        for ledger in self.ledgers:
            ledger.collect()
            if len(ledger) and (self._waiting or ledger.is_retired):
                ledger.has_lost_reader()
        if len(self.ledgers) > 1:
            self.ledgers = [each for each in self.ledgers if len(each) or not each.is_retired]
        if sum(arena.size for arena in self.arenas.values()) > self.arena_bytes:
            self._shrink()

    def _find(self, size: int) -> Slot | None:
        for arena in self.arenas.values():
            slot = arena.allocate(size)
            if slot is not None:
                return slot
        return None

    def _grow(self, size: int, rest: int, *, first: bool) -> Slot | None:
        """A slot in a new arena; None if memory has to be released first.

        Args:
            size: Bytes of the slot.
            rest: Bytes of this and all slots after it: they get one arena if they can.
            first: Whether nothing is allocated yet that would be given back.
        """
        wanted = max(self.arena_bytes, round_to_pages(rest))
        if self._room() < wanted:
            self._shrink(at_once=True)
        wanted = min(wanted, self._room())
        if wanted < size:
            return None
        try:
            arena = Arena(wanted)
        except ArenaFull:
            if first and all(arena.is_empty for arena in self.arenas.values()):
                raise
            return None
        self.arenas[arena.number] = arena
        return arena.allocate(size)

    def _is_kept_free(self) -> bool:
        """Whether others let memory become free for who waits for longest.

        Not all the time: that one may need what is not going to be free, and all would wait.
        """
        return (time.monotonic() - self._first_since) % _TURN_S < _KEPT_FREE_S

    def _room(self) -> int:
        return self.max_bytes - sum(arena.size for arena in self.arenas.values())

    def _shrink(self, *, at_once: bool = False) -> None:
        """Let go of arenas that have been empty for a while, but for one of the usual size."""
        now = time.monotonic()
        for number, arena in list(self.arenas.items()):
            if not arena.is_empty:
                self._empty_since.pop(number, None)
                continue
            empty_for = now - self._empty_since.setdefault(number, now)
            is_last = len(self.arenas) == 1 and arena.size == self.arena_bytes
            if at_once or (empty_for >= IDLE_S and not is_last):
                del self.arenas[number]
                del self._empty_since[number]
