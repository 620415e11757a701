"""Peers that say what no channel says: an error for it, and the channel goes on."""

import gc
import os
import struct
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from handoff_children import TIMEOUT_S, is_pattern, pattern, request, serve_hello, tensor_of
from handoff_peer import Peer
from handoff_remote import Remote
from hypothesis import given, settings
from hypothesis import strategies as hst

import omniwire as ow
from omniwire.serialization.handoff import packets as p
from omniwire.serialization.handoff.ledger import WAITING

SIZE = 2**16
UNKNOWN_KINDS = [0, 99, 200, 255]


@pytest.fixture
def server(folder: Path) -> Iterator[ow.ChannelServer]:
    with ow.ChannelServer(folder / "socket") as server:
        yield server


@pytest.fixture
def peer(server: ow.ChannelServer) -> Iterator[Peer]:
    with Peer(Path(server.path)) as peer:
        yield peer


@pytest.fixture
def channel(server: ow.ChannelServer, peer: Peer) -> ow.Channel:
    """A channel whose other end is the peer, which has said hello and where its arena is."""
    peer.greet()
    channel = server.accept(TIMEOUT_S)
    peer.announce()
    return channel


def refused(channel: ow.Channel) -> ow.OmniwireError:
    """What receiving the next message raises: never a timeout, and no end of the channel."""
    with pytest.raises((ow.HandoffError, ow.DecodeError)) as caught:
        channel.recv(TIMEOUT_S)
    ended = (ow.HandoffTimeout, ow.PeerClosed, ow.PeerDied, ow.ArenaFull)
    assert not isinstance(caught.value, ended)
    return caught.value


def received(channel: ow.Channel) -> object:
    """The next message; None if it is refused."""
    try:
        return channel.recv(TIMEOUT_S)
    except (ow.HandoffError, ow.DecodeError) as error:
        if isinstance(error, ow.HandoffTimeout | ow.PeerClosed | ow.PeerDied):
            raise
        return None


def goes_on(channel: ow.Channel, peer: Peer) -> bool:
    """Whether a proper message still arrives."""
    peer.message(request(pattern(SIZE), "proper"))
    message = channel.recv(TIMEOUT_S)
    return message.request_id == "proper" and is_pattern(tensor_of(message))


def test_the_hand_made_peer_is_understood(channel: ow.Channel, peer: Peer) -> None:
    """Otherwise all refusals below would mean nothing."""
    header, [ref] = peer.refs(request(pattern(SIZE)))
    peer.send(p.pack_message([ref], 1, header))
    message = channel.recv(TIMEOUT_S)
    assert is_pattern(tensor_of(message))
    assert not peer.is_released(ref)
    del message
    assert peer.is_released(ref)
    assert goes_on(channel, peer)


