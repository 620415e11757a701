"""The messages that every reader reads."""

import struct
from typing import Any

from collecting import (
    CUDA_HANDLE,
    HANDLE,
    HASH_A,
    HASH_B,
    INPUT,
    LATER,
    METADATA,
    ONE,
    OUTPUT,
    PROBLEM,
    RUNTIME,
    floats,
    payload,
    raw_body,
    valid,
)
from wire_by_hand import (
    ARRAY,
    ARRAY_TYPES,
    DATA_TYPES,
    NAME,
    SIZES,
    TENSOR,
    Both,
    both,
    counting,
    digests,
    error,
    ext,
    inline,
    int32s,
    int64s,
    item_ref,
    message,
    named,
    packed,
    placed,
    record,
    refs,
    sealed,
    sparse,
    token_ids,
)


def records() -> None:
    """Every record, with every field and with as few as there may be."""
    valid("item-ref", "a reference", "ItemRef", item_ref("image", 3))
    long_name = "a" + "b_9" * 21
    valid("item-ref-limits", "the longest name", "ItemRef", item_ref(long_name, 2**63 - 1))
    valid("token-ids", "ids to their limit", "TokenIds", token_ids(0, 1, 151655, 2**31 - 1))
    valid("token-ids-empty", "no ids", "TokenIds", token_ids())
    valid("token-ids-many", "more than 255 bytes", "TokenIds", token_ids(*range(100)))
    valid("mapping-empty", "an empty payload", "FrozenMapping", both({}))

    name = "MultimodalItemPartition"
    valid("partition-batched", "no lengths", name, record(name, axis=2**63 - 1))
    lengths = record(name, item_lengths=[0, 3, 2**63 - 1], axis=1)
    valid("partition-packed", "lengths, one of them zero", name, lengths)
    packed_lengths = record(name, item_lengths=int32s(range(64)))
    valid("partition-packed-ints", "64 lengths travel as type 5", name, packed_lengths)
    valid("partition-defaults", "no field is written", name, sparse(name), exact=False)

    name = "MultimodalItemMetadata"
    valid("metadata", "every field; a modality that shares every field", name, METADATA)
    valid("metadata-no-items", "no references", name, record(name, item_refs=[]))
    none = record(name, item_refs=refs(("image", 0)), input_partitions={})
    valid("metadata-no-partitions", "partitions that declare nothing", name, none)
    only = sparse(name, item_refs=refs(("image", 0)))
    valid("metadata-defaults", "required fields only", name, only, exact=False)

    name = "MultimodalInput"
    valid("input", "every field, up to the end of int32", name, INPUT)
    rows = [HASH_A] * 70
    many = record(
        name,
        multimodal_hashes=digests(*rows),
        multimodal_positions=int32s(range(0, 140, 2)),
        multimodal_lengths=int32s([2] * 70),
        multimodal_uuids=[None] * 70,
    )
    valid("input-many-items", "packed positions and lengths", name, many)
    disordered = record(
        name,
        multimodal_hashes=digests(HASH_A, HASH_B),
        multimodal_positions=[9, 1],
        multimodal_lengths=[2, 0],
        multimodal_item_run_cu_offsets=[0, 1, 1],
        multimodal_run_positions=[9],
        multimodal_run_lengths=[2],
    )
    valid("input-out-of-order", "items out of prompt order, one without runs", name, disordered)
    no_items = {
        "multimodal_hashes": digests(),
        "multimodal_positions": [],
        "multimodal_lengths": [],
    }
    valid(
        "input-no-items",
        "no items, with runs",
        name,
        record(
            name,
            **no_items,
            multimodal_uuids=[],
            multimodal_item_run_cu_offsets=[0],
            multimodal_run_positions=[],
            multimodal_run_lengths=[],
        ),
    )
    valid("input-defaults", "required fields only", name, sparse(name, **no_items), exact=False)
    plain = Both([list(HASH_A), list(HASH_B)], [list(HASH_A), list(HASH_B)])
    half = Both([int32s(HASH_A).wire, int64s(HASH_B).wire], plain.plain)
    for how, hashes in (("arrays", plain), ("packed-rows", half)):
        other = sparse(
            name,
            multimodal_hashes=hashes,
            multimodal_positions=int64s([1, 2]),
            multimodal_lengths=int32s([1, 2]),
        )
        description = "other forms of the same digests and ints"
        valid(f"input-{how}", description, name, other, exact=False)

    name = "MultimodalRuntimeData"
    valid("runtime", "every field", name, RUNTIME)
    zero = record(name, **dict.fromkeys(RUNTIME.wire, 0))
    valid("runtime-zero", "an empty chunk at the start", name, zero)

    name = "MultimodalParams"
    data = {
        "image": {"pixel_values": ONE, "image_grid_thw": [[1, 2, 3]]},
        "item_metadata": named(METADATA),
        "multimodal_embedding": [ONE, named(HANDLE)],
        "mrope_config": {"mrope_position_deltas": ONE},
    }
    params = record(name, multimodal_input=INPUT, multimodal_data=data, multimodal_runtime=RUNTIME)
    valid("params", "every field and reserved key", name, params)
    one = record(name, multimodal_data={"multimodal_embedding": ONE})
    valid("params-one-embedding", "one tensor for all items", name, one)
    handle = record(name, multimodal_data={"multimodal_embedding": named(CUDA_HANDLE)})
    valid("params-embedding-handle", "one handle for all items", name, handle)
    valid("params-defaults", "no field is written", name, sparse(name), exact=False)

    name = "TensorHandle"
    valid("handle-arena", "shared host memory", name, HANDLE)
    valid("handle-cuda", "device memory, 0-dimensional, an empty payload", name, CUDA_HANDLE)

    name = "ProcessedRequest"
    text = record(name, request_id="r1", prompt_token_ids=token_ids(1, 5, 2))
    valid("request-text", "a text-only request", name, text)
    full = record(
        name, request_id="r1", prompt_token_ids=token_ids(*range(64)), multimodal_params=params
    )
    valid("request", "every field", name, full)
    only = sparse(name, request_id="\N{GREEK SMALL LETTER ALPHA}", prompt_token_ids=token_ids())
    valid("request-defaults", "required fields only", name, only, exact=False)

    name = "DisaggregatedParams"
    handles = [named(HANDLE), named(CUDA_HANDLE)]
    envelope = record(
        name,
        multimodal_embedding_handles=handles,
        multimodal_hashes=digests(HASH_A, HASH_B),
        request_type="decode",
        opaque_state=bytes(range(256)),
    )
    valid("envelope", "every field", name, envelope)
    hashes_only = record(name, multimodal_hashes=digests(HASH_A))
    valid("envelope-hashes", "hashes without handles", name, hashes_only)
    empty = record(
        name,
        multimodal_embedding_handles=[],
        multimodal_hashes=digests(),
        opaque_state=b"",
    )
    valid("envelope-empty", "empty is not nil", name, empty)
    valid("envelope-defaults", "no field is written", name, sparse(name), exact=False)

    name = "OmniOutput"
    valid("output", "every kind of value", name, OUTPUT)
    hidden = record(name, text_hidden_states=named(HANDLE))
    valid("output-hidden-handle", "hidden states by handle", name, hidden)
    valid("output-defaults", "no field is written", name, sparse(name), exact=False)

    name = "OutputChunk"
    for kind in ("delta", "cumulative", "final"):
        chunk = record(
            name,
            request_id="r1",
            step=2**63 - 1,
            output_type="text+audio",
            new_token_ids=token_ids(3, 4),
            output=OUTPUT,
            kind=kind,
            finish_reason=None if kind == "delta" else "stop",
        )
        valid(f"chunk-{kind}", f"a chunk of kind {kind}", name, chunk)
    only = sparse(name, request_id="r1", step=0, output_type="text")
    valid("chunk-defaults", "required fields only", name, only, exact=False)

    valid("concat", "from the end", "Concat", record("Concat", dim=-(2**31)))
    valid("stack", "the highest dimension", "Stack", record("Stack", dim=2**31 - 1))
    valid("stack-defaults", "no field is written", "Stack", sparse("Stack"), exact=False)
    valid("replace", "no fields", "Replace", record("Replace"))
    valid("append", "no fields", "Append", record("Append"))
    rules = {
        "codes.audio": named(record("Concat", dim=-1)),
        "latent": named(record("Stack")),
        "image": named(record("Replace")),
        "\N{LATIN SMALL LETTER E WITH ACUTE}": named(record("Append")),
    }
    valid("spec", "every rule", "OutputSpec", record("OutputSpec", entries=rules))
    valid("spec-defaults", "no field is written", "OutputSpec", sparse("OutputSpec"), exact=False)

    name = "RequestOutput"
    result = record(
        name,
        request_id="r1",
        new_token_ids=token_ids(7),
        multimodal_outputs={"audio": ONE, "image": [ONE, ONE], "video": named(HANDLE)},
        metadata={
            "audio": {"rate": 24000, "gain": -0.0, "mono": True, "codec": "pcm"},
            "image": {},
        },
        tensors={"codes.audio": inline("int64", [0], b""), "kept.apart": []},
        finished=True,
        finish_reason="stop",
        errors={"": error("OmniwireError", ""), "audio": error("PeerDied", "gone")},
    )
    valid("result", "every field", name, result)
    only = sparse(name, request_id="r1")
    valid("result-defaults", "required fields only", name, only, exact=False)
    every = {
        "a": error("OmniwireError", "text"),
        "b": error("ContractTypeError", "Concat", [[["dim"], "type", "an int", "True"]]),
        "c": error("ContractValueError", "Concat", [PROBLEM, [[], "range", "", ""]]),
        "d": error("AdmissionError", "ProcessedRequest", [PROBLEM], "r1"),
        "e": error("EncodeError", "OmniOutput", PROBLEM),
        "f": error("DecodeError", "expected more", "truncated", None),
        "g": error("DecodeError", "expected more", "syntax", 2**40),
        "h": error("UnsupportedVersionError", 2, 1),
        "i": error("HandoffError", "text"),
        "j": error("PeerClosed", "text"),
        "k": error("PeerDied", "text"),
        "l": error("HandoffTimeout", "text"),
        "m": error("ArenaFull", "text"),
        "n": error("HandlerNotFoundError", "audio", ["text", "image"]),
        "o": error("AccumulationError", "rank 2", "r1", "audio", "audio.codes"),
        "p": error("HandlerNotFoundError", "audio", []),
        "not a modality": error("OmniwireError", "text"),
    }
    valid("errors", "every class of error", name, record(name, request_id="r1", errors=every))

    name = "EncoderCapability"
    other = record(name, item_scheduling=False, custom_selection=True, hidden_size=1)
    valid("capability", "every field", name, other)
    valid("capability-defaults", "no field is written", name, sparse(name), exact=False)
    name = "EncoderBudget"
    budget = record(name, max_encoder_tokens=1, max_output_bytes=2**63 - 1, output_row_bytes=2**62)
    valid("budget", "every field", name, budget)
    valid("budget-defaults", "no field is written", name, sparse(name), exact=False)


