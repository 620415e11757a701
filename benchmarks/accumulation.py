"""Accumulation of 2,000 audio chunks: goals, a list + `torch.cat`, and repeated `torch.cat`.

And of text tokens: what a step costs when there are few so far, and when there are many.

Run it with `OMP_NUM_THREADS=1 python benchmarks/accumulation.py`. What is compared takes turns
in one run; a ratio means more than the times it is made of.
"""

import time
from collections.abc import Callable

import torch

from omniwire.contracts import OmniOutput, OutputChunk, OutputKind, RequestOutput
from omniwire.runtime import MultimodalOutputProcessor, OmniRequestState, default_registry

NUM_CHUNKS = 2000
SHAPE = (1, 1920)  # 80 ms of audio at 24 kHz
ROUNDS = 15
LENGTHS = (500, 1000, 2000, 4000)
BLOCK = 50  # steps that are timed together
NUM_TOKENS = (1000, 10_000, 100_000)  # so far, when steps of one token are timed
NUM_TOKEN_STEPS = 500

REGISTRY = default_registry()
AUDIO = [torch.rand(SHAPE) for _ in range(max(LENGTHS))]
CHUNKS = [
    OutputChunk("r", step, "audio", (), OmniOutput(None, {"audio": tensor, "sample_rate": 24000}))
    for step, tensor in enumerate(AUDIO)
]
BARE_CHUNKS = [
    OutputChunk("r", step, "audio", (), OmniOutput(None, {"audio": tensor}))
    for step, tensor in enumerate(AUDIO)
]


def one_cat(count: int) -> torch.Tensor:
    """The floor: all chunks are there, and one call joins them."""
    return torch.cat(AUDIO[:count], -1)


def list_and_cat(count: int) -> torch.Tensor:
    """What a user writes: append to a list, join at the end. Nothing is checked or copied out."""
    held = []
    for tensor in AUDIO[:count]:
        held.append(tensor)  # noqa: PERF402  # it stands for one step of an engine
    return torch.cat(held, -1)


def list_of_copies(count: int) -> torch.Tensor:
    """The same with a copy of each chunk, so that the producer may use its memory again."""
    held = []
    for tensor in AUDIO[:count]:
        held.append(tensor.clone())  # noqa: PERF401  # it stands for one step of an engine
    return torch.cat(held, -1)


def repeated_cat(count: int) -> torch.Tensor:
    """What streams quadratically: join at every step."""
    joined = AUDIO[0]
    for tensor in AUDIO[1:count]:
        joined = torch.cat((joined, tensor), -1)
    return joined


def state_alone(count: int) -> torch.Tensor:
    """`add_output` and `consolidate`."""
    state = OmniRequestState("r", "audio", registry=REGISTRY)
    for tensor in AUDIO[:count]:
        state.add_output("audio", tensor)
    value = state.consolidate()["audio"]
    assert isinstance(value, torch.Tensor)
    return value


def time_steps(kind: OutputKind, chunks: list[OutputChunk]) -> list[float]:
    """Microseconds of each block of steps: `process_outputs`, one chunk a call, outputs kept."""
    processor = MultimodalOutputProcessor(REGISTRY)
    processor.add_request("r", "audio", output_kind=kind)
    outputs: list[RequestOutput] = []
    taken = []
    for first in range(0, len(chunks), BLOCK):
        block = chunks[first : first + BLOCK]
        start = time.perf_counter()
        for chunk in block:
            outputs += processor.process_outputs([chunk])
        taken.append((time.perf_counter() - start) * 1e6)
    end = OutputChunk("r", len(chunks), "audio", finish_reason="stop")
    start = time.perf_counter()
    outputs += processor.process_outputs([end])
    taken.append((time.perf_counter() - start) * 1e6)
    assert processor.num_requests == processor.retained_bytes == 0
    assert outputs[-1].finished
    return taken


def step_microseconds(runs: list[tuple[OutputKind, list[OutputChunk]]]) -> list[float]:
    """What a step takes in each of the runs, which take turns.

    The best of each block is what counts, so that other work on the machine shows less.
    """
    taken = [[time_steps(kind, chunks) for kind, chunks in runs] for _ in range(ROUNDS)]
    blocks = [map(min, zip(*rounds, strict=True)) for rounds in zip(*taken, strict=True)]
    return [sum(best) / len(chunks) for best, (_, chunks) in zip(blocks, runs, strict=True)]


