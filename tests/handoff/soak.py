"""Eight producers and four executors for ten minutes, while some of them are killed.

    python tests/handoff/soak.py [SECONDS]

Every producer has a channel to every executor, and sends requests of all sizes and kinds, which
the executor answers. Every second or so one of them is killed or stopped for a moment; the dead
are replaced. In the end:

- nothing was lost: on every channel the requests arrived whole, once and in order; all of them,
  if neither end was killed, and no answered one is missing in any case;
- nothing is left: no descriptor, mapping, file in shared memory, temporary file or process;
- memory is flat in those that were never killed.

Exits with 1 if any of this is not so.
"""

# ruff: noqa: T201  # a script prints its results

import contextlib
import gc
import itertools
import multiprocessing
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import torch
from handoff_children import is_pattern, pattern, request, tensor_of

import omniwire as ow

MIB: Final = 2**20
NUM_PRODUCERS: Final = 8
NUM_EXECUTORS: Final = 4
NUM_VETERANS: Final = (2, 1)  # of each kind: never killed
ARENA: Final = {"arena_bytes": 2 * MIB, "max_bytes": 8 * MIB}
TIMEOUT_S: Final = 120.0
"""Nothing takes so long: whatever does hangs, and fails the run."""
UNANSWERED: Final = 16
GROWTH_BYTES: Final = 32 * MIB
"""By so much memory may differ between the second and the last fifth of a run of some minutes."""

SIZES: Final = (0, 0, 100, 5000, 2**16, 300_001, 2 * MIB, 3 * MIB, 9 * MIB)
CONTEXT: Final = multiprocessing.get_context("forkserver")


def held_here() -> tuple[int, int]:
    """Open descriptors of this process, and mappings of arenas and ledgers."""
    for _ in range(3):  # what the first finds may end what the next does
        gc.collect()
    maps = Path("/proc/self/maps").read_text()
    return len(list(Path("/proc/self/fd").iterdir())), maps.count("memfd:omniwire")


class Producer:
    """Sends to every executor until it is told to stop; then says what it has sent."""

    def __init__(self, name: str, folder: Path, seed: int) -> None:
        self.name = name
        self.folder = folder
        self.randomness = random.Random(seed)
        self.channels: dict[int, ow.Channel] = {}
        self.ids: dict[int, str] = {}
        self.sent: dict[str, int] = {}
        self.answered: dict[str, int] = {}
        self.outcomes: dict[str, str] = {}
        self._numbers = itertools.count()

    def run(self, control: Connection) -> None:
        while not control.poll(0):
            executor = self.randomness.randrange(NUM_EXECUTORS)
            self.guarded(executor, self.step)
        for executor in list(self.channels):
            self.guarded(executor, self.finish)

    def guarded(self, executor: int, use: Any) -> None:
        """Use a channel; if the executor dies meanwhile, that channel is done with."""
        try:
            use(executor)
        except (ow.PeerDied, ow.PeerClosed) as error:
            self.outcomes[self.ids.pop(executor)] = type(error).__name__
            self.channels.pop(executor).close()

    def step(self, executor: int) -> None:
        if executor not in self.channels:
            self.connect(executor)
        if executor in self.channels:
            self.send(executor)
            self.take_answers(executor, UNANSWERED)

    def finish(self, executor: int) -> None:
        self.take_answers(executor, 0)
        self.outcomes[self.ids.pop(executor)] = "finished"
        self.channels.pop(executor).close()

    def connect(self, executor: int) -> None:
        """Connect to whoever listens there now; the last one may just have been killed."""
        with contextlib.suppress(ow.HandoffError):
            path = self.folder / f"executor-{executor}"
            self.channels[executor] = ow.Channel.connect(path, 2.0, **ARENA)
            name = f"{self.name}.{next(self._numbers)}"
            self.ids[executor] = name
            self.sent[name] = self.answered[name] = 0

    def send(self, executor: int) -> None:
        name = self.ids[executor]
        number = self.sent[name]
        self.channels[executor].send(self.message(executor, f"{name}/{number}"), TIMEOUT_S)
        self.sent[name] += 1

    def message(self, executor: int, request_id: str) -> object:
        size = self.randomness.choice(SIZES)
        number = int(request_id.rpartition("/")[2])
        if not size:
            num_tokens = self.randomness.choice((3, 300, 30_000))
            return ow.ProcessedRequest(request_id, range(num_tokens))
        content: Any = pattern(size, number)
        channel = self.channels[executor]
        how = self.randomness.random()
        if how < 0.2 and size < 8 * MIB:
            content = channel.share(content, TIMEOUT_S)
        elif how < 0.5 and size < 8 * MIB:
            content = channel.empty(content.shape, torch.uint8, TIMEOUT_S).copy_(content)
        return request(content, request_id)

    def take_answers(self, executor: int, at_most: int) -> None:
        """Take the answers that are there; wait until few enough are missing."""
        name, channel = self.ids[executor], self.channels[executor]
        while missing := self.sent[name] - self.answered[name]:
            try:
                answer = channel.recv(TIMEOUT_S if missing > at_most else 0)
            except ow.HandoffTimeout:
                if missing > at_most:
                    raise
                return
            assert answer.request_id == f"{name}/{self.answered[name]}", answer
            self.answered[name] += 1


