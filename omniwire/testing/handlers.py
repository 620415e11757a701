"""`assert_handler_conforms`: what the accumulation of outputs expects of a modality handler."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from omniwire.contracts import (
    ContractError,
    OmniOutput,
    OmniwireError,
    OutputChunk,
    OutputKind,
    RequestOutput,
    content_hash,
)
from omniwire.contracts.describe import describe
from omniwire.runtime import (
    ModalityHandler,
    ModalityRegistry,
    MultimodalOutputProcessor,
    TensorHandler,
)
from omniwire.testing.comparison import assert_equal

_TEXT: Final = "text"
_SAMPLE_SHAPES: Final = ((1, 3, 4, 4), (2, 3), (1, 2, 3, 4, 4), (2, 3, 4), (5,))
_SAMPLE_DTYPES: Final = (torch.float32, torch.int64)
_REFUSALS: Final = (OmniwireError, ValueError, TypeError, RuntimeError)


def assert_handler_conforms(handler: ModalityHandler) -> None:
    """Check a modality handler with small tensors, of whichever rank it takes.

    It can be registered; it finds nothing in an empty output; consolidating changes nothing,
    gives a tensor or a tuple of tensors that `validate` accepts and that later chunks leave
    alone; two requests do not disturb each other; incoming tensors and outputs stay as they
    are; a chunk that it refuses changes nothing. As part of a processor, whole requests of
    every `OutputKind` end without an error, and the last value under `CUMULATIVE` is that of
    `FINAL_ONLY`; of a `TensorHandler`, the values under `DELTA` make the same one. A handler
    for `"text"` finds nothing in any output, and is not asked to accumulate.

    Args:
        handler: The handler.

    Raises:
        AssertionError: The handler breaks a rule.

    >>> from omniwire.runtime.handlers import TensorHandler
    >>> class DepthHandler(TensorHandler):
    ...     modality = "depth"
    ...     keys = ("depth", "depth_map")
    ...     dim = 0
    >>> assert_handler_conforms(DepthHandler())
    """
    try:
        ModalityRegistry().register(handler)
    except ContractError as error:
        raise AssertionError(str(error)) from error
    _check_extraction(handler)
    if handler.modality != _TEXT:
        chunks = _samples_for(handler)
        _check_accumulation(handler, chunks)
        _check_refusals(handler, chunks)
        _check_requests(handler, chunks)


def _check_extraction(handler: ModalityHandler) -> None:
    name = f"{handler.modality}.extract"
    found = handler.extract(OmniOutput())
    if found is not None:
        raise AssertionError(f"{name}: expected None for an empty output, got {describe(found)}")
    keys = handler.keys if isinstance(handler, TensorHandler) else (handler.modality,)
    output = OmniOutput(multimodal_outputs={keys[0]: torch.ones(1, 3, 4, 4)})
    before = content_hash(output)
    found = handler.extract(output)
    if content_hash(output) != before:
        raise AssertionError(f"{name}: expected the output unchanged, got another")
    if handler.modality == _TEXT and found is not None:
        raise AssertionError(f"{name}: expected None, got {describe(found)}")
    if not isinstance(found, torch.Tensor | tuple | list | Mapping | None):
        expected = "a tensor, a tuple of tensors, a mapping or None"
        raise AssertionError(  # noqa: TRY004  # an assertion of the kit
            f"{name}: expected {expected}, got {describe(found)}"
        )


def _samples_for(handler: ModalityHandler) -> list[torch.Tensor]:
    """Three chunks of the first shape and data type that the handler takes."""
    refusals: list[str] = []
    for dtype in _SAMPLE_DTYPES:
        for shape in _SAMPLE_SHAPES:
            chunks = [torch.full(shape, value).to(dtype) for value in (1, 2, 3)]
            try:
                handler.consolidate(handler.accumulate(None, chunks[0].clone()))
            except _REFUSALS as error:
                refusals.append(f"{describe(chunks[0])}: {error}")
            else:
                return chunks
    tried = "\n  ".join(refusals)
    raise AssertionError(f"{handler.modality}.accumulate: expected to take one of\n  {tried}")


def _check_accumulation(handler: ModalityHandler, chunks: Sequence[torch.Tensor]) -> None:
    name = handler.modality
    values = [_accumulate(handler, chunks[:count]) for count in range(1, len(chunks) + 1)]
    for value in values:
        parts = value if type(value) is tuple else (value,)
        if not parts or not all(isinstance(part, torch.Tensor) for part in parts):
            expected = "a tensor or a tuple of tensors"
            raise AssertionError(f"{name}.consolidate: expected {expected}, got {describe(value)}")
        verdict: object = handler.validate(value)
        if verdict is not True:
            got = describe(verdict)
            raise AssertionError(f"{name}.validate: expected True for {describe(value)}, got {got}")
    # Two requests in turns, with an intermediate value of the first.
    one = handler.accumulate(None, chunks[0].clone())
    other = handler.accumulate(None, chunks[1].clone())
    early = handler.consolidate(one)
    _compare(f"{name}.consolidate", early, values[0])
    for chunk in chunks[1:]:
        incoming = chunk.clone()
        one = handler.accumulate(one, incoming)
        _compare(f"{name}.accumulate: the incoming tensor", incoming, chunk)
    _compare(f"{name}.consolidate: a value given out before", early, values[0])
    _compare(f"{name}.consolidate: interleaved requests", handler.consolidate(one), values[-1])
    _compare(f"{name}.consolidate: called twice", handler.consolidate(one), values[-1])
    alone = _accumulate(handler, chunks[1:2])
    _compare(f"{name}.consolidate: interleaved requests", handler.consolidate(other), alone)


def _check_refusals(handler: ModalityHandler, chunks: Sequence[torch.Tensor]) -> None:
    """A chunk unlike the first is taken or refused; if refused, nothing has changed."""
    first = chunks[0]
    for other in (first.unsqueeze(0), first.to(torch.int16), first.repeat(*[2] * first.ndim)):
        accumulated = handler.accumulate(None, first.clone())
        try:
            handler.accumulate(accumulated, other.clone())
        except _REFUSALS:
            what = f"{handler.modality}.accumulate: the value after a refused {describe(other)}"
            try:
                left = handler.consolidate(accumulated)
            except _REFUSALS as error:
                raise AssertionError(f"{what}: {error}") from error
            _compare(what, left, _accumulate(handler, [first]))


class _Fed:
    """A handler that is given its chunks under its modality's name, whatever keys it reads."""

    def __init__(self, handler: ModalityHandler) -> None:
        self.modality = handler.modality
        self.accumulate = handler.accumulate
        self.consolidate = handler.consolidate
        self.validate = handler.validate

    def extract(self, output: OmniOutput) -> object | None:
        return output.multimodal_outputs.get(self.modality)


