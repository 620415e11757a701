"""Timeouts, and what an operation waits for."""

import asyncio
import contextlib
import math
import os
import select
import socket
import threading
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from handoff_children import request

import omniwire as ow
from omniwire.serialization.handoff import channel as channel_module
from omniwire.serialization.handoff import waiting
from omniwire.serialization.handoff.waiting import Steps, Wait, run, run_async

OPERATIONS: dict[str, Callable[[ow.Channel, object], object]] = {
    "send": lambda channel, timeout: channel.send(request(), timeout),
    "recv": lambda channel, timeout: channel.recv(timeout),
    "empty": lambda channel, timeout: channel.empty((2,), torch.uint8, timeout),
    "share": lambda channel, timeout: channel.share(torch.zeros(2), timeout),
    "broadcast": lambda channel, timeout: ow.broadcast([channel], request(), timeout),
    "wait": lambda channel, timeout: ow.wait([channel], timeout),
}


class TestTimeouts:
    @pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
    @pytest.mark.parametrize(
        ("timeout", "code"),
        [
            (True, "type"),
            (False, "type"),
            ("1", "type"),
            (Decimal(1), "type"),
            (Fraction(1), "type"),
            (np.float32(1), "type"),
            (torch.tensor(1.0), "type"),
            (-1, "range"),
            (-1e-300, "range"),
            (-math.inf, "range"),
            (math.nan, "range"),
        ],
        ids=repr,
    )
    def test_no_number_of_seconds(
        self, operation: Callable[[ow.Channel, object], object], timeout: object, code: str
    ) -> None:
        a, _b = ow.Channel.pair()
        with pytest.raises(ow.ContractError) as caught:
            operation(a, timeout)
        assert [(each.path, each.code) for each in caught.value.problems] == [(("timeout",), code)]
        expected = ow.ContractTypeError if code == "type" else ow.ContractValueError
        assert isinstance(caught.value, expected)

    @pytest.mark.parametrize("timeout", [True, -1, math.nan], ids=repr)
    def test_of_a_server(self, folder: Path, timeout: float) -> None:
        path = folder / "socket"
        with ow.ChannelServer(path) as server:
            for operation in (server.accept, lambda each: ow.Channel.connect(path, each)):
                with pytest.raises(ow.ContractError) as caught:
                    operation(timeout)
                assert caught.value.problems[0].path == ("timeout",)

    @pytest.mark.parametrize(
        "timeout", [0, 0.0, 1, 1e-9, 1e300, math.inf, 10**400, np.float64(1), None], ids=repr
    )
    @pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
    def test_numbers_of_seconds(
        self, operation: Callable[[ow.Channel, object], object], timeout: object
    ) -> None:
        a, b = ow.Channel.pair()
        b.send(request())
        operation(a, timeout)

    def test_none_left_is_named(self) -> None:
        a, _b = ow.Channel.pair()
        with pytest.raises(ow.HandoffTimeout) as caught:
            a.recv(timeout=0)
        assert isinstance(caught.value, TimeoutError)
        assert isinstance(caught.value, ow.HandoffError)

    def test_zero_still_gives_what_is_there(self) -> None:
        a, b = ow.Channel.pair()
        b.send(request(request_id="now"))
        assert a.recv(timeout=0).request_id == "now"


def waiting_for(*reads: int, result: str = "done") -> Steps[str]:
    """Wait until one byte can be read from each of some descriptors."""
    for number in reads:
        while True:
            try:
                os.read(number, 1)
                break
            except BlockingIOError:
                yield Wait(lambda: ow.HandoffTimeout("expected a byte"), readable=(number,))
    return result


@pytest.fixture
def pipe():
    ends = os.pipe2(os.O_NONBLOCK)
    yield ends
    for end in ends:
        os.close(end)


class TestRunning:
    def test_what_need_not_wait(self) -> None:
        assert run(waiting_for(), 0) == "done"
        assert asyncio.run(run_async(waiting_for())) == "done"

    def test_until_it_happens(self, pipe: tuple[int, int]) -> None:
        timer = threading.Timer(0.05, os.write, (pipe[1], b"1"))
        timer.start()
        assert run(waiting_for(pipe[0]), 60) == "done"
        timer.join()

    def test_until_it_happens_in_an_event_loop(self, pipe: tuple[int, int]) -> None:
        async def both() -> list[object]:
            loop = asyncio.get_running_loop()
            loop.call_later(0.05, os.write, pipe[1], b"12")
            return await asyncio.gather(
                *[run_async(waiting_for(pipe[0], result=name)) for name in ("a", "b")]
            )

        assert asyncio.run(both()) == ["a", "b"]

    def test_steps_are_closed_when_no_time_is_left(self, pipe: tuple[int, int]) -> None:
        steps = waiting_for(pipe[0])
        with pytest.raises(ow.HandoffTimeout):
            run(steps, 0.01)
        with pytest.raises(StopIteration):
            next(steps)

    def test_steps_are_closed_when_canceled(self, pipe: tuple[int, int]) -> None:
        steps = waiting_for(pipe[0])

        async def cancel() -> None:
            task = asyncio.create_task(run_async(steps))
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(cancel())
        with pytest.raises(StopIteration):
            next(steps)

    def test_the_same_descriptor_for_several_events(self) -> None:
        here, there = socket.socketpair()
        with here, there:
            wait = Wait(lambda: ow.HandoffTimeout("x"), (here,), (here, there), (here,))
            events = dict(wait.events())
            assert events[here.fileno()] != events[there.fileno()]
            assert len(events) == 2

    def test_a_closed_descriptor_is_left_out(self) -> None:
        here, there = socket.socketpair()
        with there:
            here.close()
            assert Wait(lambda: ow.HandoffTimeout("x"), (here,), (there,)).events() == [
                (there.fileno(), 4)
            ]


