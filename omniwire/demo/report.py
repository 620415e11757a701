"""What the demo prints: a progress bar while it runs, tables and proofs when it is done."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from omniwire.demo.events import (
    NUM_STEPS,
    Event,
    ExecutorReport,
    FieldRow,
    ProcessorReport,
    Timing,
)
from omniwire.demo.proofs import Proof


class ProgressBar:
    """A progress bar fed by events; shown from `begin` on, so never above a refusal.

    Args:
        console: Where to draw.
    """

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=console,
            expand=True,
        )
        self._task = self._progress.add_task("starting", total=NUM_STEPS)

    def on_event(self, event: Event) -> None:
        """Show what is being done."""
        if event.kind == "begin":
            self._progress.start()
        else:
            advance = 1 if event.kind == "step" else 0
            self._progress.update(self._task, description=event.text, advance=advance)

    def stop(self) -> None:
        """Leave the bar as it is; does nothing if it was never shown."""
        if self._progress.live.is_started:
            self._progress.stop()


@contextmanager
def progress_bar(console: Console) -> Iterator[ProgressBar]:
    """A progress bar that stops with the block."""
    bar = ProgressBar(console)
    try:
        yield bar
    finally:
        bar.stop()


def make_console() -> Console:
    """A console that prints text as it is: file names are no markup."""
    return Console(markup=False, highlight=False, emoji=False)


def print_report(
    console: Console,
    processor: ProcessorReport,
    executor: ExecutorReport,
    proofs: Sequence[Proof],
    seconds: float,
) -> None:
    """Print every table, then a line per proof."""
    for table in (
        _media_table(processor),
        _fields_table("Request, processor to executor", processor.sent_fields),
        _iterations_table(executor),
        _fields_table("Final output, executor to processor", processor.output_fields),
        _copies_table(processor, executor),
        _times_table(processor.timings, executor.timings, seconds),
    ):
        console.print(table)
        console.print()
    if processor.saved_to:
        console.print(f"Request saved to {processor.saved_to}", soft_wrap=True)
        console.print()
    for proof in proofs:
        verdict = Text("PASS", "green") if proof.holds else Text("FAIL", "bold red")
        console.print(verdict, proof.claim)
        console.print(Text(f"     {proof.figures}", "dim"))


def _table(title: str, *columns: str, right: Sequence[str] = ()) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def _media_table(processor: ProcessorReport) -> Table:
    table = _table("Media", "file", "decoded", "items", right=["items"])
    for row in processor.media:
        table.add_row(row.name, row.decoded, str(row.num_items))
    return table


def _fields_table(title: str, fields: Sequence[FieldRow]) -> Table:
    table = _table(title, "field", "dtype", "shape", "bytes", right=["bytes"])
    for row in fields:
        table.add_row(row.field, row.dtype, str(row.shape), f"{row.num_bytes:,}")
    return table


def _iterations_table(executor: ExecutorReport) -> Table:
    title = f"Encoder iterations, at most {executor.budget_encoder_tokens} encoder tokens each"
    table = _table(
        title, "items", "tokens", "rows", "bytes viewed", "bytes copied",
        right=["tokens", "rows", "bytes viewed", "bytes copied"],
    )  # fmt: skip
    for row in executor.iterations:
        table.add_row(
            ", ".join(row.items),
            str(row.encoder_tokens),
            str(row.embedding_rows),
            f"{row.viewed_bytes:,}",
            f"{row.copied_bytes:,}",
        )
    return table


def _copies_table(processor: ProcessorReport, executor: ExecutorReport) -> Table:
    table = _table("Sizes and copies", "what", "bytes", right=["bytes"])
    copied = executor.tensor_bytes - executor.aliased_bytes
    selected = sum(row.copied_bytes for row in executor.iterations)
    for what, num_bytes in (
        ("tensors of the request", executor.tensor_bytes),
        ("its message, into which they are copied once", processor.sent_bytes),
        ("tensors that are views of the received message", executor.aliased_bytes),
        ("tensors copied out of it", copied),
        ("tensors copied to select items", selected),
        (f"{processor.num_chunks} output messages together", processor.chunk_bytes),
        ("payload still held while generating", executor.kept_bytes),
    ):
        table.add_row(what, f"{num_bytes:,}")
    return table


def _times_table(processor: Sequence[Timing], executor: Sequence[Timing], seconds: float) -> Table:
    table = _table("Times", "process", "work", "ms", right=["ms"])
    for name, timings in (("processor", processor), ("executor", executor)):
        for timing in timings:
            table.add_row(name, timing.work, f"{1000 * timing.seconds:,.1f}")
    table.add_row("all", "from start to end, imports included", f"{1000 * seconds:,.0f}")
    return table
