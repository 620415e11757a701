"""Messages that no writer made: each is refused with its code, in little memory and time."""

import pickle
import struct
import time
import tracemalloc
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import msgpack
import numpy as np
import pytest
import torch

from omniwire.contracts import (
    ContractError,
    DecodeError,
    FrozenMapping,
    ItemRef,
    MultimodalItemMetadata,
    MultimodalItemPartition,
    MultimodalParams,
    ProcessedRequest,
    RequestOutput,
    UnsupportedVersionError,
)
from omniwire.contracts.errors import DECODE_CODES
from omniwire.serialization import Limits, decode, dumps, encode, loads

RECORD, TENSOR, ARRAY, TOKENS, INT32S, INT64S, DIGESTS = range(1, 8)
FLOAT32 = 12


INPUT_OF_NO_ITEMS = dict.fromkeys(("multimodal_hashes", "multimodal_positions"), ())


def sealed(body: bytes, version: int = 1, oldest: int = 1) -> bytes:
    """Frame 0 around a body, built from the specification alone."""
    head = b"\x95\xa8omniwire" + struct.pack(">BHBH", 0xCD, version, 0xCD, oldest)
    return head + struct.pack(">BIBI", 0xCE, zlib.crc32(body), 0xC6, len(body)) + body


def message(name: object, value: object, sizes: Sequence[object] = ()) -> bytes:
    return sealed(msgpack.packb([name, value, list(sizes)]))


def payload(value: object, sizes: Sequence[object] = ()) -> bytes:
    return message("FrozenMapping", {"v": value}, sizes)


def ext(code: int, data: bytes) -> msgpack.ExtType:
    return msgpack.ExtType(code, data)


def inline(dtype: int, shape: Sequence[int], content: bytes, kind: int = TENSOR) -> object:
    return ext(kind, struct.pack(f"<BBB{len(shape)}Q", dtype, 0, len(shape), *shape) + content)


def placed(dtype: int, shape: Sequence[int], index: int, offset: int, kind: int = TENSOR) -> object:
    start = struct.pack(f"<BBB{len(shape)}Q", dtype, 1, len(shape), *shape)
    return ext(kind, start + struct.pack("<IQ", index, offset))


def code_of(*frames: object, **limits: int) -> str:
    """The code with which a message is refused."""
    with pytest.raises(DecodeError) as caught:
        decode(list(frames), Limits(**limits))
    error = caught.value
    assert error.code in DECODE_CODES
    assert len(str(error)) < 3000
    assert pickle.loads(pickle.dumps(error)).code == error.code
    return error.code


def sample() -> ProcessedRequest:
    """Something of everything, in a small message with two frames after the header."""
    record = MultimodalItemMetadata(
        [("image", 0), ("audio", 0)],
        [4, 2],
        [2, 1],
        {"image": {"p": MultimodalItemPartition((3,))}},
    )
    data = {
        "item_metadata": record,
        "image": {"p": torch.arange(150.0).view(3, 50), "s": torch.ones(2, dtype=torch.bool)},
        "audio": {"a": np.arange(3), "r": (16000, 1.5, None, b"x", ItemRef("audio", 0))},
    }
    return ProcessedRequest("r1", [1, 5, 2], MultimodalParams(None, data))


