"""Items: references, partitions and the metadata record."""

import functools
from collections.abc import Sequence
from typing import Final

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from omniwire.contracts import ItemRef, MultimodalItemMetadata, MultimodalItemPartition

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
_REFS: Final = st.builds(ItemRef, _MODALITIES, _NON_NEGATIVE)
_PARTITIONS: Final = st.builds(
    MultimodalItemPartition,
    st.none() | st.lists(_NON_NEGATIVE, max_size=4).map(tuple),
    _NON_NEGATIVE,
)


def modalities() -> SearchStrategy[str]:
    """Modality names: the common ones and any other of the required form."""
    return _MODALITIES


def item_refs() -> SearchStrategy[ItemRef]:
    """References to an item of any modality.

    >>> from hypothesis import find
    >>> find(item_refs(), lambda ref: True)
    ItemRef(modality='image', index=0)
    """
    return _REFS


def item_partitions() -> SearchStrategy[MultimodalItemPartition]:
    """Partitions, batched and packed, along any axis."""
    return _PARTITIONS


def item_metadata(
    *, modalities: Sequence[str] | None = None, min_items: int = 0, max_items: int = 4
) -> SearchStrategy[MultimodalItemMetadata]:
    """Metadata records: items of several modalities in any order, with or without the rest.

    Args:
        modalities: Modalities to draw from; by default the common ones and any other.
        min_items: Fewest items.
        max_items: Most items.

    >>> from hypothesis import find
    >>> find(item_metadata(modalities=["audio"]), lambda record: len(record.item_refs) > 1)
    MultimodalItemMetadata(item_refs=(ItemRef(modality='audio', index=0), \
ItemRef(modality='audio', index=1)), encoder_token_lengths=None, output_embedding_lengths=None, \
input_partitions=None)
    """
    numbers = {"lengths": _POSITIVE, "packed": _NON_NEGATIVE, "axes": _NON_NEGATIVE}
    return records(modalities, min_items, max_items, **numbers)


@st.composite
def records(
    draw: DrawFn,
    names: Sequence[str] | None,
    min_items: int,
    max_items: int,
    *,
    lengths: SearchStrategy[int],
    packed: SearchStrategy[int],
    axes: SearchStrategy[int],
) -> MultimodalItemMetadata:
    """`item_metadata` with the numbers to draw from: costs and rows, packed lengths, axes."""
    name = _MODALITIES if names is None else st.sampled_from(names)
    order = draw(st.lists(name, min_size=min_items, max_size=max_items))
    counts = {modality: order.count(modality) for modality in dict.fromkeys(order)}
    local_indices = {
        modality: iter(draw(_orders(count)))  # any order
        for modality, count in counts.items()
    }
    return MultimodalItemMetadata(
        [(modality, next(local_indices[modality])) for modality in order],
        draw(_optional_ints(lengths, len(order))),
        draw(_optional_ints(lengths, len(order))),
        draw(_NONE | _partitions(tuple(counts.items()), packed, axes)),
    )


@functools.cache
def _orders(count: int) -> SearchStrategy[list[int]]:
    return st.permutations(range(count))


@functools.cache
def _optional_ints(ints: SearchStrategy[int], count: int) -> SearchStrategy[list[int] | None]:
    return _NONE | st.lists(ints, min_size=count, max_size=count)


@functools.cache
def _partitions(
    counts: tuple[tuple[str, int], ...], packed: SearchStrategy[int], axes: SearchStrategy[int]
) -> SearchStrategy[dict[str, dict[str, MultimodalItemPartition]]]:
    """Partitions of some of the modalities, given their numbers of items."""
    return st.fixed_dictionaries(
        {},
        optional={
            modality: st.dictionaries(
                _FIELD_NAMES,
                st.builds(MultimodalItemPartition, _optional_ints(packed, count), axes),
                max_size=3,
            )
            for modality, count in counts
        },
    )
