"""One request of a `RequestLifecycle`, and what must be true of it when it has ended."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from omniwire.contracts import (
    ChunkKind,
    OutputChunk,
    OutputKind,
    ProcessedRequest,
    RequestOutput,
    content_hash,
)
from omniwire.testing.comparison import assert_equal

FAILED: Final = "error"
"""The finish reason of a request that failed as a whole."""


def _lists() -> defaultdict[str, list[Any]]:
    return defaultdict(list)


@dataclass
class LiveRequest:
    """A request as its lifecycle knows it, from submission to end.

    Attributes:
        request: What was submitted.
        chunks: What was delivered while it ran, in order, under the id of `request`; of a
            broken request, the last one is the one that broke it.
        outputs: By run, what its client was sent.
        hashes: By run, the content hashes of the outputs when they were sent.
        spoiled: Modalities for which a chunk was delivered that they cannot take.
        is_broken: Whether a chunk was missing or came twice: the request must have failed.
        finish_reason: That of the last chunk; `"error"` if it is broken; None before the end,
            and after an abort.
    """

    request: ProcessedRequest
    chunks: list[OutputChunk] = field(default_factory=list)
    outputs: defaultdict[str, list[RequestOutput]] = field(default_factory=_lists)
    hashes: defaultdict[str, list[str]] = field(default_factory=_lists)
    spoiled: set[str] = field(default_factory=set)
    is_broken: bool = False
    finish_reason: str | None = None

    @property
    def request_id(self) -> str:
        """The id that the executor knows; each run has one of its own."""
        return self.request.request_id

    @property
    def num_delivered(self) -> int:
        """Chunks that were taken in."""
        return len(self.chunks) - self.is_broken

    def take_in(self, chunk: OutputChunk, spoiled: Iterable[str]) -> bool:
        """Note a chunk that is delivered; whether that ends the request."""
        self.is_broken = chunk.step != len(self.chunks)
        self.chunks.append(chunk)
        if self.is_broken:
            self.finish_reason = FAILED
            return True
        self.spoiled.update(spoiled)
        self.finish_reason = chunk.finish_reason
        return self.finish_reason is not None

    def note(self, run: str, output: RequestOutput) -> None:
        """Note what the client of a run is sent."""
        self.outputs[run].append(output)
        self.hashes[run].append(content_hash(output))


def check_run(request: LiveRequest, run: str, kind: OutputKind) -> None:
    """Check what the client of one run was sent, of a request that has ended."""
    outputs, name = request.outputs[run], f"{request.request_id}/{run}"
    _check_finished(request, outputs, name)
    _check_errors(request, outputs, name)
    hashes = [content_hash(output) for output in outputs]
    for number, (before, after) in enumerate(zip(request.hashes[run], hashes, strict=True)):
        if before != after:
            fail(name, f"output {number} as it was when it was sent", "it changed")
    if request.finish_reason is not None:
        delivered = request.chunks[: request.num_delivered]
        sent = [token for chunk in delivered for token in chunk.new_token_ids]
        counted = outputs if kind is OutputKind.DELTA else outputs[-1:]
        tokens = [token for output in counted for token in output.new_token_ids]
        if tokens != sent:
            fail(name, f"the tokens {sent}", f"{tokens}")


def _check_finished(request: LiveRequest, outputs: Sequence[RequestOutput], name: str) -> None:
    finished = [number for number, output in enumerate(outputs) if output.finished]
    if request.finish_reason is None:
        if finished:
            fail(name, "no finished output of an aborted request", f"output {finished[0]}")
        return
    if finished != [len(outputs) - 1]:
        got = f"{len(outputs)} outputs, finished ones {finished}"
        fail(name, "one finished output, the last", got)
    reason = outputs[-1].finish_reason
    if reason != request.finish_reason:
        fail(name, f"the finish reason {request.finish_reason!r}", f"{reason!r}")


def _check_errors(request: LiveRequest, outputs: Sequence[RequestOutput], name: str) -> None:
    if request.is_broken and "" not in outputs[-1].errors:
        fail(name, "an error of the request: a chunk is missing or repeated", "none")
    allowed = request.spoiled | ({""} if request.is_broken else set())
    for output in outputs:
        for key, error in output.errors.items():
            if key not in allowed:
                fail(name, f"no error of {key!r}, whose chunks were right", f"{error}")


def check_same_story(request: LiveRequest, runs: Mapping[str, OutputKind]) -> None:
    """Check that the last outputs of a request's runs agree, as far as they must."""
    lasts = {run: request.outputs[run][-1] for run in runs}
    if all(chunk.kind is ChunkKind.DELTA for chunk in request.chunks):
        # Else, a whole value that shrinks fails clients of deltas only.
        first = next(iter(runs))
        for run in runs:
            what = f"{request.request_id}: {run} unlike {first}: errors"
            _compare(what, sorted(lasts[run].errors), sorted(lasts[first].errors))
    whole = [run for run, kind in runs.items() if kind is not OutputKind.DELTA]
    for run in whole[1:]:
        for name in ("multimodal_outputs", "tensors", "metadata"):
            what = f"{request.request_id}: {run} unlike {whole[0]}: {name}"
            _compare(what, getattr(lasts[run], name), getattr(lasts[whole[0]], name))


def check_alone(request: LiveRequest, run: str, outputs_alone: Sequence[RequestOutput]) -> None:
    """Check that a client was sent what it is sent when nothing else ever runs."""
    what = f"{request.request_id}/{run}: the outputs unlike those of the request alone"
    _compare(what, tuple(request.outputs[run]), tuple(outputs_alone))


def fail(what: str, expected: str, got: str) -> NoReturn:
    """Report a broken law."""
    raise AssertionError(f"{what}: expected {expected}, got {got}")


def _compare(what: str, actual: object, expected: object) -> None:
    try:
        assert_equal(actual, expected)
    except AssertionError as error:
        raise AssertionError(f"{what}: {error}") from error
