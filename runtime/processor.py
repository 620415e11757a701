"""The processor side: the hooks of a model's processor, and what every request goes through."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
import torch

from omniwire.contracts.describe import describe
from omniwire.contracts.errors import Problem, contract_error
from omniwire.contracts.frozen import FrozenMapping
from omniwire.contracts.guard import guarded
from omniwire.contracts.inputs import MultimodalInput
from omniwire.contracts.items import MultimodalItemMetadata
from omniwire.contracts.params import (
    ITEM_METADATA_KEY,
    MROPE_KEY,
    RESERVED_KEYS,
    MultimodalParams,
)
from omniwire.contracts.requests import ProcessedRequest
from omniwire.contracts.tokens import TokenIds

_SUBJECT: Final = "prepare_request"
_NOT_PAYLOAD: Final = (ITEM_METADATA_KEY, MROPE_KEY)


@runtime_checkable
class ItemMetadataSource(Protocol):
    """The part of a processor that `prepare_request` calls."""

    def get_mm_item_metadata(
        self,
        prompt_token_ids: Sequence[int],
        multimodal_data: Mapping[str, Any],
        mm_item_order: Sequence[tuple[str, int]] | None = None,
    ) -> MultimodalItemMetadata | None:
        """What the model knows of a request's items: encoder costs, rows, input partitions.

        Args:
            prompt_token_ids: The whole prompt, placeholders included.
            multimodal_data: The processed payload by modality; read-only.
            mm_item_order: `(modality, local index)` of the items in prompt order, None if the
                request has one modality and its items stand in order.

        Returns:
            The record with unknown fields None, or None if the model knows nothing.
        """
        ...


@runtime_checkable
class MultimodalProcessor(ItemMetadataSource, Protocol):
    """What a model's processor provides beside turning media into tensors."""

    def get_dummy_mm_data(self, max_items: Mapping[str, int]) -> Mapping[str, Any]:
        """A payload of the largest items, for profiling at start-up.

        Args:
            max_items: Number of items wanted per modality.

        Returns:
            A payload of the form of `MultimodalParams.multimodal_data`, with the record under
            `"item_metadata"`, exact row counts included.
        """
        ...


@guarded
def prepare_request(
    processor: ItemMetadataSource,
    request_id: str,
    prompt_token_ids: Sequence[int] | np.ndarray | torch.Tensor | TokenIds,
    multimodal_data: Mapping[str, Any] | None,
    mm_item_order: Sequence[tuple[str, int]] | None = None,
    output_embedding_lengths: Sequence[int] | None = None,
    multimodal_input: MultimodalInput | None = None,
) -> ProcessedRequest:
    """Give a request its one item metadata record: the order and rows known here, the model's rest.

    The record merges three parts: the order and rows of the arguments, a record that
    `multimodal_data` brings along, and the one of `processor.get_mm_item_metadata`. What is
    None in one never erases what another knows.

    Without `mm_item_order` the references come from the model's record or the one in the
    payload. If there is none, the payload must have one modality (one mapping besides the
    reserved keys) and its items are counted by `output_embedding_lengths`, else by
    `multimodal_input`; they stand in order. Nothing is counted from tensor shapes.

    Payload mappings that no item refers to and that hold no value are dropped: modalities
    without items. A request without any item, and with nothing in its payload that could
    belong to one, is text-only and has no params. Call `check_producer` on the result.

    Args:
        processor: The model's processor; its hook sees the payload frozen.
        request_id: Non-empty.
        prompt_token_ids: The whole prompt, placeholders included.
        multimodal_data: The processed payload, or None. Tensors are held, not copied.
        mm_item_order: `(modality, local index)` of the items in prompt order; required when
            there is more than one modality.
        output_embedding_lengths: Known embedding rows per item, in prompt order.
        multimodal_input: Hashes and positions of the items, in prompt order.

    Returns:
        The request, with the record under `"item_metadata"` of its payload.

    Raises:
        ContractTypeError: An argument or the hook's result has the wrong type.
        ContractValueError: The order is missing, a record breaks its rules, or two of them
            disagree (at `$.output_embedding_lengths[1]`, say).

    >>> from omniwire.contracts import MultimodalItemMetadata
    >>> class Processor:
    ...     def get_mm_item_metadata(self, prompt_token_ids, multimodal_data, mm_item_order=None):
    ...         return MultimodalItemMetadata(mm_item_order, encoder_token_lengths=[64, 16])
    >>> request = prepare_request(
    ...     Processor(), "r1", [1, 9, 9, 8, 2], {"image": {}, "video": {}},
    ...     mm_item_order=[("video", 0), ("image", 0)], output_embedding_lengths=[2, 1])
    >>> request.multimodal_params.item_metadata.output_embedding_lengths
    (2, 1)
    """
    request = ProcessedRequest(request_id, prompt_token_ids)
    data = MultimodalParams(multimodal_data=multimodal_data or {}).multimodal_data
    num_items = _num_items(output_embedding_lengths, multimodal_input)
    if not data and not mm_item_order and not num_items:
        return request
    known = _known_record(processor, request.prompt_token_ids, data, mm_item_order)
    refs = _item_refs(data, mm_item_order, known, num_items)
    prepared = MultimodalItemMetadata(
        refs,
        output_embedding_lengths=None
        if output_embedding_lengths is None
        else tuple(output_embedding_lengths),
    )
    record = prepared if known is None else prepared.merge(known)
    if not record.item_refs and not num_items:
        return request
    modalities = {ref.modality for ref in record.item_refs}
    payload = {
        key: value
        for key, value in data.items()
        if key in modalities or key in RESERVED_KEYS or not _is_vacuous(value)
    }
    payload[ITEM_METADATA_KEY] = record
    params = MultimodalParams(multimodal_input, payload)
    return ProcessedRequest(request_id, request.prompt_token_ids, params)


