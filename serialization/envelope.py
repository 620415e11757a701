"""The envelope of frame 0: magic, version and checksum, checked before the body is touched.

Frame 0 is one msgpack array of five elements. Writers use exactly one encoding for each, so
that the first 26 bytes have fixed places and the body is the rest:

    95                     array of 5
    a8 "omniwire"          str: the magic
    cd VVVV                uint 16: the version of the format that wrote it
    cd OOOO                uint 16: the oldest version of a reader that can read it
    ce CCCCCCCC            uint 32: CRC-32 (as in zlib) of the body
    c6 LLLLLLLL body       bin 32: the body, itself one msgpack value
"""

import struct
import zlib
from typing import Final

from omniwire.contracts.errors import DecodeError, UnsupportedVersionError

WIRE_VERSION: Final = 1
"""The version of the wire format that this package writes, and the newest that it reads."""

OLDEST_READER: Final = 1
"""The oldest version of a reader that can read what this package writes."""

_PREFIX: Final = struct.Struct(">10sBHBHBIBI")
_MAGIC: Final = b"\x95\xa8omniwire"
_UINT16: Final = 0xCD
_UINT32: Final = 0xCE
_BIN32: Final = 0xC6
MAX_BODY_BYTES: Final = 2**32 - 1


def seal(body: bytes) -> bytes:
    """Frame 0 for a body of at most `MAX_BODY_BYTES`."""
    return (
        _PREFIX.pack(
            _MAGIC,
            _UINT16,
            WIRE_VERSION,
            _UINT16,
            OLDEST_READER,
            _UINT32,
            zlib.crc32(body),
            _BIN32,
            len(body),
        )
        + body
    )


def unseal(header: memoryview) -> tuple[int, memoryview]:
    """Check the envelope of frame 0.

    Args:
        header: Frame 0, as bytes.

    Returns:
        The version that wrote the message, and its body, checksum verified.

    Raises:
        DecodeError: With code `magic`, `version`, `truncated`, `syntax` or `checksum`.
    """
    start = bytes(header[: len(_MAGIC)])
    if start != _MAGIC[: len(start)]:
        raise DecodeError("expected an omniwire message, got other bytes", "magic", 0)
    if len(header) < _PREFIX.size:
        expected = f"expected a header of at least {_PREFIX.size} bytes"
        raise DecodeError(f"{expected}, got {len(header)}", "truncated", len(header))
    _, mark1, version, mark2, oldest, mark3, checksum, mark4, size = _PREFIX.unpack_from(header)
    if (mark1, mark2, mark3, mark4) != (_UINT16, _UINT16, _UINT32, _BIN32):
        raise DecodeError("expected the fixed encoding of the envelope", "syntax", len(_MAGIC))
    if oldest > WIRE_VERSION:
        raise UnsupportedVersionError(oldest, WIRE_VERSION)
    if not 1 <= oldest <= version:
        got = f"version {version}, oldest reader {oldest}"
        raise DecodeError(f"expected 1 <= oldest reader <= version, got {got}", "range", 11)
    body = header[_PREFIX.size :]
    if len(body) != size:
        code = "truncated" if len(body) < size else "syntax"
        raise DecodeError(f"expected a body of {size} bytes, got {len(body)}", code, 22)
    if zlib.crc32(body) != checksum:
        raise DecodeError("expected a body that matches its checksum, got another", "checksum", 17)
    return version, body
