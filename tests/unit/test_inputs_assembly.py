"""Grouped encoding: one call per modality, rows back in each prompt's order."""

from collections.abc import Callable, Sequence

import pytest
import torch

from omniwire.contracts import (
    ContractTypeError,
    ContractValueError,
    MultimodalItemMetadata,
    MultimodalParams,
)
from omniwire.runtime import EncoderGroup

Encoder = Callable[[list[MultimodalParams]], torch.Tensor]


def request_of(refs: Sequence[tuple[str, int]], rows: Sequence[int] | None) -> MultimodalParams:
    record = MultimodalItemMetadata(refs, output_embedding_lengths=rows)
    payload: dict[str, object] = {modality: {} for modality, _ in refs}
    return MultimodalParams(multimodal_data={**payload, "item_metadata": record})


def rows_of(*values: float) -> torch.Tensor:
    return torch.tensor(values).reshape(-1, 1)


def giving(output: torch.Tensor, calls: list[list[MultimodalParams]] | None = None) -> Encoder:
    """An encoder that returns `output` and notes what it is called with."""

    def encode(params: list[MultimodalParams]) -> torch.Tensor:
        if calls is not None:
            calls.append(params)
        return output

    return encode


def values(embeddings: list[torch.Tensor]) -> list[list[float]]:
    return [one.flatten().tolist() for one in embeddings]


def test_the_worked_example() -> None:
    """A: an image of 2 rows. B: a video of 3 rows, then an image of 1 row."""
    a = request_of([("image", 0)], [2])
    b = request_of([("video", 0), ("image", 0)], [3, 1])
    image_calls: list[list[MultimodalParams]] = []
    video_calls: list[list[MultimodalParams]] = []
    group = EncoderGroup(
        {
            "image": giving(rows_of(1, 2, 3), image_calls),
            "video": giving(rows_of(7, 8, 9), video_calls),
        }
    )
    assert values(group.encode([a, b])) == [[1, 2], [7, 8, 9, 3]]
    assert [[one is a or one is b for one in call] for call in image_calls] == [[True, True]]
    assert len(video_calls) == 1
    assert video_calls[0][0] is b


def test_interleaved_items_come_back_in_prompt_order() -> None:
    """vllm#32249, vllm#46213: V0 A0 V1 A1, every item with its own modality's rows."""
    params = request_of([("video", 0), ("audio", 0), ("video", 1), ("audio", 1)], [2, 1, 1, 2])
    group = EncoderGroup(
        {"video": giving(rows_of(10, 11, 12)), "audio": giving(rows_of(20, 21, 22))}
    )
    assert values(group.encode([params])) == [[10, 11, 20, 12, 21, 22]]


def test_modalities_of_equal_rows_are_not_confused() -> None:
    """vllm#46213: an image and a video of 4 rows each."""
    params = request_of([("video", 0), ("image", 0)], [4, 4])
    group = EncoderGroup(
        {"image": giving(rows_of(1, 1, 1, 1)), "video": giving(rows_of(2, 2, 2, 2))}
    )
    assert values(group.encode([params])) == [[2, 2, 2, 2, 1, 1, 1, 1]]


def test_local_order_need_not_be_prompt_order() -> None:
    """The encoder returns image 0, then image 1; the prompt shows image 1 first."""
    first = request_of([("image", 1), ("image", 0)], [1, 2])
    second = request_of([("image", 0)], [1])
    group = EncoderGroup({"image": giving(rows_of(1, 2, 3, 4))})
    assert values(group.encode([first, second])) == [[3, 1, 2], [4]]


