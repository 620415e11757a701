"""Payload trees: everything that may stand in `multimodal_data`."""

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, Unpack

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from omniwire.contracts import FrozenMapping, TensorHandle
from omniwire.contracts.params import RESERVED_KEYS
from omniwire.testing.strategies.arrays import Shape, arrays, numpy_dtypes, tensors
from omniwire.testing.strategies.items import item_metadata, item_partitions, item_refs
from omniwire.testing.strategies.knobs import (
    ARRAY_LAYOUTS,
    TENSOR_LAYOUTS,
    TensorKinds,
    TensorKnobs,
)
from omniwire.testing.strategies.tokens import token_ids


def field_names() -> SearchStrategy[str]:
    """Keys of payload mappings: the usual ones and any other text, reserved keys apart."""
    return _FIELD_NAMES


def scalars() -> SearchStrategy[int | float | bool | str]:
    """Numbers, bools and strings: every 64-bit int, every double, no lone surrogates."""
    return _SCALARS


def tensor_handles(
    *, shapes: SearchStrategy[Shape] | None = None, **knobs: Unpack[TensorKnobs]
) -> SearchStrategy[TensorHandle]:
    """Handles: local ones hold the tensor itself, others the bytes of a reference to nothing.

    Args:
        shapes: As for `tensors`.
        **knobs: The tensors that they stand for: `TensorKnobs`, with `"local"` handles alone by
            default.
    """
    kinds = TensorKinds.of({"handle_kinds": ("local",), **knobs})
    return handles_of(kinds, shapes)


def payload_values(**knobs: Unpack[TensorKnobs]) -> SearchStrategy[object]:
    """Values of payload mappings, frozen: a leaf of any legal kind, or a small tree of them.

    Args:
        **knobs: Which tensors are among the leaves: `TensorKnobs`.
    """
    return values_of(TensorKinds.of(knobs))


def payloads(**knobs: Unpack[TensorKnobs]) -> SearchStrategy[FrozenMapping[object]]:
    """Small payload trees without item metadata; legal as `multimodal_data`.

    Args:
        **knobs: Which tensors are among the leaves: `TensorKnobs`.

    >>> from hypothesis import find
    >>> find(payloads(), lambda payload: "sizes" in payload)
    FrozenMapping({'sizes': None})
    """
    return payloads_of(TensorKinds.of(knobs))


def tensors_of(
    kinds: TensorKinds,
    shapes: SearchStrategy[Shape] | None = None,
    dtypes: Sequence[torch.dtype] | None = None,
) -> SearchStrategy[torch.Tensor | TensorHandle]:
    """Tensors, and handles if there are kinds of them; all of one data type of `dtypes` or any."""
    plain = tensors(
        dtypes=dtypes or kinds.dtypes,
        shapes=shapes,
        devices=kinds.devices,
        memory_layouts=kinds.layouts_in(TENSOR_LAYOUTS),
    )
    return plain | _handles_of(kinds.handle_kinds, plain) if kinds.handle_kinds else plain


def arrays_of(
    kinds: TensorKinds, shapes: SearchStrategy[Shape] | None = None
) -> SearchStrategy[np.ndarray]:
    """Arrays, as far as the data types and layouts are numpy's; else none."""
    dtypes = None if kinds.dtypes is None else numpy_dtypes(kinds.dtypes)
    layouts = kinds.layouts_in(ARRAY_LAYOUTS)
    if dtypes == () or not layouts:
        return st.nothing()
    return arrays(dtypes=dtypes, shapes=shapes, memory_layouts=layouts)


@functools.cache
def values_of(kinds: TensorKinds) -> SearchStrategy[object]:
    """As `payload_values`."""
    leaves = _OTHER_LEAVES | arrays_of(kinds) | tensors_of(kinds)
    return leaves | _containers(leaves) | _containers(_containers(leaves))


@functools.cache
def payloads_of(kinds: TensorKinds) -> SearchStrategy[FrozenMapping[object]]:
    """As `payloads`."""
    return _mappings(values_of(kinds))


def handles_of(
    kinds: TensorKinds, shapes: SearchStrategy[Shape] | None = None
) -> SearchStrategy[TensorHandle]:
    """As `tensor_handles`."""
    return _handles_of(kinds.handle_kinds, tensors_of(replace(kinds, handle_kinds=()), shapes))


@st.composite
def _handles_of(
    draw: DrawFn, handle_kinds: Sequence[str], plain: SearchStrategy[Any]
) -> TensorHandle:
    kind = draw(st.sampled_from(list(handle_kinds)))
    tensor = draw(plain)
    payload = tensor if kind == "local" else draw(_REFERENCES)
    return TensorHandle(kind, tensor.dtype, tuple(tensor.shape), payload)


def _is_free(key: str) -> bool:
    return key not in RESERVED_KEYS


def _mappings(values: SearchStrategy[object]) -> SearchStrategy[FrozenMapping[object]]:
    return st.dictionaries(_FIELD_NAMES, values, max_size=3).map(FrozenMapping)


def _containers(values: SearchStrategy[object]) -> SearchStrategy[object]:
    return st.lists(values, max_size=3).map(tuple) | _mappings(values)


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
    item_refs(),
    item_partitions(),
    item_metadata(),
    token_ids(),
)
