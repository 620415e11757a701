"""The click command `omniwire bench`."""

import importlib.util
import signal
import sys
from pathlib import Path
from typing import Final, NoReturn

import click

_BROKEN: Final = 1
_UNUSABLE: Final = 2
_INTERRUPTED: Final = 130


@click.command("bench")
@click.option(
    "--repeat",
    metavar="N",
    type=click.IntRange(min=1),
    help="Messages of each kind; by default 100 of the largest to 2,000 of the smallest.",
)
@click.option(
    "--plot",
    metavar="FILE",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Draw the times, and save the picture as PNG.",
)
def bench_command(repeat: int | None, plot: Path | None) -> None:
    """Compare the handoff between two processes with what one would use instead.

    Sends five kinds of request, each in two new processes, through omniwire's channel, pyzmq,
    torch.multiprocessing.Queue, multiprocessing.Pipe, multiprocessing.shared_memory and Ray, in
    turn, and prints a table for each kind. Takes some minutes; what is not installed is skipped
    and said so.

    Exits with 0 if all that is installed was measured, 1 if something broke, 2 if the picture
    cannot be drawn.
    """
    needed = ["rich"] if plot is None else ["rich", "matplotlib"]
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        _stop(f"needs {', '.join(missing)}: pip install 'omniwire[bench]'", _UNUSABLE)
    if plot is not None and not plot.parent.is_dir():
        _stop(f"{plot}: cannot save there, no such folder", _UNUSABLE)
    # These import what was just looked for, and torch.
    from omniwire.bench.report import make_console, print_results, progress_bar  # noqa: PLC0415
    from omniwire.bench.run import FAILED, run_all  # noqa: PLC0415

    console = make_console()
    # A request to end unwinds this process, so that it ends its children first.
    previous = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        with progress_bar(console) as steps:
            results = run_all(repeat, steps.begin)
    except KeyboardInterrupt:
        _stop("interrupted", _INTERRUPTED)
    finally:
        signal.signal(signal.SIGTERM, previous)
    print_results(console, results)
    if plot is not None:
        from omniwire.bench.plot import save_plot  # noqa: PLC0415  # matplotlib is in an extra

        try:
            save_plot(results, plot)
        except OSError as error:
            _stop(f"{plot}: cannot save there: {error.strerror}", _UNUSABLE)
    if any(result.problem == FAILED for result in results):
        _stop("not everything was measured", _BROKEN)


def _stop(message: str, exit_code: int) -> NoReturn:
    click.echo(f"omniwire bench: {message}", err=True)
    sys.exit(exit_code)
