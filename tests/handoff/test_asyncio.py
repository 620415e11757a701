"""Sending and receiving in an event loop; a canceled task has done all or nothing."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import torch
from handoff_children import TIMEOUT_S, is_pattern, pattern, request, tensor_of

import omniwire as ow

MIB = 2**20

pytestmark = pytest.mark.usefixtures("no_second_look")


@pytest.fixture
def pair() -> tuple[ow.Channel, ow.Channel]:
    return ow.Channel.pair(arena_bytes=MIB, max_bytes=MIB)


@pytest.fixture
def a(pair: tuple[ow.Channel, ow.Channel]) -> ow.Channel:
    return pair[0]


@pytest.fixture
def b(pair: tuple[ow.Channel, ow.Channel]) -> ow.Channel:
    return pair[1]


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run to the end; whatever takes too long hangs."""

    async def within() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await main

    asyncio.run(within())


async def canceled(work: Coroutine[Any, Any, object], turns: int) -> object:
    """Cancel some work after so many turns of the loop; its result if it was faster."""
    task = asyncio.ensure_future(work)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    try:
        return await task
    except asyncio.CancelledError:
        return None


class TestTasks:
    def test_send_and_receive(self, a: ow.Channel, b: ow.Channel) -> None:
        async def main() -> None:
            await a.asend(request(pattern(MIB)))
            assert is_pattern(tensor_of(await b.arecv()))

        run(main())

    def test_the_loop_goes_on_while_one_waits(self, a: ow.Channel, b: ow.Channel) -> None:
        async def main() -> None:
            receiving = asyncio.ensure_future(b.arecv())
            for _ in range(10):
                await asyncio.sleep(0.001)
            assert not receiving.done()
            await a.asend(request(request_id="now"))
            assert (await receiving).request_id == "now"

        run(main())

    def test_many_at_one_end(self, a: ow.Channel, b: ow.Channel) -> None:
        async def main() -> None:
            receiving = [asyncio.ensure_future(b.arecv()) for _ in range(20)]
            await asyncio.sleep(0.01)
            for number in range(20):
                await a.asend(request(request_id=str(number)))
            received = await asyncio.gather(*receiving)
            assert sorted(int(each.request_id) for each in received) == list(range(20))

        run(main())

    def test_a_sender_waits_for_memory(self, a: ow.Channel, b: ow.Channel) -> None:
        async def main() -> None:
            await a.asend(request(pattern(MIB, 0)))
            sending = asyncio.ensure_future(a.asend(request(pattern(MIB, 1))))
            await asyncio.sleep(0.02)
            assert not sending.done()
            assert is_pattern(tensor_of(await b.arecv()), 0)
            await sending
            assert is_pattern(tensor_of(await b.arecv()), 1)

        run(main())

    def test_with_threads_at_the_other_end(self, a: ow.Channel, b: ow.Channel) -> None:
        def echo() -> None:
            for _ in range(20):
                b.send(b.recv(TIMEOUT_S), TIMEOUT_S)

        async def main() -> None:
            echoing = asyncio.to_thread(echo)
            task = asyncio.ensure_future(echoing)
            for number in range(20):
                await a.asend(request(pattern(2**17, number)))
                assert is_pattern(tensor_of(await a.arecv()), number)
            await task

        run(main())

    def test_a_message_larger_than_the_arena(self, a: ow.Channel, b: ow.Channel) -> None:
        async def main() -> None:
            sending = asyncio.ensure_future(a.asend(request(pattern(5 * MIB))))
            assert is_pattern(tensor_of(await b.arecv()))
            await sending

        run(main())

    def test_one_channel_after_the_other_loop(self, a: ow.Channel, b: ow.Channel) -> None:
        """An end is bound to no event loop."""

        async def main() -> None:
            receiving = asyncio.ensure_future(b.arecv())
            await asyncio.sleep(0.01)
            await a.asend(request())
            await receiving

        run(main())
        run(main())

    @pytest.mark.parametrize("close", ["own", "other"])
    def test_a_task_that_waits_is_woken_by_closing(
        self, a: ow.Channel, b: ow.Channel, close: str
    ) -> None:
        async def main() -> None:
            receiving = asyncio.ensure_future(b.arecv())
            a.send(request())
            await receiving
            receiving = asyncio.ensure_future(b.arecv())
            await asyncio.sleep(0.01)
            (b if close == "own" else a).close()
            with pytest.raises(ow.HandoffError) as caught:
                await receiving
            assert isinstance(caught.value, ow.PeerClosed) == (close == "other")

        run(main())

    def test_failures_are_as_those_of_the_blocking_calls(
        self, a: ow.Channel, b: ow.Channel
    ) -> None:
        async def main() -> None:
            with pytest.raises(ow.OmniwireError):
                await a.asend("text")
            a.close()
            with pytest.raises(ow.HandoffError):
                await a.asend(request())
            with pytest.raises(ow.PeerClosed):
                await b.arecv()

        run(main())


