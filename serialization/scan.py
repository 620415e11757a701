"""Checks of a body before it is unpacked, so that unpacking it needs bounded memory.

A naive unpack of arrays that declare 65,535 elements each, nested, allocates them all before
it notices that none arrived. Skipping over the value first, which allocates nothing, proves
that every declared element is there: from then on memory is linear in the body.
"""

import struct
from typing import Final

import msgpack

from omniwire.contracts.errors import DecodeError
from omniwire.serialization.extensions import EXT_DIGESTS, EXT_INT32S, EXT_INT64S, EXT_TOKEN_IDS

_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")

_SCALAR_SIZES: Final = {
    0xCA: 5, 0xCB: 9, 0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9,
}  # fmt: skip
_INTEGER_BYTES: Final = {
    EXT_INT32S: 4,
    EXT_INT64S: 8,
    EXT_TOKEN_IDS: 4,
    EXT_DIGESTS: 4,
}


def check_body(body: memoryview, max_elements: int) -> None:
    """Check that a body is one well-formed msgpack value of at most `max_elements`.

    Raises:
        DecodeError: With code `truncated`, `syntax` or `limit`.
    """
    unpacker = msgpack.Unpacker(max_buffer_size=max(len(body), 1))
    unpacker.feed(body)
    try:
        unpacker.skip()
    except msgpack.OutOfData:
        expected = "expected the whole of the body, got a part"
        raise DecodeError(expected, "truncated", len(body)) from None
    except msgpack.StackError:
        raise DecodeError("expected a body nested less deeply", "limit") from None
    except ValueError:
        raise DecodeError("expected msgpack, got an invalid byte", "syntax") from None
    if unpacker.tell() != len(body):
        surplus = f"got {len(body) - unpacker.tell()} more bytes"
        raise DecodeError(f"expected one value, {surplus}", "syntax", unpacker.tell())
    # Every element takes at least a byte, so only a larger body can have too many.
    if len(body) > max_elements:
        _check_elements(body, max_elements)


def _check_elements(body: memoryview, max_elements: int) -> None:
    """Count the elements of a body that is known to be well formed."""
    position = 0
    elements = 0
    pending = 1
    while pending:
        pending -= 1
        elements += 1
        byte = body[position]
        if byte <= 0x7F or byte >= 0xE0 or 0xC0 <= byte <= 0xC3:
            position += 1
        elif byte in _SCALAR_SIZES:
            position += _SCALAR_SIZES[byte]
        elif 0xA0 <= byte <= 0xBF:
            position += 1 + (byte & 0x1F)
        else:
            position, children, integers = _step(body, position, byte)
            pending += children
            elements += integers
        if elements + pending > max_elements:
            expected = f"expected at most {max_elements} elements"
            raise DecodeError(f"{expected}, got {elements + pending} or more", "limit", position)


def _step(body: memoryview, position: int, byte: int) -> tuple[int, int, int]:
    """Step into a container or over bytes: the next position, children, packed integers."""
    if byte <= 0x8F:
        return position + 1, 2 * (byte & 0x0F), 0
    if byte <= 0x9F:
        return position + 1, byte & 0x0F, 0
    if byte >= 0xDC:
        size, position = _size(body, position + 1, 2 if byte in (0xDC, 0xDE) else 4)
        return position, size if byte <= 0xDD else 2 * size, 0
    if byte >= 0xD9:
        size, position = _size(body, position + 1, 1 << (byte - 0xD9))
        return position + size, 0, 0
    if byte <= 0xC6:
        size, position = _size(body, position + 1, 1 << (byte - 0xC4))
        return position + size, 0, 0
    if byte >= 0xD4:
        size, position = 1 << (byte - 0xD4), position + 1
    else:
        size, position = _size(body, position + 1, 1 << (byte - 0xC7))
    integers = size // _INTEGER_BYTES.get(body[position], size + 1)
    return position + 1 + size, 0, integers


def _size(body: memoryview, position: int, width: int) -> tuple[int, int]:
    """A length field of 1, 2 or 4 bytes, and the position after it."""
    if width == 1:
        return body[position], position + 1
    size = (_U16 if width == 2 else _U32).unpack_from(body, position)[0]
    return size, position + width
