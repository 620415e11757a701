"""Requests whose parts agree with each other, and what travels beside them."""

import functools
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Unpack

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
from omniwire.testing.strategies.arrays import Shape
from omniwire.testing.strategies.inputs import (
    hash_words,
    multimodal_inputs,
    num_prompt_tokens,
    runtime_data,
)
from omniwire.testing.strategies.items import COMMON_MODALITIES, records
from omniwire.testing.strategies.knobs import (
    PAYLOAD_LAYOUTS,
    TensorKinds,
    TensorKnobs,
    check_names,
)
from omniwire.testing.strategies.payloads import (
    arrays_of,
    field_names,
    handles_of,
    payloads_of,
    tensors_of,
    values_of,
)
from omniwire.testing.strategies.tokens import token_ids

_EXTENTS: Final = st.integers(0, 3)
_LENGTHS: Final = st.integers(1, 5)
_PACKED: Final = st.integers(0, 4)
_AXES: Final = st.integers(0, 2)
_EMBEDDING_DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)
_POSITIVE: Final = st.integers(1, 8) | st.integers(1, 2**63 - 1)


def multimodal_params(
    *,
    modalities: Sequence[str] = COMMON_MODALITIES,
    min_items: int = 0,
    max_items: int = 4,
    payload_layouts: Sequence[str] = PAYLOAD_LAYOUTS,
    **knobs: Unpack[TensorKnobs],
) -> SearchStrategy[MultimodalParams]:
    """Params whose payload, record, hashes and embeddings agree; request-owned ones and views.

    Fields divide into items as their record declares. There is never an `encoder_state`, and
    by default everything can be encoded.

    Args:
        modalities: Modalities to draw from.
        min_items: Fewest items; with any at all there is a record.
        max_items: Most items.
        payload_layouts: How fields divide, as for `item_metadata`; with all but one left out,
            every field of an item's modality divides like that.
        **knobs: Which tensors there are: `TensorKnobs`.

    >>> from hypothesis import given
    >>> @given(multimodal_params(modalities=["image"], min_items=1, payload_layouts=["packed"]))
    ... def test_packed_images(params):
    ...     assert params.item_metadata.input_partitions["image"]
    >>> test_packed_images()
    """
    return _params_or_views(
        _wanted(modalities, min_items, max_items, payload_layouts), TensorKinds.of(knobs)
    )


def processed_requests(
    *,
    modalities: Sequence[str] = COMMON_MODALITIES,
    min_items: int = 0,
    max_items: int = 4,
    payload_layouts: Sequence[str] = PAYLOAD_LAYOUTS,
    **knobs: Unpack[TensorKnobs],
) -> SearchStrategy[ProcessedRequest]:
    """Requests that pass `check_producer` and, by default, can be encoded; some are text-only.

    Args:
        modalities: Modalities to draw from.
        min_items: Fewest items; with any at all there are params with a record.
        max_items: Most items.
        payload_layouts: How fields divide, as for `multimodal_params`.
        **knobs: Which tensors there are: `TensorKnobs`.
    """
    return _requests(
        _wanted(modalities, min_items, max_items, payload_layouts), TensorKinds.of(knobs)
    )


@st.composite
def _params_or_views(draw: DrawFn, wanted: "_Wanted", kinds: TensorKinds) -> MultimodalParams:
    params = draw(_request_params(wanted, kinds))
    runtime = draw(st.none() | runtime_data())
    return params if runtime is None else params.with_runtime(runtime)


@st.composite
def _requests(draw: DrawFn, wanted: "_Wanted", kinds: TensorKinds) -> ProcessedRequest:
    is_text_only = not wanted.min_items and draw(_ONE_IN_FOUR)
    params = None if is_text_only else draw(_request_params(wanted, kinds))
    inputs = None if params is None else params.multimodal_input
    num_tokens = 0 if inputs is None else num_prompt_tokens(inputs)
    prompt = draw(token_ids(min_size=num_tokens, max_size=num_tokens + 4))
    return ProcessedRequest(draw(_NAMES), prompt, params)


def disaggregated_params(
    *, min_items: int = 0, max_items: int = 3, **knobs: Unpack[TensorKnobs]
) -> SearchStrategy[DisaggregatedParams]:
    """Encoder/prefill envelopes.

    Args:
        min_items: Fewest handles or hashes, where there are any.
        max_items: Most of them.
        **knobs: The tensors that the handles stand for: `TensorKnobs`, with `"arena"` handles
            alone by default. An envelope with local ones cannot be encoded.
    """
    return _envelopes(min_items, max_items, TensorKinds.of({"handle_kinds": ("arena",), **knobs}))


@st.composite
def _envelopes(
    draw: DrawFn, min_items: int, max_items: int, kinds: TensorKinds
) -> DisaggregatedParams:
    num_items = draw(st.integers(min_items, max_items))
    handles = st.lists(handles_of(kinds), min_size=num_items, max_size=num_items)
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


class _Wanted(NamedTuple):
    """Which items there are; hashable."""

    modalities: tuple[str, ...]
    min_items: int
    max_items: int
    layouts: tuple[str, ...]


