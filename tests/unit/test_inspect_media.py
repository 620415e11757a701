"""What `omniwire inspect --html` takes for an image or a sound, and what it draws of it."""

import base64
import io
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image

import omniwire as ow
from omniwire.inspector.page.media import Drawing, drawings_of
from omniwire.inspector.page.pictures import Picture
from omniwire.inspector.page.sounds import Sound


def pictures(obj: object) -> list[tuple[str, Picture]]:
    """Every picture of an object, with its name."""
    found = []
    for drawing in drawings_of(obj)[0]:
        for name, view in drawing.views:
            assert isinstance(view, Picture)
            found.append((name, view))
    return found


def sounds(obj: object) -> list[tuple[str, Sound]]:
    """Every sound of an object, with its name."""
    found = []
    for drawing in drawings_of(obj)[0]:
        assert drawing.kind == "sounds"
        for name, view in drawing.views:
            assert isinstance(view, Sound)
            found.append((name, view))
    return found


def pixels(picture: Picture) -> torch.Tensor:
    """What a browser sees, u8[colors, height, width]."""
    content = base64.b64decode(picture.uri.removeprefix("data:image/png;base64,"))
    with Image.open(io.BytesIO(content)) as image:
        assert image.format == "PNG"
        values = np.array(image).reshape(image.height, image.width, -1)
    return torch.from_numpy(values).permute(2, 0, 1)


def values(tree: dict[str, object]) -> ow.FrozenMapping[object]:
    return ow.FrozenMapping(tree)


def image() -> torch.Tensor:
    """8 x 16 pixels, each of the values 0 to 255 somewhere, the colors different."""
    return torch.arange(3 * 8 * 16).to(torch.uint8).view(3, 8, 16)


@pytest.mark.parametrize(
    "make",
    [
        image,
        lambda: image().permute(1, 2, 0).contiguous(),  # channels last
        lambda: image().numpy(),
        lambda: image().to(torch.float64) / 255,
        lambda: image().to(torch.float32) / 255,
        lambda: image()[None],
        lambda: image()[None, None],
    ],
)
def test_images_are_drawn_as_they_are(make: Callable[[], object]) -> None:
    ((_, picture),) = pictures(values({"image": {"x": make()}}))
    assert torch.equal(pixels(picture), image())
    assert picture.size == "16 x 8"
    assert picture.values in ("0 to 255", "0 to 1")
    assert (picture.width, picture.height) == (128, 64)  # shown eight times as large


def test_one_color_is_gray() -> None:
    ((_, picture),) = pictures(values({"image": image()[:1]}))
    assert torch.equal(pixels(picture), image()[:1])


def test_bytes_of_three_colors_need_no_name() -> None:
    assert len(pictures(values({"x": image()}))) == 1
    assert not pictures(values({"x": image().to(torch.float32)}))


def test_other_values_are_stretched() -> None:
    tensor = torch.full((3, 8, 8), -2.0)
    tensor[0, 0, 0] = 3.0
    tensor[1, 0, 0] = 0.5
    tensor[2, 7, 7] = float("nan")
    tensor[2, 7, 6] = float("inf")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        ((_, picture),) = pictures(values({"image": tensor.to(dtype)}))
        assert picture.values == "-2 to 3, 2 not finite"
        assert pixels(picture)[:, 0, 0].tolist() == [255, 128, 0]  # 127.5 to the nearest even
        assert pixels(picture)[:, 7, 7].tolist() == [0, 0, 0]


def test_extreme_values() -> None:
    tensor = torch.full((3, 8, 8), -1e308, dtype=torch.float64)
    ((_, flat),) = pictures(values({"image": tensor}))
    assert flat.values == "-1e+308 to -1e+308"
    assert pixels(flat).unique().tolist() == [128]
    tensor[0] = 1e308
    ((_, wide),) = pictures(values({"image": tensor}))
    assert pixels(wide)[0].unique().tolist() == [255]
    assert pixels(wide)[1].unique().tolist() == [0]
    ((_, none),) = pictures(values({"image": tensor * float("nan")}))
    assert none.values == "none finite"