class TestCanceling:
    def test_receiving_loses_nothing(self, a: ow.Channel, b: ow.Channel) -> None:
        async def main() -> None:
            randomness = random.Random(7)
            received: list[int] = []
            sent = 0
            while len(received) < 200:
                if sent < 200 and randomness.random() < 0.6:
                    await a.asend(request(request_id=str(sent)))
                    sent += 1
                message = await canceled(b.arecv(), randomness.randrange(3))
                if message is not None:
                    received.append(int(message.request_id))
            assert received == list(range(200))

        run(main())

    @pytest.mark.parametrize("num_bytes", [2**17, 3 * MIB], ids=["arena", "socket"])
    def test_sending_sends_all_or_nothing(
        self, a: ow.Channel, b: ow.Channel, num_bytes: int
    ) -> None:
        async def main() -> None:
            randomness = random.Random(num_bytes)
            outcomes: dict[int, bool] = {}
            arrived: dict[int, bool] = {}

            async def receive() -> None:
                while True:
                    message = await b.arecv()
                    if message.request_id == "end":
                        return
                    number = int(message.request_id)
                    arrived[number] = is_pattern(tensor_of(message), number)
                    del message
                    for _ in range(randomness.randrange(4)):
                        await asyncio.sleep(0)

            async def send(number: int) -> bool:
                await a.asend(request(pattern(num_bytes, number), str(number)))
                return True

            receiving = asyncio.ensure_future(receive())
            for number in range(60):
                result = await canceled(send(number), randomness.randrange(6))
                outcomes[number] = result is not None
            await a.asend(request(request_id="end"))
            await receiving
            assert all(arrived.values())
            assert set(arrived) == {number for number, sent in outcomes.items() if sent}
            assert list(arrived) == sorted(arrived)
            assert a.stats()["in_flight_bytes"] == 0

        run(main())

    def test_a_timeout_of_the_loop(self, a: ow.Channel, b: ow.Channel) -> None:
        async def main() -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await b.arecv()
            await a.asend(request(pattern(MIB)))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await a.asend(request(pattern(MIB)))
            assert is_pattern(tensor_of(await b.arecv()))
            await a.asend(request(pattern(MIB, 5)))
            assert is_pattern(tensor_of(await b.arecv()), 5)

        run(main())

    def test_nothing_of_it_stays_in_the_loop(self, a: ow.Channel, b: ow.Channel) -> None:
        async def main() -> None:
            tasks = [asyncio.ensure_future(b.arecv()) for _ in range(5)]
            await asyncio.sleep(0.01)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            selector = asyncio.get_running_loop()._selector
            assert len(selector.get_map()) == 1  # the loop's own

        run(main())


async def _sum(channel: ow.Channel, num: int) -> float:
    total = 0.0
    for _ in range(num):
        total += float(tensor_of(await channel.arecv()).sum())
    return total


@pytest.mark.parametrize("order", [lambda tasks: tasks, lambda tasks: tasks[::-1]])
def test_several_channels_in_one_loop(order: Callable[[list[Any]], list[Any]]) -> None:
    async def main() -> None:
        pairs = [ow.Channel.pair(arena_bytes=2**16, max_bytes=2**17) for _ in range(4)]

        async def send(channel: ow.Channel) -> None:
            for _ in range(20):
                await channel.asend(request(torch.ones(8000)))

        sums = [_sum(b, 20) for _, b in pairs]
        sends = [send(a) for a, _ in pairs]
        results = await asyncio.gather(*order([*sums, *sends]))
        assert [each for each in results if each is not None] == [160_000.0] * 4

    run(main())
