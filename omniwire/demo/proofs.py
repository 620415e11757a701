"""What the demo proves about itself, from what the processors and the executors reported."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from omniwire.demo.reports import ExecutorReport, Outcome, ProcessorReport


@dataclass(frozen=True)
class Proof:
    """One claim, whether it holds, and the figures behind it."""

    claim: str
    holds: bool
    figures: str


def prove(outcome: Outcome, own_pid: int) -> list[Proof]:
    """Judge every claim.

    Args:
        outcome: The run.
        own_pid: The process that started it.
    """
    processors, executors = outcome.processors, outcome.executors
    return [
        _own_processes(processors, executors, own_pid),
        _arrived(processors, executors),
        _placed(processors, executors),
        _encoded_once(executors),
        _items_equal(executors),
        _fused(executors),
        _streamed(processors, executors),
        _nothing_left(processors, outcome.left),
    ]


def _own_processes(
    processors: Sequence[ProcessorReport], executors: Sequence[ExecutorReport], own_pid: int
) -> Proof:
    pids = [report.pid for report in processors] + [report.pid for report in executors]
    return Proof(
        "processors and executors are processes of their own",
        len({own_pid, *pids}) == 1 + len(pids),
        f"pids {', '.join(map(str, pids))}, started by {own_pid}",
    )


def _arrived(processors: Sequence[ProcessorReport], executors: Sequence[ExecutorReport]) -> Proof:
    sent = _joined([report.request_hashes for report in processors])
    arrived = _joined([report.request_hashes for report in executors])
    figures = [
        f"{name}: sha256 {digest[:12]}.. sent, {arrived.get(name, 'nothing')[:12]}.. arrived"
        for name, digest in sent.items()
    ]
    return Proof(
        "every request arrived as it was sent, bit for bit",
        sent == arrived and len(sent) > 0,
        "; ".join(figures),
    )


def _placed(processors: Sequence[ProcessorReport], executors: Sequence[ExecutorReport]) -> Proof:
    num_misplaced = sum(report.num_misplaced for report in processors)
    num_items = sum(row.num_items for report in executors for row in report.iterations)
    return Proof(
        "the items found in each prompt are its media, in their order",
        num_misplaced == 0,
        f"{num_items} items, {num_misplaced} of them elsewhere",
    )


def _encoded_once(executors: Sequence[ExecutorReport]) -> Proof:
    encoded = [sum(row.num_encoded for row in report.iterations) for report in executors]
    num_items = sum(row.num_items for report in executors for row in report.iterations)
    distinct = [report.num_distinct_items for report in executors]
    return Proof(
        "each executor encoded every distinct item once",
        encoded == distinct,
        f"{num_items} items, {' + '.join(map(str, distinct))} distinct, "
        f"{' + '.join(map(str, encoded))} encoded",
    )


def _items_equal(executors: Sequence[ExecutorReport]) -> Proof:
    num_rows = sum(row.embedding_rows for report in executors for row in report.iterations)
    worst = [report.max_item_difference for report in executors]
    return Proof(
        "item-by-item encoding equals full-request encoding",
        _within(executors, worst),
        f"{num_rows} rows encoded, {_largest(executors, worst)}",
    )


def _fused(executors: Sequence[ExecutorReport]) -> Proof:
    worst = [report.max_fused_difference for report in executors]
    num_windows = sum(report.num_windows for report in executors)
    num_views = sum(report.num_window_views for report in executors)
    return Proof(
        "prefill read the right embedding row at every token",
        _within(executors, worst),
        f"{num_windows} windows, {num_views} of them views, held against the encoders alone and a "
        f"masked scatter: {_largest(executors, worst)}",
    )


def _streamed(processors: Sequence[ProcessorReport], executors: Sequence[ExecutorReport]) -> Proof:
    streamed = _joined([report.streamed_hashes for report in executors])
    received = _joined([report.output_hashes for report in processors])
    errors = [error for report in processors for error in report.output_errors]
    num_chunks = sum(report.num_chunks for report in processors)
    return Proof(
        "every final output is what was streamed, bit for bit",
        received == streamed and len(received) > 0 and not errors,
        f"{len(received)} outputs of {num_chunks} chunks, {'; '.join(errors) or 'no errors'}",
    )


def _nothing_left(processors: Sequence[ProcessorReport], left: Sequence[str]) -> Proof:
    num_bytes = sum(report.retained_bytes for report in processors)
    nothing = "no process, descriptor, shared memory or temporary file"
    return Proof(
        "nothing is left behind",
        not left and num_bytes == 0,
        f"{num_bytes} bytes held by output processors, {'; '.join(left) or nothing}",
    )


def _joined(parts: Sequence[Mapping[str, str]]) -> dict[str, str]:
    return {name: digest for part in parts for name, digest in part.items()}


def _within(executors: Sequence[ExecutorReport], worst: Sequence[float]) -> bool:
    # Written so that a difference which is not a number fails.
    return all(
        difference <= report.tolerance for report, difference in zip(executors, worst, strict=True)
    )


def _largest(executors: Sequence[ExecutorReport], worst: Sequence[float]) -> str:
    differences = ", ".join(f"{difference:.1e}" for difference in worst)
    return f"largest difference {differences}, allowed {executors[0].tolerance:.0e}"