def test_rows_that_lie_together_are_a_view_and_others_one_concatenation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = rows_of(1, 2, 3, 4)
    concatenations: list[int] = []
    concatenate = torch.cat

    def counted(pieces: list[torch.Tensor]) -> torch.Tensor:
        concatenations.append(len(pieces))
        return concatenate(pieces)

    monkeypatch.setattr(torch, "cat", counted)
    plain = request_of([("image", 0), ("image", 1)], [1, 1])
    reordered = request_of([("image", 1), ("image", 0)], [1, 1])
    first, second = EncoderGroup({"image": giving(output)}).encode([plain, reordered])
    assert first.data_ptr() == output.data_ptr()
    assert second.flatten().tolist() == [4, 3]
    assert concatenations == [2]


def test_no_params_need_no_call() -> None:
    calls: list[list[MultimodalParams]] = []
    assert EncoderGroup({"image": giving(rows_of(1), calls)}).encode([]) == []
    assert calls == []


@pytest.mark.parametrize(
    ("params", "path", "code"),
    [
        (
            MultimodalParams(multimodal_data={"image": {}}),
            (1, "multimodal_data", "item_metadata"),
            "missing",
        ),
        (
            request_of([("image", 0)], None),
            (1, "multimodal_data", "item_metadata", "output_embedding_lengths"),
            "missing",
        ),
        (request_of([], []), (1, "multimodal_data", "item_metadata", "item_refs"), "count"),
        (
            request_of([("audio", 0)], [1]),
            (1, "multimodal_data", "item_metadata", "item_refs"),
            "unknown",
        ),
    ],
)
def test_bad_params_fail_before_any_encoder_runs(
    params: MultimodalParams, path: tuple[str | int, ...], code: str
) -> None:
    calls: list[list[MultimodalParams]] = []
    group = EncoderGroup({"image": giving(rows_of(1), calls)})
    with pytest.raises(ContractValueError) as caught:
        group.encode([request_of([("image", 0)], [1]), params])
    assert [(p.path, p.code) for p in caught.value.problems] == [(path, code)]
    assert calls == []


def test_what_is_no_params_is_an_error() -> None:
    with pytest.raises(ContractTypeError) as caught:
        EncoderGroup({}).encode(["x"])  # type: ignore[list-item]  # what is tested
    assert caught.value.problems[0].path == (0,)


@pytest.mark.parametrize(
    ("image", "video", "path", "code"),
    [
        (rows_of(1, 2), rows_of(1, 2, 3), ("image",), "count"),
        (rows_of(1), torch.zeros(3, 2), ("video",), "shape"),
        (rows_of(1), torch.zeros(3), ("video",), "shape"),
        (rows_of(1), torch.zeros(3, 1, dtype=torch.float16), ("video",), "dtype"),
    ],
)
def test_a_wrong_output_names_the_modality(
    image: torch.Tensor, video: torch.Tensor, path: tuple[str], code: str
) -> None:
    """vllm#31219: an encoder that returns n' != n rows, or rows of another size."""
    group = EncoderGroup({"image": giving(image), "video": giving(video)})
    with pytest.raises(ContractValueError) as caught:
        group.encode([request_of([("video", 0), ("image", 0)], [3, 1])])
    assert [(p.path, p.code) for p in caught.value.problems] == [(path, code)]


def test_wrong_rows_are_told_with_both_numbers() -> None:
    group = EncoderGroup({"image": giving(rows_of(1, 2))})
    with pytest.raises(ContractValueError) as caught:
        group.encode([request_of([("image", 0), ("image", 1)], [2, 3])])
    problem = caught.value.problems[0]
    assert "5" in problem.expected
    assert "image" in problem.expected
    assert problem.got == "2"


def test_an_output_that_is_no_tensor() -> None:
    group = EncoderGroup({"image": lambda _: [1]})  # type: ignore[dict-item, return-value]  # what is tested
    with pytest.raises(ContractTypeError) as caught:
        group.encode([request_of([("image", 0)], [1])])
    assert caught.value.problems[0].path == ("image",)


def test_encoders_come_in_a_mapping() -> None:
    with pytest.raises(ContractTypeError):
        EncoderGroup([giving(rows_of(1))])  # type: ignore[arg-type]  # what is tested
