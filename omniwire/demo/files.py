"""What media files of every kind have in common: each is taken as untrusted.

What cannot be used is a `BadInput` whose text is one line that names the file, says what is
wrong and, for a limit, gives both numbers.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from omniwire.demo.problems import BadInput, first_line


@dataclass(frozen=True)
class MediaFiles:
    """Paths of photographs, sounds and videos."""

    images: tuple[str, ...] = ()
    audios: tuple[str, ...] = ()
    videos: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.images or self.audios or self.videos)


def check_regular_file(path: str, name: str) -> None:
    """Refuse what is no file with something in it.

    Args:
        path: The file.
        name: What to call it.

    Raises:
        BadInput: There is no such file, it is empty, or it is something else than a file.
    """
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


def check_sides(size: tuple[int, int], max_ratio: int, name: str) -> None:
    """Refuse pictures with no pixels, or much longer than wide.

    Args:
        size: Width and height in pixels.
        max_ratio: Longer side over shorter side.
        name: What to call the file.

    Raises:
        BadInput: They are.
    """
    shorter, longer = sorted(size)
    if shorter < 1:
        raise BadInput(f"{name}: the picture has no pixels ({size[0]} x {size[1]})")
    if longer > max_ratio * shorter:
        raise BadInput(
            f"{name}: the sides are {size[0]} x {size[1]} pixels, a ratio of "
            f"{longer / shorter:.0f}, the limit is {max_ratio}"
        )


@contextmanager
def quiet_codecs() -> Iterator[None]:
    """Silence codecs, which write to file descriptor 2 behind Python's back.

    Only for a process in which nothing else writes there meanwhile.
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
