"""How an end of a channel ends: who waits is woken, and told what has become of the peer.

Nobody looks again by itself here: a wake-up that gets lost hangs the test.
"""

import asyncio
import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import handoff_endings
import pytest
import torch
from handoff_children import TIMEOUT_S, is_pattern, pattern, request, tensor_of
from handoff_remote import Remote

import omniwire as ow
from omniwire.serialization.handoff.ledger import CLOSED, NUM_CELLS
from omniwire.serialization.handoff.packets import pack_collect
from omniwire.serialization.handoff.waiting import Wait

MIB = 2**20

pytestmark = pytest.mark.usefixtures("no_second_look")

Start = Callable[..., Remote]


def fill_arena(channel: ow.Channel) -> None:
    channel.send(request(pattern(MIB)), TIMEOUT_S)


def fill_socket(channel: ow.Channel) -> None:
    with contextlib.suppress(ow.HandoffTimeout):
        while True:
            channel.send(request(), timeout=0)


def nothing(_: ow.Channel) -> None:
    pass


BLOCKED: dict[str, tuple[Callable[[ow.Channel], None], Callable[[ow.Channel], object]]] = {
    "recv": (nothing, lambda channel: channel.recv()),
    "send without memory": (fill_arena, lambda channel: channel.send(request(pattern(MIB)))),
    "send without room": (fill_socket, lambda channel: channel.send(request())),
    "send of what fits no arena": (fill_socket, lambda c: c.send(request(pattern(2 * MIB)))),
    "empty": (fill_arena, lambda channel: channel.empty((MIB,), torch.uint8)),
    "broadcast": (fill_arena, lambda c: ow.broadcast([c], request(pattern(MIB)))),
}
"""What has to be done before, and what then waits until the channel ends."""


@pytest.fixture
def a_and_child(start: Start) -> Iterator[tuple[ow.Channel, Remote]]:
    """An end whose peer has said hello and receives nothing; its socket is held here as well."""
    a, b = ow.Channel.pair(arena_bytes=MIB, max_bytes=MIB)
    copy = os.dup(b._end.link.fileno())  # as a forked sibling would
    try:
        child = start(b)
        child.do("send")
        a.recv(TIMEOUT_S)
        yield a, child
    finally:
        os.close(copy)