def payloads() -> None:
    """Every value of a payload, and what msgpack can write in more than one way."""
    limits = (0, 127, 128, 255, 256, 65535, 65536, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63)
    below = (-1, -32, -33, -128, -129, -32768, -32769, -(2**31), -(2**31) - 1, -(2**63))
    payload("ints", "where encodings change", up=list(limits), top=2**64 - 1, down=list(below))
    nan = struct.unpack(">d", bytes.fromhex("7ff4000000000001"))[0]
    values = [0.0, -0.0, 1.5, 5e-324, 1.7976931348623157e308, float("inf"), float("-inf"), nan]
    payload("floats", "zeros, limits and the bits of a NaN", floats=values, one=1.0)
    payload("scalars", "int, float and bool stay apart", a=[True, 1, 1.0, False, 0, 0.0, None])
    texts = [
        "", "\0", "\x7f", "\N{LATIN SMALL LETTER SHARP S}", "\ud7ff\ue000\uffff", "\U00010000",
        "\U0010ffff", "\ufeffbom", "e\u0301", '"\\\n\u2028', "a" * 31, "b" * 32, "c" * 255,
        "d" * 256,
    ]  # fmt: skip
    payload("texts", "every length of UTF-8, and what is easily lost", texts=texts)
    blobs = [b"", b"\0", bytes(range(256)), b"x" * 255]
    payload("bytes", "every byte", bytes=blobs, long=bytes(65536))
    deep: Any = {}
    for level in range(30):
        deep = {"a": deep} if level % 2 else [deep]
    payload("nested", "32 levels", v=deep)
    payload("tuples", "empty and mixed", none=[], one=[1], mixed=[[], [None], ["a", 1, b"a"], {}])
    payload(
        "keys", "any text is a key", **{"": 1, "a.b": 2, "\N{SNOWMAN}": 3, "\0": 4, "record": 5}
    )
    wide = {f"k{i}": i for i in range(20)}
    payload("map-16", "more than 15 keys", v=wide, long=[None] * 300)
    payload("packed-int32", "64 ints", v=int32s([-(2**31), *range(62), 2**31 - 1]))
    payload("packed-int64", "64 ints beyond int32", v=int64s([-(2**63), *range(62), 2**63 - 1]))
    payload("ints-not-packed", "63 ints, and 64 with a uint64", a=list(range(63)), b=[2**63] * 64)
    payload("bools-not-packed", "bools are no ints", v=[True] * 64)
    payload("token-ids-in-payload", "among tuples", v=[token_ids(1, 2), [1, 2], token_ids()])
    payload(
        "records-in-payload",
        "a record at any place",
        ref=named(item_ref("image", 0)),
        partition=named(record("MultimodalItemPartition", item_lengths=[1, 2])),
        metadata=[named(METADATA)],
        input={"input": named(INPUT)},
        runtime=named(RUNTIME),
        params=named(record("MultimodalParams", multimodal_data={"a": {"b": []}})),
        handle=named(HANDLE),
        request=named(record("ProcessedRequest", request_id="r", prompt_token_ids=token_ids(1))),
        envelope=named(record("DisaggregatedParams")),
        output=named(OUTPUT),
        chunk=named(record("OutputChunk", request_id="r", step=0, output_type="t", output=OUTPUT)),
        rules=[named(record(name)) for name in ("Stack", "Replace", "Append")],
        spec=named(record("OutputSpec", entries={"a": named(record("Concat", dim=0))})),
        result=named(record("RequestOutput", request_id="r", errors={"": error("PeerDied", "x")})),
        capability=named(record("EncoderCapability")),
        budget=named(record("EncoderBudget")),
    )
    payload(
        "packed-short",
        "packing may be used for few",
        exact=False,
        a=int32s([1]),
        b=int64s([2]),
        c=int32s([]),
        d=int64s([]),
    )
    payload("digests-in-payload", "tuples of 8 ints", exact=False, v=digests(HASH_A, HASH_B))

    one = both({"v": 5})
    encodings = {
        "uint8": b"\xcc\x05", "uint16": b"\xcd\0\x05", "uint32": b"\xce\0\0\0\x05",
        "uint64": b"\xcf" + bytes(7) + b"\x05", "int8": b"\xd0\x05", "int16": b"\xd1\0\x05",
        "int32": b"\xd2\0\0\0\x05", "int64": b"\xd3" + bytes(7) + b"\x05",
    }  # fmt: skip
    for name, encoding in encodings.items():
        frames = raw_body(b"\x81\xa1v" + encoding)
        about = f"5 as msgpack's {name}"
        valid(f"encoding-{name}", about, "FrozenMapping", one, exact=False, frames=frames)
    forms = {
        "negative-int8": (b"\xd0\xff", -1),
        "negative-int64": (b"\xd3" + b"\xff" * 8, -1),
        "float32": (b"\xca\x3f\xc0\0\0", 1.5),
        "str8": (b"\xd9\x01x", "x"),
        "str16": (b"\xda\0\x01x", "x"),
        "str32": (b"\xdb\0\0\0\x01x", "x"),
        "bin16": (b"\xc5\0\x01x", b"x"),
        "bin32": (b"\xc6\0\0\0\x01x", b"x"),
        "array16": (b"\xdc\0\x01\x07", [7]),
        "array32": (b"\xdd\0\0\0\x01\x07", [7]),
        "map16": (b"\xde\0\x01\xa1k\x07", {"k": 7}),
        "map32": (b"\xdf\0\0\0\x01\xa1k\x07", {"k": 7}),
        "ext8": (b"\xc7\x04\x05\x07\0\0\0", int32s([7])),
        "ext16": (b"\xc8\0\x04\x05\x07\0\0\0", int32s([7])),
        "ext32": (b"\xc9\0\0\0\x04\x05\x07\0\0\0", int32s([7])),
    }
    for name, (encoding, value) in forms.items():
        frames = raw_body(b"\x81\xa1v" + encoding)
        content = both({"v": value})
        about = f"msgpack's {name}"
        valid(f"encoding-{name}", about, "FrozenMapping", content, exact=False, frames=frames)
    key = raw_body(b"\x81\xd9\x01v\x05")
    valid("encoding-key", "a key as str 8", "FrozenMapping", one, exact=False, frames=key)
    order = Both({"dim": 1}, record("Concat", dim=1).plain)
    frames = raw_body(b"\x81\xd9\x03dim\xcd\0\x01", "Concat")
    valid("encoding-field", "a field's name as str 8", "Concat", order, exact=False, frames=frames)
    chunk = {"output_type": "t", "step": 0, "request_id": "r"}
    content = Both(chunk, record("OutputChunk", **chunk).plain)
    valid("fields-in-any-order", "the order of fields is free", "OutputChunk", content, exact=False)


