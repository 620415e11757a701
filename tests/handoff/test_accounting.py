"""What an arena holds, to the byte: growth, reuse, shrinking, bounds, and no byte of old."""

import gc
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from handoff_children import TIMEOUT_S, is_pattern, pattern, request, tensor_of
from hypothesis import given, settings
from hypothesis import strategies as hst

import omniwire as ow
from omniwire.serialization.handoff import arena as arena_module
from omniwire.serialization.handoff import outbox as outbox_module
from omniwire.serialization.handoff import pool as pool_module
from omniwire.serialization.handoff.ledger import NUM_CELLS

MIB = 2**20
ARENA = 2 * MIB


@pytest.fixture
def pair() -> tuple[ow.Channel, ow.Channel]:
    return ow.Channel.pair(arena_bytes=ARENA, max_bytes=4 * ARENA)


@pytest.fixture
def a(pair: tuple[ow.Channel, ow.Channel]) -> ow.Channel:
    return pair[0]


@pytest.fixture
def b(pair: tuple[ow.Channel, ow.Channel]) -> ow.Channel:
    return pair[1]


def held(channel: ow.Channel) -> int:
    return channel.stats()["in_flight_bytes"]


def size(channel: ow.Channel) -> int:
    return channel.stats()["arena_bytes"]


def address(channel: ow.Channel) -> int:
    """Where a message lies that it has received, and dropped by now."""
    return tensor_of(channel.recv(TIMEOUT_S)).data_ptr()


class TestStatistics:
    def test_of_a_new_channel(self, a: ow.Channel) -> None:
        assert dict(a.stats()) == {
            "arena_bytes": ARENA,
            "in_flight_bytes": 0,
            "free_bytes": ARENA,
            "copied_bytes": 0,
            "zero_copy_bytes": 0,
        }

    def test_of_one_of_the_usual_size(self, folder: Path) -> None:
        """32 to 64 MiB a direction, however the channel was made."""
        a, b = ow.Channel.pair()
        with ow.ChannelServer(folder / "socket") as server:
            client = ow.Channel.connect(folder / "socket", TIMEOUT_S)
            accepted = server.accept(TIMEOUT_S)
        for end in (a, b, client, accepted):
            assert 32 * MIB <= size(end) <= 64 * MIB
            end.empty((1,), torch.uint8)
            assert 32 * MIB <= size(end) <= 64 * MIB

    def test_free_and_in_flight_make_up_the_arena(self, a: ow.Channel, b: ow.Channel) -> None:
        for num_bytes in (1, 1000, 2**16, MIB + 1, 3 * MIB):
            a.send(request(pattern(num_bytes)))
            stats = a.stats()
            assert stats["free_bytes"] + stats["in_flight_bytes"] == stats["arena_bytes"]

    def test_each_direction_counts_its_own(self, a: ow.Channel, b: ow.Channel) -> None:
        a.send(request(pattern(MIB)))
        assert (held(a), held(b)) == (MIB, 0)
        b.send(request(pattern(2**16)))
        assert (held(a), held(b)) == (MIB, 2**16)

    @pytest.mark.parametrize(
        "num_bytes", [1, 512, 513, 2**16 - 1, 2**16, 100_001, 3 * MIB, 9 * MIB]
    )
    def test_every_byte_of_a_tensor_that_is_copied(
        self, a: ow.Channel, b: ow.Channel, num_bytes: int
    ) -> None:
        """In the header, in a shared slot, in its own, in a new arena, or through the socket."""
        a.send(request(pattern(num_bytes)))
        assert a.stats()["copied_bytes"] == num_bytes
        a.send(request(pattern(num_bytes)))
        assert a.stats()["copied_bytes"] == 2 * num_bytes
        assert a.stats()["zero_copy_bytes"] == 0

    def test_several_small_tensors_without_the_gaps_between_them(self, a: ow.Channel) -> None:
        a.send(request(a=pattern(1001), b=pattern(1001), c=pattern(100)))
        assert a.stats()["copied_bytes"] == 1001 + 1001 + 100

    def test_the_same_tensor_twice_is_copied_once(self, a: ow.Channel) -> None:
        tensor = pattern(MIB)
        a.send(request(a=tensor, b=tensor))
        assert a.stats()["copied_bytes"] == MIB
        assert held(a) == MIB

    def test_a_row_of_a_large_tensor_costs_a_row(self, a: ow.Channel) -> None:
        a.send(request(pattern(16 * MIB).view(16, MIB)[3]))
        assert a.stats()["copied_bytes"] == MIB
        assert held(a) == MIB

    def test_what_was_not_sent_is_not_counted(self, a: ow.Channel, b: ow.Channel) -> None:
        a.send(request(pattern(7 * MIB)))
        before = dict(a.stats())
        with pytest.raises(ow.ArenaFull):
            a.send(request(pattern(3 * MIB)), timeout=0.01)
        assert dict(a.stats()) == before