class TestEnvelope:
    def test_the_builder_of_these_tests_agrees_with_the_encoder(self) -> None:
        assert message("ItemRef", ["image", 3]) == encode(ItemRef("image", 3))[0]
        assert decode([payload(inline(FLOAT32, (1,), b"\0\0\x80?"))])["v"].tolist() == [1.0]

    def test_magic(self) -> None:
        for junk in (b"PK\x03\x04", b"\x95\xa8omniwirf", b"\x94", pickle.dumps(1), b"\x00" * 99):
            assert code_of(junk) == "magic"

    @pytest.mark.parametrize("protocol", range(6))
    def test_a_pickle_is_never_loaded(self, protocol: int) -> None:
        """vllm#29565, lmdeploy#4804, LightLLM#784: nothing is called, whatever the bytes say."""
        attack = pickle.dumps(Exploding(), protocol)
        assert code_of(attack) == "magic"
        assert code_of(payload(attack) + attack) == "syntax"
        assert decode([payload(attack)])["v"] == attack
        with pytest.raises(DecodeError):
            loads(attack)

    def test_a_newer_reader_needed(self) -> None:
        with pytest.raises(UnsupportedVersionError) as caught:
            decode([sealed(b"\xff not msgpack", 9, 7)])
        assert (caught.value.found, caught.value.supported, caught.value.code) == (7, 1, "version")

    @pytest.mark.parametrize(("version", "oldest"), [(0, 0), (1, 0), (0, 1)])
    def test_impossible_versions(self, version: int, oldest: int) -> None:
        assert code_of(sealed(msgpack.packb(["ItemRef", ["a", 0], []]), version, oldest)) == "range"

    def test_checksum(self) -> None:
        header = bytearray(message("ItemRef", ["image", 3]))
        header[-2] ^= 1
        assert code_of(header) == "checksum"

    def test_encodings_other_than_the_fixed_ones(self) -> None:
        plain = message("ItemRef", ["image", 3])
        for position in (10, 13, 16, 21):
            header = bytearray(plain)
            header[position] ^= 0x01
            assert code_of(header) == "syntax"

    def test_a_body_longer_or_shorter_than_declared(self) -> None:
        plain = message("ItemRef", ["image", 3])
        assert code_of(plain + b"\xc0") == "syntax"
        assert code_of(plain[:-1]) == "truncated"

    def test_no_frames(self) -> None:
        assert code_of() == "truncated"

    @pytest.mark.parametrize(
        "frame", [1, None, "text", object(), [b"x"], memoryview(bytes(8))[::2]]
    )
    def test_frames_that_are_no_buffers(self, frame: object) -> None:
        assert code_of(frame) == "frames"
        assert code_of(message("ItemRef", ["image", 3]), frame) == "frames"
        with pytest.raises(DecodeError):
            loads(frame)

    def test_header_too_large(self) -> None:
        header = message("ItemRef", ["image", 3])
        assert code_of(header, max_header_bytes=len(header) - 1) == "limit"
        assert decode([header], Limits(max_header_bytes=len(header))) == ("image", 3)


class Exploding:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (_explode, ("echo pwned",))


def _explode(command: str) -> None:
    raise AssertionError(command)


