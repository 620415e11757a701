"""Arenas: shared memory without a name, mapped whole and for good."""

import bisect
import errno
import fcntl
import itertools
import mmap
import os
import stat
import struct
import tempfile
from typing import Final

import numpy as np

from omniwire.contracts.errors import ArenaFull, HandoffError
from omniwire.serialization.handoff.allocator import FreeList
from omniwire.serialization.handoff.descriptors import Descriptor, target
from omniwire.serialization.handoff.memory import available_memory

_ADD_SEALS: Final = 1033  # <linux/fcntl.h>; Python has had the names since 3.12
_GET_SEALS: Final = 1034
_SEALS: Final = 1 | 2 | 4  # nobody adds seals, shrinks or grows it any more
_BYTES_PER_SLOT: Final = 4096
_MAX_SLOTS: Final = 2**16
_GENERATION: Final = struct.Struct("<I")
_NUMBERS: Final = itertools.count()
_KEPT_FREE: Final = 64 * 2**20
"""Bytes of memory that no arena takes: what the processes need to go on."""


class Slot:
    """An allocation in an arena of this process; free again when nobody holds it.

    Attributes:
        arena: Where it is.
        index: Its place in the arena's table of generations.
        generation: Raised with every reuse of the index.
        offset: Its first byte in the arena.
        size: Its bytes, a multiple of 64.
        used: How many bytes at its start may be those of an earlier slot; the rest are zero.
        holds: How many need it: this process, and each message that refers to it.
        guest: What has to live as long as the slot is not free.
    """

    __slots__ = ("arena", "generation", "guest", "holds", "index", "offset", "size", "used")

    def __init__(
        self, arena: "Arena", index: int, generation: int, offset: int, size: int, used: int
    ) -> None:
        self.arena = arena
        self.index = index
        self.generation = generation
        self.offset = offset
        self.size = size
        self.used = used
        self.holds = 1
        self.guest: object = None

    def release(self) -> None:
        """Give up one hold; the last one frees the slot."""
        self.holds -= 1
        if not self.holds:
            self.arena.free(self)


class Mapping:
    """An arena's memory as it is mapped in this process, for as long as anything refers to it.

    Its data come first, then a table with the generation of every slot, 4 bytes each.

    Args:
        descriptor: Of the memory; not needed again once mapped.
        size: Bytes of data, a multiple of the page size.
    """

    __slots__ = ("address", "memory", "num_slots", "size")

    def __init__(self, descriptor: int, size: int) -> None:
        self.size = size
        self.num_slots = num_slots(size)
        whole = size + _GENERATION.size * self.num_slots
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        self.memory = mmap.mmap(descriptor, whole, flags)
        self.address: int = np.frombuffer(self.memory, np.uint8).ctypes.data

    def generation(self, index: int) -> int:
        """The generation of a slot, as its owner last set it."""
        generation: int = _GENERATION.unpack_from(self.memory, self._entry(index))[0]
        return generation

    def set_generation(self, index: int, generation: int) -> None:
        """Make every reference to an earlier use of a slot stale."""
        _GENERATION.pack_into(self.memory, self._entry(index), generation)

    def _entry(self, index: int) -> int:
        return self.size + _GENERATION.size * index


