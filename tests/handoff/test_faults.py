"""Processes that stop, die, fork or run out of something; what is left of them: nothing."""

import contextlib
import errno
import itertools
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
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


def small_pair() -> tuple[ow.Channel, ow.Channel]:
    return ow.Channel.pair(arena_bytes=MIB, max_bytes=2 * MIB)


def forever(step: Callable[[int], object]) -> None:
    """Do the step with 0, 1, 2 ... until it fails."""
    for number in itertools.count():
        step(number)


def is_whole(message: ow.ProcessedRequest) -> bool:
    if message.multimodal_params is None:
        return True
    return is_pattern(tensor_of(message), int(message.request_id))


@pytest.fixture
def executor_path(folder: Path) -> Iterator[Path]:
    """A path for servers that are killed, and so leave it."""
    path = folder / "socket"
    yield path
    path.unlink(missing_ok=True)


class TestKills:
    """At random points, the same ones in every run: of what a message does, not of time."""

    @pytest.mark.parametrize("seed", range(12))
    def test_of_a_producer(self, call: Start, seed: int) -> None:
        randomness = random.Random(seed)
        a, b = ow.Channel.pair(**handoff_faults.ARENAS)
        producer = call(handoff_faults.produce, b, seed)
        num_before = randomness.randrange(12)
        for number in range(num_before):
            message = a.recv(TIMEOUT_S)
            assert message.request_id == str(number)
            assert is_whole(message)
        message = None
        time.sleep(randomness.random() * 0.01)
        producer.kill()
        rest: list[ow.ProcessedRequest] = []
        with pytest.raises(ow.PeerDied):
            forever(lambda _: rest.append(a.recv(TIMEOUT_S)))
        assert all(map(is_whole, rest))
        numbers = [int(message.request_id) for message in rest]
        assert numbers == list(range(num_before, num_before + len(rest)))
        with pytest.raises(ow.PeerDied):
            a.send(request(), TIMEOUT_S)
        assert held(a) == 0

    @pytest.mark.parametrize("seed", range(12))
    def test_of_a_consumer(self, call: Start, seed: int) -> None:
        """sglang#40723, #40726: the producer went on and on."""
        randomness = random.Random(seed)
        a, b = ow.Channel.pair(**handoff_faults.ARENAS)
        consumer = call(handoff_faults.consume, b, seed)
        timer = threading.Timer(randomness.random() * 0.1, consumer.process.kill)
        timer.start()
        own = a.empty((1000,), torch.uint8)

        def send(number: int) -> None:
            size = randomness.choice(handoff_faults.SIZES)
            a.send(request(pattern(size, number) if size else None, str(number)), TIMEOUT_S)

        with pytest.raises(ow.PeerDied):
            forever(send)
        timer.join()
        assert held(a) == 1024
        del own
        assert held(a) == 0
        with pytest.raises(ow.PeerDied):
            a.recv(TIMEOUT_S)

    @pytest.mark.parametrize("seed", range(6))
    def test_of_one_that_does_both(self, call: Start, seed: int) -> None:
        randomness = random.Random(seed)
        a, b = ow.Channel.pair(**handoff_faults.ARENAS)
        child = call(handoff_faults.echo, b)
        timer = threading.Timer(randomness.random() * 0.03, child.process.kill)

        def exchange(number: int) -> None:
            if number == 1:
                timer.start()
            size = randomness.choice(handoff_faults.SIZES[:-1])
            a.send(request(pattern(size, number) if size else None, str(number)), TIMEOUT_S)
            message = a.recv(TIMEOUT_S)
            assert message.request_id == str(number)
            assert is_whole(message)

        with pytest.raises(ow.PeerDied):
            forever(exchange)
        timer.join()
        assert held(a) == 0

    def test_of_clients_at_any_time(self, folder: Path, call: Start) -> None:
        """While they connect, or later: the server goes on, and serves the next."""
        randomness = random.Random(5)
        path = str(folder / "socket")
        with ow.ChannelServer(path) as server:
            for seed in range(8):
                client = call(handoff_faults.produce, path, seed)
                timer = threading.Timer(randomness.random() * 0.06, client.process.kill)
                timer.start()
                try:
                    channel = server.accept(timeout=0.2)
                except ow.HandoffTimeout:
                    channel = None
                if channel is not None:
                    with pytest.raises(ow.PeerDied):
                        forever(lambda _, channel=channel: channel.recv(TIMEOUT_S))
                timer.join()
            client = call(handoff_faults.produce, path, 0)
            channel = server.accept(TIMEOUT_S)
            assert channel.recv(TIMEOUT_S).request_id == "0"

    def test_of_executors(self, executor_path: Path, call: Start) -> None:
        """The path that a dead one left is the next one's; the client connects again.

        vllm#51579, #51317: what the dead one left was in the way of the next.
        """
        for number in range(4):
            executor = call(handoff_faults.serve, str(executor_path))
            assert executor.receive() == "listening"
            channel = ow.Channel.connect(executor_path, TIMEOUT_S, arena_bytes=MIB)
            channel.send(request(pattern(MIB, number)), TIMEOUT_S)
            message = channel.recv(TIMEOUT_S)
            executor.kill()
            with pytest.raises(ow.PeerDied):
                channel.recv(TIMEOUT_S)
            assert is_pattern(tensor_of(message), number)
            assert held(channel) == 0

    def test_what_was_received_stays_readable(self, start: Start) -> None:
        a, b = small_pair()
        child = start(b)
        child.do("send", MIB, "r", 3)
        message = a.recv(TIMEOUT_S)
        child.kill()
        assert is_pattern(tensor_of(message), 3)
        with pytest.raises(ow.PeerDied):
            a.recv(TIMEOUT_S)
        assert is_pattern(tensor_of(message), 3)

    def test_what_was_sent_arrives_first(self, start: Start) -> None:
        a, b = small_pair()
        child = start(b)
        child.do("send_many", 5, 100_000)
        child.kill()
        for number in range(5):
            assert is_pattern(tensor_of(a.recv(TIMEOUT_S)), number)
        for _ in range(2):
            with pytest.raises(ow.PeerDied):
                a.recv(TIMEOUT_S)

    @pytest.mark.parametrize("what", ["recv", "send", "empty", "wait"])
    def test_wake_who_waits(self, start: Start, what: str) -> None:
        a, b = small_pair()
        child = start(b)
        child.do("send")
        a.recv(TIMEOUT_S)
        for _ in range(2):
            a.send(request(pattern(MIB)), TIMEOUT_S)
        child.do("receive", 2)
        timer = threading.Timer(0.05, child.process.kill)
        timer.start()
        if what == "wait":
            assert ow.wait([a], TIMEOUT_S) == [a]
        elif what == "empty":  # is told, or gets the memory, which is free now
            with contextlib.suppress(ow.PeerDied):
                assert not a.empty((MIB,), torch.uint8, TIMEOUT_S).any()
        else:
            with pytest.raises(ow.PeerDied):
                a.send(request(pattern(MIB)), TIMEOUT_S) if what == "send" else a.recv(TIMEOUT_S)
        timer.join()
        assert held(a) == 0


