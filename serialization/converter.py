"""Contracts to plain values and back: structure by cattrs, every hook strict.

A record becomes a map of field name to value. Reading one, no value is coerced: a hook passes
a value of the one right form on to the contract's own constructor, which checks it as always,
or raises.
"""

import functools
import struct
from collections.abc import Callable
from contextvars import ContextVar
from itertools import chain
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, Union, cast, get_args, get_origin

import attrs
import torch
from cattrs import Converter
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override
from msgpack import ExtType

from omniwire.contracts.base import Contract
from omniwire.contracts.budget import EncoderBudget, EncoderCapability
from omniwire.contracts.describe import describe
from omniwire.contracts.errors import DecodeError, OmniwireError
from omniwire.contracts.frozen import FrozenMapping, depth_of
from omniwire.contracts.handles import TensorHandle
from omniwire.contracts.inputs import MultimodalInput
from omniwire.contracts.items import ItemRef, MultimodalItemMetadata, MultimodalItemPartition
from omniwire.contracts.outputs import (
    Append,
    ChunkKind,
    Concat,
    OmniOutput,
    OutputChunk,
    OutputSpec,
    Replace,
    RequestOutput,
    Stack,
)
from omniwire.contracts.params import MultimodalParams
from omniwire.contracts.requests import DisaggregatedParams, ProcessedRequest
from omniwire.contracts.runtime_data import MultimodalRuntimeData
from omniwire.contracts.tokens import TokenIds
from omniwire.serialization.dtypes import TORCH_CODES, TORCH_DTYPES
from omniwire.serialization.extensions import EXT_DIGESTS
from omniwire.serialization.reading import READING, FromWire, unique
from omniwire.serialization.refusal import Refused
from omniwire.serialization.wire_errors import error_from_wire, error_to_wire

FieldHook = Callable[[Any, Any], Any]
"""Builds a field from its unpacked value; cattrs also passes the field's type."""

ToWire = Callable[[Any], Any]
"""Turns a contract into values that msgpack, with our own hook, packs."""

DETACH: ContextVar[Callable[[TensorHandle], TensorHandle] | None] = ContextVar(
    "DETACH", default=None
)
"""Makes of a handle one that the peer of the encode in progress can attach, if anything does."""

_RECORDS: Final[tuple[type[Contract], ...]] = (
    MultimodalItemPartition,
    MultimodalItemMetadata,
    MultimodalInput,
    MultimodalRuntimeData,
    MultimodalParams,
    TensorHandle,
    ProcessedRequest,
    DisaggregatedParams,
    OmniOutput,
    OutputChunk,
    Concat,
    Stack,
    Replace,
    Append,
    OutputSpec,
    RequestOutput,
    EncoderCapability,
    EncoderBudget,
)
"""The attrs classes that travel, in an order in which each comes after those it holds."""

_SCALARS: Final = frozenset((str, int, bool, float, bytes))
_SEQUENCES: Final = frozenset((tuple[int, ...], tuple[str | None, ...]))
_DIGESTS: Final = tuple[tuple[int, ...], ...]
_DIGEST: Final = struct.Struct("<8i")
_new_ref: Final = functools.partial(tuple.__new__, ItemRef)
_KINDS: Final = {kind.value: kind for kind in ChunkKind}


class Codecs(NamedTuple):
    """How every contract is written and read, and the converter that holds the fields' hooks."""

    to_wire: dict[type, ToWire]
    from_wire: dict[str, FromWire]
    converter: Converter


@functools.cache
def codecs() -> Codecs:
    """The conversions of all contract types, built when first needed."""
    converter = Converter(detailed_validation=False)
    to_wire: dict[type, ToWire] = {
        FrozenMapping: lambda mapping: mapping,
        TokenIds: lambda ids: ids,
        ItemRef: list,
    }
    from_wire: dict[str, FromWire] = {
        "FrozenMapping": lambda raw: READING.get().payload(raw),
        "TokenIds": lambda raw: _token_ids(raw, TokenIds),
        "ItemRef": _item_ref,
    }
    _register_fields(converter)
    for record in _RECORDS:
        to_wire[record], from_wire[record.__name__] = _register_record(converter, record)
    return Codecs(to_wire, from_wire, converter)


