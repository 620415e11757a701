"""Layouts and the processor made of them: worked numbers, prompts and refusals."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import omniwire as ow
from omniwire.contracts.errors import Path
from omniwire.integrations import huggingface as hf

Refusals = Callable[..., tuple[type[ow.ContractError], list[tuple[Path, str]]]]

GRID = torch.tensor([[1, 4, 4], [1, 4, 6]])
IMAGES = {"pixel_values": torch.zeros(40, 1176), "image_grid_thw": GRID}
AUDIO = {
    "input_features": torch.zeros(2, 128, 12),
    # 12 frames are 6 tokens and 3 rows, 8 are 4 and 2
    "feature_attention_mask": torch.tensor([[1] * 12, [1] * 8 + [0] * 4]),
}


def processor(**ids: int) -> hf.HuggingFaceProcessor:
    layouts: dict[str, hf.ModalityLayout] = {"image": hf.QwenImages(), "audio": hf.QwenOmniAudio()}
    return hf.HuggingFaceProcessor(layouts, ids or None)


def located(request: ow.ProcessedRequest) -> ow.MultimodalInput:
    assert request.multimodal_params is not None
    assert request.multimodal_params.multimodal_input is not None
    return request.multimodal_params.multimodal_input


def test_the_record_in_the_order_given() -> None:
    order = [("audio", 1), ("image", 0), ("image", 1), ("audio", 0)]
    data = {"image": IMAGES, "audio": AUDIO}
    # A placeholder of one modality alone does not tell the order of both.
    assert processor(image=5).get_mm_item_metadata((), data, order) is not None
    record = processor().get_mm_item_metadata((), data, order)
    assert record == ow.MultimodalItemMetadata(
        order,
        [4, 16, 24, 6],
        [2, 4, 6, 3],
        {
            "image": {
                "pixel_values": ow.MultimodalItemPartition((16, 24)),
                "image_grid_thw": ow.MultimodalItemPartition(),
            },
            "audio": {
                "input_features": ow.MultimodalItemPartition(),
                "feature_attention_mask": ow.MultimodalItemPartition(),
            },
        },
    )


def test_a_payload_without_items_has_no_record() -> None:
    assert processor().get_mm_item_metadata((), {"text": {"x": 1}, "image": {}}) is None
    request = processor(image=5).prepare("r1", [1, 2], {})
    assert request == ow.ProcessedRequest("r1", [1, 2])


def test_order_positions_and_runs_are_read_from_the_prompt() -> None:
    """lmdeploy#1686, #4141: image, sound, image, sound; a break inside the second image."""
    prompt = [1, *[5] * 4, 2, 6, 6, 6, 2, 5, 5, 5, 3, 5, 5, 5, 2, 6, 6]
    request = processor(image=5, audio=6).prepare("r1", prompt, {"image": IMAGES, "audio": AUDIO})
    ow.check_producer(request)
    found = located(request)
    assert request.multimodal_params is not None
    record = request.multimodal_params.item_metadata
    assert record is not None
    assert record.item_refs == (("image", 0), ("audio", 0), ("image", 1), ("audio", 1))
    assert record.output_embedding_lengths == (4, 3, 6, 2)
    assert found.multimodal_positions == (1, 6, 10, 18)
    assert found.multimodal_lengths == (4, 3, 6, 2)
    assert found.multimodal_item_run_cu_offsets == (0, 1, 2, 4, 5)
    assert found.multimodal_run_positions == (1, 6, 10, 14, 18)
    assert found.multimodal_run_lengths == (4, 3, 3, 3, 2)


def test_a_hash_is_of_the_items_own_content() -> None:
    two = {"pixel_values": torch.arange(32.0).reshape(32, 1).repeat(1, 8), "image_grid_thw": 0}
    two["image_grid_thw"] = torch.tensor([[1, 4, 4], [1, 4, 4]])
    same = {**two, "pixel_values": torch.zeros(32, 8)}
    prompt = [*[5] * 4, 2, *[5] * 4]
    hashes = located(processor(image=5).prepare("r", prompt, {"image": two})).multimodal_hashes
    equal = located(processor(image=5).prepare("r", prompt, {"image": same})).multimodal_hashes
    assert hashes[0] != hashes[1]
    assert equal[0] == equal[1]
    alone = {"pixel_values": torch.zeros(16, 8), "image_grid_thw": torch.tensor([[1, 4, 4]])}
    one = located(processor(image=5).prepare("r", [5] * 4, {"image": alone})).multimodal_hashes
    assert one[0] == equal[0]


