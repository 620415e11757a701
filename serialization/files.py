"""`save` and `load`: a message in a file, written atomically and mapped when read."""

import contextlib
import mmap
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omniwire.contracts.errors import DecodeError
from omniwire.contracts.guard import guarded
from omniwire.serialization.blob import blob_parts, loads
from omniwire.serialization.codec import encode
from omniwire.serialization.limits import Limits


@guarded
def save(obj: object, path: str | os.PathLike[str]) -> None:
    """Write a contract object to a file, in the form of `dumps`.

    The file appears whole or not at all: it is written beside `path`, flushed to the disk and
    renamed. When anything fails, what was at `path` is still there and nothing else is left.

    Args:
        obj: Any contract object. Not changed.
        path: Where to; an existing file is replaced.

    Raises:
        EncodeError: As `encode`; nothing is written.
        OSError: The file cannot be written.
    """
    write_frames(encode(obj), Path(path))
    _sync_folder(Path(path).parent)


def write_frames(frames: Sequence[bytes | memoryview], target: Path) -> None:
    """Write a message to a file, which appears whole or not at all.

    Raises:
        OSError: It cannot be written. Nothing is left behind.
    """
    partial = target.parent / f".{secrets.token_hex(16)}.partial"
    try:
        with partial.open("xb") as file:
            for part in blob_parts(frames):
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


@guarded
def load(
    path: str | os.PathLike[str],
    limits: Limits = Limits(),  # noqa: B008  # immutable
    copy: bool = False,
) -> Any:
    """Read a file that `save` wrote.

    Args:
        path: The file.
        limits: Bounds that the message is held to.
        copy: Whether the tensors own their memory. By default they alias a private,
            copy-on-write mapping of the file, which lives as long as they do: pages are read
            when first touched, and a write stays in this process. The file must not be
            shortened meanwhile; replacing it, as `save` does, is safe.

    Returns:
        An object equal to the one that was saved.

    Raises:
        DecodeError: As `decode`, whatever the bytes of the file.
        OSError: The file cannot be read.
    """
    with Path(path).open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise DecodeError("expected a saved message, got an empty file", "truncated")
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    return loads(mapping, limits, copy)


def _sync_folder(folder: Path) -> None:
    """Make a rename in a folder survive a crash of the machine."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
