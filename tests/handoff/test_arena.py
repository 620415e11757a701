"""Arenas: how their memory is made, shared, handed out and taken back."""

import errno
import fcntl
import mmap
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

from omniwire.contracts import ArenaFull, HandoffError
from omniwire.serialization.handoff import arena as arena_module
from omniwire.serialization.handoff.arena import Arena, Slot, attach, new_shared_file

MIB = 2**20


def content(slot: Slot) -> np.ndarray:
    return np.frombuffer(slot.arena.mapping.memory, np.uint8, slot.size, slot.offset)


def taken(arena: Arena, size: int) -> Slot:
    slot = arena.allocate(size)
    assert slot is not None
    return slot


def resident_bytes(address: int) -> int:
    """How much of a mapping of this process the system has put in its page table."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        if line.startswith(f"{address:x}-"):
            for entry in lines:
                name, _, rest = entry.partition(":")
                if name == "Rss":
                    return int(rest.split()[0]) * 1024
    raise AssertionError("nothing is mapped there")


class TestSlots:
    def test_start_at_multiples_of_64_bytes_of_memory_too(self) -> None:
        arena = Arena(MIB)
        slots = [taken(arena, size) for size in (64, 192, 4096, 64)]
        assert [slot.offset % 64 for slot in slots] == [0, 0, 0, 0]
        assert arena.mapping.address % mmap.PAGESIZE == 0

    def test_are_counted_to_the_byte(self) -> None:
        arena = Arena(MIB)
        slots = [taken(arena, size) for size in (64, 192, 4096)]
        assert arena.ranges.free_bytes == MIB - 64 - 192 - 4096
        assert not arena.is_empty
        for slot in slots:
            slot.release()
        assert arena.is_empty

    def test_are_free_with_the_last_hold(self) -> None:
        arena = Arena(MIB)
        slot = taken(arena, 64)
        slot.holds += 2
        slot.release()
        slot.release()
        assert not arena.is_empty
        slot.release()
        assert arena.is_empty

    def test_have_a_new_generation_each_time(self) -> None:
        arena = Arena(MIB)
        peer = attach(arena.descriptor.number, arena.size)
        first = taken(arena, 64)
        assert peer.generation(first.index) == first.generation
        first.release()
        assert peer.generation(first.index) != first.generation
        second = taken(arena, 64)
        assert second.index == first.index
        assert second.generation != first.generation
        assert peer.generation(second.index) == second.generation

    def test_a_generation_that_wraps_around(self) -> None:
        arena = Arena(4096)
        slot = taken(arena, 64)
        slot.generation = 2**32 - 1
        slot.release()
        assert taken(arena, 64).generation == 0

    def test_there_are_no_more_than_the_table_has_room_for(self) -> None:
        arena = Arena(2 * 4096)
        assert arena.allocate(64) is not None
        assert arena.allocate(64) is not None
        assert arena.allocate(64) is None

    def test_are_nobodys_when_they_are_free_again(self) -> None:
        """A tensor in a new slot is not taken for one of the old slots in its place."""
        arena = Arena(MIB)
        slots = [taken(arena, 4096) for _ in range(2)]
        for slot in slots:
            arena.own(slot)
            assert arena.owner_of(slot.offset + 4095) is slot
        for slot in slots:
            slot.release()
            assert arena.owner_of(slot.offset) is None
        whole = taken(arena, MIB)
        arena.own(whole)
        assert all(arena.owner_of(slot.offset + 64) is whole for slot in slots)

    def test_say_how_much_of_them_was_written_before(self) -> None:
        arena = Arena(MIB)
        first = taken(arena, 128)
        assert first.used == 0
        first.release()
        assert taken(arena, 192).used == 128


class TestMemory:
    def test_is_rounded_up_to_pages(self) -> None:
        assert Arena(1).size == 4096
        assert Arena(4097).size == 8192

    def test_is_the_same_for_a_peer(self) -> None:
        arena = Arena(MIB)
        peer = attach(arena.descriptor.number, arena.size)
        slot = taken(arena, 4096)
        content(slot)[:] = np.arange(4096) % 251
        seen = np.frombuffer(peer.memory, np.uint8, 4096, slot.offset)
        assert (seen == np.arange(4096) % 251).all()

    def test_is_there_when_it_is_made(self) -> None:
        """Every page: a write cannot fail later for want of memory."""
        arena = Arena(MIB)
        assert os.fstat(arena.descriptor.number).st_blocks * 512 >= MIB

    def test_is_mapped_with_every_page_here_and_there(self) -> None:
        """Otherwise the first message to use a page waits for the system to find it."""
        arena = Arena(MIB)
        peer = attach(arena.descriptor.number, arena.size)
        for mapping in (arena.mapping, peer):
            assert resident_bytes(mapping.address) >= MIB

    @pytest.mark.parametrize("size", [0, 4096, 16 * MIB])
    def test_cannot_change_its_size(self, size: int) -> None:
        arena = Arena(MIB)
        with pytest.raises(PermissionError):
            os.ftruncate(arena.descriptor.number, size)

    def test_takes_no_more_seals(self) -> None:
        """Nobody can seal it against writing."""
        arena = Arena(MIB)
        with pytest.raises(PermissionError):
            fcntl.fcntl(arena.descriptor.number, 1033, 8)

    def test_is_not_inherited_by_a_new_program(self) -> None:
        arena = Arena(MIB)
        assert not os.get_inheritable(arena.descriptor.number)

    def test_has_no_name(self) -> None:
        arena = Arena(MIB)
        entry = Path(f"/proc/self/fd/{arena.descriptor.number}")
        assert str(entry.readlink()) == "/memfd:omniwire (deleted)"

    def test_without_memfd_it_is_a_file_without_a_name(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delattr(os, "memfd_create")
        arena = Arena(MIB)
        status = os.fstat(arena.descriptor.number)
        assert status.st_nlink == 0
        assert status.st_blocks * 512 >= MIB
        assert not os.get_inheritable(arena.descriptor.number)
        peer = attach(arena.descriptor.number, arena.size)
        taken(arena, 64)
        assert peer.generation(0) == 1


class TestMoreThanThereIs:
    def test_is_refused_with_both_numbers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(arena_module, "available_memory", lambda: 100 * MIB)
        with pytest.raises(ArenaFull) as caught:
            Arena(40 * MIB)
        numbers = [int(word) for word in str(caught.value).split() if word.isdigit()]
        assert numbers[0] >= 40 * MIB  # with its table
        assert numbers[1] == 36 * MIB  # 64 MiB are left for the processes to go on
        assert Arena(35 * MIB).size == 35 * MIB

    def test_of_this_very_machine(self) -> None:
        """vllm#48879: twice as much as there was could be had."""
        with pytest.raises(ArenaFull):
            Arena(2**50)

    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.ENOMEM, errno.EMFILE, errno.ENFILE])
    def test_as_the_system_says_it(self, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
        def fail(*_: object) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "posix_fallocate", fail)
        with pytest.raises(ArenaFull, match=os.strerror(code)):
            Arena(MIB)

    def test_another_failure_is_not_taken_for_that(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object) -> None:
            raise PermissionError(errno.EPERM, "no")

        monkeypatch.setattr(os, "memfd_create", fail)
        with pytest.raises(PermissionError):
            Arena(MIB)


