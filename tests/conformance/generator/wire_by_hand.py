"""The wire format by hand: messages built from docs/reference/wire-format.md, without omniwire.

Every value is built twice in one go: as msgpack has it, and in the plain form of the manifest,
which is JSON in which each kind of value looks like no other:

    nil, bool, int, text   null, true, 1, "text"
    float                  {"float": "3ff8000000000000"}: the bits
    bytes                  {"bytes": "00ff"}
    tuple                  [...]
    mapping                {"map": {...}}
    token ids              {"token_ids": [1, 2]}
    record                 {"record": "Concat", "fields": {"dim": 0}}, every field
    error                  {"error": "PeerDied", "arguments": ["gone"]}
    tensor, numpy array    {"tensor": "int8", "shape": [1], "bytes": "ff"}, {"array": ...
    data type              {"dtype": "int8"}

Bytes that repeat themselves are written "00ff*1000": a thousand bytes in all.
"""

import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgpack

DATA_TYPES: Final = [
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16",
    "bfloat16", "float32", "float64", "complex32", "complex64", "complex128", "float8_e4m3fn",
    "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2",
    "bits8", "bits16", "bits1x8", "bits2x4", "bits4x2", "uint1", "uint2", "uint3", "uint4",
    "uint5", "uint6", "uint7", "int1", "int2", "int3", "int4", "int5", "int6", "int7",
]  # fmt: skip
CODES: Final = {name: code for code, name in enumerate(DATA_TYPES, 1)}
ARRAY_TYPES: Final = (*DATA_TYPES[:10], "float32", "float64", "complex64", "complex128")
SIZES: Final = {
    **dict.fromkeys(DATA_TYPES, 1),
    **dict.fromkeys(("uint16", "int16", "float16", "bfloat16", "bits16"), 2),
    **dict.fromkeys(("uint32", "int32", "float32", "complex32"), 4),
    **dict.fromkeys(("uint64", "int64", "float64", "complex64"), 8),
    "complex128": 16,
}
PERIOD: Final = 251
NAME, TENSOR, ARRAY, TOKEN_IDS, INT32S, INT64S, DIGESTS = range(1, 8)


class Both(NamedTuple):
    """A value as msgpack has it, and in plain form."""

    wire: Any
    plain: Any


def both(value: object) -> Both:
    """A payload value from Python's own types."""
    if isinstance(value, Both):
        return value
    if isinstance(value, float):
        return Both(value, {"float": struct.pack(">d", value).hex()})
    if isinstance(value, bytes):
        return Both(value, {"bytes": hexed(value)})
    if isinstance(value, list):
        parts = list(map(both, value))
        return Both([part.wire for part in parts], [part.plain for part in parts])
    if isinstance(value, Mapping):
        values = {key: both(item) for key, item in value.items()}
        plain = {key: item.plain for key, item in values.items()}
        return Both({key: item.wire for key, item in values.items()}, {"map": plain})
    return Both(value, value)


def hexed(data: bytes) -> str:
    """Bytes in the plain form."""
    for size in (1, 2, 4, 8, PERIOD):
        if len(data) > size + 64 and data[size:] == data[:-size]:
            return f"{data[:size].hex()}*{len(data)}"
    return data.hex()


def counting(size: int) -> bytes:
    """Bytes that change all the time."""
    return bytes(i % PERIOD for i in range(size))


def ext(code: int, data: bytes) -> msgpack.ExtType:
    return msgpack.ExtType(code, data)


def shaped(dtype: str | int, placement: int, shape: Sequence[int]) -> bytes:
    code = CODES[dtype] if isinstance(dtype, str) else dtype
    return struct.pack(f"<BBB{len(shape)}Q", code, placement, len(shape), *shape)


def _plain_tensor(kind: int, dtype: str, shape: Sequence[int], data: bytes) -> Any:
    name = "tensor" if kind == TENSOR else "array"
    return {name: dtype, "shape": list(shape), "bytes": hexed(data)}


def inline(dtype: str, shape: Sequence[int], data: bytes, kind: int = TENSOR) -> Both:
    wire = ext(kind, shaped(dtype, 0, shape) + data)
    return Both(wire, _plain_tensor(kind, dtype, shape, data))


def placed(
    dtype: str,
    shape: Sequence[int],
    data: bytes,
    place: tuple[int, int] = (0, 0),
    kind: int = TENSOR,
) -> Both:
    """A tensor whose bytes, `data`, are in a buffer at an offset."""
    wire = ext(kind, shaped(dtype, 1, shape) + struct.pack("<IQ", *place))
    return Both(wire, _plain_tensor(kind, dtype, shape, data))


def token_ids(*ids: int) -> Both:
    return Both(ext(TOKEN_IDS, struct.pack(f"<{len(ids)}i", *ids)), {"token_ids": list(ids)})


def int32s(values: Sequence[int]) -> Both:
    return Both(ext(INT32S, struct.pack(f"<{len(values)}i", *values)), list(values))


def int64s(values: Sequence[int]) -> Both:
    return Both(ext(INT64S, struct.pack(f"<{len(values)}q", *values)), list(values))


def digests(*rows: Sequence[int]) -> Both:
    packed = b"".join(struct.pack("<8i", *row) for row in rows)
    return Both(ext(DIGESTS, packed), [list(row) for row in rows])


def refs(*pairs: tuple[str, int]) -> Both:
    return Both([half for pair in pairs for half in pair], [list(pair) for pair in pairs])


