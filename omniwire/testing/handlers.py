"""`assert_handler_conforms`: what the accumulation of outputs expects of a modality handler."""

from collections.abc import Sequence
from typing import Any, Final

import torch

from omniwire.contracts import ContractError, OmniOutput, OmniwireError, content_hash
from omniwire.contracts.describe import describe
from omniwire.runtime import ModalityHandler, ModalityRegistry
from omniwire.testing.comparison import assert_equal

_TEXT: Final = "text"
_SAMPLE_SHAPES: Final = ((1, 3, 4, 4), (2, 3), (1, 2, 3, 4, 4), (2, 3, 4), (5,))
_SAMPLE_DTYPES: Final = (torch.float32, torch.int64)


def assert_handler_conforms(handler: ModalityHandler) -> None:
    """Check a modality handler with small tensors, of whichever rank it takes.

    It can be registered; it finds nothing in an empty output; consolidating changes nothing,
    gives a tensor or a tuple of tensors that `validate` accepts and that later chunks leave
    alone; two requests do not disturb each other; incoming tensors and outputs stay as they
    are. A handler for `"text"` finds nothing in any output, and is not asked to accumulate.

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
        _check_accumulation(handler, _samples_for(handler))


def _check_extraction(handler: ModalityHandler) -> None:
    name = f"{handler.modality}.extract"
    found = handler.extract(OmniOutput())
    if found is not None:
        raise AssertionError(f"{name}: expected None for an empty output, got {describe(found)}")
    output = OmniOutput(multimodal_outputs={handler.modality: torch.ones(1, 3, 4, 4)})
    before = content_hash(output)
    found = handler.extract(output)
    if content_hash(output) != before:
        raise AssertionError(f"{name}: expected the output unchanged, got another")
    if handler.modality == _TEXT and found is not None:
        raise AssertionError(f"{name}: expected None, got {describe(found)}")


def _samples_for(handler: ModalityHandler) -> list[torch.Tensor]:
    """Three chunks of the first shape and data type that the handler takes."""
    refusals: list[str] = []
    for dtype in _SAMPLE_DTYPES:
        for shape in _SAMPLE_SHAPES:
            chunks = [torch.full(shape, value).to(dtype) for value in (1, 2, 3)]
            try:
                handler.consolidate(handler.accumulate(None, chunks[0].clone()))
            except (OmniwireError, ValueError, TypeError, RuntimeError) as error:
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