class TestSyntax:
    @pytest.mark.parametrize(
        "body",
        [b"\xc1", b"\x91\xc1", b"\xc0\xc0", b"\x93\xc0\xc0\xc0\xc0", b"\xa1\xff", b"\x81\x01\x02"],
        ids=bytes.hex,
    )
    def test_no_msgpack_of_the_required_shape(self, body: bytes) -> None:
        assert code_of(sealed(body)) == "syntax"

    @pytest.mark.parametrize("body", [b"", b"\x93", b"\xdd\xff\xff\xff\xff", b"\xdb\0\0\0\x02a"])
    def test_a_value_that_ends_early(self, body: bytes) -> None:
        assert code_of(sealed(body)) == "truncated"

    @pytest.mark.parametrize("value", [None, 1, "text", {}, {"a": 1}, [], ["ItemRef", ["a", 0]]])
    def test_a_body_of_another_shape(self, value: object) -> None:
        assert code_of(sealed(msgpack.packb(value))) == "syntax"

    def test_the_offset_says_where_the_surplus_starts(self) -> None:
        with pytest.raises(DecodeError) as caught:
            decode([sealed(b"\x91\xc0" + bytes(3))])
        assert (caught.value.code, caught.value.offset) == ("syntax", 2)

    def test_a_body_of_more_parts(self) -> None:
        assert code_of(sealed(msgpack.packb(["ItemRef", ["image", 3], [], 1]))) == "unknown"

    @pytest.mark.parametrize("text", [b"\xed\xa0\x80", b"\x80", b"\xc3", b"\xc0\x80"])
    def test_text_that_is_no_utf8(self, text: bytes) -> None:
        body = msgpack.packb(["FrozenMapping", {"v": "~~~~"}, []]).replace(
            b"\xa4~~~~", bytes([0xA0 | len(text)]) + text
        )
        assert code_of(sealed(body)) == "syntax"

    @pytest.mark.parametrize("data", [b"", b"1", b"1234", b"12345678", bytes(12), b"\xff" * 12])
    def test_timestamps_are_no_part_of_the_format(self, data: bytes) -> None:
        stamp = b"\xc7" + bytes([len(data)]) + b"\xff" + data
        body = b"\x93" + msgpack.packb("FrozenMapping") + b"\x81\xa1v" + stamp + b"\x90"
        assert code_of(sealed(body)) in ("syntax", "unknown")
        body = b"\x93" + msgpack.packb("ItemRef") + b"\x92" + stamp + b"\x00\x90"
        assert code_of(sealed(body)) in ("syntax", "contract")

    def test_map_keys(self) -> None:
        twice = b"\x82\xa1a\x01\xa1a\x02"
        for name, value in (("FrozenMapping", twice), ("FrozenMapping", b"\x81\xa1b" + twice)):
            body = b"\x93" + msgpack.packb(name) + value + b"\x90"
            assert code_of(sealed(body)) == "duplicate"
        body = b"\x93" + msgpack.packb("Concat") + b"\x82\xa3dim\x01\xa3dim\x01" + b"\x90"
        assert code_of(sealed(body)) == "duplicate"
        for key in (b"a", 1, None, 1.5, (), ((),)):
            assert code_of(message("FrozenMapping", {key: 1})) == "type"
            assert code_of(message("Concat", {"dim": 1, key: 1})) == "type"
        record = {"item_refs": [], "input_partitions": {b"image": {}}}
        assert code_of(message("MultimodalItemMetadata", record)) == "type"
        assert code_of(message("RequestOutput", {"request_id": "r", "errors": {b"a": 1}})) == "type"

    def test_nesting(self) -> None:
        """A refusal, never a RecursionError, however deep."""
        for depth in (34, 100, 1000, 1030, 100_000):
            for layer, core in ((b"\x91", b"\xc0"), (b"\x81\xa1a", b"\x80")):
                body = b"\x93" + msgpack.packb("FrozenMapping")
                body += b"\x81\xa1v" + layer * depth + core + b"\x90"
                assert code_of(sealed(body)) == "limit"

    def test_nested_records(self) -> None:
        value: object = {"multimodal_data": {}}
        name = ext(RECORD, b"MultimodalParams")
        for _ in range(100):
            value = {"multimodal_data": {"p": [name, value]}}
        assert code_of(message("MultimodalParams", value)) == "limit"
        chunk: object = {"request_id": "r", "step": 0, "output_type": "t"}
        for _ in range(100):
            output = {"multimodal_outputs": {"p": [ext(RECORD, b"OutputChunk"), chunk]}}
            chunk = {**chunk, "output": output}  # type: ignore[dict-item]  # grows inwards
        assert code_of(message("OutputChunk", chunk)) in ("limit", "contract")

    @pytest.mark.parametrize("depth", [1, 5, 31, 32])
    def test_the_depth_limit_is_exact(self, depth: int) -> None:
        value: object = {}
        for _ in range(depth - 1):
            value = {"a": value}
        header = message("FrozenMapping", value)
        assert decode([header], Limits(max_depth=depth)) == value
        assert code_of(header, max_depth=depth - 1) == "limit"

    @pytest.mark.parametrize(("depth", "legal"), [(29, True), (30, False)])
    def test_the_levels_of_nested_records_count(self, depth: int, legal: bool) -> None:
        """The payload, the request, its params: 3 levels of 32 before the inner payload."""
        data: object = {}
        for _ in range(depth - 1):
            data = {"a": data}
        tokens = ext(TOKENS, b"")
        fields = {"request_id": "r", "prompt_token_ids": tokens}
        record = {**fields, "multimodal_params": {"multimodal_data": data}}
        header = payload([ext(RECORD, b"ProcessedRequest"), record])
        if legal:
            assert type(decode([header])["v"]) is ProcessedRequest
        else:
            assert code_of(header) == "limit"


