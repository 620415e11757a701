"""What the demo proves about itself, from what both processes reported."""

from dataclasses import dataclass

from omniwire.demo.events import ExecutorReport, ProcessorReport


@dataclass(frozen=True)
class Proof:
    """One claim, whether it holds, and the figures behind it."""

    claim: str
    holds: bool
    figures: str


def prove(
    processor: ProcessorReport, executor: ExecutorReport, own_pid: int, left: list[str]
) -> list[Proof]:
    """Judge every claim.

    Args:
        processor: Report of the processor process.
        executor: Report of the executor process.
        own_pid: The parent process.
        left: What the run left behind.
    """
    pids = {own_pid, processor.pid, executor.pid}
    num_rows = sum(row.embedding_rows for row in executor.iterations)
    errors = processor.output_errors or ["no errors"]
    return [
        Proof(
            "the processor and the executor are processes of their own",
            len(pids) == len(("parent", "processor", "executor")),
            f"pids {processor.pid} and {executor.pid}, started by {own_pid}",
        ),
        Proof(
            "what arrived equals what was sent, bit for bit",
            processor.sent_hash == executor.received_hash and processor.echo_equal,
            f"sha256 {processor.sent_hash[:12]}.. sent, {executor.received_hash[:12]}.. arrived, "
            f"sent back {'equal' if processor.echo_equal else 'DIFFERENT'}",
        ),
        Proof(
            "item-by-item encoding equals full-request encoding",
            # Written so that a difference which is not a number fails.
            executor.max_difference <= executor.tolerance,
            f"{num_rows} rows, largest difference {executor.max_difference:.1e}, "
            f"allowed {executor.tolerance:.0e}",
        ),
        Proof(
            "chunked prefill saw every embedding row once, in order",
            executor.windows_equal,
            f"{executor.num_windows} windows, {executor.num_window_views} of them views",
        ),
        Proof(
            "the final output is what was streamed, bit for bit",
            processor.output_hash == executor.streamed_hash and not processor.output_errors,
            f"{processor.num_chunks} chunks, {'; '.join(errors)}",
        ),
        Proof(
            "nothing is left behind",
            not left and processor.retained_bytes == 0,
            "; ".join(left)
            or f"{processor.retained_bytes} bytes held by the output processor, "
            "no process, descriptor, shared memory or temporary file",
        ),
    ]
