"""Entry points of the two spawned processes; light to import, since the parent does so too."""

import contextlib
import os
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection

import omniwire as ow
from omniwire.demo.events import Event, ExecutorReport, Line, ProcessorReport
from omniwire.demo.problems import BadInput, DemoFailed, first_line


def processor_main(
    data: Connection,
    line: Connection,
    scratch: str,
    images: list[str],
    audios: list[str],
    save: str | None,
) -> None:
    """Body of the processor process.

    Args:
        data: This process's end of the data path.
        line: The writing end of its line to the parent.
        scratch: Folder for temporary files.
        images: Photographs.
        audios: Sounds.
        save: Where to save the request.
    """

    def work(line: Line) -> ProcessorReport:
        from omniwire.demo.media import load_media  # noqa: PLC0415  # not for the parent

        with line.timed("load and decode the media"):
            photographs, sounds = load_media(images, audios)
        line.begin()
        line.step("importing torch and transformers")
        # Bad media is refused above, before this import of torch and transformers takes seconds.
        from omniwire.demo.processor import process  # noqa: PLC0415

        return process(data, line, photographs, sounds, save)

    _run(line, scratch, work)


def executor_main(data: Connection, line: Connection, scratch: str) -> None:
    """Body of the executor process; arguments as for `processor_main`."""

    def work(line: Line) -> ExecutorReport:
        from omniwire.demo.executor import execute  # noqa: PLC0415  # not for the parent

        return execute(data, line)

    _run(line, scratch, work)


def _run(
    connection: Connection,
    scratch: str,
    work: Callable[[Line], ProcessorReport | ExecutorReport],
) -> None:
    os.environ["TMPDIR"] = tempfile.tempdir = scratch
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    line = Line(connection)
    try:
        # transformers makes torch import its compiler, which creates a folder for its cache.
        with tempfile.TemporaryDirectory() as cache:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
            report = work(line)
        line.report(report)
    except BadInput as error:
        problem = Event("refused", str(error))
    except DemoFailed as error:
        problem = Event("failed", str(error))
    except (EOFError, ConnectionError) as error:
        problem = Event("lost", first_line(error))
    except ow.OmniwireError as error:
        problem = Event("failed", f"{type(error).__name__}: {first_line(error)}")
    else:
        return
    with contextlib.suppress(ConnectionError):  # the parent may be what was lost
        line.send(problem)