class TestBeforeTheHello:
    @pytest.mark.parametrize(
        ("method", "what"),
        [
            ("forkserver", "recv"),
            ("forkserver", "send small"),
            ("forkserver", "send large"),
            ("forkserver", "wait"),
            ("spawn", "recv"),
        ],
    )
    def test_a_child_that_dies_before_it_has_its_end(self, method: str, what: str) -> None:
        """The parent still has a copy of that end, and so no end-of-file."""
        a, b = small_pair()
        context = multiprocessing.get_context(method)
        child = context.Process(target=handoff_faults.never, args=(handoff_faults.Dies(), b))
        child.start()
        try:
            if what == "wait":
                assert ow.wait([a], TIMEOUT_S) == [a]
            tensor = pattern(MIB) if what == "send large" else None
            receives = what in ("recv", "wait")
            with pytest.raises(ow.PeerDied):
                forever(
                    lambda _: a.recv(TIMEOUT_S) if receives else a.send(request(tensor), TIMEOUT_S)
                )
            assert held(a) == 0
        finally:
            child.join(TIMEOUT_S)
            assert child.exitcode == -signal.SIGKILL
            child.close()

    def test_a_child_that_dies_at_once_and_was_waited_for(self) -> None:
        a, b = small_pair()
        context = multiprocessing.get_context("forkserver")
        child = context.Process(target=handoff_faults.never, args=(handoff_faults.Dies(), b))
        child.start()
        child.join(TIMEOUT_S)
        child.close()
        with pytest.raises(ow.PeerDied):
            a.recv(TIMEOUT_S)

    @pytest.mark.parametrize("num_bytes", [0, MIB])
    @pytest.mark.parametrize("receives", [True, False])
    def test_a_child_that_dies_while_the_parent_holds_its_end(
        self, start: Start, num_bytes: int, receives: bool
    ) -> None:
        """Also if the parent only ever sends."""
        a, b = small_pair()
        child = start(b)
        child.begin("receive")
        a.send(request(pattern(MIB)), TIMEOUT_S)
        child.end()
        child.kill()
        if receives:
            with pytest.raises(ow.PeerDied):
                a.recv(TIMEOUT_S)
        message = request(pattern(num_bytes) if num_bytes else None)
        with pytest.raises(ow.PeerDied):
            forever(lambda _: a.send(message, TIMEOUT_S))
        assert held(a) == 0
        del b

    def test_a_forked_sibling_holds_the_socket(self, call: Start) -> None:
        """No end-of-file ever comes: death is noticed all the same."""
        assert call(handoff_faults.hold_a_socket).end() == "PeerDied"