def test_modalities_that_share_a_placeholder_need_the_order() -> None:
    layouts: dict[str, hf.ModalityLayout] = {
        "image": hf.InternVLImages(28, 7, 2),
        "video": hf.InternVLVideos(28, 7, 2),
    }
    internvl = hf.HuggingFaceProcessor(layouts, {"image": 5, "video": 5})
    data = {
        "image": {"pixel_values": torch.zeros(4, 3, 28, 28), "num_patches": [1, 3]},
        "video": {"pixel_values_videos": torch.zeros(1, 2, 3, 28, 28)},
    }
    prompt = [5, 5, 1, 5, 5, 2, 5, 5, 1, *[5] * 6]
    order = [("image", 0), ("video", 0), ("image", 1)]
    request = ow.check_producer(internvl.prepare("r1", prompt, data, order))
    assert located(request).multimodal_positions == (0, 3, 9)
    assert located(request).multimodal_item_run_cu_offsets == (0, 1, 3, 4)
    assert request.multimodal_params is not None
    assert request.multimodal_params.item_metadata is not None
    assert request.multimodal_params.item_metadata.encoder_token_lengths == (17, 34, 51)
    with pytest.raises(ow.ContractValueError) as caught:
        internvl.prepare("r1", prompt, data)
    assert [(p.path, p.code) for p in caught.value.problems] == [(("mm_item_order",), "missing")]


def test_videos_of_different_numbers_of_frames() -> None:
    videos = (torch.zeros(2, 3, 28, 28), torch.zeros(5, 3, 28, 28))
    internvl = hf.HuggingFaceProcessor({"video": hf.InternVLVideos(28, 7, 2)})
    record = internvl.get_mm_item_metadata((), {"video": {"pixel_values_videos": videos}})
    assert record is not None
    assert record.output_embedding_lengths == (4, 10)


def test_voxtral_stacks_four_rows_of_a_whisper_encoder() -> None:
    layout = hf.WhisperAudio(num_mel_bins=128, num_stacked_rows=4)
    items = layout.items({"input_features": torch.zeros(2, 128, 3000)}, ())
    assert items.encoder_token_lengths == (1500, 1500)
    assert items.output_embedding_lengths == (375, 375)


def test_llava_next_without_a_cls_token_and_full_size() -> None:
    """672 x 336 is two tiles: 24 x 48 patches, a newline per line, 24 x 24 of the thumbnail."""
    layout = hf.LlavaNextImages(
        [[336, 672], [672, 336]],
        num_additional_image_tokens=0,
        vision_feature_select_strategy="full",
    )
    items = layout.items({"image_sizes": [(336, 672)]}, ())
    assert items.encoder_token_lengths == (3 * 576,)
    assert items.output_embedding_lengths == (24 * 48 + 24 + 576,)


def test_a_whole_output_may_serve_two_modalities() -> None:
    output = {**IMAGES, **AUDIO, "input_ids": torch.zeros(1, 4), "num_audio_tokens": None}
    payload = processor().payload(image=output, audio=output)
    assert {name: set(fields) for name, fields in payload.items()} == {
        "image": set(IMAGES),
        "audio": set(AUDIO),
    }


def test_settings_tell_layouts_apart() -> None:
    first = hf.HuggingFaceProcessor({"image": hf.QwenImages()})
    assert first.settings == hf.HuggingFaceProcessor({"image": hf.QwenImages()}).settings
    other = hf.HuggingFaceProcessor({"image": hf.QwenImages(merge_size=4)})
    assert first.settings != other.settings


