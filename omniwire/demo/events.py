"""What the spawned processes tell the parent: progress, problems and, at the end, a report.

This is the demo's own control line, JSON over a pipe. The data path is not here: requests
and outputs travel between processor and executor as omniwire contracts.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from typing import Literal

from omniwire.demo.reports import ExecutorReport, Outcome, ProcessorReport, Timing

Kind = Literal["begin", "step", "detail", "report", "refused", "failed", "lost"]


@dataclass(frozen=True)
class Event:
    """One message of a process to the parent.

    Attributes:
        kind: `begin` (the input can be used), `step` (the next piece of work begins), `detail`
            (where the step is), `report` (finished well), `refused` (the input cannot be
            used), `failed` (something broke) or `lost` (the other process went away).
        text: What is being done, or what is wrong, on one line.
        report: For `report`, a `ProcessorReport`, `ExecutorReport` or `Outcome` as plain values.
    """

    kind: Kind
    text: str = ""
    report: dict[str, object] = field(default_factory=dict)


class Progress:
    """Where a processor or an executor is, and how long each of its works took.

    Args:
        tell: Called with every event.
    """

    def __init__(self, tell: Callable[[Event], None] = lambda _event: None) -> None:
        self._tell = tell
        self.timings: list[Timing] = []

    def begin(self) -> None:
        """Announce that the input is good."""
        self._tell(Event("begin"))

    def step(self, text: str) -> None:
        """Announce what is done now."""
        self._tell(Event("step", text))

    def detail(self, text: str) -> None:
        """Announce where the current step is."""
        self._tell(Event("detail", text))

    @contextmanager
    def timed(self, work: str) -> Iterator[None]:
        """Add the wall time of a `with` block to `timings`."""
        started = time.perf_counter()
        yield
        self.timings.append(Timing(work, time.perf_counter() - started))


def report_event(report: ProcessorReport | ExecutorReport | Outcome) -> Event:
    """The last event of a process that finished well."""
    return Event("report", report=asdict(report))


def send_event(connection: Connection, event: Event) -> None:
    """Tell the parent, on a process's end of its line."""
    connection.send_bytes(json.dumps(asdict(event)).encode())


def read_event(connection: Connection) -> Event:
    """The next event on the parent's end of a line.

    Raises:
        EOFError: The process closed its end, as it does when it exits.
    """
    return Event(**json.loads(connection.recv_bytes()))