def test_large_images_become_small_pictures() -> None:
    tree = {"image": torch.rand(3, 1500, 3000), "thin_image": torch.rand(3, 8, 9000)}
    (_, wide), (_, thin) = pictures(values(tree))
    assert (pixels(wide).shape, pixels(thin).shape) == ((3, 64, 128), (3, 1, 128))
    assert (wide.size, thin.size) == ("3,000 x 1,500", "9,000 x 8")


def test_patches_are_put_together_again() -> None:
    """Two images of 4 x 6 and 2 x 2 patches of 4 x 4 pixels, cut up one by one."""
    grids = [(1, 4, 6), (1, 2, 2)]
    images = [torch.randint(0, 256, (3, h * 4, w * 4)).to(torch.uint8) for _, h, w in grids]
    patches = []
    for (_, rows, columns), whole in zip(grids, images, strict=True):
        for row in range(0, rows, 2):
            for column in range(0, columns, 2):
                for down, right in ((0, 0), (0, 1), (1, 0), (1, 1)):
                    y, x = 4 * (row + down), 4 * (column + right)
                    patch = whole[:, y : y + 4, x : x + 4]
                    patches.append(torch.stack([patch, 255 - patch], dim=1).flatten())
    record = ow.MultimodalItemMetadata([("image", 1), ("image", 0)])
    payload = {"pixel_values": torch.stack(patches), "image_grid_thw": torch.tensor(grids)}
    params = ow.MultimodalParams(None, {"image": payload, "item_metadata": record})
    (first, one), (second, other) = pictures(params)
    assert (first, one.size) == ("image 0", "24 x 16")
    assert (second, other.size) == ("image 1", "8 x 8")
    assert torch.equal(pixels(one), images[0])
    assert torch.equal(pixels(other), images[1])


def test_patches_of_the_transformers_processor() -> None:
    module = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    ramp = np.arange(56)[:, None, None] * 2 + np.arange(84)[None, :, None] + np.array([0, 40, 80])
    processor = module.Qwen2VLImageProcessorPil(
        size={"shortest_edge": 28 * 28, "longest_edge": 56 * 84}, do_normalize=False
    )
    output = processor([Image.fromarray(ramp.astype(np.uint8))], return_tensors="pt")
    ((_, picture),) = pictures(values({"image": dict(output)}))
    assert torch.equal(pixels(picture), torch.from_numpy(ramp.astype(np.uint8)).permute(2, 0, 1))


def test_patches_of_a_video_are_a_picture_for_each_step() -> None:
    video = {
        "pixel_values_videos": torch.zeros(12, 96),
        "video_grid_thw": torch.tensor([[3, 2, 2]]),
    }
    assert [name for name, _ in pictures(values({"video": video}))] == [
        "[0], step 0",
        "[0], step 1",
        "[0], step 2",
    ]


@pytest.mark.parametrize(
    ("grid", "num_drawn"),
    [
        ([[1, 4, 4]], 0),  # of the 16 patches there are 8
        ([[2**62, 2, 2]], 2),  # as many as there are
        ([[1, -2, 4]], 0),
        ([[0, 4, 4], [1, 2, 2]], 1),
        ([[1, 0, 4], [1, 2, 2]], 0),
        ([[1, 2**40, 2**40]], 0),
    ],
)
def test_grids_that_do_not_fit_do_no_harm(grid: list[list[int]], num_drawn: int) -> None:
    payload = {"pixel_values": torch.zeros(8, 96), "image_grid_thw": torch.tensor(grid)}
    assert len(pictures(values({"image": payload}))) == num_drawn