class TestHello:
    @pytest.mark.parametrize(
        "packet",
        [
            b"\x01",
            p.pack_hello(1)[:-1],
            p.pack_hello(1).replace(b"omnilink", b"omnilinc"),
            p.pack_arena(p.NewArena(0, 4096)),
            p.pack_message([], 0, b""),
            p.pack_part(p.PART_LAST, 0, b""),
            b"GET / HTTP/1.1\r\n\r\n",
        ],
        ids=["short", "cut", "magic", "arena", "message", "part", "http"],
    )
    def test_something_else_first(
        self, server: ow.ChannelServer, peer: Peer, packet: bytes
    ) -> None:
        peer.send(packet)
        with pytest.raises(ow.HandoffError) as caught:
            server.accept(TIMEOUT_S)
        assert not isinstance(caught.value, ow.HandoffTimeout)
        with Peer(Path(server.path)) as other:
            other.greet()
            server.accept(TIMEOUT_S)

    @pytest.mark.parametrize(
        ("version", "oldest_peer"), [(0, 0), (p.HANDOFF_VERSION + 1, p.HANDOFF_VERSION + 1)]
    )
    def test_another_version(
        self, server: ow.ChannelServer, peer: Peer, version: int, oldest_peer: int
    ) -> None:
        packet = struct.pack("=B7x8sIII", p.HELLO, b"omnilink", version, oldest_peer, os.getpid())
        peer.send(packet, peer.hello_descriptors)
        with pytest.raises(ow.HandoffError, match=f"{oldest_peer} to {version}"):
            server.accept(TIMEOUT_S)

    def test_a_client_refuses_a_server_of_another_version(
        self, folder: Path, call: Callable[..., Remote]
    ) -> None:
        path = folder / "other"
        hello = struct.pack("=B7x8sIII", p.HELLO, b"omnilink", 9, 9, 1)
        child = call(serve_hello, str(path), hello)
        assert child.receive() == "listening"
        with pytest.raises(ow.HandoffError, match="9 to 9"):
            ow.Channel.connect(path, TIMEOUT_S)
        child.send("done")
        child.end()
        path.unlink()

    def test_later_fields_of_a_newer_version_are_ignored(
        self, server: ow.ChannelServer, peer: Peer
    ) -> None:
        peer.send(p.pack_hello(os.getpid()) + b"later", peer.hello_descriptors)
        channel = server.accept(TIMEOUT_S)
        peer.announce()
        assert goes_on(channel, peer)

    @pytest.mark.parametrize(
        "places",
        [[], [0], [0, 1], [1, 0, 2], [1, 1, 2], [2, 1, 2], [0, 2, 1], [0, 1, 0], [0, 1, 1]],
    )
    def test_other_descriptors(
        self, server: ow.ChannelServer, peer: Peer, places: list[int]
    ) -> None:
        descriptors = [peer.hello_descriptors[place] for place in places]
        peer.send(p.pack_hello(os.getpid()), descriptors)
        with pytest.raises(ow.HandoffError):
            server.accept(TIMEOUT_S)

    def test_a_ledger_that_could_shrink(self, server: ow.ChannelServer, peer: Peer) -> None:
        number = os.memfd_create("hostile", os.MFD_ALLOW_SEALING)
        os.ftruncate(number, 2**16)
        process, _, event = peer.hello_descriptors
        peer.send(p.pack_hello(os.getpid()), [process, number, event])
        with pytest.raises(ow.HandoffError):
            server.accept(TIMEOUT_S)
        os.close(number)

    def test_twice(self, channel: ow.Channel, peer: Peer) -> None:
        peer.greet()
        refused(channel)
        assert goes_on(channel, peer)

    def test_of_a_peer_that_has_sent_all_and_hung_up(self, server: ow.ChannelServer) -> None:
        with Peer(Path(server.path)) as other:
            other.greet()
            other.announce()
            other.message(request(pattern(SIZE)))
        channel = server.accept(TIMEOUT_S)
        assert is_pattern(tensor_of(channel.recv(TIMEOUT_S)))
        with pytest.raises(ow.PeerClosed):
            channel.recv(TIMEOUT_S)


