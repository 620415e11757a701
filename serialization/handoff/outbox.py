"""The sending half of a channel's end."""

import contextlib
import ctypes
import gc
import itertools
import os
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from typing import Final

from omniwire.contracts.errors import ArenaFull, HandoffTimeout
from omniwire.serialization.handoff.arena import Arena, Slot
from omniwire.serialization.handoff.descriptors import Descriptor, own_pidfd
from omniwire.serialization.handoff.ledger import BOOKS, WAITING, Ledger
from omniwire.serialization.handoff.link import Gone, Link, is_hung_up
from omniwire.serialization.handoff.outgoing import Outgoing
from omniwire.serialization.handoff.packets import (
    MAX_PACKET_BYTES,
    PART_HEADER_BYTES,
    PART_LAST,
    PART_STOPPED,
    NewArena,
    Ref,
    pack_arena,
    pack_collect,
    pack_drop,
    pack_hello,
    pack_message,
    pack_part,
)
from omniwire.serialization.handoff.pool import Pool
from omniwire.serialization.handoff.waiting import POLL_AGAIN_S, Steps, Wait

_PATIENCE_S: Final = 0.05
"""Who has waited so long for memory has garbage collected, here and by the readers."""


class Outbox:
    """Sends messages through a link, and keeps the books of what its reader holds.

    Args:
        link: The socket.
        pool: Where the bytes go.
        closing: Becomes readable when this end is closed.
    """

    def __init__(self, link: Link, pool: Pool, closing: Descriptor) -> None:
        self.pool = pool
        self.ledger = Ledger(pool.event)
        self.copied_bytes = 0
        self.zero_copy_bytes = 0
        self._link = link
        self._closing = closing
        self._lock = threading.Lock()
        self._announced: dict[int, weakref.ref[Arena]] = {}
        self._num_lost = 0
        self._num_messages = 0
        self._part_numbers = itertools.count()
        self._stopped: list[int] = []
        pool.ledgers.append(self.ledger)
        process = own_pidfd()
        descriptors = (process.number, self.ledger.descriptor.number, pool.event.number)
        with contextlib.suppress(Gone):  # what the peer sent before can still be received
            link.send(pack_hello(os.getpid()), descriptors)  # the first packet finds room
        process.close()
        self.ledger.descriptor.close()

    def send_now(self, message: Outgoing) -> bool:
        """Send a message if nothing has to be waited for; whether it was sent.

        Raises:
            Gone: The reader is.
        """
        message.locate([self.pool])
        return try_placing(message, self.pool) and self._try_post(message, 0) is None

    def sending(self, message: Outgoing) -> Steps[None]:
        """Send a message that `send_now` did not."""
        if message.is_placed or (yield from placing(message, self.pool, [self])):
            yield from self.posting(message, 0)
        else:
            yield from self.posting_whole(message)

    def posting(self, message: Outgoing, number: int) -> Steps[None]:
        """Send a message that is placed to the reader, who may hold its slots from now on.

        Args:
            message: The message.
            number: Which of its readers this is.

        Raises:
            Gone: The reader is.
        """
        while (wait := self._try_post(message, number)) is not None:
            yield wait

    def ask_to_collect(self) -> None:
        """Have the reader collect garbage, if it has room for the request."""
        with self._lock:
            self._link.send(pack_collect())

    def check_reader(self) -> None:
        """Check that the reader is still there; if not, take back what it has not read.

        Raises:
            Gone: It is not.
        """
        if self.ledger.has_lost_reader():
            raise Gone
        if is_hung_up(self._link):
            with BOOKS:
                self.ledger.collect_unreceived()
            raise Gone

    def waits_for_reader(self) -> Iterator[Link | Descriptor]:
        """What becomes readable when this end is closed, or the reader's process has ended."""
        yield self._closing
        if self.ledger.reader is not None:
            yield self.ledger.reader

    @property
    def link(self) -> Link:
        """The socket."""
        return self._link

    def let_go(self) -> None:
        """Tell the reader which arenas are no more, so that it lets go of them too."""
        with self._lock:
            self._send_drops()

    def _try_post(self, message: Outgoing, number: int) -> Wait | None:
        """Send a message, or say what to wait for before trying again."""
        with self._lock:
            if not (self._send_stops() and self._send_drops()):
                return self._wait_for_room()
            if self.ledger.has_lost_reader():
                raise Gone
            if message.places or message.outsides:
                return self._post_slots(message, message.outsides[number : number + 1])
            if not self._link.send(pack_message([], 0, message.header)):
                return self._wait_for_room()
            self._count(message)
        return None

    def _post_slots(self, message: Outgoing, outside: list[Slot]) -> Wait | None:
        slots = {*[place.slot for place in message.places], *outside}
        if not self._announce(slots):
            return self._wait_for_room()
        with BOOKS:
            if self.ledger.num_free_cells < len(slots):
                wait = self._wait_for_cells()
                if self.ledger.num_free_cells < len(slots):  # still
                    return wait
            cells = {}
            for slot in slots:
                slot.holds += 1
                cells[slot] = self.ledger.hold(slot, self._num_messages)
        refs = [_ref(slot, cells[slot], offset, size) for slot, offset, size in message.places]
        packet = pack_message(refs, message.num_frames, message.header)
        for slot in outside:
            ctypes.memmove(slot.arena.mapping.address + slot.offset, packet, len(packet))
            ref = _ref(slot, cells[slot], slot.offset, len(packet))
            packet = pack_message([ref], 0, b"", outside=True)
        sent = False
        try:
            sent = self._link.send(packet)
        finally:
            if not sent:
                with BOOKS:
                    for cell, _ in cells.values():
                        self.ledger.take_back(cell)
        if not sent:
            return self._wait_for_room()
        self._count(message)
        return None

    def _count(self, message: Outgoing) -> None:
        self._num_messages += 1
        self.copied_bytes += message.copied_bytes
        self.zero_copy_bytes += message.in_place_bytes

    def posting_whole(self, message: Outgoing) -> Steps[None]:
        """Send a message through the socket, piece by piece."""
        number = next(self._part_numbers)
        done = False
        try:
            for state, piece in _pieces(message.whole()):
                packet = pack_part(state, number, piece)
                while not self._try_send(packet):
                    yield self._wait_for_room()
            done = True
        finally:
            if not done:
                with self._lock:
                    self._stopped.append(number)
        self.copied_bytes += message.copied_bytes

    def _try_send(self, packet: bytes) -> bool:
        if self.ledger.has_lost_reader():
            raise Gone
        with self._lock:
            return self._send_stops() and self._link.send(packet)

    def _announce(self, slots: Iterable[Slot]) -> bool:
        """Send the arenas that the reader does not know yet; whether all are sent."""
        num_lost = self.ledger.num_lost()
        if num_lost != self._num_lost:
            self._num_lost = num_lost
            self._announced.clear()
        for slot in slots:
            arena = slot.arena
            if arena.number not in self._announced:
                packet = pack_arena(NewArena(arena.number, arena.size))
                if not self._link.send(packet, (arena.descriptor.number,)):
                    return False
                self._announced[arena.number] = weakref.ref(arena)
        return True

    def _send_drops(self) -> bool:
        for number in [number for number, arena in self._announced.items() if arena() is None]:
            if not self._link.send(pack_drop(number)):
                return False
            del self._announced[number]
        return True

    def _send_stops(self) -> bool:
        while self._stopped:
            if not self._link.send(pack_part(PART_STOPPED, self._stopped[-1], b"")):
                return False
            self._stopped.pop()
        return True

    def _wait_for_room(self) -> Wait:
        return Wait(
            lambda: HandoffTimeout("expected the reader to take messages in time, got no room"),
            readable=self.waits_for_reader(),
            writable=(self._link,),
            hung_up=(self._link,),
        )

    def _wait_for_cells(self) -> Wait:
        self.pool.clear_event()
        self.ledger.set_flag(WAITING, on=True)
        self.ledger.collect()
        return Wait(
            lambda: arena_full(self.pool, 0),
            readable=(self.pool.event, *self.waits_for_reader()),
            hung_up=(self._link,),
        )