def dtype(name: str) -> Both:
    return Both(CODES[name], {"dtype": name})


def error(name: str, *arguments: Any) -> Both:
    return Both([name, *arguments], {"error": name, "arguments": list(arguments)})


class _Required:
    pass


REQUIRED: Final = _Required()
_NONE_YET: Final = Both({}, {"map": {}})
FIELDS: Final[dict[str, dict[str, Any]]] = {
    "MultimodalItemPartition": {"item_lengths": None, "axis": 0},
    "MultimodalItemMetadata": {
        "item_refs": REQUIRED,
        "encoder_token_lengths": None,
        "output_embedding_lengths": None,
        "input_partitions": None,
    },
    "MultimodalInput": {
        "multimodal_hashes": REQUIRED,
        "multimodal_positions": REQUIRED,
        "multimodal_lengths": REQUIRED,
        "multimodal_uuids": None,
        "multimodal_item_run_cu_offsets": None,
        "multimodal_run_positions": None,
        "multimodal_run_lengths": None,
    },
    "MultimodalRuntimeData": {
        "past_seen_token_num": REQUIRED,
        "chunk_end_pos": REQUIRED,
        "num_cached_mm_tokens": REQUIRED,
        "num_mm_tokens_in_chunk": REQUIRED,
        "total_embeds_in_request": REQUIRED,
    },
    "MultimodalParams": {
        "multimodal_input": None,
        "multimodal_data": _NONE_YET,
        "multimodal_runtime": None,
    },
    "TensorHandle": {
        "kind": REQUIRED,
        "dtype": REQUIRED,
        "shape": REQUIRED,
        "payload": REQUIRED,
    },
    "ProcessedRequest": {
        "request_id": REQUIRED,
        "prompt_token_ids": REQUIRED,
        "multimodal_params": None,
    },
    "DisaggregatedParams": {
        "multimodal_embedding_handles": None,
        "multimodal_hashes": None,
        "request_type": "prefill",
        "opaque_state": None,
    },
    "OmniOutput": {
        "text_hidden_states": None,
        "multimodal_outputs": _NONE_YET,
        "inter_stage_outputs": _NONE_YET,
    },
    "OutputChunk": {
        "request_id": REQUIRED,
        "step": REQUIRED,
        "output_type": REQUIRED,
        "new_token_ids": token_ids(),
        "output": None,
        "kind": "delta",
        "finish_reason": None,
    },
    "Concat": {"dim": REQUIRED},
    "Stack": {"dim": 0},
    "Replace": {},
    "Append": {},
    "OutputSpec": {"entries": _NONE_YET},
    "RequestOutput": {
        "request_id": REQUIRED,
        "new_token_ids": token_ids(),
        "multimodal_outputs": _NONE_YET,
        "metadata": _NONE_YET,
        "tensors": _NONE_YET,
        "finished": False,
        "finish_reason": None,
        "errors": _NONE_YET,
    },
    "EncoderCapability": {"item_scheduling": True, "custom_selection": False, "hidden_size": None},
    "EncoderBudget": {
        "max_encoder_tokens": None,
        "max_output_bytes": None,
        "output_row_bytes": None,
    },
}
"""Every field of every record, with its default."""


def record(name: str, /, **given: object) -> Both:
    """A record as a writer writes it: with every field."""
    fields = {key: both(given.get(key, default)) for key, default in FIELDS[name].items()}
    assert not set(given) - set(fields)
    assert REQUIRED not in [value.wire for value in fields.values()]
    plain = {key: value.plain for key, value in fields.items()}
    wire = {key: value.wire for key, value in fields.items()}
    return Both(wire, {"record": name, "fields": plain})


def sparse(name: str, /, **given: object) -> Both:
    """A record of a writer that writes the given fields only."""
    wire = {key: both(value).wire for key, value in given.items()}
    return Both(wire, record(name, **given).plain)


def named(value: Both) -> Both:
    """A record as it stands in a payload."""
    return Both([ext(NAME, value.plain["record"].encode()), value.wire], value.plain)


def item_ref(modality: str, index: int) -> Both:
    fields = {"modality": modality, "index": index}
    return Both([modality, index], {"record": "ItemRef", "fields": fields})


def packed(value: Any) -> bytes:
    """msgpack, each value in its shortest encoding."""
    data = msgpack.packb(value)
    assert data is not None
    return data


def sealed(body: bytes, version: int = 1, oldest: int = 1) -> bytes:
    """The header around a body."""
    head = b"\x95\xa8omniwire" + struct.pack(">BHBH", 0xCD, version, 0xCD, oldest)
    return head + struct.pack(">BIBI", 0xCE, zlib.crc32(body), 0xC6, len(body)) + body


def message(
    name: Any, value: object, buffers: Sequence[bytes] = (), version: int = 1, parts: Any = ()
) -> list[bytes]:
    """The frames of a message."""
    sizes = [len(buffer) for buffer in buffers]
    wire = value.wire if isinstance(value, Both) else value
    return [sealed(packed([name, wire, sizes, *parts]), version), *buffers]


def joined(frames: Sequence[bytes]) -> bytes:
    """Frames as one buffer."""
    blob = b"omniblob" + struct.pack(f"<Q{len(frames)}Q", len(frames), *map(len, frames))
    for frame in frames:
        blob += bytes(-len(blob) % 64) + frame
    return blob
