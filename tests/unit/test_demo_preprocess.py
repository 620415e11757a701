"""The demo's prompt layout and what its processor declares about items."""

import numpy as np
import pytest
import torch
from PIL import Image

import omniwire as ow
from omniwire.demo import prompt as layout
from omniwire.demo.media import Photograph, Sound
from omniwire.demo.preprocess import DemoProcessor, build_request, num_clips, preprocess
from omniwire.testing import assert_processor_conforms


def photograph(width: int, height: int) -> Photograph:
    pixels = np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Photograph("photo", Image.fromarray(pixels))


def sound(seconds: float) -> Sound:
    samples = np.random.default_rng(0).normal(0, 0.1, int(seconds * 16_000))
    return Sound("sound", samples.astype(np.float32), 16_000, 1)


@pytest.fixture(scope="module")
def request_of_four() -> ow.ProcessedRequest:
    # 112 x 84 pixels are 8 x 6 patches and 4 x 3 rows; 5 s are two clips of 4 s
    data, order = preprocess([photograph(112, 84), photograph(56, 56)], [sound(5.0)])
    assert order == [("image", 0), ("audio", 0), ("audio", 1), ("image", 1)]
    return build_request("r", data, order)


def test_an_image_span_includes_its_framing_and_a_sound_span_does_not() -> None:
    prompt = layout.build_prompt(
        [layout.PromptItem("image", 0, 2), layout.PromptItem("audio", 0, 3)]
    )
    assert prompt.token_ids[:14] == list(b"A photograph: ")
    assert prompt.token_ids[14:18] == [256, 257, 257, 258]
    assert prompt.token_ids[18:27] == list(b"A sound: ")
    assert prompt.token_ids[27:32] == [259, 260, 260, 260, 261]
    assert prompt.item_order == [("image", 0), ("audio", 0)]
    assert prompt.positions == [14, 28]
    assert prompt.num_prompt_tokens == [4, 3]
    assert prompt.special_token_offsets == [(0, 3), ()]


def test_rows_costs_and_partitions_are_exact(request_of_four: ow.ProcessedRequest) -> None:
    params = request_of_four.multimodal_params
    assert params is not None
    assert params.item_metadata is not None
    assert params.item_metadata.output_embedding_lengths == (12, 200, 200, 4)
    assert params.item_metadata.encoder_token_lengths == (48, 200, 200, 16)
    partitions = params.item_metadata.input_partitions
    assert partitions is not None
    assert partitions["image"]["pixel_values"].item_lengths == (48, 16)
    assert params.multimodal_data["image"]["pixel_values"].shape == (64, 1176)
    assert params.multimodal_data["audio"]["input_features"].shape == (2, 80, 400)
    # 12 rows advance the position by max(1, 3, 4), 4 rows by max(1, 2, 2)
    deltas = params.multimodal_data["mrope_config"]["mrope_position_deltas"]
    assert deltas.tolist() == [[(4 - 12) + (2 - 4)]]


def test_the_request_passes_the_producer_check(request_of_four: ow.ProcessedRequest) -> None:
    assert ow.check_producer(request_of_four) is request_of_four


def test_every_placeholder_has_a_row(request_of_four: ow.ProcessedRequest) -> None:
    ids = list(request_of_four.prompt_token_ids)
    assert ids.count(layout.IMAGE_PAD) == 12 + 4
    assert ids.count(layout.AUDIO_PAD) == 200 + 200


def test_equal_items_have_equal_hashes_and_different_ones_do_not() -> None:
    data, order = preprocess([photograph(56, 56), photograph(56, 56), photograph(56, 84)], [])
    params = build_request("r", data, order).multimodal_params
    assert params is not None
    assert params.multimodal_input is not None
    first, second, third = params.multimodal_input.multimodal_hashes
    assert first == second
    assert first != third


@pytest.mark.parametrize(
    ("samples", "clips"), [(1, 1), (64_000, 1), (64_001, 2), (128_000, 2), (128_001, 3)]
)
def test_a_sound_becomes_clips_of_four_seconds(samples: int, clips: int) -> None:
    one = Sound("sound", np.zeros(samples, np.float32), 16_000, 1)
    data, order = preprocess([], [one])
    assert num_clips(one) == clips
    assert order == [("audio", index) for index in range(clips)]
    assert data["audio"]["input_features"].shape == (clips, 80, 400)  # type: ignore[index]


def test_a_large_photograph_is_limited_to_what_the_budget_admits() -> None:
    data, _ = preprocess([photograph(3000, 2000), photograph(6000, 30)], [])
    grid = data["image"]["image_grid_thw"]  # type: ignore[index]
    assert isinstance(grid, torch.Tensor)
    assert all(0 < patches <= 4 * 384 for patches in grid.prod(dim=1).tolist())


def test_the_processor_conforms() -> None:
    mixed, order = preprocess([photograph(112, 84), photograph(56, 56)], [sound(5.0)])
    images, _ = preprocess([photograph(56, 56)], [])
    sounds, _ = preprocess([], [sound(1.0)])
    assert_processor_conforms(DemoProcessor(), [([1], mixed, order), ([1], images), ([1], sounds)])


def test_dummy_data_are_the_largest_items_with_exact_rows() -> None:
    data = DemoProcessor().get_dummy_mm_data({"image": 2, "audio": 1})
    record = data["item_metadata"]
    assert isinstance(record, ow.MultimodalItemMetadata)
    assert record.item_refs == (("image", 0), ("image", 1), ("audio", 0))
    assert record.output_embedding_lengths == (384, 384, 200)
    assert record.encoder_token_lengths == (1536, 1536, 200)
    request = ow.ProcessedRequest("r", [1], ow.MultimodalParams(multimodal_data=data))
    assert ow.check_producer(request) is request
