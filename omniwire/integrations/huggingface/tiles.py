"""Models that cut an image into tiles of one size: LLaVA-NeXT, Gemma 3, InternVL."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import attrs
import torch

from omniwire.contracts.errors import Path, Problem, contract_error
from omniwire.integrations.huggingface.layout import (
    ItemLayout,
    check_settings,
    host_ints,
    host_rows,
    misfit,
    num_slices,
    partitions_of,
    shape_of,
)


def _pinpoints(values: object) -> tuple[tuple[int, int], ...]:
    return tuple([(height, width) for height, width in values])  # type: ignore[attr-defined]  # any sequence of pairs


@attrs.frozen
class LlavaNextImages:
    """Images as a thumbnail and the tiles of the best of some resolutions.

    `pixel_values` is `[items, tiles, 3, side, side]`, padded to the item with most tiles (or a
    tuple of one unpadded tensor per item), `image_sizes` `int[items, 2]` in pixels before
    resizing. The encoder leaves the padding out. Of the rows, those of the border that kept
    the aspect ratio are dropped and each line of the rest gets a newline row.

    Attributes:
        image_grid_pinpoints: The resolutions, (height, width) in pixels.
        image_size: Side of a tile in pixels.
        patch_size: Side of a patch in pixels.
        num_additional_image_tokens: Encoder tokens of a tile that are no patch (a CLS token).
        vision_feature_select_strategy: `"default"` leaves one of those out of the rows.
    """

    field_names: ClassVar[tuple[str, ...]] = ("pixel_values", "image_sizes")

    image_grid_pinpoints: tuple[tuple[int, int], ...] = attrs.field(converter=_pinpoints)
    image_size: int = 336
    patch_size: int = 14
    num_additional_image_tokens: int = 1
    vision_feature_select_strategy: Literal["default", "full"] = "default"

    def __attrs_post_init__(self) -> None:
        check_settings(self, {"patch_size": 1, "num_additional_image_tokens": 0})
        check_settings(self, {"image_size": self.patch_size})
        path, pinpoints = ("image_grid_pinpoints",), self.image_grid_pinpoints
        problems: list[Problem] = []
        if not pinpoints:
            problems.append(Problem(path, "count", "at least 1 resolution", "0"))
        expected = f"whole tiles of {self.image_size} pixels"
        for index, size in enumerate(pinpoints):
            if any(side < 1 or side % self.image_size for side in size):
                problems.append(Problem((*path, index), "range", expected, str(size)))
        if problems:
            raise contract_error("LlavaNextImages", problems)

    def items(self, fields: Mapping[str, Any], path: Path) -> ItemLayout:
        """The items in a payload; see `ModalityLayout.items`."""
        sizes = host_rows(fields, "image_sizes", path, 2)
        side = self.image_size // self.patch_size
        tokens_per_tile = side * side + self.num_additional_image_tokens
        tiles: list[int] = []
        for index, (height, width) in enumerate(sizes):
            if not height or not width:
                raise misfit((*path, "image_sizes", index), "range", "a size > 0", height * width)
            down, across = self._num_tiles(height, width)
            tiles.append(down * across + 1)
        return ItemLayout(
            encoder_token_lengths=tuple([count * tokens_per_tile for count in tiles]),
            output_embedding_lengths=tuple([self._num_rows(h, w) for h, w in sizes]),
            partitions=partitions_of(fields, self.field_names),
        )

    def dummy(self, num_items: int) -> dict[str, Any]:
        """A payload of that many of the largest items, of zeros."""
        size = max(self.image_grid_pinpoints, key=lambda pinpoint: self._num_rows(*pinpoint))
        down, across = self._num_tiles(*size)
        shape = (num_items, down * across + 1, 3, self.image_size, self.image_size)
        sizes = torch.tensor([size] * num_items, dtype=torch.int64).reshape(num_items, 2)
        return {"pixel_values": torch.zeros(shape), "image_sizes": sizes}

    def _num_tiles(self, height: int, width: int) -> tuple[int, int]:
        """Tiles down and across, of the resolution that keeps most and then wastes least.

        The rule is transformers' `select_best_resolution`; the first of equals wins.
        """
        fits: list[tuple[int, int, tuple[int, int]]] = []
        for down, across in self.image_grid_pinpoints:
            scale = min(across / width, down / height)
            kept = min(int(width * scale) * int(height * scale), width * height)
            fits.append((kept, kept - down * across, (down, across)))
        _, _, (down, across) = max(fits, key=lambda fit: fit[:2])
        return down // self.image_size, across // self.image_size

    def _num_rows(self, height: int, width: int) -> int:
        """As transformers' `LlavaNextProcessor._get_number_of_features` counts them."""
        side = self.image_size // self.patch_size
        down, across = self._num_tiles(height, width)
        lines, columns = side * down, side * across
        if width / height > columns / lines:
            kept = int(round(height * (columns / width), 7))
            lines -= (lines - kept) // 2 * 2
        else:
            kept = int(round(width * (lines / height), 7))
            columns -= (columns - kept) // 2 * 2
        thumbnail = side * side + self.num_additional_image_tokens
        thumbnail -= self.vision_feature_select_strategy == "default"
        return thumbnail + lines * columns + lines


