"""Tensors that hold sound, as the outline of their waveform."""

from typing import Final

import attrs
import torch

from omniwire.inspector.text import counted

TRACK_WIDTH: Final = 400
TRACK_HEIGHT: Final = 48
"""Of the drawing of one channel, in its own units."""

MIN_SAMPLES: Final = 100

_INT16_SCALE: Final = 32_768
_MARGIN: Final = 2


@attrs.frozen(eq=False)
class Sound:
    """A sound.

    Attributes:
        tracks: Per channel, an SVG path: down the largest and back the smallest sample of each
            of up to `TRACK_WIDTH` stretches of time.
        words: Channels, samples, duration and peak.
    """

    tracks: tuple[str, ...]
    words: str


def sound(samples: torch.Tensor, sample_rate: float | None) -> Sound:
    """Draw a sound. All of it is read, none of it copied as a whole.

    Args:
        samples: `[channels, samples]`, floating point or i16; not changed.
        sample_rate: Samples per second, if that is known.
    """
    num_channels, num_samples = samples.shape
    outlines = [_outline(channel) for channel in samples]
    values = torch.stack([torch.stack(outline) for outline in outlines])  # [channels, 2, columns]
    is_finite = torch.isfinite(values).all(dim=1)  # [channels, columns]
    values = torch.where(is_finite[:, None], values, 0.0)
    peak = float(values.abs().max())
    scale = max(peak, 1.0)
    tracks = tuple(_path(low.tolist(), high.tolist(), scale) for low, high in values)
    words = [counted(num_channels, "channel"), counted(num_samples, "sample")]
    if sample_rate:
        words.append(f"{num_samples / sample_rate:,.2f} s at {sample_rate:,.6g} Hz")
    words.append(f"peak {peak:.3g}")
    num_bad = int((~is_finite).sum())
    if num_bad:
        words.append(f"not finite in {num_bad:,} of {is_finite.numel():,} stretches")
    return Sound(tracks, ", ".join(words))


def _outline(channel: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest and the largest sample of each stretch, f64[columns]."""
    step = -(-len(channel) // TRACK_WIDTH)
    whole = len(channel) // step * step
    stretches = channel[:whole].view(-1, step)
    lows, highs = [stretches.amin(1)], [stretches.amax(1)]
    if whole < len(channel):
        lows.append(channel[whole:].amin()[None])
        highs.append(channel[whole:].amax()[None])
    unit = _INT16_SCALE if channel.dtype == torch.int16 else 1
    low, high = torch.cat(lows), torch.cat(highs)
    return low.to(torch.float64) / unit, high.to(torch.float64) / unit


def _path(low: list[float], high: list[float], scale: float) -> str:
    middle = TRACK_HEIGHT / 2
    step = TRACK_WIDTH / max(len(low) - 1, 1)
    points = [(index * step, value) for index, value in enumerate(high)]
    points += [(index * step, value) for index, value in reversed(list(enumerate(low)))]
    unit = (middle - _MARGIN) / scale
    return "M" + "L".join(f"{x:.4g} {middle - value * unit:.3g}" for x, value in points) + "Z"
