"""Requests whose parts agree with each other, and what travels beside them."""

import functools
from collections.abc import Sequence
from typing import Any, Final

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from omniwire.contracts import (
    DisaggregatedParams,
    EncoderBudget,
    EncoderCapability,
    MultimodalInput,
    MultimodalItemMetadata,
    MultimodalParams,
    ProcessedRequest,
)
from omniwire.contracts.params import (
    EMBEDDING_KEY,
    ITEM_METADATA_KEY,
    MROPE_DELTAS_KEY,
    MROPE_KEY,
    RESERVED_KEYS,
    Embeddings,
)
from omniwire.testing.strategies.arrays import Shape, arrays
from omniwire.testing.strategies.inputs import (
    hash_words,
    multimodal_inputs,
    num_prompt_tokens,
    runtime_data,
)
from omniwire.testing.strategies.items import COMMON_MODALITIES, records
from omniwire.testing.strategies.payloads import (
    field_names,
    payload_values,
    payloads,
    tensor_handles,
    tensors_or_handles,
)
from omniwire.testing.strategies.tokens import token_ids

_EXTENTS: Final = st.integers(0, 3)
_LENGTHS: Final = st.integers(1, 5)
_PACKED: Final = st.integers(0, 4)
_AXES: Final = st.integers(0, 2)
_EMBEDDING_DTYPES: Final = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
_POSITIVE: Final = st.integers(1, 8) | st.integers(1, 2**63 - 1)


@st.composite
def multimodal_params(
    draw: DrawFn,
    *,
    modalities: Sequence[str] = COMMON_MODALITIES,
    min_items: int = 0,
    max_items: int = 4,
    handle_kinds: Sequence[str] = (),
) -> MultimodalParams:
    """Params whose payload, record, hashes and embeddings agree; request-owned ones and views.

    Fields divide into items as their record declares. There is never an `encoder_state`, and
    by default everything can be encoded.

    Args:
        draw: Supplied by Hypothesis.
        modalities: Modalities to draw from.
        min_items: Fewest items; with any at all there is a record.
        max_items: Most items.
        handle_kinds: Kinds of handles in the place of some tensors; by default none.
    """
    params = draw(_request_params(modalities, min_items, max_items, tuple(handle_kinds)))
    runtime = draw(st.none() | runtime_data())
    return params if runtime is None else params.with_runtime(runtime)


@st.composite
def processed_requests(
    draw: DrawFn,
    *,
    modalities: Sequence[str] = COMMON_MODALITIES,
    min_items: int = 0,
    max_items: int = 4,
    handle_kinds: Sequence[str] = (),
) -> ProcessedRequest:
    """Requests that pass `check_producer` and, by default, can be encoded; some are text-only.

    Args:
        draw: Supplied by Hypothesis.
        modalities: Modalities to draw from.
        min_items: Fewest items; with any at all there are params with a record.
        max_items: Most items.
        handle_kinds: Kinds of handles in the place of some tensors; by default none.
    """
    is_text_only = not min_items and draw(_ONE_IN_FOUR)
    params = (
        None
        if is_text_only
        else draw(_request_params(modalities, min_items, max_items, tuple(handle_kinds)))
    )
    inputs = None if params is None else params.multimodal_input
    num_tokens = 0 if inputs is None else num_prompt_tokens(inputs)
    prompt = draw(token_ids(min_size=num_tokens, max_size=num_tokens + 4))
    return ProcessedRequest(draw(_NAMES), prompt, params)


@st.composite
def disaggregated_params(
    draw: DrawFn, *, handle_kinds: Sequence[str] = ("arena",)
) -> DisaggregatedParams:
    """Encoder/prefill envelopes.

    Args:
        draw: Supplied by Hypothesis.
        handle_kinds: Kinds of handles to draw from. An envelope with local ones cannot be
            encoded.
    """
    num_items = draw(st.integers(0, 3))
    handles = st.lists(tensor_handles(kinds=handle_kinds), min_size=num_items, max_size=num_items)
    hashes = st.lists(hash_words(), min_size=num_items, max_size=num_items)
    return DisaggregatedParams(
        draw(st.none() | handles),
        draw(st.none() | hashes),
        draw(st.just("prefill") | _NAMES),
        draw(st.none() | st.binary(max_size=8)),
    )


def encoder_capabilities() -> SearchStrategy[EncoderCapability]:
    """What an encoder may support."""
    return st.builds(EncoderCapability, st.booleans(), st.booleans(), st.none() | _POSITIVE)


def encoder_budgets() -> SearchStrategy[EncoderBudget]:
    """Budgets, bounded and unbounded."""
    bound = st.none() | _POSITIVE
    with_bytes = st.builds(EncoderBudget, bound, _POSITIVE, _POSITIVE)
    return with_bytes | st.builds(EncoderBudget, bound, st.none(), bound)


_NAMES: Final = st.text(min_size=1, max_size=8)
_ONE_IN_FOUR: Final = st.sampled_from([True, False, False, False])


