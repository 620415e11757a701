"""`HuggingFaceProcessor`: a `MultimodalProcessor` made of one layout per modality."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from omniwire.contracts import (
    FrozenMapping,
    MultimodalInput,
    MultimodalItemMetadata,
    MultimodalParams,
    Problem,
    ProcessedRequest,
    TokenIds,
    content_hash,
)
from omniwire.contracts.checks import raise_problems
from omniwire.contracts.describe import describe
from omniwire.contracts.errors import contract_error
from omniwire.contracts.guard import guarded
from omniwire.contracts.params import ITEM_METADATA_KEY
from omniwire.integrations.huggingface.layout import ItemLayout, ModalityLayout
from omniwire.integrations.huggingface.prompt import Placeholders, find_items
from omniwire.runtime import prepare_request, select

_SUBJECT: Final = "HuggingFaceProcessor"
_MEMBERS: Final = ("field_names", "items", "dummy")


class HuggingFaceProcessor:
    """Describes what a transformers processor emits; immutable, holds no payload.

    Args:
        layouts: The layout of each modality: those of this package, or your own.
        placeholder_ids: The token id of each modality that stands in the prompt once per
            embedding row (`image_token_id` and its like). With them, order, positions and
            runs are read from the prompt; without, the order must be given.

    Raises:
        ContractError: An argument has the wrong type, a layout lacks a member, or a
            placeholder's modality has no layout.

    >>> from omniwire.integrations.huggingface import QwenImages
    >>> processor = HuggingFaceProcessor({"image": QwenImages()}, {"image": 5})
    >>> outputs = {"pixel_values": torch.zeros(20, 1176),
    ...            "image_grid_thw": torch.tensor([[1, 4, 4], [1, 2, 2]])}
    >>> payload = processor.payload(image=outputs)
    >>> request = processor.prepare("r1", [1, 5, 5, 5, 5, 2, 5, 3], payload)
    >>> request.multimodal_params.item_metadata.output_embedding_lengths
    (4, 1)
    >>> request.multimodal_params.multimodal_input.multimodal_positions
    (1, 6)
    """

    @guarded
    def __init__(
        self,
        layouts: Mapping[str, ModalityLayout],
        placeholder_ids: Mapping[str, int] | None = None,
    ) -> None:
        problems = [
            Problem(("layouts", modality), "missing", f"a layout's {member}", "none")
            for modality, layout in layouts.items()
            for member in _MEMBERS
            if not hasattr(layout, member)
        ]
        raise_problems(_SUBJECT, problems)
        self._layouts = dict(layouts)
        self._placeholder_ids = None if placeholder_ids is None else dict(placeholder_ids)
        unknown = [name for name in self._placeholder_ids or () if name not in self._layouts]
        if unknown:
            expected = f"a modality with a layout ({', '.join(self._layouts)})"
            problems = [Problem(("placeholder_ids",), "unknown", expected, n) for n in unknown]
            raise contract_error(_SUBJECT, problems)

    @property
    def settings(self) -> str:
        """Every setting of the layouts as text: part of an encoder output's identity."""
        return repr(sorted(self._layouts.items()))

    @guarded
    def payload(self, **outputs: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """The payload by modality, out of what transformers processors returned.

        Args:
            **outputs: By modality, what its processor returned (one output of a whole
                processor may be given for several modalities). The fields of the layout are
                taken, others left; lists become tuples at preparation.

        Raises:
            ContractValueError: A modality without a layout.
        """
        self._check_modalities(outputs, ())
        return {
            modality: {
                name: output[name]
                for name in self._layouts[modality].field_names
                if name in output and output[name] is not None
            }
            for modality, output in outputs.items()
        }

    @guarded
    def get_mm_item_metadata(
        self,
        prompt_token_ids: Sequence[int] | np.ndarray | torch.Tensor | TokenIds,
        multimodal_data: Mapping[str, Any],
        mm_item_order: Sequence[tuple[str, int]] | None = None,
    ) -> MultimodalItemMetadata | None:
        """Order, encoder tokens, rows and partitions of a request's items.

        Args:
            prompt_token_ids: The whole prompt, placeholders expanded.
            multimodal_data: The payload by modality, of which those with a layout are read.
            mm_item_order: The items in prompt order. None reads it from the prompt, or with one
                modality takes the items as they stand.

        Returns:
            The record, or None for a payload without items.

        Raises:
            ContractError: A payload does not fit its layout; the order cannot be told, or is
                not the one that the prompt has.
        """
        items = self._items(multimodal_data)
        if not any(one.output_embedding_lengths for one in items.values()):
            return None
        if mm_item_order is None and self._placeholder_ids is None and len(items) == 1:
            ((modality, one),) = items.items()
            order = [(modality, index) for index in range(len(one.output_embedding_lengths))]
            return _record(order, items)
        has_placeholders = items.keys() <= (self._placeholder_ids or {}).keys()
        if mm_item_order is not None and not has_placeholders:
            return _record(mm_item_order, items)
        found = self._find(prompt_token_ids, items, mm_item_order)
        return _record(found.item_order, items)

    @guarded
    def get_dummy_mm_data(self, max_items: Mapping[str, int]) -> Mapping[str, Any]:
        """A payload of the largest items, of zeros, with the record; for start-up profiling.

        Args:
            max_items: Number of items wanted per modality.

        Raises:
            ContractValueError: A modality without a layout.
        """
        wanted = {modality: count for modality, count in max_items.items() if count > 0}
        self._check_modalities(wanted, ("max_items",))
        data: dict[str, Any] = {
            modality: self._layouts[modality].dummy(count) for modality, count in wanted.items()
        }
        items = self._items(data)
        order = [
            (modality, index)
            for modality, one in items.items()
            for index in range(len(one.output_embedding_lengths))
        ]
        if order:
            data[ITEM_METADATA_KEY] = _record(order, items)
        return data

    @guarded
    def prepare(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int] | np.ndarray | torch.Tensor | TokenIds,
        multimodal_data: Mapping[str, Any],
        mm_item_order: Sequence[tuple[str, int]] | None = None,
    ) -> ProcessedRequest:
        """`prepare_request` with everything that payload and prompt tell.

        Order, positions and runs come from the placeholders, each item's hash from its own
        part of the payload. Call `check_producer` on the result.

        Args:
            request_id: Non-empty.
            prompt_token_ids: The whole prompt, placeholders expanded.
            multimodal_data: The payload by modality, as `payload` returns it.
            mm_item_order: The items in prompt order; needed only where two modalities have
                the same placeholder (InternVL).

        Raises:
            ContractError: As for `get_mm_item_metadata` and `prepare_request`; also if there
                are items and no `placeholder_ids` to find them by.
        """
        tokens = TokenIds(prompt_token_ids)
        data = FrozenMapping(multimodal_data)
        items = self._items(data)
        if not any(one.output_embedding_lengths for one in items.values()):
            return prepare_request(self, request_id, tokens, data, mm_item_order)
        found = self._find(tokens, items, mm_item_order)
        record = _record(found.item_order, items)
        whole = MultimodalParams(multimodal_data={**data, ITEM_METADATA_KEY: record})
        digests = [
            content_hash(select(whole, [index]).multimodal_data[modality])
            for index, (modality, _) in enumerate(found.item_order)
        ]
        located = MultimodalInput.from_hexdigests(
            digests,
            found.positions,
            found.num_prompt_tokens,
            multimodal_item_run_cu_offsets=found.run_cu_offsets,
            multimodal_run_positions=found.run_positions,
            multimodal_run_lengths=found.run_lengths,
        )
        return prepare_request(
            self, request_id, tokens, data, found.item_order, multimodal_input=located
        )

    def _items(self, data: Mapping[str, Any]) -> dict[str, ItemLayout]:
        """The items of every modality with a layout and a payload that is not empty."""
        found: dict[str, ItemLayout] = {}
        for modality, layout in self._layouts.items():
            fields = data.get(modality)
            if fields is None or fields == {}:
                continue
            path = (modality,)
            if not isinstance(fields, Mapping):
                problem = Problem(path, "type", "a mapping of fields", describe(fields))
                raise contract_error("multimodal_data", [problem])
            found[modality] = layout.items(fields, path)
        return found

    def _find(
        self,
        prompt_token_ids: Sequence[int] | np.ndarray | torch.Tensor | TokenIds,
        items: Mapping[str, ItemLayout],
        mm_item_order: Sequence[tuple[str, int]] | None,
    ) -> Placeholders:
        ids = self._placeholder_ids or {}
        missing = [modality for modality in items if modality not in ids]
        if missing:
            expected = f"the placeholder of {', '.join(missing)}, to find its items in the prompt"
            problem = Problem(("placeholder_ids",), "missing", expected, describe(None))
            raise contract_error(_SUBJECT, [problem])
        if mm_item_order is not None:
            _record(mm_item_order, items)
        rows = {modality: one.output_embedding_lengths for modality, one in items.items()}
        return find_items(TokenIds(prompt_token_ids), ids, rows, mm_item_order)

    def _check_modalities(self, names: Mapping[str, object], path: tuple[str, ...]) -> None:
        expected = f"a modality with a layout ({', '.join(self._layouts)})"
        problems = [
            Problem((*path, name), "unknown", expected, describe(name))
            for name in names
            if name not in self._layouts
        ]
        if problems:
            raise contract_error(_SUBJECT, problems)


def _record(
    order: Sequence[tuple[str, int]], items: Mapping[str, ItemLayout]
) -> MultimodalItemMetadata:
    problems: list[Problem] = []
    for position, (modality, index) in enumerate(order):
        count = len(items[modality].output_embedding_lengths) if modality in items else 0
        if not 0 <= index < count:
            expected, got = f"one of the {count} {modality} items", f"({modality}, {index})"
            problems.append(Problem(("mm_item_order", position), "index", expected, got))
    num_items = sum(len(one.output_embedding_lengths) for one in items.values())
    if not problems and len(order) != num_items:
        expected = f"the {num_items} items of the payload"
        problems.append(Problem(("mm_item_order",), "count", expected, str(len(order))))
    if problems:
        raise contract_error(_SUBJECT, problems)
    present = dict.fromkeys(modality for modality, _ in order)
    return MultimodalItemMetadata(
        tuple(order),
        [items[modality].encoder_token_lengths[index] for modality, index in order],
        [items[modality].output_embedding_lengths[index] for modality, index in order],
        {modality: items[modality].partitions for modality in present},
    )
