"""The messages that every reader refuses, each with its code."""

import struct
from typing import Any

import msgpack
from collecting import (
    HANDLE,
    HASH_A,
    INPUT,
    LATER,
    ONE,
    PROBLEM,
    RUNTIME,
    raw_body,
    refused,
    refused_value,
)
from wire_by_hand import (
    ARRAY,
    NAME,
    TENSOR,
    TOKEN_IDS,
    Both,
    both,
    counting,
    digests,
    ext,
    inline,
    int32s,
    joined,
    message,
    named,
    packed,
    placed,
    record,
    refs,
    sealed,
    shaped,
    token_ids,
)


def envelopes() -> None:
    """What is wrong before the body."""
    blob = joined(message("ItemRef", ["image", 3]))
    header = message("ItemRef", ["image", 3])[0]
    refused("blob-magic", "magic", "no omniblob", b"omniblog" + blob[8:])
    refused("blob-other-file", "magic", "a pickle", b"\x80\x04]\x94." + bytes(99))
    refused("blob-empty", "truncated", "no bytes at all", b"")
    refused("blob-magic-only", "truncated", "nothing after the magic", b"omniblob")
    refused("blob-no-count", "truncated", "part of the number of frames", blob[:12])
    refused("blob-no-frames", "frames", "no frames", b"omniblob" + bytes(8))
    refused("blob-table-cut", "truncated", "part of the table", blob[:20])
    refused("blob-frame-cut", "truncated", "part of the last frame", blob[:-1])
    refused("blob-surplus", "frames", "a byte after the last frame", blob + b"\0")
    refused("blob-padding", "syntax", "padding that is not zero", blob[:30] + b"\x01" + blob[31:])
    size = struct.pack("<Q", 2**64 - 64)
    refused("blob-size-overflow", "truncated", "a size near 2^64", blob[:16] + size + blob[24:])
    two = joined([header, b""])
    refused("empty-buffer", "frames", "a buffer that nothing declares", two)

    refused("header-empty", "truncated", "a header of no bytes", [b""])
    refused("header-first-byte", "magic", "an array of 4", [b"\x94" + header[1:]])
    refused("header-magic", "magic", "another magic", [header.replace(b"omniwire", b"omniwirf")])
    refused("header-cut", "truncated", "25 bytes", [header[:25]])
    for position, what in ((10, "version"), (13, "oldest"), (16, "checksum"), (21, "body")):
        other = header[:position] + bytes([header[position] ^ 1]) + header[position + 1 :]
        refused(f"header-encoding-{what}", "syntax", f"another encoding of the {what}", [other])
    body = header[26:]
    needs_newer = [sealed(body, LATER, LATER)]
    refused("version", "version", "a newer reader is needed", needs_newer)
    refused(
        "version-without-body",
        "version",
        "before the body is looked at",
        [sealed(b"\xc1", LATER, LATER)],
    )
    refused("version-zero", "range", "versions start at 1", [sealed(body, 0, 0)])
    refused("version-oldest-zero", "range", "the oldest is 0", [sealed(body, 1, 0)])
    refused("version-reversed", "range", "older than its oldest", [sealed(body, 0, 1)])
    refused("body-cut", "truncated", "a body shorter than declared", [header[:-1]])
    refused("body-surplus", "syntax", "a body longer than declared", [header + b"\xc0"])
    refused("checksum", "checksum", "a bit of the body", [header[:-2] + b"\x02" + header[-1:]])
    other = header[:17] + bytes(4) + header[21:]
    refused("checksum-itself", "checksum", "another checksum", [other])