def try_placing(message: Outgoing, pool: Pool, num_readers: int = 1, ticket: object = None) -> bool:
    """Put a message into slots of a pool, if they are free; whether they are."""
    sizes = message.sizes(num_readers)
    try:
        slots = pool.allocate(sizes, ticket) if sizes else []
    except ArenaFull:
        return False
    if slots is not None:
        message.place(slots, pool)
    return slots is not None


def placing(message: Outgoing, pool: Pool, outboxes: list[Outbox]) -> Steps[bool]:
    """Put a message into slots of a pool, waiting for readers to release some if need be.

    Returns:
        False if it is too large for the pool, and nothing was placed.
    """
    try:
        slots = yield from allocating(pool, message.sizes(len(outboxes)), outboxes)
    except ArenaFull:
        return False
    message.place(slots, pool)
    return True


def allocating(pool: Pool, sizes: list[int], outboxes: list[Outbox]) -> Steps[list[Slot]]:
    """Allocate slots, waiting for readers to release some if need be.

    Raises:
        ArenaFull: They can never fit.
        Gone: A reader is.
    """
    slots = pool.allocate(sizes) if sizes else []
    if slots is not None:
        return slots
    ticket = pool.begin_waiting()
    is_patient = True
    try:
        pool.notice_readers()
        while (slots := pool.allocate(sizes, ticket)) is None:
            for outbox in outboxes:
                outbox.check_reader()
            closings = [waited for outbox in outboxes for waited in outbox.waits_for_reader()]
            begin = time.monotonic()
            yield Wait(
                lambda: arena_full(pool, sum(sizes)),
                readable=(*closings, *pool.watched()),
                hung_up=[outbox.link for outbox in outboxes],
                at_most_s=_PATIENCE_S if is_patient else POLL_AGAIN_S,
            )
            pool.clear_event(ticket)
            pool.notice_readers()
            if is_patient and time.monotonic() - begin >= _PATIENCE_S:
                is_patient = False
                if pool.may_collect():
                    gc.collect()  # cycles may hold slots, here or at a reader
                    for outbox in outboxes:
                        outbox.ask_to_collect()
        return slots
    finally:
        pool.end_waiting(ticket)


def arena_full(pool: Pool, wanted: int) -> ArenaFull:
    """The error of a sender that waited in vain."""
    arena_bytes, held = pool.occupancy()
    expected = f"expected {wanted} bytes of the arena to become free in time"
    return ArenaFull(f"{expected}, got {held} of {arena_bytes} in flight, at most {pool.max_bytes}")


def _ref(slot: Slot, cell: tuple[int, int], offset: int, size: int) -> Ref:
    number, value = cell
    return Ref(slot.arena.number, slot.index, slot.generation, number, offset, size, value)


def _pieces(whole: Iterable[bytes | memoryview]) -> Iterator[tuple[int, memoryview]]:
    """A buffer as the parts that packets have room for, each with its state."""
    room = MAX_PACKET_BYTES - PART_HEADER_BYTES
    for content in whole:
        view = memoryview(content)
        for start in range(0, view.nbytes, room):
            yield 0, view[start : start + room]
    yield PART_LAST, memoryview(b"")
