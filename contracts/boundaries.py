"""The two checks that need several objects of a request together, made once each."""

from collections.abc import Mapping
from typing import Final

import numpy as np
import torch

from omniwire.contracts.budget import EncoderBudget, EncoderCapability
from omniwire.contracts.checks import check_count, each, raise_problems
from omniwire.contracts.describe import describe
from omniwire.contracts.errors import AdmissionError, Path, Problem
from omniwire.contracts.guard import guarded
from omniwire.contracts.handles import TensorHandle
from omniwire.contracts.inputs import MultimodalInput
from omniwire.contracts.items import MultimodalItemMetadata, MultimodalItemPartition
from omniwire.contracts.params import (
    EMBEDDING_KEY,
    ITEM_METADATA_KEY,
    RESERVED_KEYS,
    AttachedEmbeddings,
    MultimodalParams,
)
from omniwire.contracts.requests import ProcessedRequest
from omniwire.contracts.runtime_data import item_runs

_SUBJECT: Final = "ProcessedRequest"
_PARAMS: Final = ("multimodal_params",)
_DATA: Final = (*_PARAMS, "multimodal_data")
_RECORD: Final = (*_DATA, ITEM_METADATA_KEY)
_INPUT: Final = (*_PARAMS, "multimodal_input")


@guarded
def check_producer(request: ProcessedRequest) -> ProcessedRequest:
    """Check what a processor made, once, before it is sent.

    Batched fields have one slice per item and packed lengths add up to the field's axis;
    declared fields are there, unless embeddings are attached; hashes, positions and uuids
    match the items; spans lie inside the prompt, in prompt order and apart; attached
    embeddings have the known rows; no live executor state is attached.

    Args:
        request: The request; not changed.

    Returns:
        The same request.

    Raises:
        ContractError: With every problem found; paths start at the request.

    >>> check_producer(ProcessedRequest("r1", [1, 2])).request_id
    'r1'
    """
    raise_problems(_SUBJECT, _producer_problems(request))
    return request


@guarded
def check_admission(
    request: ProcessedRequest,
    capability: EncoderCapability = EncoderCapability(),  # noqa: B008  # immutable
    budget: EncoderBudget = EncoderBudget(),  # noqa: B008  # immutable
) -> ProcessedRequest:
    """Check a request when it enters the executor: `check_producer`, and what scheduling needs.

    Under item scheduling every item has a cost, a number of embedding rows and declared
    partitions (or the model selects by itself), and fits the budget on its own. Text-only
    requests and those with attached embeddings need none of that. A refusal concerns this
    request only, and is never turned into full-request encoding.

    Args:
        request: The request; not changed.
        capability: What the model's encoder supports.
        budget: What it may spend in one iteration.

    Returns:
        The same request.

    Raises:
        AdmissionError: With every problem found and the request's id.
        ContractTypeError: An argument has the wrong type.
    """
    problems = _producer_problems(request)
    params = request.multimodal_params
    if params is not None:
        if params.embeddings is not None:
            _check_hidden_size(params.embeddings, capability, problems)
        elif capability.item_scheduling and _has_items(params):
            _check_schedulable(params.item_metadata, capability, budget, problems)
    if problems:
        raise AdmissionError(_SUBJECT, problems, request.request_id)
    return request


def _producer_problems(request: ProcessedRequest) -> list[Problem]:
    problems: list[Problem] = []
    params = request.multimodal_params
    if params is None:
        return problems
    for name in ("encoder_state", "multimodal_runtime"):
        live = getattr(params, name)
        if live is not None:
            expected = "None in a request that a processor hands over"
            problems.append(Problem((*_PARAMS, name), "state", expected, describe(live)))
    record, inputs = params.item_metadata, params.multimodal_input
    if inputs is not None:
        if record is not None:
            path = (*_INPUT, "multimodal_hashes")
            num_hashes, num_items = len(inputs.multimodal_hashes), len(record.item_refs)
            check_count(problems, path, num_hashes, num_items, "hashes, one per item")
        _check_spans(inputs, len(request.prompt_token_ids), problems)
    if record is not None and record.input_partitions:
        _check_payload(params, record, problems)
    if params.embeddings is not None:
        _check_rows(params.embeddings, record, inputs, problems)
    return problems