class Arena:
    """Shared memory of this process that peers map too, and which of it is free.

    Not thread-safe. The memory lives until every process has let go of it.

    Args:
        size: Bytes of data, > 0; rounded up to whole pages.

    Attributes:
        number: Its number among all arenas of this process.

    Raises:
        ArenaFull: There is not so much memory.
    """

    def __init__(self, size: int) -> None:
        size = round_to_pages(size)
        self.number = next(_NUMBERS)
        self.descriptor, self.mapping = _new_memory(size)
        self.size = size
        self.ranges = FreeList(size)
        self._owned: dict[int, Slot] = {}  # by offset; tensors of this process lie in them
        self._owned_offsets: list[int] = []  # sorted
        self._used_to = 0  # no byte from here on was ever written
        self._indices = list(range(self.mapping.num_slots - 1, -1, -1))
        self._generations = [1] * self.mapping.num_slots

    @property
    def is_empty(self) -> bool:
        """Whether every byte is free."""
        return self.ranges.free_bytes == self.size

    def allocate(self, size: int) -> Slot | None:
        """A new slot of `size` bytes, a multiple of 64 and > 0, with one hold; None if full."""
        if not self._indices:
            return None
        offset = self.ranges.take(size)
        if offset is None:
            return None
        index = self._indices.pop()
        generation = self._generations[index]
        self.mapping.set_generation(index, generation)
        used = min(max(self._used_to - offset, 0), size)
        self._used_to = max(self._used_to, offset + size)
        return Slot(self, index, generation, offset, size, used)

    def own(self, slot: Slot) -> None:
        """Note that a tensor of this process lies in a slot."""
        self._owned[slot.offset] = slot
        bisect.insort(self._owned_offsets, slot.offset)

    def owner_of(self, offset: int) -> Slot | None:
        """The slot of the tensor of this process that the byte at an offset is part of."""
        position = bisect.bisect_right(self._owned_offsets, offset)
        slot = self._owned[self._owned_offsets[position - 1]] if position else None
        return slot if slot is not None and offset < slot.offset + slot.size else None

    def free(self, slot: Slot) -> None:
        """Take back a slot that nobody holds."""
        generation = self._generations[slot.index] = (slot.generation + 1) & 0xFFFFFFFF
        self.mapping.set_generation(slot.index, generation)
        self._indices.append(slot.index)
        if self._owned.pop(slot.offset, None) is not None:
            del self._owned_offsets[bisect.bisect_left(self._owned_offsets, slot.offset)]
        self.ranges.give(slot.offset, slot.size)


def attach(descriptor: int, size: int) -> Mapping:
    """Map an arena of a peer.

    Args:
        descriptor: Of its memory.
        size: Bytes of data, as the peer says.

    Raises:
        HandoffError: It is not memory of that size which can no longer change it.
    """
    status = os.fstat(descriptor)
    whole = size + _GENERATION.size * num_slots(size)
    if not stat.S_ISREG(status.st_mode) or status.st_size != whole or size % mmap.PAGESIZE:
        expected = f"expected an arena of {size} bytes in a file of {whole}"
        raise HandoffError(f"{expected}, got {status.st_size}")
    check_sealed(descriptor)
    return Mapping(descriptor, size)


def check_sealed(descriptor: int) -> None:
    """Check that nobody can take away memory that a peer sent, which would end this process.

    Raises:
        HandoffError: Somebody could.
    """
    if not hasattr(os, "memfd_create"):
        return
    try:
        seals = fcntl.fcntl(descriptor, _GET_SEALS)
    except OSError:
        seals = 0
    if seals & _SEALS != _SEALS:
        raise HandoffError(f"expected sealed memory, got {target(descriptor)} with seals {seals}")


def num_slots(size: int) -> int:
    """How many slots an arena has."""
    return min(-(-size // _BYTES_PER_SLOT), _MAX_SLOTS)


def round_to_pages(size: int) -> int:
    """The next multiple of the page size."""
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def new_shared_file(size: int) -> Descriptor:
    """Memory without a name, which can be mapped and sent; sealed where the system can."""
    if hasattr(os, "memfd_create"):
        descriptor = Descriptor(os.memfd_create("omniwire", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        sealed = True
    else:
        with tempfile.TemporaryFile(dir="/dev/shm") as file:  # has no name there
            descriptor = Descriptor(os.dup(file.fileno()))
        sealed = False
    # Every page now, so that writing to one cannot fail later.
    os.posix_fallocate(descriptor.number, 0, size)
    if sealed:
        fcntl.fcntl(descriptor.number, _ADD_SEALS, _SEALS)
    return descriptor


def _new_memory(size: int) -> tuple[Descriptor, Mapping]:
    whole = size + _GENERATION.size * num_slots(size)
    try:
        available = available_memory() - _KEPT_FREE
        if whole <= available:
            descriptor = new_shared_file(whole)
            return descriptor, Mapping(descriptor.number, size)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EMFILE, errno.ENFILE):
            raise
        got = f"{error.strerror}"
    else:
        got = f"{available} available"
    raise ArenaFull(f"expected {whole} bytes of memory for an arena, got {got}")