def bodies() -> None:
    """What is wrong with the body before its value is looked at."""
    refused("body-empty", "truncated", "no value", [sealed(b"")])
    refused("body-ends-early", "truncated", "an array without elements", [sealed(b"\x93")])
    huge = b"\xdd\xff\xff\xff\xff" * 3
    refused("body-declares-much", "truncated", "arrays of 2^32-1 elements", [sealed(huge)])
    refused("body-text-cut", "truncated", "a text that ends early", raw_body(b"\xdb\xff\0\0\0x"))
    refused("body-invalid-byte", "syntax", "the byte c1", raw_body(b"\x81\xa1v\xc1"))
    whole = b"\x93" + packed("ItemRef") + packed(["image", 3]) + b"\x90"
    refused("body-two-values", "syntax", "a second value", [sealed(whole + b"\xc0")])
    refused("body-no-array", "syntax", "a map", [sealed(packed({"a": 1}))])
    refused("body-two-parts", "syntax", "no sizes", [sealed(packed(["ItemRef", ["image", 3]]))])
    four = [sealed(packed(["ItemRef", ["image", 3], [], 1]))]
    refused("body-four-parts", "unknown", "a part that version 1 does not have", four)
    refused("type-unknown", "unknown", "no such type", message("NoSuchType", {}))
    refused("type-no-text", "unknown", "an int for the type", message(1, {}))
    refused("type-other-case", "unknown", "names are exact", message("itemref", ["image", 3]))
    no_array = [sealed(packed(["ItemRef", ["image", 3], 0]))]
    refused("sizes-no-array", "type", "an int for the sizes", no_array)
    texts = [sealed(packed(["ItemRef", ["image", 3], ["0"]])), b"0"]
    refused("sizes-of-text", "type", "a text for a size", texts)
    bools = [sealed(packed(["ItemRef", ["image", 3], [True]])), b"0"]
    refused("sizes-of-bool", "type", "a bool for a size", bools)
    for name, text in (
        ("continuation", b"\x80"),
        ("cut", b"\xc3"),
        ("overlong", b"\xc0\x80"),
        ("overlong-3", b"\xe0\x80\x80"),
        ("surrogate", b"\xed\xa0\x80"),
        ("beyond", b"\xf4\x90\x80\x80"),
        ("five", b"\xf8\x88\x80\x80\x80"),
    ):
        frames = raw_body(b"\x81\xa1v" + bytes([0xA0 | len(text)]) + text)
        refused(f"utf8-{name}", "syntax", "no UTF-8", frames)
    refused("utf8-key", "syntax", "a key that is no UTF-8", raw_body(b"\x81\xa1\xff\x01"))
    refused(
        "utf8-record",
        "syntax",
        "a record's name that is no UTF-8",
        message("FrozenMapping", {"v": [ext(NAME, b"\xff"), {}]}),
    )
    for name, key in (
        ("int", b"\x01"),
        ("bin", b"\xc4\x01v"),
        ("nil", b"\xc0"),
        ("array", b"\x90"),
    ):
        refused(f"key-{name}", "type", f"{name} for a key", raw_body(b"\x81" + key + b"\x01"))
    refused(
        "key-bin-in-record",
        "type",
        "bin for the name of a field",
        raw_body(b"\x81\xc4\x03dim\x01", "Concat"),
    )
    twice = b"\x82\xa1a\x01\xa1a\x02"
    refused("key-twice", "duplicate", "a key twice", raw_body(twice))
    refused("key-twice-inside", "duplicate", "in an inner map", raw_body(b"\x81\xa1v" + twice))
    double = raw_body(b"\x82\xa3dim\x01\xa3dim\x01", "Concat")
    refused("field-twice", "duplicate", "a field twice", double)
    other = raw_body(b"\x82\xa3dim\x01\xd9\x03dim\x01", "Concat")
    refused("field-twice-other-encoding", "duplicate", "in two encodings", other)
    stamp = msgpack.ExtType(127, b"")
    refused_value("extension", "unknown", "an extension type that version 1 does not have", stamp)
    fields = {"request_id": stamp, "prompt_token_ids": token_ids().wire}
    refused(
        "extension-in-field", "unknown", "where a text belongs", message("ProcessedRequest", fields)
    )
    refused(
        "extension-timestamp",
        "unknown",
        "a timestamp of msgpack",
        raw_body(b"\x81\xa1v\xd6\xff\0\0\0\x01"),
    )
    for code, name, size in (
        (4, "token-ids", 5),
        (5, "int32s", 3),
        (6, "int64s", 12),
        (7, "digests", 33),
    ):
        refused_value(f"size-of-{name}", "syntax", "no multiple", ext(code, bytes(size)))
    deep: Any = {}
    for _ in range(32):
        deep = {"a": deep}
    refused_value("nesting-maps", "limit", "34 levels of mappings", deep)
    deep = []
    for _ in range(31):
        deep = [deep]
    refused_value("nesting-tuples", "limit", "33 levels of tuples", deep)
    refused(
        "nesting-very-deep",
        "limit",
        "100,000 levels",
        raw_body(b"\x81\xa1v" + b"\x91" * 100000 + b"\xc0"),
    )
    inner: Any = named(record("MultimodalParams", multimodal_data={"a": []})).wire
    for _ in range(29):
        inner = [inner]
    refused_value("nesting-records", "limit", "a record and its payload count", inner)
    held: Any = named(record("MultimodalItemPartition", item_lengths=[1])).wire
    for _ in range(29):
        held = [held]
    refused_value("nesting-fields", "limit", "an array in a record counts two levels", held)


