"""Recording: every message of a channel as a file, so that a failure can be played back."""

import itertools
import os
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import attrs

from omniwire.contracts.checks import check_instance, check_int, raise_problems
from omniwire.contracts.errors import DecodeError, Problem
from omniwire.contracts.guard import guarded
from omniwire.serialization.files import load, write_frames
from omniwire.serialization.redaction import redacted

_SUFFIX: Final = ".omniwire"
_SENT: Final = "sent"
_RECEIVED: Final = "received"
_NUM_BETWEEN_SCANS: Final = 16


def _as_text(path: str | os.PathLike[str]) -> str:
    return os.fspath(path) if isinstance(path, os.PathLike) else path


@attrs.frozen
class Recording:
    """Where a channel records its messages, and how much of them.

    Attributes:
        directory: Made if it is missing. Several channels and processes may share it.
        max_bytes: Bound of the files in it: the oldest are removed as new ones come. A writer
            looks at every 16th message, so that much more may be there for a moment.
        redact: Whether bytes of tensors, arrays and `bytes` values are written as zeros. Data
            types, shapes, keys, texts, numbers and token ids stay.

    Raises:
        ContractError: A field is of the wrong type, or the bound is not positive.
    """

    directory: str = attrs.field(converter=_as_text)
    max_bytes: int = 2**30
    redact: bool = False

    def __attrs_post_init__(self) -> None:
        problems: list[Problem] = []
        check_instance(problems, ("directory",), self.directory, str, "the path of a directory")
        check_int(problems, ("max_bytes",), self.max_bytes, 1)
        check_instance(problems, ("redact",), self.redact, bool, "True or False")
        raise_problems("Recording", problems)


class RecordedMessage(NamedTuple):
    """A message of a recording.

    Attributes:
        path: Its file, in the format that `save` writes.
        is_sent: Whether the end that recorded it had sent it, or else received it.
    """

    path: Path
    is_sent: bool

    def load(self) -> Any:
        """The message, as `omniwire.load`."""
        return load(self.path)


@guarded
def recorded(directory: str | os.PathLike[str]) -> list[RecordedMessage]:
    """The messages that channels recorded in a directory, in the order in which they came.

    Raises:
        OSError: The directory cannot be read.
    """
    paths = sorted(path for path in Path(directory).iterdir() if path.suffix == _SUFFIX)
    return [RecordedMessage(path, path.stem.endswith(_SENT)) for path in paths]


class Recorder:
    """Writes what one end of a channel sends and receives.

    A disk that is full ends the recording, with a warning, and not the channel.

    Attributes:
        recording: Where and how.

    Raises:
        OSError: The directory cannot be made.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._folder = Path(recording.directory)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._is_on = True

    def sent(self, frames: Sequence[bytes | memoryview]) -> None:
        """Write a message that was sent."""
        self._write(frames, _SENT)

    def received(self, frames: Sequence[bytes | memoryview]) -> None:
        """Write a message that was received, before anything is made of it."""
        self._write(frames, _RECEIVED)

    def _write(self, frames: Sequence[bytes | memoryview], direction: str) -> None:
        if not self._is_on:
            return
        if self.recording.redact:
            try:
                frames = redacted(frames)
            except DecodeError:
                return  # what cannot be read cannot be redacted
        with self._lock:
            number = next(self._numbers)
            name = f"{time.time_ns():020}-{os.getpid()}-{number:08}-{direction}{_SUFFIX}"
            try:
                write_frames(frames, self._folder / name)
                if number % _NUM_BETWEEN_SCANS == 0:
                    self._remove_oldest()
            except OSError as error:
                self._is_on = False
                text = f"recording to {self._folder} has ended: {error.strerror}"
                warnings.warn(text, RuntimeWarning, stacklevel=4)

    def _remove_oldest(self) -> None:
        files = sorted(_sizes(self._folder))
        excess = sum(size for _, size in files) - self.recording.max_bytes
        for name, size in files:
            if excess <= 0:
                return
            (self._folder / name).unlink(missing_ok=True)
            excess -= size


def _sizes(folder: Path) -> Iterator[tuple[str, int]]:
    """The names and sizes of the messages in a folder, of those that others do not remove now."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(_SUFFIX):
                try:
                    yield entry.name, entry.stat().st_size
                except FileNotFoundError:
                    continue


def as_recorder(record: "str | os.PathLike[str] | Recording | None") -> Recorder | None:
    """What writes the messages of one end."""
    if record is None:
        return None
    return Recorder(record if isinstance(record, Recording) else Recording(record))
