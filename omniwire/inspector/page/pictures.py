"""Small pictures of tensors that hold images, as PNG inside the page."""

import base64
import io
from typing import Final

import attrs
import numpy as np
import torch
from PIL import Image

_MAX_SIDE: Final = 128
_MAX_SPECTROGRAM: Final = (256, 128)
_SAMPLES_PER_PIXEL: Final = 4  # along each axis; more of a large image are not read


@attrs.frozen(eq=False)
class Picture:
    """A picture of an image.

    Attributes:
        uri: The picture itself, a `data:` URI.
        width: To be shown with, in CSS pixels.
        height: To be shown with, in CSS pixels.
        size: Width and height of the image itself, in words.
        values: The range of the values that were looked at, in words.
    """

    uri: str
    width: int
    height: int
    size: str
    values: str


def picture(image: torch.Tensor) -> Picture:
    """Draw an image.

    Args:
        image: `[colors, height, width]` with 1 or 3 colors, u8 or floating point; not changed.
            Only what is drawn of it is read.
    """
    _, height, width = image.shape
    steps = [max(1, side // (_SAMPLES_PER_PIXEL * _MAX_SIDE)) for side in (height, width)]
    seen = image[:, :: steps[0], :: steps[1]]
    return _draw(_host(seen), (width, height), (_MAX_SIDE, _MAX_SIDE))


def patched_picture(
    patches: torch.Tensor, grid: tuple[int, int], patch_size: int, merge_size: int
) -> Picture:
    """Draw an image that was cut into patches as transformers' `Qwen2VLImageProcessor` does.

    Args:
        patches: `[h * w, 3 * frames * patch_size**2]`, ordered by squares of `merge_size`
            patches; the first of the frames is drawn.
        grid: Height and width in patches, h and w.
        patch_size: Side of a patch in pixels.
        merge_size: Side of such a square in patches; divides h and w.
    """
    rows, columns = grid
    size = columns * patch_size, rows * patch_size
    step = min(patch_size, max(1, max(size) // (_SAMPLES_PER_PIXEL * _MAX_SIDE)))
    squares = rows // merge_size, columns // merge_size
    cut = patches.view(*squares, merge_size, merge_size, 3, -1, patch_size, patch_size)
    seen = _host(cut[:, :, :, :, :, 0, ::step, ::step])
    side = seen.shape[-1]
    # To colors, then the three parts of a pixel's row, then those of its column.
    image = seen.transpose(4, 0, 2, 5, 1, 3, 6).reshape(3, rows * side, columns * side)
    return _draw(image, size, (_MAX_SIDE, _MAX_SIDE))


def spectrogram(bins: torch.Tensor) -> Picture:
    """Draw a spectrogram, low frequencies at the bottom.

    Args:
        bins: `[bins, frames]`, floating point; not changed.
    """
    num_bins, num_frames = bins.shape
    step = max(1, num_frames // (_SAMPLES_PER_PIXEL * _MAX_SPECTROGRAM[0]))
    seen = _host(bins[None, :, ::step])[:, ::-1]
    return _draw(seen, (num_frames, num_bins), _MAX_SPECTROGRAM, stretched=True)


def _host(values: torch.Tensor) -> np.ndarray:
    """Values as u8 or f64 in host memory; f64, so that no difference of two overflows."""
    return values.numpy() if values.dtype == torch.uint8 else values.to(torch.float64).numpy()


def _draw(
    values: np.ndarray, size: tuple[int, int], limit: tuple[int, int], *, stretched: bool = False
) -> Picture:
    """Draw values `[colors, height, width]`.

    Args:
        values: What was looked at.
        size: Width and height of the image itself.
        limit: The largest width and height to draw.
        stretched: Whether width and height are cut to the limit each, or in proportion.
    """
    shades, words = _shades(values)
    channels = [Image.fromarray(channel) for channel in shades]
    image = channels[0] if len(channels) == 1 else Image.merge("RGB", channels)
    scales = [min(1.0, most / side) for most, side in zip(limit, size, strict=True)]
    scales = scales if stretched else [min(scales)] * 2
    drawn = [max(1, round(side * scale)) for side, scale in zip(size, scales, strict=True)]
    image = image.resize((drawn[0], drawn[1]), Image.Resampling.BOX)
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    uri = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")
    # What is small is enlarged by the browser, pixel by pixel.
    zoom = max(1, min(most // side for most, side in zip(limit, drawn, strict=True)))
    return Picture(uri, drawn[0] * zoom, drawn[1] * zoom, f"{size[0]:,} x {size[1]:,}", words)


def _shades(values: np.ndarray) -> tuple[np.ndarray, str]:
    """Values as u8, and their range in words.

    u8 stays as it is, and floats in [0, 1] are scaled by 255; others are stretched from the
    smallest to the largest, since what a processor normalized them by is not known.
    """
    if values.dtype == np.uint8:
        return np.ascontiguousarray(values), f"{values.min()} to {values.max()}"
    finite = np.isfinite(values)
    num_bad = values.size - int(finite.sum())
    if num_bad == values.size:
        return np.zeros(values.shape, np.uint8), "none finite"
    low, high = float(values[finite].min()), float(values[finite].max())
    words = f"{low:.3g} to {high:.3g}" + (f", {num_bad:,} not finite" if num_bad else "")
    values = np.where(finite, values, low)
    if low < 0 or high > 1:
        # Halved, so that the difference of two extremes is finite too.
        spread = high / 2 - low / 2
        values = (values / 2 - low / 2) / spread if spread else np.full(values.shape, 0.5)
    shades = np.where(finite, values, 0.0) * 255
    return np.ascontiguousarray(shades.round().clip(0, 255).astype(np.uint8)), words