def _wanted(
    modalities: Sequence[str], min_items: int, max_items: int, layouts: Sequence[str]
) -> _Wanted:
    check_names("payload_layouts", layouts, PAYLOAD_LAYOUTS)
    return _Wanted(tuple(modalities), min_items, max_items, tuple(layouts))


@st.composite
def _request_params(draw: DrawFn, wanted: _Wanted, kinds: TensorKinds) -> MultimodalParams:
    if not wanted.min_items and draw(_ONE_IN_FOUR):
        inputs = multimodal_inputs(max_items=wanted.max_items, in_prompt_order=True)
        return MultimodalParams(draw(st.none() | inputs), draw(payloads_of(kinds)))
    record = draw(records(*wanted, lengths=_LENGTHS, packed=_PACKED, axes=_AXES))
    num_items = len(record.item_refs)
    data: dict[str, Any] = {ITEM_METADATA_KEY: record}
    data.update(draw(_auxiliary_values(wanted.modalities, kinds)))
    embeddings = draw(st.none() | _embeddings(record, kinds))
    if embeddings is not None:
        data[EMBEDDING_KEY] = embeddings
    if embeddings is None or draw(st.booleans()):
        data.update(draw(_payloads_of_items(record, wanted.layouts, kinds)))
    return MultimodalParams(draw(st.none() | _inputs(num_items)), data)


def _inputs(num_items: int) -> SearchStrategy[MultimodalInput]:
    return multimodal_inputs(min_items=num_items, max_items=num_items, in_prompt_order=True)


@functools.cache
def _auxiliary_values(
    modalities: tuple[str, ...], kinds: TensorKinds
) -> SearchStrategy[dict[str, object]]:
    """Top-level keys beside the modalities."""
    taken = RESERVED_KEYS.union(modalities)
    mrope = st.fixed_dictionaries({MROPE_DELTAS_KEY: tensors_of(kinds)})
    names = field_names().filter(lambda name: name not in taken)
    auxiliary = st.dictionaries(names, values_of(kinds), max_size=1)
    return st.tuples(auxiliary, st.fixed_dictionaries({}, optional={MROPE_KEY: mrope})).map(
        lambda both: {**both[0], **both[1]}
    )


@st.composite
def _payloads_of_items(
    draw: DrawFn, record: MultimodalItemMetadata, layouts: tuple[str, ...], kinds: TensorKinds
) -> dict[str, dict[str, object]]:
    """Each modality's payload: the declared fields, divided as they say, and others."""
    payload = {}
    declared = record.input_partitions
    for modality in dict.fromkeys(ref.modality for ref in record.item_refs):
        partitions = None if declared is None else declared.get(modality)
        fields: dict[str, object] = {}
        if partitions is None or "shared" in layouts:
            fields = draw(_other_fields(kinds))
        for name, partition in ({} if partitions is None else partitions).items():
            lengths = partition.item_lengths
            extent = len(record.local_indices(modality)) if lengths is None else sum(lengths)
            fields[name] = draw(_divided_values(partition.axis, extent, kinds))
        payload[modality] = fields
    return payload


@functools.cache
def _other_fields(kinds: TensorKinds) -> SearchStrategy[dict[str, object]]:
    return st.dictionaries(field_names(), values_of(kinds), max_size=2)


@functools.cache
def _divided_values(axis: int, extent: int, kinds: TensorKinds) -> SearchStrategy[object]:
    """Values of the given extent along an axis."""
    shapes = _shapes_with_extent(axis, extent)
    plain: SearchStrategy[object] = tensors_of(kinds, shapes) | arrays_of(kinds, shapes)
    if axis == 0:
        plain |= st.lists(values_of(kinds), min_size=extent, max_size=extent).map(tuple)
    return plain | st.dictionaries(field_names(), plain, max_size=2)


def _shapes_with_extent(axis: int, extent: int) -> SearchStrategy[Shape]:
    return st.tuples(*[_EXTENTS] * axis, st.just(extent), st.lists(_EXTENTS, max_size=1)).map(
        lambda parts: (*parts[:-1], *parts[-1])
    )


@st.composite
def _embeddings(draw: DrawFn, record: MultimodalItemMetadata, kinds: TensorKinds) -> Embeddings:
    """Embedding rows of one hidden size and data type: all in one, or a value per item."""
    num_items = len(record.item_refs)
    rows = record.output_embedding_lengths or tuple(
        draw(st.lists(st.integers(1, 3), min_size=num_items, max_size=num_items))
    )
    hidden_size = draw(st.integers(1, 3))
    dtype = draw(st.sampled_from(kinds.dtypes or _EMBEDDING_DTYPES))
    one_of_rows = {
        count: tensors_of(kinds, st.just((count, hidden_size)), [dtype])
        for count in {sum(rows), *rows}
    }
    if num_items and draw(st.booleans()):
        return tuple([draw(one_of_rows[count]) for count in rows])
    return draw(one_of_rows[sum(rows)])
