"""A message on its way out: encoded, then placed in slots."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from omniwire.contracts.errors import ArenaFull
from omniwire.serialization.blob import blob_parts
from omniwire.serialization.buffer_writer import align
from omniwire.serialization.codec import encode_header
from omniwire.serialization.converter import DETACH
from omniwire.serialization.handoff.arena import Slot
from omniwire.serialization.handoff.lending import LendingWriter, Peer
from omniwire.serialization.handoff.packets import message_bytes, pack_message
from omniwire.serialization.handoff.pool import Pool

_MAX_INLINE_BYTES: Final = 32 * 1024
"""A header up to this size goes through the socket, a larger one through the arena."""


class Place(NamedTuple):
    """Where the bytes of a frame are."""

    slot: Slot
    offset: int
    nbytes: int


class Outgoing:
    """An encoded message, and this process's holds on the slots that it lies in.

    Attributes:
        header: Frame 0.
        num_frames: Frames after that; the tensors of handles come after them.
        is_placed: Whether `place` was called.
        places: Where each of those is, once placed.
        outsides: Slots for the header, one for each reader, if it is too large for a packet.
        copied_bytes: Bytes of tensors that were copied into slots.
        in_place_bytes: Bytes of tensors that were in slots before.

    Args:
        obj: Any contract object.
        peers: Who it is for.

    Raises:
        EncodeError: It cannot be encoded.
    """

    def __init__(self, obj: object, peers: Sequence[Peer]) -> None:
        self._writer = LendingWriter(peers)
        token = DETACH.set(self._writer.detach)
        try:
            self.header = encode_header(obj, self._writer)
        finally:
            DETACH.reset(token)
        if self._writer.lending is not None:
            self._writer.lending.end()
        self.num_frames = len(self._writer.plans)
        self._plans = [*self._writer.plans, *self._writer.handles]
        self.is_placed = False
        self.places: list[Place] = []
        self.outsides: list[Slot] = []
        self.copied_bytes = self._writer.inline_bytes
        self.in_place_bytes = 0
        self._located: dict[int, Place] = {}
        self._holds: list[tuple[Pool, Slot]] = []

    def locate(self, pools: list[Pool]) -> None:
        """Find the frames that lie in slots of these pools already; they are held from now on."""
        for index, plan in enumerate(self._plans):
            address = plan.address()
            if address is not None:
                for pool in pools:
                    found = pool.locate(address, plan.nbytes)
                    if found is not None:
                        self._holds.append((pool, found[0]))
                        self._located[index] = Place(*found, plan.nbytes)
                        break

    def sizes(self, num_readers: int) -> list[int]:
        """The sizes of the slots that are needed: for frames, and each reader's header."""
        sizes = [
            align(plan.nbytes)
            for index, plan in enumerate(self._plans)
            if index not in self._located
        ]
        num_bytes = message_bytes(len(self._plans), self.header)
        if num_bytes > _MAX_INLINE_BYTES:
            sizes += [align(num_bytes)] * num_readers
        return sizes

    def place(self, slots: list[Slot], pool: Pool) -> None:
        """Copy the other frames into new slots of a pool, of the sizes that `sizes` gave."""
        self.is_placed = True
        self._holds += [(pool, slot) for slot in slots]
        unused = iter(slots)
        for index, plan in enumerate(self._plans):
            place = self._located.get(index)
            num_bytes = sum([nbytes for _, _, nbytes, _ in plan.pieces])
            if place is None:
                slot = next(unused)
                place = Place(slot, slot.offset, plan.nbytes)
                plan.write_to(slot.arena.mapping.address + slot.offset)
                self.copied_bytes += num_bytes
            else:
                self.in_place_bytes += num_bytes
            self.places.append(place)
        self.outsides = list(unused)
        lending = self._writer.lending
        if lending is not None:
            handles = [place.slot for place in self.places[self.num_frames :]]
            self.copied_bytes -= lending.place(handles, pool)
            self.in_place_bytes += lending.shared_bytes

    def whole(self) -> Iterator[bytes | memoryview]:
        """The message as one buffer, for the socket, if it fits no slot."""
        self.copied_bytes += sum(nbytes for plan in self._plans for _, _, nbytes, _ in plan.pieces)
        if self._writer.handles:
            got = f"{self.copied_bytes}"
            raise ArenaFull(f"expected a message with handles to fit the arena, got {got} bytes")
        return blob_parts([pack_message([], 0, self.header), *self.frames()[1:]])

    def frames(self) -> list[bytes | memoryview]:
        """The message as `encode` gives it."""
        return [self.header, *self._writer.finish()]

    def release(self) -> None:
        """Give up this process's holds; readers may have theirs."""
        while self._holds:
            pool, slot = self._holds.pop()
            pool.drop(slot)