def _check_spans(inputs: MultimodalInput, num_prompt_tokens: int, problems: list[Problem]) -> None:
    """Spans inside the prompt, in prompt order, none into the next."""
    end = 0
    for item, runs in each(item_runs(inputs), problems):
        start = inputs.multimodal_positions[item]
        path = (*_INPUT, "multimodal_positions", item)
        if start < end:
            expected = f"item {item} at or after position {end}, where the item before it ends"
            problems.append(Problem(path, "order", expected, str(start)))
        end = max(start, sum(runs[-1]) if runs else start)
        if end > num_prompt_tokens:
            expected = f"item {item} inside the {num_prompt_tokens} prompt tokens"
            problems.append(Problem(path, "range", expected, f"its end at {end}"))


def _check_payload(
    params: MultimodalParams, record: MultimodalItemMetadata, problems: list[Problem]
) -> None:
    """Every declared field is there and divides into the items of its modality."""
    assert record.input_partitions is not None
    may_be_absent = params.embeddings is not None
    for modality, fields in record.input_partitions.items():
        num_items = len(record.local_indices(modality))
        payload = params.multimodal_data.get(modality)
        path = (*_DATA, modality)
        if payload is not None and not isinstance(payload, Mapping):
            if fields:
                expected = f"a mapping with the declared fields ({', '.join(fields)})"
                problems.append(Problem(path, "type", expected, describe(payload)))
            continue
        for field, partition in fields.items():
            if payload is None or field not in payload:
                if not may_be_absent:
                    expected = "the field that input_partitions declares"
                    problems.append(Problem((*path, field), "missing", expected, "nothing"))
                continue
            _check_division((*path, field), payload[field], partition, num_items, problems)


def _check_division(
    path: Path,
    value: object,
    partition: MultimodalItemPartition,
    num_items: int,
    problems: list[Problem],
) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            _check_division((*path, key), item, partition, num_items, problems)
        return
    axis, lengths = partition.axis, partition.item_lengths
    if isinstance(value, torch.Tensor | np.ndarray | TensorHandle):
        shape = tuple(value.shape)
    elif type(value) is tuple:
        shape = (len(value),)
    else:
        expected = "a tensor, array or tuple with an item axis"
        problems.append(Problem(path, "type", expected, describe(value)))
        return
    if axis >= len(shape):
        problems.append(Problem(path, "axis", f"an axis {axis} for the items", describe(value)))
    elif lengths is None:
        if shape[axis] != num_items:
            expected = f"{num_items} items along axis {axis}"
            problems.append(Problem(path, "count", expected, str(shape[axis])))
    elif sum(lengths) != shape[axis]:
        expected = f"{sum(lengths)} along axis {axis}, the sum of the item lengths"
        problems.append(Problem(path, "sum", expected, str(shape[axis])))


def _check_rows(
    embeddings: object,
    record: MultimodalItemMetadata | None,
    inputs: MultimodalInput | None,
    problems: list[Problem],
) -> None:
    """Attached embeddings have the rows, or at least the items, that are known."""
    path = (*_DATA, EMBEDDING_KEY)
    known = None if record is None else record.output_embedding_lengths
    if type(embeddings) is not tuple:
        rows = _num_rows(path, embeddings, problems)
        if known is not None and rows is not None and rows != sum(known):
            expected = f"{sum(known)} embedding rows, as the items have"
            problems.append(Problem(path, "count", expected, str(rows)))
        return
    num_items = None
    if record is not None:
        num_items = len(record.item_refs)
    elif inputs is not None:
        num_items = len(inputs.multimodal_hashes)
    all_rows = [_num_rows((*path, i), one, problems) for i, one in enumerate(embeddings)]
    if num_items is not None:
        expected_unit = "embeddings, one per item"
        if not check_count(problems, path, len(embeddings), num_items, expected_unit):
            return
    for index, rows in each(all_rows, problems):
        if known is not None and rows is not None and rows != known[index]:
            expected = f"{known[index]} embedding rows"
            problems.append(Problem((*path, index), "count", expected, str(rows)))