class TestPackets:
    @pytest.mark.parametrize("kind", UNKNOWN_KINDS)
    @pytest.mark.parametrize("size", [1, 100, p.MAX_PACKET_BYTES])
    def test_of_an_unknown_kind(
        self, channel: ow.Channel, peer: Peer, kind: int, size: int
    ) -> None:
        peer.send(bytes([kind]) + bytes(size - 1))
        refused(channel)
        assert goes_on(channel, peer)

    @pytest.mark.parametrize("kind", [p.MESSAGE, p.ARENA, p.DROP, p.PART])
    def test_that_are_cut(self, channel: ow.Channel, peer: Peer, kind: int) -> None:
        peer.send(bytes([kind]) + bytes(2))
        refused(channel)
        assert goes_on(channel, peer)

    def test_that_are_longer_than_any(self, channel: ow.Channel, peer: Peer) -> None:
        peer.send(bytes([p.MESSAGE]) + bytes(p.MAX_PACKET_BYTES + 100))
        refused(channel)
        assert goes_on(channel, peer)

    def test_waiting_announces_them(self, channel: ow.Channel, peer: Peer) -> None:
        """What `wait` says is ready raises at once, and only once."""
        peer.send(b"\xff")
        assert ow.wait([channel], TIMEOUT_S) == [channel]
        refused(channel)
        assert ow.wait([channel], timeout=0) == []
        assert goes_on(channel, peer)

    def test_they_do_not_disturb_sending(self, channel: ow.Channel, peer: Peer) -> None:
        """The error is the receiver's to see."""
        peer.send(b"\xff")
        channel.send(request())
        refused(channel)

    @pytest.mark.parametrize("waits", [True, False])
    def test_a_request_to_collect_garbage(
        self, channel: ow.Channel, peer: Peer, waits: bool
    ) -> None:
        """It is heard while the peer waits for memory, and else does not cost anything."""

        class Cycle:
            def __init__(self) -> None:
                self.self = self

        gc.collect()
        gc.disable()
        try:
            garbage = weakref.ref(Cycle())
            peer.ledger.set_flag(WAITING, on=waits)
            peer.send(p.pack_collect())
            assert goes_on(channel, peer)
            assert (garbage() is None) == waits
        finally:
            gc.enable()

    def test_descriptors_that_nobody_asked_for(self, channel: ow.Channel, peer: Peer) -> None:
        assert goes_on(channel, peer)
        before = len(list(Path("/proc/self/fd").iterdir()))
        header, refs = peer.refs(request(pattern(SIZE)))
        peer.send(p.pack_message(refs, 1, header), [0, 1, 2])
        assert is_pattern(tensor_of(channel.recv(TIMEOUT_S)))
        assert len(list(Path("/proc/self/fd").iterdir())) == before

    @settings(max_examples=40)
    @given(data=hst.data())
    def test_any(self, data: hst.DataObject) -> None:
        """Whatever a peer says, in whichever order: errors of ours, and a channel that goes on."""
        path = Path(f"{os.environ['TMPDIR']}/any")
        packets = hst.one_of(
            hst.binary(min_size=1, max_size=80),
            hst.builds(
                lambda kind, rest: bytes([kind]) + rest,
                hst.sampled_from([p.MESSAGE, p.ARENA, p.DROP, p.COLLECT, p.PART]),
                hst.binary(max_size=80),
            ),
            hst.builds(
                lambda ref, num, header, outside: p.pack_message(
                    [ref] * num, num, header, outside=outside
                ),
                hst.builds(
                    p.Ref,
                    *[hst.integers(0, 3) | hst.just(2**32 - 1) for _ in range(4)],
                    hst.sampled_from([0, 64, 2**20, 2**64 - 1]),
                    hst.sampled_from([0, 1, 64, 2**20, 2**64 - 1]),
                    hst.integers(0, 2),
                ),
                hst.integers(0, 2),
                hst.binary(max_size=20),
                hst.booleans(),
            ),
        )
        with ow.ChannelServer(path) as server, Peer(path) as peer:
            peer.greet()
            channel = server.accept(TIMEOUT_S)
            peer.announce()
            for packet in data.draw(hst.lists(packets, max_size=6)):
                peer.send(packet)
            peer.announce()  # the old number may have been dropped
            peer.message(request(pattern(SIZE), "proper"))
            while (message := received(channel)) is None:
                pass
            assert is_pattern(tensor_of(message))