def tensors() -> None:
    """Every data type, shape and placement."""
    for name, kind, types in (("tensors", TENSOR, DATA_TYPES), ("arrays", ARRAY, ARRAY_TYPES)):
        values = {}
        for type_name in types:
            size = SIZES[type_name]
            data = b"\0\x01\x01\0\0\x01" if type_name == "bool" else counting(6 * size)
            values[type_name] = inline(type_name, [2, 3], data, kind)
        payload(f"dtypes-{name}", "every data type", **values)
        buffer = b""
        values = {}
        for index, type_name in enumerate(types):
            data = bytes(513 * SIZES[type_name])
            if type_name != "bool":
                data = bytes([index + 1]) * len(data)
            buffer += bytes(-len(buffer) % 64)
            values[type_name] = placed(type_name, [513], data, (0, len(buffer)), kind)
            buffer += data
        payload(
            f"dtypes-{name}-in-buffer", "every data type in a shared buffer", (buffer,), **values
        )
    for kind, word in ((TENSOR, "tensors"), (ARRAY, "arrays")):
        one = counting(4)
        shapes: list[tuple[int, ...]] = [(), (1,), (1, 1, 1), (1,) * 64]
        values = {f"d{len(shape)}": inline("int32", shape, one, kind) for shape in shapes}
        payload(f"shapes-one-{word}", "one element, up to 64 dimensions", **values)
        shapes = [(0,), (0, 3), (3, 0, 2), (0,) * 64, (0, 2**31, 2**27), (2**58, 0)]
        values = {f"e{i}": inline("float64", shape, b"", kind) for i, shape in enumerate(shapes)}
        payload(f"shapes-empty-{word}", "no elements", **values)
        bits = {
            "float16": "017c 007c 00fc 0080 0100 ff7f",
            "float32": "0100807f 010080ff 000000807f7f7fff 0000807f 01000000 00000080",
            "float64": "010000000000f07f ffffffffffffffff 0000000000000080 0100000000000000",
            "complex64": "000000800000c07f 0100807f00000080",
            "complex128": "00000000000000800100000000f0ff7f",
        }
        if kind == TENSOR:
            bits |= {
                "bfloat16": "817f 807f 80ff 0080 0100 ff7f",
                "complex32": "017c0080 0080007c",
                "float8_e5m2": "7d 7c fc 80 01 ff",
                "float8_e4m3fn": "7f ff 80 01",
            }
        values = {}
        for type_name, text in bits.items():
            data = bytes.fromhex(text.replace(" ", ""))
            count = len(data) // SIZES[type_name]
            values[type_name] = inline(type_name, [count], data, kind)
        payload(f"float-bits-{word}", "NaNs with payloads, infinities, zeros", **values)

    odd = inline("bool", [4], b"\0\x01\x02\xff")
    payload("bool-bytes", "bytes of bools other than 0 and 1", v=odd, exact=False)
    largest, smallest = counting(512), counting(513)
    payload(
        "inline-512",
        "inline up to 512 bytes",
        (smallest,),
        a=inline("uint8", [512], largest),
        b=placed("uint8", [513], smallest),
    )
    shared, own = counting(65535), counting(65536)
    payload(
        "buffer-64k",
        "a buffer of its own from 64 KiB",
        (shared, own),
        a=placed("uint8", [65535], shared, (0, 0)),
        b=placed("uint8", [65536], own, (1, 0)),
    )
    payload(
        "buffer-own-first",
        "the shared buffer comes second",
        (own, shared[:600]),
        a=placed("uint8", [65536], own, (0, 0)),
        b=placed("uint8", [600], shared[:600], (1, 0)),
    )
    data = bytes(range(200)) * 6
    same = placed("int16", [600], data)
    payload("twice", "the same tensor twice travels once", (data,), a=same, b=[same], c={"d": same})
    views = {
        "bytes": placed("uint8", [1200], data),
        "floats": placed("float32", [15, 20], data),
        "array": placed("int64", [150], data, (0, 0), ARRAY),
    }
    payload(
        "one-range-as-others", "other types and shapes of a range", (data,), exact=False, **views
    )
    small = counting(5)
    buffer = small + b"\xee" * 59 + small
    payload(
        "padding-ignored",
        "bytes between tensors need not be zero",
        (buffer,),
        exact=False,
        a=placed("uint8", [5], small),
        b=placed("uint8", [5], small, (0, 64)),
    )
    buffer = bytes(64) + floats(2.5)
    payload(
        "start-unused",
        "the first tensor starts later",
        (buffer,),
        exact=False,
        v=placed("float32", [], floats(2.5), (0, 64)),
    )
    buffer = floats(2.5) + bytes(188) + small
    payload(
        "buffer-backwards",
        "later tensors may stand first, far apart",
        (buffer,),
        exact=False,
        a=placed("uint8", [5], small, (0, 192)),
        b=placed("float32", [1], floats(2.5)),
    )
    buffers = tuple(bytes([i]) for i in range(100))
    each = [placed("uint8", [], buffers[i], (i, 0)) for i in range(100)]
    payload("buffers-100", "a hundred buffers of a byte", buffers, exact=False, v=each)
    wire = [both({"v": each}).wire, int32s([1] * 100).wire]
    frames = [sealed(packed(["FrozenMapping", *wire])), *buffers]
    about = "the sizes of buffers as type 5"
    value = both({"v": each})
    valid("buffers-100-packed", about, "FrozenMapping", value, exact=False, frames=frames)
    hidden = placed("bfloat16", [300], counting(600))
    output = record("OmniOutput", text_hidden_states=hidden, multimodal_outputs={"a": hidden})
    valid(
        "output-in-buffer",
        "the tensor of a field in a buffer",
        "OmniOutput",
        output,
        (counting(600),),
    )


