"""prepare_request: where the one record of a request comes from."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from omniwire.contracts import (
    ContractTypeError,
    ContractValueError,
    MultimodalInput,
    MultimodalItemMetadata,
    MultimodalItemPartition,
    MultimodalParams,
    ProcessedRequest,
    TokenIds,
)
from omniwire.runtime import MultimodalProcessor, prepare_request

IMAGES = [("image", 0), ("image", 1)]
PAYLOAD = {"image": {"x": torch.arange(2)}}
INPUT = MultimodalInput([[1] * 8, [2] * 8], [0, 2], [2, 2])


class Processor:
    """A processor whose hook gives a fixed record and notes its arguments."""

    def __init__(self, record: object = None) -> None:
        self.record = record
        self.calls: list[tuple[object, object, object]] = []

    def get_mm_item_metadata(
        self,
        prompt_token_ids: Sequence[int],
        multimodal_data: Mapping[str, Any],
        mm_item_order: Sequence[tuple[str, int]] | None = None,
    ) -> MultimodalItemMetadata | None:
        self.calls.append((prompt_token_ids, multimodal_data, mm_item_order))
        return self.record  # type: ignore[return-value]  # wrong ones are tested too


def record_of(request: ProcessedRequest) -> MultimodalItemMetadata:
    assert request.multimodal_params is not None
    record = request.multimodal_params.item_metadata
    assert record is not None
    return record


def test_order_and_rows_come_from_preparation_and_the_rest_from_the_model() -> None:
    partitions = {"image": {"x": MultimodalItemPartition()}}
    model = MultimodalItemMetadata(IMAGES, [16, 24], None, partitions)
    request = prepare_request(
        Processor(model), "r1", [9] * 4, PAYLOAD, IMAGES, [4, 6], multimodal_input=INPUT
    )
    expected = MultimodalItemMetadata(IMAGES, [16, 24], [4, 6], partitions)
    assert request == ProcessedRequest(
        "r1", [9] * 4, MultimodalParams(INPUT, {**PAYLOAD, "item_metadata": expected})
    )


def test_what_the_model_leaves_open_is_not_erased() -> None:
    request = prepare_request(Processor(None), "r1", [9] * 4, PAYLOAD, IMAGES, [4, 6])
    assert record_of(request) == MultimodalItemMetadata(IMAGES, None, [4, 6], None)


def test_rows_that_disagree_name_the_element() -> None:
    model = MultimodalItemMetadata(IMAGES, None, [4, 7])
    with pytest.raises(ContractValueError) as caught:
        prepare_request(Processor(model), "r1", [9] * 4, PAYLOAD, IMAGES, [4, 6])
    problem = caught.value.problems[0]
    assert (problem.path, problem.code) == (("output_embedding_lengths", 1), "conflict")


def test_an_order_that_disagrees_is_an_error() -> None:
    """TensorRT-LLM#16792, lmdeploy#1686, #4141: the order recorded first is not overruled."""
    model = MultimodalItemMetadata([("image", 1), ("image", 0)])
    with pytest.raises(ContractValueError) as caught:
        prepare_request(Processor(model), "r1", [9] * 4, PAYLOAD, IMAGES)
    assert {problem.path[0] for problem in caught.value.problems} == {"item_refs"}
    assert {problem.code for problem in caught.value.problems} == {"conflict"}


def test_the_hook_sees_the_prompt_the_frozen_payload_and_the_order() -> None:
    processor = Processor()
    prepare_request(processor, "r1", [9, 8], {"image": {"sizes": [1, 2]}}, IMAGES)
    ((token_ids, data, order),) = processor.calls
    assert token_ids == TokenIds([9, 8])
    assert data == MultimodalParams(multimodal_data={"image": {"sizes": (1, 2)}}).multimodal_data
    assert order == IMAGES


@pytest.mark.parametrize("data", [None, {}, {"mrope_config": {"x": 1}}, {"image": {}, "audio": {}}])
def test_a_text_only_request_has_no_params(data: Mapping[str, Any] | None) -> None:
    assert prepare_request(Processor(), "r1", [1, 2], data) == ProcessedRequest("r1", [1, 2])


def test_modalities_without_items_are_dropped() -> None:
    data = {
        **PAYLOAD,
        "video": {"pixel_values_videos": None},
        "audio": {"x": torch.zeros(0, 80), "n": []},
        "mrope_config": {},
        "note": "kept",
    }
    request = prepare_request(Processor(), "r1", [9] * 4, data, IMAGES)
    assert request.multimodal_params is not None
    kept = request.multimodal_params.multimodal_data
    assert set(kept) == {"image", "mrope_config", "note", "item_metadata"}


