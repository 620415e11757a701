"""Where the parts of a saved message lie in its file, for tools that explain messages.

The header is read from the file and the frames are mapped but never touched, so that a file
that shrinks meanwhile is an error, where `load` would be ended by SIGBUS.
"""

import enum
import functools
import mmap
import os
from typing import Any, NamedTuple

import attrs
import numpy as np
import torch

from omniwire.contracts.errors import DecodeError
from omniwire.serialization.blob import Span, frame_spans
from omniwire.serialization.buffer_writer import MIN_OWN_FRAME_BYTES
from omniwire.serialization.codec import decode
from omniwire.serialization.envelope import unseal
from omniwire.serialization.limits import Limits


class Placement(enum.Enum):
    """In what a tensor's bytes travel."""

    INLINE = "inline"
    """The header."""
    SHARED = "shared"
    """A frame that small tensors share."""
    OWN = "own"
    """A frame of its own."""


class Place(NamedTuple):
    """Where a tensor's bytes are.

    Attributes:
        placement: In what they travel.
        offset: Of their first byte in the file; None for one inside the header.
    """

    placement: Placement
    offset: int | None


@attrs.frozen(eq=False)
class LocatedMessage:
    """A message that was read from a file, and where in the file its parts are.

    Attributes:
        obj: What the message holds. Its tensors alias a private mapping of the file; reading
            them ends the process if the file is shorter by then.
        num_file_bytes: Size of the file.
        frames: Every frame in the file, the header first.
        version: The version of the wire format that wrote it.
    """

    obj: Any
    num_file_bytes: int
    frames: tuple[Span, ...]
    version: int
    _address: int  # of the mapping
    _spans: frozenset[Span]  # the frames, to be found in constant time

    def place(self, value: torch.Tensor | np.ndarray) -> Place:
        """Where the bytes of a tensor or array of the message are."""
        address = value.data_ptr() if isinstance(value, torch.Tensor) else value.ctypes.data
        offset = address - self._address
        if not value.nbytes or not 0 <= offset < self.num_file_bytes:
            return Place(Placement.INLINE, None)
        alone = value.nbytes >= MIN_OWN_FRAME_BYTES and Span(offset, value.nbytes) in self._spans
        return Place(Placement.OWN if alone else Placement.SHARED, offset)


def locate(descriptor: int, limits: Limits = Limits()) -> LocatedMessage:  # noqa: B008  # immutable
    """Read a message that `save` wrote, without touching its tensors.

    Args:
        descriptor: An open regular file; it may be closed afterwards.
        limits: Bounds that the message is held to.

    Raises:
        DecodeError: As `load`, whatever the bytes of the file, also if it shrinks meanwhile.
        OSError: The file cannot be read or mapped.
    """
    size = os.fstat(descriptor).st_size
    if not size:
        raise DecodeError("expected a saved message, got an empty file", "truncated")
    frames = tuple(frame_spans(functools.partial(_read, descriptor), size, limits))
    if frames[0].size > limits.max_header_bytes:
        expected = f"expected a header of at most {limits.max_header_bytes} bytes"
        raise DecodeError(f"{expected}, got {frames[0].size}", "limit")
    header = _read(descriptor, *frames[0])
    mapping = memoryview(_map(descriptor, size))
    buffers = [mapping[frame.offset : frame.offset + frame.size] for frame in frames[1:]]
    obj = decode([header, *buffers], limits)
    version = unseal(memoryview(header))[0]
    address = np.frombuffer(mapping, np.uint8).ctypes.data
    return LocatedMessage(obj, size, frames, version, address, frozenset(frames))


def _read(descriptor: int, offset: int, size: int) -> bytes:
    """Bytes that the file had when it was opened."""
    parts: list[bytes] = []
    end = offset + size
    while offset < end:
        part = os.pread(descriptor, end - offset, offset)
        if not part:
            raise DecodeError(f"expected {end} bytes or more, got {offset}", "truncated")
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


def _map(descriptor: int, size: int) -> mmap.mmap:
    try:
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)
    except ValueError:  # the size of the file is no longer what it was
        raise DecodeError(f"expected {size} bytes or more, got fewer", "truncated") from None