@pytest.fixture
def asleep(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when an operation has looked in vain and is about to sleep."""
    event = threading.Event()
    events = Wait.events

    def noted(wait: Wait) -> list[tuple[int, int]]:
        found = events(wait)
        event.set()
        return found

    monkeypatch.setattr(Wait, "events", noted)
    return event


def outcome_of(use: Callable[[], object], meanwhile: Callable[[], None]) -> object:
    """What an operation of another thread raises or returns, and something done meanwhile."""
    outcomes: list[object] = []

    def run() -> None:
        try:
            outcomes.append(use())
        except ow.HandoffError as error:
            outcomes.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    meanwhile()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    return outcomes[0]


class TestWhoWaits:
    @pytest.mark.parametrize("what", BLOCKED)
    def test_is_woken_by_closing_its_own_end(
        self, a_and_child: tuple[ow.Channel, Remote], asleep: threading.Event, what: str
    ) -> None:
        a, _ = a_and_child
        prepare, use = BLOCKED[what]
        prepare(a)
        asleep.clear()

        def close() -> None:
            if what == "recv":  # sleeps in another place
                while not a._end._polling.locked():
                    continue
            else:
                assert asleep.wait(TIMEOUT_S)
            a.close()

        assert type(outcome_of(lambda: use(a), close)) is ow.HandoffError

    @pytest.mark.parametrize("what", BLOCKED)
    def test_is_woken_by_the_death_of_its_peer_while_another_holds_the_socket(
        self, a_and_child: tuple[ow.Channel, Remote], asleep: threading.Event, what: str
    ) -> None:
        a, child = a_and_child
        prepare, use = BLOCKED[what]
        prepare(a)
        asleep.clear()

        def kill() -> None:
            if what == "recv":
                while not a._end._polling.locked():
                    continue
            else:
                assert asleep.wait(TIMEOUT_S)
            child.kill()

        outcome = outcome_of(lambda: use(a), kill)
        if what == "empty" and isinstance(outcome, torch.Tensor):
            assert not outcome.any()  # what the peer held is free
        else:
            assert isinstance(outcome, ow.PeerDied)


class TestWhoDoesNotWait:
    @pytest.mark.parametrize("num_bytes", [0, 5000, 2 * MIB], ids=["none", "arena", "socket"])
    def test_is_told_of_a_death_while_another_holds_the_socket(
        self, a_and_child: tuple[ow.Channel, Remote], num_bytes: int
    ) -> None:
        """At once: what nobody can receive is not sent."""
        a, child = a_and_child
        child.kill()
        message = request(pattern(num_bytes) if num_bytes else None)
        for _ in range(2):
            with pytest.raises(ow.PeerDied):
                a.send(message)
            with pytest.raises(ow.PeerDied):
                ow.broadcast([a], message)
        with pytest.raises(ow.PeerDied):
            a.recv()
        assert ow.wait([a]) == [a]
        assert a.stats()["in_flight_bytes"] == 0

    def test_a_copy_of_a_message_that_a_death_cut_short_is_not_kept(
        self, a_and_child: tuple[ow.Channel, Remote]
    ) -> None:
        a, child = a_and_child
        child.kill()
        before = dict(a.stats())
        with pytest.raises(ow.PeerDied):
            a.send(request(pattern(MIB)))
        assert dict(a.stats()) == before


@pytest.mark.parametrize("how", ["exit", "close"])
def test_a_fork_does_not_end_the_end_of_its_parent(call: Start, how: str) -> None:
    """What was sent is the parent's to receive; killed later, it has died and not closed."""
    a, b = ow.Channel.pair()
    child = call(handoff_endings.fork_and_stay, b, how)
    assert a.recv(TIMEOUT_S).request_id == "before"
    assert child.receive() == "ready"
    a.send(request(pattern(5000), "unread"), TIMEOUT_S)
    child.send("fork")
    assert a.recv(TIMEOUT_S).request_id == "unread"
    child.kill()
    with pytest.raises(ow.PeerDied):
        a.recv(TIMEOUT_S)


def test_a_fork_does_not_hold_the_unused_end_that_its_parent_closes(call: Start) -> None:
    assert call(handoff_endings.fork_and_close_unused).end() == "PeerClosed"


def test_who_waits_for_room_takes_nothing_from_a_fork_that_comes_late(call: Start) -> None:
    """The other end of the pair is here too, but may be the child's."""
    assert call(handoff_endings.send_to_a_fork_that_comes_late).end() == 0


def test_a_message_that_came_just_before_the_death_is_delivered(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the receiver had looked in vain, and before it saw that the peer is gone."""
    a, b = ow.Channel.pair()
    child = start(b)
    child.do("send")
    a.recv(TIMEOUT_S)
    end = a._end
    look = end.next
    looks = itertools.count()

    def look_too_early() -> object:
        if next(looks) == 1:
            child.do("send", 0, "last words")
            child.kill()
            return None
        return look()

    monkeypatch.setattr(end, "next", look_too_early)
    monkeypatch.setattr(end, "await_message", lambda _: None)
    assert a.recv(TIMEOUT_S).request_id == "last words"
    with pytest.raises(ow.PeerDied):
        a.recv(TIMEOUT_S)


def test_an_end_that_cannot_read_the_hello_of_its_peer_lets_the_peer_know() -> None:
    """Both can try again with another pair; neither waits for the other."""
    a, b = ow.Channel.pair()
    b._end.link.send(b"no hello")
    with pytest.raises(ow.HandoffError) as caught:
        a.recv()
    assert type(caught.value) is ow.HandoffError
    with pytest.raises(ow.HandoffError):
        a.send(request())
    with pytest.raises(ow.PeerClosed):
        b.recv()


def test_an_end_says_that_it_closes_before_it_hangs_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its peer may look in between, and take it for dead."""
    a, _b = ow.Channel.pair()
    ledger = a._end.started().ledger
    seen: list[int] = []
    hang_up = a._end.link.close

    def noted() -> None:
        seen.append(ledger.memory[CLOSED])
        hang_up()

    monkeypatch.setattr(a._end.link, "close", noted)
    a.close()
    assert seen == [1]


def test_a_sender_whose_end_is_closed_between_two_steps_is_told() -> None:
    """By another thread: it is an error of ours, as it would be a moment later."""
    a, _b = ow.Channel.pair()
    outbox = a._end.started()
    a.close()
    with pytest.raises(ow.HandoffError) as caught:
        outbox.check_reader()
    assert type(caught.value) is ow.HandoffError


def test_a_message_that_was_taken_before_another_thread_closes_the_end_is_received(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And what nobody took is given back."""
    a, b = ow.Channel.pair(arena_bytes=2**20)
    for seed in range(2):
        a.send(request(pattern(2**16, seed)))
    end = b._end
    take = end.next

    def take_and_close() -> bytes | bytearray | None:
        packed = take()
        b.close()
        return packed

    monkeypatch.setattr(end, "next", take_and_close)
    message = b.recv()
    assert is_pattern(tensor_of(message))
    assert a.stats()["in_flight_bytes"] == 2**16
    del message
    assert a.stats()["in_flight_bytes"] == 0


def test_who_receives_while_another_thread_closes_the_end_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may be closed between any two steps before waiting begins."""
    a, b = ow.Channel.pair()
    a.send(request())
    b.recv()

    class Closing:
        def acquire(self, *, blocking: bool) -> bool:
            b.close()
            return not blocking

        def release(self) -> None:
            return

    monkeypatch.setattr(b._end, "_polling", Closing())
    with pytest.raises(ow.HandoffError, match="closed"):
        b.recv()


def test_what_remains_of_a_message_that_was_given_up_is_dropped(folder: Path) -> None:
    """The reader does not keep the pieces that it has."""
    with ow.ChannelServer(folder / "socket") as server:
        a = ow.Channel.connect(folder / "socket", TIMEOUT_S, arena_bytes=MIB, max_bytes=MIB)
        b = server.accept(TIMEOUT_S)
    with pytest.raises(ow.HandoffTimeout):
        a.send(request(pattern(5 * MIB)), timeout=0)
    with pytest.raises(ow.HandoffTimeout):
        b.recv(timeout=0)
    assert b._end.inbox._parts
    a.send(request(request_id="next"), TIMEOUT_S)
    assert b.recv(TIMEOUT_S).request_id == "next"
    assert not b._end.inbox._parts


def test_a_task_that_is_canceled_while_it_sends_holds_nothing() -> None:
    """Its message lay in a tensor of the arena, which is the caller's alone again."""

    async def main() -> None:
        sending = asyncio.ensure_future(a.asend(request(own[0])))
        await asyncio.sleep(0)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending

    a, b = ow.Channel.pair(arena_bytes=MIB, max_bytes=MIB)
    own = [a.empty((MIB,), torch.uint8)]
    while a._end.link.send(pack_collect()):
        continue
    asyncio.run(main())
    own.clear()
    assert a.stats()["in_flight_bytes"] == 0
    b.close()


def test_who_waits_for_a_cell_is_woken(asleep: threading.Event) -> None:
    a, b = ow.Channel.pair(arena_bytes=MIB)
    a._end.started().ledger._used_to = NUM_CELLS - 1
    a.send(request(pattern(5000)), TIMEOUT_S)
    held = [b.recv(TIMEOUT_S)]
    asleep.clear()

    def drop() -> None:
        assert asleep.wait(TIMEOUT_S)
        held.clear()

    assert outcome_of(lambda: a.send(request(pattern(5000, 1))), drop) is None
    assert is_pattern(tensor_of(b.recv(TIMEOUT_S)), 1)


def test_no_program_that_is_started_inherits_a_descriptor(folder: Path) -> None:
    """One that it holds would hide that this process has died."""
    before = descriptors()
    with ow.ChannelServer(folder / "socket") as server:
        client = ow.Channel.connect(folder / "socket", TIMEOUT_S, arena_bytes=MIB)
        accepted = server.accept(TIMEOUT_S)
        ends = [*ow.Channel.pair(arena_bytes=MIB), client, accepted]
        for sender, receiver in (ends[:2], ends[1::-1], ends[2:], ends[:1:-1]):
            sender.send(request(pattern(5000)), TIMEOUT_S)
            receiver.recv(TIMEOUT_S)
        opened = descriptors() - before
        assert len(opened) > 10
        assert not any(map(os.get_inheritable, opened))


def descriptors() -> set[int]:
    """All that are open in this process."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the folder itself
            os.fstat(int(entry.name))
            found.add(int(entry.name))
    return found
