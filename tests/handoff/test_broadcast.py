"""One object to many readers, and one executor for many producers."""

import collections
import itertools
import os
import signal
import threading
from collections.abc import Callable

import pytest
import torch
from handoff_children import TIMEOUT_S, is_pattern, pattern, request, tensor_of
from handoff_remote import Remote

import omniwire as ow

MIB = 2**20

pytestmark = pytest.mark.usefixtures("no_second_look")

Pairs = list[tuple[ow.Channel, ow.Channel]]


@pytest.fixture
def pairs() -> Pairs:
    return [ow.Channel.pair(arena_bytes=MIB, max_bytes=MIB) for _ in range(3)]


def senders(pairs: Pairs) -> list[ow.Channel]:
    return [a for a, _ in pairs]


def held(pairs: Pairs) -> list[int]:
    return [a.stats()["in_flight_bytes"] for a, _ in pairs]


def introduce(pairs: Pairs, ranks: list[Remote]) -> None:
    """Have the sender know who its readers are."""
    for (a, _), rank in zip(pairs, ranks, strict=True):
        rank.do("send")
        a.recv(TIMEOUT_S)


class TestBroadcast:
    def test_one_copy_for_all(self, pairs: Pairs) -> None:
        ow.broadcast(senders(pairs), request(pattern(MIB)))
        assert held(pairs) == [MIB, 0, 0]
        messages = [b.recv(TIMEOUT_S) for _, b in pairs]
        assert held(pairs) == [MIB, 0, 0]
        assert all(is_pattern(tensor_of(each)) for each in messages)
        addresses = [tensor_of(each).data_ptr() for each in messages]
        messages[1].multimodal_params.multimodal_data["image"]["x"].fill_(9)
        assert all((tensor_of(each) == 9).all() for each in messages)
        assert len(set(addresses)) == 3  # each has mapped it for itself

    @pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
    def test_the_last_reader_frees_it(self, pairs: Pairs, order: list[int]) -> None:
        """sglang#23022, #21665: the first of eight did."""
        ow.broadcast(senders(pairs), request(pattern(MIB)))
        messages = {number: pairs[number][1].recv(TIMEOUT_S) for number in range(3)}
        for number in order:
            assert held(pairs) == [MIB, 0, 0]
            del messages[number]
        assert held(pairs) == [0, 0, 0]

    def test_with_tensors_from_empty(self, pairs: Pairs) -> None:
        """Of any of the channels: nothing is copied."""
        for position, (a, _) in enumerate(pairs):
            tensor = a.empty((MIB,), torch.uint8).copy_(pattern(MIB))
            ow.broadcast(senders(pairs), request(tensor))
            del tensor
            expected = [MIB if number == position else 0 for number in range(3)]
            assert held(pairs) == expected
            messages = [b.recv(TIMEOUT_S) for _, b in pairs]
            assert all(is_pattern(tensor_of(each)) for each in messages)
            assert held(pairs) == expected
            del messages
            assert held(pairs) == [0, 0, 0]
        assert [a.stats()["copied_bytes"] for a, _ in pairs] == [0, 0, 0]

    def test_with_handles(self, pairs: Pairs) -> None:
        handle = pairs[0][0].share(pattern(MIB))
        ow.broadcast(senders(pairs), request(handle))
        del handle
        messages = [b.recv(TIMEOUT_S) for _, b in pairs]
        assert all(is_pattern(tensor_of(each).resolve()) for each in messages)
        assert held(pairs) == [MIB, 0, 0]
        del messages
        assert held(pairs) == [0, 0, 0]

    def test_a_large_header(self, pairs: Pairs) -> None:
        ow.broadcast(senders(pairs), ow.ProcessedRequest("r", range(50_000)))
        for _, b in pairs:
            assert len(b.recv(TIMEOUT_S).prompt_token_ids) == 50_000
        assert held(pairs) == [0, 0, 0]

    def test_a_message_that_fits_no_arena(self, pairs: Pairs) -> None:
        ow.broadcast(senders(pairs), request(pattern(2 * MIB)))
        assert all(is_pattern(tensor_of(b.recv(TIMEOUT_S))) for _, b in pairs)

    def test_in_the_order_of_other_messages(self, pairs: Pairs) -> None:
        a, b = pairs[1]
        a.send(request(request_id="before"))
        ow.broadcast(senders(pairs), request(request_id="to all"))
        a.send(request(request_id="after"))
        ids = [b.recv(TIMEOUT_S).request_id for _ in range(3)]
        assert ids == ["before", "to all", "after"]

    def test_to_nobody(self) -> None:
        """vllm-omni#7245: nothing was there to take what was put."""
        ow.broadcast([], request())

    def test_to_one(self, pairs: Pairs) -> None:
        ow.broadcast([pairs[2][0]], request(pattern(MIB)))
        assert held(pairs) == [0, 0, MIB]
        assert is_pattern(tensor_of(pairs[2][1].recv(TIMEOUT_S)))

    def test_to_one_twice(self, pairs: Pairs) -> None:
        """It is one message each time, and one copy."""
        a, b = pairs[0]
        ow.broadcast([a, a], request(pattern(MIB)))
        assert held(pairs) == [MIB, 0, 0]
        messages = [b.recv(TIMEOUT_S) for _ in range(2)]
        assert all(is_pattern(tensor_of(each)) for each in messages)
        messages.pop()
        assert held(pairs) == [MIB, 0, 0]
        messages.pop()
        assert held(pairs) == [0, 0, 0]

    def test_what_cannot_be_encoded_goes_to_nobody(self, pairs: Pairs) -> None:
        with pytest.raises(ow.EncodeError):
            ow.broadcast(senders(pairs), ow.MultimodalParams(encoder_state=object()))
        for _, b in pairs:
            with pytest.raises(ow.HandoffTimeout):
                b.recv(timeout=0)

    def test_without_memory_it_goes_to_nobody(self, pairs: Pairs) -> None:
        pairs[0][0].send(request(pattern(MIB)))
        with pytest.raises(ow.ArenaFull):
            ow.broadcast(senders(pairs), request(pattern(MIB)), timeout=0.01)
        for _, b in pairs[1:]:
            with pytest.raises(ow.HandoffTimeout):
                b.recv(timeout=0)
        pairs[0][1].recv(TIMEOUT_S)
        ow.broadcast(senders(pairs), request(pattern(MIB)), timeout=0)
        assert all(is_pattern(tensor_of(b.recv(TIMEOUT_S))) for _, b in pairs)

    def test_waits_until_the_last_reader_drops_what_is_in_the_way(self, pairs: Pairs) -> None:
        ow.broadcast(senders(pairs), request(pattern(MIB)))
        messages = [b.recv(TIMEOUT_S) for _, b in pairs]
        timers = [threading.Timer(0.02 * number, messages.pop) for number in range(3)]
        for timer in timers:
            timer.start()
        ow.broadcast(senders(pairs), request(pattern(MIB, 5)), TIMEOUT_S)
        for timer in timers:
            timer.join()
        assert all(is_pattern(tensor_of(b.recv(TIMEOUT_S)), 5) for _, b in pairs)

    @pytest.mark.parametrize("position", [0, 1, 2])
    def test_a_reader_that_has_closed_is_named_and_the_others_get_it(
        self, pairs: Pairs, position: int
    ) -> None:
        pairs[position][1].close()
        with pytest.raises(ow.PeerClosed, match=f"{position} of 3"):
            ow.broadcast(senders(pairs), request(pattern(MIB)))
        for number, (_, b) in enumerate(pairs):
            if number != position:
                assert is_pattern(tensor_of(b.recv(TIMEOUT_S)))
        assert held(pairs) == [0, 0, 0]

    def test_a_channel_that_is_closed_here(self, pairs: Pairs) -> None:
        pairs[0][0].close()
        with pytest.raises(ow.HandoffError):
            ow.broadcast(senders(pairs), request(pattern(MIB)))
        assert all(is_pattern(tensor_of(b.recv(TIMEOUT_S))) for _, b in pairs[1:])

    def test_all_are_gone(self, pairs: Pairs) -> None:
        for _, b in pairs:
            b.close()
        with pytest.raises(ow.PeerClosed):
            ow.broadcast(senders(pairs), request(pattern(MIB)))
        assert held(pairs) == [0, 0, 0]

    @pytest.mark.parametrize("number", [1, 3])
    def test_all_are_gone_and_no_memory_is_free(self, pairs: Pairs, number: int) -> None:
        """Nobody is left for whom it would have to wait."""
        own = pairs[0][0].empty((MIB,), torch.uint8)
        for _, b in pairs:
            b.close()
        with pytest.raises(ow.PeerClosed, match=f"0 of {number}"):
            ow.broadcast(senders(pairs)[:number], request(pattern(MIB)))
        del own

    def test_a_reader_that_has_closed_is_not_waited_for(self, pairs: Pairs) -> None:
        own = [pairs[0][0].empty((MIB,), torch.uint8)]
        pairs[0][1].close()
        failures: list[ow.HandoffError] = []

        def send() -> None:
            try:
                ow.broadcast(senders(pairs), request(pattern(MIB)))
            except ow.HandoffError as error:
                failures.append(error)

        sending = threading.Thread(target=send)
        sending.start()
        while not pairs[0][0]._end.started().pool._waiting:
            assert sending.is_alive()
        own.clear()
        sending.join(TIMEOUT_S)
        assert not sending.is_alive()
        assert [type(error) for error in failures] == [ow.PeerClosed]
        for _, b in pairs[1:]:
            assert is_pattern(tensor_of(b.recv(TIMEOUT_S)))

    def test_the_memory_outlives_the_channel_it_is_of(self, pairs: Pairs) -> None:
        ow.broadcast(senders(pairs), request(pattern(MIB)))
        messages = [b.recv(TIMEOUT_S) for _, b in pairs]
        pairs[0][0].close()
        pairs[0][1].close()
        assert all(is_pattern(tensor_of(each)) for each in messages)

    def test_later_messages_of_each_channel_go_on(self, pairs: Pairs) -> None:
        for number in range(30):
            ow.broadcast(senders(pairs), request(pattern(2**17, number)), TIMEOUT_S)
            for a, b in pairs:
                a.send(request(pattern(2**16, number)), TIMEOUT_S)
                assert is_pattern(tensor_of(b.recv(TIMEOUT_S)), number)
                assert is_pattern(tensor_of(b.recv(TIMEOUT_S)), number)
        assert held(pairs) == [0, 0, 0]