class TestNames:
    @pytest.mark.parametrize(
        "name", ["", "itemref", "dict", "os.system", "Contract", "ItemRef\0", "torch.Tensor"]
    )
    def test_unknown_types(self, name: str) -> None:
        assert code_of(message(name, {})) == "unknown"
        assert code_of(payload([ext(RECORD, name.encode()), {}])) == "unknown"

    @pytest.mark.parametrize("name", [None, 1, ["ItemRef"], b"ItemRef", {"a": 1}])
    def test_types_that_are_no_names(self, name: object) -> None:
        assert code_of(message(name, {})) == "unknown"

    def test_types_that_a_payload_holds_without_their_name(self) -> None:
        for name, value in ((b"FrozenMapping", {}), (b"TokenIds", ext(TOKENS, b""))):
            assert code_of(payload([ext(RECORD, name), value])) == "unknown"

    def test_record_names_out_of_place(self) -> None:
        name = ext(RECORD, b"ItemRef")
        for value in (name, [1, name], {"a": name}, [[1, name]]):
            assert code_of(payload(value)) == "unknown"
        assert code_of(payload([name])) == "syntax"
        assert code_of(payload([name, ["a", 0], 1])) == "syntax"
        assert code_of(payload([ext(RECORD, b"\xff"), 1])) == "syntax"

    @pytest.mark.parametrize("code", [0, 8, 127])
    def test_unknown_extensions(self, code: int) -> None:
        for value in (ext(code, b"x"), [1, ext(code, b"")], {"a": ext(code, b"")}):
            assert code_of(payload(value)) == "unknown"
        fields = {"request_id": ext(code, b""), "prompt_token_ids": ext(TOKENS, b"")}
        assert code_of(message("ProcessedRequest", fields)) == "unknown"

    def test_unknown_and_missing_fields(self) -> None:
        """cattrs#113, msgspec#210"""
        assert code_of(message("Concat", {"dim": 0, "zz": 2})) == "unknown"
        assert code_of(message("Concat", {})) == "missing"
        assert code_of(message("MultimodalParams", {"encoder_state": None})) == "unknown"
        assert code_of(message("ProcessedRequest", {"request_id": "r"})) == "missing"

    def test_unknown_errors(self) -> None:
        for name in ("KeyError", "OmniWireError", "ContractError"):
            value = {"request_id": "r", "errors": {"": [name, "text"]}}
            assert code_of(message("RequestOutput", value)) == "unknown"

    @pytest.mark.parametrize(
        "error",
        [
            None, [], [1], "PeerDied", ["PeerDied"], ["PeerDied", 1], ["PeerDied", "a", "b"],
            ["AdmissionError", "s", [["p", "c", "e", "g"]], "r"],
            ["AdmissionError", "s", [[[None], "c", "e", "g"]], "r"],
            ["AdmissionError", "s", [[[], "c", "e"]], "r"],
            ["HandlerNotFoundError", "m", [1]], ["UnsupportedVersionError", True, 1],
            ["DecodeError", "m", "c", 1.0], ["EncodeError", "s", {}],
        ],
        ids=repr,
    )  # fmt: skip
    def test_errors_of_other_forms(self, error: object) -> None:
        value = {"request_id": "r", "errors": {"": error}}
        assert code_of(message("RequestOutput", value)) == "type"


class TestFieldTypes:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("FrozenMapping", []),
            ("FrozenMapping", None),
            ("TokenIds", [1, 2]),
            ("TokenIds", None),
            ("ItemRef", ["image"]),
            ("ItemRef", {"modality": "image", "index": 0}),
            ("Concat", [0]),
            ("Concat", None),
            ("MultimodalItemMetadata", {"item_refs": ["image", 0, "audio"]}),
            ("MultimodalItemMetadata", {"item_refs": {}}),
            ("MultimodalItemMetadata", {"item_refs": [], "encoder_token_lengths": 1}),
            ("MultimodalItemMetadata", {"item_refs": [], "input_partitions": []}),
            ("MultimodalItemMetadata", {"item_refs": [], "input_partitions": {"image": None}}),
            ("MultimodalItemMetadata", {"item_refs": [], "input_partitions": {"image": {"a": 1}}}),
            ("ProcessedRequest", {"request_id": "r", "prompt_token_ids": [1]}),
            ("MultimodalParams", {"multimodal_data": []}),
            ("MultimodalParams", {"multimodal_data": None}),
            ("MultimodalParams", {"multimodal_input": []}),
            ("DisaggregatedParams", {"multimodal_hashes": 1}),
            ("DisaggregatedParams", {"multimodal_embedding_handles": 1}),
            ("TensorHandle", {"kind": "arena", "dtype": 12, "shape": [1], "payload": "text"}),
            ("RequestOutput", {"request_id": "r", "errors": []}),
        ],
    )
    def test_of_another_form(self, name: str, value: object) -> None:
        assert code_of(message(name, value)) == "type"

    @pytest.mark.parametrize("kind", ["later", 1, None, ["delta"], {}])
    def test_unknown_kinds(self, kind: object) -> None:
        value = {"request_id": "r", "step": 0, "output_type": "t", "kind": kind}
        assert code_of(message("OutputChunk", value)) == "unknown"

    @pytest.mark.parametrize("dtype", [0, 42, -1, 2**63, "float32", None, True, 12.0])
    def test_unknown_dtypes_of_handles(self, dtype: object) -> None:
        value = {"kind": "arena", "dtype": dtype, "shape": [1], "payload": b""}
        assert code_of(message("TensorHandle", value)) == "unknown"

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("ItemRef", ["Image", 0]),
            ("ItemRef", ["image", -1]),
            ("ItemRef", ["image", True]),
            ("ItemRef", [b"image", 0]),
            ("Concat", {"dim": None}),
            ("Concat", {"dim": 1.0}),
            ("Concat", {"dim": {"a": 1}}),
            ("MultimodalItemPartition", {"item_lengths": [1, "2"]}),
            ("MultimodalItemMetadata", {"item_refs": ["image", 1]}),
            ("MultimodalItemMetadata", {"item_refs": [{}, []]}),
            ("MultimodalItemMetadata", {"item_refs": ["image", 0], "encoder_token_lengths": [0]}),
            ("MultimodalInput", INPUT_OF_NO_ITEMS | {"multimodal_lengths": [1]}),
            ("MultimodalParams", {"multimodal_data": {"item_metadata": 1}}),
            ("ProcessedRequest", {"request_id": "", "prompt_token_ids": ext(TOKENS, b"")}),
            ("ProcessedRequest", {"request_id": {}, "prompt_token_ids": ext(TOKENS, b"")}),
            ("TokenIds", ext(TOKENS, b"\xff\xff\xff\xff")),
            ("OutputSpec", {"entries": {"a": 1}}),
            ("OmniOutput", {"text_hidden_states": 1}),
            ("OmniOutput", {"text_hidden_states": [1]}),
            ("OmniOutput", {"multimodal_outputs": {"a": None}}),
            ("RequestOutput", {"request_id": "r", "finished": 1}),
        ],
    )  # fmt: skip
    def test_what_breaks_a_contract_has_it_as_its_cause(self, name: str, value: object) -> None:
        header = message(name, value)
        assert code_of(header) == "contract"
        with pytest.raises(DecodeError) as caught:
            decode([header])
        assert isinstance(caught.value.__cause__, ContractError)

    @pytest.mark.parametrize(
        ("code", "data"),
        [(INT32S, b"123"), (INT64S, b"1234"), (DIGESTS, bytes(33)), (TOKENS, b"12345")],
    )
    def test_packed_integers_of_a_broken_size(self, code: int, data: bytes) -> None:
        assert code_of(payload(ext(code, data))) == "syntax"


