"""The items of a decoded object, in prompt order, with all that is known of each."""

import struct
from collections.abc import Sequence
from typing import TypeVar

import attrs

from omniwire.contracts import (
    ItemRef,
    MultimodalInput,
    MultimodalItemMetadata,
    MultimodalParams,
    ProcessedRequest,
)
from omniwire.contracts.runtime_data import item_runs

T = TypeVar("T")

Run = tuple[int, int]
"""The prompt position of a run's first token, and its number of prompt tokens."""


@attrs.frozen(eq=False)
class Item:
    """One item; None where nothing is known.

    Attributes:
        index: Prompt-global index.
        ref: Modality and modality-local index.
        prompt_position: Prompt position of its first token.
        num_prompt_tokens: Framing tokens included.
        runs: Its runs in the prompt; without exact runs, its span.
        num_encoder_tokens: What it costs to encode.
        num_embedding_rows: What the encoder yields.
        hexdigest: Its content hash, 64 hex digits.
        uuid: The id that its sender gave it.
    """

    index: int
    ref: ItemRef | None
    prompt_position: int | None
    num_prompt_tokens: int | None
    runs: tuple[Run, ...]
    num_encoder_tokens: int | None
    num_embedding_rows: int | None
    hexdigest: str | None
    uuid: str | None


@attrs.frozen(eq=False)
class Items:
    """The items of a request.

    Attributes:
        rows: Each item, in prompt order.
        num_prompt_tokens: Length of the prompt, or None when only positions are known.
        has_positions: Whether it is known where in the prompt the items are.
        has_exact_runs: Whether their runs are known, rather than first and last position.
    """

    rows: tuple[Item, ...]
    num_prompt_tokens: int | None
    has_positions: bool
    has_exact_runs: bool


def items_of(obj: object) -> Items | None:
    """The items that a request, its params or one of their two item records tells of.

    Returns:
        None for other objects and for those without items.
    """
    num_prompt_tokens = len(obj.prompt_token_ids) if isinstance(obj, ProcessedRequest) else None
    record, inputs = records_of(obj)
    num_items = max(
        0 if record is None else len(record.item_refs),
        0 if inputs is None else len(inputs.multimodal_hashes),
    )
    if not num_items:
        return None
    runs = [] if inputs is None else item_runs(inputs)
    rows = tuple(_item(index, record, inputs, _at(runs, index)) for index in range(num_items))
    exact = inputs is not None and inputs.multimodal_run_positions is not None
    return Items(rows, num_prompt_tokens, inputs is not None, exact)


def records_of(obj: object) -> tuple[MultimodalItemMetadata | None, MultimodalInput | None]:
    """The two item records of a request, its params or of one of them; None where it is not."""
    params = obj.multimodal_params if isinstance(obj, ProcessedRequest) else obj
    if isinstance(params, MultimodalParams):
        return params.item_metadata, params.multimodal_input
    return (
        params if isinstance(params, MultimodalItemMetadata) else None,
        params if isinstance(params, MultimodalInput) else None,
    )


def _item(
    index: int,
    record: MultimodalItemMetadata | None,
    inputs: MultimodalInput | None,
    runs: list[Run] | None,
) -> Item:
    """What the two records, which may disagree about how many items there are, tell of one."""
    words = None if inputs is None else _at(inputs.multimodal_hashes, index)
    return Item(
        index=index,
        ref=None if record is None else _at(record.item_refs, index),
        prompt_position=None if inputs is None else _at(inputs.multimodal_positions, index),
        num_prompt_tokens=None if inputs is None else _at(inputs.multimodal_lengths, index),
        runs=tuple(runs or ()),
        num_encoder_tokens=None if record is None else _at(record.encoder_token_lengths, index),
        num_embedding_rows=None if record is None else _at(record.output_embedding_lengths, index),
        hexdigest=None if words is None else struct.pack(">8i", *words).hex(),
        uuid=None if inputs is None else _at(inputs.multimodal_uuids, index),
    )


def _at(values: Sequence[T] | None, index: int) -> T | None:
    return values[index] if values is not None and index < len(values) else None
