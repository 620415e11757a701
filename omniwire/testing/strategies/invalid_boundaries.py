"""Requests whose parts are valid each by itself, and that a boundary refuses together."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from omniwire.contracts import (
    EncoderBudget,
    EncoderCapability,
    MultimodalInput,
    MultimodalItemMetadata,
    MultimodalItemPartition,
    MultimodalParams,
    MultimodalRuntimeData,
    ProcessedRequest,
    check_admission,
    check_producer,
)
from omniwire.contracts.errors import Path
from omniwire.contracts.params import EMBEDDING_KEY, ITEM_METADATA_KEY
from omniwire.testing.strategies.invalid import Defect, Invalid

_PARAMS: Final = ("multimodal_params",)
_INPUT: Final = (*_PARAMS, "multimodal_input")
_DATA: Final = (*_PARAMS, "multimodal_data")
_RECORD: Final = (*_DATA, ITEM_METADATA_KEY)

_REFS: Final = (("image", 1), ("audio", 0), ("image", 0))
_COSTS: Final = (16, 8, 24)
_ROWS: Final = (4, 2, 6)
_NUM_PROMPT_TOKENS: Final = 20


def requests_refused_by_producer() -> SearchStrategy[Invalid]:
    """Calls of `check_producer` with a request whose parts disagree.

    >>> from hypothesis import find
    >>> find(requests_refused_by_producer(), lambda invalid: invalid.code == "sum").path
    ('multimodal_params', 'multimodal_data', 'image', 'pixel_values')
    """
    return st.one_of([_refused(check_producer, defect) for defect in _PRODUCER_DEFECTS])


def requests_refused_by_admission() -> SearchStrategy[Invalid]:
    """Calls of `check_admission` with a request that is inconsistent or cannot be scheduled."""
    defects = (*_PRODUCER_DEFECTS, *_ADMISSION_DEFECTS)
    return st.one_of([_refused(check_admission, defect) for defect in defects])


@st.composite
def _refused(draw: DrawFn, check: Callable[..., object], defect: Defect) -> Invalid:
    """A call of a check with a request of three items and one defect."""
    images = {
        "pixel_values": torch.zeros(3, 5),
        "image_grid_thw": torch.zeros(2, 3, dtype=torch.int64),
        "sizes": ((480, 640), (32, 32)),
    }
    parts: dict[str, Any] = {
        "item_refs": _REFS,
        "encoder_token_lengths": _COSTS,
        "output_embedding_lengths": _ROWS,
        "input_partitions": {
            "image": {
                "pixel_values": MultimodalItemPartition((2, 3), axis=1),
                "image_grid_thw": MultimodalItemPartition(),
                "sizes": MultimodalItemPartition(),
            },
            "audio": {"input_features": MultimodalItemPartition()},
        },
        "payload": {"image": images, "audio": {"input_features": torch.zeros(1, 8)}},
        "positions": [2, 7, 10],
        "lengths": [4, 2, 6],
        "runtime": None,
        "state": None,
        "capability": EncoderCapability(),
        "budget": EncoderBudget(24, 600, 100),
    }
    path, code = defect(draw, parts)
    arguments: dict[str, object] = {"request": _request(parts)}
    if check is check_admission:
        arguments.update(capability=parts["capability"], budget=parts["budget"])
    return Invalid(check, arguments, path, code)


def _request(parts: dict[str, Any]) -> ProcessedRequest:
    payload = dict(parts["payload"])
    if parts["item_refs"] is not None:
        payload[ITEM_METADATA_KEY] = MultimodalItemMetadata(
            parts["item_refs"],
            parts["encoder_token_lengths"],
            parts["output_embedding_lengths"],
            parts["input_partitions"],
        )
    num_items = len(parts["positions"])
    inputs = MultimodalInput([[0] * 8] * num_items, parts["positions"], parts["lengths"])
    params = MultimodalParams(inputs, payload, parts["runtime"], parts["state"])
    return ProcessedRequest("r1", [1] * _NUM_PROMPT_TOKENS, params)


def _field(name: str, values: SearchStrategy[object], code: str, inside: Path = ()) -> Defect:
    """A value that does not divide into the two images, or into one of the mapping inside."""

    def put_in(draw: DrawFn, parts: dict[str, Any]) -> tuple[Path, str]:
        value = draw(values)
        for key in reversed(inside):
            value = {key: value}
        parts["payload"]["image"][name] = value
        return (*_DATA, "image", name, *inside), code

    return put_in


def _zeros(*shapes: tuple[int, ...]) -> SearchStrategy[torch.Tensor]:
    return st.builds(torch.zeros, st.sampled_from(shapes))


def _missing_field(draw: DrawFn, parts: dict[str, Any]) -> tuple[Path, str]:
    name = draw(st.sampled_from(sorted(parts["payload"]["image"])))
    del parts["payload"]["image"][name]
    return (*_DATA, "image", name), "missing"


def _missing_payload(_: DrawFn, parts: dict[str, Any]) -> tuple[Path, str]:
    del parts["payload"]["audio"]
    return (*_DATA, "audio", "input_features"), "missing"


def _payload_without_fields(draw: DrawFn, parts: dict[str, Any]) -> tuple[Path, str]:
    parts["payload"]["audio"] = draw(_zeros((1, 8)) | st.sampled_from([(), "wav", 1]))
    return (*_DATA, "audio"), "type"


def _fewer_hashes(_: DrawFn, parts: dict[str, Any]) -> tuple[Path, str]:
    parts.update(positions=[2, 7], lengths=[4, 2])
    return (*_INPUT, "multimodal_hashes"), "count"


def _overlapping_spans(draw: DrawFn, parts: dict[str, Any]) -> tuple[Path, str]:
    parts["positions"] = [2, draw(st.integers(0, 5)), 10]
    return (*_INPUT, "multimodal_positions", 1), "order"


def _span_beyond_prompt(draw: DrawFn, parts: dict[str, Any]) -> tuple[Path, str]:
    parts["positions"] = [2, 7, draw(st.integers(_NUM_PROMPT_TOKENS - 5, 100))]
    return (*_INPUT, "multimodal_positions", 2), "range"


def _embeddings(
    values: SearchStrategy[object], code: str, inside: Path = (), hidden_size: int | None = None
) -> Defect:
    """Attached embeddings, with or without the payload that they make superfluous."""

    def put_in(draw: DrawFn, parts: dict[str, Any]) -> tuple[Path, str]:
        if draw(st.booleans()):
            parts["payload"] = {}
        parts["payload"][EMBEDDING_KEY] = draw(values)
        parts["capability"] = EncoderCapability(hidden_size=hidden_size)
        return (*_DATA, EMBEDDING_KEY, *inside), code

    return put_in


def _per_item(*rows: int) -> SearchStrategy[tuple[torch.Tensor, ...]]:
    return st.tuples(*[_zeros((count, 3)) for count in rows])


def _live_state(draw: DrawFn, parts: dict[str, Any]) -> tuple[Path, str]:
    parts["state"] = draw(st.builds(object))
    return (*_PARAMS, "encoder_state"), "state"


def _runtime_of_a_view(_: DrawFn, parts: dict[str, Any]) -> tuple[Path, str]:
    parts["runtime"] = MultimodalRuntimeData(0, 1, 0, 0, 0)
    return (*_PARAMS, "multimodal_runtime"), "state"


def _no_record(_: DrawFn, parts: dict[str, Any]) -> tuple[Path, str]:
    parts["item_refs"] = None
    return _RECORD, "missing"


def _unknown_lengths(draw: DrawFn, parts: dict[str, Any]) -> tuple[Path, str]:
    name = draw(st.sampled_from(["encoder_token_lengths", "output_embedding_lengths"]))
    parts[name] = None
    return (*_RECORD, name), "missing"


def _undeclared_modality(draw: DrawFn, parts: dict[str, Any]) -> tuple[Path, str]:
    modality = draw(st.sampled_from(["image", "audio"]))
    del parts["input_partitions"][modality]
    return (*_RECORD, "input_partitions", modality), "missing"


def _over_token_budget(draw: DrawFn, parts: dict[str, Any]) -> tuple[Path, str]:
    parts["budget"] = EncoderBudget(draw(st.integers(16, 23)), 600, 100)
    return (*_RECORD, "encoder_token_lengths", 2), "budget"


def _over_byte_budget(draw: DrawFn, parts: dict[str, Any]) -> tuple[Path, str]:
    parts["budget"] = EncoderBudget(24, draw(st.integers(400, 599)), 100)
    return (*_RECORD, "output_embedding_lengths", 2), "budget"


_PRODUCER_DEFECTS: Final[Sequence[Defect]] = (
    _field("image_grid_thw", _zeros((1, 3), (3, 3), (0, 3)), "count"),
    _field("image_grid_thw", _zeros((1, 3), (3, 3)), "count", ("thumbnail", "grid")),
    _field("sizes", st.sampled_from([(), (1,), (1, 2, 3)]), "count"),
    _field("pixel_values", _zeros((5, 4), (3, 6), (2, 0)), "sum"),
    _field("pixel_values", _zeros((5,), ()), "axis"),
    _field("pixel_values", st.sampled_from(["rows", 5, None]), "type"),
    _missing_field,
    _missing_payload,
    _payload_without_fields,
    _fewer_hashes,
    _overlapping_spans,
    _span_beyond_prompt,
    _embeddings(_zeros((11, 3), (13, 3), (0, 3)), "count"),
    _embeddings(_zeros((12,), ()), "shape"),
    _embeddings(_per_item(4, 2), "count"),
    _embeddings(_per_item(4, 3, 6), "count", (1,)),
    _live_state,
    _runtime_of_a_view,
)
_ADMISSION_DEFECTS: Final[Sequence[Defect]] = (
    _no_record,
    _unknown_lengths,
    _undeclared_modality,
    _over_token_budget,
    _over_byte_budget,
    _embeddings(_zeros((12, 3)), "shape", hidden_size=4),
    _embeddings(
        _per_item(4, 2, 6).map(lambda one: (*one[:2], torch.zeros(6, 4))), "shape", (2,), 3
    ),
)
