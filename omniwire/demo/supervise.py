"""The parent's part: start both processes, follow them, and let nothing hang or survive."""

import multiprocessing
import multiprocessing.resource_tracker
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import FrameType
from typing import Final

import cattrs

from omniwire.demo.children import executor_main, processor_main
from omniwire.demo.events import Event, read_event
from omniwire.demo.files import MediaFiles
from omniwire.demo.leftovers import left_behind, take_snapshot
from omniwire.demo.problems import BadInput, DemoFailed
from omniwire.demo.reports import ExecutorReport, Outcome, ProcessorReport

NUM_STEPS: Final = 12
"""Steps that both processes announce together."""

SILENCE_S: Final = 300.0
"""Seconds without a word from either process after which the run counts as hung."""

_EXIT_S: Final = 10.0


def run_processes(
    files: MediaFiles, save: str | None, on_event: Callable[[Event], None]
) -> Outcome:
    """Run the processor and the executor process to their end.

    Args:
        files: The media.
        save: Where to save the first request, if anywhere.
        on_event: Called with every `begin`, `step` and `detail`.

    Raises:
        BadInput: The input cannot be used.
        DemoFailed: A process died, hung or met an error.
    """
    # Spawning starts multiprocessing's own tracker, which lives as long as this process.
    multiprocessing.resource_tracker.ensure_running()
    before = take_snapshot()
    scratch = tempfile.mkdtemp(prefix="omniwire-demo-")
    try:
        with terminable():
            reports = _run(files, save, scratch, on_event)
        left = left_behind(before, take_snapshot(), scratch)
    finally:
        shutil.rmtree(scratch)
    return Outcome(
        [cattrs.structure(reports["processor"], ProcessorReport)],
        [cattrs.structure(reports["executor"], ExecutorReport)],
        left,
    )


def _run(
    files: MediaFiles,
    save: str | None,
    scratch: str,
    on_event: Callable[[Event], None],
) -> dict[str, dict[str, object]]:
    context = multiprocessing.get_context("spawn")
    processor_data, executor_data = context.Pipe()
    processor_line, processor_end = context.Pipe(duplex=False)
    executor_line, executor_end = context.Pipe(duplex=False)
    processes = {
        "processor": context.Process(
            target=processor_main,
            args=(processor_data, processor_end, scratch, files, save),
            daemon=True,
        ),
        "executor": context.Process(
            target=executor_main, args=(executor_data, executor_end, scratch), daemon=True
        ),
    }
    started: dict[str, SpawnProcess] = {}
    try:
        with _interrupts_blocked():  # children inherit it: the parent ends them, in silence
            for name, process in processes.items():
                process.start()
                started[name] = process
        # Only the children hold these now, so that their end is noticed.
        for connection in (processor_data, executor_data, processor_end, executor_end):
            connection.close()
        lines = {"processor": processor_line, "executor": executor_line}
        reports = _follow(lines, started, on_event)
        for name, process in started.items():
            process.join(_EXIT_S)
            if process.exitcode != 0:
                raise DemoFailed(_how_it_ended(name, process))
        return reports
    finally:
        _end(started)
        for connection in (
            processor_data, executor_data, processor_end, executor_end,
            processor_line, executor_line,
        ):  # fmt: skip
            connection.close()


def _follow(
    lines: dict[str, Connection],
    processes: dict[str, SpawnProcess],
    on_event: Callable[[Event], None],
) -> dict[str, dict[str, object]]:
    """Read both lines until each process has reported, or one tells of a problem."""
    reports: dict[str, dict[str, object]] = {}
    lost: list[str] = []
    waiting = {connection: name for name, connection in lines.items()}
    while len(reports) + len(lost) < len(lines):
        ready = wait(list(waiting), SILENCE_S)
        if not ready:
            raise DemoFailed(f"no word from either process for {SILENCE_S:.0f} seconds")
        for connection in ready:
            assert isinstance(connection, Connection)
            name = waiting[connection]
            try:
                event = read_event(connection)
            except (EOFError, ConnectionError) as error:
                processes[name].join(_EXIT_S)
                raise DemoFailed(_how_it_ended(name, processes[name])) from error
            if event.kind == "refused":
                raise BadInput(event.text)
            if event.kind == "failed":
                raise DemoFailed(f"the {name} process: {event.text}")
            if event.kind == "report":
                reports[name] = event.report
                del waiting[connection]
            elif event.kind == "lost":
                # The other process is the cause, and its own line tells more.
                lost.append(f"the {name} process lost the other one: {event.text}")
                del waiting[connection]
            else:
                on_event(event)
    if lost:
        raise DemoFailed("; ".join(lost))
    return reports


def _how_it_ended(name: str, process: SpawnProcess) -> str:
    code = process.exitcode
    if code is None:
        return f"the {name} process closed its line and does not end"
    if code < 0:
        return f"the {name} process was killed by {signal.Signals(-code).name}"
    return f"the {name} process ended early with exit code {code}"


def _end(processes: dict[str, SpawnProcess]) -> None:
    for process in processes.values():
        if process.is_alive():
            process.terminate()
    for process in processes.values():
        process.join(_EXIT_S)
        if process.is_alive():
            process.kill()
            process.join()
        process.close()


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Put Ctrl-C off to the end of the block."""
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


@contextmanager
def terminable() -> Iterator[None]:
    """Let a termination request unwind this process, so that it ends its children first."""

    def unwind(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, unwind)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