@pytest.mark.parametrize(
    ("fields", "path", "code"),
    [
        ({"pixel_values": torch.zeros(4, 8)}, ("image", "image_grid_thw"), "missing"),
        ({**IMAGES, "image_grid_thw": GRID.float()}, ("image", "image_grid_thw"), "dtype"),
        ({**IMAGES, "image_grid_thw": GRID[:, :2]}, ("image", "image_grid_thw"), "shape"),
        ({**IMAGES, "image_grid_thw": [[1, 2], [1]]}, ("image", "image_grid_thw"), "shape"),
        ({**IMAGES, "image_grid_thw": -GRID}, ("image", "image_grid_thw"), "range"),
        ({**IMAGES, "image_grid_thw": "1x4x4"}, ("image", "image_grid_thw"), "type"),
        (
            {**IMAGES, "image_grid_thw": torch.zeros(2, 3, device="meta", dtype=torch.int64)},
            ("image", "image_grid_thw"),
            "device",
        ),
        (torch.zeros(1), ("image",), "type"),
    ],
)
def test_a_field_that_does_not_describe_items(fields: Any, path: Path, code: str) -> None:
    with pytest.raises(ow.ContractError) as caught:
        processor().get_mm_item_metadata((), {"image": fields})
    assert [(p.path, p.code) for p in caught.value.problems] == [(path, code)]


@pytest.mark.parametrize(
    ("layout", "fields", "name", "code"),
    [
        (hf.QwenOmniAudio(), {}, "input_features", "missing"),
        (hf.QwenOmniAudio(), {**AUDIO, "input_features": [1]}, "input_features", "type"),
        (
            hf.QwenOmniAudio(),
            {**AUDIO, "input_features": torch.zeros(2, 8)},
            "input_features",
            "shape",
        ),
        (
            hf.QwenOmniAudio(),
            {**AUDIO, "feature_attention_mask": torch.ones(2, 11)},
            "feature_attention_mask",
            "shape",
        ),
        (
            hf.QwenOmniAudio(),
            {**AUDIO, "feature_attention_mask": torch.ones(2, 12, device="meta")},
            "feature_attention_mask",
            "device",
        ),
        (
            hf.QwenOmniAudio(),
            {**AUDIO, "feature_attention_mask": torch.ones(2, 12)},
            "feature_attention_mask",
            "dtype",
        ),
        (
            hf.QwenOmniAudio(),
            {
                **AUDIO,
                "feature_attention_mask": ow.TensorHandle(
                    "local", torch.int64, (2, 12), torch.ones(2, 12, dtype=torch.int64)
                ),
            },
            "feature_attention_mask",
            "type",
        ),
        (hf.Gemma3Images(), {"pixel_values": torch.tensor(1.0)}, "pixel_values", "axis"),
        (
            hf.InternVLVideos(),
            {"pixel_values_videos": torch.zeros(1, 3, 28, 28)},
            "pixel_values_videos",
            "shape",
        ),
        (
            hf.InternVLVideos(),
            {"pixel_values_videos": torch.tensor(1.0)},
            "pixel_values_videos",
            "axis",
        ),
    ],
)
def test_a_layout_names_the_field(
    layout: hf.ModalityLayout, fields: Mapping[str, Any], name: str, code: str
) -> None:
    with pytest.raises(ow.ContractError) as caught:
        layout.items(fields, ("m",))
    assert [(p.path, p.code) for p in caught.value.problems] == [(("m", name), code)]


def test_an_image_without_extent_is_no_llava_next_image() -> None:
    with pytest.raises(ow.ContractValueError) as caught:
        hf.LlavaNextImages([[336, 336]]).items({"image_sizes": [(3, 4), (0, 4)]}, ())
    assert [(p.path, p.code) for p in caught.value.problems] == [(("image_sizes", 1), "range")]


@pytest.mark.parametrize(
    ("prompt", "order", "path", "code"),
    [
        ([5] * 9, None, ("prompt_token_ids",), "count"),
        ([5] * 11, None, ("prompt_token_ids",), "count"),
        ([5] * 10, [("image", 1), ("image", 0)], None, None),
        ([5] * 10, [("image", 0), ("image", 2)], ("mm_item_order", 1), "index"),
        ([5] * 10, [("image", 0)], ("mm_item_order",), "count"),
        ([5] * 10, [("image", 0), ("video", 0)], ("mm_item_order", 1), "index"),
    ],
)
def test_prompt_and_order_must_fit_the_items(
    prompt: Sequence[int],
    order: list[tuple[str, int]] | None,
    path: Path | None,
    code: str | None,
) -> None:
    def prepare() -> ow.ProcessedRequest:
        return processor(image=5, audio=6).prepare("r1", prompt, {"image": IMAGES}, order)

    if path is None:
        assert located(prepare()).multimodal_lengths == (6, 4)
        return
    with pytest.raises(ow.ContractValueError) as caught:
        prepare()
    assert [(p.path, p.code) for p in caught.value.problems] == [(path, code)]