def produce(control: Connection, name: str, folder: Path, seed: int) -> None:
    """Be a producer."""
    torch.set_num_threads(1)
    before = held_here()
    producer = Producer(name, folder, seed)
    producer.run(control)
    control.recv()
    report = {
        "sent": producer.sent,
        "answered": producer.answered,
        "outcomes": producer.outcomes,
    }
    del producer
    control.send({**report, "left": [before, held_here()]})
    control.recv()


class Executor:
    """Answers whoever connects; notes what came in a file, so that the note outlives it."""

    def __init__(self, path: Path, log: Path, seed: int) -> None:
        self.server = ow.ChannelServer(path, **ARENA)
        self.randomness = random.Random(seed)
        self.channels: list[ow.Channel] = []
        self.held: deque[Any] = deque(maxlen=6)
        self.log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def run(self, control: Connection) -> None:
        while not (control.poll(0) and not self.channels):
            self.accept()
            for channel in ow.wait(self.channels, 0.05) if self.channels else []:
                try:
                    self.serve(channel)
                except (ow.PeerClosed, ow.PeerDied):
                    channel.close()
                    self.channels.remove(channel)
        self.server.close()
        os.close(self.log)

    def accept(self) -> None:
        """Who dies while it connects is somebody else's problem."""
        with contextlib.suppress(ow.HandoffError):
            while True:
                self.channels.append(self.server.accept(0 if self.channels else 0.05))

    def serve(self, channel: ow.Channel) -> None:
        message = channel.recv(TIMEOUT_S)
        os.write(self.log, f"{message.request_id}\n".encode())
        self.check(message)
        if self.randomness.random() < 0.3 and not is_private(message):
            self.held.append(message)
        elif self.randomness.random() < 0.1:
            cycle = [message]
            cycle.append(cycle)
        if self.randomness.random() < 0.2:
            self.held.clear()
        answer = ow.OutputChunk(message.request_id, 0, "text", [1])
        channel.send(answer, TIMEOUT_S)

    def check(self, message: ow.ProcessedRequest) -> None:
        number = int(message.request_id.rpartition("/")[2])
        if message.multimodal_params is None:
            tokens = message.prompt_token_ids
            assert tokens == tuple(range(len(tokens))), "other tokens than were sent"
            return
        content = tensor_of(message)
        if isinstance(content, ow.TensorHandle):
            if self.randomness.random() < 0.5:  # and else it is never resolved
                return
            content = content.resolve()
        assert is_pattern(content, number), "other bytes than were sent"


def is_private(message: ow.ProcessedRequest) -> bool:
    """Whether a message was too large for the arena: who holds it takes memory of its own."""
    content = tensor_of(message) if message.multimodal_params is not None else None
    return isinstance(content, torch.Tensor) and content.nbytes > ARENA["max_bytes"]


def execute(control: Connection, path: Path, log: Path, seed: int) -> None:
    """Be an executor."""
    torch.set_num_threads(1)
    before = held_here()
    executor = Executor(path, log, seed)
    control.send("listening")
    executor.run(control)
    control.recv()
    del executor
    control.send({"left": [before, held_here()]})
    control.recv()


