"""The parent's part: start processes, follow them, and let nothing hang or survive."""

import contextlib
import dataclasses
import multiprocessing
import multiprocessing.resource_tracker
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType
from typing import Final

import cattrs

from omniwire.demo.children import SOCKET_NAME, executor_main, processor_main, ray_main
from omniwire.demo.events import Event, read_event
from omniwire.demo.files import MediaFiles
from omniwire.demo.leftovers import left_behind, take_snapshot, wait_for_users
from omniwire.demo.problems import BadInput, DemoFailed
from omniwire.demo.reports import ExecutorReport, Outcome, ProcessorReport

NUM_STEPS: Final = {"processes": 12, "ray": 7}
"""Steps that each engine announces."""

SILENCE_S: Final = 300.0
"""Seconds without a word from any process after which the run counts as hung."""

_EXIT_S: Final = 60.0
_MAX_SOCKET_BYTES: Final = 107

_Bodies = Mapping[str, tuple[Callable[..., None], tuple[object, ...]]]
"""By name, what a process runs, and what it is given after its line and the scratch folder."""


def run_processes(
    files: MediaFiles, save: str | None, on_event: Callable[[Event], None]
) -> Outcome:
    """Run a processor and an executor process to their end.

    Args:
        files: The media.
        save: Where to save the first request, if anywhere.
        on_event: Called with every `begin`, `step` and `detail`.

    Raises:
        BadInput: The input cannot be used.
        DemoFailed: A process died, hung or met an error.
    """
    bodies: _Bodies = {
        "processor": (processor_main, (files, save)),
        "executor": (executor_main, ()),
    }
    reports, left = _run(bodies, on_event)
    return Outcome(
        [cattrs.structure(reports["processor"], ProcessorReport)],
        [cattrs.structure(reports["executor"], ExecutorReport)],
        left,
    )


def run_ray(files: MediaFiles, save: str | None, on_event: Callable[[Event], None]) -> Outcome:
    """Run several processor and executor actors of a local Ray to their end.

    Ray is started by a process of its own, since it leaves threads, descriptors and signal
    handlers behind. Arguments and errors as for `run_processes`.
    """
    reports, left = _run({"Ray": (ray_main, (files, save))}, on_event)
    outcome = cattrs.structure(reports["Ray"], Outcome)
    return dataclasses.replace(outcome, left=outcome.left + left)


def _run(
    bodies: _Bodies, on_event: Callable[[Event], None]
) -> tuple[dict[str, dict[str, object]], list[str]]:
    """Run processes to their end; what each reported, and what they left behind."""
    # Spawning starts multiprocessing's own tracker, which lives as long as this process.
    multiprocessing.resource_tracker.ensure_running()
    before = take_snapshot()
    scratch = tempfile.mkdtemp(prefix="omniwire-")
    try:
        if len(os.fsencode(Path(scratch, SOCKET_NAME))) > _MAX_SOCKET_BYTES:
            raise BadInput(f"{tempfile.gettempdir()}: too long a name of the temporary folder")
        with _terminable():
            reports = _run_in(scratch, bodies, on_event)
        return reports, left_behind(before, take_snapshot(), scratch)
    finally:
        for pid in wait_for_users(scratch):  # none, unless Ray was broken off
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(scratch)


def _run_in(
    scratch: str,
    bodies: _Bodies,
    on_event: Callable[[Event], None],
) -> dict[str, dict[str, object]]:
    context = multiprocessing.get_context("spawn")
    pipes = {name: context.Pipe(duplex=False) for name in bodies}
    processes = {
        name: context.Process(target=main, args=(pipes[name][1], scratch, *args), daemon=True)
        for name, (main, args) in bodies.items()
    }
    started: dict[str, SpawnProcess] = {}
    try:
        with _interrupts_blocked():  # children inherit it: the parent ends them, in silence
            for name, process in processes.items():
                process.start()
                started[name] = process
        # Only the children hold these now, so that their end is noticed.
        _close([end for _, end in pipes.values()])
        lines = {name: line for name, (line, _) in pipes.items()}
        reports = _follow(lines, started, on_event)
        for name, process in started.items():
            process.join(_EXIT_S)
            if process.exitcode != 0:
                raise DemoFailed(_how_it_ended(name, process))
        return reports
    finally:
        _end(started)
        _close([end for pipe in pipes.values() for end in pipe])


def _follow(
    lines: dict[str, Connection],
    processes: dict[str, SpawnProcess],
    on_event: Callable[[Event], None],
) -> dict[str, dict[str, object]]:
    """Read all lines until each process has reported, or one tells of a problem."""
    reports: dict[str, dict[str, object]] = {}
    lost: list[str] = []
    waiting = {connection: name for name, connection in lines.items()}
    while len(reports) + len(lost) < len(lines):
        ready = wait(list(waiting), SILENCE_S)
        if not ready:
            raise DemoFailed(f"no word from any process for {SILENCE_S:.0f} seconds")
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


def _close(pipes: Sequence[Connection]) -> None:
    for pipe in pipes:
        pipe.close()


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Put Ctrl-C off to the end of the block."""
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


@contextmanager
def _terminable() -> Iterator[None]:
    """Let a termination request unwind this process, so that it ends its children first."""

    def unwind(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, unwind)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
