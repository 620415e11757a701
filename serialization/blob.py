"""`dumps` and `loads`: a message as one buffer.

    0              magic: 8 bytes, "omniblob"
    8              number of frames: uint64, little-endian
    16             size of each frame in bytes: uint64, little-endian
    next multiple of 64: frame 0, the header; then each further frame at the next multiple of 64

Bytes between frames are zero, and the buffer ends with its last frame.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from omniwire.contracts.errors import DecodeError
from omniwire.contracts.guard import guarded
from omniwire.serialization.buffer_writer import ALIGNMENT, align
from omniwire.serialization.codec import as_bytes, decode, encode
from omniwire.serialization.limits import Limits

_MAGIC: Final = b"omniblob"
_COUNT: Final = struct.Struct("<8sQ")


def dumps(obj: object) -> bytes:
    """Encode a contract object as one buffer, in which every tensor is 64-byte aligned.

    Args:
        obj: Any contract object. Not changed.

    Returns:
        The buffer; it shares no memory with `obj`.

    Raises:
        EncodeError: As `encode`.

    >>> import omniwire as ow
    >>> ow.loads(ow.dumps(ow.ItemRef("image", 0)))
    ItemRef(modality='image', index=0)
    """
    return b"".join(blob_parts(encode(obj)))


@guarded
def loads(blob: Any, limits: Limits = Limits(), copy: bool = False) -> Any:  # noqa: B008  # immutable
    """Decode a buffer that `dumps` made.

    Args:
        blob: Any contiguous buffer.
        limits: Bounds that the message is held to.
        copy: Whether the tensors own their memory; by default they alias `blob` and keep it
            alive, as for `decode`.

    Returns:
        An object equal to the one that was encoded.

    Raises:
        DecodeError: As `decode`; nothing else is raised, whatever the bytes.
    """
    return decode(_split(as_bytes(blob), limits), limits, copy)


def blob_parts(frames: Sequence[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """The pieces of one buffer, in order: table, frames and the padding between them."""
    sizes = [memoryview(frame).nbytes for frame in frames]
    table = struct.pack(f"<8sQ{len(sizes)}Q", _MAGIC, len(sizes), *sizes)
    yield table
    position = len(table)
    for frame, size in zip(frames, sizes, strict=True):
        start = align(position)
        yield bytes(start - position)
        yield frame
        position = start + size


class Span(NamedTuple):
    """A frame in one buffer: the offset of its first byte, and its size in bytes."""

    offset: int
    size: int


def frame_spans(
    read: Callable[[int, int], bytes | memoryview], num_bytes: int, limits: Limits
) -> Iterator[Span]:
    """The frames of one buffer in order, after checking its table and the padding.

    Args:
        read: Gives the bytes at an offset, of a size; both are within the buffer.
        num_bytes: Size of the buffer.
        limits: Bounds that the message is held to.

    Raises:
        DecodeError: As `loads`.
    """
    start = read(0, min(num_bytes, _COUNT.size))
    if start[: len(_MAGIC)] != _MAGIC[: len(start)]:
        raise DecodeError("expected a buffer made by dumps, got other bytes", "magic")
    if num_bytes < _COUNT.size:
        raise DecodeError(f"expected a frame table, got {num_bytes} bytes", "truncated")
    count = _COUNT.unpack(start)[1]
    if count > limits.max_tensors + 1:
        expected = f"expected at most {limits.max_tensors + 1} frames"
        raise DecodeError(f"{expected}, got {count}", "limit")
    past = _COUNT.size + 8 * count
    if not count or past > num_bytes:
        code = "truncated" if count else "frames"
        raise DecodeError(f"expected a table of {count} frames, at least one", code)
    for size in struct.unpack(f"<{count}Q", read(_COUNT.size, 8 * count)):
        offset = align(past)
        if offset + size > num_bytes:
            expected = f"expected {offset + size} bytes or more"
            raise DecodeError(f"{expected}, got {num_bytes}", "truncated")
        if any(read(past, offset - past)):
            raise DecodeError(f"expected zeros up to a multiple of {ALIGNMENT}", "syntax")
        yield Span(offset, size)
        past = offset + size
    if past != num_bytes:
        raise DecodeError(f"expected {past} bytes, got {num_bytes}", "frames")


def _split(blob: memoryview, limits: Limits) -> list[memoryview]:
    """The frames of one buffer."""

    def read(offset: int, size: int) -> memoryview:
        return blob[offset : offset + size]

    return [read(*span) for span in frame_spans(read, len(blob), limits)]
