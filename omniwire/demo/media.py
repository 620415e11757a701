"""Real photographs and sounds: finding, checking and decoding them.

Every file is taken as untrusted. What cannot be used is a `BadInput` whose text is one line
that names the file, says what is wrong and, for a limit, gives both numbers.
"""

import importlib.util
import os
import re
import stat
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import soundfile
from PIL import Image, ImageOps, UnidentifiedImageError
from scipy.signal import resample_poly  # type: ignore[import-untyped]  # ships no types

from omniwire.demo.problems import BadInput, first_line, printable

SAMPLE_RATE: Final = 16_000
"""Samples per second of every `Sound`, the rate Whisper works at."""

MAX_ASPECT_RATIO: Final = 200
"""Longer side over shorter side of a photograph; Qwen2-VL's processor takes no more."""

MAX_SECONDS: Final = 300
"""Longest sound that is read."""

SOURCE_RATES: Final = range(1_000, 384_001)
"""Sample rates in Hz that are resampled to `SAMPLE_RATE`."""

MAX_CHANNELS: Final = 32
"""Most channels of a sound file; they are mixed down to one."""

_PHOTOGRAPH_FORMATS: Final = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""Formats that Pillow decodes itself; EPS, for one, would start another program."""

_DEFAULT_PHOTOGRAPHS: Final = ("china.jpg", "flower.jpg")
_DEFAULT_SOUNDS: Final = ("house_lo.ogg", "secosmic_lo.wav")


@dataclass(frozen=True)
class Photograph:
    """One decoded photograph.

    Attributes:
        name: File name without its folder, safe to print.
        image: The pixels, mode RGB, upright.
    """

    name: str
    image: Image.Image


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


def default_media() -> tuple[list[str], list[str]]:
    """Paths of the photographs and sounds that ship inside scikit-learn and pygame.

    The packages are located, never imported: importing pygame prints a banner and touches
    the audio system.

    Returns:
        Photograph paths and sound paths; empty where the package is not installed.
    """
    photographs = _files_of("sklearn", "datasets/images", _DEFAULT_PHOTOGRAPHS)
    sounds = _files_of("pygame", "examples/data", _DEFAULT_SOUNDS)
    return photographs, sounds


def _files_of(package: str, folder: str, names: tuple[str, ...]) -> list[str]:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return []
    paths = [Path(spec.origin).parent / folder / name for name in names]
    return [str(path) for path in paths if path.is_file()]


def load_media(images: list[str], audios: list[str]) -> tuple[list[Photograph], list[Sound]]:
    """Decode the given files, or the default ones when none is given at all.

    Args:
        images: Paths of photographs.
        audios: Paths of sounds.

    Returns:
        The photographs and the sounds, in the order given; at least one of either.

    Raises:
        BadInput: A file cannot be used, or there is no media at all.
    """
    if not images and not audios:
        images, audios = default_media()
    if not images and not audios:
        raise BadInput(
            "no media at all: give --image or --audio, or install the packages that the "
            "default files come in: pip install 'omniwire[demo]'"
        )
    return [load_photograph(path) for path in images], [load_sound(path) for path in audios]


def load_photograph(path: str) -> Photograph:
    """Decode one photograph.

    Raises:
        BadInput: The file is missing, empty, corrupt, no photograph, has more pixels than
            Pillow's own limit or a side ratio above `MAX_ASPECT_RATIO`.
    """
    name = printable(path)
    _check_regular_file(path, name)
    try:
        with _quiet_codecs(), warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            warnings.simplefilter("ignore", UserWarning)  # odd metadata is no reason to refuse
            with Image.open(path, formats=_PHOTOGRAPH_FORMATS) as opened:
                _check_sides(opened.size, name)
                image = ImageOps.exif_transpose(opened).convert("RGB")
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        # Pillow knows the size before it decodes, and tells it in the text only. It warns above
        # its limit and raises above twice that.
        num_pixels = next(iter(re.findall(r"\d+", str(error))), "too many")
        raise BadInput(
            f"{name}: {num_pixels} pixels, the limit is {Image.MAX_IMAGE_PIXELS}"
        ) from error
    except UnidentifiedImageError as error:
        raise BadInput(
            f"{name}: not a photograph that can be read ({', '.join(_PHOTOGRAPH_FORMATS)})"
        ) from error
    except _CORRUPT_PHOTOGRAPH as error:
        raise BadInput(f"{name}: corrupt photograph: {first_line(error)}") from error
    return Photograph(printable(Path(path).name), image)


_CORRUPT_PHOTOGRAPH: Final = (
    OSError,  # most codecs
    SyntaxError,  # PNG chunks
    ValueError,
    struct.error,  # short TIFF and EXIF fields
    IndexError,
    KeyError,
    TypeError,
    EOFError,
    OverflowError,
    ZeroDivisionError,
    MemoryError,
)
"""What Pillow raises on damaged files."""


def load_sound(path: str) -> Sound:
    """Decode one sound, mix it down to mono and resample it to `SAMPLE_RATE`.

    Raises:
        BadInput: The file is missing, empty, corrupt, no sound, has no samples or one that
            is not finite, or lies outside the limits of this module.
    """
    name = printable(path)
    _check_regular_file(path, name)
    try:
        with _quiet_codecs(), soundfile.SoundFile(path) as file:
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


@contextmanager
def _quiet_codecs() -> Iterator[None]:
    """Silence libmpg123 and libtiff, which write to file descriptor 2 behind Python's back.

    Only for a process that decodes on one thread, as the processor process does.
    """
    kept = os.dup(2)
    silence = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(silence, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(silence)
        os.close(kept)


def _check_regular_file(path: str, name: str) -> None:
    if not path:
        raise BadInput("the name of a file is empty")
    try:
        found = Path(path).stat()
    except FileNotFoundError as error:
        raise BadInput(f"{name}: no such file") from error
    except (OSError, ValueError) as error:
        raise BadInput(f"{name}: cannot be opened: {first_line(error)}") from error
    if stat.S_ISDIR(found.st_mode):
        raise BadInput(f"{name}: a folder, expected a file")
    if not stat.S_ISREG(found.st_mode):
        raise BadInput(f"{name}: not a regular file")
    if found.st_size == 0:
        raise BadInput(f"{name}: the file is empty")


def _check_sides(size: tuple[int, int], name: str) -> None:
    shorter, longer = sorted(size)
    if shorter < 1:
        raise BadInput(f"{name}: the photograph has no pixels ({size[0]} x {size[1]})")
    if longer > MAX_ASPECT_RATIO * shorter:
        raise BadInput(
            f"{name}: the sides are {size[0]} x {size[1]} pixels, a ratio of "
            f"{longer / shorter:.0f}, the limit is {MAX_ASPECT_RATIO}"
        )