def _num_rows(path: Path, embeddings: object, problems: list[Problem]) -> int | None:
    assert isinstance(embeddings, torch.Tensor | TensorHandle)
    if len(embeddings.shape) < 2:  # rows and hidden
        expected = "embeddings of shape [rows, hidden]"
        got = describe(embeddings) if isinstance(embeddings, torch.Tensor) else repr(embeddings)
        problems.append(Problem(path, "shape", expected, got))
        return None
    return int(embeddings.shape[0])


def _check_hidden_size(
    embeddings: AttachedEmbeddings, capability: EncoderCapability, problems: list[Problem]
) -> None:
    if capability.hidden_size is None:
        return
    path: Path = (*_DATA, EMBEDDING_KEY)
    several = isinstance(embeddings, tuple)
    every = embeddings if isinstance(embeddings, tuple) else (embeddings,)
    for index, one in enumerate(every):
        shape = one.shape
        if len(shape) > 1 and shape[-1] != capability.hidden_size:
            where = (*path, index) if several else path
            expected = f"rows of the model's hidden size {capability.hidden_size}"
            problems.append(Problem(where, "shape", expected, str(shape[-1])))


def _has_items(params: MultimodalParams) -> bool:
    """Whether there is anything to encode: items, or a payload that may hold some."""
    if params.item_metadata is not None:
        return bool(params.item_metadata.item_refs)
    return params.multimodal_input is not None or bool(
        params.multimodal_data.keys() - RESERVED_KEYS
    )


def _check_schedulable(
    record: MultimodalItemMetadata | None,
    capability: EncoderCapability,
    budget: EncoderBudget,
    problems: list[Problem],
) -> None:
    if record is None:
        expected = "the item metadata that item scheduling needs"
        problems.append(Problem(_RECORD, "missing", expected, "nothing"))
        return
    _check_costs(record, "encoder_token_lengths", budget.max_encoder_tokens, 1, problems)
    row_bytes = budget.output_row_bytes or 1
    _check_costs(record, "output_embedding_lengths", budget.max_output_bytes, row_bytes, problems)
    declared = record.input_partitions
    if not capability.custom_selection:
        for modality in dict.fromkeys(ref.modality for ref in record.item_refs):
            if declared is None or modality not in declared:
                path = (*_RECORD, "input_partitions", modality)
                expected = "partitions, or a model with custom selection"
                problems.append(Problem(path, "missing", expected, "nothing"))


def _check_costs(
    record: MultimodalItemMetadata,
    name: str,
    bound: int | None,
    unit_bytes: int,
    problems: list[Problem],
) -> None:
    """Every item's length is known, and times its unit within the bound."""
    lengths = getattr(record, name)
    if lengths is None:
        expected = "the exact lengths that item scheduling needs"
        problems.append(Problem((*_RECORD, name), "missing", expected, "None"))
        return
    if bound is None:
        return
    unit = "encoder tokens" if name == "encoder_token_lengths" else "output bytes"
    for index, (ref, length) in each(zip(record.item_refs, lengths, strict=True), problems):
        if length * unit_bytes > bound:
            item = f"item {index} ({ref.modality}, {ref.index})"
            expected = f"at most {bound} {unit} for {item}"
            got = f"{length * unit_bytes} {unit}"
            problems.append(Problem((*_RECORD, name, index), "budget", expected, got))
