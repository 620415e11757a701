"""`assert_handler_conforms`: what the accumulation of outputs expects of a modality handler."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, Final

import torch

from omniwire.contracts import (
    ChunkKind,
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
from omniwire.runtime.accumulate import Value, parts_of
from omniwire.runtime.payloads import split_payload
from omniwire.testing.comparison import assert_equal

_TEXT: Final = "text"
_SAMPLE_SHAPES: Final = ((1, 3, 4, 4), (2, 3), (1, 2, 3, 4, 4), (2, 3, 4), (5,))
_SAMPLE_DTYPES: Final = (torch.float32, torch.int64)
_NUM_SAMPLES: Final = 3
_REFUSALS: Final = (OmniwireError, ValueError, TypeError, RuntimeError)

_HINT: Final = "a handler that takes another form is given some `outputs`"

Join = Callable[[list[Any]], Any]
"""Makes the whole value out of the values that a client of deltas was sent, in order."""


def assert_handler_conforms(
    handler: ModalityHandler,
    outputs: Sequence[OmniOutput] | None = None,
    *,
    join: Join | None = None,
) -> None:
    """Check a modality handler, by its methods and as part of a processor.

    It can be registered; it finds nothing in an empty output; consolidating changes nothing,
    gives a tensor or a tuple of tensors that `validate` accepts and that later chunks leave
    alone; two requests do not disturb each other; incoming tensors and outputs stay as they
    are; a chunk that it refuses changes nothing. Whole requests of every `OutputKind` end
    without an error, and tell the same story:

    - `FINAL_ONLY` gives the value of all chunks, and so does the last value of `CUMULATIVE`;
    - the values under `DELTA` together make the whole one: given to the handler as chunks,
      concatenated along an axis (of a `TensorHandler`, its own), or taken as chunks in order.
      Where a client joins them in another way, say so with `join`: if there is no way, a client
      of deltas loses something;
    - a chunk that carries the whole value replaces what came before it.

    A handler for `"text"` finds nothing in any output, and is not asked to accumulate.

    Args:
        handler: The handler.
        outputs: At least two outputs of one request, in order, each with something for the
            handler. By default small tensors of whichever rank and data type it takes; give
            some where it extracts from other than its own name, or takes no such tensor.
        join: How a client makes the whole value out of those under `DELTA`.

    Raises:
        AssertionError: The handler breaks a rule, or takes none of the default outputs.

    >>> class LastFrame:
    ...     '''Only the newest frame counts.'''
    ...     modality = "preview"
    ...     def extract(self, output):
    ...         return output.multimodal_outputs.get("preview")
    ...     def accumulate(self, existing, incoming):
    ...         return incoming
    ...     def consolidate(self, accumulated):
    ...         return accumulated
    ...     def validate(self, value):
    ...         return value.ndim >= 2
    >>> assert_handler_conforms(LastFrame())
    """
    try:
        ModalityRegistry().register(handler)
    except ContractError as error:
        raise AssertionError(str(error)) from error
    _check_nothing_found(handler)
    if outputs is None:
        _check_extraction_of_a_sample(handler)
    for output in outputs or ():
        _check_extraction(handler, output)
    if handler.modality == _TEXT:
        return
    chunks = _samples_for(handler) if outputs is None else _chunks_in(handler, outputs)
    _check_accumulation(handler, chunks)
    _check_refusals(handler, chunks)
    if outputs is None:
        fed, outputs = _Fed(handler), [_output_of(handler.modality, chunk) for chunk in chunks]
        _check_requests(handler, fed, chunks, outputs, join)
    else:
        _check_requests(handler, handler, chunks, outputs, join)


# ---- what is extracted ---------------------------------------------------------------------


def _check_nothing_found(handler: ModalityHandler) -> None:
    found = handler.extract(OmniOutput())
    if found is not None:
        expected = "None for an empty output"
        raise AssertionError(
            f"{handler.modality}.extract: expected {expected}, got {describe(found)}"
        )


def _check_extraction(handler: ModalityHandler, output: OmniOutput) -> None:
    name = f"{handler.modality}.extract"
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


def _check_extraction_of_a_sample(handler: ModalityHandler) -> None:
    key = handler.keys[0] if isinstance(handler, TensorHandler) else handler.modality
    try:
        _check_extraction(handler, _output_of(key, torch.ones(1, 3, 4, 4)))
    except (AttributeError, LookupError, *_REFUSALS) as error:
        expected = f"to take a tensor under {key!r}"
        got = f"{type(error).__name__}: {error}"
        raise AssertionError(
            f"{handler.modality}.extract: expected {expected}, got {got}; {_HINT}"
        ) from error


def _output_of(key: str, chunk: Value) -> OmniOutput:
    return OmniOutput(multimodal_outputs={key: chunk})


def _chunks_in(handler: ModalityHandler, outputs: Sequence[OmniOutput]) -> list[Value]:
    """What the handler finds in each of the outputs."""
    name = f"{handler.modality}.extract"
    chunks = []
    for index, output in enumerate(outputs):
        found = handler.extract(output)
        _, chunk, _ = split_payload({} if found is None else found)
        if chunk is None or not parts_of(chunk):
            raise AssertionError(f"{name}: expected a tensor in outputs[{index}], got none")
        chunks.append(chunk)
    if len(chunks) < 2:
        raise AssertionError(f"{name}: expected at least two outputs, got {len(chunks)}")
    return chunks


def _samples_for(handler: ModalityHandler) -> list[Value]:
    """Chunks of the first shape and data type that the handler takes, no two numbers alike."""
    refusals: list[str] = []
    for dtype in _SAMPLE_DTYPES:
        for shape in _SAMPLE_SHAPES:
            count = prod(shape) * _NUM_SAMPLES
            numbers = torch.arange(1, count + 1)
            values = numbers / count if dtype.is_floating_point else numbers.to(dtype)
            chunks = [part.reshape(shape).clone() for part in values.chunk(_NUM_SAMPLES)]
            try:
                _accumulate(handler, chunks[:1])
            except _REFUSALS as error:
                refusals.append(f"{describe(chunks[0])}: {error}")
            else:
                return list(chunks)
    tried = "\n  ".join(refusals)
    expected = f"to take one of\n  {tried}"
    raise AssertionError(f"{handler.modality}.accumulate: expected {expected}\n{_HINT}")


# ---- what is accumulated -------------------------------------------------------------------


def _check_accumulation(handler: ModalityHandler, chunks: Sequence[Value]) -> None:
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
    one = _add(handler, None, chunks[0])
    other = _add(handler, None, chunks[1])
    early = handler.consolidate(one)
    _compare(f"{name}.consolidate", early, values[0])
    for chunk in chunks[1:]:
        for part in parts_of(chunk):
            incoming = part.clone()
            one = handler.accumulate(one, incoming)
            _compare(f"{name}.accumulate: the incoming tensor", incoming, part)
    _compare(f"{name}.consolidate: a value given out before", early, values[0])
    _compare(f"{name}.consolidate: interleaved requests", handler.consolidate(one), values[-1])
    _compare(f"{name}.consolidate: called twice", handler.consolidate(one), values[-1])
    alone = _accumulate(handler, chunks[1:2])
    _compare(f"{name}.consolidate: interleaved requests", handler.consolidate(other), alone)


def _check_refusals(handler: ModalityHandler, chunks: Sequence[Value]) -> None:
    """A chunk unlike the first is taken or refused; if refused, nothing has changed."""
    first = parts_of(chunks[0])[0]
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


def _add(handler: ModalityHandler, existing: Any, chunk: Value) -> Any:
    for part in parts_of(chunk):
        existing = handler.accumulate(existing, part.clone())
    return existing


def _accumulate(handler: ModalityHandler, chunks: Sequence[Value]) -> Any:
    accumulated = None
    for chunk in chunks:
        accumulated = _add(handler, accumulated, chunk)
    return handler.consolidate(accumulated)


# ---- whole requests ------------------------------------------------------------------------


class _Fed:
    """A handler that is given its chunks under its modality's name, whatever keys it reads."""

    def __init__(self, handler: ModalityHandler) -> None:
        self.modality = handler.modality
        self.accumulate = handler.accumulate
        self.consolidate = handler.consolidate
        self.validate = handler.validate

    def extract(self, output: OmniOutput) -> object | None:
        return output.multimodal_outputs.get(self.modality)