def records() -> None:
    """Forms of fields, and rules of contracts."""
    record_name = ext(NAME, b"Concat")
    refused_value("record-name-alone", "unknown", "type 1 on its own", record_name)
    refused_value("record-name-second", "unknown", "type 1 later in an array", [1, record_name])
    refused_value("record-no-value", "syntax", "an array of one", [record_name])
    refused_value("record-two-values", "syntax", "an array of three", [record_name, {"dim": 1}, 1])
    refused_value("record-unknown", "unknown", "no such record", [ext(NAME, b"NoSuchRecord"), {}])
    refused_value(
        "record-mapping", "unknown", "a mapping has no name", [ext(NAME, b"FrozenMapping"), {}]
    )
    ids = [ext(NAME, b"TokenIds"), token_ids(1).wire]
    refused_value("record-token-ids", "unknown", "token ids have no name", ids)
    refused_value("record-no-map", "type", "an int for a record", [record_name, 1])

    def fields(name: str, code: str, kind: str, what: str, value: Any) -> None:
        refused(name, code, what, message(kind, value))

    def broken(name: str, kind: str, what: str, good: Both, /, **bad: Any) -> None:
        """A good record with other values for some fields."""
        wire = {**good.wire, **{key: both(value).wire for key, value in bad.items()}}
        refused(f"rule-{name}", "contract", what, message(kind, wire))

    fields("field-unknown", "unknown", "Concat", "no such field", {"dim": 1, "no_such_field": 2})
    fields("field-missing", "missing", "Concat", "a required field", {})
    fields(
        "field-encoder-state",
        "unknown",
        "MultimodalParams",
        "a field that never travels",
        {"encoder_state": None},
    )
    fields("mapping-no-map", "type", "FrozenMapping", "an array for a payload", [])
    fields("token-ids-array", "type", "TokenIds", "an array for token ids", [1, 2])
    fields("token-ids-int32s", "type", "TokenIds", "type 5 for token ids", int32s([1, 2]))
    fields("token-ids-negative", "contract", "TokenIds", "a negative id", token_ids(1, -1))
    fields("item-ref-map", "type", "ItemRef", "a map", {"modality": "image", "index": 0})
    fields("item-ref-three", "type", "ItemRef", "three elements", ["image", 0, 0])
    fields("item-ref-upper", "contract", "ItemRef", "no modality", ["Image", 0])
    fields("item-ref-long", "contract", "ItemRef", "a name of 65 letters", ["a" * 65, 0])
    fields("item-ref-newline", "contract", "ItemRef", "a line feed at the end", ["image\n", 0])
    fields("item-ref-negative", "contract", "ItemRef", "a negative index", ["image", -1])
    fields("item-ref-bool", "contract", "ItemRef", "a bool for the index", ["image", True])
    fields("item-ref-float", "contract", "ItemRef", "a float for the index", ["image", 1.0])
    fields("item-ref-bytes", "contract", "ItemRef", "bytes for the modality", [b"image", 0])
    fields("record-array", "type", "Concat", "an array for a record", [1])

    kind = "MultimodalItemPartition"
    good = record(kind)
    fields("ints-no-array", "type", kind, "an int for ints", {"item_lengths": 1})
    broken("partition-text", kind, "a text among ints", good, item_lengths=[1, "2"])
    broken("partition-bool", kind, "a bool among ints", good, item_lengths=[True])
    broken("partition-negative", kind, "a negative length", good, item_lengths=[-1])
    broken("partition-axis", kind, "a negative axis", good, axis=-1)
    broken("partition-axis-large", kind, "beyond 2^63-1", good, axis=2**63)
    broken("partition-axis-nil", kind, "nil for an int", good, axis=None)

    kind = "MultimodalItemMetadata"
    one = record(kind, item_refs=refs(("image", 0)))
    fields("refs-odd", "type", kind, "no index", {"item_refs": ["image", 0, "image"]})
    fields("refs-map", "type", kind, "a map", {"item_refs": {}})
    fields("partitions-array", "type", kind, "an array", {**one.wire, "input_partitions": []})
    fields(
        "partitions-nil",
        "type",
        kind,
        "nil for the fields of a modality",
        {**one.wire, "input_partitions": {"image": None}},
    )
    broken("refs-swapped", kind, "index before modality", one, item_refs=[0, "image"])
    broken("refs-gap", kind, "index 0 is missing", one, item_refs=["image", 1])
    broken("refs-twice", kind, "an item twice", one, item_refs=["image", 0, "image", 0])
    broken("refs-modality", kind, "no modality", one, item_refs=["1", 0])
    broken("costs-zero", kind, "a cost of 0", one, encoder_token_lengths=[0])
    broken("costs-count", kind, "two costs for one item", one, encoder_token_lengths=[1, 1])
    broken("rows-zero", kind, "no rows", one, output_embedding_lengths=[0])
    broken("rows-count", kind, "no rows for one item", one, output_embedding_lengths=[])
    other = {"audio": {}}
    broken("partitions-modality", kind, "a modality without items", one, input_partitions=other)
    two = {"image": {"p": record("MultimodalItemPartition", item_lengths=[1, 2])}}
    broken("partitions-count", kind, "two lengths for one item", one, input_partitions=two)

    kind = "MultimodalInput"
    fields(
        "digests-no-array",
        "type",
        kind,
        "an int for digests",
        {**INPUT.wire, "multimodal_hashes": 1},
    )
    broken("hash-short", kind, "7 words", INPUT, multimodal_hashes=[[1] * 7, [1] * 8])
    broken("hash-word", kind, "a word beyond int32", INPUT, multimodal_hashes=[[2**31] * 8] * 2)
    broken("hash-no-array", kind, "an int for a digest", INPUT, multimodal_hashes=[1, 2])
    broken("hash-count", kind, "one hash for two items", INPUT, multimodal_hashes=digests(HASH_A))
    broken("positions-count", kind, "one position too many", INPUT, multimodal_positions=[1, 5, 9])
    broken("lengths-negative", kind, "a negative length", INPUT, multimodal_lengths=[4, -5])
    plain = {key: None for key in INPUT.wire if "run" in key}
    broken("end-int32", kind, "an end beyond int32", INPUT, multimodal_lengths=[4, 6], **plain)
    broken("uuid-empty", kind, "an empty uuid", INPUT, multimodal_uuids=["", None])
    broken("uuid-count", kind, "one uuid for two items", INPUT, multimodal_uuids=[None])
    broken("uuid-int", kind, "an int for a uuid", INPUT, multimodal_uuids=[1, None])
    broken("runs-together", kind, "two of the three", INPUT, multimodal_run_lengths=None)
    offsets = "multimodal_item_run_cu_offsets"
    broken("offsets-count", kind, "n offsets", INPUT, **{offsets: [0, 3]})
    broken("offsets-start", kind, "not from 0", INPUT, **{offsets: [1, 2, 3]})
    broken("offsets-order", kind, "falling", INPUT, **{offsets: [0, 4, 3]})
    broken("offsets-end", kind, "fewer than the runs", INPUT, **{offsets: [0, 2, 2]})
    positions, lengths = "multimodal_run_positions", "multimodal_run_lengths"
    at = 2**31 - 6
    broken("run-count", kind, "a run without a length", INPUT, **{lengths: [1, 3]})
    broken("run-empty", kind, "a run of no tokens", INPUT, **{lengths: [0, 4, 5]})
    broken("run-sum", kind, "not the item's length", INPUT, **{lengths: [1, 2, 5]})
    broken("run-first", kind, "not at the item's position", INPUT, **{positions: [2, 4, at]})
    broken("run-overlap", kind, "inside the run before", INPUT, **{positions: [1, 1, at]})
    broken("run-order", kind, "before the run before", INPUT, **{positions: [1, 0, at]})

    kind = "MultimodalRuntimeData"
    broken("chunk-reversed", kind, "ends before it starts", RUNTIME, chunk_end_pos=7)
    broken("chunk-int32", kind, "beyond int32", RUNTIME, chunk_end_pos=2**31)
    broken("chunk-cached", kind, "more rows than tokens", RUNTIME, num_cached_mm_tokens=9)
    broken("chunk-rows", kind, "more rows than tokens", RUNTIME, chunk_end_pos=10)
    broken("chunk-total", kind, "fewer rows than needed", RUNTIME, total_embeds_in_request=10)
    broken("chunk-negative", kind, "negative", RUNTIME, past_seen_token_num=-1)

    kind = "MultimodalParams"
    good = record(kind)
    fields("payload-nil", "type", kind, "nil for a payload", {"multimodal_data": None})
    fields("record-in-field", "type", kind, "an array for a record", {"multimodal_input": []})
    broken("params-metadata", kind, "another record", good, multimodal_data={"item_metadata": 1})
    reserved = named(record("MultimodalItemMetadata", item_refs=refs(("mrope_config", 0))))
    broken(
        "params-reserved",
        kind,
        "a reserved name as modality",
        good,
        multimodal_data={"item_metadata": reserved},
    )
    for name, value in (
        ("none", []),
        ("text", "x"),
        ("nil", [None]),
        ("array", inline("int8", [0], b"", ARRAY)),
    ):
        broken(
            f"params-embedding-{name}",
            kind,
            "no tensors",
            good,
            multimodal_data={"multimodal_embedding": value},
        )

    kind = "TensorHandle"
    for name, value in (("code", 255), ("text", "float32"), ("bool", True), ("nil", None)):
        fields(
            f"handle-dtype-{name}", "unknown", kind, "no data type", {**HANDLE.wire, "dtype": value}
        )
    fields("handle-payload", "type", kind, "a text", {**HANDLE.wire, "payload": "x"})
    broken("handle-local", kind, "the memory of another process", HANDLE, kind="local")
    broken("handle-kind", kind, "no such kind", HANDLE, kind="no_such_kind")
    broken("handle-shape", kind, "a negative dimension", HANDLE, shape=[-1])

    kind = "ProcessedRequest"
    good = record(kind, request_id="r", prompt_token_ids=token_ids())
    fields("request-no-id", "missing", kind, "the id", {"prompt_token_ids": token_ids().wire})
    fields("request-ids-array", "type", kind, "an array", {**good.wire, "prompt_token_ids": [1]})
    fields(
        "request-ids-nil",
        "type",
        kind,
        "nil for token ids",
        {**good.wire, "prompt_token_ids": None},
    )
    broken("request-id", kind, "an empty id", good, request_id="")
    broken("request-id-int", kind, "an int", good, request_id=1)
    broken("request-id-map", kind, "a map", good, request_id={})

    kind = "DisaggregatedParams"
    good = record(kind)
    fields("handles-no-array", "type", kind, "a map", {"multimodal_embedding_handles": {}})
    broken("handles-of-int", kind, "an int", good, multimodal_embedding_handles=[1])
    broken(
        "handles-of-map",
        kind,
        "a handle without its name",
        good,
        multimodal_embedding_handles=[HANDLE],
    )
    broken("handles-of-tensor", kind, "a tensor", good, multimodal_embedding_handles=[ONE])
    broken(
        "handles-count",
        kind,
        "one handle, no hashes",
        good,
        multimodal_embedding_handles=[named(HANDLE)],
        multimodal_hashes=digests(),
    )
    broken("envelope-type", kind, "empty", good, request_type="")
    broken("envelope-state", kind, "a text for bytes", good, opaque_state="x")

    kind = "OmniOutput"
    good = record(kind)
    hidden = "text_hidden_states"
    broken("hidden-int", kind, "an int", good, **{hidden: 1})
    broken("hidden-tuple", kind, "a tuple of tensors", good, **{hidden: [ONE]})
    broken("hidden-array", kind, "a numpy array", good, **{hidden: inline("int8", [0], b"", ARRAY)})
    for name, value in (
        ("nil", None),
        ("bytes", b""),
        ("ints", [1]),
        ("nested", [[ONE]]),
        ("record", named(RUNTIME)),
        ("ids", token_ids()),
    ):
        broken(f"output-{name}", kind, "no output", good, multimodal_outputs={"a": {"b": value}})
    broken("inter-stage", kind, "no output", good, inter_stage_outputs={"a": b""})

    kind = "OutputChunk"
    good = record(kind, request_id="r", step=0, output_type="t")
    for name, value in (("later", "no such kind"), ("int", 1), ("nil", None)):
        fields(f"chunk-kind-{name}", "unknown", kind, "no kind", {**good.wire, "kind": value})
    broken("chunk-step", kind, "negative", good, step=-1)
    broken("chunk-type", kind, "empty", good, output_type="")
    broken("chunk-reason", kind, "empty", good, finish_reason="")

    broken("concat-dim", "Concat", "beyond int32", record("Concat", dim=0), dim=2**31)
    broken("stack-dim", "Stack", "beyond int32", record("Stack"), dim=-(2**31) - 1)
    broken("concat-nil", "Concat", "nil for an int", record("Concat", dim=0), dim=None)
    kind = "OutputSpec"
    rule = named(record("Append"))
    broken("spec-value", kind, "no rule", record(kind), entries={"a": 1})
    broken("spec-record", kind, "another record", record(kind), entries={"a": named(RUNTIME)})
    for key in ("", ".", "a.", ".a", "a..b"):
        broken(
            f"spec-key-{key or 'empty'}", kind, "an empty part", record(kind), entries={key: rule}
        )

    kind = "RequestOutput"
    good = record(kind, request_id="r")
    for name, value in (
        ("scalar", 1),
        ("map", {"a": ONE}),
        ("array", inline("int8", [0], b"", ARRAY)),
        ("tuple", [1]),
    ):
        broken(f"result-output-{name}", kind, "no tensors", good, multimodal_outputs={"a": value})
    broken("result-tensors", kind, "no tensors", good, tensors={"a": "x"})
    broken("result-metadata", kind, "no map", good, metadata={"audio": 1})
    broken("result-metadata-nil", kind, "no scalar", good, metadata={"audio": {"a": None}})
    broken("result-metadata-deep", kind, "no scalar", good, metadata={"audio": {"a": {}}})
    broken("result-finished", kind, "an int for a bool", good, finished=1)
    broken("result-reason", kind, "empty", good, finish_reason="")
    fields("errors-no-map", "type", kind, "an array", {**good.wire, "errors": []})
    wrong: tuple[tuple[str, str, Any], ...] = (
        ("nil", "type", None),
        ("empty", "type", []),
        ("text", "type", "PeerDied"),
        ("class-int", "type", [1, "x"]),
        ("class", "unknown", ["KeyError", "x"]),
        ("class-base", "unknown", ["ContractError", "x", []]),
        ("few", "type", ["PeerDied"]),
        ("many", "type", ["PeerDied", "x", "y"]),
        ("int", "type", ["PeerDied", 1]),
        ("version-bool", "type", ["UnsupportedVersionError", True, 1]),
        ("offset-float", "type", ["DecodeError", "m", "c", 1.0]),
        ("names-int", "type", ["HandlerNotFoundError", "m", [1]]),
        ("problem-short", "type", ["EncodeError", "s", PROBLEM[:3]]),
        ("problem-path-text", "type", ["EncodeError", "s", ["p", "c", "e", "g"]]),
        ("problem-path-nil", "type", ["EncodeError", "s", [[None], "c", "e", "g"]]),
        ("problem-code-int", "type", ["EncodeError", "s", [[], 1, "e", "g"]]),
        ("problems-map", "type", ["ContractTypeError", "s", {}]),
    )
    for name, code, value in wrong:
        fields(f"error-{name}", code, kind, "an error", {**good.wire, "errors": {"": value}})

    kind = "EncoderCapability"
    broken("capability-int", kind, "an int for a bool", record(kind), item_scheduling=1)
    broken("capability-zero", kind, "no width", record(kind), hidden_size=0)
    kind = "EncoderBudget"
    broken("budget-zero", kind, "no tokens", record(kind), max_encoder_tokens=0)
    broken("budget-row", kind, "bytes without those of a row", record(kind), max_output_bytes=1)


