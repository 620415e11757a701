"""`encode` and `decode`: a contract object as frames, and back."""

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import attrs
import msgpack
import numpy as np
import torch
from msgpack import ExtType

from omniwire.contracts.base import Contract
from omniwire.contracts.checks import is_encodable
from omniwire.contracts.describe import describe
from omniwire.contracts.errors import (
    ContractError,
    DecodeError,
    EncodeError,
    Path,
    Problem,
)
from omniwire.contracts.frozen import FrozenMapping
from omniwire.contracts.guard import guarded
from omniwire.contracts.tokens import TokenIds
from omniwire.serialization.buffer_writer import BufferWriter
from omniwire.serialization.converter import codecs
from omniwire.serialization.envelope import MAX_BODY_BYTES, WIRE_VERSION, seal, unseal
from omniwire.serialization.extensions import EXT_INT32S, EXT_INT64S, EXT_RECORD, EXT_TOKEN_IDS
from omniwire.serialization.limits import Limits
from omniwire.serialization.reading import READING, Attach, Reading
from omniwire.serialization.refusal import Refused
from omniwire.serialization.scan import check_body

MIN_PACKED_INTS: Final = 64
"""From this length on a sequence of integers travels packed; below, plain msgpack is as fast."""

_BODY_PARTS: Final = 3
_PACKED_INTS: Final = ((EXT_INT32S, "i"), (EXT_INT64S, "q"))


def encode(obj: object) -> list[bytes | memoryview]:
    """Encode a contract object as frames, without copying large tensors.

    Args:
        obj: Any contract object. Not changed.

    Returns:
        Frame 0, the header, as bytes; after it 1-D read-only uint8 memoryviews with the bytes
        of tensors. They alias the tensors' memory, which must not change before they are sent,
        except for one frame that small tensors are copied into.

    Raises:
        EncodeError: `obj` is no contract, or holds what cannot travel exactly as it is: live
            executor state, a tensor that is not on the CPU, a handle of this process.

    >>> import omniwire as ow
    >>> frames = ow.encode(ow.ProcessedRequest("r1", [1, 5, 2]))
    >>> len(frames), ow.decode(frames).prompt_token_ids == (1, 5, 2)
    (1, True)
    """
    buffers = BufferWriter()
    header = encode_header(obj, buffers)
    return [header, *buffers.finish()]


def encode_header(obj: object, buffers: BufferWriter) -> bytes:
    """Frame 0 of a contract object; `buffers` collects the frames after it.

    Raises:
        EncodeError: As `encode`.
    """
    kind = type(obj)
    to_wire = codecs().to_wire.get(kind)
    if to_wire is None:
        raise EncodeError("encode", Problem((), "type", "a contract object", describe(obj)))
    packer = msgpack.Packer(default=_Hook(buffers), strict_types=True)
    try:
        name, value = packer.pack(kind.__name__), packer.pack(to_wire(obj))
    except Refused as refused:
        problem = _locate(obj, refused)
    except UnicodeEncodeError:
        problem = _locate_text(obj)
    else:
        sizes = packer.pack([plan.nbytes for plan in buffers.plans])
        body = b"".join((b"\x93", name, value, sizes))
        if len(body) <= MAX_BODY_BYTES:
            return seal(body)
        expected = f"a header of at most {MAX_BODY_BYTES} bytes"
        problem = Problem((), "range", expected, f"{len(body)} bytes")
    raise EncodeError(kind.__name__, problem)


@guarded
def decode(frames: Sequence[Any], limits: Limits = Limits(), copy: bool = False) -> Any:  # noqa: B008  # immutable
    """Decode the frames of one message.

    Args:
        frames: The header and the frames after it, as `encode` returned them: bytes,
            bytearrays, memoryviews or other contiguous buffers.
        limits: Bounds that the message is held to.
        copy: Whether the tensors own their memory. By default they alias the frames, keep
            them alive and are read-only by contract, whether or not the memory is; numpy
            arrays are marked read-only. A frame is copied if its address does not suit its
            tensors, or if it lies in memory that is mapped for reading only.

    Returns:
        An object equal to the one that was encoded.

    Raises:
        DecodeError: The message is malformed, exceeds `limits` or breaks a contract; nothing
            else is raised, whatever the bytes.
        UnsupportedVersionError: It needs a newer reader.
    """
    return decode_frames(frames, limits, copy=copy)


def decode_frames(
    frames: Sequence[Any],
    limits: Limits,
    *,
    copy: bool = False,
    attach: Attach | None = None,
) -> Any:
    """As `decode`; `attach` is called with each handle in the message, for what to put there."""
    header, *buffers = [as_bytes(frame) for frame in frames] or [memoryview(b"")]
    if len(header) > limits.max_header_bytes:
        expected = f"expected a header of at most {limits.max_header_bytes} bytes"
        raise DecodeError(f"{expected}, got {len(header)}", "limit")
    version, body = unseal(header)
    check_body(body, limits.max_elements)
    tolerant = version > WIRE_VERSION
    reading = Reading(buffers, limits, codecs().from_wire, copy=copy, tolerant=tolerant)
    reading.attach = attach
    token = READING.set(reading)
    try:
        return _read(body, buffers, reading)
    except ContractError as error:
        raise DecodeError(f"expected a valid {error.subject}: {error}", "contract") from error
    finally:
        READING.reset(token)