class TestStops:
    def test_of_a_consumer(self, start: Start) -> None:
        a, b = small_pair()
        child = start(b)
        child.do("send")
        a.recv(TIMEOUT_S)
        os.kill(child.pid, signal.SIGSTOP)
        sent = []

        def send(name: str, tensor: torch.Tensor | None) -> None:
            a.send(request(tensor, name), timeout=0.02)
            sent.append(name)

        with pytest.raises(ow.ArenaFull):
            forever(lambda number: send(f"large {number}", pattern(MIB, 1)))
        assert len(sent) == 2
        with pytest.raises(ow.HandoffTimeout):
            forever(lambda number: send(f"small {number}", None))
        with pytest.raises(ow.HandoffTimeout):
            a.send(request(pattern(5 * MIB), "whole"), timeout=0.02)
        with pytest.raises(ow.HandoffTimeout):
            a.recv(timeout=0.02)
        os.kill(child.pid, signal.SIGCONT)
        child.begin("receive", len(sent), keep=False)
        assert child.end() == sent
        child.begin("receive")
        a.send(request(pattern(5 * MIB, 1), "whole"), TIMEOUT_S)
        assert child.end() == ["whole"]
        assert child.do("is_intact", 1)
        assert held(a) == 0

    def test_of_a_producer(self, start: Start) -> None:
        """The executor serves others meanwhile, and the stopped one when it goes on."""
        pairs = [small_pair(), small_pair()]
        stopped, other = (start(b) for _, b in pairs)
        stopped.do("send", 0, "before")
        os.kill(stopped.pid, signal.SIGSTOP)
        stopped.begin("send", 0, "after")
        receivers = [a for a, _ in pairs]
        assert receivers[0].recv(TIMEOUT_S).request_id == "before"
        with pytest.raises(ow.HandoffTimeout):
            receivers[0].recv(timeout=0.02)
        other.do("send", MIB, "other")
        assert ow.wait(receivers, TIMEOUT_S) == [receivers[1]]
        assert receivers[1].recv(timeout=0).request_id == "other"
        os.kill(stopped.pid, signal.SIGCONT)
        stopped.end()
        assert receivers[0].recv(TIMEOUT_S).request_id == "after"

    def test_a_stopped_process_can_be_killed(self, start: Start) -> None:
        a, b = small_pair()
        child = start(b)
        child.do("send")
        a.send(request(pattern(MIB)), TIMEOUT_S)
        os.kill(child.pid, signal.SIGSTOP)
        child.kill()
        assert a.recv(TIMEOUT_S).request_id == "r"
        with pytest.raises(ow.PeerDied):
            a.recv(TIMEOUT_S)
        assert held(a) == 0