class TestReferences:
    @pytest.mark.parametrize(
        "forged",
        [
            {"arena": 2**32 - 1},
            {"slot": 255},
            {"slot": 256},
            {"slot": 2**32 - 1},
            {"generation": 0},
            {"generation": 2},
            {"generation": 2**32 - 1},
            {"cell": 60 * 1024},
            {"cell": 2**32 - 1},
            {"offset": 2**20},
            {"offset": 2**20 - SIZE + 1},
            {"offset": 2**64 - 1},
            {"offset": 2**64 - SIZE},
            {"size": 0},
            {"size": SIZE - 1},
            {"size": SIZE + 1},
            {"size": 2**20 + 1},
            {"size": 2**64 - 1},
            {"value": 2},
            {"value": 255},
        ],
        ids=str,
    )
    def test_forged(self, channel: ow.Channel, peer: Peer, forged: dict[str, int]) -> None:
        header, [ref] = peer.refs(request(pattern(SIZE)))
        peer.send(p.pack_message([ref._replace(**forged)], 1, header))
        refused(channel)
        assert goes_on(channel, peer)

    def test_stale(self, channel: ow.Channel, peer: Peer) -> None:
        """To a slot that was given away again since: an error, never someone else's bytes."""
        header, [ref] = peer.refs(request(pattern(SIZE)))
        slot = peer.slot(pattern(64))
        peer.send(p.pack_message([ref], 1, header))
        assert is_pattern(tensor_of(channel.recv(TIMEOUT_S)))
        stale = ref._replace(slot=slot.index, generation=slot.generation)
        slot.release()
        peer.send(p.pack_message([stale], 1, header))
        text = str(refused(channel))
        assert all(str(number) in text for number in (slot.index, slot.generation))
        assert goes_on(channel, peer)

    def test_what_a_refused_message_refers_to_is_given_back(
        self, channel: ow.Channel, peer: Peer
    ) -> None:
        sent = request(a=pattern(SIZE), b=pattern(SIZE, 1), c=pattern(SIZE, 2))
        header, refs = peer.refs(sent)
        peer.send(p.pack_message([refs[0], refs[1]._replace(slot=2**31), refs[2]], 3, header))
        refused(channel)
        assert all(peer.is_released(ref) for ref in refs)

    def test_closing_with_some_unread(self, channel: ow.Channel, peer: Peer) -> None:
        """Forged ones are no trouble; the proper ones are given back."""
        header, [ref] = peer.refs(request(pattern(SIZE)))
        other = peer.refs(request(pattern(SIZE)))[1][0]
        peer.send(p.pack_message([ref._replace(cell=2**31)], 1, header))
        peer.send(p.pack_message([ref._replace(slot=2**31)], 1, header))
        peer.send(bytes([p.MESSAGE]))
        peer.send(b"\xff")
        peer.send(p.pack_message([other], 1, header))
        channel.close()
        assert peer.is_released(ref)
        assert peer.is_released(other)

    @pytest.mark.parametrize("change", [lambda refs: refs[:1], lambda refs: [*refs, refs[0]]])
    def test_too_few_or_too_many(self, channel: ow.Channel, peer: Peer, change) -> None:
        header, refs = peer.refs(request(a=pattern(SIZE), b=pattern(SIZE, 1)))
        given_refs = change(refs)
        peer.send(p.pack_message(given_refs, len(given_refs), header))
        refused(channel)
        assert all(peer.is_released(ref) for ref in given_refs)
        assert goes_on(channel, peer)

    def test_the_same_bytes_twice(self, channel: ow.Channel, peer: Peer) -> None:
        """Two references to one slot with one cell: given back once, with the last."""
        header, [first, second] = peer.refs(request(a=pattern(SIZE), b=pattern(SIZE)))
        peer.send(p.pack_message([first, first], 2, header))
        message = channel.recv(TIMEOUT_S)
        a, b = tensor_of(message, "a"), tensor_of(message, "b")
        del message, a
        assert not peer.is_released(first)
        assert is_pattern(b)
        del b
        assert peer.is_released(first)
        assert not peer.is_released(second)

    def test_a_header_outside_with_no_reference_to_it(
        self, channel: ow.Channel, peer: Peer
    ) -> None:
        for refs in ([], peer.refs(request(a=pattern(SIZE), b=pattern(SIZE)))[1]):
            peer.send(p.pack_message(refs, 0, b"", outside=True))
            refused(channel)
            assert all(peer.is_released(ref) for ref in refs)
        assert goes_on(channel, peer)

    def test_a_header_outside_that_is_outside_again(self, channel: ow.Channel, peer: Peer) -> None:
        """No recursion, however often it says so."""
        slot = peer.slot(torch.zeros(SIZE, dtype=torch.uint8))
        ref = peer.ref(slot, 0)
        packet = p.pack_message([ref], 0, b"", outside=True)
        ref = ref._replace(size=len(packet))
        packet = p.pack_message([ref], 0, b"", outside=True)
        memory = memoryview(peer.arena.mapping.memory)
        memory[slot.offset : slot.offset + len(packet)] = packet
        memory.release()
        peer.send(packet)
        refused(channel)
        assert peer.is_released(ref)
        assert goes_on(channel, peer)

    def test_references_in_a_message_through_the_socket(
        self, channel: ow.Channel, peer: Peer
    ) -> None:
        header, refs = peer.refs(request(pattern(SIZE)))
        blob = ow.dumps(request(pattern(SIZE)))
        peer.send(p.pack_part(0, 1, p.pack_message(refs, 1, header)))
        peer.send(p.pack_part(p.PART_LAST, 1, b""))
        refused(channel)
        peer.send(p.pack_part(0, 1, blob[:60_000]))
        peer.send(p.pack_part(p.PART_LAST, 1, b""))
        refused(channel)
        assert goes_on(channel, peer)


