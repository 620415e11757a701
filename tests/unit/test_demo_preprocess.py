"""From media to a request in the demo: payload, prompt, order, rows and costs."""

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

import omniwire as ow
from omniwire.demo.agreement import make_processor
from omniwire.demo.media import Media
from omniwire.demo.photographs import Photograph
from omniwire.demo.preprocess import build_request, item_order, num_items, preprocess
from omniwire.demo.prompt import PLACEHOLDERS, build_prompt
from omniwire.demo.sounds import Sound
from omniwire.demo.videos import Video
from omniwire.testing import assert_processor_conforms

IMAGE, AUDIO, VIDEO = PLACEHOLDERS["image"], PLACEHOLDERS["audio"], PLACEHOLDERS["video"]


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    generator = np.random.default_rng(seed)
    return Image.fromarray(generator.integers(0, 255, (height, width, 3), dtype=np.uint8))


def photograph(width: int, height: int, seed: int = 0) -> Photograph:
    return Photograph("photo", picture(width, height, seed))


def sound(seconds: float) -> Sound:
    samples = np.random.default_rng(0).normal(0, 0.1, int(seconds * 16_000))
    return Sound("sound", samples.astype(np.float32), 16_000, 1)


def video(width: int, height: int, num_frames: int) -> Video:
    frames = [picture(width, height, number) for number in range(num_frames)]
    return Video("video", frames, (width, height), num_frames)


# 112 x 84 pixels are 8 x 6 patches and 4 x 3 rows; 5 s are two clips of 4 s; 3 frames of
# 56 x 28 are two steps of 4 x 2 patches and 2 rows.
MIXED = Media((photograph(112, 84), photograph(56, 56)), (sound(5.0),), (video(56, 28, 3),))


@pytest.fixture(scope="module")
def mixed_request() -> ow.ProcessedRequest:
    return build_request("r", MIXED, "Why?")


def test_every_run_is_framed_and_the_steps_of_a_video_are_runs_of_their_own() -> None:
    token_ids = build_prompt([("image", [2]), ("audio", [3]), ("video", [1, 1])], "Why?")
    parts = [
        list(b"A photograph: "),
        [IMAGE + 1, IMAGE, IMAGE, IMAGE + 2],
        list(b"A sound: "),
        [AUDIO + 1, AUDIO, AUDIO, AUDIO, AUDIO + 2],
        list(b"A video: part 1: "),
        [VIDEO + 1, VIDEO, VIDEO + 2],
        list(b"part 2: "),
        [VIDEO + 1, VIDEO, VIDEO + 2],
        list(b"Why?"),
    ]
    assert token_ids == [token for part in parts for token in part]


def test_items_take_turns_and_the_clips_of_a_sound_stay_together() -> None:
    assert item_order(MIXED) == [
        ("image", 0),
        ("audio", 0),
        ("audio", 1),
        ("video", 0),
        ("image", 1),
    ]


def test_order_rows_costs_and_partitions_are_exact(mixed_request: ow.ProcessedRequest) -> None:
    params = mixed_request.multimodal_params
    assert params is not None
    record = params.item_metadata
    assert record is not None
    assert record.item_refs == tuple(item_order(MIXED))
    assert record.output_embedding_lengths == (12, 200, 200, 4, 4)
    assert record.encoder_token_lengths == (48, 200, 200, 16, 16)
    assert record.input_partitions is not None
    assert record.input_partitions["image"]["pixel_values"].item_lengths == (48, 16)
    data = params.multimodal_data
    assert data["image"]["pixel_values"].shape == (64, 1176)
    assert data["audio"]["input_features"].shape == (2, 80, 400)
    assert data["video"]["pixel_values_videos"].shape == (16, 1176)
    assert data["video"]["video_grid_thw"].tolist() == [[2, 2, 4]]
    # 12 rows advance the position by max(3, 4), 4 rows by max(2, 2), 2 x 2 rows by 2 x max(1, 2)
    deltas = data["mrope_config"]["mrope_position_deltas"]
    assert deltas.tolist() == [[(4 - 12) + (2 - 4) + 2 * (2 - 2)]]


def test_the_request_passes_the_producer_check(mixed_request: ow.ProcessedRequest) -> None:
    assert ow.check_producer(mixed_request) is mixed_request