class TestForks:
    def test_a_child_frees_nothing_of_its_parent(self, folder: Path, call: Start) -> None:
        """Whatever it drops or closes; it cannot use the end either."""
        with ow.ChannelServer(folder / "socket", arena_bytes=MIB) as server:
            child = call(handoff_faults.fork_and_drop, str(folder / "socket"))
            channel = server.accept(TIMEOUT_S)
        channel.send(request(pattern(MIB)), TIMEOUT_S)
        assert child.receive() == "forked"
        assert held(channel) == MIB
        with pytest.raises(ow.HandoffTimeout):
            channel.recv(timeout=0)  # the fork's copy was closed, not the end
        child.send("look")
        assert channel.recv(TIMEOUT_S).request_id == "still here"
        child.send("end")
        before, after, dropped = child.end()
        assert before == after == MIB // 2 + 1024
        assert dropped == 0
        assert held(channel) == 0

    def test_while_another_thread_makes_an_arena(self, call: Start) -> None:
        """No child waits for a lock that the thread held, which it does not have."""
        assert call(handoff_faults.fork_while_arenas_are_made).end() == [0] * 5

    def test_a_sender_that_writes_after_sending(self, call: Start) -> None:
        """What was sent in place is the same memory, as documented: no copy is made late."""
        a, b = small_pair()
        child = call(handoff_faults.write_late, b)
        assert child.receive() == "sent"
        tensor = tensor_of(a.recv(TIMEOUT_S))
        copy = tensor.clone()
        child.send("write")
        assert child.receive() == "written"
        assert (tensor == 2).all()
        assert (copy == 1).all()
        child.send("end")
        child.end()


EXIT = """
import gc, os, sys, types
import torch
import omniwire as ow
from handoff_children import is_pattern, pattern, request, tensor_of

channel = ow.Channel.connect(sys.argv[1], 60, arena_bytes=2**20)
received = channel.recv(60)
own = channel.empty((1000,), torch.uint8).copy_(pattern(1000, 1))
handle = channel.share(pattern(2000, 2))
channel.send(request(own))
cycle = [channel.recv(60), channel, own[5:], handle]
cycle.append(cycle)
gc.freeze()
torch.kept = tensor_of(received)[3:]
sys.modules["kept"] = module = types.ModuleType("kept")
module.kept = tensor_of(received).numpy()

class Late:
    def __del__(self, received=received, is_pattern=is_pattern, tensor_of=tensor_of):
        assert is_pattern(tensor_of(received))

late = Late()
pid = os.fork()
if not pid:
    sys.exit(0)  # as this interpreter will, with all that is alive
assert os.waitpid(pid, 0)[1] == 0
channel.send(request(request_id="forked"))
assert channel.recv(60).request_id == "end"
if sys.argv[2] == "close":
    channel.close()
elif sys.argv[2] == "thread":
    import threading, time
    threading.Thread(target=lambda: [channel.recv() for _ in range(9)], daemon=True).start()
    time.sleep(0.05)
"""