def _check_requests(
    handler: ModalityHandler,
    registered: ModalityHandler,
    chunks: Sequence[Value],
    outputs: Sequence[OmniOutput],
    join: Join | None,
) -> None:
    """Whole requests, of each `OutputKind`, in a processor."""
    name = handler.modality
    values = {kind: _emitted(registered, outputs, kind) for kind in OutputKind}
    final = values[OutputKind.FINAL_ONLY][-1]
    _compare(f"{name}: FINAL_ONLY", final, _accumulate(handler, chunks))
    _compare(f"{name}: the last of CUMULATIVE", values[OutputKind.CUMULATIVE][-1], final)
    _check_joined(handler, values[OutputKind.DELTA], final, join)
    whole = _emitted(registered, outputs, OutputKind.FINAL_ONLY, last=ChunkKind.FINAL)
    expected = _accumulate(handler, chunks[-1:])
    _compare(f"{name}: a chunk that carries the whole value", whole[-1], expected)


def _check_joined(
    handler: ModalityHandler, deltas: list[Any], final: object, join: Join | None
) -> None:
    name = f"{handler.modality}: all of DELTA"
    if join is None and isinstance(handler, TensorHandler) and isinstance(final, torch.Tensor):
        dim = handler.dim
        join = lambda values: torch.cat(values, dim)  # noqa: E731  # as one that is given
    if join is not None:
        _compare(f"{name}, joined", join(deltas), final)
        return
    if not any(_is_equal(joined, final) for joined in _ways_to_join(handler, deltas)):
        shown = ", ".join(map(describe, deltas))
        expected = f"values that can be joined to {describe(final)}"
        hint = "if a client joins them in a way of its own, pass it as join"
        raise AssertionError(f"{name}: expected {expected}, got {shown}; {hint}")