def test_every_run_is_where_its_placeholders_are(mixed_request: ow.ProcessedRequest) -> None:
    assert mixed_request.multimodal_params is not None
    located = mixed_request.multimodal_params.multimodal_input
    assert located is not None
    assert located.multimodal_item_run_cu_offsets == (0, 1, 2, 3, 5, 6)
    assert located.multimodal_run_lengths == (12, 200, 200, 2, 2, 4)
    token_ids = list(mixed_request.prompt_token_ids)
    assert located.multimodal_run_positions is not None
    kinds = [IMAGE, AUDIO, AUDIO, VIDEO, VIDEO, IMAGE]
    for kind, start, length in zip(
        kinds,
        located.multimodal_run_positions,
        located.multimodal_run_lengths,
        strict=True,
    ):
        assert token_ids[start - 1 : start + length + 1] == [kind + 1, *[kind] * length, kind + 2]


def test_a_step_of_a_video_holds_both_its_frames() -> None:
    """The patches as transformers' video processor documents them, made another way."""
    one = video(56, 28, 3)
    payload = preprocess(Media(videos=(one,)))["video"]
    processor = Qwen2VLImageProcessorPil(size={"shortest_edge": 784, "longest_edge": 48 * 784})
    frames = [processor(frame, return_tensors="pt")["pixel_values"] for frame in one.frames]
    patches = payload["pixel_values_videos"].view(2, 8, 3, 2, 196)
    for step, copy, frame in [(0, 0, 0), (0, 1, 1), (1, 0, 2), (1, 1, 2)]:
        expected = frames[frame].view(8, 3, 2, 196)[:, :, copy]
        assert torch.equal(patches[step, :, :, copy], expected)


def test_a_video_of_equal_frames_has_the_patches_of_a_photograph() -> None:
    frames = [picture(56, 84)] * 2
    payload = preprocess(
        Media((Photograph("one", frames[0]),), (), (Video("two", frames, (56, 84), 2),))
    )
    assert torch.equal(payload["video"]["pixel_values_videos"], payload["image"]["pixel_values"])
    assert torch.equal(payload["video"]["video_grid_thw"], payload["image"]["image_grid_thw"])


def test_an_item_has_the_same_hash_wherever_it_is() -> None:
    media = Media((photograph(56, 56), photograph(84, 56, 1)), (sound(1.0),), (video(56, 28, 2),))
    hashes = []
    for one in (media, media.reversed()):
        params = build_request("r", one, "").multimodal_params
        assert params is not None
        assert params.multimodal_input is not None
        hashes.append(params.multimodal_input.multimodal_hashes)
    first, audio, clip, second = hashes[0]
    assert hashes[1] == (second, audio, clip, first)
    assert len(set(hashes[0])) == 4


@pytest.mark.parametrize(
    ("samples", "clips"), [(1, 1), (64_000, 1), (64_001, 2), (128_000, 2), (128_001, 3)]
)
def test_a_sound_becomes_clips_of_four_seconds(samples: int, clips: int) -> None:
    one = Sound("sound", np.zeros(samples, np.float32), 16_000, 1)
    assert num_items(one) == clips
    assert item_order(Media(sounds=(one,))) == [("audio", index) for index in range(clips)]
    payload = preprocess(Media(sounds=(one,)))
    assert payload["audio"]["input_features"].shape == (clips, 80, 400)


def test_the_largest_media_are_limited_to_what_the_budget_admits() -> None:
    large = Media(
        (photograph(3000, 2000), photograph(6000, 30)),
        (),
        (video(512, 288, 16), video(512, 13, 16), video(13, 512, 15), video(1, 1, 16)),
    )
    for modality, fields in preprocess(large).items():
        grid = fields[f"{modality}_grid_thw"]
        assert all(0 < patches <= 4 * 384 for patches in grid.prod(dim=1).tolist())


def test_the_processor_conforms(mixed_request: ow.ProcessedRequest) -> None:
    example = (mixed_request.prompt_token_ids, preprocess(MIXED), item_order(MIXED))
    assert_processor_conforms(make_processor(), [example])


def test_dummy_data_are_the_largest_items_with_exact_rows() -> None:
    data = make_processor().get_dummy_mm_data({"image": 2, "audio": 1, "video": 1})
    record = data["item_metadata"]
    assert isinstance(record, ow.MultimodalItemMetadata)
    rows = dict(zip(record.item_refs, record.output_embedding_lengths or (), strict=True))
    costs = dict(zip(record.item_refs, record.encoder_token_lengths or (), strict=True))
    assert rows == {("image", 0): 380, ("image", 1): 380, ("audio", 0): 200, ("video", 0): 384}
    assert costs == {("image", 0): 1520, ("image", 1): 1520, ("audio", 0): 200, ("video", 0): 1536}
    request = ow.ProcessedRequest("r", [1], ow.MultimodalParams(multimodal_data=data))
    assert ow.check_producer(request) is request