def newer() -> None:
    """Messages of a later version that an older reader may read."""
    fields = Both({"dim": 1, "later": {"a": [1, ext(127, b"new")]}}, record("Concat", dim=1).plain)
    frames = message("Concat", fields, version=LATER)
    valid(
        "newer-field", "an unknown field is ignored", "Concat", fields, exact=False, frames=frames
    )
    value = record("Concat", dim=1)
    frames = message("Concat", value, version=LATER, parts=("part", {"deep": [1]}))
    valid("newer-part", "unknown parts are ignored", "Concat", value, exact=False, frames=frames)
    inner = Both([ext(NAME, b"Stack"), {"dim": 2, "later": None}], record("Stack", dim=2).plain)
    content = both({"a": [inner]})
    frames = message("FrozenMapping", content, version=LATER)
    valid(
        "newer-field-inside",
        "in a record of a payload",
        "FrozenMapping",
        content,
        exact=False,
        frames=frames,
    )
    tensor = placed("uint8", [5], counting(5)).wire
    fields = Both({"dim": 1, "later": tensor}, value.plain)
    frames = message("Concat", fields, (counting(5),), version=LATER)
    about = "a tensor in an ignored field accounts for its buffer"
    valid("newer-tensor", about, "Concat", fields, exact=False, frames=frames)
    frames = message("Concat", value, (counting(5),), version=LATER, parts=([tensor],))
    about = "a tensor in an ignored part accounts for its buffer"
    valid("newer-tensor-in-part", about, "Concat", value, exact=False, frames=frames)
    record_like = [ext(NAME, b"NoSuchRecord"), {"a": ext(NAME, b"x")}]
    fields = Both({"dim": 1, "later": record_like}, value.plain)
    frames = message("Concat", fields, version=LATER)
    about = "whatever stands in an ignored field"
    valid("newer-record-in-field", about, "Concat", fields, exact=False, frames=frames)


def define() -> None:
    for part in (records, payloads, tensors, newer):
        part()