def tensors() -> None:
    """Types 2 and 3: their own form, and where their bytes are."""
    four, five = counting(4), counting(5)
    for kind, word in ((TENSOR, "tensor"), (ARRAY, "array")):

        def bad(name: str, code: str, what: str, data: bytes, *buffers: bytes) -> None:
            refused_value(f"{word}-{name}", code, what, ext(kind, data), *buffers)  # noqa: B023  # called at once

        whole = placed("uint8", [4], four, (0, 0), kind).wire.data
        bad("empty", "syntax", "no bytes", b"")
        bad("cut-head", "syntax", "two bytes", whole[:2])
        bad("cut-shape", "syntax", "part of a dimension", whole[:7])
        bad("cut-place", "syntax", "part of the offset", whole[:-1], four)
        bad("long-place", "syntax", "a byte too many", whole + b"\0", four)
        bad("dtype", "unknown", "no such data type", shaped(255, 0, [0]))
        bad("dtype-zero", "unknown", "code 0", shaped(0, 0, [0]))
        bad("placement", "unknown", "no such placement", shaped("int8", 255, [0]))
        bad("dimensions", "range", "65 dimensions", shaped("int8", 0, [1] * 65) + b"x")
        for name, shape in (
            ("one", [2**63]),
            ("product", [2**32, 2**32]),
            ("empty", [0, 2**32, 2**32]),
            ("wraps", [2**64 - 2**40, 4]),
        ):
            bad(f"range-{name}", "range", "a product beyond 2^63-1", shaped("int8", 0, shape))
        bad("inline-short", "buffer", "a byte too few", shaped("int16", 0, [2]) + bytes(3))
        bad("inline-long", "buffer", "a byte too many", shaped("int16", 0, [2]) + bytes(5))
        bad("inline-empty", "buffer", "bytes of no element", shaped("int16", 0, [0]) + b"x")
        place = struct.pack("<IQ", 0, 0)
        bad("empty-placed", "buffer", "no bytes, in a buffer", shaped("int8", 1, [0]) + place, five)
        for name, code, index, offset in (
            ("index", "frames", 1, 0),
            ("offset", "buffer", 0, 1),
            ("offset-32", "buffer", 0, 32),
            ("outside", "buffer", 0, 64),
            ("far-outside", "buffer", 0, 2**64 - 64),
        ):
            data = shaped("uint8", 1, [5]) + struct.pack("<IQ", index, offset)
            bad(name, code, "not where it says", data, five)
        bad("no-buffer", "frames", "there are no buffers", whole)
        bad("past-end", "buffer", "a byte past the end", shaped("uint8", 1, [6]) + place, five)

    bf16 = shaped("bfloat16", 0, [0])
    refused_value("array-bfloat16", "unknown", "no data type of numpy", ext(ARRAY, bf16))
    wide = shaped("float64", 0, [0, 2**60])
    refused_value("array-range-bytes", "range", "2^63 bytes", ext(ARRAY, wide))

    a = placed("uint8", [100], counting(100))
    b = placed("uint8", [36], counting(36), (0, 64))
    refused_value("overlap", "buffer", "two that overlap", [a.wire, b.wire], counting(100))
    shorter = placed("uint8", [50], counting(50))
    refused_value(
        "overlap-prefix", "buffer", "one inside another", [a.wire, shorter.wire], counting(100)
    )
    refused_value("buffer-unused", "frames", "a buffer that no tensor uses", 1, five)
    second = placed("uint8", [5], five, (1, 0)).wire
    refused_value("buffer-first-unused", "frames", "only the second is used", second, five, five)
    exact = placed("uint8", [5], five).wire
    refused_value("buffer-longer", "frames", "a byte after the last tensor", exact, five + b"\0")
    for name, sizes, buffers in (
        ("missing", [5], ()),
        ("surplus", [5], (five, five)),
        ("size", [6], (five,)),
        ("size-negative", [-5], (five,)),
    ):
        frames = [sealed(packed(["FrozenMapping", {"v": exact}, sizes])), *buffers]
        refused(f"frames-{name}", "frames", "other buffers than declared", frames)


