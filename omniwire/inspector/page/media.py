"""Which tensors of a message look like images or sounds, and what there is to see of them.

The rules, which docs/how-to/inspect-a-message.md tells users, go by names and shapes: of the
names on the way to a tensor, the innermost that speaks of images or of sound decides.
"""

import bisect
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

import attrs
import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from omniwire.contracts import FrozenMapping, MultimodalItemMetadata, RequestOutput
from omniwire.contracts.describe import dtype_name
from omniwire.contracts.errors import Path
from omniwire.inspector.fields import parts
from omniwire.inspector.items import records_of
from omniwire.inspector.page.pictures import Picture, patched_picture, picture, spectrogram
from omniwire.inspector.page.sounds import MIN_SAMPLES, Sound, sound

_MAX_PICTURES: Final = 48
_MAX_VIEWS_PER_TENSOR: Final = 24
_MAX_SOUNDS: Final = 32

_SOUND_NAMES: Final = re.compile(r"audio|wave|sound|speech|pcm", re.IGNORECASE)
_IMAGE_NAMES: Final = re.compile(r"image|video|pixel|frame|photo|picture", re.IGNORECASE)
_OTHER_NAMES: Final = re.compile(r"embed|hidden|mask|codes|codec|token|latent|grid", re.IGNORECASE)
_FEATURES: Final = re.compile(r"feature", re.IGNORECASE)  # of sound a spectrogram, else none

_PIXEL_TYPES: Final = frozenset(("u8", "f16", "bf16", "f32", "f64"))
_SAMPLE_TYPES: Final = frozenset(("i16", "f16", "bf16", "f32", "f64"))
_DRAWN_TYPES: Final = _PIXEL_TYPES | _SAMPLE_TYPES
_MIN_SIDE: Final = 8
_MAX_DIMENSIONS: Final = 6
_MAX_CHANNELS: Final = 2
_MEL_BINS: Final = (64, 80, 128)
_SAMPLE_RATES: Final = ("sample_rate", "sampling_rate")

_GRIDS: Final = {"pixel_values": "image_grid_thw", "pixel_values_videos": "video_grid_thw"}
"""Fields of packed patches, and the (t, h, w) grids beside them, as Qwen models have them."""
_VALUES_PER_PIXEL: Final = 6  # three colors in two frames
_MERGE_SIZE: Final = 2


@attrs.frozen(eq=False)
class Drawing:
    """What there is to see of one tensor.

    Attributes:
        path: Where it is.
        tensor: The tensor.
        kind: What it looks like, in the plural.
        views: Pictures or sounds, each with its name, which may be empty.
        num_left_out: How many more there would be.
    """

    path: Path
    tensor: torch.Tensor
    kind: str
    views: tuple[tuple[str, Picture | Sound], ...]
    num_left_out: int


class _Leaf(NamedTuple):
    """A tensor, and what stands beside it in the innermost mapping."""

    path: Path
    tensor: torch.Tensor
    beside: Mapping[str, object]


class _Found(NamedTuple):
    """What a tensor looks like: so many of a kind, and how to draw one with its name."""

    kind: str
    num_views: int
    draw: Callable[[int], tuple[str, Picture | Sound]]


def drawings_of(obj: object) -> tuple[list[Drawing], int]:
    """Draw what looks like an image or a sound, up to a number of each.

    This reads those tensors, where all else in the inspector leaves tensors alone.

    Returns:
        The drawings, and how many such tensors are left out.
    """
    record, _ = records_of(obj)
    room = {Picture: _MAX_PICTURES, Sound: _MAX_SOUNDS}
    drawings = []
    num_left_out = 0
    for leaf in _leaves(obj):
        found = _find(leaf, _Names(record, leaf), _sample_rate(obj, leaf))
        if found is None:
            continue
        kind = Sound if found.kind == "sounds" else Picture
        count = min(found.num_views, room[kind], _MAX_VIEWS_PER_TENSOR)
        if not count:
            num_left_out += 1
            continue
        room[kind] -= count
        views = tuple(found.draw(index) for index in range(count))
        num_more = found.num_views - count
        drawings.append(Drawing(leaf.path, leaf.tensor, found.kind, views, num_more))
    return drawings, num_left_out


