"""Channels between processes: how an end gets there, and what holds across them."""

import itertools
import pickle
from collections.abc import Callable
from pathlib import Path

import handoff_faults
import pytest
import torch
from handoff_children import TIMEOUT_S, is_pattern, pattern, request, tensor_of
from handoff_remote import Remote

import omniwire as ow

MIB = 2**20

Start = Callable[..., Remote]


def held(channel: ow.Channel) -> int:
    return channel.stats()["in_flight_bytes"]


@pytest.fixture
def pair() -> tuple[ow.Channel, ow.Channel]:
    return ow.Channel.pair(arena_bytes=MIB, max_bytes=4 * MIB)


@pytest.fixture
def a(pair: tuple[ow.Channel, ow.Channel]) -> ow.Channel:
    return pair[0]


@pytest.fixture
def child(pair: tuple[ow.Channel, ow.Channel], start: Start) -> Remote:
    """A process with the other end."""
    return start(pair[1])


class TestAPair:
    @pytest.mark.parametrize(
        ("method", "position"), [("forkserver", 0), ("forkserver", 1), ("spawn", 1)]
    )
    def test_either_end_may_be_given_to_a_child(
        self, pair: tuple[ow.Channel, ow.Channel], start: Start, method: str, position: int
    ) -> None:
        channel = pair[1 - position]
        child = start(pair[position], method)
        channel.send(request(pattern(MIB)), TIMEOUT_S)
        assert child.do("receive") == ["r"]
        assert child.do("is_intact")
        child.do("send", MIB, "back", 5)
        message = channel.recv(TIMEOUT_S)
        assert message.request_id == "back"
        assert is_pattern(tensor_of(message), 5)
        child.do("close")
        with pytest.raises(ow.PeerClosed):
            channel.recv(TIMEOUT_S)

    def test_to_a_forked_child(self, call: Start) -> None:
        expected = ["early", "0", "1", "PeerClosed"]
        assert call(handoff_faults.fork_before_use).end() == expected

    def test_a_forked_child_does_not_hold_the_end_of_its_parent(self, call: Start) -> None:
        assert call(handoff_faults.fork_after_use).end() == "PeerClosed"

    def test_both_ends_to_two_children(
        self, pair: tuple[ow.Channel, ow.Channel], start: Start
    ) -> None:
        first, second = (start(end) for end in pair)
        for end in pair:
            end.close()
        first.do("send", MIB, "across", 3)
        assert second.do("receive") == ["across"]
        assert second.do("is_intact", 3)
        second.kill()
        with pytest.raises(ow.PeerDied):
            first.do("receive")

    def test_what_was_sent_before_is_there(
        self, pair: tuple[ow.Channel, ow.Channel], start: Start
    ) -> None:
        for number in range(5):
            pair[0].send(request(pattern(2**16, 7), str(number)))
        child = start(pair[1])
        assert child.do("receive", 5) == ["0", "1", "2", "3", "4"]
        assert child.do("is_intact", 7)

    def test_the_parent_has_no_part_in_an_end_it_gave_away(
        self, pair: tuple[ow.Channel, ow.Channel], start: Start
    ) -> None:
        child = start(pair[1])
        child.do("send")
        assert pair[0].recv(TIMEOUT_S).request_id == "r"
        with pytest.raises(ow.HandoffError):
            pair[1].recv(timeout=0)

    @pytest.mark.parametrize("why", ["used", "closed", "not of a pair", "not starting"])
    def test_some_ends_cannot_be_given_away(
        self, pair: tuple[ow.Channel, ow.Channel], folder: Path, start: Start, why: str
    ) -> None:
        channel = pair[1]
        if why == "used":
            channel.stats()
        elif why == "closed":
            channel.close()
        elif why == "not of a pair":
            with ow.ChannelServer(folder / "socket"):
                channel = ow.Channel.connect(folder / "socket", TIMEOUT_S)
        with pytest.raises(ow.HandoffError):
            pickle.dumps(channel) if why == "not starting" else start(channel)


class TestEnding:
    def send_many(self, channel: ow.Channel, message: ow.ProcessedRequest) -> None:
        for _ in range(1000):
            channel.send(message, TIMEOUT_S)

    def test_a_child_that_ends_has_closed_its_end(self, a: ow.Channel, child: Remote) -> None:
        child.do("send", 2**16, "last words", 3)
        a.send(request(pattern(MIB)), TIMEOUT_S)
        child.do("receive")
        assert child.finish() == 0
        message = a.recv(TIMEOUT_S)
        assert message.request_id == "last words"
        with pytest.raises(ow.PeerClosed):
            a.recv(TIMEOUT_S)
        assert held(a) == 0
        assert is_pattern(tensor_of(message), 3)

    @pytest.mark.parametrize("num_bytes", [0, MIB])
    def test_who_only_sends_notices_too(self, a: ow.Channel, child: Remote, num_bytes: int) -> None:
        child.begin("receive")
        a.send(request(pattern(MIB)), TIMEOUT_S)
        child.end()
        child.finish()
        message = request(pattern(num_bytes) if num_bytes else None)
        with pytest.raises(ow.PeerClosed):
            self.send_many(a, message)
        assert held(a) == 0

    def test_with_messages_unread(self, a: ow.Channel, child: Remote) -> None:
        a.send(request(), TIMEOUT_S)
        child.do("receive")
        for _ in range(3):
            a.send(request(pattern(MIB)), TIMEOUT_S)
        assert held(a) == 3 * MIB
        child.finish()
        with pytest.raises(ow.PeerClosed):
            a.recv(TIMEOUT_S)
        assert held(a) == 0


