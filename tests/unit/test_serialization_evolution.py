"""Older and newer peers: what a reader ignores, what it fills in and what it refuses."""

import struct
import zlib

import msgpack
import pytest

from omniwire.contracts import (
    Concat,
    DecodeError,
    EncoderCapability,
    FrozenMapping,
    OutputChunk,
    UnsupportedVersionError,
)
from omniwire.serialization import WIRE_VERSION, decode

NEWER = WIRE_VERSION + 1


def message(parts: list[object], version: int, oldest: int) -> list[bytes]:
    """A message as another version writes it, built from the specification alone."""
    body = msgpack.packb(parts)
    head = b"\x95\xa8omniwire" + struct.pack(">BHBH", 0xCD, version, 0xCD, oldest)
    return [head + struct.pack(">BIBI", 0xCE, zlib.crc32(body), 0xC6, len(body)) + body]


def code_of(frames: list[bytes]) -> str:
    with pytest.raises(DecodeError) as caught:
        decode(frames)
    return caught.value.code


class TestANewerWriter:
    """dynamo#4950, vllm-omni#4824: the writer declares whether an older reader may go on."""

    def test_that_needs_a_newer_reader(self) -> None:
        with pytest.raises(UnsupportedVersionError) as caught:
            decode(message(["Concat", {"dim": 1}, []], NEWER, NEWER))
        assert (caught.value.found, caught.value.supported) == (NEWER, WIRE_VERSION)

    @pytest.mark.parametrize("version", [NEWER, 40, 2**16 - 1])
    def test_whose_new_fields_may_be_ignored(self, version: int) -> None:
        fields = {"dim": 1, "later": {"a": [1, msgpack.ExtType(77, b"new")]}}
        assert decode(message(["Concat", fields, []], version, 1)) == Concat(1)

    def test_whose_new_parts_may_be_ignored(self) -> None:
        assert decode(message(["Concat", {"dim": 1}, [], "more"], NEWER, 1)) == Concat(1)

    def test_whose_new_fields_stand_inside_a_payload(self) -> None:
        record = [msgpack.ExtType(1, b"Concat"), {"dim": 1, "later": 2}]
        parts = ["FrozenMapping", {"a": record}, []]
        assert decode(message(parts, NEWER, 1)) == FrozenMapping({"a": Concat(1)})

    def test_but_nothing_unknown_where_the_reader_looks(self) -> None:
        for value in (msgpack.ExtType(77, b"new"), [msgpack.ExtType(1, b"Later"), {}]):
            assert code_of(message(["FrozenMapping", {"a": value}, []], NEWER, 1)) == "unknown"
        assert code_of(message(["Later", {}, []], NEWER, 1)) == "unknown"

    def test_and_still_no_field_missing(self) -> None:
        assert code_of(message(["Concat", {"later": 2}, []], NEWER, 1)) == "missing"


class TestThisVersion:
    def test_unknown_fields_are_refused(self) -> None:
        assert (
            code_of(message(["Concat", {"dim": 1, "later": 2}, []], WIRE_VERSION, 1)) == "unknown"
        )


class TestAnOlderWriter:
    def test_that_does_not_know_fields_with_a_default(self) -> None:
        assert decode(message(["EncoderCapability", {}, []], 1, 1)) == EncoderCapability()
        chunk = {"request_id": "r", "step": 3, "output_type": "text"}
        assert decode(message(["OutputChunk", chunk, []], 1, 1)) == OutputChunk("r", 3, "text")
