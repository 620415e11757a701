"""Selecting items of a request: views that hold exactly the chosen items, in the order chosen."""

from collections.abc import Mapping, Sequence
from typing import Final

from omniwire.contracts.checks import check_indices
from omniwire.contracts.describe import describe
from omniwire.contracts.errors import Path, Problem, contract_error
from omniwire.contracts.frozen import FrozenMapping
from omniwire.contracts.guard import guarded
from omniwire.contracts.items import ItemRef, MultimodalItemMetadata, MultimodalItemPartition
from omniwire.contracts.params import EMBEDDING_KEY, ITEM_METADATA_KEY, MultimodalParams
from omniwire.runtime.compatibility import compatible_partitions
from omniwire.runtime.picking import ItemPicker

PartitionsByModality = Mapping[str, Mapping[str, MultimodalItemPartition]]

_BATCHED: Final = MultimodalItemPartition()


@guarded
def select(params: MultimodalParams, prompt_indices: Sequence[int]) -> MultimodalParams:
    """An execution view of some of a request's items, a valid record of its own.

    The view's references are renumbered from 0 per modality in selection order; its payload,
    attached embeddings, hashes, positions and runs have exactly those items in that order.
    The payload of modalities without a chosen item is dropped, other top-level keys are kept.
    Nothing is validated again; `encoder_state` and `multimodal_runtime` are left unset.

    Consecutive items of a field are views that share its storage; items reordered or repeated
    are gathered into a copy, one operation a field. On CUDA nothing waits for the device.
    A modality without declared partitions goes through the compatibility selector, which
    knows patches packed by a `*_grid_thw` field and stacked `pixel_values` / audio features.

    Args:
        params: Params with an item metadata record.
        prompt_indices: Prompt-global item indices, at least one; repeats are allowed.

    Returns:
        The view. Treat what it shares with `params` as read-only.

    Raises:
        ContractTypeError: An index is not an int.
        ContractValueError: No index or one out of range; no record; a field that does not
            divide as declared; an undeclared field whose layout cannot be told.

    >>> import torch
    >>> from omniwire.contracts import (
    ...     MultimodalItemMetadata, MultimodalItemPartition, MultimodalParams)
    >>> record = MultimodalItemMetadata(
    ...     [("image", 0), ("image", 1)],
    ...     input_partitions={"image": {"rows": MultimodalItemPartition(item_lengths=(2, 3))}})
    >>> params = MultimodalParams(
    ...     multimodal_data={"image": {"rows": torch.arange(5)}, "item_metadata": record})
    >>> select(params, [1]).multimodal_data["image"]["rows"]
    tensor([2, 3, 4])
    >>> select(params, [1, 0]).multimodal_data["image"]["rows"]
    tensor([2, 3, 4, 0, 1])
    """
    record = record_of(params)
    chosen = check_indices(prompt_indices, len(record.item_refs), "MultimodalParams")
    return select_trusted(params, record, chosen, record.input_partitions)


@guarded
def select_inputs(
    data: Mapping[str, object], metadata: MultimodalItemMetadata, prompt_indices: Sequence[int]
) -> FrozenMapping[object]:
    """Like `select`, for a payload and a record that are not in one `MultimodalParams`.

    Args:
        data: A payload of the form of `MultimodalParams.multimodal_data`.
        metadata: The record of its items; one inside `data` is ignored.
        prompt_indices: Prompt-global item indices, at least one; repeats are allowed.

    Returns:
        The selected payload, with the selected record under `"item_metadata"`.

    Raises:
        ContractError: As for `select`; also if `data` is not a legal payload.
    """
    frozen = data if type(data) is FrozenMapping else FrozenMapping(data)
    chosen = check_indices(prompt_indices, len(metadata.item_refs), "select_inputs")
    return _select_payload(
        "select_inputs", frozen, metadata, chosen, metadata.input_partitions, ("data",)
    )


def record_of(params: MultimodalParams) -> MultimodalItemMetadata:
    """The params' record.

    Raises:
        ContractValueError: There is none.
    """
    record = params.item_metadata
    if record is None:
        path = ("multimodal_data", ITEM_METADATA_KEY)
        problem = Problem(path, "missing", "an item metadata record", "none")
        raise contract_error("MultimodalParams", [problem])
    return record


