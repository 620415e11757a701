"""Taking the content out of a message, and leaving its form."""

from collections.abc import Sequence
from typing import Any

import msgpack
from msgpack import ExtType

from omniwire.contracts.errors import DecodeError
from omniwire.serialization.buffer_writer import INLINE
from omniwire.serialization.envelope import seal, unseal
from omniwire.serialization.extensions import EXT_ARRAY, EXT_TENSOR
from omniwire.serialization.limits import Limits
from omniwire.serialization.scan import check_body


def redacted(frames: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """The frames of a message with zeros for the bytes of tensors, arrays and `bytes` values.

    Data types, shapes, keys, texts, numbers and token ids stay.

    Raises:
        DecodeError: The message cannot be read.
    """
    header, *buffers = frames
    _, body = unseal(memoryview(header))
    check_body(body, Limits().max_elements)
    try:
        blank = msgpack.packb(_blank(msgpack.unpackb(body, strict_map_key=False)))
    except (ValueError, TypeError, RecursionError) as error:
        raise DecodeError(f"expected plain msgpack ({type(error).__name__})", "syntax") from None
    return [seal(blank), *(bytes(len(buffer)) for buffer in buffers)]


def _blank(value: Any) -> Any:
    kind = type(value)
    if kind is list:
        return [_blank(item) for item in value]
    if kind is dict:
        return {key: _blank(item) for key, item in value.items()}
    if kind is bytes:
        return bytes(len(value))
    if kind is ExtType and value.code in (EXT_TENSOR, EXT_ARRAY):
        return ExtType(value.code, _blank_tensor(value.data))
    return value


def _blank_tensor(data: bytes) -> bytes:
    """The payload of a tensor's extension without its bytes, if it is inline."""
    end = 3 + 8 * data[2] if len(data) > 2 else len(data)
    is_inline = len(data) > 2 and data[1] == INLINE
    return data[:end] + bytes(len(data) - end) if is_inline else data