class TestArenas:
    @pytest.mark.parametrize("size", [0, 4096, 2**20 - 4096, 2**20 + 4096, 2**63])
    def test_of_another_size(self, channel: ow.Channel, peer: Peer, size: int) -> None:
        number = peer.arena.number + 1
        peer.send(p.pack_arena(p.NewArena(number, size)), [peer.arena.descriptor.number])
        header, [ref] = peer.refs(request(pattern(SIZE)))
        peer.send(p.pack_message([ref._replace(arena=number)], 1, header))
        refused(channel)
        assert peer.ledger.num_lost() == 1
        assert goes_on(channel, peer)

    @pytest.mark.parametrize("count", [0, 2, 3])
    def test_with_another_number_of_descriptors(
        self, channel: ow.Channel, peer: Peer, count: int
    ) -> None:
        number = peer.arena.number + 1
        descriptors = [peer.arena.descriptor.number] * count
        peer.send(p.pack_arena(p.NewArena(number, peer.arena.size)), descriptors)
        header, [ref] = peer.refs(request(pattern(SIZE)))
        peer.send(p.pack_message([ref._replace(arena=number)], 1, header))
        refused(channel)
        assert goes_on(channel, peer)

    def test_memory_that_could_shrink(self, channel: ow.Channel, peer: Peer) -> None:
        """It is never mapped: reading it could end the process."""
        hostile = os.memfd_create("hostile", os.MFD_ALLOW_SEALING)
        size = peer.arena.size
        os.ftruncate(hostile, size + 4 * (size // 4096))
        number = peer.arena.number + 1
        peer.send(p.pack_arena(p.NewArena(number, size)), [hostile])
        header, [ref] = peer.refs(request(pattern(SIZE)))
        peer.send(p.pack_message([ref._replace(arena=number)], 1, header))
        refused(channel)
        os.ftruncate(hostile, 0)
        os.close(hostile)
        assert goes_on(channel, peer)

    def test_one_that_was_dropped(self, channel: ow.Channel, peer: Peer) -> None:
        """What was received from it stays; nothing new comes from it."""
        peer.message(request(pattern(SIZE)))
        message = channel.recv(TIMEOUT_S)
        peer.send(p.pack_drop(peer.arena.number))
        peer.message(request(pattern(SIZE)))
        refused(channel)
        assert is_pattern(tensor_of(message))
        peer.announce()
        assert goes_on(channel, peer)

    def test_dropping_one_that_never_was(self, channel: ow.Channel, peer: Peer) -> None:
        peer.send(p.pack_drop(2**31))
        assert goes_on(channel, peer)


class TestHeaders:
    @pytest.mark.parametrize(
        "header", [b"", b"x", b"omniwire", bytes(1000), b"\xdc\xff\xff" * 9000]
    )
    def test_that_are_no_header(self, channel: ow.Channel, peer: Peer, header: bytes) -> None:
        _, [ref] = peer.refs(request(pattern(SIZE)))
        peer.send(p.pack_message([ref], 1, header))
        assert isinstance(refused(channel), ow.DecodeError)
        assert peer.is_released(ref)
        assert goes_on(channel, peer)

    def test_that_are_changed_anywhere(self, channel: ow.Channel, peer: Peer) -> None:
        """An error, or what was sent: a newer writer may say that an older reader can read it."""
        header, [ref] = peer.refs(request(pattern(SIZE)))
        for position in range(len(header)):
            changed = bytearray(header)
            changed[position] ^= 0x55
            peer.send(p.pack_message([ref], 1, bytes(changed)))
            try:
                message = channel.recv(TIMEOUT_S)
            except ow.DecodeError:
                continue
            assert is_pattern(tensor_of(message))
        assert goes_on(channel, peer)

    def test_of_a_contract_that_is_broken(self, channel: ow.Channel, peer: Peer) -> None:
        """A message that decodes but breaks a contract says so."""
        header = bytes(ow.encode(ow.ItemRef("image", 3))[0])
        broken = header.replace(b"image", b"IMAGE")
        assert broken != header
        peer.send(p.pack_message([], 0, broken))
        assert isinstance(refused(channel), ow.DecodeError)
        assert goes_on(channel, peer)

    def test_with_a_handle_that_is_not_there(self, channel: ow.Channel, peer: Peer) -> None:
        for payload in (b"omniwire:slot:7", b"omniwire:slot:-1", b"omniwire:slot:x"):
            handle = ow.TensorHandle("arena", torch.uint8, (SIZE,), payload)
            header, refs = peer.refs(request(handle, more=pattern(SIZE)))
            peer.send(p.pack_message(refs, 1, header))
            refused(channel)
            assert peer.is_released(refs[0])
        assert goes_on(channel, peer)

    @pytest.mark.parametrize("shape", [(SIZE - 1,), (SIZE + 1,), (2, SIZE), (0,)])
    def test_with_a_handle_of_another_size(
        self, channel: ow.Channel, peer: Peer, shape: tuple[int, ...]
    ) -> None:
        handle = ow.TensorHandle("arena", torch.uint8, shape, b"omniwire:slot:0")
        header, _ = peer.refs(request(handle))
        ref = peer.ref(peer.slot(pattern(SIZE)), SIZE)
        peer.send(p.pack_message([ref], 0, header))
        refused(channel)
        assert peer.is_released(ref)
        assert goes_on(channel, peer)
