"""Payload trees: everything that may stand in `multimodal_data`."""

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
    dtypes: SearchStrategy[torch.dtype] | None = None,
    shapes: SearchStrategy[Shape] | None = None,
) -> TensorHandle:
    """Handles of kind `"local"`, which hold the tensor itself.

    Args:
        draw: Supplied by Hypothesis.
        dtypes: As for `tensors`.
        shapes: As for `tensors`.
    """
    tensor = draw(tensors(dtypes=dtypes, shapes=shapes))
    return TensorHandle("local", tensor.dtype, tuple(tensor.shape), tensor)


def payload_values() -> SearchStrategy[object]:
    """Values of payload mappings, frozen: a leaf of any legal kind, or a small tree of them."""
    return _VALUES


def payloads() -> SearchStrategy[FrozenMapping[object]]:
    """Small payload trees without item metadata; legal as `multimodal_data`.

    >>> from hypothesis import find
    >>> find(payloads(), lambda payload: "sizes" in payload)
    FrozenMapping({'sizes': None})
    """
    return _PAYLOADS


def frozen_mappings_of(kind: type) -> SearchStrategy[FrozenMapping[object]]:
    """Frozen mappings whose values are of one type, such as `FrozenMapping[int]`."""
    return _mappings(st.from_type(kind))


def _is_free(key: str) -> bool:
    return key not in RESERVED_KEYS


def _mappings(values: SearchStrategy[object]) -> SearchStrategy[FrozenMapping[object]]:
    return st.dictionaries(_FIELD_NAMES, values, max_size=3).map(FrozenMapping)


def _containers(values: SearchStrategy[object]) -> SearchStrategy[object]:
    return st.lists(values, max_size=3).map(tuple) | _mappings(values)


_FIELD_NAMES: Final = st.sampled_from(
    ("pixel_values", "image_grid_thw", "input_features", "sizes")
) | st.text(max_size=8).filter(_is_free)
_SCALARS: Final = (
    st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=8)
)
_LEAVES: Final[SearchStrategy[object]] = st.one_of(
    st.none(),
    _SCALARS,
    st.binary(max_size=8),
    tensors(),
    arrays(),
    tensor_handles(),
    item_refs(),
    item_partitions(),
    item_metadata(),
    token_ids(),
)
_VALUES: Final = _LEAVES | _containers(_LEAVES) | _containers(_containers(_LEAVES))
_PAYLOADS: Final = _mappings(_VALUES)