def _check_requests(handler: ModalityHandler, chunks: Sequence[torch.Tensor]) -> None:
    """Whole requests, one for each `OutputKind`, in a processor."""
    name = handler.modality
    values = {}
    for kind in OutputKind:
        emitted = []
        for output in _run(handler, chunks, kind):
            for error in output.errors.values():
                raise AssertionError(f"{name}: a request of {kind.name} failed: {error}")
            if name in output.multimodal_outputs:
                emitted.append(output.multimodal_outputs[name])
        if not emitted:
            raise AssertionError(f"{name}: expected a request of {kind.name} to emit, got nothing")
        values[kind] = emitted
    final = values[OutputKind.FINAL_ONLY][-1]
    _compare(f"{name}: FINAL_ONLY", final, _accumulate(handler, chunks))
    _compare(f"{name}: the last of CUMULATIVE", values[OutputKind.CUMULATIVE][-1], final)
    if isinstance(handler, TensorHandler) and isinstance(final, torch.Tensor):
        joined = torch.cat(
            [v for v in values[OutputKind.DELTA] if not isinstance(v, tuple)], handler.dim
        )
        _compare(f"{name}: all of DELTA", joined, final)


def _run(
    handler: ModalityHandler, chunks: Sequence[torch.Tensor], kind: OutputKind
) -> list[RequestOutput]:
    registry = ModalityRegistry()
    registry.register(_Fed(handler))
    processor = MultimodalOutputProcessor(registry)
    processor.add_request("r", handler.modality, output_kind=kind)
    outputs = []
    for step, chunk in enumerate(chunks):
        output = OmniOutput(multimodal_outputs={handler.modality: chunk})
        reason = "stop" if step == len(chunks) - 1 else None
        sent = OutputChunk("r", step, handler.modality, output=output, finish_reason=reason)
        outputs += processor.process_outputs([sent])
    return outputs


def _accumulate(handler: ModalityHandler, chunks: Sequence[torch.Tensor]) -> Any:
    accumulated = None
    for chunk in chunks:
        accumulated = handler.accumulate(accumulated, chunk.clone())
    return handler.consolidate(accumulated)


def _compare(what: str, actual: object, expected: object) -> None:
    try:
        assert_equal(actual, expected)
    except AssertionError as error:
        raise AssertionError(f"{what}: {error}") from error
