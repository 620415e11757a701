"""What the benchmark prints: a progress bar while it runs, and a table for each kind of request."""

import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from itertools import groupby
from typing import Final

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from omniwire.bench.peers import BASELINE
from omniwire.bench.run import NUM_STEPS, Result

_MIB: Final = 1024 * 1024

_LEGEND: Final = f"""\
A message is over when the receiver has looked at all tensors and answered.
omniwire makes all of its checks on both sides, the others make none.
speed: how many times as fast as {BASELINE.name}, by the median
MiB: peak growth of both processes' memory, with the request itself
faults, cpu: minor page faults and processor time of both, per message\
"""


class Steps:
    """A progress bar.

    Args:
        progress: Where to draw it.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=NUM_STEPS)
        self._num_begun = 0

    def begin(self, text: str) -> None:
        """Show what is being done."""
        self._progress.update(self._task, description=text, completed=self._num_begun)
        self._num_begun += 1


@contextmanager
def progress_bar(console: Console) -> Iterator[Steps]:
    """A progress bar that disappears with the block."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, expand=True, transient=True) as progress:
        yield Steps(progress)


def make_console() -> Console:
    """A console that prints text as it is."""
    return Console(markup=False, highlight=False, emoji=False)


def machine() -> str:
    """Where and with what this runs, in one line."""
    return (
        f"{os.cpu_count()} {platform.machine()} cores, Python {platform.python_version()}, "
        f"torch {version('torch')}, OMP_NUM_THREADS=1"
    )


def print_results(console: Console, results: Sequence[Result]) -> None:
    """Print a table for each kind of request, and what the columns mean."""
    for _, rows in groupby(results, lambda result: result.case.name):
        console.print(_table(list(rows)))
    broken = [result for result in results if result.problem is not None]
    for line in dict.fromkeys(f"{row.peer.name}: {row.problem}: {row.reason}" for row in broken):
        console.print(line, soft_wrap=True)
    console.print(_LEGEND)
    console.print(machine())


def _table(results: Sequence[Result]) -> Table:
    number = max(len(result.seconds) for result in results)
    table = Table(
        title=f"{results[0].case.name}: {number} messages, times in ms",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("", no_wrap=True)
    table.add_column("median", justify="right", min_width=len("installed"))
    for column in ("p99", "speed", "MiB", "faults", "cpu"):
        table.add_column(column, justify="right")
    medians = {result.peer: result.quantile(0.5) for result in results if result.problem is None}
    for result in results:
        if result.problem is not None:
            table.add_row(result.peer.name, Text(result.problem, "yellow"))
            continue
        median = medians[result.peer]
        speed = f"{medians[BASELINE] / median:.2f}" if BASELINE in medians else ""
        table.add_row(
            Text(result.peer.name, "bold" if result.peer.is_ours else ""),
            f"{1000 * median:.3f}",
            f"{1000 * result.quantile(0.99):.3f}",
            speed,
            f"{result.peak_bytes / _MIB:.1f}",
            f"{result.usage.faults / len(result.seconds):,.0f}",
            f"{1000 * result.usage.cpu_s / len(result.seconds):.2f}",
        )
    return table
