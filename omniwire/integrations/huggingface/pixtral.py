"""Pixtral and Mistral 3: images of any size, padded to the largest of the request."""

from collections.abc import Mapping
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
class PixtralImages:
    """Images `[items, 3, height, width]`, padded; `image_sizes` `int[items, 2]` has their own.

    The encoder sees one token per patch of an image's own size, without the padding, and
    yields a row per `spatial_merge_size`^2 of them. In the prompt an [IMG_BREAK] follows each
    line of placeholders: one item, as many runs as lines.

    Attributes:
        patch_size: Side of a patch in pixels (Pixtral: 16; Mistral 3: 14).
        spatial_merge_size: Side in patches of what becomes one row (Pixtral: 1; Mistral 3: 2).
        longest_edge: Largest side of an image in pixels, for `dummy`.
    """

    field_names: ClassVar[tuple[str, ...]] = ("pixel_values", "image_sizes")

    patch_size: int = 16
    spatial_merge_size: int = 1
    longest_edge: int = 1024

    def __attrs_post_init__(self) -> None:
        check_settings(self, {"patch_size": 1, "spatial_merge_size": 1})
        check_settings(self, {"longest_edge": self.patch_size * self.spatial_merge_size})

    def items(self, fields: Mapping[str, Any], path: Path) -> ItemLayout:
        """The items in a payload; see `ModalityLayout.items`."""
        sizes = host_rows(fields, "image_sizes", path, 2)
        patch, square = self.patch_size, self.patch_size * self.spatial_merge_size
        return ItemLayout(
            encoder_token_lengths=tuple([(h // patch) * (w // patch) for h, w in sizes]),
            output_embedding_lengths=tuple([(h // square) * (w // square) for h, w in sizes]),
            partitions=partitions_of(fields, self.field_names),
        )

    def dummy(self, num_items: int) -> dict[str, Any]:
        """A payload of that many of the largest items, of zeros."""
        square = self.patch_size * self.spatial_merge_size
        side = self.longest_edge // square * square
        sizes = torch.full((num_items, 2), side, dtype=torch.int64)
        return {"pixel_values": torch.zeros(num_items, 3, side, side), "image_sizes": sizes}