def test_slices_are_called_after_their_items() -> None:
    record = ow.MultimodalItemMetadata(
        [("image", 0), ("video", 0), ("image", 1)], None, None,
        {"image": {"tiles": ow.MultimodalItemPartition([1, 2])}},
    )  # fmt: skip
    data = {
        "image": {"tiles": torch.rand(3, 3, 8, 8), "pixels": torch.rand(2, 3, 8, 8)},
        "video": {"frames": torch.rand(1, 2, 3, 8, 8)},
        "pictures": torch.rand(2, 3, 8, 8),
        "item_metadata": record,
    }
    assert [name for name, _ in pictures(ow.MultimodalParams(None, data))] == [
        "image 0, part 0",
        "image 1, part 0",
        "image 1, part 1",
        "image 0",
        "image 1",
        "video 0 [0]",
        "video 0 [1]",
        "[0]",
        "[1]",
    ]


@pytest.mark.parametrize(
    "tree",
    [
        {"image": {"image_embeds": torch.zeros(1, 64, 64)}},
        {"image": {"image_features": torch.zeros(1, 64, 64)}},
        {"image": {"pixel_mask": torch.zeros(1, 64, 64)}},
        {"image": {"x": torch.zeros(4, 64, 64)}},
        {"image": {"x": torch.zeros(3, 7, 64)}},
        {"image": {"x": torch.zeros(3, 64, 64, dtype=torch.int64)}},
        {"image": {"x": torch.zeros(0, 3, 64, 64)}},
        {"image": {"x": torch.zeros(64)}},
        {"text_hidden_states": torch.zeros(1, 64, 64)},
        {"multimodal_embedding": torch.zeros(3, 64, 64)},
        {"audio": {"codes": torch.zeros(1, 500)}},
        {"audio": {"x": torch.zeros(1, 500, dtype=torch.int64)}},
        {"audio": {"x": torch.zeros(3, 500)}},
        {"audio": {"x": torch.zeros(1, 99)}},
        {"audio": {"x": torch.zeros(())}},
        {"audio": ow.TensorHandle("arena", torch.float32, (1, 500), b"slot")},
    ],
)
def test_what_does_not_look_like_an_image_or_a_sound(tree: dict[str, object]) -> None:
    assert drawings_of(values(tree)) == ([], 0)


@pytest.mark.parametrize(
    ("shape", "num_sounds", "num_channels"),
    [((500,), 1, 1), ((1, 500), 1, 1), ((2, 500), 1, 2), ((1, 1, 500), 1, 1), ((3, 2, 500), 3, 2)],
)
def test_the_shapes_of_sounds(shape: tuple[int, ...], num_sounds: int, num_channels: int) -> None:
    found = sounds(values({"audio": torch.rand(shape)}))
    assert [len(sound.tracks) for _, sound in found] == [num_channels] * num_sounds


def test_a_sound_of_each_item() -> None:
    record = ow.MultimodalItemMetadata([("audio", index) for index in range(2)])
    data = {"audio": {"x": torch.rand(2, 500)}, "item_metadata": record}
    found = sounds(ow.MultimodalParams(None, data))
    assert [(name, len(sound.tracks)) for name, sound in found] == [("audio 0", 1), ("audio 1", 1)]


def points(sound: Sound) -> list[tuple[float, float]]:
    """The corners of the first channel's outline."""
    found = re.findall(r"[ML]([-\d.e+]+) ([-\d.e+]+)", sound.tracks[0])
    return [(float(x), float(y)) for x, y in found]


def test_an_outline_goes_through_the_extremes_of_each_stretch() -> None:
    """1,000 samples in 334 stretches of 3, the last of 1: its largest, and back its smallest."""
    samples = torch.zeros(1000)
    samples[4], samples[5], samples[999] = 0.5, -0.25, 1.0
    ((_, sound),) = sounds(values({"audio": samples}))
    outline = points(sound)
    assert len(outline) == 2 * 334
    assert [x for x, _ in outline[:334]] == sorted(x for x, _ in outline[:334])
    assert (outline[0][0], outline[333][0], outline[-1][0]) == (0, 400, 0)
    # 48 units high, two of them a margin at each end: the middle is 0, and 1 is 22 above it.
    assert (outline[1][1], outline[-2][1]) == (13, 29.5)
    assert (outline[333][1], outline[334][1]) == (2, 2)
    assert {y for _, y in outline[2:333]} == {24}