def newer() -> None:
    """A later version: what may not be ignored."""
    for name, code, kind, fields in (
        ("type", "unknown", "NoSuchType", {}),
        ("record", "unknown", "FrozenMapping", {"v": [ext(NAME, b"NoSuchRecord"), {}]}),
        ("extension", "unknown", "FrozenMapping", {"v": ext(127, b"")}),
        ("missing", "missing", "Concat", {"later": 1}),
        ("dtype", "unknown", "Concat", {"dim": 1, "later": ext(TENSOR, shaped(255, 0, [0]))}),
        ("ids", "syntax", "Concat", {"dim": 1, "later": ext(TOKEN_IDS, b"abc")}),
        ("rule", "contract", "Concat", {"dim": 2**31, "later": 1}),
    ):
        frames = message(kind, fields, version=LATER)
        refused(f"newer-{name}", code, "a later version, still refused", frames)
    tensor = placed("uint8", [6], counting(6)).wire
    frames = message("Concat", {"dim": 1, "later": tensor}, (counting(5),), version=LATER)
    refused("newer-tensor", "buffer", "outside its buffer, in an ignored field", frames)
    frames = message("Concat", {"dim": 1}, (counting(5),), version=LATER)
    refused("newer-buffer", "frames", "a buffer that nothing uses", frames)
    refused(
        "newer-two-parts", "syntax", "no sizes", [sealed(packed(["Concat", {"dim": 1}]), LATER)]
    )


def define() -> None:
    for part in (envelopes, bodies, records, tensors, newer):
        part()