class TestTensors:
    @pytest.mark.parametrize("kind", [TENSOR, ARRAY])
    def test_payloads_cut_short(self, kind: int) -> None:
        whole = placed(FLOAT32, (4,), 0, 0, kind)
        for end in range(len(whole.data)):
            assert code_of(payload(ext(kind, whole.data[:end]), [16]), bytes(16)) in (
                "syntax",
                "buffer",
            )
        assert code_of(payload(ext(kind, whole.data + b"\0"), [16]), bytes(16)) == "syntax"
        assert code_of(payload(inline(FLOAT32, (2,), bytes(7), kind))) == "buffer"
        assert code_of(payload(inline(FLOAT32, (2,), bytes(9), kind))) == "buffer"
        assert code_of(payload(inline(FLOAT32, (0,), b"x", kind))) == "buffer"

    @pytest.mark.parametrize("kind", [TENSOR, ARRAY])
    def test_unknown_codes(self, kind: int) -> None:
        for dtype in (0, 42, 255):
            assert code_of(payload(inline(dtype, (0,), b"", kind))) == "unknown"
        assert code_of(payload(ext(kind, b"\x0c\x02\x00"))) == "unknown"
        if kind == ARRAY:
            assert code_of(payload(inline(11, (0,), b"", kind))) == "unknown"  # bf16

    @pytest.mark.parametrize("kind", [TENSOR, ARRAY])
    @pytest.mark.parametrize(
        "shape",
        [
            (2**64 - 2**40, 4),  # -2**40 as read by a reader with signed sizes
            (2**64 - 2, 2**64 - 8),  # -2 * -8 is 16
            (2**63,),
            (2**32, 2**32),
            (2**63, 0),
            (0, 2**32, 2**32),
            (2**40,) * 60,
        ],
    )
    def test_shapes_out_of_range(self, shape: tuple[int, ...], kind: int) -> None:
        """dora#3208: each dimension before their product."""
        for tensor in (inline(FLOAT32, shape, bytes(16), kind), placed(FLOAT32, shape, 0, 0, kind)):
            assert code_of(payload(tensor, [64]), bytes(64)) == "range"

    @pytest.mark.parametrize("kind", [TENSOR, ARRAY])
    def test_too_many_dimensions(self, kind: int) -> None:
        assert code_of(payload(inline(2, (1,) * 65, b"x", kind))) == "range"
        assert decode([payload(inline(2, (1,) * 64, b"x", kind))])["v"].ndim == 64

    @pytest.mark.parametrize("kind", [TENSOR, ARRAY])
    def test_outside_its_buffer(self, kind: int) -> None:
        """python_backend#406: sizes come from the buffers, not from what is declared."""
        for shape, offset in (((5,), 0), ((1,), 64), ((2**40,), 0), ((1,), 2**64 - 64), ((0,), 0)):
            header = payload(placed(FLOAT32, shape, 0, offset, kind), [16])
            assert code_of(header, bytes(16), max_total_bytes=2**62) == "buffer"

    @pytest.mark.parametrize("offset", [1, 4, 32, 63, 65])
    def test_misaligned_offsets(self, offset: int) -> None:
        for kind in (TENSOR, ARRAY):
            header = payload(placed(FLOAT32, (1,), 0, offset, kind), [128])
            assert code_of(header, bytes(128)) == "buffer"

    def test_overlaps(self) -> None:
        whole, half = placed(FLOAT32, (32,), 0, 0), placed(FLOAT32, (16,), 0, 64)
        start, bytes_ = placed(FLOAT32, (16,), 0, 0), placed(2, (128,), 0, 0)
        for pair in ([whole, half], [half, whole], [whole, start], [start, whole]):
            assert code_of(payload(pair, [128]), bytes(128)) == "buffer"
        same = decode([payload([whole, bytes_, whole], [128]), bytes(128)])["v"]
        assert same[0].data_ptr() == same[1].data_ptr() == same[2].data_ptr()
        assert decode([payload([half, start], [128]), bytes(128)])["v"][0].shape == (16,)

    def test_missing_and_surplus_frames(self) -> None:
        tensor = placed(FLOAT32, (4,), 0, 0)
        assert code_of(payload(tensor, [16])) == "frames"
        assert code_of(payload(tensor, []), bytes(16)) == "frames"
        assert code_of(payload(tensor, [16, 16]), bytes(16)) == "frames"
        assert code_of(payload(tensor, [16]), bytes(16), bytes(16)) == "frames"
        assert code_of(payload(tensor, [16, 16]), bytes(16), bytes(16)) == "frames"
        assert code_of(payload(tensor, [17]), bytes(16)) == "frames"
        assert code_of(payload(tensor, [80]), bytes(80)) == "frames"
        assert code_of(payload(1, [0]), b"") == "frames"
        assert code_of(payload(placed(FLOAT32, (4,), 1, 0), [16]), bytes(16)) == "frames"

    @pytest.mark.parametrize("sizes", [16, None, "16", [16.0], ["16"], [[16]], {"a": 16}, [True]])
    def test_sizes_of_another_form(self, sizes: object) -> None:
        tensor = placed(FLOAT32, (4,), 0, 0)
        header = sealed(msgpack.packb(["FrozenMapping", {"v": tensor}, sizes]))
        assert code_of(header, bytes(16)) == "type"


