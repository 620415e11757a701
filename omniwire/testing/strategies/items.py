"""Items: references, partitions and the metadata record."""

import functools
from collections.abc import Sequence
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from omniwire.contracts import ItemRef, MultimodalItemMetadata, MultimodalItemPartition
from omniwire.testing.strategies.knobs import PAYLOAD_LAYOUTS, check_names

COMMON_MODALITIES: Final = ("image", "video", "audio")
_INT64_MAX: Final = 2**63 - 1

_NONE: Final = st.none()
_POSITIVE: Final = st.integers(1, 8) | st.integers(1, _INT64_MAX)
_NON_NEGATIVE: Final = st.integers(0, 4) | st.integers(0, _INT64_MAX)
_MODALITIES: Final = st.sampled_from(COMMON_MODALITIES) | st.from_regex(
    r"[a-z][a-z0-9_]{0,63}", fullmatch=True
)
_FIELD_NAMES: Final = st.sampled_from(
    ("pixel_values", "image_grid_thw", "input_features", "num_clips")
) | st.text(max_size=4)
_PACKED_LENGTHS: Final = st.lists(_NON_NEGATIVE, max_size=4).map(tuple)


def modality_names() -> SearchStrategy[str]:
    """Modality names: the common ones and any other of the required form."""
    return _MODALITIES


def item_refs(*, modalities: Sequence[str] | None = None) -> SearchStrategy[ItemRef]:
    """References to an item of any modality.

    Args:
        modalities: Modalities to draw from; by default the common ones and any other.

    >>> from hypothesis import find
    >>> find(item_refs(), lambda ref: True)
    ItemRef(modality='image', index=0)
    """
    return st.builds(ItemRef, _names(modalities), _NON_NEGATIVE)


def item_partitions(
    *, payload_layouts: Sequence[str] = ("batched", "packed")
) -> SearchStrategy[MultimodalItemPartition]:
    """Partitions along any axis.

    Args:
        payload_layouts: How a field divides: `"batched"`, `"packed"` or both.

    Raises:
        ValueError: A layout is another one.
    """
    check_names("payload_layouts", payload_layouts, ("batched", "packed"))
    lengths = {"batched": _NONE, "packed": _PACKED_LENGTHS}
    drawn = st.one_of([lengths[layout] for layout in payload_layouts])
    return st.builds(MultimodalItemPartition, drawn, _NON_NEGATIVE)


def item_metadata(
    *,
    modalities: Sequence[str] | None = None,
    min_items: int = 0,
    max_items: int = 4,
    payload_layouts: Sequence[str] = PAYLOAD_LAYOUTS,
) -> SearchStrategy[MultimodalItemMetadata]:
    """Metadata records: items of several modalities in any order, with or without the rest.

    Args:
        modalities: Modalities to draw from; by default the common ones and any other.
        min_items: Fewest items.
        max_items: Most items.
        payload_layouts: How fields divide: `"batched"` or `"packed"` ones are declared; `"shared"`
            stands for fields that a declared modality does not name, and may declare none at
            all; `"undeclared"` for modalities without a declaration.

    Raises:
        ValueError: A layout is unknown.

    >>> from hypothesis import find
    >>> find(item_metadata(modalities=["audio"]), lambda record: len(record.item_refs) > 1)
    MultimodalItemMetadata(item_refs=(ItemRef(modality='audio', index=0), \
ItemRef(modality='audio', index=1)), encoder_token_lengths=None, output_embedding_lengths=None, \
input_partitions=None)
    """
    check_names("payload_layouts", payload_layouts, PAYLOAD_LAYOUTS)
    numbers = {"lengths": _POSITIVE, "packed": _NON_NEGATIVE, "axes": _NON_NEGATIVE}
    return records(modalities, min_items, max_items, tuple(payload_layouts), **numbers)


def _names(modalities: Sequence[str] | None) -> SearchStrategy[str]:
    return _MODALITIES if modalities is None else st.sampled_from(list(modalities))


@st.composite
def records(
    draw: DrawFn,
    names: Sequence[str] | None,
    min_items: int,
    max_items: int,
    layouts: tuple[str, ...],
    *,
    lengths: SearchStrategy[int],
    packed: SearchStrategy[int],
    axes: SearchStrategy[int],
) -> MultimodalItemMetadata:
    """`item_metadata` with the numbers to draw from: costs and rows, packed lengths, axes."""
    order = draw(st.lists(_names(names), min_size=min_items, max_size=max_items))
    counts = {modality: order.count(modality) for modality in dict.fromkeys(order)}
    local_indices = {
        modality: iter(draw(_orders(count)))  # any order
        for modality, count in counts.items()
    }
    return MultimodalItemMetadata(
        [(modality, next(local_indices[modality])) for modality in order],
        draw(_optional_ints(lengths, len(order))),
        draw(_optional_ints(lengths, len(order))),
        draw(_partitions(tuple(counts.items()), layouts, packed, axes)),
    )


@functools.cache
def _orders(count: int) -> SearchStrategy[list[int]]:
    return st.permutations(range(count))


@functools.cache
def _optional_ints(ints: SearchStrategy[int], count: int) -> SearchStrategy[list[int] | None]:
    return _NONE | st.lists(ints, min_size=count, max_size=count)


@functools.cache
def _partitions(
    counts: tuple[tuple[str, int], ...],
    layouts: tuple[str, ...],
    packed: SearchStrategy[int],
    axes: SearchStrategy[int],
) -> SearchStrategy[dict[str, dict[str, MultimodalItemPartition]] | None]:
    """Partitions of the modalities, given their numbers of items; of some if that is a layout."""
    declared = {modality: _fields(count, layouts, packed, axes) for modality, count in counts}
    if "undeclared" not in layouts:
        return st.fixed_dictionaries(declared)
    if layouts == ("undeclared",):
        return _NONE | st.just({})
    return _NONE | st.fixed_dictionaries({}, optional=declared)


def _fields(
    count: int, layouts: tuple[str, ...], packed: SearchStrategy[int], axes: SearchStrategy[int]
) -> SearchStrategy[dict[str, MultimodalItemPartition]]:
    """The declared fields of a modality with `count` items."""
    lengths: list[SearchStrategy[Any]] = []
    if "batched" in layouts:
        lengths.append(_NONE)
    if "packed" in layouts:
        lengths.append(st.lists(packed, min_size=count, max_size=count))
    if not lengths:
        return st.just({})
    partitions = st.builds(MultimodalItemPartition, st.one_of(lengths), axes)
    is_shared = "shared" in layouts
    return st.dictionaries(_FIELD_NAMES, partitions, min_size=not is_shared, max_size=3)
