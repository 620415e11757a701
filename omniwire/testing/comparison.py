"""`assert_equal`: the equality of contracts, with a report of what differs and where."""

import enum
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
import torch

from omniwire.contracts.base import Contract
from omniwire.contracts.describe import describe
from omniwire.contracts.equality import structurally_equal
from omniwire.contracts.errors import Path, format_path
from omniwire.contracts.tensors import array_bytes, logical_bytes
from omniwire.contracts.tokens import TokenIds

_MAX_DIFFERENCES: Final = 20


def assert_equal(actual: object, expected: object) -> None:
    """Check that two values are equal as contracts are: in type, structure and every bit.

    Tensors and arrays compare by data type, shape, bits and device type; NaN equals a NaN of
    the same bits and -0.0 differs from 0.0. What `==` of a contract leaves out is left out.

    Args:
        actual: The value to check: a contract, an error or any value of a payload.
        expected: What it should equal.

    Raises:
        AssertionError: They differ. The message has a line per difference, with its path; of
            tensors it shows data types and shapes, or the first differing index.

    >>> import torch
    >>> from omniwire.contracts import OmniOutput
    >>> def audio(samples):
    ...     return OmniOutput(multimodal_outputs={"audio": torch.tensor([samples])})
    >>> assert_equal(audio([0.0, 2.0]), audio([0.0, 1.0]))
    Traceback (most recent call last):
    AssertionError: OmniOutput: 1 difference
      $.multimodal_outputs.audio: expected 1.0 at [0, 1], got 2.0 (1 of 2 elements of f32[1, 2])
    """
    differences = list(_differences(actual, expected, ()))
    if differences:
        count = f"{len(differences)} difference{'s' if len(differences) > 1 else ''}"
        lines = [f"{type(expected).__name__}: {count}", *map(str, differences[:_MAX_DIFFERENCES])]
        if len(differences) > _MAX_DIFFERENCES:
            lines.append(f"  and {len(differences) - _MAX_DIFFERENCES} more")
        raise AssertionError("\n".join(lines))


@dataclass(frozen=True)
class _Difference:
    path: Path
    expected: str
    got: str
    where: str = ""

    def __str__(self) -> str:
        where = f" ({self.where})" if self.where else ""
        return f"  {format_path(self.path)}: expected {self.expected}, got {self.got}{where}"


def _differences(actual: object, expected: object, path: Path) -> Iterator[_Difference]:
    """What differs; nothing exactly if the two are equal."""
    if type(actual) is type(expected) and type(expected) in (tuple, list):
        yield from _element_differences(actual, expected, path)
        return
    if isinstance(actual, Mapping) and isinstance(expected, Mapping):
        yield from _mapping_differences(actual, expected, path)
        return
    if structurally_equal(actual, expected) or _contract_equals(actual, expected):
        return
    found = list(_inner_differences(actual, expected, path))
    if not found:
        texts = [_show(expected), _show(actual)]
        if texts[0] == texts[1]:
            texts = [_show_exactly(expected), _show_exactly(actual)]
        found = [_Difference(path, *texts)]
    yield from found


def _contract_equals(actual: object, expected: object) -> bool:
    """References and token ids also equal plain tuples."""
    return isinstance(actual, Contract | tuple) and actual == expected


def _inner_differences(actual: object, expected: object, path: Path) -> Iterator[_Difference]:
    if type(actual) is not type(expected):
        return
    if isinstance(expected, tuple | TokenIds):
        yield from _element_differences(actual, expected, path)
    elif isinstance(expected, str | bytes):
        assert isinstance(actual, str | bytes)
        pairs = enumerate(zip(actual, expected, strict=False))
        shorter = min(len(actual), len(expected))
        index = next((index for index, (one, other) in pairs if one != other), shorter)
        yield _Difference(path, _show(expected), _show(actual), f"first at index {index}")
    elif isinstance(expected, torch.Tensor | np.ndarray):
        assert isinstance(actual, torch.Tensor | np.ndarray)
        if describe(actual) == describe(expected):  # data type, shape, device
            yield _first_differing_element(actual, expected, path)
    elif isinstance(expected, Contract):
        assert isinstance(actual, Contract)
        for name in expected._comparable_fields():
            yield from _differences(getattr(actual, name), getattr(expected, name), (*path, name))
    elif isinstance(expected, BaseException):
        assert isinstance(actual, BaseException)
        parts = actual.__reduce__()[1:], expected.__reduce__()[1:]
        yield from _differences(*parts, (*path, "args"))


def _element_differences(actual: Any, expected: Any, path: Path) -> Iterator[_Difference]:
    """The differences of two sequences of one type."""
    if len(actual) != len(expected):
        yield _Difference(path, f"{len(expected)} elements", str(len(actual)))
    for index, (one, other) in enumerate(zip(actual, expected, strict=False)):
        yield from _differences(one, other, (*path, index))


def _mapping_differences(
    actual: Mapping[object, object], expected: Mapping[object, object], path: Path
) -> Iterator[_Difference]:
    for key in (*expected, *(key for key in actual if key not in expected)):
        where = (*path, key if isinstance(key, str | int) else repr(key))
        if key not in actual:
            yield _Difference(where, _show(expected[key]), "nothing")
        elif key not in expected:
            yield _Difference(where, "nothing", _show(actual[key]))
        else:
            yield from _differences(actual[key], expected[key], where)


def _first_differing_element(
    actual: torch.Tensor | np.ndarray, expected: torch.Tensor | np.ndarray, path: Path
) -> _Difference:
    """The difference of two tensors or arrays of one data type and shape."""
    shape = tuple(expected.shape)
    rows = [_bytes_of(value).reshape(prod(shape), -1) for value in (expected, actual)]
    differing = np.flatnonzero((rows[0] != rows[1]).any(axis=1))
    first = int(differing[0])
    index = [int(part) for part in np.unravel_index(first, shape)]
    texts = [_show_element(value, index) for value in (expected, actual)]
    if texts[0] == texts[1] or None in texts:
        texts = [f"bytes {row[first].tobytes().hex(' ')}" for row in rows]
    where = f"{differing.size} of {prod(shape)} elements of {describe(expected)}"
    return _Difference(path, f"{texts[0]} at {index}", str(texts[1]), where)


def _bytes_of(value: torch.Tensor | np.ndarray) -> np.ndarray:
    if isinstance(value, torch.Tensor):
        return logical_bytes(value).cpu().numpy()
    return array_bytes(value)


def _show_element(value: torch.Tensor | np.ndarray, index: list[int]) -> str | None:
    """An element as a number; None for a data type whose numbers torch cannot tell."""
    try:
        return repr(value[tuple(index)].item())
    except NotImplementedError:
        return None


def _show(value: object) -> str:
    """A value in a few words: contracts by their fields, tensors by data type and shape."""
    if isinstance(value, Contract):
        return repr(value)
    if isinstance(value, enum.Enum | torch.dtype):
        return str(value)
    return describe(value)


def _show_exactly(value: object) -> str:
    """Tells apart what `_show` shows alike."""
    if type(value) is float:
        return f"{value!r} with bits {struct.pack('>d', value).hex()}"
    return f"{_show(value)} of type {type(value).__module__}.{type(value).__qualname__}"