class TestLimits:
    def test_tensors(self) -> None:
        tensors = [inline(FLOAT32, (0,), b"")] * 3 + [inline(12, (0,), b"", ARRAY)]
        header = payload(tensors)
        assert code_of(header, max_tensors=3) == "limit"
        assert len(decode([header], Limits(max_tensors=4))["v"]) == 4

    def test_total_bytes_count_every_reference(self) -> None:
        header = payload([placed(FLOAT32, (32,), 0, 0)] * 10, [128])
        assert code_of(header, bytes(128), max_total_bytes=1279) == "limit"
        assert len(decode([header, bytes(128)], Limits(max_total_bytes=1280))["v"]) == 10

    @pytest.mark.parametrize(
        ("value", "elements"),
        [
            (None, 1), (1, 1), (-1, 1), (200, 1), (2**16, 1), (2**32, 1), (2**63, 1), (-100, 1),
            (-1000, 1), (-(2**20), 1), (-(2**40), 1), (1.5, 1), (True, 1), ("a", 1), ("a" * 40, 1),
            ("a" * 300, 1), ("a" * 70_000, 1), (b"a", 1), (b"a" * 300, 1), (b"a" * 70_000, 1),
            ([], 1), ([1, 2], 3), (list(range(20)), 21), (list(range(70_000)), 70_001),
            ({}, 1), ({"a": 1, "b": 2}, 5), ({str(i): 0 for i in range(20)}, 41),
            ({str(i): 0 for i in range(70_000)}, 140_001),
            (ext(INT32S, bytes(4)), 2), (ext(INT32S, bytes(8)), 3), (ext(INT32S, bytes(16)), 5),
            (ext(INT32S, bytes(400)), 101), (ext(INT64S, bytes(800)), 101),
            (ext(INT32S, bytes(400_000)), 100_001), (ext(INT32S, bytes(40_000)), 10_001),
            (ext(TOKENS, bytes(400)), 101), (ext(DIGESTS, bytes(320)), 81),
            (inline(FLOAT32, (5,), bytes(20)), 1), (ext(INT32S, b""), 1),
        ],
        ids=lambda value: str(value)[:20],
    )  # fmt: skip
    def test_elements_are_counted_exactly(self, value: object, elements: int) -> None:
        # Beside the value: the body, the type's name, its map, its key and the sizes. A string
        # makes the body longer than the limit, so that its elements are really counted.
        header = message("FrozenMapping", {"v": value, "pad": "x" * (elements + 8)})
        total = elements + 7
        assert code_of(header, max_elements=total - 1) == "limit"
        assert next(iter(decode([header], Limits(max_elements=total)))) == "v"

    @pytest.mark.parametrize("value", [-1, 1.5, True, None, "1"])
    def test_are_checked_themselves(self, value: object) -> None:
        with pytest.raises(ContractError) as caught:
            Limits(max_depth=value)  # type: ignore[arg-type]  # what is tested
        assert caught.value.problems[0].path == ("max_depth",)

    def test_defaults_let_large_requests_through(self) -> None:
        request = ProcessedRequest("r1", range(2_000_000))
        assert loads(dumps(request)) == request


