"""Many threads at one end: nothing is lost, torn or out of its sender's order."""

import collections
import contextlib
import functools
import threading
import time
from collections.abc import Callable

import pytest
import torch
from handoff_children import TIMEOUT_S, is_pattern, pattern, request, tensor_of

import omniwire as ow

MIB = 2**20

pytestmark = pytest.mark.usefixtures("no_second_look")


def all_done(*targets: Callable[[], None]) -> None:
    """Run these at the same time; the first failure is raised again."""
    failures: list[BaseException] = []

    def run(target: Callable[[], None]) -> None:
        try:
            target()
        except BaseException as error:  # noqa: BLE001  # raised again below
            failures.append(error)

    threads = [threading.Thread(target=run, args=(target,), daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + TIMEOUT_S
    while not failures and any(thread.is_alive() for thread in threads):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    if failures:
        raise failures[0]


class TestOneChannel:
    @pytest.mark.parametrize(
        "num_bytes",
        [0, 1000, 2**16, 300_000, 3 * MIB],
        ids=["none", "small", "slot", "grows", "whole"],
    )
    def test_several_senders_and_receivers(self, num_bytes: int) -> None:
        """Each sender's messages arrive in order; each message arrives once, whole."""
        a, b = ow.Channel.pair(arena_bytes=MIB, max_bytes=2 * MIB)
        num_senders, num_each = 4, 25
        numbers = threading.Semaphore(num_senders * num_each)
        received: dict[int, list[tuple[int, int]]] = collections.defaultdict(list)
        taking = threading.Lock()
        order = 0

        def send(sender: int) -> Callable[[], None]:
            def run() -> None:
                for number in range(num_each):
                    seed = sender * num_each + number
                    tensor = pattern(num_bytes, seed) if num_bytes else None
                    a.send(request(tensor, f"{sender} {number}"), TIMEOUT_S)

            return run

        def receive() -> None:
            nonlocal order
            while numbers.acquire(blocking=False):
                with taking:
                    message = b.recv(TIMEOUT_S)
                    order += 1
                    place = order
                sender, number = (int(part) for part in message.request_id.split())
                if num_bytes:
                    assert is_pattern(tensor_of(message), sender * num_each + number)
                received[sender].append((place, number))

        all_done(*[send(sender) for sender in range(num_senders)], receive, receive, receive)
        for sender in range(num_senders):
            numbers_in_order = [number for _, number in sorted(received[sender])]
            assert numbers_in_order == list(range(num_each))
        assert a.stats()["in_flight_bytes"] == 0

    def test_receivers_without_a_lock_of_their_own(self) -> None:
        a, b = ow.Channel.pair()
        received: list[str] = []

        def receive() -> None:
            received.extend([b.recv(TIMEOUT_S).request_id for _ in range(100)])

        def send() -> None:
            for number in range(400):
                a.send(request(request_id=str(number)), TIMEOUT_S)

        all_done(receive, receive, receive, receive, send)
        assert sorted(map(int, received)) == list(range(400))

    def test_both_directions_at_once(self) -> None:
        a, b = ow.Channel.pair(arena_bytes=MIB, max_bytes=MIB)

        def ping(end: ow.Channel) -> Callable[[], None]:
            def run() -> None:
                for number in range(50):
                    end.send(request(pattern(2**17, number)), TIMEOUT_S)
                    assert is_pattern(tensor_of(end.recv(TIMEOUT_S)), number)

            return run

        all_done(ping(a), ping(b))

    def test_allocating_at_once(self) -> None:
        """Slots never overlap."""
        a, _b = ow.Channel.pair(arena_bytes=MIB, max_bytes=4 * MIB)

        def allocate(seed: int) -> Callable[[], None]:
            def run() -> None:
                for number in range(50):
                    tensors = [a.empty((size,), torch.uint8, TIMEOUT_S) for size in (700, 2**16)]
                    for tensor in tensors:
                        assert not tensor.any()
                        tensor.copy_(pattern(tensor.numel(), seed + number))
                    assert all(is_pattern(tensor, seed + number) for tensor in tensors)

            return run

        all_done(*[allocate(1000 * seed) for seed in range(4)])
        assert a.stats()["in_flight_bytes"] == 0

    def test_a_sender_that_waits_for_memory_is_woken_by_a_view_that_dies(self) -> None:
        a, b = ow.Channel.pair(arena_bytes=MIB, max_bytes=MIB)
        a.send(request(pattern(MIB)))
        views = [tensor_of(b.recv())[5:6]]
        waits = threading.Event()

        def send() -> None:
            waits.set()
            a.send(request(pattern(MIB, 1)), TIMEOUT_S)

        def drop() -> None:
            waits.wait()
            views.clear()

        all_done(send, drop)
        assert is_pattern(tensor_of(b.recv()), 1)

    def test_a_sender_that_waits_for_memory_is_woken_by_an_own_tensor_that_dies(self) -> None:
        a, b = ow.Channel.pair(arena_bytes=MIB, max_bytes=MIB)
        own = [a.empty((MIB,), torch.uint8)]
        waits = threading.Event()

        def send() -> None:
            waits.set()
            a.send(request(pattern(MIB, 1)), TIMEOUT_S)

        def drop() -> None:
            waits.wait()
            own.clear()

        all_done(send, drop)
        assert is_pattern(tensor_of(b.recv()), 1)

    def test_who_waited_first_gets_memory_first(self) -> None:
        """A small request does not overtake a large one for ever."""
        a, b = ow.Channel.pair(arena_bytes=MIB, max_bytes=MIB)
        small = MIB // 8
        stop = threading.Event()

        def stream() -> None:
            while not stop.is_set():
                a.send(request(pattern(small), "small"), TIMEOUT_S)
            a.send(request(request_id="end"), TIMEOUT_S)

        def send_large() -> None:
            a.send(request(pattern(MIB), "large"), TIMEOUT_S)

        def receive() -> None:
            num_ended = 0
            while num_ended < 2:
                last = b.recv(TIMEOUT_S).request_id
                num_ended += last == "end"
                if last == "large":
                    stop.set()

        all_done(stream, stream, send_large, receive)

    def test_statistics_while_others_send(self) -> None:
        a, b = ow.Channel.pair(arena_bytes=MIB, max_bytes=2 * MIB)
        done = threading.Event()

        def look() -> None:
            while not done.is_set():
                stats = a.stats()
                assert stats["free_bytes"] + stats["in_flight_bytes"] == stats["arena_bytes"]

        def send() -> None:
            for _ in range(100):
                a.send(request(pattern(300_000)), TIMEOUT_S)

        def receive() -> None:
            for _ in range(100):
                b.recv(TIMEOUT_S)
            done.set()

        all_done(look, send, receive)


class TestFirstUse:
    def test_of_an_end_by_many_threads(self) -> None:
        for _ in range(10):
            a, b = ow.Channel.pair(arena_bytes=2**16)
            barrier = threading.Barrier(4)

            def send(end: ow.Channel = a, barrier: threading.Barrier = barrier) -> None:
                barrier.wait()
                end.send(request(pattern(1000)))

            all_done(send, send, send, send)
            assert all(is_pattern(tensor_of(b.recv(TIMEOUT_S))) for _ in range(4))

    def test_closing_while_others_use_it(self) -> None:
        """Whoever uses it is told; nothing crashes, nothing hangs."""
        for _ in range(10):
            a, b = ow.Channel.pair(arena_bytes=2**16, max_bytes=2**17)
            barrier = threading.Barrier(4)

            def until_closed(
                use: Callable[[], object], barrier: threading.Barrier = barrier
            ) -> Callable[[], None]:
                def run() -> None:
                    barrier.wait()
                    with contextlib.suppress(ow.HandoffError):
                        while True:
                            use()

                return run

            message = request(pattern(2**15))
            send = functools.partial(a.send, message, TIMEOUT_S)
            receive = functools.partial(b.recv, TIMEOUT_S)

            def close(end: ow.Channel = a, barrier: threading.Barrier = barrier) -> None:
                barrier.wait()
                end.close()

            all_done(until_closed(send), until_closed(send), until_closed(receive), close)
