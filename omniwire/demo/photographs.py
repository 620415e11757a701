"""Photographs: checking and decoding them."""

import re
import struct
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from PIL import Image, ImageOps, UnidentifiedImageError

from omniwire.demo.files import check_regular_file, check_sides, quiet_codecs
from omniwire.demo.problems import BadInput, first_line, printable

MAX_ASPECT_RATIO: Final = 200
"""Longer side over shorter side of a photograph; Qwen2-VL's processor takes no more."""

_FORMATS: Final = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""Formats that Pillow decodes itself; EPS, for one, would start another program."""

_CORRUPT: Final = (
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


@dataclass(frozen=True)
class Photograph:
    """One decoded photograph.

    Attributes:
        name: File name without its folder, safe to print.
        image: The pixels, mode RGB, upright.
    """

    name: str
    image: Image.Image

    @property
    def decoded(self) -> str:
        """What it is, in words."""
        return f"{self.image.width} x {self.image.height} pixels"


def load_photograph(path: str) -> Photograph:
    """Decode one photograph.

    Raises:
        BadInput: The file is missing, empty, corrupt, no photograph, has more pixels than
            Pillow's own limit or a side ratio above `MAX_ASPECT_RATIO`.
    """
    name = printable(path)
    check_regular_file(path, name)
    try:
        with quiet_codecs(), warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            warnings.simplefilter("ignore", UserWarning)  # odd metadata is no reason to refuse
            with Image.open(path, formats=_FORMATS) as opened:
                check_sides(opened.size, MAX_ASPECT_RATIO, name)
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
            f"{name}: not a photograph that can be read ({', '.join(_FORMATS)})"
        ) from error
    except _CORRUPT as error:
        raise BadInput(f"{name}: corrupt photograph: {first_line(error)}") from error
    return Photograph(printable(Path(path).name), image)