@st.composite
def _request_params(
    draw: DrawFn,
    modalities: Sequence[str],
    min_items: int,
    max_items: int,
    handle_kinds: tuple[str, ...],
) -> MultimodalParams:
    if not min_items and draw(_ONE_IN_FOUR):
        inputs = draw(st.none() | multimodal_inputs(max_items=max_items, in_prompt_order=True))
        return MultimodalParams(inputs, draw(payloads(handle_kinds=handle_kinds)))
    record = draw(
        records(modalities, min_items, max_items, lengths=_LENGTHS, packed=_PACKED, axes=_AXES)
    )
    num_items = len(record.item_refs)
    data: dict[str, Any] = {ITEM_METADATA_KEY: record}
    data.update(draw(_auxiliary_values(tuple(modalities), handle_kinds)))
    embeddings = draw(st.none() | _embeddings(record, handle_kinds))
    if embeddings is not None:
        data[EMBEDDING_KEY] = embeddings
    if embeddings is None or draw(st.booleans()):
        data.update(draw(_payloads_of(record, handle_kinds)))
    return MultimodalParams(draw(st.none() | _inputs(num_items)), data)


def _inputs(num_items: int) -> SearchStrategy[MultimodalInput]:
    return multimodal_inputs(min_items=num_items, max_items=num_items, in_prompt_order=True)


@functools.cache
def _auxiliary_values(
    modalities: tuple[str, ...], handle_kinds: tuple[str, ...]
) -> SearchStrategy[dict[str, object]]:
    """Top-level keys beside the modalities."""
    taken = RESERVED_KEYS.union(modalities)
    mrope = st.fixed_dictionaries({MROPE_DELTAS_KEY: tensors_or_handles(handle_kinds)})
    names = field_names().filter(lambda name: name not in taken)
    auxiliary = st.dictionaries(names, payload_values(handle_kinds=handle_kinds), max_size=1)
    return st.tuples(auxiliary, st.fixed_dictionaries({}, optional={MROPE_KEY: mrope})).map(
        lambda both: {**both[0], **both[1]}
    )


@st.composite
def _payloads_of(
    draw: DrawFn, record: MultimodalItemMetadata, handle_kinds: tuple[str, ...]
) -> dict[str, dict[str, object]]:
    """Each modality's payload: the declared fields, divided as they say, and shared ones."""
    payload = {}
    for modality in dict.fromkeys(ref.modality for ref in record.item_refs):
        fields = draw(_shared_fields(handle_kinds))
        declared = record.input_partitions
        partitions = None if declared is None else declared.get(modality)
        for name, partition in ({} if partitions is None else partitions).items():
            lengths = partition.item_lengths
            extent = len(record.local_indices(modality)) if lengths is None else sum(lengths)
            fields[name] = draw(_divided_values(partition.axis, extent, handle_kinds))
        payload[modality] = fields
    return payload


@functools.cache
def _shared_fields(handle_kinds: tuple[str, ...]) -> SearchStrategy[dict[str, object]]:
    values = payload_values(handle_kinds=handle_kinds)
    return st.dictionaries(field_names(), values, max_size=2)


@functools.cache
def _divided_values(
    axis: int, extent: int, handle_kinds: tuple[str, ...]
) -> SearchStrategy[object]:
    """Values of the given extent along an axis."""
    shapes = _shapes_with_extent(axis, extent)
    kinds: list[SearchStrategy[object]] = [
        tensors_or_handles(handle_kinds, shapes=shapes),
        arrays(shapes=shapes),
    ]
    if axis == 0:
        kinds.append(
            st.lists(
                payload_values(handle_kinds=handle_kinds), min_size=extent, max_size=extent
            ).map(tuple)
        )
    plain = st.one_of(kinds)
    return plain | st.dictionaries(field_names(), plain, max_size=2)


def _shapes_with_extent(axis: int, extent: int) -> SearchStrategy[Shape]:
    return st.tuples(*[_EXTENTS] * axis, st.just(extent), st.lists(_EXTENTS, max_size=1)).map(
        lambda parts: (*parts[:-1], *parts[-1])
    )


@st.composite
def _embeddings(
    draw: DrawFn, record: MultimodalItemMetadata, handle_kinds: tuple[str, ...]
) -> Embeddings:
    """Embedding rows of one hidden size and data type: all in one, or a value per item."""
    num_items = len(record.item_refs)
    rows = record.output_embedding_lengths or tuple(
        draw(st.lists(st.integers(1, 3), min_size=num_items, max_size=num_items))
    )
    hidden_size = draw(st.integers(1, 3))
    dtypes = st.just(draw(_EMBEDDING_DTYPES))
    one_of_rows = {
        count: tensors_or_handles(handle_kinds, dtypes, st.just((count, hidden_size)))
        for count in {sum(rows), *rows}
    }
    if num_items and draw(st.booleans()):
        return tuple([draw(one_of_rows[count]) for count in rows])
    return draw(one_of_rows[sum(rows)])
