"""The state of one decode: extension values, payload trees and the records inside them."""

import struct
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Final

import numpy as np
import torch

from omniwire.contracts.errors import ContractError, DecodeError
from omniwire.contracts.frozen import MAX_PAYLOAD_DEPTH, FrozenMapping, depth_of
from omniwire.contracts.handles import TensorHandle
from omniwire.contracts.tokens import TokenIds
from omniwire.serialization.buffer_reader import BufferReader
from omniwire.serialization.extensions import (
    EXT_ARRAY,
    EXT_DIGESTS,
    EXT_INT32S,
    EXT_INT64S,
    EXT_RECORD,
    EXT_TENSOR,
    EXT_TOKEN_IDS,
)
from omniwire.serialization.limits import Limits

FromWire = Callable[[Any], Any]
"""Builds a contract from its unpacked value."""

Attach = Callable[[TensorHandle], TensorHandle | torch.Tensor]
"""Makes of a handle in a message one that can be resolved here, or the tensor it stands for."""

_LEAVES: Final = frozenset(
    (str, int, float, bool, type(None), bytes, torch.Tensor, np.ndarray, TokenIds)
)
_UNNAMED: Final = frozenset(("FrozenMapping", "TokenIds"))
"""The types that a payload holds as they are, without their name."""

_DIGEST: Final = struct.Struct("<8i")


class RecordName:
    """The unpacked type name of a record inside a payload."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class UnknownExtension:
    """An extension value of a code that this reader does not know."""

    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        self.code = code


class Reading:
    """What one `decode` call knows while it reads.

    Unpacking turns arrays into tuples and maps into lists of pairs, so that duplicate keys are
    still there to be refused and nothing unpacked passes for a mapping.

    Attributes:
        attach: What is done with each handle, if anything.

    Args:
        frames: The frames after the header.
        limits: The reader's bounds.
        records: How to build each type of record, by its name.
        copy: Whether tensors own their memory.
        tolerant: Whether the writer is newer and says that this reader may ignore what it
            does not know.
    """

    __slots__ = ("_records", "_room", "attach", "buffers", "tolerant")

    def __init__(
        self,
        frames: Sequence[memoryview],
        limits: Limits,
        records: dict[str, FromWire],
        *,
        copy: bool,
        tolerant: bool,
    ) -> None:
        self.buffers = BufferReader(frames, limits, copy=copy)
        self.tolerant = tolerant
        self.attach: Attach | None = None
        self._records = records
        self._room = min(limits.max_depth, MAX_PAYLOAD_DEPTH)

    def extension(self, code: int, data: bytes) -> object:
        """The value of a msgpack extension type."""
        read = _EXTENSIONS.get(code)
        if read is not None:
            return read(self.buffers, data)
        if self.tolerant:  # it may stand in a field that is ignored
            return UnknownExtension(code)
        raise DecodeError(f"expected a known extension type, got {code}", "unknown")

    def payload(self, raw: object) -> FrozenMapping[Any]:
        """A payload tree: a mapping, frozen all the way down."""
        if type(raw) is not list:
            raise DecodeError("expected a map for a payload", "type")
        return self._mapping(raw, self._room)[0]

    def leaf(self, raw: object) -> object:
        """One payload value, which may be a record."""
        return raw if type(raw) in _LEAVES else self._nested(raw, self._room)[0]

    def _mapping(
        self, pairs: list[tuple[str, object]], room: int
    ) -> tuple[FrozenMapping[Any], int]:
        self._check_room(room)
        values = unique(pairs)
        depth = 0
        for key, value in pairs:
            if type(value) not in _LEAVES:
                values[key], inner = self._nested(value, room - 1)
                depth = max(depth, inner)
        return FrozenMapping._wrap(values, depth + 1), depth + 1

    def _nested(self, value: object, room: int) -> tuple[object, int]:
        """A value that is no plain leaf, and the levels that it spans."""
        if type(value) is list:
            return self._mapping(value, room)
        if type(value) is not tuple:
            code = getattr(value, "code", None)
            got = "a misplaced record name" if code is None else f"extension type {code}"
            raise DecodeError(f"expected a payload value, got {got}", "unknown")
        if value and type(value[0]) is RecordName:
            return self._record(value, room)
        self._check_room(room)
        if _LEAVES.issuperset(map(type, value)):
            return value, 1
        depth = 0
        items = []
        for item in value:
            if type(item) in _LEAVES:
                items.append(item)
            else:
                frozen, inner = self._nested(item, room - 1)
                items.append(frozen)
                depth = max(depth, inner)
        return tuple(items), depth + 1

    def _record(self, pair: tuple[Any, ...], room: int) -> tuple[object, int]:
        self._check_room(room)
        if len(pair) != 2:
            raise DecodeError("expected a record's name and value", "syntax")
        name = pair[0].name
        build = None if name in _UNNAMED else self._records.get(name)
        if build is None:
            raise DecodeError(f"expected a known record, got {ascii(name)[:80]}", "unknown")
        outer, self._room = self._room, room - 1
        try:
            record = build(pair[1])
        finally:
            self._room = outer
        depth = depth_of(record)
        if depth > room:
            self._check_room(0)
        return record, depth

    def _check_room(self, room: int) -> None:
        if room <= 0:
            raise DecodeError("expected a payload nested less deeply", "limit")


READING: ContextVar[Reading] = ContextVar("READING")
"""The decode in progress: cattrs hands its hooks a value and a type, and nothing else."""


def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The pairs of a map as a dict: its keys are strings, none of them twice."""
    for key, _ in pairs:  # before they are hashed: hashes of strings cannot be made to collide
        if type(key) is not str:
            raise DecodeError("expected string keys", "type")
    values = dict(pairs)
    if len(values) != len(pairs):
        raise DecodeError("expected each key of a map once", "duplicate")
    return values


def _record_name(_: BufferReader, data: bytes) -> RecordName:
    return RecordName(data.decode())


def _token_ids(_: BufferReader, data: bytes) -> TokenIds:
    _check_multiple(data, 4)
    try:
        return TokenIds._from_packed(data)
    except ContractError as error:
        raise DecodeError("expected valid token ids", "contract") from error


def _int32s(_: BufferReader, data: bytes) -> tuple[int, ...]:
    _check_multiple(data, 4)
    return struct.unpack(f"<{len(data) // 4}i", data)


def _int64s(_: BufferReader, data: bytes) -> tuple[int, ...]:
    _check_multiple(data, 8)
    return struct.unpack(f"<{len(data) // 8}q", data)


def _digests(_: BufferReader, data: bytes) -> tuple[tuple[int, ...], ...]:
    _check_multiple(data, _DIGEST.size)
    return tuple(_DIGEST.iter_unpack(data))


def _check_multiple(data: bytes, size: int) -> None:
    if len(data) % size:
        raise DecodeError(f"expected a multiple of {size} bytes, got {len(data)}", "syntax")


_EXTENSIONS: Final[dict[int, Callable[[BufferReader, bytes], object]]] = {
    EXT_RECORD: _record_name,
    EXT_TENSOR: BufferReader.tensor,
    EXT_ARRAY: BufferReader.array,
    EXT_TOKEN_IDS: _token_ids,
    EXT_INT32S: _int32s,
    EXT_INT64S: _int64s,
    EXT_DIGESTS: _digests,
}