def _register_record(converter: Converter, record: type[Contract]) -> tuple[ToWire, FromWire]:
    """Register how a record is written and read, alone and as a field of another."""
    special = _special_fields(record)
    unstructure = make_dict_unstructure_fn(record, converter, **special)
    structure = make_dict_structure_fn(
        record, converter, _cattrs_detailed_validation=False, **special
    )
    omitted = {name for name, how in special.items() if how.omit}
    fields = [field for field in attrs.fields(cast(Any, record)) if field.name not in omitted]
    known = frozenset(field.name for field in fields)
    required = frozenset(field.name for field in fields if field.default is attrs.NOTHING)

    def from_wire(raw: object) -> Any:
        if type(raw) is not list:
            raise DecodeError(f"expected a map for a {record.__name__}", "type")
        values = unique(raw)
        if not known.issuperset(values):
            if not READING.get().tolerant:
                got = ascii(next(name for name in values if name not in known))[:80]
                raise DecodeError(f"expected the fields of {record.__name__}, got {got}", "unknown")
            values = {name: value for name, value in values.items() if name in known}
        if not required.issubset(values):
            lacking = ", ".join(sorted(required.difference(values)))
            raise DecodeError(f"expected a {record.__name__} with {lacking}", "missing")
        contract = structure(values, record)
        if record is TensorHandle:
            attach = READING.get().attach
            return contract if attach is None else attach(cast(TensorHandle, contract))
        return contract

    to_wire = _sendable(record, unstructure)
    converter.register_unstructure_hook_func(
        lambda kind: _required(kind) is record,
        lambda value: None if value is None else to_wire(value),
    )
    converter.register_structure_hook_func(
        lambda kind: _required(kind) is record,
        lambda raw, _: None if raw is None else from_wire(raw),
    )
    return to_wire, from_wire


def _sendable(record: type[Contract], unstructure: ToWire) -> ToWire:
    """The same, but refusing what a record may hold in its own process only."""
    if record is MultimodalParams:

        def params_to_wire(params: MultimodalParams) -> Any:
            if params.encoder_state is not None:
                expected = "no live executor state, which never leaves its process"
                got = describe(params.encoder_state)
                raise Refused(params, "state", expected, got, ("encoder_state",))
            return unstructure(params)

        return params_to_wire
    if record is TensorHandle:

        def handle_to_wire(handle: TensorHandle) -> Any:
            detach = DETACH.get()
            if detach is not None:
                handle = detach(handle)
            if type(handle.payload) is not bytes:
                expected = "a handle whose payload is bytes (others only go over a Channel)"
                raise Refused(handle, "state", expected, repr(handle))
            if handle.dtype not in TORCH_CODES:
                expected = "a data type that can travel"
                raise Refused(handle, "dtype", expected, repr(handle), ("dtype",))
            return unstructure(handle)

        return handle_to_wire
    return unstructure


def _special_fields(record: type[Contract]) -> dict[str, Any]:
    """The fields whose annotation alone does not say how they travel."""
    if record is MultimodalParams:
        return {"encoder_state": override(omit=True)}
    if record is TensorHandle:
        return {"payload": override(unstruct_hook=lambda raw: raw, struct_hook=_opaque)}
    if record is MultimodalItemMetadata:
        how = override(unstruct_hook=_pack_partitions, struct_hook=_unpack_partitions)
        return {"input_partitions": how}
    if record is RequestOutput:
        return {"errors": override(unstruct_hook=_pack_errors, struct_hook=_unpack_errors)}
    return {}


def _required(kind: Any) -> Any:
    """The type of an optional field without its None."""
    if get_origin(kind) in (Union, UnionType):
        rest = [part for part in get_args(kind) if part is not NoneType]
        return rest[0] if len(rest) == 1 else Union[tuple(rest)]  # noqa: UP007  # built from parts
    return kind


def _register_fields(converter: Converter) -> None:
    """Register how each kind of field is written and read.

    None passes through every hook: the contract knows which of its fields may be None.
    """

    def register(matches: Callable[[Any], bool], to_wire: ToWire, from_wire: FieldHook) -> None:
        converter.register_unstructure_hook_func(lambda kind: matches(_required(kind)), to_wire)
        converter.register_structure_hook_func(lambda kind: matches(_required(kind)), from_wire)

    for scalar in _SCALARS:
        # By class as well: cattrs' own hooks, which coerce, are registered so.
        converter.register_structure_hook(scalar, _pass_on)
    register(lambda kind: kind in _SCALARS, _same, _pass_on)
    register(lambda kind: kind in _SEQUENCES, _same, _sequence)
    register(lambda kind: kind == _DIGESTS, _digests, _sequence)
    register(lambda kind: kind == tuple[ItemRef, ...], _pack_refs, _unpack_refs)
    register(lambda kind: kind is TokenIds, _same, _token_ids)
    register(lambda kind: kind is ChunkKind, _kind_name, _chunk_kind)
    register(lambda kind: kind is torch.dtype, TORCH_CODES.__getitem__, _dtype)
    register(lambda kind: kind == torch.Tensor | TensorHandle, _same, _leaf)
    register(lambda kind: kind == tuple[TensorHandle, ...], _same, _leaves)
    register(
        lambda kind: kind is FrozenMapping or get_origin(kind) is FrozenMapping, _same, _payload
    )


