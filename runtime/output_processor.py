"""`MultimodalOutputProcessor`: from the chunks of many running requests to what clients get."""

import time
from collections.abc import Sequence

from omniwire.contracts.checks import raise_problems
from omniwire.contracts.describe import describe
from omniwire.contracts.errors import AccumulationError, Problem, contract_error
from omniwire.contracts.guard import guarded
from omniwire.contracts.outputs import OutputChunk, OutputKind, OutputSpec, RequestOutput
from omniwire.runtime.output_state import OmniRequestState
from omniwire.runtime.registry import ModalityRegistry, default_registry

_ONLY_CHUNKS = frozenset((OutputChunk,))

__all__ = ["MultimodalOutputProcessor", "OmniRequestState"]


class MultimodalOutputProcessor:
    """Accumulates the outputs of an engine's requests; lives as long as the engine.

    One thread at a time may use it.

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
        self._num_late_chunks = 0

    @guarded
    def add_request(
        self,
        request_id: str,
        output_type: str,
        spec: OutputSpec | None = None,
        output_kind: OutputKind = OutputKind.FINAL_ONLY,
        deadline_s: float | int | None = None,  # noqa: PYI041  # to beartype an int is no float
    ) -> None:
        """Start a request.

        Args:
            request_id: Of no running request; it may be used again once that has ended.
            output_type: The request's modalities, such as `"text+audio"`.
            spec: How values accumulate, by dotted key or modality.
            output_kind: What the client is sent while the request runs.
            deadline_s: Seconds from now after which the request fails, None for no limit.

        Raises:
            ContractTypeError: An argument has the wrong type.
            ContractValueError: The id is empty or in use, the output type malformed, or the
                deadline negative.
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
        state = OmniRequestState(request_id, output_type, self.registry, spec, output_kind)
        self._states[request_id] = state
        if deadline_s is not None:
            self._deadlines[request_id] = (time.monotonic() + deadline_s, deadline_s)

    @guarded
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
            else going on, or under `""` for the request, which has ended then.

        Raises:
            ContractTypeError: Something in `chunks` is not an `OutputChunk`.
        """
        if not _ONLY_CHUNKS.issuperset(map(type, chunks)):
            problems = [
                Problem(("chunks", index), "type", "an OutputChunk", describe(chunk))
                for index, chunk in enumerate(chunks)
                if type(chunk) is not OutputChunk
            ]
            raise contract_error("MultimodalOutputProcessor", problems)
        outputs = self._end_overdue() if self._deadlines else []
        for chunk in chunks:
            state = self._states.get(chunk.request_id)
            if state is None:
                self._num_late_chunks += 1
                continue
            output = state.advance(chunk)
            if output is not None:
                outputs.append(output)
                if output.finished:
                    self._forget(chunk.request_id)
        return outputs

    def _end_overdue(self) -> list[RequestOutput]:
        now = time.monotonic()
        overdue = [(name, given) for name, (end, given) in self._deadlines.items() if end <= now]
        outputs = []
        for request_id, given in overdue:
            message = f"expected the request to end within {given:g} seconds, got no end"
            error = AccumulationError(message, request_id)
            outputs.append(self._states[request_id].fail(error))
            self._forget(request_id)
        return outputs

    @guarded
    def abort(self, request_id: str) -> None:
        """End a request without output and free what it holds; an unknown id is ignored."""
        self._forget(request_id)

    def _forget(self, request_id: str) -> None:
        self._states.pop(request_id, None)
        self._deadlines.pop(request_id, None)

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