class TestRanks:
    """Readers in processes of their own."""

    @pytest.fixture
    def ranks(self, pairs: Pairs, start: Callable[..., Remote]) -> list[Remote]:
        return [start(b) for _, b in pairs]

    def test_share_one_copy(self, pairs: Pairs, ranks: list[Remote]) -> None:
        ow.broadcast(senders(pairs), request(pattern(MIB)), TIMEOUT_S)
        for rank in ranks:
            rank.do("receive")
            assert rank.do("is_intact")
        assert held(pairs) == [MIB, 0, 0]
        for number in (1, 0):
            ranks[number].do("drop")
            assert held(pairs) == [MIB, 0, 0]
        ranks[2].do("drop")
        assert held(pairs) == [0, 0, 0]

    @pytest.mark.parametrize("position", [0, 1, 2])
    def test_one_of_three_is_dead(self, pairs: Pairs, ranks: list[Remote], position: int) -> None:
        """The others get the next one; what the dead one held is free again."""
        ow.broadcast(senders(pairs), request(pattern(MIB)), TIMEOUT_S)
        for rank in ranks:
            rank.do("receive")
        ranks[position].kill()
        for number, rank in enumerate(ranks):
            if number != position:
                assert held(pairs) == [MIB, 0, 0]
                assert rank.do("is_intact")
                rank.do("drop")
        with pytest.raises(ow.PeerDied, match=f"{position} of 3"):
            ow.broadcast(senders(pairs), request(pattern(MIB, 1)), TIMEOUT_S)
        for number, rank in enumerate(ranks):
            if number != position:
                rank.do("receive")
                assert rank.do("is_intact", 1)
                rank.do("drop")
        assert held(pairs) == [0, 0, 0]

    def test_one_that_is_stopped_uses_up_the_time(self, pairs: Pairs, ranks: list[Remote]) -> None:
        """Those before it in the list have the message, it and those after it do not."""
        for rank in ranks:
            rank.do("send")
        for a, _ in pairs:
            a.recv(TIMEOUT_S)
        os.kill(ranks[1].pid, signal.SIGSTOP)
        sent: list[str] = []

        def fill() -> None:
            for number in itertools.count():
                pairs[1][0].send(request(request_id=str(number)), timeout=0.02)
                sent.append(str(number))

        with pytest.raises(ow.HandoffTimeout):
            fill()
        with pytest.raises(ow.HandoffTimeout):
            ow.broadcast(senders(pairs), request(pattern(MIB), "late"), timeout=0.02)
        os.kill(ranks[1].pid, signal.SIGCONT)
        ranks[1].begin("receive", len(sent), keep=False)
        ow.broadcast(senders(pairs), request(request_id="next"), TIMEOUT_S)
        assert ranks[0].do("receive", 2, keep=False) == ["late", "next"]
        assert ranks[1].end() == sent
        assert ranks[1].do("receive") == ["next"]
        assert ranks[2].do("receive") == ["next"]
        assert held(pairs) == [0, 0, 0]

    def test_one_dies_while_the_sender_waits_for_its_memory(
        self, pairs: Pairs, ranks: list[Remote]
    ) -> None:
        ow.broadcast(senders(pairs), request(pattern(MIB)), TIMEOUT_S)
        for rank in ranks:
            rank.do("receive")
        ranks[0].do("drop")
        ranks[2].do("drop")
        timer = threading.Timer(0.05, ranks[1].kill)
        timer.start()
        with pytest.raises(ow.PeerDied, match="1 of 3"):
            ow.broadcast(senders(pairs), request(pattern(MIB, 1)), TIMEOUT_S)
        timer.join()
        for rank in (ranks[0], ranks[2]):
            rank.do("receive")
            assert rank.do("is_intact", 1)

    def test_one_that_died_holds_nothing_of_a_channel_that_goes_on(
        self, pairs: Pairs, ranks: list[Remote]
    ) -> None:
        """The sender needs the memory, and has no more to do with the channel to the dead one."""
        introduce(pairs, ranks)
        ow.broadcast(senders(pairs), request(pattern(MIB)), TIMEOUT_S)
        for rank in ranks:
            rank.do("receive")
        ranks[0].do("drop")
        ranks[2].do("drop")
        ranks[1].kill()
        pairs[0][0].send(request(pattern(MIB, 1)), TIMEOUT_S)
        ranks[0].do("receive")
        assert ranks[0].do("is_intact", 1)

    def test_nor_does_one_that_was_never_heard_of(
        self, pairs: Pairs, start: Callable[..., Remote]
    ) -> None:
        """It says hello after it was sent to, and its channel is not used since."""
        ow.broadcast(senders(pairs), request(pattern(MIB)), TIMEOUT_S)
        ranks = [start(b) for _, b in pairs]
        for rank in ranks:
            rank.do("receive")
        ranks[0].do("drop")
        ranks[2].do("drop")
        ranks[1].kill()
        pairs[0][0].send(request(pattern(MIB, 1)), TIMEOUT_S)
        ranks[0].do("receive")
        assert ranks[0].do("is_intact", 1)

    def test_one_that_comes_and_dies_while_the_sender_waits(
        self, pairs: Pairs, start: Callable[..., Remote]
    ) -> None:
        """Its hello comes first: who waits takes it."""
        channel = pairs[0][0]
        own = channel.empty((MIB,), torch.uint8)
        failures: list[ow.HandoffError] = []

        def send() -> None:
            try:
                ow.broadcast([channel], request(pattern(MIB)))
            except ow.HandoffError as error:
                failures.append(error)

        sending = threading.Thread(target=send)
        sending.start()
        while not channel._end.started().pool._waiting:
            assert sending.is_alive()
        rank = start(pairs[0][1])
        rank.do("stats")
        rank.kill()
        sending.join(TIMEOUT_S)
        assert not sending.is_alive()
        assert [type(error) for error in failures] == [ow.PeerDied]
        del own

    @pytest.mark.parametrize("dies", [True, False])
    def test_one_of_another_channel_wakes_who_waits(
        self, pairs: Pairs, ranks: list[Remote], dies: bool
    ) -> None:
        """It holds the memory: until it drops it, or dies."""
        introduce(pairs, ranks)
        ow.broadcast(senders(pairs), request(pattern(MIB)), TIMEOUT_S)
        for rank in ranks:
            rank.do("receive")
        ranks[0].do("drop")
        ranks[2].do("drop")
        channel = pairs[0][0]
        sending = threading.Thread(target=channel.send, args=(request(pattern(MIB, 1)), TIMEOUT_S))
        sending.start()
        while not channel._end.started().pool._waiting:
            assert sending.is_alive()
        if dies:
            ranks[1].kill()
        else:
            ranks[1].do("drop")
        ranks[0].do("receive")
        assert ranks[0].do("is_intact", 1)
        sending.join(TIMEOUT_S)
        assert not sending.is_alive()

    def test_one_whose_channel_was_closed_and_that_died(
        self, pairs: Pairs, ranks: list[Remote]
    ) -> None:
        introduce(pairs, ranks)
        ow.broadcast(senders(pairs), request(pattern(MIB)), TIMEOUT_S)
        for rank in ranks:
            rank.do("receive")
        ranks[0].do("drop")
        ranks[2].do("drop")
        pairs[1][0].close()
        assert pairs[0][0].stats()["in_flight_bytes"] == MIB
        ranks[1].kill()
        assert pairs[0][0].stats()["in_flight_bytes"] == 0