class TestDeadlines:
    """A timeout is of the whole call, whatever it waits for first."""

    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        now = [1000.0]
        fake = SimpleNamespace(monotonic=lambda: now[0])
        monkeypatch.setattr(channel_module, "time", fake)
        monkeypatch.setattr(waiting, "time", fake)
        return now

    @pytest.fixture
    def left(self, monkeypatch: pytest.MonkeyPatch) -> list[object]:
        """The seconds that are left for the rest of a call."""
        left: list[object] = []

        def run_out(steps: Steps[object], timeout: object) -> object:
            steps.close()
            left.append(timeout)
            raise ow.HandoffTimeout("expected nothing")

        monkeypatch.setattr(channel_module, "run", run_out)
        return left

    def test_of_receiving(
        self, clock: list[float], left: list[object], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        a, _b = ow.Channel.pair()
        monkeypatch.setattr(a._end, "await_message", lambda _: clock.insert(0, clock[0] + 4))
        with pytest.raises(ow.HandoffTimeout):
            a.recv(timeout=10)
        assert left == [6]

    def test_of_connecting(
        self,
        clock: list[float],
        left: list[object],
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        connect = channel_module.address.connect

        def slow(path: str, deadline: float | None) -> socket.socket:
            clock.insert(0, clock[0] + 4)
            return connect(path, deadline)

        monkeypatch.setattr(channel_module.address, "connect", slow)
        monkeypatch.setattr(channel_module, "check_user", lambda _: 1)  # another process
        with ow.ChannelServer(folder / "socket") as server, pytest.raises(ow.HandoffTimeout):
            ow.Channel.connect(server.path, timeout=10)
        assert left == [6]


class TestSleeping:
    """Who waits does not look again and again."""

    @pytest.fixture
    def waits(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        """The milliseconds of each call that may sleep."""
        waits: list[float] = []
        make_poll = select.poll

        def counted() -> SimpleNamespace:
            poll = make_poll()

            def wait(milliseconds: float) -> object:
                waits.append(milliseconds)
                return poll.poll(milliseconds)

            return SimpleNamespace(register=poll.register, poll=wait)

        monkeypatch.setattr(select, "poll", counted)
        return waits

    @pytest.mark.parametrize("operation", ["recv", "send", "empty", "wait"])
    def test_looks_a_few_times(self, waits: list[float], operation: str) -> None:
        a, b = ow.Channel.pair(arena_bytes=2**16, max_bytes=2**16)
        a.send(request(torch.zeros(2**16, dtype=torch.uint8)))
        b.stats()
        with pytest.raises(ow.HandoffTimeout):
            a.recv(timeout=0)  # the hello is taken by now
        del waits[:]
        uses: dict[str, Callable[[], object]] = {
            "recv": lambda: a.recv(timeout=0.2),
            "send": lambda: a.send(request(torch.zeros(2**15, dtype=torch.uint8)), 0.2),
            "empty": lambda: a.empty((2**16,), torch.uint8, timeout=0.2),
            "wait": lambda: ow.wait([a], timeout=0.2),
        }
        with contextlib.suppress(ow.HandoffTimeout, ow.ArenaFull):
            assert uses[operation]() == []
        sleeps = [milliseconds for milliseconds in waits if milliseconds]
        assert len(sleeps) <= 4
        assert len(waits) < 30

    def test_in_an_event_loop_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        a, b = ow.Channel.pair(arena_bytes=2**16, max_bytes=2**16)
        a.send(request(torch.zeros(2**16, dtype=torch.uint8)))
        b.stats()
        looks: list[Wait] = []
        any_event = waiting._any_event

        async def counted(wait: Wait) -> None:
            looks.append(wait)
            await any_event(wait)

        monkeypatch.setattr(waiting, "_any_event", counted)

        async def main() -> None:
            sending = a.asend(request(torch.zeros(2**15, dtype=torch.uint8)))
            for operation in (a.arecv(), sending):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(operation, 0.2)

        asyncio.run(main())
        assert len(looks) <= 8
