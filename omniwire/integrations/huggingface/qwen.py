"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL and the vision side of the Qwen Omni models."""

from collections.abc import Mapping
from math import isqrt
from typing import Any, ClassVar

import attrs
import torch

from omniwire.contracts.errors import Path
from omniwire.integrations.huggingface.layout import (
    ItemLayout,
    check_settings,
    host_rows,
    partitions_of,
)


@attrs.frozen
class QwenImages:
    """Images as patches of all items one after the other, with a (t, h, w) grid per item.

    `pixel_values` is `[patches, patch width]`, `image_grid_thw` `int64[items, 3]` in patches.
    The encoder sees t*h*w tokens, one per patch, and yields a row per `merge_size`^2 of them.
    Qwen3-VL's deepstack features widen a row, their number stays.

    Attributes:
        patch_size: Side of a patch in pixels (14; Qwen3-VL: 16).
        temporal_patch_size: Frames in a patch; a single image is repeated.
        merge_size: Side in patches of the square that becomes one row.
        max_pixels: Largest area of an image, for `dummy` (`size["longest_edge"]` there).
    """

    field_names: ClassVar[tuple[str, ...]] = ("pixel_values", "image_grid_thw")

    patch_size: int = 14
    temporal_patch_size: int = 2
    merge_size: int = 2
    max_pixels: int = 28 * 28 * 1280

    def __attrs_post_init__(self) -> None:
        _check(self)
        check_settings(self, {"max_pixels": (self.patch_size * self.merge_size) ** 2})

    def items(self, fields: Mapping[str, Any], path: Path) -> ItemLayout:
        """The items in a payload; see `ModalityLayout.items`."""
        return _patch_items(fields, self.field_names, self.merge_size, path)

    def dummy(self, num_items: int) -> dict[str, Any]:
        """A payload of that many of the largest items, of zeros."""
        return _dummy(self, self.field_names, num_items, self.max_pixels, 1)


@attrs.frozen
class QwenVideos:
    """Videos as patches of all items one after the other, with a (t, h, w) grid per item.

    `pixel_values_videos` is `[patches, patch width]`, `video_grid_thw` `int64[items, 3]`: t in
    pairs of frames, h and w in patches. Per item also the seconds that a grid step takes:
    `second_per_grid_ts` (Qwen2.5-VL) or `video_second_per_grid` (Qwen2.5-Omni). Qwen3-VL puts
    a timestamp between the frames' placeholders: one item, several runs in the prompt.

    Attributes:
        patch_size: Side of a patch in pixels (14; Qwen3-VL: 16).
        temporal_patch_size: Frames in a patch.
        merge_size: Side in patches of the square that becomes one row.
        max_pixels: Largest area of a frame, for `dummy`.
        max_frames: Most frames of a video, for `dummy`.
    """

    field_names: ClassVar[tuple[str, ...]] = (
        "pixel_values_videos",
        "video_grid_thw",
        "second_per_grid_ts",
        "video_second_per_grid",
    )

    patch_size: int = 14
    temporal_patch_size: int = 2
    merge_size: int = 2
    max_pixels: int = 28 * 28 * 768
    max_frames: int = 32

    def __attrs_post_init__(self) -> None:
        _check(self)
        max_pixels = (self.patch_size * self.merge_size) ** 2
        check_settings(self, {"max_pixels": max_pixels, "max_frames": 1})

    def items(self, fields: Mapping[str, Any], path: Path) -> ItemLayout:
        """The items in a payload; see `ModalityLayout.items`."""
        return _patch_items(fields, self.field_names, self.merge_size, path)

    def dummy(self, num_items: int) -> dict[str, Any]:
        """A payload of that many of the largest items, of zeros."""
        num_steps = -(-self.max_frames // self.temporal_patch_size)
        return _dummy(self, self.field_names, num_items, self.max_pixels, num_steps)


def _check(layout: QwenImages | QwenVideos) -> None:
    check_settings(layout, {"patch_size": 1, "temporal_patch_size": 1, "merge_size": 1})


def _patch_items(
    fields: Mapping[str, Any], names: tuple[str, ...], merge_size: int, path: Path
) -> ItemLayout:
    patches = [t * h * w for t, h, w in host_rows(fields, names[1], path, 3)]
    return ItemLayout(
        encoder_token_lengths=tuple(patches),
        output_embedding_lengths=tuple([count // merge_size**2 for count in patches]),
        partitions=partitions_of(fields, names, {names[0]: patches}),
    )


def _dummy(
    layout: QwenImages | QwenVideos,
    names: tuple[str, ...],
    num_items: int,
    max_pixels: int,
    num_steps: int,
) -> dict[str, Any]:
    num_rows = max_pixels // (layout.patch_size * layout.merge_size) ** 2
    height = isqrt(num_rows)
    grid = [num_steps, height * layout.merge_size, num_rows // height * layout.merge_size]
    num_patches = num_items * grid[0] * grid[1] * grid[2]
    width = 3 * layout.temporal_patch_size * layout.patch_size**2
    return {
        names[0]: torch.zeros(num_patches, width),
        names[1]: torch.tensor([grid] * num_items, dtype=torch.int64).reshape(num_items, 3),
    }