class TestWaiting:
    def test_for_whoever_sends_first(self, pairs: Pairs) -> None:
        receivers = [b for _, b in pairs]
        assert ow.wait(receivers, timeout=0) == []
        pairs[1][0].send(request())
        assert ow.wait(receivers, TIMEOUT_S) == [pairs[1][1]]
        pairs[0][0].send(request())
        assert ow.wait(receivers, TIMEOUT_S) == [pairs[0][1], pairs[1][1]]
        for channel in ow.wait(receivers, TIMEOUT_S):
            channel.recv(timeout=0)
        assert ow.wait(receivers, timeout=0) == []

    def test_a_peer_that_is_gone_is_ready(self, pairs: Pairs) -> None:
        receivers = [b for _, b in pairs]
        pairs[2][0].send(request())
        pairs[2][0].close()
        assert ow.wait(receivers, TIMEOUT_S) == [pairs[2][1]]
        pairs[2][1].recv(timeout=0)
        assert ow.wait(receivers, TIMEOUT_S) == [pairs[2][1]]
        with pytest.raises(ow.PeerClosed):
            pairs[2][1].recv(timeout=0)

    def test_a_closed_channel_is_ready(self, pairs: Pairs) -> None:
        pairs[0][1].close()
        assert ow.wait([pairs[0][1]], TIMEOUT_S) == [pairs[0][1]]

    def test_is_woken_by_a_message(self, pairs: Pairs) -> None:
        receivers = [b for _, b in pairs]
        timer = threading.Timer(0.05, pairs[2][0].send, (request(),))
        timer.start()
        assert ow.wait(receivers, TIMEOUT_S) == [pairs[2][1]]
        timer.join()

    def test_is_fair(self, pairs: Pairs) -> None:
        """Once each before waiting again: a flood from one keeps no other waiting."""
        receivers = [b for _, b in pairs]
        for number in range(100):
            pairs[0][0].send(request(request_id=str(number)))
        for a, _ in pairs[1:]:
            a.send(request(request_id="once"))
        first = [channel.recv(timeout=0).request_id for channel in ow.wait(receivers, TIMEOUT_S)]
        assert first == ["0", "once", "once"]

    @pytest.mark.parametrize("channels", [None, 3, "channels"], ids=repr)
    def test_for_no_channels(self, channels: object) -> None:
        with pytest.raises(ow.ContractTypeError):
            ow.wait(channels)
        with pytest.raises(ow.ContractTypeError):
            ow.broadcast(channels, request())

    def test_several_producers_to_one_executor(self, start: Callable[..., Remote]) -> None:
        """Each one's order is kept, and each gets its turn."""
        pairs = [ow.Channel.pair(arena_bytes=MIB, max_bytes=2 * MIB) for _ in range(4)]
        producers = [start(b) for _, b in pairs]
        for producer in producers:
            producer.begin("send_many", 60, 2**15)
        receivers = [a for a, _ in pairs]
        received: dict[int, list[int]] = collections.defaultdict(list)
        while sum(map(len, received.values())) < 4 * 60:
            for channel in ow.wait(receivers, TIMEOUT_S):
                message = channel.recv(timeout=0)
                number = int(message.request_id)
                assert is_pattern(tensor_of(message), number)
                received[receivers.index(channel)].append(number)
        assert all(received[position] == list(range(60)) for position in range(4))
        for producer in producers:
            producer.end()
        del message
        for producer in producers:
            assert producer.do("stats")["in_flight_bytes"] == 0