def test_an_order_that_the_prompt_does_not_have_is_a_conflict() -> None:
    """TensorRT-LLM#16792: the prompt has the image first."""
    data = {"image": {**IMAGES, "pixel_values": torch.zeros(16, 8)}, "audio": AUDIO}
    data["image"]["image_grid_thw"] = GRID[:1]
    prompt = [*[5] * 4, *[6] * 5]
    order = [("audio", 0), ("image", 0), ("audio", 1)]
    mixed = processor(image=5, audio=6)
    for call in (
        lambda: mixed.prepare("r1", prompt, data, order),
        lambda: mixed.get_mm_item_metadata(prompt, data, order),
    ):
        with pytest.raises(ow.ContractValueError) as caught:
            call()
        assert [(p.path, p.code) for p in caught.value.problems] == [
            (("mm_item_order", 0), "conflict")
        ]


def test_a_payload_that_does_not_divide_is_named_as_the_caller_has_it(refusal: Refusals) -> None:
    images = {**IMAGES, "pixel_values": torch.zeros(39, 1176)}
    prompt = [*[5] * 4, 1, *[5] * 6]
    assert refusal(processor(image=5).prepare, "r1", prompt, {"image": images}) == (
        ow.ContractValueError,
        [(("multimodal_data", "image", "pixel_values"), "sum")],
    )


def test_what_the_processor_itself_refuses(refusal: Refusals) -> None:
    value, kind = ow.ContractValueError, ow.ContractTypeError
    layouts = {"image": hf.QwenImages()}
    assert refusal(hf.HuggingFaceProcessor, layouts, {"audio": 5}) == (
        value,
        [(("placeholder_ids",), "unknown")],
    )
    assert refusal(hf.HuggingFaceProcessor, {"image": object()}) == (
        value,
        [(("layouts", "image"), "missing")] * 3,
    )
    assert refusal(hf.HuggingFaceProcessor, [hf.QwenImages()])[0] is kind
    assert refusal(processor().payload, video=IMAGES) == (value, [(("video",), "unknown")])
    assert refusal(processor().get_dummy_mm_data, {"video": 1}) == (
        value,
        [(("max_items", "video"), "unknown")],
    )
    assert refusal(processor().prepare, "r1", [1], {"image": IMAGES}) == (
        value,
        [(("placeholder_ids",), "missing")],
    )
    two = {"image": IMAGES, "audio": AUDIO}
    assert refusal(processor().get_mm_item_metadata, [1], two) == (
        value,
        [(("placeholder_ids",), "missing")],
    )


@pytest.mark.parametrize(
    ("make", "name", "code"),
    [
        (lambda: hf.QwenImages(merge_size=0), "merge_size", "range"),
        (lambda: hf.QwenImages(max_pixels=1), "max_pixels", "range"),
        (lambda: hf.QwenVideos(max_frames=True), "max_frames", "type"),
        (lambda: hf.PixtralImages(longest_edge=8), "longest_edge", "range"),
        (lambda: hf.Gemma3Images(max_crops=-1), "max_crops", "range"),
        (lambda: hf.WhisperAudio(num_stacked_rows=0), "num_stacked_rows", "range"),
        (lambda: hf.LlavaNextImages([[336, 336]], image_size=7), "image_size", "range"),
        (lambda: hf.LlavaNextImages([]), "image_grid_pinpoints", "count"),
        (lambda: hf.LlavaNextImages([[336, 300]]), "image_grid_pinpoints", "range"),
    ],
)
def test_settings_are_checked(make: Callable[[], object], name: str, code: str) -> None:
    with pytest.raises(ow.ContractError) as caught:
        make()
    assert [(p.path[0], p.code) for p in caught.value.problems] == [(name, code)]


def test_no_items_are_no_dummy_data() -> None:
    assert processor().get_dummy_mm_data({"image": 0}) == {}


def test_numpy_fields_do_too() -> None:
    fields = {"pixel_values": np.zeros((40, 8), np.float32), "image_grid_thw": GRID.numpy()}
    record = processor().get_mm_item_metadata((), {"image": fields})
    assert record is not None
    assert record.encoder_token_lengths == (16, 24)