def _ways_to_join(handler: ModalityHandler, deltas: Sequence[Value]) -> Iterator[Value]:
    """Everything that the values under `DELTA` make, if joined in a common way."""
    with contextlib.suppress(*_REFUSALS):  # it need not take its own values for chunks
        yield _accumulate(handler, deltas)
    if all(isinstance(delta, tuple) for delta in deltas):
        yield tuple(part for delta in deltas for part in delta)
    tensors = [delta for delta in deltas if isinstance(delta, torch.Tensor)]
    if len(tensors) == len(deltas) and len({tensor.ndim for tensor in tensors}) == 1:
        for dim in range(tensors[0].ndim):
            sizes = {(*tensor.shape[:dim], *tensor.shape[dim + 1 :]) for tensor in tensors}
            if len(sizes) == 1:
                yield torch.cat(tensors, dim)


def _emitted(
    handler: ModalityHandler,
    outputs: Sequence[OmniOutput],
    kind: OutputKind,
    *,
    last: ChunkKind = ChunkKind.DELTA,
) -> list[Any]:
    """The values of one request, whose last chunk is of the given kind."""
    name = handler.modality
    emitted = []
    for output in _run(handler, outputs, kind, last):
        for error in output.errors.values():
            raise AssertionError(f"{name}: a request of {kind.name} failed: {error}")
        if name in output.multimodal_outputs:
            emitted.append(output.multimodal_outputs[name])
    if not emitted:
        raise AssertionError(f"{name}: expected a request of {kind.name} to emit, got nothing")
    return emitted


def _run(
    handler: ModalityHandler, outputs: Sequence[OmniOutput], kind: OutputKind, last: ChunkKind
) -> list[RequestOutput]:
    registry = ModalityRegistry()
    registry.register(handler)
    processor = MultimodalOutputProcessor(registry)
    processor.add_request("r", handler.modality, output_kind=kind)
    emitted = []
    for step, output in enumerate(outputs):
        is_last = step == len(outputs) - 1
        chunk = OutputChunk(
            "r",
            step,
            handler.modality,
            output=output,
            kind=last if is_last else ChunkKind.DELTA,
            finish_reason="stop" if is_last else None,
        )
        emitted += processor.process_outputs([chunk])
    return emitted


def _is_equal(actual: object, expected: object) -> bool:
    try:
        assert_equal(actual, expected)
    except AssertionError:
        return False
    return True


def _compare(what: str, actual: object, expected: object) -> None:
    try:
        assert_equal(actual, expected)
    except AssertionError as error:
        raise AssertionError(f"{what}: {error}") from error