def _leaves(obj: object) -> Iterator[_Leaf]:
    """Every tensor with something in it, in order; arrays as tensors that share their memory."""
    pending: list[tuple[Path, object, Mapping[str, object]]] = [((), obj, {})]
    while pending:
        path, value, beside = pending.pop()
        if isinstance(value, np.ndarray) and dtype_name(value.dtype) in _DRAWN_TYPES:
            value = from_dlpack(value)
        if isinstance(value, torch.Tensor):
            if value.numel() and dtype_name(value.dtype) in _DRAWN_TYPES:
                yield _Leaf(path, value, beside)
            continue
        beside = value if isinstance(value, FrozenMapping) else beside
        below = [((*path, part.step), part.value, beside) for part in parts(value)]
        pending.extend(reversed(below))


def _find(leaf: _Leaf, names: "_Names", sample_rate: float | None) -> _Found | None:
    """What a tensor looks like, if it looks like anything."""
    steps = [step for step in leaf.path if isinstance(step, str)]
    if steps and _OTHER_NAMES.search(steps[-1]):
        return None
    dtype = dtype_name(leaf.tensor.dtype)
    for step in reversed(steps):
        if _SOUND_NAMES.search(step):
            if dtype not in _SAMPLE_TYPES:
                return None
            return _sounds(leaf.tensor, names, sample_rate) or _spectrograms(leaf.tensor, names)
        if _IMAGE_NAMES.search(step) and not _FEATURES.search(steps[-1]):
            return _patches(leaf, names) or _images(leaf.tensor, names)
    return _images(leaf.tensor, names) if dtype == "u8" else None


def _sounds(tensor: torch.Tensor, names: "_Names", sample_rate: float | None) -> _Found | None:
    """Of `[samples]`, `[channels, samples]`, `[n, channels, samples]`, `[items, samples]`."""
    shape = tensor.shape
    if not shape or shape[-1] < MIN_SAMPLES:
        return None
    are_slices = len(shape) == 3 or (len(shape) == 2 and names.are_of(shape[0]))
    if are_slices:
        sounds = tensor if len(shape) == 3 else tensor[:, None]
    else:
        sounds = tensor[None] if len(shape) == 2 else tensor[None, None]
    if sounds.dim() != 3 or sounds.shape[1] > _MAX_CHANNELS:
        return None

    def draw(index: int) -> tuple[str, Sound]:
        return names.of((index,) if are_slices else ()), sound(sounds[index], sample_rate)

    return _Found("sounds", len(sounds), draw)


def _spectrograms(tensor: torch.Tensor, names: "_Names") -> _Found | None:
    """Of `[mel bins, frames]` and `[n, mel bins, frames]`."""
    shape = tensor.shape
    if len(shape) not in (2, 3) or shape[-2] not in _MEL_BINS or shape[-1] < _MIN_SIDE:
        return None
    each = tensor if len(shape) == 3 else tensor[None]

    def draw(index: int) -> tuple[str, Picture]:
        return names.of((index,) if len(shape) == 3 else ()), spectrogram(each[index])

    return _Found("spectrograms", len(each), draw)


def _images(tensor: torch.Tensor, names: "_Names") -> _Found | None:
    """Of `[..., 1 or 3 colors, height, width]` and `[..., height, width, 3 colors]`."""
    shape = tensor.shape
    if not 3 <= len(shape) <= _MAX_DIMENSIONS or dtype_name(tensor.dtype) not in _PIXEL_TYPES:
        return None
    if shape[-3] in (1, 3) and min(shape[-2:]) >= _MIN_SIDE:
        images = tensor
    elif shape[-1] == 3 and min(shape[-3:-1]) >= _MIN_SIDE:
        images = tensor.movedim(-1, -3)
    else:
        return None
    leading = images.shape[:-3]

    def draw(index: int) -> tuple[str, Picture]:
        where = tuple(int(step) for step in np.unravel_index(index, leading))
        return names.of(where), picture(images[where])

    return _Found("images", math.prod(leading), draw)


