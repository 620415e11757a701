"""What the demo prints: a progress bar while it runs, tables and proofs when it is done."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from omniwire.demo.events import Event
from omniwire.demo.proofs import Proof
from omniwire.demo.reports import ExecutorReport, FieldRow, Outcome, ProcessorReport


class ProgressBar:
    """A progress bar fed by events; shown from `begin` on, so never above a refusal.

    Args:
        console: Where to draw.
        num_steps: Steps of the whole run.
    """

    def __init__(self, console: Console, num_steps: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=console,
            expand=True,
        )
        self._task = self._progress.add_task("starting", total=num_steps)

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
def progress_bar(console: Console, num_steps: int) -> Iterator[ProgressBar]:
    """A progress bar of so many steps, which stops with the block."""
    bar = ProgressBar(console, num_steps)
    try:
        yield bar
    finally:
        bar.stop()


def make_console() -> Console:
    """A console that prints text as it is: file names are no markup."""
    return Console(markup=False, highlight=False, emoji=False)


def print_report(
    console: Console, outcome: Outcome, proofs: Sequence[Proof], seconds: float
) -> None:
    """Print every table, then a line per proof."""
    first = outcome.processors[0]
    for table in (
        _media_table(first),
        _fields_table("First request, processor to executor", first.request_fields),
        *(_iterations_table(executor) for executor in outcome.executors),
        _fields_table("Its final output, executor to processor", first.output_fields),
        _sizes_table(outcome),
        _times_table(outcome, seconds),
    ):
        console.print(table)
        console.print()
    if first.saved_to:
        console.print(f"First request saved to {first.saved_to}", soft_wrap=True)
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
    title = (
        f"Encoder iterations of {executor.name}, "
        f"at most {executor.budget_encoder_tokens} encoder tokens each"
    )
    columns = ["encoded", "tokens", "rows", "bytes viewed", "copied"]
    table = _table(title, "scheduled items", *columns, right=columns)
    for row in executor.iterations:
        table.add_row(
            row.items,
            f"{row.num_encoded} of {row.num_items}",
            str(row.encoder_tokens),
            str(row.embedding_rows),
            f"{row.viewed_bytes:,}",
            f"{row.copied_bytes:,}",
        )
    return table


def _sizes_table(outcome: Outcome) -> Table:
    executors = outcome.executors
    table = _table("Sizes and copies", "what", "bytes", right=["bytes"])
    rows = [("tensors of all requests", sum(report.tensor_bytes for report in executors))]
    for processor in outcome.processors:
        rows += [(f"{processor.name}: {what}", size) for what, size in processor.transport.items()]
    iterations = [row for report in executors for row in report.iterations]
    rows += [
        ("tensors copied to select items", sum(row.copied_bytes for row in iterations)),
        ("payload needed to generate", sum(report.kept_bytes for report in executors)),
    ]
    for what, num_bytes in rows:
        table.add_row(what, f"{num_bytes:,}")
    return table


def _times_table(outcome: Outcome, seconds: float) -> Table:
    table = _table("Times", "process", "work", "ms", right=["ms"])
    reports: list[ProcessorReport | ExecutorReport] = [*outcome.processors, *outcome.executors]
    for report in reports:
        for timing in report.timings:
            table.add_row(report.name, timing.work, f"{1000 * timing.seconds:,.1f}")
    table.add_row("all", "from start to end, imports included", f"{1000 * seconds:,.0f}")
    return table