@pytest.mark.parametrize("how", ["open", "close", "thread"])
def test_an_interpreter_that_exits_with_live_tensors(folder: Path, how: str) -> None:
    """It exits with 0 and says nothing; so does a fork of it, which frees nothing."""
    path = str(folder / "socket")
    search = os.pathsep.join(each for each in sys.path if each)
    with ow.ChannelServer(path, arena_bytes=MIB) as server:
        process = subprocess.Popen(
            [sys.executable, "-X", "dev", "-W", "error", "-c", EXIT, path, how],
            env={**os.environ, "PYTHONPATH": search, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        channel = server.accept(TIMEOUT_S)
    for _ in range(2):
        channel.send(request(pattern(MIB)), TIMEOUT_S)
    own = channel.recv(TIMEOUT_S)
    assert channel.recv(TIMEOUT_S).request_id == "forked"
    assert held(channel) == 2 * MIB
    channel.send(request(request_id="end"))
    assert process.communicate(timeout=TIMEOUT_S) == ("", "")
    assert process.returncode == 0
    with pytest.raises(ow.PeerClosed):
        channel.recv(TIMEOUT_S)
    assert held(channel) == 0
    assert is_pattern(tensor_of(own), 1)


class TestDescriptorLimit:
    def test_opening(self, folder: Path, call: Start) -> None:
        """Errors of ours, and nothing leaks; with enough of them everything works."""
        succeeded = call(handoff_faults.open_with_few_descriptors, str(folder)).end()
        for numbers in succeeded.values():
            assert numbers
            assert numbers == set(range(min(numbers), 24))

    def test_listening(self, folder: Path, call: Start) -> None:
        assert call(handoff_faults.listen_with_few_descriptors, str(folder)).end() > 0

    def test_of_a_sender(self, call: Start) -> None:
        """A new arena cannot be made: what is sent still arrives, and later goes on."""
        a, b = ow.Channel.pair(arena_bytes=MIB, max_bytes=16 * MIB)
        child = call(handoff_faults.send_with_few_descriptors, b)
        a.send(request(), TIMEOUT_S)
        messages = [a.recv(TIMEOUT_S)]
        while messages[-1].request_id != "afterwards":
            messages.append(a.recv(TIMEOUT_S))
        outcomes = child.end()
        assert set(outcomes) <= {"sent", "ArenaFull"}
        arrived = [message.request_id for message in messages[:-1]]
        assert arrived == [str(n) for n, outcome in enumerate(outcomes) if outcome == "sent"]
        for message in messages[:-1]:
            assert is_pattern(tensor_of(message), int(message.request_id))
        assert is_pattern(tensor_of(messages[-1]), 99)

    def test_of_a_receiver(self, call: Start) -> None:
        """A message whose arena did not arrive is an error; the next one arrives whole."""
        a, b = ow.Channel.pair(arena_bytes=MIB, max_bytes=64 * MIB)
        child = call(handoff_faults.receive_with_few_descriptors, b)
        a.send(request(), TIMEOUT_S)
        for number in range(5):
            assert child.receive() == "limited"
            a.send(request(pattern(MIB, number), str(number)), TIMEOUT_S)
            assert child.receive() == "free"
            a.send(request(pattern(MIB, number), str(number)), TIMEOUT_S)
        outcomes = child.end()
        assert outcomes[0] == outcomes[3] == "HandoffError"
        assert outcomes[4] == "received"
        assert held(a) == 0

    def test_of_a_server_that_is_greeted(self, folder: Path, call: Start) -> None:
        """Who is refused is told, and can connect again."""
        path = folder / "socket"
        child = call(handoff_faults.greet_with_few_descriptors, str(path))
        assert child.receive() == "listening"
        child.send("begin")
        with pytest.raises(ow.HandoffError) as caught:
            forever(lambda _: ow.Channel.connect(path, TIMEOUT_S).recv(TIMEOUT_S))
        assert not isinstance(caught.value, ow.HandoffTimeout)
        channel = ow.Channel.connect(path, TIMEOUT_S)
        channel.send(request(request_id="hello"), TIMEOUT_S)
        assert child.receive() == "refused"
        assert child.end() == "hello"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
class TestOtherUsers:
    @pytest.fixture
    def path(self) -> Iterator[Path]:
        """A path that every user can get to."""
        folder = Path(handoff_faults.public_folder())
        yield folder / "socket"
        folder.rmdir()

    def test_cannot_connect(self, path: Path, call: Start) -> None:
        with ow.ChannelServer(path) as server:
            name, text = call(handoff_faults.be_another_user, str(path)).end()
            assert name == "HandoffError"
            assert os.strerror(errno.EACCES) in text
            with pytest.raises(ow.HandoffTimeout):
                server.accept(timeout=0)

    def test_are_refused_by_both_sides(self, path: Path, call: Start) -> None:
        """Even if somebody has opened the path to them."""
        with ow.ChannelServer(path) as server:
            path.chmod(0o666)
            child = call(handoff_faults.be_another_user, str(path))
            with pytest.raises(ow.HandoffError, match="65534"):
                server.accept(TIMEOUT_S)
            name, text = child.end()
            assert name == "HandoffError"
            assert "65534" in text