def select_trusted(
    params: MultimodalParams,
    record: MultimodalItemMetadata,
    chosen: tuple[int, ...],
    partitions: PartitionsByModality | None,
) -> MultimodalParams:
    """`select` for indices already checked, with partitions that may differ from the record's."""
    data = _select_payload(
        "MultimodalParams", params.multimodal_data, record, chosen, partitions, ("multimodal_data",)
    )
    given = params.multimodal_input
    if given is not None and len(given.multimodal_hashes) != len(record.item_refs):
        expected = f"{len(record.item_refs)} items"
        path = ("multimodal_input", "multimodal_hashes")
        problem = Problem(path, "count", expected, str(len(given.multimodal_hashes)))
        raise contract_error("MultimodalParams", [problem])
    return MultimodalParams._trusted(
        multimodal_input=None if given is None else given._select_trusted(chosen),
        multimodal_data=data,
        multimodal_runtime=None,
        encoder_state=None,
    )


def chosen_by_modality(item_refs: Sequence[ItemRef], chosen: Sequence[int]) -> dict[str, list[int]]:
    """The modality-local indices of chosen items, per modality in selection order."""
    local_indices: dict[str, list[int]] = {}
    for index in chosen:
        modality, local = item_refs[index]
        if modality in local_indices:
            local_indices[modality].append(local)
        else:
            local_indices[modality] = [local]
    return local_indices


def items_by_modality(item_refs: Sequence[ItemRef]) -> dict[str, int]:
    """The number of items of each modality."""
    counts: dict[str, int] = {}
    for modality, _ in item_refs:
        counts[modality] = counts.get(modality, 0) + 1
    return counts


def _select_payload(
    subject: str,
    data: FrozenMapping[object],
    record: MultimodalItemMetadata,
    chosen: tuple[int, ...],
    partitions: PartitionsByModality | None,
    path: Path,
) -> FrozenMapping[object]:
    num_items = items_by_modality(record.item_refs)
    local_indices = chosen_by_modality(record.item_refs, chosen)
    selected: dict[str, object] = {}
    for key, value in data.items():
        if key == EMBEDDING_KEY:
            selected[key] = _select_embeddings(subject, value, record, chosen, (*path, key))
        elif key == ITEM_METADATA_KEY or key not in num_items:
            selected[key] = value
        elif key in local_indices:
            declared = None if partitions is None else partitions.get(key)
            selected[key] = _select_fields(
                subject, key, value, declared, local_indices[key], num_items[key], path
            )
    is_complete = ITEM_METADATA_KEY in data
    selected[ITEM_METADATA_KEY] = record._select_trusted(chosen)
    return FrozenMapping._wrap(selected, data._depth if is_complete else 0)


def _select_fields(
    subject: str,
    modality: str,
    payload: object,
    declared: Mapping[str, MultimodalItemPartition] | None,
    local_indices: Sequence[int],
    num_items: int,
    path: Path,
) -> object:
    """One modality's payload, reduced to the given modality-local items."""
    path = (*path, modality)
    if list(local_indices) == list(range(num_items)):
        return payload  # every item in its own order, whatever the layout
    if declared is not None and not declared:
        return payload
    if not isinstance(payload, FrozenMapping):
        problem = Problem(path, "type", "a mapping of fields", describe(payload))
        raise contract_error(subject, [problem])
    if declared is None:
        declared, problems = compatible_partitions(payload, modality, num_items, path)
        if problems:
            raise contract_error(subject, problems)
    picker = ItemPicker(subject, local_indices, num_items)
    fields: dict[str, object] = {}
    for name, value in payload.items():
        partition = declared.get(name)
        fields[name] = value if partition is None else picker.pick(value, partition, (*path, name))
    return FrozenMapping._wrap(fields, payload._depth)


def _select_embeddings(
    subject: str,
    embeddings: object,
    record: MultimodalItemMetadata,
    chosen: tuple[int, ...],
    path: Path,
) -> object:
    """Attached embeddings, one value per item or one tensor of all rows, in prompt order."""
    num_items = len(record.item_refs)
    if chosen == tuple(range(num_items)):
        return embeddings
    partition = _BATCHED
    if type(embeddings) is not tuple:
        rows = record.output_embedding_lengths
        if rows is None:
            expected = "output_embedding_lengths, to find an item's rows in one tensor"
            problem = Problem(path, "missing", expected, describe(embeddings))
            raise contract_error(subject, [problem])
        partition = MultimodalItemPartition._trusted(item_lengths=rows, axis=0)
    return ItemPicker(subject, chosen, num_items).pick(embeddings, partition, path)