class TestReuse:
    def test_a_slot_that_is_free_is_used_again(self, a: ow.Channel, b: ow.Channel) -> None:
        a.send(request(pattern(MIB)))
        first = address(b)
        for _ in range(20):
            a.send(request(pattern(MIB)))
            assert address(b) == first
        assert size(a) == ARENA

    def test_without_the_receiver_saying_anything(self, a: ow.Channel, b: ow.Channel) -> None:
        """No message comes back: the sender itself receives nothing."""
        for _ in range(20):
            a.send(request(pattern(ARENA)))
            b.recv()
        with pytest.raises(ow.HandoffTimeout):
            a.recv(timeout=0)
        assert size(a) == ARENA

    def test_of_a_tensor_from_empty(self, a: ow.Channel) -> None:
        first = a.empty((MIB,), torch.uint8).data_ptr()
        assert a.empty((MIB,), torch.uint8).data_ptr() == first

    def test_in_whichever_order_they_come_back(self, a: ow.Channel, b: ow.Channel) -> None:
        """Neighbors merge: all of the arena is there again for one tensor."""
        for order in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]):
            for _ in range(4):
                a.send(request(pattern(ARENA // 4)))
            messages = {number: b.recv() for number in range(4)}
            for number in order:
                del messages[number]
            a.send(request(pattern(ARENA)))
            b.recv()
        assert size(a) == ARENA

    @settings(max_examples=25)
    @given(hst.data())
    def test_any_sequence_of_sends_and_drops(self, data: hst.DataObject) -> None:
        """The books agree with a plain sum, and every tensor keeps its bytes."""
        a, b = ow.Channel.pair(arena_bytes=ARENA, max_bytes=4 * ARENA)
        messages: dict[int, object] = {}
        sizes: dict[int, int] = {}
        for number in range(data.draw(hst.integers(1, 12))):
            num_bytes = data.draw(hst.sampled_from([5000, 50_000, 2**16, 300_001, MIB]))
            try:
                a.send(request(pattern(num_bytes, number)), timeout=0)
            except ow.ArenaFull:
                assert sum(sizes.values()) + num_bytes > ARENA
            else:
                messages[number] = b.recv()
                sizes[number] = -(-num_bytes // 64) * 64
            for other in data.draw(hst.sets(hst.sampled_from([*messages, -1]), max_size=3)):
                messages.pop(other, None)
                sizes.pop(other, None)
            assert held(a) == sum(sizes.values())
            assert all(is_pattern(tensor_of(each), seed) for seed, each in messages.items())


class TestOldBytes:
    """No byte of an old message shows in a new one, beyond what was written."""

    @pytest.fixture
    def dirty(self, a: ow.Channel, b: ow.Channel) -> ow.Channel:
        """A channel whose arena is full of a secret that nobody holds any more."""
        a.send(request(torch.full((ARENA,), 0xAA, dtype=torch.uint8)))
        b.recv()
        return a

    @pytest.mark.parametrize("num_bytes", [1, 63, 64, 1000, 2**16, ARENA])
    def test_a_tensor_from_empty(self, dirty: ow.Channel, num_bytes: int) -> None:
        tensor = dirty.empty((num_bytes,), torch.uint8)
        assert not tensor.any()
        assert not torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).any()
        assert tensor.untyped_storage().nbytes() == num_bytes

    @pytest.mark.parametrize("num_bytes", [1, 513, 1000, 2**16 - 1, 2**16 + 1, 100_001])
    def test_the_storage_of_a_received_tensor_ends_with_it(
        self, dirty: ow.Channel, b: ow.Channel, num_bytes: int
    ) -> None:
        dirty.send(request(pattern(num_bytes), other=pattern(777)))
        tensor = tensor_of(b.recv())
        assert tensor.untyped_storage().nbytes() == num_bytes
        assert is_pattern(tensor)

    @pytest.mark.parametrize("num_bytes", [513, 8001])
    def test_between_small_arrays_that_travel_together(
        self, dirty: ow.Channel, b: ow.Channel, num_bytes: int
    ) -> None:
        """Whatever lies under an array has no more than was written."""
        dirty.send(request(a=np.zeros(num_bytes, np.uint8), b=np.zeros(num_bytes, np.uint8)))
        message = b.recv()
        for field in "ab":
            layer = tensor_of(message, field)
            while isinstance(layer, np.ndarray):
                assert not (layer.view(np.uint8) == 0xAA).any()
                layer = layer.base

    def test_a_shared_tensor(self, dirty: ow.Channel, b: ow.Channel) -> None:
        dirty.send(request(dirty.share(pattern(1001))))
        tensor = tensor_of(b.recv()).resolve()
        assert is_pattern(tensor)
        assert tensor.untyped_storage().nbytes() == 1001

    def test_a_large_header(self, dirty: ow.Channel, b: ow.Channel) -> None:
        tokens = list(range(40_000))
        dirty.send(ow.ProcessedRequest("r", tokens))
        assert b.recv().prompt_token_ids == tuple(tokens)


class TestGrowth:
    def test_by_whole_arenas(self, a: ow.Channel, b: ow.Channel) -> None:
        for number in range(4):
            a.send(request(pattern(ARENA, number)))
            assert size(a) == (number + 1) * ARENA
            assert held(a) == (number + 1) * ARENA
        assert all(is_pattern(tensor_of(b.recv()), number) for number in range(4))

    def test_a_large_tensor_gets_an_arena_of_its_size(self, a: ow.Channel, b: ow.Channel) -> None:
        a.send(request(pattern(3 * ARENA - 5)))
        assert held(a) == 3 * ARENA
        assert is_pattern(tensor_of(b.recv()))

    def test_a_message_of_many_tensors_gets_one_arena(self, a: ow.Channel) -> None:
        a.send(request(**{f"t{number}": pattern(ARENA // 2) for number in range(6)}))
        assert size(a) == 3 * ARENA
        assert held(a) == 3 * ARENA

    def test_it_ends_at_the_bound(self, a: ow.Channel, b: ow.Channel) -> None:
        for _ in range(4):
            a.send(request(pattern(ARENA)))
        with pytest.raises(ow.ArenaFull) as caught:
            a.send(request(pattern(ARENA)), timeout=0)
        assert str(4 * ARENA) in str(caught.value)
        assert size(a) == 4 * ARENA
        b.recv()
        a.send(request(pattern(ARENA)), timeout=0)

    def test_the_bound_may_be_less_than_an_arena(self) -> None:
        a, _b = ow.Channel.pair(max_bytes=MIB)
        assert size(a) == MIB
        a.send(request(pattern(MIB)))
        with pytest.raises(ow.ArenaFull):
            a.send(request(pattern(2**16)), timeout=0)

    def test_each_arena_is_mapped_once(self, a: ow.Channel, b: ow.Channel) -> None:
        """However many messages lie in it."""
        for end, other in ((a, b), (b, a)):
            end.send(request(pattern(MIB)))
            other.recv()
        before = _mapped_bytes()
        mapping = b._end.inbox.mapping(next(iter(a._end.started().pool.arenas)))
        for number in range(5):
            a.send(request(pattern(MIB, number)))
            received = tensor_of(b.recv())
            assert mapping.address <= received.data_ptr() < mapping.address + ARENA
            del received
        assert _mapped_bytes() == before

    def test_no_arenas_at_all(self) -> None:
        """sglang#27434: where shared memory is not to be used, everything goes inline."""
        channels = ow.Channel.pair(max_bytes=0)
        for a, b in (channels, channels[::-1]):
            a.send(request(pattern(5 * MIB), more=[pattern(4096, 1), pattern(100, 2)]))
            a.send(ow.ProcessedRequest("long", range(100_000)))
            message = b.recv()
            assert is_pattern(tensor_of(message))
            assert [is_pattern(tensor_of(message, "more")[n], n + 1) for n in range(2)] == [
                True
            ] * 2
            assert b.recv().prompt_token_ids[-1] == 99_999
            assert a.stats() == {
                "arena_bytes": 0,
                "in_flight_bytes": 0,
                "free_bytes": 0,
                "copied_bytes": 5 * MIB + 4096 + 100,
                "zero_copy_bytes": 0,
            }
            assert a.empty((0, 3), torch.float32).shape == (0, 3)
            for allocate in (
                lambda a=a: a.empty((1,), torch.uint8),
                lambda a=a: a.share(pattern(1)),
            ):
                with pytest.raises(ow.ArenaFull):
                    allocate()

    def test_a_tensor_that_can_never_fit_is_refused_at_once(self, a: ow.Channel) -> None:
        with pytest.raises(ow.ArenaFull) as caught:
            a.empty((4 * ARENA + 1,), torch.uint8)
        assert str(4 * ARENA) in str(caught.value)
        with pytest.raises(ow.ArenaFull):
            a.share(pattern(4 * ARENA + 1))

    def test_a_message_that_can_never_fit_goes_through_the_socket(
        self, a: ow.Channel, b: ow.Channel
    ) -> None:
        a.send(request(pattern(5 * ARENA), more=pattern(1000, 1)))
        assert held(a) == 0
        message = b.recv()
        assert is_pattern(tensor_of(message))
        assert is_pattern(tensor_of(message, "more"), 1)

    def test_such_a_message_keeps_its_place_in_the_order(
        self, a: ow.Channel, b: ow.Channel
    ) -> None:
        for number in range(6):
            a.send(request(pattern(5 * ARENA if number % 2 else MIB, number), str(number)))
        for number in range(6):
            message = b.recv()
            assert message.request_id == str(number)
            assert is_pattern(tensor_of(message), number)

    def test_a_message_in_pieces_that_do_not_go_together(
        self, a: ow.Channel, b: ow.Channel
    ) -> None:
        """All of them together fit the bound, but not the idle arenas: those make room."""
        pieces = [pattern(ARENA * 7 // 10, seed) for seed in range(5)]
        for _ in range(4):
            a.send(request(pattern(ARENA)))
        for _ in range(4):
            b.recv()
        a.send(request(pieces=pieces), timeout=0)
        assert held(a) == 5 * -(-(ARENA * 7 // 10) // 64) * 64
        received = tensor_of(b.recv(), "pieces")
        assert all(is_pattern(piece, seed) for seed, piece in enumerate(received))
        del received
        assert held(a) == 0

    def test_a_message_in_more_pieces_than_there_are_cells(
        self, a: ow.Channel, b: ow.Channel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Waiting for cells would never end, so it goes through the socket."""
        monkeypatch.setattr(pool_module, "NUM_CELLS", 3)
        pieces = [pattern(64 * 1024, seed) for seed in range(4)]
        a.send(request(pieces=pieces[:3]), timeout=0)
        assert held(a) == 3 * 64 * 1024
        a.send(request(pieces=pieces), timeout=10)
        assert held(a) == 3 * 64 * 1024
        for count in (3, 4):
            received = tensor_of(b.recv(), "pieces")
            assert len(received) == count
            assert all(is_pattern(piece, seed) for seed, piece in enumerate(received))

    def test_a_message_of_as_many_frames_as_there_can_be(
        self, a: ow.Channel, b: ow.Channel
    ) -> None:
        """More than 16 bits count; its header does not fit a packet either."""
        count, extent = 2**16, 64 * 1024
        block = a.empty((extent + count,), torch.uint8)
        block[:count] = torch.arange(count) % 251
        a.send(request(pieces=block.unfold(0, extent, 1)[:count].unbind()), timeout=10)
        assert a.stats()["copied_bytes"] == 0
        received = tensor_of(b.recv(), "pieces")
        assert len(received) == count
        firsts = [piece.numpy()[0] for piece in received]
        assert firsts == [number % 251 for number in range(count)]

    def test_an_arena_in_pieces_grows_too(self, a: ow.Channel, b: ow.Channel) -> None:
        """Enough bytes are free, but no range of them."""
        messages = []
        for _ in range(8):
            a.send(request(pattern(ARENA // 8)))
            messages.append(b.recv())
        del messages[::2]
        assert a.stats()["free_bytes"] == ARENA // 2
        a.send(request(pattern(ARENA // 4)))
        assert size(a) == 2 * ARENA


class TestCells:
    def test_more_references_than_the_ledger_has_cells(self, a: ow.Channel, b: ow.Channel) -> None:
        """The sender waits until the reader has dropped one."""
        ledger = a._end.started().ledger
        ledger._used_to = NUM_CELLS - 2
        for _ in range(2):
            a.send(request(pattern(5000)))
        with pytest.raises(ow.ArenaFull):
            a.send(request(pattern(5000)), timeout=0.01)
        a.send(request(request_id="without a tensor"), timeout=0.01)
        b.recv()
        a.send(request(pattern(5000, 3)), timeout=0.01)
        b.recv()
        assert b.recv().request_id == "without a tensor"
        assert is_pattern(tensor_of(b.recv()), 3)
        assert ledger.num_free_cells == 0
        assert held(a) == 0
        assert ledger.num_free_cells == 2


class TestWhoCollects:
    def test_garbage_only_now_and_then(
        self, a: ow.Channel, b: ow.Channel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It takes long in a large process: not for each message that waits."""
        times: list[int] = []
        now = [100]
        collector = SimpleNamespace(collect=lambda: times.append(now[0]))
        monkeypatch.setattr(outbox_module, "gc", collector)
        monkeypatch.setattr(pool_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
        monkeypatch.setattr(outbox_module, "_PATIENCE_S", 0.0)
        a._end.started().pool.max_bytes = ARENA
        a.send(request(pattern(ARENA)))
        for later in (0, 4, 2, 4, 2):
            now[0] += later
            with pytest.raises(ow.ArenaFull):
                a.send(request(pattern(ARENA)), timeout=0.01)
        assert times == [100, 106, 112]


class TestMemoryOfTheMachine:
    @pytest.fixture
    def available(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As much memory as makes one more MiB of arena, besides what is kept free."""
        monkeypatch.setattr(arena_module, "available_memory", lambda: 65 * MIB + 4096)

    def test_a_tensor_larger_than_it_is_refused_with_the_numbers(
        self, a: ow.Channel, available: None
    ) -> None:
        with pytest.raises(ow.ArenaFull, match=str(MIB + 4096)):
            a.empty((MIB + 2**16,), torch.uint8)

    def test_of_this_very_machine(self) -> None:
        a, _b = ow.Channel.pair(max_bytes=2**60)
        with pytest.raises(ow.ArenaFull) as caught:
            a.empty((2**50,), torch.uint8)
        assert str(2**50)[:6] in str(caught.value)
        assert held(a) == 0

    def test_a_message_still_goes_through_the_socket(
        self, a: ow.Channel, b: ow.Channel, available: None
    ) -> None:
        a.send(request(pattern(3 * MIB)))
        assert held(a) == 0
        assert is_pattern(tensor_of(b.recv()))

    def test_while_others_are_in_flight_it_is_waited_for(
        self, a: ow.Channel, b: ow.Channel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        a.send(request(pattern(ARENA)))
        monkeypatch.setattr(arena_module, "available_memory", lambda: 0)
        with pytest.raises(ow.ArenaFull):
            a.send(request(pattern(MIB)), timeout=0)
        b.recv()
        a.send(request(pattern(MIB)), timeout=0)
        assert is_pattern(tensor_of(b.recv()))


class TestShrinking:
    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        """The time in seconds that the pool goes by."""
        now = [time.monotonic()]
        monkeypatch.setattr(pool_module.time, "monotonic", lambda: now[0])
        return now

    def test_arenas_that_are_idle_are_given_up(
        self, a: ow.Channel, b: ow.Channel, clock: list[float]
    ) -> None:
        for _ in range(4):
            a.send(request(pattern(ARENA)))
        for _ in range(4):
            b.recv()
        assert size(a) == 4 * ARENA
        clock[0] += 0.9
        assert size(a) == 4 * ARENA
        clock[0] += 0.2
        assert size(a) == ARENA

    def test_also_one_of_another_size(
        self, a: ow.Channel, b: ow.Channel, clock: list[float]
    ) -> None:
        a.send(request(pattern(3 * ARENA)))
        b.recv()
        assert size(a) == 3 * ARENA
        clock[0] += 1.1
        assert size(a) == ARENA

    def test_not_those_in_use(self, a: ow.Channel, b: ow.Channel, clock: list[float]) -> None:
        for number in range(3):
            a.send(request(pattern(ARENA, number)))
        messages = [b.recv() for _ in range(3)]
        del messages[1]
        size(a)
        clock[0] += 1.1
        assert size(a) == 2 * ARENA
        assert is_pattern(tensor_of(messages[0]), 0)
        assert is_pattern(tensor_of(messages[1]), 2)

    def test_what_was_used_meanwhile_is_not_idle(
        self, a: ow.Channel, b: ow.Channel, clock: list[float]
    ) -> None:
        for _ in range(4):
            clock[0] += 0.9
            for _ in range(2):
                a.send(request(pattern(ARENA)))
            for _ in range(2):
                b.recv()
            assert size(a) == 2 * ARENA

    def test_both_processes_let_go_of_the_memory(
        self, a: ow.Channel, b: ow.Channel, clock: list[float]
    ) -> None:
        for _ in range(4):
            a.send(request(pattern(ARENA)))
        for _ in range(4):
            b.recv()
        a.stats()
        clock[0] += 1.1
        a.stats()
        gc.collect()
        a.stats()
        a.send(request(pattern(MIB)))
        b.recv()
        assert _mapped_bytes() < 3 * ARENA  # the arena and its ledgers, here and there

    def test_also_if_nothing_is_sent_any_more(
        self, a: ow.Channel, b: ow.Channel, clock: list[float]
    ) -> None:
        """A look at the statistics is enough for the reader to be told."""
        for _ in range(4):
            a.send(request(pattern(ARENA)))
        for _ in range(4):
            b.recv()
        a.stats()
        clock[0] += 1.1
        a.stats()
        with pytest.raises(ow.HandoffTimeout):
            b.recv(timeout=0)
        assert len(b._end.inbox._arenas) == 1

    def test_a_large_one_makes_room_for_one_of_another_size(
        self, a: ow.Channel, b: ow.Channel
    ) -> None:
        """At once: idle arenas do not stand in the way."""
        for _ in range(4):
            a.send(request(pattern(ARENA)))
        for _ in range(4):
            b.recv()
        a.send(request(pattern(4 * ARENA)), timeout=0)
        assert size(a) == 4 * ARENA
        assert is_pattern(tensor_of(b.recv()))

    def test_a_peer_that_is_gone_does_not_matter(
        self, a: ow.Channel, b: ow.Channel, clock: list[float]
    ) -> None:
        for _ in range(2):
            a.send(request(pattern(ARENA)))
        for _ in range(2):
            b.recv()
        b.close()
        for _ in range(3):
            clock[0] += 1.1
            assert held(a) == 0


def _mapped_bytes() -> int:
    """Of arenas and ledgers in this process."""
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "memfd:omniwire" in line:
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            total += end - start
    return total
