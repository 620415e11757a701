"""The results as a picture, drawn by matplotlib without a display."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from omniwire.bench.report import machine
from omniwire.bench.run import Result


def save_plot(results: Sequence[Result], path: Path) -> None:
    """Draw the median and the 99th percentile of every peer, and save that as PNG.

    Args:
        results: For each kind of request, a result for each peer.
        path: Where to save it.

    Raises:
        OSError: It cannot be written there.
    """
    groups = [list(rows) for _, rows in groupby(results, lambda result: result.case.name)]
    num_rows = -(-len(groups) // 2)
    figure = Figure(figsize=(11, 0.8 + 3 * num_rows), layout="constrained")
    figure.suptitle("Milliseconds from sending to acknowledgement: median, with a line to the p99")
    places = list(figure.subplots(num_rows, 2).flat)
    for axes, rows in zip(places, groups, strict=False):
        _draw(axes, rows)
    for axes in places[len(groups) :]:
        axes.set_axis_off()
    figure.supxlabel(machine(), fontsize="small")
    figure.savefig(path, format="png", dpi=120)


def _draw(axes: Axes, results: Sequence[Result]) -> None:
    axes.set_title(results[0].case.name)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="x", labelsize="small")
    axes.set_yticks(range(len(results)), [result.peer.name for result in results])
    axes.set_ylim(len(results) - 0.5, -0.5)
    axes.grid(alpha=0.3)
    beside = axes.get_yaxis_transform()  # x is a share of the width, y a row
    for row, result in enumerate(results):
        color = "tab:blue" if result.peer.is_ours else "black"
        text = result.problem
        if text is None:
            median, tail = 1000 * result.quantile(0.5), 1000 * result.quantile(0.99)
            text = f"{median:.3g} to {tail:.3g}"
            axes.plot([median, tail], [row, row], color=color, linewidth=1)
            axes.plot([median], [row], color=color, marker="o")
        axes.text(1.02, row, text, color=color, va="center", fontsize="small", transform=beside)
