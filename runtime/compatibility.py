"""Partitions of modalities that declare none: the two layouts that can be told from the fields.

Models that predate declared partitions emit either *packed* patches described by a
`*_grid_thw` field, or *stacked* features whose leading dimension is the item count. Anything
else is refused: sizes that happen to agree are no evidence of an item axis.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
import torch

from omniwire.contracts.describe import describe
from omniwire.contracts.errors import Path, Problem
from omniwire.contracts.handles import TensorHandle
from omniwire.contracts.items import MultimodalItemPartition

_GRID_SUFFIX: Final = "_grid_thw"
_PATCH_FIELDS: Final = frozenset(("pixel_values", "pixel_values_videos", "pixel_values_images"))
_STACKED_FIELDS: Final = _PATCH_FIELDS | {
    "audio_features",
    "audio_values",
    "input_audio_features",
    "input_features",
    "input_values",
    "feature_attention_mask",
}
_BATCHED: Final = MultimodalItemPartition()


def compatible_partitions(
    fields: Mapping[str, object], modality: str, num_items: int, path: Path
) -> tuple[dict[str, MultimodalItemPartition], list[Problem]]:
    """Partitions of an undeclared modality, as far as its fields tell them.

    A grid `[num_items, 3]` of (t, h, w) on the host gives the lengths t*h*w of the patch
    field beside it. Other known feature fields are batched if their leading dimension is
    `num_items`. Plain scalars and 0-dim tensors have no item axis and are shared.

    Args:
        fields: The modality's payload.
        modality: Its name.
        num_items: Its number of items.
        path: Where the payload is, for problems.

    Returns:
        The partitions, and a problem for each field that needs a declaration.
    """
    partitions: dict[str, MultimodalItemPartition] = {}
    problems: list[Problem] = []
    grid_names = [name for name in fields if name.endswith(_GRID_SUFFIX)]
    grid_name = grid_names[0] if len(grid_names) == 1 else None
    patch_counts = None if grid_name is None else _patch_counts(fields[grid_name], num_items)
    for name, value in fields.items():
        extent = _leading_extent(value)
        if extent is None:
            continue
        if patch_counts is not None and name == grid_name:
            partitions[name] = _BATCHED
        elif patch_counts is not None and name in _PATCH_FIELDS and extent == sum(patch_counts):
            partitions[name] = MultimodalItemPartition(item_lengths=patch_counts)
        elif name in _STACKED_FIELDS and extent == num_items:
            partitions[name] = _BATCHED
        else:
            expected = (
                f"input_partitions[{modality!r}] to declare how field {name!r} divides into "
                f"{num_items} items (batched, packed or shared)"
            )
            problems.append(Problem((*path, name), "missing", expected, describe(value)))
    return partitions, problems


def _leading_extent(value: object) -> int | None:
    """Extent of axis 0, -1 where there is no telling, None for a value that has no axis."""
    if isinstance(value, torch.Tensor | np.ndarray | TensorHandle):
        return value.shape[0] if len(value.shape) else None
    if value is None or isinstance(value, str | bytes | int | float):
        return None
    return -1


def _patch_counts(grid: object, num_items: int) -> tuple[int, ...] | None:
    """Patches per item from a grid of (t, h, w) rows; None if it is no such grid.

    A grid on a device is not read: that would wait for everything queued there.
    """
    if not isinstance(grid, torch.Tensor | np.ndarray) or tuple(grid.shape) != (num_items, 3):
        return None
    if isinstance(grid, torch.Tensor) and grid.device.type != "cpu":
        return None
    rows: list[list[object]] = grid.tolist()
    counts = []
    for t, h, w in rows:
        if type(t) is not int or type(h) is not int or type(w) is not int:
            return None
        if min(t, h, w) < 0:
            return None
        counts.append(t * h * w)
    return tuple(counts)
