"""Payload trees: everything that may stand in `multimodal_data`."""

import functools
from collections.abc import Sequence
from typing import Final

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from omniwire.contracts import FrozenMapping, TensorHandle
from omniwire.contracts.params import RESERVED_KEYS
from omniwire.testing.strategies.arrays import Shape, arrays, tensors
from omniwire.testing.strategies.items import item_metadata, item_partitions, item_refs
from omniwire.testing.strategies.tokens import token_ids


def field_names() -> SearchStrategy[str]:
    """Keys of payload mappings: the usual ones and any other text, reserved keys apart."""
    return _FIELD_NAMES


def scalars() -> SearchStrategy[int | float | bool | str]:
    """Numbers, bools and strings: every 64-bit int, every double, no lone surrogates."""
    return _SCALARS


@st.composite
def tensor_handles(
    draw: DrawFn,
    *,
    kinds: Sequence[str] = ("local",),
    dtypes: SearchStrategy[torch.dtype] | None = None,
    shapes: SearchStrategy[Shape] | None = None,
) -> TensorHandle:
    """Handles: local ones hold the tensor itself, others the bytes of a reference to nothing.

    Args:
        draw: Supplied by Hypothesis.
        kinds: Kinds to draw from. Only those that are not `"local"` can be encoded, and only
            local ones can be resolved.
        dtypes: As for `tensors`.
        shapes: As for `tensors`.
    """
    kind = draw(st.sampled_from(kinds))
    tensor = draw(tensors(dtypes=dtypes, shapes=shapes))
    payload = tensor if kind == "local" else draw(_REFERENCES)
    return TensorHandle(kind, tensor.dtype, tuple(tensor.shape), payload)


def payload_values(*, handle_kinds: Sequence[str] = ()) -> SearchStrategy[object]:
    """Values of payload mappings, frozen: a leaf of any legal kind, or a small tree of them.

    Args:
        handle_kinds: Kinds of handles among the leaves; by default none.
    """
    return _values(tuple(handle_kinds))


def payloads(*, handle_kinds: Sequence[str] = ()) -> SearchStrategy[FrozenMapping[object]]:
    """Small payload trees without item metadata; legal as `multimodal_data`.

    Args:
        handle_kinds: Kinds of handles among the leaves; by default none.

    >>> from hypothesis import find
    >>> find(payloads(), lambda payload: "sizes" in payload)
    FrozenMapping({'sizes': None})
    """
    return _payloads(tuple(handle_kinds))


def tensors_or_handles(
    handle_kinds: Sequence[str],
    dtypes: SearchStrategy[torch.dtype] | None = None,
    shapes: SearchStrategy[Shape] | None = None,
) -> SearchStrategy[torch.Tensor | TensorHandle]:
    """Tensors, and handles of the given kinds."""
    plain = tensors(dtypes=dtypes, shapes=shapes)
    if not handle_kinds:
        return plain
    return plain | tensor_handles(kinds=handle_kinds, dtypes=dtypes, shapes=shapes)


def _is_free(key: str) -> bool:
    return key not in RESERVED_KEYS


def _mappings(values: SearchStrategy[object]) -> SearchStrategy[FrozenMapping[object]]:
    return st.dictionaries(_FIELD_NAMES, values, max_size=3).map(FrozenMapping)


def _containers(values: SearchStrategy[object]) -> SearchStrategy[object]:
    return st.lists(values, max_size=3).map(tuple) | _mappings(values)


@functools.cache
def _values(handle_kinds: tuple[str, ...]) -> SearchStrategy[object]:
    leaves = _OTHER_LEAVES | tensors_or_handles(handle_kinds)
    return leaves | _containers(leaves) | _containers(_containers(leaves))


@functools.cache
def _payloads(handle_kinds: tuple[str, ...]) -> SearchStrategy[FrozenMapping[object]]:
    return _mappings(_values(handle_kinds))


_REFERENCES: Final = st.binary(max_size=8)
_FIELD_NAMES: Final = st.sampled_from(
    ("pixel_values", "image_grid_thw", "input_features", "sizes")
) | st.text(max_size=8).filter(_is_free)
_SCALARS: Final = (
    st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=8)
)
_OTHER_LEAVES: Final[SearchStrategy[object]] = st.one_of(
    st.none(),
    _SCALARS,
    st.binary(max_size=8),
    arrays(),
    item_refs(),
    item_partitions(),
    item_metadata(),
    token_ids(),
)