def _patches(leaf: _Leaf, names: "_Names") -> _Found | None:
    """Of `[patches, 6 * patch_size**2]` beside a grid; one image for each step in time."""
    shape = leaf.tensor.shape
    grid = leaf.beside.get(_GRIDS.get(str(leaf.path[-1]), ""))
    if len(shape) != 2 or not isinstance(grid, torch.Tensor | np.ndarray):
        return None
    patch_size = math.isqrt(shape[1] // _VALUES_PER_PIXEL)
    is_grid = grid.ndim == 2 and grid.shape[1] == 3 and dtype_name(grid.dtype)[0] in "iu"
    if shape[1] != _VALUES_PER_PIXEL * patch_size**2 or not is_grid:
        return None
    frames: list[tuple[str, int, int, int]] = []
    start = 0
    for item, (steps, rows, columns) in enumerate(grid.tolist()):
        step = 0
        # As many as there are: a grid that does not fit the patches is told of elsewhere.
        while min(rows, columns) > 0 and step < steps and start + rows * columns <= shape[0]:
            name = names.of((item,), grid.shape[0]) + (f", step {step}" if steps > 1 else "")
            frames.append((name, start, rows, columns))
            start += rows * columns
            step += 1
        if step < steps:
            break

    def draw(index: int) -> tuple[str, Picture]:
        name, first, rows, columns = frames[index]
        patches = leaf.tensor[first : first + rows * columns]
        merge_size = 1 if rows % _MERGE_SIZE or columns % _MERGE_SIZE else _MERGE_SIZE
        return name, patched_picture(patches, (rows, columns), patch_size, merge_size)

    return _Found("patches of images", len(frames), draw) if frames else None


class _Names:
    """What the slices of a tensor along axis 0 are called: after the items they belong to."""

    def __init__(self, record: MultimodalItemMetadata | None, leaf: _Leaf) -> None:
        self._modality = ""
        self._extent = leaf.tensor.shape[0] if leaf.tensor.dim() else 0
        self._num_items = 0
        self._ends: list[int] = []
        if record is None or len(leaf.path) < 2:
            return
        self._modality, field = map(str, leaf.path[-2:])
        self._num_items = len(record.local_indices(self._modality))
        declared = record.input_partitions
        fields = declared.get(self._modality) if declared is not None else None
        partition = fields.get(field) if fields is not None else None
        if partition is not None and partition.item_lengths is not None and not partition.axis:
            self._ends = list(itertools.accumulate(partition.item_lengths))

    def are_of(self, num_slices: int) -> bool:
        """Whether there are as many items as slices."""
        return self._num_items == num_slices

    def of(self, where: tuple[int, ...], num_slices: int | None = None) -> str:
        """What is at some indices of the leading axes; empty without any."""
        if not where:
            return ""
        first, *rest = where
        if self.are_of(self._extent if num_slices is None else num_slices):
            name = f"{self._modality} {first}"
        elif self._ends and num_slices is None:
            item = bisect.bisect_right(self._ends, first)
            start = self._ends[item - 1] if item else 0
            name = f"{self._modality} {item}, part {first - start}"
        else:
            rest, name = list(where), ""
        return " ".join([name] * bool(name) + [str(rest)] * bool(rest))


def _sample_rate(obj: object, leaf: _Leaf) -> float | None:
    """The sample rate that stands beside a sound, or in the metadata of an output."""
    places = [leaf.beside]
    if isinstance(obj, RequestOutput) and len(leaf.path) > 1:
        places.append(obj.metadata.get(str(leaf.path[1]), {}))
    for place in places:
        for name in _SAMPLE_RATES:
            rate = place.get(name)
            if isinstance(rate, int | float) and 0 < rate < math.inf:
                return float(rate)
    return None
