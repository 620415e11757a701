"""What the two processes tell the parent: progress, problems and, at the end, a report.

This is the demo's own control line, JSON over a pipe. The data path is not here: requests
and outputs travel between the two processes as omniwire messages.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from typing import Final, Literal

Kind = Literal["begin", "step", "detail", "report", "refused", "failed", "lost"]

NUM_STEPS: Final = 12
"""Steps that both processes announce together."""


@dataclass(frozen=True)
class Event:
    """One message of a process to the parent.

    Attributes:
        kind: `begin` (the input can be used), `step` (one of `NUM_STEPS` begins), `detail`
            (where the step is), `report` (finished well), `refused` (the input cannot be
            used), `failed` (something broke) or `lost` (the other process went away).
        text: What is being done, or what is wrong, on one line.
        report: For `report`, a `ProcessorReport` or `ExecutorReport` as plain values.
    """

    kind: Kind
    text: str = ""
    report: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class MediaRow:
    """One media file: its name, what was decoded and how many items it became."""

    name: str
    decoded: str
    num_items: int


@dataclass(frozen=True)
class FieldRow:
    """One field of a message: where it is, its type and shape, and its payload in bytes."""

    field: str
    dtype: str
    shape: list[int]
    num_bytes: int


@dataclass(frozen=True)
class IterationRow:
    """One encoder iteration: the items, their cost and rows, and how their input was cut out."""

    items: list[str]
    encoder_tokens: int
    embedding_rows: int
    copied_bytes: int
    viewed_bytes: int


@dataclass(frozen=True)
class Timing:
    """How long one piece of work took."""

    work: str
    seconds: float


@dataclass(frozen=True)
class ProcessorReport:
    """What the processor process saw.

    Attributes:
        pid: Its process id.
        media: The files.
        sent_fields: The fields of the request.
        sent_bytes: Size of the request's message.
        sent_hash: Content hash of the request as it was built.
        echo_equal: Whether the request that the executor sent back equals it.
        output_fields: The fields of the accumulated output.
        output_hash: Content hash of the accumulated output.
        num_chunks: Output chunks received.
        chunk_bytes: Size of their messages together.
        output_errors: The errors on the output, one line each.
        retained_bytes: What the output processor still holds at the end.
        saved_to: Where the request was saved, or empty.
        timings: In order.
    """

    pid: int
    media: list[MediaRow]
    sent_fields: list[FieldRow]
    sent_bytes: int
    sent_hash: str
    echo_equal: bool
    output_fields: list[FieldRow]
    output_hash: str
    num_chunks: int
    chunk_bytes: int
    output_errors: list[str]
    retained_bytes: int
    saved_to: str
    timings: list[Timing]


@dataclass(frozen=True)
class ExecutorReport:
    """What the executor process saw.

    Attributes:
        pid: Its process id.
        received_hash: Content hash of the request as it arrived.
        tensor_bytes: Tensor bytes of the request.
        aliased_bytes: How many of them lie in the received buffer itself, not in a copy.
        budget_encoder_tokens: Encoder tokens allowed in an iteration.
        iterations: The encoder iterations.
        max_difference: Largest difference between item-by-item and full-request rows.
        tolerance: What it may be.
        num_windows: Prefill windows.
        num_window_views: How many of them needed no copy of embedding rows.
        windows_equal: Whether the windows' rows, one after the other, are all rows.
        kept_bytes: Payload bytes that generation still held.
        streamed_hash: Content hash of everything that was streamed back.
        timings: In order.
    """

    pid: int
    received_hash: str
    tensor_bytes: int
    aliased_bytes: int
    budget_encoder_tokens: int
    iterations: list[IterationRow]
    max_difference: float
    tolerance: float
    num_windows: int
    num_window_views: int
    windows_equal: bool
    kept_bytes: int
    streamed_hash: str
    timings: list[Timing]


class Line:
    """A process's end of its line to the parent; lives as long as the process.

    Args:
        connection: The writing end of a pipe.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.timings: list[Timing] = []

    def send(self, event: Event) -> None:
        """Tell the parent."""
        self._connection.send_bytes(json.dumps(asdict(event)).encode())

    def begin(self) -> None:
        """Announce that the input is good."""
        self.send(Event("begin"))

    def step(self, text: str) -> None:
        """Announce what is done now."""
        self.send(Event("step", text))

    def detail(self, text: str) -> None:
        """Announce where the current step is."""
        self.send(Event("detail", text))

    @contextmanager
    def timed(self, work: str) -> Iterator[None]:
        """Add the wall time of a `with` block to `timings`."""
        started = time.perf_counter()
        yield
        self.timings.append(Timing(work, time.perf_counter() - started))

    def report(self, report: ProcessorReport | ExecutorReport) -> None:
        """Tell the parent that all went well, and what was seen."""
        self.send(Event("report", report=asdict(report)))


def read_event(connection: Connection) -> Event:
    """The next event on the parent's end of a line.

    Raises:
        EOFError: The process closed its end, as it does when it exits.
    """
    return Event(**json.loads(connection.recv_bytes()))
