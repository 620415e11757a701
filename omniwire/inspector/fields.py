"""What a decoded value is in a few words, and the parts that it consists of."""

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple, cast

import attrs
import numpy as np
import torch

from omniwire.contracts import (
    Append,
    Concat,
    FrozenMapping,
    ItemRef,
    MultimodalInput,
    MultimodalItemMetadata,
    MultimodalItemPartition,
    OmniwireError,
    Replace,
    Stack,
    TensorHandle,
    TokenIds,
)
from omniwire.contracts.base import Contract
from omniwire.contracts.describe import describe_tensor, dtype_name
from omniwire.inspector.text import counted, quoted, shorten, shown_name

_SCALARS: Final = frozenset((bool, int, float, type(None), str))
_WHOLE: Final = (ItemRef, TokenIds, TensorHandle, MultimodalItemPartition, Concat, Stack)
"""Records whose summary says it all."""

_HIDDEN: Final = "encoder_state"  # never travels
_NUM_SHOWN: Final = 6
_MAX_ROW_SHOWN: Final = 4


class Part(NamedTuple):
    """A part of a value: its step on a `Problem`'s path, its name to print, and itself."""

    step: str | int
    name: str
    value: object


def parts(value: object) -> Sequence[Part] | Iterator[Part]:
    """What a value consists of, as far as its summary does not say it all."""
    if type(value) is FrozenMapping:
        return (Part(key, shown_name(key), part) for key, part in value.items())
    if type(value) is tuple and not _is_plain(value):
        return (Part(index, f"[{index}]", part) for index, part in enumerate(value))
    if isinstance(value, Contract) and attrs.has(type(value)) and not isinstance(value, _WHOLE):
        names = (field.name for field in attrs.fields(cast(Any, type(value))))
        return [Part(name, name, getattr(value, name)) for name in names if name != _HIDDEN]
    return ()


def summary(value: object) -> str:
    """What a value is, on one line, safe to print; of a tensor never the numbers."""
    if type(value) in _SCALARS:
        return _scalar(value)
    if isinstance(value, torch.Tensor):
        return f"{_tensor(value.dtype, value.shape)} {value.device.type}"
    if isinstance(value, np.ndarray):
        return f"numpy {_tensor(value.dtype, value.shape)} cpu"
    if type(value) is bytes:
        return "bytes"
    if type(value) is FrozenMapping:
        return f"mapping of {len(value):,}"
    if type(value) is tuple:
        return _sequence(value)
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    if isinstance(value, OmniwireError):
        return f"{type(value).__name__}: {shorten(str(value), 200)}"
    return _record(value)


def num_bytes(value: object) -> int | None:
    """The bytes of what travels as bytes: tensors, arrays, token ids and bytes."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.nbytes
    if isinstance(value, TokenIds):
        return len(value.tobytes())
    return len(value) if type(value) is bytes else None


def tensors(value: object) -> Iterator[torch.Tensor | np.ndarray]:
    """Every tensor and array in a value, each as often as it stands there."""
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, torch.Tensor | np.ndarray):
            yield part
        elif type(part) is FrozenMapping:
            pending.extend(part.values())
        elif type(part) is tuple and not _is_plain(part):
            pending.extend(part)
        elif isinstance(part, Contract) and attrs.has(type(part)):
            pending.extend(one.value for one in parts(part))


def _is_plain(values: tuple[object, ...]) -> bool:
    """Whether a tuple holds only what fits its summary."""
    kinds = set(map(type, values))
    return kinds <= _SCALARS or kinds == {ItemRef} or _row_length(values) is not None


def _row_length(values: tuple[object, ...]) -> int | None:
    """The length of every element of a tuple of equally long tuples of ints; else None."""
    if set(map(type, values)) != {tuple}:
        return None
    rows = cast(tuple[tuple[object, ...], ...], values)
    length = len(rows[0])
    plain = all(len(row) == length and set(map(type, row)) == {int} for row in rows)
    return length if plain else None


def _scalar(value: object) -> str:
    return quoted(value) if isinstance(value, str) else repr(value)


def _tensor(dtype: torch.dtype | np.dtype[np.generic], shape: Sequence[int]) -> str:
    return shorten(describe_tensor(dtype, shape), 100)


def _sequence(values: tuple[object, ...]) -> str:
    if not values:
        return "empty tuple"
    kinds = set(map(type, values))
    start = values[:_NUM_SHOWN]
    if kinds == {ItemRef}:
        unit, shown = "item", map(_ref, start)
    elif kinds <= _SCALARS:
        unit, shown = "int" if kinds == {int} else "value", map(_scalar, start)
    elif (length := _row_length(values)) is not None:
        unit, shown = f"tuple of {counted(length, 'int')}", map(repr, start)
        if length > _MAX_ROW_SHOWN:
            return counted(len(values), unit)
    else:
        return f"tuple of {len(values):,}"
    more = ", ..." if len(values) > _NUM_SHOWN else ""
    return f"{counted(len(values), unit)}: {', '.join(shown)}{more}"


def _ref(ref: object) -> str:
    assert isinstance(ref, ItemRef)
    return f"{ref.modality} {ref.index}"


def _record(value: object) -> str:
    if isinstance(value, ItemRef):
        return _ref(value)
    if isinstance(value, TokenIds):
        return f"TokenIds, {counted(len(value), 'id')}"
    if isinstance(value, TensorHandle):
        where = value.kind.replace("_", " ")
        return f"{where} handle of {_tensor(value.dtype, value.shape)}"
    if isinstance(value, MultimodalItemPartition):
        if value.item_lengths is None:
            return f"batched along axis {value.axis}"
        return f"packed along axis {value.axis}, {_sequence(value.item_lengths)}"
    if isinstance(value, Concat | Stack | Replace | Append):
        return repr(value)
    kind = type(value).__name__
    if isinstance(value, MultimodalItemMetadata):
        return f"{kind}, {counted(len(value.item_refs), 'item')}"
    if isinstance(value, MultimodalInput):
        return f"{kind}, {counted(len(value.multimodal_hashes), 'item')}"
    return kind
