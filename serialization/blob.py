"""`dumps` and `loads`: a message as one buffer.

    0              magic: 8 bytes, "omniblob"
    8              number of frames: uint64, little-endian
    16             size of each frame in bytes: uint64, little-endian
    next multiple of 64: frame 0, the header; then each further frame at the next multiple of 64

Bytes between frames are zero, and the buffer ends with its last frame.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final

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
    return decode(list(_split(as_bytes(blob), limits)), limits, copy)


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


def _split(blob: memoryview, limits: Limits) -> Iterator[memoryview]:
    """The frames of one buffer, after checking its table."""
    if blob[: len(_MAGIC)] != _MAGIC[: len(blob)]:
        raise DecodeError("expected a buffer made by dumps, got other bytes", "magic")
    if len(blob) < _COUNT.size:
        raise DecodeError(f"expected a frame table, got {len(blob)} bytes", "truncated")
    count = _COUNT.unpack_from(blob)[1]
    if count > limits.max_tensors + 1:
        expected = f"expected at most {limits.max_tensors + 1} frames"
        raise DecodeError(f"{expected}, got {count}", "limit")
    position = _COUNT.size + 8 * count
    if not count or position > len(blob):
        code = "truncated" if count else "frames"
        raise DecodeError(f"expected a table of {count} frames, at least one", code)
    for size in struct.unpack_from(f"<{count}Q", blob, _COUNT.size):
        start = align(position)
        if start + size > len(blob):
            expected = f"expected {start + size} bytes or more"
            raise DecodeError(f"{expected}, got {len(blob)}", "truncated")
        if any(blob[position:start]):
            raise DecodeError(f"expected zeros up to a multiple of {ALIGNMENT}", "syntax")
        yield blob[start : start + size]
        position = start + size
    if position != len(blob):
        raise DecodeError(f"expected {position} bytes, got {len(blob)}", "frames")