def _known_record(
    processor: ItemMetadataSource,
    prompt_token_ids: TokenIds,
    data: FrozenMapping[Any],
    mm_item_order: Sequence[tuple[str, int]] | None,
) -> MultimodalItemMetadata | None:
    """The model's record, merged with the one that the payload brings along."""
    model_record = processor.get_mm_item_metadata(
        prompt_token_ids, data, mm_item_order=mm_item_order
    )
    if model_record is not None and type(model_record) is not MultimodalItemMetadata:
        expected, got = "a MultimodalItemMetadata or None", describe(model_record)
        raise contract_error(_SUBJECT, [Problem(("get_mm_item_metadata",), "type", expected, got)])
    given_record: MultimodalItemMetadata | None = data.get(ITEM_METADATA_KEY)
    if given_record is None:
        return model_record
    return given_record if model_record is None else given_record.merge(model_record)


def _num_items(
    output_embedding_lengths: Sequence[int] | None, multimodal_input: MultimodalInput | None
) -> int | None:
    if output_embedding_lengths is not None:
        return len(output_embedding_lengths)
    return None if multimodal_input is None else len(multimodal_input.multimodal_hashes)


def _item_refs(
    data: FrozenMapping[Any],
    mm_item_order: Sequence[tuple[str, int]] | None,
    known: MultimodalItemMetadata | None,
    num_items: int | None,
) -> tuple[tuple[str, int], ...]:
    """The references in prompt order, or the reason why they cannot be told."""
    payload = [key for key in data if key not in _NOT_PAYLOAD and not _is_vacuous(data[key])]
    if mm_item_order is not None:
        refs: tuple[tuple[str, int], ...] = tuple(mm_item_order)
        modalities = payload
    elif known is not None:
        refs = known.item_refs
        modalities = list(dict.fromkeys(ref.modality for ref in known.item_refs))
    else:
        modalities = [key for key in payload if isinstance(data[key], Mapping)]
        refs = tuple([(key, i) for key in modalities[:1] for i in range(num_items or 0)])
    is_ordered = mm_item_order is not None or len(modalities) <= 1
    if is_ordered and (refs or not (payload or num_items)):
        return refs
    expected = "the order of the items"
    if payload:
        expected += f" that {', '.join(payload)} belong to"
    if len(modalities) == 1:
        expected += ", or output_embedding_lengths or multimodal_input to count them by"
    got = describe(mm_item_order)
    raise contract_error(_SUBJECT, [Problem(("mm_item_order",), "missing", expected, got)])


def _is_vacuous(value: object) -> bool:
    """Whether a payload mapping holds no value: nothing, or only None and empty leaves."""
    if isinstance(value, Mapping):
        return all(part is None or _is_vacuous(part) for part in value.values())
    if isinstance(value, torch.Tensor | np.ndarray):
        return 0 in value.shape
    return value is None or value == ()