def _same(value: object) -> object:
    return value


def _pass_on(raw: object, _: object) -> object:
    """The contract checks scalars: it alone knows their ranges."""
    return raw


def _payload(raw: object, _: object) -> FrozenMapping[Any]:
    return READING.get().payload(raw)


def _leaf(raw: object, _: object) -> object:
    return READING.get().leaf(raw)


def _leaves(raw: object, _: object) -> tuple[object, ...] | None:
    values = _sequence(raw, _)
    return None if values is None else tuple(map(READING.get().leaf, values))


def _sequence(raw: object, _: object) -> tuple[Any, ...] | None:
    if raw is not None and type(raw) is not tuple:
        raise DecodeError("expected an array", "type")
    return raw


def _token_ids(raw: object, _: object) -> TokenIds:
    if type(raw) is not TokenIds:
        raise DecodeError("expected packed token ids", "type")
    return raw


def _item_ref(raw: object) -> ItemRef:
    if type(raw) is not tuple or len(raw) != 2:
        raise DecodeError("expected a modality and an index", "type")
    return ItemRef(*raw)


def _pack_refs(refs: tuple[ItemRef, ...]) -> list[str | int]:
    """References as modality, index, modality, index ..."""
    return list(chain.from_iterable(refs))


def _unpack_refs(raw: object, _: object) -> tuple[ItemRef, ...]:
    if type(raw) is not tuple or len(raw) % 2:
        raise DecodeError("expected a modality and an index for each item", "type")
    ends = iter(raw)
    # Unchecked: the record that holds them checks them all.
    return tuple(map(_new_ref, zip(ends, ends, strict=True)))


def _digests(hashes: tuple[tuple[int, ...], ...] | None) -> ExtType | None:
    if hashes is None:
        return None
    return ExtType(EXT_DIGESTS, b"".join([_DIGEST.pack(*words) for words in hashes]))


def _kind_name(kind: ChunkKind) -> str:
    return str(kind.value)


def _chunk_kind(raw: object, _: object) -> ChunkKind:
    kind = _KINDS.get(raw) if type(raw) is str else None
    if kind is None:
        raise DecodeError(f"expected one of {', '.join(_KINDS)} as the kind", "unknown")
    return kind


def _dtype(raw: object, _: object) -> torch.dtype:
    dtype = TORCH_DTYPES.get(raw) if type(raw) is int else None
    if dtype is None:
        raise DecodeError("expected the code of a torch dtype", "unknown")
    return dtype


def _opaque(raw: object, _: object) -> bytes:
    if type(raw) is not bytes:
        raise DecodeError("expected a handle's payload as bytes", "type")
    return raw


def _pack_partitions(
    partitions: FrozenMapping[FrozenMapping[MultimodalItemPartition]] | None,
) -> dict[str, dict[str, Any]] | None:
    if partitions is None:
        return None
    pack = codecs().to_wire[MultimodalItemPartition]
    return {
        modality: {field: pack(partition) for field, partition in fields.items()}
        for modality, fields in partitions.items()
    }


def _unpack_partitions(raw: object, _: object) -> FrozenMapping[Any] | None:
    if raw is None:
        return None
    unpack = codecs().from_wire["MultimodalItemPartition"]
    modalities: dict[str, FrozenMapping[Any]] = {}
    for modality, fields in _mapping(raw).items():
        partitions = {field: unpack(partition) for field, partition in _mapping(fields).items()}
        packed = any(partition.item_lengths is not None for partition in partitions.values())
        modalities[modality] = FrozenMapping._wrap(partitions, 1 + _partition_depth(packed=packed))
    return FrozenMapping._wrap(modalities)


@functools.cache
def _partition_depth(*, packed: bool) -> int:
    return depth_of(MultimodalItemPartition((1,) if packed else None))


def _pack_errors(errors: FrozenMapping[OmniwireError]) -> dict[str, list[Any]]:
    return {modality: error_to_wire(error) for modality, error in errors.items()}


def _unpack_errors(raw: object, _: object) -> FrozenMapping[OmniwireError]:
    return FrozenMapping._wrap(
        {modality: error_from_wire(error) for modality, error in _mapping(raw).items()}
    )


def _mapping(raw: object) -> dict[str, object]:
    if type(raw) is not list:
        raise DecodeError("expected a map", "type")
    values = unique(raw)
    if not set(map(type, values)) <= {str}:
        raise DecodeError("expected string keys, got bytes", "type")
    return values