def _read(body: memoryview, buffers: list[memoryview], reading: Reading) -> Any:
    try:
        parts = msgpack.unpackb(
            body,
            use_list=False,
            object_pairs_hook=list,
            strict_map_key=False,  # the keys of what is not ignored are checked with the rest
            ext_hook=reading.extension,
        )
    except DecodeError:
        raise
    except ValueError as error:
        raise DecodeError(f"expected plain msgpack ({type(error).__name__})", "syntax") from None
    if type(parts) is not tuple or len(parts) < _BODY_PARTS:
        raise DecodeError("expected a body of a type, a value and buffer sizes", "syntax")
    if len(parts) > _BODY_PARTS and not reading.tolerant:
        raise DecodeError(f"expected a body of 3 parts, got {len(parts)}", "unknown")
    name, value, sizes = parts[:_BODY_PARTS]
    _check_sizes(sizes, buffers)
    build = codecs().from_wire.get(name) if type(name) is str else None
    if build is None:
        raise DecodeError("expected the name of a known type", "unknown")
    obj = build(value)
    reading.buffers.finish()
    return obj


def _check_sizes(sizes: object, buffers: list[memoryview]) -> None:
    if type(sizes) is not tuple or (sizes and set(map(type, sizes)) != {int}):
        raise DecodeError("expected the sizes of the buffers as ints", "type")
    found = tuple([buffer.nbytes for buffer in buffers])
    if sizes != found:
        expected = f"expected {len(sizes)} buffers of the declared sizes"
        raise DecodeError(f"{expected}, got {len(found)} of {sum(found)} bytes", "frames")


def as_bytes(frame: object) -> memoryview:
    """A frame as a 1-D view of bytes."""
    try:
        view = memoryview(frame)  # type: ignore[arg-type]  # a TypeError says that it is none
        if not view.nbytes:
            return memoryview(b"")
        return view if view.format == "B" and view.ndim == 1 and view.contiguous else view.cast("B")
    except (TypeError, ValueError, BufferError):
        got = describe(frame)
    raise DecodeError(f"expected contiguous buffers as frames, got {got}", "frames")


class _Hook:
    """What msgpack calls for every value that it cannot pack itself."""

    __slots__ = ("_buffers",)

    def __init__(self, buffers: BufferWriter) -> None:
        self._buffers = buffers

    def __call__(self, value: Any) -> Any:
        kind = type(value)
        if kind is torch.Tensor:
            return self._buffers.tensor(value)
        if kind is tuple:
            return _sequence(value)
        if kind is FrozenMapping:
            return value._values
        if isinstance(value, torch.Tensor):
            return self._buffers.tensor(value)
        if isinstance(value, np.ndarray):
            return self._buffers.array(value)
        if kind is TokenIds:
            return ExtType(EXT_TOKEN_IDS, value.tobytes())
        to_wire = codecs().to_wire.get(kind)
        if kind is int:
            raise Refused(value, "range", "an int of at most 64 bits", describe(value))
        if to_wire is None:
            raise Refused(value, "type", "a value that a payload can hold", describe(value))
        return [ExtType(EXT_RECORD, kind.__name__.encode()), to_wire(value)]


def _sequence(values: tuple[Any, ...]) -> Any:
    """A tuple as msgpack packs it, or packed integers if it is a long tuple of those."""
    if len(values) < MIN_PACKED_INTS or set(map(type, values)) != {int}:
        return list(values)
    for code, letter in _PACKED_INTS:
        try:
            return ExtType(code, struct.pack(f"<{len(values)}{letter}", *values))
        except struct.error:
            continue
    return list(values)


def _locate(obj: object, refused: Refused) -> Problem:
    paths = (path for path, value in _walk(obj, ()) if value is refused.value)
    path = next(paths, ())
    return Problem((*path, *refused.within), refused.code, refused.expected, refused.got)


def _locate_text(obj: object) -> Problem:
    for path, value in _walk(obj, ()):
        if type(value) is str and not is_encodable(value):
            return Problem(path, "format", "a str without lone surrogates", describe(value))
    return Problem((), "format", "strings without lone surrogates", "a key with one")


def _walk(value: object, path: Path) -> Iterator[tuple[Path, object]]:
    """Every part of a contract object with its path, the object itself first."""
    yield path, value
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _walk(item, (*path, key))
    elif type(value) is tuple:
        for index, item in enumerate(value):
            yield from _walk(item, (*path, index))
    elif isinstance(value, Contract) and attrs.has(type(value)):
        for field in attrs.fields(cast(Any, type(value))):
            yield from _walk(getattr(value, field.name), (*path, field.name))