class TestCost:
    def peak(self, *frames: object, **limits: int) -> int:
        decode(encode(FrozenMapping({"warm": torch.zeros(300)})))
        tracemalloc.start()
        try:
            code_of(*frames, **limits)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    @pytest.mark.parametrize(
        "unit", [b"\xdc\xff\xff", b"\xde\xff\xff", b"\xdd\xff\xff\xff\xff", b"\x9f"]
    )
    def test_arrays_that_announce_more_than_comes(self, unit: bytes) -> None:
        """msgpackr#200: 72 kB of announcements must not allocate what they announce."""
        body = b"\x93" + msgpack.packb("FrozenMapping") + unit * 24_000
        assert self.peak(sealed(body)) < 1 << 20

    @pytest.mark.parametrize("prefix", [b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9"])
    def test_one_huge_announcement(self, prefix: bytes) -> None:
        body = b"\x93" + msgpack.packb("FrozenMapping") + prefix + b"\xff\xff\xff\xff"
        assert self.peak(sealed(body + bytes(1000))) < 1 << 20

    def test_huge_shapes(self) -> None:
        header = payload([inline(2, (2**40,), b""), placed(2, (2**40,), 0, 0)], [64])
        assert self.peak(header, bytes(64), max_total_bytes=2**60) < 1 << 20

    def test_more_elements_than_allowed_are_never_built(self) -> None:
        body = msgpack.packb(["FrozenMapping", {"v": [[]] * 500_000}, []])
        assert self.peak(sealed(body), max_elements=100_000) < 3 * len(body)

    def test_the_table_of_one_buffer(self) -> None:
        for count in (2**64 - 1, 2**40, 2**20, 65_538):
            blob = b"omniblob" + struct.pack("<Q", count) + bytes(100)
            tracemalloc.start()
            with pytest.raises(DecodeError) as caught:
                loads(blob)
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
            tracemalloc.stop()
            assert caught.value.code in ("limit", "truncated")

    def test_time_is_linear(self) -> None:
        """32 times the bytes take some 32 times as long, and not a thousand times."""

        def seconds(count: int) -> float:
            tensors = [placed(2, (64,), 0, 64 * i) for i in range(count)]
            value = {"t": tensors, "m": {str(i): [i, {"a": i}] for i in range(count)}}
            header = message("FrozenMapping", value, [64 * count])
            frame = bytes(64 * count)
            decode([header, frame])
            start = time.process_time()
            decode([header, frame])
            return time.process_time() - start

        assert seconds(16_000) < 8 * 32 * seconds(500)


class TestDamage:
    """A damaged message gives an equal or valid object, or a `DecodeError`; nothing else."""

    def test_truncation_at_every_byte(self) -> None:
        frames = [bytes(frame) for frame in encode(sample())]
        for index, frame in enumerate(frames):
            for end in range(len(frame)):
                code_of(*frames[:index], frame[:end], *frames[index + 1 :])
        blob = dumps(sample())
        for end in range(len(blob)):
            with pytest.raises(DecodeError):
                loads(blob[:end])

    def test_truncation_of_the_body_with_a_matching_checksum(self) -> None:
        header, *frames = encode(sample())
        body = header[26:]
        for end in range(len(body)):
            assert code_of(sealed(body[:end]), *frames) == "truncated"

    def test_every_flipped_bit_of_a_header(self) -> None:
        header, *frames = encode(sample())
        for position in range(8 * len(header)):
            damaged = bytearray(header)
            damaged[position // 8] ^= 1 << position % 8
            self.check([damaged, *frames])

    def test_every_flipped_bit_of_a_body_with_a_matching_checksum(self) -> None:
        header, *frames = encode(sample())
        for position in range(8 * len(header) - 8 * 26):
            body = bytearray(header[26:])
            body[position // 8] ^= 1 << position % 8
            self.check([sealed(bytes(body)), *frames])

    def test_every_byte_replaced_in_a_body_with_a_matching_checksum(self) -> None:
        header, *frames = encode(sample())
        for position in range(26, len(header)):
            for byte in (0x00, 0x7F, 0x80, 0x90, 0xC1, 0xC6, 0xC7, 0xD4, 0xDC, 0xDF, 0xFF):
                body = bytearray(header[26:])
                body[position - 26] = byte
                self.check([sealed(bytes(body)), *frames])

    def test_every_flipped_bit_of_one_buffer(self) -> None:
        """Only the bytes of tensors, at the end, are outside every check."""
        blob = dumps(sample())
        pixels = blob[-600:]
        assert pixels == torch.arange(150.0).numpy().tobytes()
        for position in range(8 * len(blob)):
            damaged = bytearray(blob)
            damaged[position // 8] ^= 1 << position % 8
            arrived = self.outcome(loads, damaged)
            if position // 8 < len(blob) - len(pixels):
                assert arrived in (None, sample())
            else:
                assert type(arrived) is ProcessedRequest

    def check(self, frames: list[object]) -> None:
        arrived = self.outcome(decode, frames)
        if arrived is not None:
            # Valid: it can be sent on.
            assert decode(encode(arrived)) == arrived

    def outcome(self, read: Callable[[Any], object], damaged: object) -> object:
        """What is read, or None for a refusal; any other exception ends the test."""
        try:
            return read(damaged)
        except DecodeError:
            return None


class TestOneBuffer:
    def table(self, *sizes: int) -> bytes:
        return b"omniblob" + struct.pack(f"<{1 + len(sizes)}Q", len(sizes), *sizes)

    def refused(self, blob: bytes) -> str:
        with pytest.raises(DecodeError) as caught:
            loads(blob)
        return caught.value.code

    def test_layout(self) -> None:
        """Built from the specification alone."""
        header = message("ItemRef", ["image", 3])
        assert dumps(ItemRef("image", 3)) == self.table(len(header)).ljust(64, b"\0") + header

    def test_refusals(self) -> None:
        header = message("ItemRef", ["image", 3])
        good = self.table(len(header)).ljust(64, b"\0") + header
        assert loads(good) == ("image", 3)
        assert self.refused(b"OMNIBLOB" + good[8:]) == "magic"
        assert self.refused(header) == "magic"
        assert self.refused(b"") == "truncated"
        assert self.refused(good[:-1]) == "truncated"
        assert self.refused(good + b"\0") == "frames"
        assert self.refused(good[:40] + b"\x01" + good[41:]) == "syntax"
        assert self.refused(self.table()) == "frames"
        assert self.refused(self.table(2**64 - 1).ljust(64, b"\0") + header) == "truncated"
        assert self.refused(self.table(*[0] * 65_538)) == "limit"
        assert self.refused(self.table(len(header), 0).ljust(64, b"\0") + header) in (
            "frames",
            "truncated",
        )


def test_every_code_has_been_seen() -> None:
    """Each code of the closed set is pinned down above."""
    assert set(DECODE_CODES) == {
        "truncated", "magic", "version", "checksum", "syntax", "limit", "type", "range", "unknown",
        "missing", "duplicate", "frames", "buffer", "contract",
    }  # fmt: skip


def test_results_are_what_was_sent() -> None:
    assert decode(encode(sample())) == sample()
    assert type(decode(encode(RequestOutput("r")))) is RequestOutput
