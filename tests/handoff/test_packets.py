"""Packets: what is written is read again, and nothing else gives more than a `HandoffError`."""

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as hst

from omniwire.contracts import HandoffError
from omniwire.serialization.handoff import packets as p

uint32s = hst.integers(0, 2**32 - 1)
uint64s = hst.integers(0, 2**64 - 1)
refs = hst.builds(p.Ref, uint32s, uint32s, uint32s, uint32s, uint64s, uint64s, hst.integers(0, 255))

REFS = [p.Ref(1, 2, 3, 4, 5, 6, 1), p.Ref(7, 8, 9, 10, 2**40, 2**63, 0)]
UNPACK: dict[str, tuple[bytes, Callable[[bytes], object]]] = {
    "hello": (p.pack_hello(1234), p.unpack_hello),
    "message": (p.pack_message(REFS, 1, b""), p.unpack_message),
    "arena": (p.pack_arena(p.NewArena(3, 2**30)), p.unpack_arena),
    "drop": (p.pack_drop(7), p.unpack_drop),
    "part": (p.pack_part(0, 9, b""), p.unpack_part),
}

every_packet = pytest.mark.parametrize(("packet", "unpack"), UNPACK.values(), ids=UNPACK)


class TestRoundTrips:
    @given(uint32s)
    def test_hello(self, pid: int) -> None:
        hello = p.unpack_hello(p.pack_hello(pid))
        assert hello == (p.HANDOFF_VERSION, p.OLDEST_PEER, pid)

    @given(hst.lists(refs, max_size=20), hst.booleans(), hst.binary(max_size=100), hst.data())
    def test_message(
        self, given_refs: list[p.Ref], outside: bool, header: bytes, data: hst.DataObject
    ) -> None:
        num_frames = data.draw(hst.integers(0, len(given_refs)))
        packet = p.pack_message(given_refs, num_frames, header, outside=outside)
        assert len(packet) == p.message_bytes(len(given_refs), header)
        assert p.unpack_message(packet) == (outside, num_frames, given_refs, header)

    @given(uint32s, uint64s)
    def test_arena(self, number: int, size: int) -> None:
        assert p.unpack_arena(p.pack_arena(p.NewArena(number, size))) == (number, size)

    @given(uint32s)
    def test_drop(self, number: int) -> None:
        assert p.unpack_drop(p.pack_drop(number)) == number

    @given(hst.sampled_from([0, p.PART_LAST, p.PART_STOPPED]), uint32s, hst.binary(max_size=99))
    def test_part(self, state: int, number: int, data: bytes) -> None:
        assert p.unpack_part(p.pack_part(state, number, data)) == (state, number, data)

    def test_a_packet_has_room_for_the_largest_part(self) -> None:
        data = bytes(p.MAX_PACKET_BYTES - p.PART_HEADER_BYTES)
        assert len(p.pack_part(0, 1, data)) == p.MAX_PACKET_BYTES


class TestOtherBytes:
    @every_packet
    def test_a_packet_that_is_cut_anywhere(
        self, packet: bytes, unpack: Callable[[bytes], object]
    ) -> None:
        for size in range(len(packet)):
            with pytest.raises(HandoffError):
                unpack(packet[:size])

    @every_packet
    @given(content=hst.binary(max_size=200))
    def test_any_bytes(
        self, packet: bytes, unpack: Callable[[bytes], object], content: bytes
    ) -> None:
        for each in (content, packet[:1] + content):
            try:
                unpack(each)
            except HandoffError:
                continue

    @every_packet
    @given(data=hst.data())
    def test_a_packet_with_bytes_changed(
        self, packet: bytes, unpack: Callable[[bytes], object], data: hst.DataObject
    ) -> None:
        changed = bytearray(packet)
        for position in data.draw(hst.lists(hst.integers(0, len(packet) - 1), max_size=5)):
            changed[position] = data.draw(hst.integers(0, 255))
        try:
            unpack(bytes(changed))
        except HandoffError:
            return

    @pytest.mark.parametrize("count", [3, 2**16, 2**32 - 1])
    def test_more_references_than_there_are(self, count: int) -> None:
        packet = bytearray(p.pack_message(REFS, 0, b""))
        struct.pack_into("=I", packet, 8, count)
        with pytest.raises(HandoffError):
            p.unpack_message(bytes(packet))

    def test_more_frames_than_references(self) -> None:
        with pytest.raises(HandoffError):
            p.unpack_message(p.pack_message(REFS, 3, b"header"))


class TestHello:
    def hello(self, version: int, oldest_peer: int) -> bytes:
        return struct.pack("=B7x8sIII", p.HELLO, b"omnilink", version, oldest_peer, 1)

    @pytest.mark.parametrize(
        ("version", "oldest_peer"),
        [(p.HANDOFF_VERSION, 1), (p.HANDOFF_VERSION + 5, p.HANDOFF_VERSION), (2**32 - 1, 0)],
    )
    def test_a_newer_peer_that_still_talks_to_this_one(
        self, version: int, oldest_peer: int
    ) -> None:
        assert p.unpack_hello(self.hello(version, oldest_peer)).version == version

    @pytest.mark.parametrize(
        ("version", "oldest_peer"),
        [(p.OLDEST_PEER - 1, 0), (p.HANDOFF_VERSION + 1, p.HANDOFF_VERSION + 1)],
        ids=["too old", "too new"],
    )
    def test_a_peer_of_another_version_is_named(self, version: int, oldest_peer: int) -> None:
        with pytest.raises(HandoffError) as caught:
            p.unpack_hello(self.hello(version, oldest_peer))
        assert f"{oldest_peer} to {version}" in str(caught.value)
        assert f"{p.OLDEST_PEER} to {p.HANDOFF_VERSION}" in str(caught.value)

    def test_more_after_it_is_for_later_versions(self) -> None:
        assert p.unpack_hello(p.pack_hello(5) + b"more").pid == 5

    def test_another_magic(self) -> None:
        with pytest.raises(HandoffError):
            p.unpack_hello(p.pack_hello(5).replace(b"omnilink", b"omnilink"[::-1]))