def test_loud_sounds_are_scaled_to_their_peak() -> None:
    ((_, sound),) = sounds(values({"audio": torch.linspace(-8, 4, 400)}))
    assert sound.words == "1 channel, 400 samples, peak 8"
    assert points(sound)[0] == (0, 46)
    assert points(sound)[399] == (400, 13)


@pytest.mark.parametrize("as_numpy", [False, True])
def test_samples_of_16_bits(as_numpy: bool) -> None:
    samples = torch.tensor([0, 16_384, -32_768, 8_192] * 100, dtype=torch.int16)
    tree: dict[str, object] = {"pcm": samples.numpy() if as_numpy else samples}
    ((_, sound),) = sounds(values(tree))
    assert sound.words == "1 channel, 400 samples, peak 1"
    assert [y for _, y in points(sound)[:4]] == [24, 13, 46, 18.5]


def test_samples_that_are_not_finite() -> None:
    samples = torch.zeros(2, 400, dtype=torch.bfloat16)
    samples[1, 7], samples[0, 1] = float("nan"), float("-inf")
    ((_, sound),) = sounds(values({"audio": samples}))
    assert sound.words == "2 channels, 400 samples, peak 0, not finite in 2 of 800 stretches"


def test_the_sample_rate_beside_a_sound() -> None:
    for rate in (16_000, 16_000.0):
        ((_, sound),) = sounds(values({"audio": torch.ones(1, 8000), "sampling_rate": rate}))
        assert sound.words == "1 channel, 8,000 samples, 0.50 s at 16,000 Hz, peak 1"
    for no_rate in ("16000", 0, -1, float("nan"), float("inf"), None, (16_000,)):
        ((_, sound),) = sounds(values({"audio": torch.ones(800), "sample_rate": no_rate}))
        assert sound.words == "1 channel, 800 samples, peak 1"


@pytest.mark.parametrize("chunks", [torch.ones(1, 480), (torch.ones(1, 240), torch.ones(1, 240))])
def test_the_sample_rate_of_an_output(chunks: object) -> None:
    output = ow.RequestOutput("r", [], {"audio": chunks}, {"audio": {"sample_rate": 24_000}})
    for _, sound in sounds(output):
        assert " s at 24,000 Hz" in sound.words


def test_spectrograms_have_low_frequencies_below() -> None:
    features = torch.zeros(2, 80, 100)
    features[0, 0] = 1.0
    (drawing,), _ = drawings_of(values({"audio": {"input_features": features}}))
    assert drawing.kind == "spectrograms"
    ((_, picture), _) = pictures(values({"audio": {"input_features": features}}))
    assert picture.size == "100 x 80"
    assert pixels(picture)[0, 79].unique().tolist() == [255]
    assert pixels(picture)[0, :79].unique().tolist() == [0]


def count(drawings: list[Drawing]) -> list[tuple[int, int]]:
    return [(len(drawing.views), drawing.num_left_out) for drawing in drawings]


def test_what_is_drawn_is_bounded() -> None:
    tree = {"image": torch.zeros(100, 3, 8, 8), "video": torch.zeros(20, 3, 8, 8)}
    more = {f"frame{index}": torch.zeros(3, 8, 8) for index in range(10)}
    drawings, num_left_out = drawings_of(values(tree | more))
    assert count(drawings) == [(24, 76), (20, 0), (1, 0), (1, 0), (1, 0), (1, 0)]
    assert num_left_out == 6
    clips = {f"audio{index}": torch.zeros(400) for index in range(50)}
    drawings, num_left_out = drawings_of(values(clips))
    assert (len(drawings), num_left_out) == (32, 18)