def milliseconds(works: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, float]:
    """Best of each, taking turns."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            start = time.perf_counter()
            result = work()
            taken[name].append((time.perf_counter() - start) * 1e3)
            del result
    return {name: min(times) for name, times in taken.items()}


def show(what: str, figure: str, goal: str = "") -> None:
    """One line of the table."""
    print(f"{what:<56} {figure:>34}   {goal}".rstrip())


def accumulate_and_consolidate() -> None:
    """Everything at the end, without steps and requests."""
    works: dict[str, Callable[[], object]] = {
        work.__name__: (lambda work=work: work(NUM_CHUNKS))  # type: ignore[misc]  # binds the loop's value
        for work in (one_cat, list_and_cat, list_of_copies, state_alone)
    }
    times = milliseconds(works)
    times["repeated_cat"] = milliseconds({"it": lambda: repeated_cat(NUM_CHUNKS)}, 1)["it"]
    floor = times["one_cat"]
    show(f"one torch.cat of {NUM_CHUNKS} chunks", f"{floor:8.2f} ms")
    for name, label, goal in (
        ("list_and_cat", "list + torch.cat", ""),
        ("list_of_copies", "list of copies + torch.cat", ""),
        ("repeated_cat", "repeated torch.cat", ""),
        ("state_alone", "add_output + consolidate", "goal 3x one torch.cat"),
    ):
        show(label, f"{times[name]:8.2f} ms {times[name] / floor:8.1f}x", goal)


def steps() -> None:
    """Chunk by chunk through the processor, in every output kind and at every length."""
    by_kind: dict[OutputKind, float] = {}
    for kind in OutputKind:
        runs = [BARE_CHUNKS[:count] for count in LENGTHS] + [CHUNKS[:NUM_CHUNKS]]
        *bare, with_rate = step_microseconds([(kind, chunks) for chunks in runs])
        by_kind[kind] = bare[LENGTHS.index(NUM_CHUNKS)]
        a_chunk = " ".join(f"{each:7.1f}" for each in bare)
        goal = "" if kind is OutputKind.CUMULATIVE else "goal 10 us, flat"
        show(f"process_outputs, {kind.name}, us a chunk", a_chunk, goal)
        show("  with a flat sample_rate in every chunk", f"{with_rate:7.1f}")
    cumulative = by_kind[OutputKind.CUMULATIVE]
    show("CUMULATIVE : DELTA", f"{cumulative / by_kind[OutputKind.DELTA]:7.2f}x", "goal 3x")
    quadratic = milliseconds({"it": lambda: repeated_cat(NUM_CHUNKS)}, 1)["it"]
    ratio = cumulative * NUM_CHUNKS / 1e3 / quadratic
    show("CUMULATIVE : repeated torch.cat", f"{ratio:7.3f}x")


def time_token_steps(kind: OutputKind, chunks: list[OutputChunk]) -> float:
    """Microseconds of a step, those of the first chunk aside."""
    processor = MultimodalOutputProcessor(REGISTRY)
    processor.add_request("r", "text", output_kind=kind)
    processor.process_outputs(chunks[:2])
    start = time.perf_counter()
    for chunk in chunks[2:]:
        processor.process_outputs([chunk])
    return (time.perf_counter() - start) / len(chunks[2:]) * 1e6


def tokens() -> None:
    """Text tokens, one a step, in every output kind; the first chunk brings many."""
    by_count = [
        [
            OutputChunk("r", step, "text", [step] if step else range(count))
            for step in range(NUM_TOKEN_STEPS)
        ]
        for count in NUM_TOKENS
    ]
    for kind in OutputKind:
        rounds = [[time_token_steps(kind, chunks) for chunks in by_count] for _ in range(ROUNDS)]
        best = [min(times) for times in zip(*rounds, strict=True)]
        a_step = " ".join(f"{time_us:7.1f}" for time_us in best)
        show(f"tokens, {kind.name}, us a step", a_step, "flat")


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print(
        f"{NUM_CHUNKS} chunks of f32{list(SHAPE)}; steps at {', '.join(map(str, LENGTHS))} chunks,"
        f" and after {', '.join(map(str, NUM_TOKENS))} tokens\n"
    )
    accumulate_and_consolidate()
    print()
    steps()
    print()
    tokens()


if __name__ == "__main__":
    main()
