"""`MultimodalOutputProcessor`: from the chunks of many running requests to what clients get."""

import math
import time
from collections.abc import Sequence
from typing import NoReturn

from omniwire.contracts.checks import raise_problems
from omniwire.contracts.describe import describe
from omniwire.contracts.errors import AccumulationError, OmniwireError, Problem, contract_error
from omniwire.contracts.guard import guarded
from omniwire.contracts.outputs import OutputChunk, OutputKind, OutputSpec, RequestOutput
from omniwire.runtime.output_state import OmniRequestState
from omniwire.runtime.output_stream import OutputStream, Reading
from omniwire.runtime.registry import ModalityRegistry, default_registry

_ONLY_CHUNKS = frozenset((OutputChunk,))

__all__ = ["MultimodalOutputProcessor", "OmniRequestState"]


class MultimodalOutputProcessor:
    """Accumulates the outputs of an engine's requests; lives as long as the engine.

    One thread at a time may use it; with `stream`, that is the thread of the event loop.

    Args:
        registry: The engine's handlers; None for the built-in ones.

    >>> import torch
    >>> from omniwire.contracts import OmniOutput
    >>> processor = MultimodalOutputProcessor()
    >>> processor.add_request("r1", "text+audio", output_kind=OutputKind.CUMULATIVE)
    >>> for step, size in enumerate((500, 300)):
    ...     output = OmniOutput(multimodal_outputs={"audio": torch.zeros(1, size)})
    ...     chunk = OutputChunk("r1", step, "text+audio", new_token_ids=[step], output=output)
    ...     (sent,) = processor.process_outputs([chunk])
    >>> sent.multimodal_outputs["audio"].shape, sent.new_token_ids == (0, 1), sent.finished
    (torch.Size([1, 800]), True, False)
    >>> (last,) = processor.process_outputs([OutputChunk("r1", 2, "text", finish_reason="stop")])
    >>> last.finished, processor.num_requests, processor.retained_bytes
    (True, 0, 0)
    """

    @guarded
    def __init__(self, registry: ModalityRegistry | None = None) -> None:
        self.registry = default_registry() if registry is None else registry
        self._states: dict[str, OmniRequestState] = {}
        self._deadlines: dict[str, tuple[float, float]] = {}  # by request: when, seconds given
        self._earliest = math.inf  # no deadline is before it
        self._readings: dict[str, Reading] = {}  # of the requests that are streamed
        self._num_late_chunks = 0

    @guarded
    def add_request(
        self,
        request_id: str,
        output_type: str,
        spec: OutputSpec | None = None,
        output_kind: OutputKind = OutputKind.FINAL_ONLY,
        deadline_s: float | int | None = None,  # noqa: PYI041  # to beartype an int is no float
        max_retained_bytes: int | None = None,
    ) -> None:
        """Start a request.

        Args:
            request_id: Of no running request; it may be used again once that has ended.
            output_type: The request's modalities, such as `"text+audio"`.
            spec: How values accumulate, by dotted key or modality.
            output_kind: What the client is sent while the request runs.
            deadline_s: Seconds from now after which the request fails, None for no limit.
            max_retained_bytes: Bytes of tensor memory held for the request beyond which it
                fails, None for no limit. What was emitted is the client's and does not count.

        Raises:
            ContractTypeError: An argument has the wrong type.
            ContractValueError: The id is empty or in use, the output type malformed, or the
                deadline or the bound negative.
            HandlerNotFoundError: A part of the output type is not registered.
        """
        problems: list[Problem] = []
        if request_id in self._states:
            expected = "an id that no running request has"
            problems.append(Problem(("request_id",), "duplicate", expected, describe(request_id)))
        if isinstance(deadline_s, bool):
            problems.append(Problem(("deadline_s",), "type", "a number", describe(deadline_s)))
        elif deadline_s is not None and not deadline_s >= 0:  # NaN is not
            expected = "at least 0 seconds"
            problems.append(Problem(("deadline_s",), "range", expected, describe(deadline_s)))
        raise_problems("MultimodalOutputProcessor", problems)
        state = OmniRequestState(
            request_id, output_type, self.registry, spec, output_kind, max_retained_bytes
        )
        self._states[request_id] = state
        if deadline_s is not None:
            end = time.monotonic() + deadline_s
            self._deadlines[request_id] = (end, deadline_s)
            self._earliest = min(self._earliest, end)

    # Not guarded: an engine calls it at every step, and what `guarded` would say is said below.
    def process_outputs(self, chunks: Sequence[OutputChunk]) -> list[RequestOutput]:
        """Take in the chunks of one engine step.

        Every tensor is copied: chunks, and the arena that they may live in, are free
        afterwards. A request whose deadline has passed ends first, so an empty list of chunks
        is a way to look at the deadlines.

        Args:
            chunks: In order, of any requests. A chunk of a request that is not running comes
                too late; it is counted and ignored.

        Returns:
            One output for each chunk that makes its request emit, in the same order, after
            those of requests that ran out of time. Tensors in them are read-only and never
            changed by later chunks. What fails is in `errors`: by modality, with everything
            else going on, or under `""` for the request, which has ended then. Outputs of a
            request that is streamed are not among them: they go to its stream.

        Raises:
            ContractTypeError: Something in `chunks` is not an `OutputChunk`.
        """
        is_sequence = type(chunks) is list or isinstance(chunks, Sequence)
        if not is_sequence or not _ONLY_CHUNKS.issuperset(map(type, chunks)):
            self._refuse(chunks)
        outputs = self._end_overdue() if self._deadlines else []
        for chunk in chunks:
            state = self._states.get(chunk.request_id)
            if state is None:
                self._num_late_chunks += 1
                continue
            if state.take_in(chunk):
                self._deliver(state, outputs)
        return outputs

    def _refuse(self, chunks: object) -> NoReturn:
        problems = [Problem(("chunks",), "type", "a sequence of OutputChunk", describe(chunks))]
        if isinstance(chunks, Sequence):
            problems = [
                Problem(("chunks", index), "type", "an OutputChunk", describe(chunk))
                for index, chunk in enumerate(chunks)
                if type(chunk) is not OutputChunk
            ]
        raise contract_error("MultimodalOutputProcessor", problems)

    def _deliver(self, state: OmniRequestState, outputs: list[RequestOutput]) -> None:
        """Emit what is due, or wake the client that will read it."""
        reading = self._readings.get(state.request_id)
        if reading is not None:
            reading.wake()
        else:
            outputs.append(state.emit())
        if state.finish_reason is not None:
            self._forget(state.request_id)

    def _end_overdue(self) -> list[RequestOutput]:
        now = time.monotonic()
        if now < self._earliest:
            return []
        overdue = [request_id for request_id, (end, _) in self._deadlines.items() if end <= now]
        outputs: list[RequestOutput] = []
        for request_id in overdue:
            self._expire(self._states[request_id], outputs)
        self._earliest = min((end for end, _ in self._deadlines.values()), default=math.inf)
        return outputs

    def _expire(self, state: OmniRequestState, outputs: list[RequestOutput]) -> None:
        _, given = self._deadlines[state.request_id]
        message = f"expected the request to end within {given:g} seconds, got no end"
        state.fail(AccumulationError(message, state.request_id))
        self._deliver(state, outputs)

    def seconds_to_deadline(self) -> float | None:
        """Seconds until the next deadline, 0.0 if it has passed, None if there is none.

        A server whose engine may go silent calls `process_outputs([])` then; requests that are
        streamed end by themselves.
        """
        ends = [end for end, _ in self._deadlines.values()]
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    @guarded
    def stream(self, request_id: str) -> OutputStream:
        """The request's outputs from now on, as they come.

        To be called right after `add_request`: what came before was given by `process_outputs`.

        `async for output in processor.stream("r1")` ends after the finished output, or without
        one when the request is aborted; what fails is in the outputs' `errors`, never raised.
        A deadline ends the stream on time, also when no chunk comes.

        A client that is slower than the engine finds everything it missed in its next output:
        all new values under `DELTA`, the newest value under `CUMULATIVE`. There is no queue.
        What was not read yet is in `retained_bytes`, and `max_retained_bytes` bounds it: a
        client that falls too far behind fails its request. `drain` lets the engine wait instead.
        The last output belongs to the iterator: the processor is done with a request that ended.

        Cancelling the iteration, closing the iterator or dropping it aborts the request, since
        nobody is left to read it. Where the loop's body may raise, `contextlib.aclosing` closes
        the iterator at once.

        Args:
            request_id: A running request that is not streamed yet.

        Raises:
            ContractValueError: There is no such request.
        """
        problems: list[Problem] = []
        state = self._states.get(request_id)
        if state is None:
            expected = "the id of a running request"
            problems.append(Problem(("request_id",), "missing", expected, describe(request_id)))
        elif request_id in self._readings:
            expected = "a request that is not streamed yet"
            problems.append(Problem(("request_id",), "duplicate", expected, describe(request_id)))
        raise_problems("MultimodalOutputProcessor", problems)
        assert state is not None
        state.emits_later = True
        reading = self._readings[request_id] = Reading()
        if self._deadlines.get(request_id) is not None:
            reading.end = self._deadlines[request_id][0]
        return OutputStream(state, reading, self._end_streamed, self._abandon)

    def _end_streamed(self, state: OmniRequestState) -> None:
        """A streamed request's deadline has come."""
        if self._states.get(state.request_id) is state:
            self._expire(state, [])

    def _abandon(self, state: OmniRequestState) -> None:
        """Nobody reads a streamed request any more."""
        if self._states.get(state.request_id) is state:
            self.abort(state.request_id)

    @guarded
    async def drain(self, request_id: str) -> None:
        """Wait until the client of a streamed request has read all there is, or has gone.

        An engine that holds back the request's next step until then never holds more for a
        slow client than one step. It returns at once for a request that is not streamed.
        """
        reading = self._readings.get(request_id)
        if reading is not None:
            await reading.read.wait()

    @guarded
    def abort(self, request_id: str) -> None:
        """End a request without output and free what it holds; an unknown id is ignored."""
        state = self._states.get(request_id)
        reading = self._readings.get(request_id)
        self._forget(request_id)
        if state is not None:
            state.release()
        if reading is not None:
            reading.stop()

    @guarded
    def fail(self, request_id: str, error: OmniwireError) -> RequestOutput | None:
        """End a request with an error of the engine: it was refused, or its executor is gone.

        Args:
            request_id: A running request; an unknown id is ignored.
            error: Under `""` in the `errors` of the request's last output.

        Returns:
            That output, with what was not emitted yet and the finish reason `"error"`; None for
            an unknown id, or if the request is streamed and its stream ends with that output.
        """
        state = self._states.get(request_id)
        if state is None:
            return None
        state.fail(error)
        outputs: list[RequestOutput] = []
        self._deliver(state, outputs)
        return outputs[0] if outputs else None

    def _forget(self, request_id: str) -> None:
        self._states.pop(request_id, None)
        self._deadlines.pop(request_id, None)
        self._readings.pop(request_id, None)

    @property
    def num_requests(self) -> int:
        """Running requests."""
        return len(self._states)

    @property
    def retained_bytes(self) -> int:
        """Bytes of tensor memory held for running requests."""
        return sum(state.retained_bytes for state in self._states.values())

    @property
    def num_late_chunks(self) -> int:
        """Chunks that came for no running request so far."""
        return self._num_late_chunks
