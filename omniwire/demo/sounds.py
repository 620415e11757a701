"""Sounds: checking and decoding them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import soundfile
from scipy.signal import resample_poly  # type: ignore[import-untyped]  # ships no types

from omniwire.demo.agreement import SECONDS_PER_CLIP
from omniwire.demo.files import check_regular_file, quiet_codecs
from omniwire.demo.problems import BadInput, printable

SAMPLE_RATE: Final = 16_000
"""Samples per second of every `Sound`, the rate Whisper works at."""

MAX_SECONDS: Final = 300
"""Longest sound that is read."""

SOURCE_RATES: Final = range(1_000, 384_001)
"""Sample rates in Hz that are resampled to `SAMPLE_RATE`."""

MAX_CHANNELS: Final = 32
"""Most channels of a sound file; they are mixed down to one."""


@dataclass(frozen=True)
class Sound:
    """One decoded sound.

    Attributes:
        name: File name without its folder, safe to print.
        samples: float32[num_samples], mono, `SAMPLE_RATE` samples a second.
        source_rate: Samples per second in the file.
        source_channels: Channels in the file.
    """

    name: str
    samples: npt.NDArray[np.float32]
    source_rate: int
    source_channels: int

    @property
    def seconds(self) -> float:
        """Duration."""
        return len(self.samples) / SAMPLE_RATE

    @property
    def decoded(self) -> str:
        """What it is, in words."""
        return f"{self.seconds:.1f} s, {self.source_rate} Hz, {self.source_channels} channel(s)"

    def clips(self) -> list[npt.NDArray[np.float32]]:
        """The sound in pieces of `SECONDS_PER_CLIP`, the last one shorter; each is an item."""
        size = SECONDS_PER_CLIP * SAMPLE_RATE
        starts = range(0, len(self.samples), size)
        return [self.samples[start : start + size] for start in starts]


def load_sound(path: str) -> Sound:
    """Decode one sound, mix it down to mono and resample it to `SAMPLE_RATE`.

    Raises:
        BadInput: The file is missing, empty, corrupt, no sound, has no samples or one that
            is not finite, or lies outside the limits of this module.
    """
    name = printable(path)
    check_regular_file(path, name)
    try:
        with quiet_codecs(), soundfile.SoundFile(path) as file:
            rate, channels, num_frames = file.samplerate, file.channels, file.frames
            if rate not in SOURCE_RATES:
                raise BadInput(
                    f"{name}: sample rate {rate} Hz, allowed are "
                    f"{SOURCE_RATES.start} to {SOURCE_RATES.stop - 1} Hz"
                )
            if channels > MAX_CHANNELS:
                raise BadInput(f"{name}: {channels} channels, the limit is {MAX_CHANNELS}")
            if num_frames > MAX_SECONDS * rate:
                raise BadInput(
                    f"{name}: {num_frames / rate:.1f} seconds long, the limit is {MAX_SECONDS}"
                )
            frames = file.read(dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise BadInput(
            f"{name}: not a sound that can be read: {printable(error.error_string)}"
        ) from error
    if len(frames) == 0:
        raise BadInput(f"{name}: the sound has no samples")
    if not np.isfinite(frames).all():
        raise BadInput(f"{name}: the sound has samples that are not finite numbers")
    mono = frames.mean(axis=1, dtype=np.float32)
    divisor = int(np.gcd(rate, SAMPLE_RATE))
    resampled = resample_poly(mono, SAMPLE_RATE // divisor, rate // divisor)
    return Sound(
        printable(Path(path).name), np.asarray(resampled, dtype=np.float32), rate, channels
    )
