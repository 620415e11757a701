"""Entry points of the spawned processes; light to import, since the parent does so too."""

import contextlib
import os
import secrets
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import omniwire as ow
from omniwire.demo.events import Event, Progress, report_event, send_event
from omniwire.demo.files import MediaFiles
from omniwire.demo.problems import BadInput, DemoFailed, first_line
from omniwire.demo.reports import ExecutorReport, Outcome, ProcessorReport

SOCKET_NAME: Final = "handoff"


def processor_main(line: Connection, scratch: str, files: MediaFiles, save: str | None) -> None:
    """Body of the processor process.

    Args:
        line: The writing end of its line to the parent.
        scratch: Folder for temporary files, and for the socket at which the executor listens.
        files: The media.
        save: Where to save the first request.
    """

    def work(progress: Progress) -> ProcessorReport:
        from omniwire.demo.media import load_media  # noqa: PLC0415  # not for the parent

        with progress.timed("load and decode the media"):
            media = load_media(files)
        progress.begin()
        progress.step("importing torch and transformers")
        # Bad media is refused above, before this import of transformers takes seconds.
        from omniwire.demo.processor import Processor  # noqa: PLC0415

        processor = Processor(0, media, save, progress)
        requests = processor.prepare()
        progress.step("waiting for the executor")
        with ow.Channel.connect(Path(scratch, SOCKET_NAME)) as channel:
            channel.recv()
            progress.step("sending the requests")
            with progress.timed("send the requests"):
                for request in requests:
                    channel.send(request)
            while not processor.is_done:
                processor.take(channel.recv())
            progress.step("outputs complete")
            stats = channel.stats()
            sizes = {"shared memory": "arena_bytes", "copied into it": "copied_bytes"}
            return processor.report({what: stats[key] for what, key in sizes.items()})

    _run(line, scratch, work)


def executor_main(line: Connection, scratch: str) -> None:
    """Body of the executor process; arguments as for `processor_main`."""

    def work(progress: Progress) -> ExecutorReport:
        from omniwire.demo.agreement import NUM_REQUESTS  # noqa: PLC0415  # not for the parent
        from omniwire.demo.executor import BUDGET, Executor  # noqa: PLC0415

        executor = Executor(0, progress)
        with ow.ChannelServer(Path(scratch, SOCKET_NAME)) as server, server.accept() as channel:
            channel.send(BUDGET)  # the processor waits for it before it sends
            requests = [channel.recv() for _ in range(NUM_REQUESTS)]
            for chunk in executor.serve(requests):
                channel.send(chunk)
            return executor.report()

    _run(line, scratch, work)


def ray_main(line: Connection, scratch: str, files: MediaFiles, save: str | None) -> None:
    """Body of the process that drives Ray; arguments as for `processor_main`."""

    def work(progress: Progress) -> Outcome:
        from omniwire.demo.media import load_media  # noqa: PLC0415  # not for the parent

        media = load_media(files)
        progress.begin()
        progress.step("importing Ray")
        os.environ |= {
            "RAY_USAGE_STATS_ENABLED": "0",
            # As on the systems that it is named after: Ray listens on this machine only.
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
        }
        from omniwire.demo.ray_engine import run_actors  # noqa: PLC0415

        return run_actors(media, save, scratch, progress)

    _run(line, scratch, work)


def _run(
    connection: Connection,
    scratch: str,
    work: Callable[[Progress], ProcessorReport | ExecutorReport | Outcome],
) -> None:
    os.environ["TMPDIR"] = tempfile.tempdir = scratch
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    try:
        # transformers makes torch import its compiler, which creates a folder for its cache.
        with tempfile.TemporaryDirectory() as cache:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
            report = work(Progress(lambda event: send_event(connection, event)))
        outcome = report_event(report)
    except BadInput as error:
        outcome = Event("refused", str(error))
    except DemoFailed as error:
        outcome = Event("failed", str(error))
    except (EOFError, ConnectionError) as error:
        outcome = Event("lost", first_line(error))
    except ow.OmniwireError as error:
        outcome = Event("failed", f"{type(error).__name__}: {first_line(error)}")
    with contextlib.suppress(ConnectionError):  # the parent may be what was lost
        send_event(connection, outcome)