class TestLifetime:
    def test_a_slot_lives_as_long_as_the_peer_holds_it(self, a: ow.Channel, child: Remote) -> None:
        a.send(request(pattern(MIB), "first"), TIMEOUT_S)
        a.send(request(pattern(MIB), "second"), TIMEOUT_S)
        child.do("receive", 2)
        assert held(a) == 2 * MIB
        child.do("drop", 0)
        assert held(a) == MIB
        assert child.do("is_intact")
        child.do("drop")
        assert held(a) == 0

    def test_reuse_needs_no_message_back(self, a: ow.Channel, child: Remote) -> None:
        for _ in range(50):
            a.send(request(pattern(MIB)), TIMEOUT_S)
            child.do("receive", keep=False)
        with pytest.raises(ow.HandoffTimeout):
            a.recv(timeout=0)
        assert a.stats()["arena_bytes"] == MIB

    def test_a_sender_that_waits_is_woken_by_the_peer(self, a: ow.Channel, child: Remote) -> None:
        for _ in range(4):
            a.send(request(pattern(MIB)), TIMEOUT_S)
        child.do("receive", 4)
        with pytest.raises(ow.ArenaFull):
            a.send(request(pattern(MIB)), timeout=0.01)
        child.begin("drop", 2)
        a.send(request(pattern(MIB, 5), "waited"), TIMEOUT_S)
        child.end()
        child.do("drop")
        assert child.do("receive") == ["waited"]
        assert child.do("is_intact", 5)

    def test_a_tensor_that_is_sent_on_to_a_third_process(
        self, a: ow.Channel, child: Remote, start: Start
    ) -> None:
        """The second copies it into its own arena; the first slot is free with its view."""
        further = ow.Channel.pair(arena_bytes=MIB)
        third = start(further[1])
        child.do("send", MIB, "on", 3)
        message = a.recv(TIMEOUT_S)
        further[0].send(message, TIMEOUT_S)
        assert third.do("receive") == ["on"]
        assert child.do("stats")["in_flight_bytes"] == MIB
        del message
        assert child.do("stats")["in_flight_bytes"] == 0
        assert held(further[0]) == MIB
        child.kill()
        assert third.do("is_intact", 3)
        third.do("drop")
        assert held(further[0]) == 0

    def test_and_back(self, a: ow.Channel, child: Remote) -> None:
        a.send(request(pattern(MIB)), TIMEOUT_S)
        child.do("receive")
        child.do("send_back")
        message = a.recv(TIMEOUT_S)
        child.do("drop")
        assert held(a) == 0
        assert child.do("stats")["in_flight_bytes"] == MIB
        assert is_pattern(tensor_of(message))
        del message
        assert child.do("stats")["in_flight_bytes"] == 0

    def test_a_tensor_that_was_written_in_place(self, a: ow.Channel, child: Remote) -> None:
        tensor = a.empty((MIB,), torch.uint8, TIMEOUT_S).copy_(pattern(MIB))
        a.send(request(tensor), TIMEOUT_S)
        child.do("receive")
        assert child.do("is_intact")
        assert a.stats()["copied_bytes"] == 0
        child.do("drop")
        assert held(a) == MIB
        del tensor
        assert held(a) == 0

    def test_a_handle(self, a: ow.Channel, child: Remote) -> None:
        handle = a.share(torch.ones(MIB // 4), TIMEOUT_S)
        a.send(request(handle), TIMEOUT_S)
        del handle
        assert child.do("resolve") == MIB // 4
        assert held(a) == MIB
        child.do("drop")
        assert held(a) == 0

    def test_a_handle_that_is_never_resolved(self, a: ow.Channel, child: Remote) -> None:
        a.send(request(a.share(torch.ones(MIB // 4), TIMEOUT_S)), TIMEOUT_S)
        child.do("receive")
        assert held(a) == MIB
        child.do("drop")
        assert held(a) == 0

    def test_a_handle_that_its_reader_takes_along(self, a: ow.Channel, child: Remote) -> None:
        a.send(request(a.share(torch.ones(MIB // 4), TIMEOUT_S)), TIMEOUT_S)
        child.do("receive")
        child.kill()
        with pytest.raises(ow.PeerDied):
            a.recv(TIMEOUT_S)
        assert held(a) == 0

    def test_a_local_handle_cannot_leave_its_process(self, a: ow.Channel, child: Remote) -> None:
        child.do("send")
        a.recv(TIMEOUT_S)
        with pytest.raises(ow.EncodeError):
            a.send(request(ow.TensorHandle("local", torch.uint8, (3,), pattern(3))))
        a.send(request(), TIMEOUT_S)
        assert child.do("receive") == ["r"]


class TestPressure:
    def test_a_cycle_at_the_reader_is_collected(self, a: ow.Channel, child: Remote) -> None:
        """A sender that waits has the reader look for garbage once, if it listens."""
        for _ in range(4):
            a.send(request(pattern(MIB)), TIMEOUT_S)
            child.do("hold_in_cycle")
        assert held(a) == 4 * MIB
        child.begin("receive", 2)
        a.send(request(pattern(MIB, 5), "first"), TIMEOUT_S)
        a.send(request(pattern(MIB, 5), "second"), TIMEOUT_S)
        assert child.end() == ["first", "second"]
        assert child.do("is_intact", 5)

    def test_a_consumer_that_holds_everything(self, a: ow.Channel, child: Remote) -> None:
        """The sender is told, keeps what it has, and goes on when something is dropped."""
        for number in range(4):
            a.send(request(pattern(MIB, 1), str(number)), TIMEOUT_S)
        child.do("receive", 4)
        for _ in range(3):
            with pytest.raises(ow.ArenaFull):
                a.send(request(pattern(MIB, 1), "too many"), timeout=0.01)
            with pytest.raises(ow.ArenaFull):
                a.empty((MIB,), torch.uint8, timeout=0.01)
        a.send(request(request_id="small"), timeout=0.01)
        assert child.do("receive", keep=False) == ["small"]
        assert child.do("is_intact", 1)
        child.do("drop", 0)
        a.send(request(pattern(MIB, 1), "next"), TIMEOUT_S)
        assert child.do("receive") == ["next"]
        assert child.do("is_intact", 1)

    def test_a_message_larger_than_the_arena(self, a: ow.Channel, child: Remote) -> None:
        child.begin("receive", 3)
        for number in range(3):
            a.send(request(pattern(5 * MIB, 9), str(number)), TIMEOUT_S)
        assert child.end() == ["0", "1", "2"]
        assert child.do("is_intact", 9)
        assert held(a) == 0

    def test_a_flood_of_small_messages(self, a: ow.Channel, child: Remote) -> None:
        """The sender is held back by what the socket has room for."""
        child.begin("receive_until", "1999")
        for number in range(2000):
            a.send(request(request_id=str(number)), TIMEOUT_S)
        assert child.end() == 2000

    def test_nobody_reads(self, a: ow.Channel, child: Remote) -> None:
        child.do("send")
        a.recv(TIMEOUT_S)
        sent: list[str] = []

        def send() -> None:
            for number in itertools.count():
                a.send(request(request_id=str(number)), timeout=0.01)
                sent.append(str(number))

        with pytest.raises(ow.HandoffTimeout):
            send()
        assert child.do("receive", len(sent), keep=False) == sent
        a.send(request(request_id="next"), TIMEOUT_S)
        assert child.do("receive") == ["next"]


class TestServers:
    def test_many_producers_to_one_executor(self, folder: Path, start: Start) -> None:
        """Order per producer, whoever else sends."""
        with ow.ChannelServer(folder / "socket", arena_bytes=MIB) as server:
            producers = [
                start(str(folder / "socket"), arena_bytes=MIB, max_bytes=2 * MIB) for _ in range(3)
            ]
            channels = [server.accept(TIMEOUT_S) for _ in producers]
        for producer in producers:
            producer.begin("send_many", 30, 100_000)
        received: dict[ow.Channel, list[int]] = {channel: [] for channel in channels}
        while sum(map(len, received.values())) < 90:
            for channel in ow.wait(channels, TIMEOUT_S):
                message = channel.recv(timeout=0)
                number = int(message.request_id)
                assert is_pattern(tensor_of(message), number)
                received[channel].append(number)
        assert list(received.values()) == [list(range(30))] * 3
        for producer in producers:
            producer.end()

    def test_one_producer_to_several_executors(self, folder: Path, start: Start) -> None:
        with ow.ChannelServer(folder / "socket", arena_bytes=MIB) as server:
            executors = [start(str(folder / "socket")) for _ in range(3)]
            channels = [server.accept(TIMEOUT_S) for _ in executors]
        for number in range(10):
            ow.broadcast(channels, request(pattern(300_000, 5), str(number)), TIMEOUT_S)
        for executor in executors:
            assert executor.do("receive", 10) == [str(number) for number in range(10)]
            assert executor.do("is_intact", 5)
        assert held(channels[0]) == 10 * 300_032
        for number, executor in enumerate(executors):
            executor.do("drop")
            assert held(channels[0]) == (0 if number == 2 else 10 * 300_032)

    def test_a_client_in_a_process_of_its_own(self, folder: Path, call: Start) -> None:
        path = folder / "socket"
        executor = call(handoff_faults.serve, str(path))
        assert executor.receive() == "listening"
        for number in range(3):
            with ow.Channel.connect(path, TIMEOUT_S, arena_bytes=MIB) as channel:
                channel.send(request(pattern(MIB, number)), TIMEOUT_S)
                assert is_pattern(tensor_of(channel.recv(TIMEOUT_S)), number)
        executor.kill()
        path.unlink()
