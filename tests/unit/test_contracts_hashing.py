"""`content_hash`: what it tells apart, what it does not, and that every process agrees."""

import hashlib
import os
import struct
import subprocess
import sys
from collections.abc import Callable

import attrs
import numpy as np
import pytest
import torch

from omniwire.contracts import (
    AccumulationError,
    Append,
    ChunkKind,
    Concat,
    ContractTypeError,
    ContractValueError,
    FrozenMapping,
    HandoffError,
    ItemRef,
    MultimodalItemMetadata,
    MultimodalParams,
    OutputChunk,
    PeerDied,
    ProcessedRequest,
    Replace,
    RequestOutput,
    Stack,
    TensorHandle,
    TokenIds,
    content_hash,
)

IMAGES = torch.arange(8.0).view(1, 2, 2, 2)


def framed(tag: bytes, content: bytes) -> bytes:
    """A tag, the number of bytes as little-endian u64, the bytes."""
    return tag + struct.pack("<Q", len(content)) + content


def sha256(preimage: bytes) -> str:
    return hashlib.sha256(b"omniwire content hash 1\n" + preimage).hexdigest()


class TestPreimage:
    """The digests of the first version of the format, worked out by hand."""

    @pytest.mark.parametrize(
        ("value", "preimage"),
        [
            (None, b"N"),
            (True, b"T"),
            (False, b"F"),
            (-12, framed(b"I", b"-12")),
            (2**64 - 1, framed(b"I", b"18446744073709551615")),
            (1.5, b"D" + bytes.fromhex("000000000000f83f")),
            ("é", framed(b"S", b"\xc3\xa9")),
            (b"\xff", framed(b"B", b"\xff")),
            ((1, None), b"L" + struct.pack("<Q", 2) + framed(b"I", b"1") + b"N"),
            (
                {"b": None, "a": True},
                b"M" + struct.pack("<Q", 2) + framed(b"K", b"a") + b"T" + framed(b"K", b"b") + b"N",
            ),
            (
                torch.tensor([[1, 2]], dtype=torch.uint8),
                framed(b"X", b"uint8") + struct.pack("<QQQQ", 2, 1, 2, 2) + b"\1\2",
            ),
            (
                torch.zeros(3, 0, dtype=torch.bfloat16),
                framed(b"X", b"bfloat16") + struct.pack("<QQQQ", 2, 3, 0, 0),
            ),
            (
                np.array(258, dtype="<i2"),
                framed(b"A", b"int16") + struct.pack("<QQ", 0, 2) + b"\2\1",
            ),
            (TokenIds([1]), framed(b"C", b"TokenIds") + framed(b"P", b"\1\0\0\0")),
            (
                ItemRef("image", 0),
                framed(b"C", b"ItemRef")
                + b"L"
                + struct.pack("<Q", 2)
                + framed(b"S", b"image")
                + framed(b"I", b"0"),
            ),
            (
                Concat(-1),
                framed(b"C", b"Concat") + framed(b"K", b"dim") + framed(b"I", b"-1"),
            ),
            (Replace(), framed(b"C", b"Replace")),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_the_digest_is_the_sha256_of_it(self, value: object, preimage: bytes) -> None:
        assert content_hash(value) == sha256(preimage)

    def test_enums_and_errors_as_contracts_hold_them(self) -> None:
        chunk = content_hash(OutputChunk("r", 0, "text"))
        fields = [
            (b"request_id", framed(b"S", b"r")),
            (b"step", framed(b"I", b"0")),
            (b"output_type", framed(b"S", b"text")),
            (b"new_token_ids", framed(b"C", b"TokenIds") + framed(b"P", b"")),
            (b"output", b"N"),
            (b"kind", framed(b"E", b"ChunkKind.DELTA")),
            (b"finish_reason", b"N"),
        ]
        preimage = b"".join(framed(b"K", name) + value for name, value in fields)
        assert chunk == sha256(framed(b"C", b"OutputChunk") + preimage)


class TestEqualContent:
    def test_64_hex_digits(self) -> None:
        digest = content_hash({"a": torch.ones(2)})
        assert len(digest) == 64
        assert set(digest) <= set("0123456789abcdef")

    def test_a_clone_and_a_temporary_hash_alike(self) -> None:
        """sglang#5083: never the address of a tensor."""
        tensor = torch.arange(5.0)
        assert content_hash(tensor) == content_hash(tensor.clone())
        assert len({content_hash(torch.full((4,), float(i))) for i in range(50)}) == 50
        assert len({content_hash(torch.full((4,), 7.0)) for _ in range(50)}) == 1

    @pytest.mark.parametrize(
        ("strided", "plain"),
        [
            (torch.arange(6).view(2, 3).t(), torch.tensor([[0, 3], [1, 4], [2, 5]])),
            (torch.arange(10)[::3], torch.tensor([0, 3, 6, 9])),
            (torch.ones(1).expand(3, 3), torch.ones(3, 3)),
            (IMAGES.to(memory_format=torch.channels_last), IMAGES),
            (torch.tensor([1 + 2j]).conj(), torch.tensor([1 - 2j])),
            (torch.tensor([1 + 2j]).conj().imag, torch.tensor([-2.0])),
            (torch.arange(100.0)[7:9], torch.tensor([7.0, 8.0])),
            (torch.ones(2, requires_grad=True), torch.ones(2)),
            (torch.as_strided(torch.arange(12.0), (1,), (7,), 5), torch.tensor([5.0])),
            (np.arange(6).reshape(2, 3).T, np.array([[0, 3], [1, 4], [2, 5]])),
            (np.arange(4)[::-1], np.array([3, 2, 1, 0])),
            (np.asfortranarray(np.eye(3)), np.eye(3)),
        ],
    )
    def test_memory_layout_does_not_count(self, strided, plain) -> None:
        assert content_hash(strided) == content_hash(plain)

    def test_a_list_counts_as_the_tuple_it_becomes(self) -> None:
        assert content_hash([1, [2, {"a": [3]}]]) == content_hash((1, (2, {"a": (3,)})))
        assert content_hash(MultimodalParams(multimodal_data={"a": [1]})) == content_hash(
            MultimodalParams(multimodal_data={"a": (1,)})
        )

    def test_key_order_does_not_count(self) -> None:
        one = {"a": 1, "b": {"c": 2, "d": 3}}
        other = {"b": {"d": 3, "c": 2}, "a": 1}
        assert content_hash(one) == content_hash(other) == content_hash(FrozenMapping(other))

    def test_encoder_state_does_not_count(self) -> None:
        params = MultimodalParams(multimodal_data={"a": 1})
        assert content_hash(params) == content_hash(params.with_encoder_state(object()))

    def test_a_handle_counts_as_its_tensor(self) -> None:
        tensor = torch.ones(2)
        handle = TensorHandle("local", torch.float32, (2,), tensor)
        assert content_hash(handle) == content_hash(tensor)
        assert content_hash({"a": [handle]}) == content_hash({"a": [tensor]})
        with pytest.raises(HandoffError):
            content_hash(TensorHandle("arena", torch.float32, (2,), b"x"))

    def test_one_built_anew_hashes_alike(self, build: Callable[[], object]) -> None:
        assert content_hash(build()) == content_hash(build())

    def test_equal_views_hash_alike(self) -> None:
        record = MultimodalItemMetadata([("image", 0), ("image", 1)], [4, 6])
        assert content_hash(record.select([1])) == content_hash(
            MultimodalItemMetadata([("image", 0)], [6])
        )


DIFFERENT = {
    "dynamo#8340: the same bytes as 30x150 and 150x30": [
        torch.zeros(30, 150, 3, dtype=torch.uint8),
        torch.zeros(150, 30, 3, dtype=torch.uint8),
        torch.zeros(30 * 150 * 3, dtype=torch.uint8),
        np.zeros((30, 150, 3), dtype=np.uint8),
    ],
    "FastDeploy#7196: another shape, or another dtype of the same bytes": [
        torch.arange(24.0).view(6, 4),
        torch.arange(24.0).view(4, 6),
        torch.arange(24.0),
        torch.arange(24.0).view(24, 1),
        torch.arange(24.0).view(torch.uint8),
        torch.arange(24.0).view(torch.int32),
        torch.arange(24.0).view(torch.uint32),
        torch.arange(24.0).view(torch.bfloat16),
        torch.arange(24.0).numpy(),
    ],
    "LMCache#5055: a red and a blue image of one name": [
        torch.tensor([[[255, 0, 0]]], dtype=torch.uint8),
        torch.tensor([[[0, 0, 255]]], dtype=torch.uint8),
    ],
    "shapes without elements": [
        torch.zeros(0),
        torch.zeros(0, 4),
        torch.zeros(4, 0),
        torch.zeros(0, 4, dtype=torch.int64),
        np.zeros((0, 4), np.float32),
    ],
    "one element": [torch.tensor(1.0), torch.tensor([1.0]), np.float32([1.0]), 1.0, (1.0,)],
    "every bit": [
        torch.tensor([0.0]),
        torch.tensor([-0.0]),
        torch.tensor([float("nan")]),
        torch.tensor([1e-45]),
    ],
    "scalars of another type": [1, True, 1.0, "1", b"1", (1,), {"1": 1}],
    "nothing": [None, False, 0, 0.0, -0.0, "", b"", (), {}, TokenIds(), Replace(), Append()],
    "where a string ends": [
        ("ab", "c"),
        ("a", "bc"),
        ("abc",),
        ("abc", ""),
        ("", "abc"),
        "abc",
    ],
    "where a sequence ends": [
        (("a",), "b"),
        (("a", "b"),),
        ("a", ("b",)),
        ("a", "b"),
        (("a",), ("b",)),
        ((), "a", "b"),
    ],
    "where a mapping ends": [
        {"a": {"b": 1}},
        {"a": {}, "b": 1},
        {"a": {"b": 1}, "b": 1},
        ({"a": {}}, {"b": 1}),
        {"a": 1, "b": 1},
    ],
    "key and value": [{"a": "b"}, {"b": "a"}, ("a", "b"), {"ab": ""}, {"a": "b", "": ""}],
    "token ids are no tuple": [TokenIds([1, 2]), (1, 2), TokenIds([1]), TokenIds([2, 1])],
    "a ref is no tuple": [ItemRef("image", 0), ("image", 0), ItemRef("image", 1)],
    "types with the same fields": [Concat(0), Stack(0), Concat(1), {"dim": 0}],
    "fields of a record": [
        MultimodalItemMetadata([("image", 0)]),
        MultimodalItemMetadata([("image", 0)], [4]),
        MultimodalItemMetadata([("image", 0)], None, [4]),
        MultimodalItemMetadata([("image", 0)], None, None, {}),
        MultimodalItemMetadata([("image", 0)], None, None, {"image": {}}),
    ],
    "requests": [
        ProcessedRequest("r", [1]),
        ProcessedRequest("s", [1]),
        ProcessedRequest("r", [1, 1]),
        ProcessedRequest("r", [1], MultimodalParams()),
    ],
    "chunks": [OutputChunk("r", 0, "text", kind=kind) for kind in ChunkKind],
    "errors": [
        RequestOutput("r"),
        RequestOutput("r", errors={"": AccumulationError("x", "r")}),
        RequestOutput("r", errors={"": AccumulationError("x", "s")}),
        RequestOutput("r", errors={"a": AccumulationError("x", "r")}),
        RequestOutput("r", errors={"": HandoffError("x")}),
        RequestOutput("r", errors={"": PeerDied("x")}),
    ],
}


@pytest.mark.parametrize("values", DIFFERENT.values(), ids=DIFFERENT.keys())
def test_what_is_different_hashes_differently(values: list[object]) -> None:
    assert len({content_hash(value) for value in values}) == len(values)


def test_every_field_of_a_contract_counts(build: Callable[[], object]) -> None:
    contract = build()
    if not attrs.has(type(contract)) or type(contract) in (TensorHandle, TokenIds):
        return
    fields = {name: getattr(contract, name) for name in contract._field_names()}
    for name in fields:
        other = type(contract)._trusted(**{**fields, name: "something else"})
        assert (content_hash(contract) == content_hash(other)) is (name == "encoder_state")


def test_a_contract_error_with_all_it_says_is_content() -> None:
    def failed(*fields: object) -> RequestOutput:
        with pytest.raises((ContractTypeError, ContractValueError)) as caught:
            ProcessedRequest(*fields)
        return RequestOutput("r", errors={"": caught.value})

    outputs = [failed("", [1]), failed("", [-1]), failed("", [1, -1]), failed("", ["x"])]
    assert len({content_hash(output) for output in outputs}) == 4
    assert content_hash(failed("", [1])) == content_hash(outputs[0])
    odd = RequestOutput("r", errors={"": AccumulationError("a\udcff", "r")})
    assert len(content_hash(odd)) == 64


SCRIPT = """
import numpy as np, torch
from omniwire.contracts import *
record = MultimodalItemMetadata(
    [("image", 0), ("audio", 0)], [4, 6], None, {"image": {"a": MultimodalItemPartition([2])}}
)
data = {"image": {"a": torch.arange(6.0).view(2, 3).t(), "b": np.arange(3)}, "c": {"x", "y"} and 1}
data["item_metadata"] = record
params = MultimodalParams(multimodal_data=data)
spec = OutputSpec({name: Concat(0) for name in {"a", "b", "c", "d"}})
print(content_hash(params), content_hash(spec), content_hash({n: n for n in {"a", "b", "c"}}))
"""


def test_the_same_in_a_fresh_process_with_another_hash_seed() -> None:
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    namespace: dict[str, object] = {"print": lambda *digests: namespace.update(here=digests)}
    exec(SCRIPT, namespace)
    assert result.stdout.split() == list(namespace["here"])


def test_every_illegal_part_is_reported(refusal) -> None:
    assert refusal(content_hash, [1j, {"a": "\ud800"}, {1: 2}]) == (
        ContractTypeError,
        [((0,), "type"), ((1, "a"), "format"), ((2,), "type")],
    )