class TestAttaching:
    @pytest.mark.parametrize("size", [0, 4096, MIB - 4096, MIB + 4096, MIB + 1, MIB + 1024, 2**50])
    def test_another_size_than_it_has(self, size: int) -> None:
        arena = Arena(MIB)
        with pytest.raises(HandoffError):
            attach(arena.descriptor.number, size)

    def test_memory_that_could_shrink(self) -> None:
        """Reading past its new end would end the process."""
        number = os.memfd_create("hostile", os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(number, 4096 + 4)
            with pytest.raises(HandoffError):
                attach(number, 4096)
        finally:
            os.close(number)

    def test_no_memory_at_all(self) -> None:
        ends = os.pipe()
        try:
            with pytest.raises(HandoffError):
                attach(ends[0], 4096)
        finally:
            for end in ends:
                os.close(end)

    def test_a_folder(self) -> None:
        number = os.open(tempfile.gettempdir(), os.O_RDONLY)
        try:
            with pytest.raises(HandoffError):
                attach(number, 4096)
        finally:
            os.close(number)

    def test_a_file_of_its_size_that_was_never_an_arena(self) -> None:
        """Any file of somebody could be truncated while it is mapped."""
        with tempfile.TemporaryFile() as file:
            file.truncate(4096 + 4)
            with pytest.raises(HandoffError):
                attach(file.fileno(), 4096)


def test_a_shared_file_has_its_size() -> None:
    file = new_shared_file(12345)
    assert os.fstat(file.number).st_size == 12345