class Child:
    """A process of the run, as its supervisor sees it."""

    def __init__(self, target: Any, name: str, *args: Any) -> None:
        self.name = name
        self.control, there = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=target, args=(there, *args), name=name)
        self.process.start()
        there.close()
        self.report: Any = None

    def kill(self) -> None:
        """Kill it, wait until it is gone, and forget it."""
        self.process.kill()
        self.process.join()
        self.control.close()
        self.process.close()

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def is_dead(self) -> bool:
        """Whether it has ended, which none does by itself."""
        return not self.process.is_alive()

    def stop(self) -> None:
        """Tell it to stop, which may take it a while."""
        self.control.send("stop")

    def take_report(self) -> None:
        """Wait for its report, and let it end."""
        if self.control.poll(TIMEOUT_S):
            with contextlib.suppress(EOFError):
                self.report = self.control.recv()
                self.control.send("end")
        self.process.join(TIMEOUT_S)

    def memory(self) -> int:
        """Its proportional share of memory in bytes."""
        lines = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


class Run:
    """The supervisor of one run.

    Attributes:
        problems: What was not as it should be, in words.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.problems: list[str] = []
        self.num_kills = 0
        self.num_stops = 0
        self._randomness = random.Random(seed)
        self._logs = folder / "logs"
        self._logs.mkdir()
        self._incarnations = itertools.count()
        self._killed: set[str] = set()
        self._memory: dict[str, list[int]] = defaultdict(list)
        self.executors = [self._new_executor(number) for number in range(NUM_EXECUTORS)]
        self.producers = [self._new_producer() for _ in range(NUM_PRODUCERS)]

    def go_on(self, seconds: float) -> None:
        """Kill and replace for so long, and measure."""
        end = time.monotonic() + seconds
        measured = 0.0
        shown = time.monotonic()
        while (now := time.monotonic()) < end and not self.problems:
            time.sleep(self._randomness.random() * 1.5)
            if self._randomness.random() < 0.2:
                self._stop_one()
            else:
                self._kill_one()
            self._look_for_dead()
            if now - measured >= seconds / 60:
                measured = now
                for child in self._veterans():
                    self._memory[child.name].append(child.memory())
            if now - shown >= 30:
                shown = now
                print(f"{end - now:.0f} s to go, {self.num_kills} kills", flush=True)

    def finish(self) -> None:
        """Have everybody stop, and look at what they and the notes say."""
        for children in (self.producers, self.executors):
            for child in children:
                child.stop()
            for child in children:
                child.take_report()
                self._check_end(child)
        self._check_messages()
        self._check_memory()

    def _new_executor(self, number: int) -> Child:
        name = f"e{next(self._incarnations)}"
        path = self.folder / f"executor-{number}"
        seed = self._randomness.randrange(2**32)
        child = Child(execute, name, path, self._logs / name, seed)
        if not child.control.poll(TIMEOUT_S) or child.control.recv() != "listening":
            self.problems.append(f"{name} does not listen")
        return child

    def _new_producer(self) -> Child:
        name = f"p{next(self._incarnations)}"
        return Child(produce, name, name, self.folder, self._randomness.randrange(2**32))

    def _veterans(self) -> list[Child]:
        return [*self.producers[: NUM_VETERANS[0]], *self.executors[: NUM_VETERANS[1]]]

    def _kill_one(self) -> None:
        self.num_kills += 1
        if self._randomness.random() < 0.6:
            position = self._randomness.randrange(NUM_VETERANS[0], NUM_PRODUCERS)
            self._killed.add(self.producers[position].name)
            self.producers[position].kill()
            self.producers[position] = self._new_producer()
        else:
            position = self._randomness.randrange(NUM_VETERANS[1], NUM_EXECUTORS)
            self._killed.add(self.executors[position].name)
            self.executors[position].kill()
            self.executors[position] = self._new_executor(position)

    def _stop_one(self) -> None:
        self.num_stops += 1
        child = self._randomness.choice([*self.producers, *self.executors])
        child.send_signal(signal.SIGSTOP)
        time.sleep(self._randomness.random() * 0.5)
        child.send_signal(signal.SIGCONT)

    def _look_for_dead(self) -> None:
        for child in (*self.producers, *self.executors):
            if child.is_dead():
                self.problems.append(f"{child.name} died by itself: {child.process.exitcode}")

    def _check_end(self, child: Child) -> None:
        if child.report is None or child.process.exitcode != 0:
            self.problems.append(f"{child.name} ended with {child.process.exitcode}")
            child.kill()
            return
        (descriptors, mappings), (descriptors_after, mappings_after) = child.report["left"]
        if descriptors_after != descriptors or mappings_after != mappings:
            self.problems.append(f"{child.name} keeps {child.report['left']}")
        child.control.close()
        child.process.close()

    def _check_messages(self) -> None:
        received: dict[str, tuple[str, list[int]]] = {}
        for log in sorted(self._logs.iterdir()):
            for line in log.read_text().splitlines():
                channel, _, number = line.partition("/")
                received.setdefault(channel, (log.name, []))[1].append(int(number))
        for channel, (executor, numbers) in received.items():
            if numbers != list(range(len(numbers))):
                self.problems.append(f"{channel} to {executor}: lost, repeated or out of order")
        for producer in self.producers:
            report = producer.report or {"sent": {}}
            for channel, num_sent in report["sent"].items():
                executor, numbers = received.get(channel, ("nobody", []))
                num_answered, outcome = report["answered"][channel], report["outcomes"][channel]
                # Of one that got nothing it is not known whether it was killed.
                was_killed = executor in self._killed or (
                    executor == "nobody" and outcome != "finished"
                )
                # One that was killed after its last answer may not have been needed again.
                if outcome != "finished" and not was_killed:
                    self.problems.append(f"{channel} to {executor}: {outcome}")
                expected = num_answered if was_killed else num_sent
                if not expected <= len(numbers) <= num_sent:
                    text = f"{num_sent} sent, {len(numbers)} received, {num_answered} answered"
                    self.problems.append(f"{channel} to {executor}: {text}")
        self.num_messages = sum(len(numbers) for _, numbers in received.values())
        self.num_channels = len(received)

    def _check_memory(self) -> None:
        for name, measured in self._memory.items():
            fifth = len(measured) // 5
            if not fifth:
                continue
            first = statistics.median(measured[fifth : 2 * fifth])
            last = statistics.median(measured[-fifth:])
            print(f"{name}: {first / MIB:.0f} MiB after a while, {last / MIB:.0f} MiB at the end")
            if last - first > GROWTH_BYTES and len(measured) >= 40:
                self.problems.append(f"{name} grew from {first} to {last} bytes")


@contextlib.contextmanager
def nothing_left(problems: list[str]) -> Iterator[None]:
    """Compare what this process and the machine have before and after."""

    def present() -> set[str]:
        found = {f"descriptor {each.name}" for each in Path("/proc/self/fd").iterdir()}
        found.update(str(path) for path in Path("/dev/shm").iterdir())
        found.update(f"process {child.name}" for child in multiprocessing.active_children())
        return found

    before = present()
    yield
    gc.collect()
    problems += [f"left behind: {each}" for each in sorted(present() - before)]


def main(seconds: float) -> int:
    """Run for so long; the exit code."""
    seed = int(os.environ.get("SOAK_SEED", str(time.time_ns())))
    print(f"{seconds:.0f} s, SOAK_SEED={seed}", flush=True)
    torch.set_num_threads(1)
    CONTEXT.set_forkserver_preload(["omniwire.serialization"])
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        os.environ["TMPDIR"] = name  # of all that is started from here on
        warm_up = Child(sleep, "warm-up")  # starts the forkserver too
        warm_up.kill()
        problems: list[str] = []
        with nothing_left(problems):
            run = Run(folder, seed)
            run.go_on(seconds)
            run.finish()
            problems += run.problems
        left = [path for path in folder.iterdir() if path.name != "logs"]
        problems += [f"left behind: {path.name}" for path in left]
    print(
        f"{run.num_messages} requests on {run.num_channels} channels, {run.num_kills} kills, "
        f"{run.num_stops} stops"
    )
    print(*(problems or ["nothing lost, nothing left, memory flat"]), sep="\n")
    return 1 if problems else 0


def sleep(_: Connection) -> None:
    """Do nothing until killed."""
    time.sleep(10**6)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 600.0))