def test_a_modality_with_items_keeps_even_an_empty_payload() -> None:
    request = prepare_request(Processor(), "r1", [9], {"image": {}}, [("image", 0)])
    assert request.multimodal_params is not None
    assert "image" in request.multimodal_params.multimodal_data


@pytest.mark.parametrize(
    ("record", "rows", "given"),
    [
        (MultimodalItemMetadata(IMAGES), None, None),
        (None, [4, 6], None),
        (None, None, INPUT),
        (None, [4, 6], INPUT),
    ],
)
def test_one_modality_needs_no_order(
    record: MultimodalItemMetadata | None, rows: list[int] | None, given: MultimodalInput | None
) -> None:
    request = prepare_request(
        Processor(record),
        "r1",
        [9] * 4,
        PAYLOAD,
        output_embedding_lengths=rows,
        multimodal_input=given,
    )
    assert record_of(request) == MultimodalItemMetadata(IMAGES, None, rows)


def test_a_record_in_the_payload_takes_part() -> None:
    brought = MultimodalItemMetadata(IMAGES, [16, 24])
    model = MultimodalItemMetadata(IMAGES, None, [4, 6])
    request = prepare_request(
        Processor(model), "r1", [9] * 4, {**PAYLOAD, "item_metadata": brought}
    )
    assert record_of(request) == MultimodalItemMetadata(IMAGES, [16, 24], [4, 6])


TWO = {**PAYLOAD, "audio": {"x": torch.arange(1)}}
MIXED = MultimodalItemMetadata([("audio", 0), ("image", 0)])


@pytest.mark.parametrize(
    ("record", "data", "order", "rows"),
    [
        (MIXED, TWO, None, None),  # more than one modality
        (None, TWO, None, [1, 2]),
        (None, PAYLOAD, None, None),  # nothing to count by
        (None, PAYLOAD, [], None),  # a payload that no item refers to
        (MultimodalItemMetadata([]), PAYLOAD, None, None),
        (None, {"multimodal_embedding": torch.zeros(4, 1)}, None, [2, 2]),
        (None, {"image": torch.zeros(4, 1)}, None, [2, 2]),
        (None, None, None, [2, 2]),
    ],
)
def test_an_order_that_cannot_be_told_is_asked_for(
    record: MultimodalItemMetadata | None,
    data: Mapping[str, Any] | None,
    order: list[tuple[str, int]] | None,
    rows: list[int] | None,
) -> None:
    with pytest.raises(ContractValueError) as caught:
        prepare_request(Processor(record), "r1", [9] * 4, data, order, rows)
    problems = caught.value.problems
    assert [(p.path, p.code) for p in problems] == [(("mm_item_order",), "missing")]


def test_the_order_is_checked_like_any_record() -> None:
    with pytest.raises(ContractValueError) as caught:
        prepare_request(Processor(), "r1", [9], PAYLOAD, [("image", 0), ("image", 0)])
    problems = caught.value.problems
    assert [(p.path, p.code) for p in problems] == [(("item_refs", 1), "duplicate")]


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ((object(), "r1", [1], None), ("processor",)),
        ((Processor(), "r1", [1], [PAYLOAD]), ("multimodal_data",)),
        ((Processor("x"), "r1", [1], PAYLOAD, IMAGES), ("get_mm_item_metadata",)),
        ((Processor(), 7, [1], None), ("request_id",)),
        (
            (Processor(), "r1", [1], {"image": {"x": object()}}),
            ("multimodal_data", "image", "x"),
        ),
    ],
)
def test_wrong_types(arguments: tuple[Any, ...], path: tuple[str, ...]) -> None:
    with pytest.raises(ContractTypeError) as caught:
        prepare_request(*arguments)
    assert caught.value.problems[0].path == path


def test_preparation_leaves_producer_checks_to_check_producer() -> None:
    record = MultimodalItemMetadata(
        IMAGES, input_partitions={"image": {"x": MultimodalItemPartition(item_lengths=(2, 3))}}
    )
    request = prepare_request(Processor(record), "r1", [9] * 4, PAYLOAD)
    assert record_of(request) == record


def test_the_protocol_is_what_a_whole_processor_provides() -> None:
    class Whole(Processor):
        def get_dummy_mm_data(self, max_items: Mapping[str, int]) -> Mapping[str, Any]:
            return {}

    assert isinstance(Whole(), MultimodalProcessor)
    assert not isinstance(Processor(), MultimodalProcessor)