@attrs.frozen
class Gemma3Images:
    """Images, each followed by its pan-and-scan crops, all of one size.

    `pixel_values` is `[images and crops, 3, side, side]`, `num_crops` `int[items]`; the whole
    processor leaves `num_crops` out, and without it every image is an item. An image and its
    crops are one item: the prompt presents them together.

    Attributes:
        image_size: Side of an image in pixels.
        patch_size: Side of a patch in pixels.
        image_seq_length: Rows per image or crop (`mm_tokens_per_image` in the model).
        max_crops: Most crops of an image, for `dummy`; 0 without pan-and-scan.
    """

    field_names: ClassVar[tuple[str, ...]] = ("pixel_values", "num_crops")

    image_size: int = 896
    patch_size: int = 14
    image_seq_length: int = 256
    max_crops: int = 0

    def __attrs_post_init__(self) -> None:
        check_settings(self, {"patch_size": 1, "image_seq_length": 1, "max_crops": 0})
        check_settings(self, {"image_size": self.patch_size})

    def items(self, fields: Mapping[str, Any], path: Path) -> ItemLayout:
        """The items in a payload; see `ModalityLayout.items`."""
        tiles = [1] * num_slices(fields, "pixel_values", path)
        if fields.get("num_crops") is not None:
            tiles = [1 + crops for crops in host_ints(fields, "num_crops", path)]
        tokens_per_tile = (self.image_size // self.patch_size) ** 2
        return ItemLayout(
            encoder_token_lengths=tuple([count * tokens_per_tile for count in tiles]),
            output_embedding_lengths=tuple([count * self.image_seq_length for count in tiles]),
            partitions=partitions_of(fields, self.field_names, {"pixel_values": tiles}),
        )

    def dummy(self, num_items: int) -> dict[str, Any]:
        """A payload of that many of the largest items, of zeros."""
        num_tiles = num_items * (1 + self.max_crops)
        return {
            "pixel_values": torch.zeros(num_tiles, 3, self.image_size, self.image_size),
            "num_crops": torch.full((num_items,), self.max_crops, dtype=torch.int64),
        }


@attrs.frozen
class InternVLImages:
    """Images as tiles and a thumbnail, all of one size, the tiles of all items together.

    `pixel_values` is `[tiles, 3, side, side]`, `num_patches` `int[items]` the tiles of each
    item. Take both from the image processor: the whole processor drops `num_patches` and
    mixes the tiles with the frames of videos.

    Attributes:
        image_size: Side of a tile in pixels.
        patch_size: Side of a patch in pixels.
        image_seq_length: Rows per tile.
        max_patches: Most tiles of an image beside its thumbnail, for `dummy`.
    """

    field_names: ClassVar[tuple[str, ...]] = ("pixel_values", "num_patches")

    image_size: int = 448
    patch_size: int = 14
    image_seq_length: int = 256
    max_patches: int = 12

    def __attrs_post_init__(self) -> None:
        check_settings(self, {"patch_size": 1, "image_seq_length": 1, "max_patches": 1})
        check_settings(self, {"image_size": self.patch_size})

    def items(self, fields: Mapping[str, Any], path: Path) -> ItemLayout:
        """The items in a payload; see `ModalityLayout.items`."""
        tiles = host_ints(fields, "num_patches", path)
        tokens_per_tile = _internvl_tokens(self.image_size, self.patch_size)
        return ItemLayout(
            encoder_token_lengths=tuple([count * tokens_per_tile for count in tiles]),
            output_embedding_lengths=tuple([count * self.image_seq_length for count in tiles]),
            partitions=partitions_of(fields, self.field_names, {"pixel_values": tiles}),
        )

    def dummy(self, num_items: int) -> dict[str, Any]:
        """A payload of that many of the largest items, of zeros."""
        # A single tile has no thumbnail beside it.
        num_tiles = self.max_patches + (self.max_patches > 1)
        shape = (num_items * num_tiles, 3, self.image_size, self.image_size)
        num_patches = torch.full((num_items,), num_tiles, dtype=torch.int64)
        return {"pixel_values": torch.zeros(shape), "num_patches": num_patches}


@attrs.frozen
class InternVLVideos:
    """Videos, a tile per frame.

    `pixel_values_videos` is `[items, frames, 3, side, side]`, or a tuple of one
    `[frames, 3, side, side]` per item where the numbers of frames differ. Take it from the
    video processor: the whole processor mixes the frames with the tiles of images.

    Attributes:
        image_size: Side of a frame in pixels.
        patch_size: Side of a patch in pixels.
        image_seq_length: Rows per frame.
        max_frames: Most frames of a video, for `dummy`.
    """

    field_names: ClassVar[tuple[str, ...]] = ("pixel_values_videos",)

    image_size: int = 448
    patch_size: int = 14
    image_seq_length: int = 256
    max_frames: int = 16

    def __attrs_post_init__(self) -> None:
        check_settings(self, {"patch_size": 1, "image_seq_length": 1, "max_frames": 1})
        check_settings(self, {"image_size": self.patch_size})

    def items(self, fields: Mapping[str, Any], path: Path) -> ItemLayout:
        """The items in a payload; see `ModalityLayout.items`."""
        name = "pixel_values_videos"
        value = fields.get(name)
        expected = "videos of shape [frames, 3, height, width]"
        each: list[tuple[int, ...]]
        if isinstance(value, tuple | list):
            each = [shape_of({name: video}, name, path) for video in value]
        else:
            num_videos = num_slices(fields, name, path)
            each = [shape_of(fields, name, path)[1:]] * num_videos
        if any(len(shape) != 4 for shape in each):
            raise misfit((*path, name), "shape", expected, value)
        frames = [num_frames for num_frames, *_ in each]
        tokens_per_frame = _internvl_tokens(self.image_size, self.patch_size)
        return ItemLayout(
            encoder_token_lengths=tuple([count * tokens_per_frame for count in frames]),
            output_embedding_lengths=tuple([count * self.image_seq_length for count in frames]),
            partitions=partitions_of(fields, self.field_names),
        )

    def dummy(self, num_items: int) -> dict[str, Any]:
        """A payload of that many of the largest items, of zeros."""
        shape = (num_items, self.max_frames, 3, self.image_size, self.image_size)
        return {"pixel_values_videos": torch.zeros(shape)}


def _internvl_tokens(image_size: int, patch_size: int) -> int:
    """Patches of a tile, and its CLS token."""
    return (image_size // patch_size) ** 2 + 1
