"""`==` and `hash` of contracts: by structure, bit by bit, and always a bool."""

import struct
from collections.abc import Callable
from unittest import mock

import attrs
import numpy as np
import pytest
import torch

from omniwire.contracts import (
    AccumulationError,
    Append,
    Concat,
    FrozenMapping,
    ItemRef,
    MultimodalItemMetadata,
    MultimodalItemPartition,
    MultimodalParams,
    OutputSpec,
    Replace,
    RequestOutput,
    Stack,
    TensorHandle,
    TokenIds,
)
from omniwire.contracts.base import Contract
from omniwire.contracts.equality import structurally_equal
from omniwire.contracts.tensors import tensors_equal

PURE_METADATA = {
    "ItemRef",
    "MultimodalItemPartition",
    "MultimodalItemMetadata",
    "MultimodalInput",
    "MultimodalRuntimeData",
    "TokenIds",
    "Concat",
    "Stack",
    "Replace",
    "Append",
    "OutputSpec",
    "EncoderCapability",
    "EncoderBudget",
}
DTYPES = [
    torch.bool,
    torch.uint8,
    torch.uint16,
    torch.int32,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.complex32,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
    torch.float4_e2m1fn_x2,
]
QUIET_NAN = struct.unpack("<d", bytes.fromhex("010000000000f87f"))[0]


def held(value: object) -> MultimodalParams:
    return MultimodalParams(multimodal_data={"a": {"b": [value]}})


def equal(left: object, right: object) -> bool:
    """Whether payloads with these values are equal, asked in both directions."""
    answer = held(left) == held(right)
    assert type(answer) is bool
    assert (held(right) == held(left)) is answer
    assert (held(left) != held(right)) is not answer
    assert (FrozenMapping({"a": left}) == FrozenMapping({"a": right})) is answer
    return answer


class TestTensors:
    @pytest.mark.parametrize(
        ("left", "right", "expected"),
        [
            (torch.ones(2, 3), torch.ones(2, 3), True),
            (torch.ones(2, 3), torch.zeros(2, 3), False),
            (torch.ones(2, 3), torch.ones(3, 2), False),
            (torch.ones(2, 3), torch.ones(6), False),
            (torch.ones(()), torch.ones(1), False),
            (torch.ones(2), torch.ones(2, dtype=torch.float64), False),
            (torch.ones(2, dtype=torch.int32), torch.ones(2, dtype=torch.uint32), False),
            (torch.zeros(2, dtype=torch.bool), torch.zeros(2, dtype=torch.uint8), False),
            (torch.zeros(0, 4), torch.zeros(0, 4), True),
            (torch.zeros(0, 4), torch.zeros(4, 0), False),
            (torch.zeros(0), torch.zeros(0, dtype=torch.int64), False),
            (torch.tensor([float("nan")]), torch.tensor([float("nan")]), True),
            (torch.tensor([0.0]), torch.tensor([-0.0]), False),
            (
                torch.tensor([0.0], dtype=torch.bfloat16),
                torch.tensor([-0.0], dtype=torch.bfloat16),
                False,
            ),
            (torch.tensor([complex(0, -0.0)]), torch.tensor([complex(0, 0.0)]), False),
            (torch.arange(6).view(2, 3).t(), torch.tensor([[0, 3], [1, 4], [2, 5]]), True),
            (torch.ones(1).expand(4), torch.ones(4), True),
            (torch.tensor([1 + 2j]).conj(), torch.tensor([1 - 2j]), True),
            (torch.tensor([1 + 2j]).conj().imag, torch.tensor([-2.0]), True),
            (torch.ones(2, requires_grad=True), torch.ones(2), True),
            (
                torch.ones(1, 2, 2, 2).to(memory_format=torch.channels_last),
                torch.ones(1, 2, 2, 2),
                True,
            ),
            (torch.tensor([1, 2])[:1], torch.tensor([1]), True),
            (torch.ones(2), np.ones(2, np.float32), False),
        ],
    )
    def test_by_dtype_shape_and_bits(self, left: object, right: object, expected: bool) -> None:
        assert equal(left, right) is expected

    def test_the_same_nan_with_other_bits_differs(self) -> None:
        bits = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32)
        one, other = bits[:1].view(torch.float32), bits[1:].view(torch.float32)
        assert one.isnan().all()
        assert other.isnan().all()
        assert not equal(one, other)
        assert equal(one, one.clone())

    @pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e8m0fnu])
    def test_types_that_torch_itself_does_not_compare(self, dtype: torch.dtype) -> None:
        bits = torch.tensor([1, 2, 255], dtype=torch.uint8)
        assert equal(bits.view(dtype), bits.clone().view(dtype))
        assert not equal(bits.view(dtype), bits.flip(0).view(dtype))

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_strided_tensors_of_every_type(self, dtype: torch.dtype) -> None:
        """Some types have no kernel that copies them; their bits are compared all the same."""
        size = dtype.itemsize
        raw = torch.arange(6 * size, dtype=torch.uint8).clamp(max=1 if dtype is torch.bool else 255)
        strided = raw.view(dtype).view(2, 3).t()
        moved = raw.view(2, 3, size).transpose(0, 1).reshape(-1)
        assert equal(strided, moved.view(dtype).view(3, 2))
        assert not equal(strided, raw.flip(0).view(dtype).view(3, 2))

    def test_a_single_element_with_a_stray_stride(self) -> None:
        """It counts as contiguous, and yet refuses a view as bytes."""
        stray = torch.arange(12.0).view(3, 4)[:1, ::3][:, :1].squeeze(0)
        strange = torch.as_strided(torch.arange(12.0), (1,), (7,), 5)
        assert equal(stray, torch.tensor([0.0]))
        assert equal(strange, torch.tensor([5.0]))

    def test_devices_by_type(self) -> None:
        tensor = torch.zeros(2, device="cpu")
        assert tensors_equal(tensor, tensor)
        assert tensors_equal(tensor, torch.zeros(2, device="cpu:0"))
        assert not tensors_equal(torch.zeros(0), torch.zeros(0, device="meta"))
        assert not tensors_equal(torch.zeros(2), torch.zeros(2, device="meta"))


class TestArrays:
    @pytest.mark.parametrize(
        ("left", "right", "expected"),
        [
            (np.ones(2), np.ones(2), True),
            (np.ones(2), np.zeros(2), False),
            (np.ones(2), np.ones((2, 1)), False),
            (np.ones(()), np.ones(1), False),
            (np.ones(2), np.ones(2, np.float32), False),
            (np.zeros(2, np.int64), np.zeros(2, np.uint64), False),
            (np.array([np.nan]), np.array([np.nan]), True),
            (np.array([0.0]), np.array([-0.0]), False),
            (np.arange(6).reshape(2, 3).T, np.array([[0, 3], [1, 4], [2, 5]]), True),
            (np.arange(4)[::-1], np.array([3, 2, 1, 0]), True),
            (np.zeros((0, 4)), np.zeros((4, 0)), False),
        ],
    )
    def test_by_dtype_shape_and_bits(self, left: object, right: object, expected: bool) -> None:
        assert equal(left, right) is expected


class TestPlainValues:
    @pytest.mark.parametrize(
        ("left", "right", "expected"),
        [
            (1, 1, True),
            (1, True, False),
            (0, False, False),
            (1, 1.0, False),
            (0.0, -0.0, False),
            (float("nan"), float("nan"), True),
            (float("nan"), QUIET_NAN, False),
            (1.5, 1.5, True),
            ("a", "a", True),
            ("a", b"a", False),
            (None, None, True),
            (None, False, False),
            ([1, 2], (1, 2), True),
            ((1, 2), (1, 2, 3), False),
            ((1, 2), (2, 1), False),
            ((1,), 1, False),
            ((), {}, False),
            ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
            ({"a": 1}, {"a": 2}, False),
            ({"a": 1}, {"b": 1}, False),
            ({"a": None}, {}, False),
            ({"a": 1}, {"a": True}, False),
            ({"a": [torch.ones(2)]}, {"a": [torch.ones(2)]}, True),
            (TokenIds([1]), (1,), False),
            (ItemRef("image", 0), ("image", 0), False),
            (ItemRef("image", 0), ItemRef("image", 0), True),
            (Concat(0), Stack(0), False),
        ],
    )
    def test_by_type_and_value(self, left: object, right: object, expected: bool) -> None:
        assert equal(left, right) is expected


class TestFrozenMapping:
    def test_symmetric_with_plain_dicts(self) -> None:
        frozen = FrozenMapping({"a": torch.ones(2), "b": {"c": (1, np.zeros(3))}})
        same = {"b": {"c": (1, np.zeros(3))}, "a": torch.ones(2)}
        for other, expected in (
            (same, True),
            ({**same, "a": 1}, False),
            ({"a": 1}, False),
            ({}, False),
        ):
            assert (frozen == other) is expected
            assert (other == frozen) is expected
            assert (frozen != other) is not expected
            assert (other != frozen) is not expected

    def test_a_dict_with_other_keys_is_just_different(self) -> None:
        assert (FrozenMapping({"a": 1}) == {1: "a"}) is False
        assert (FrozenMapping({"a": 1}) == {None: 1}) is False

    def test_hashes_by_content_without_regard_to_order(self) -> None:
        one = FrozenMapping({"a": 1, "b": {"c": [float("nan")]}})
        other = FrozenMapping({"b": {"c": (float("nan"),)}, "a": 1})
        assert one == other
        assert hash(one) == hash(other)
        assert {one: "found"}[other] == "found"
        assert len({FrozenMapping({"a": value}) for value in (1, True, 1.0, 0.0, -0.0, "1")}) == 6

    @pytest.mark.parametrize(
        "value", [torch.ones(1), np.ones(1), [torch.ones(1)], {"b": np.ones(1)}, MultimodalParams()]
    )
    def test_with_a_tensor_inside_it_is_unhashable(self, value: object) -> None:
        with pytest.raises(TypeError):
            hash(FrozenMapping({"a": {"b": value}}))


class TestEveryType:
    def test_one_built_anew_is_equal(self, build: Callable[[], object]) -> None:
        one, other = build(), build()
        assert one is not other or type(one).__name__ in ("Replace", "Append")
        assert (one == one) is True  # noqa: PLR0124  # reflexive
        assert (one == other) is True
        assert (other == one) is True
        assert (one != other) is False

    def test_every_field_counts(self, build: Callable[[], object]) -> None:
        contract = build()
        if not attrs.has(type(contract)):
            return
        fields = {name: getattr(contract, name) for name in contract._field_names()}
        for name in fields:
            other = type(contract)._trusted(**{**fields, name: "something else"})
            assert (contract == other) is (name == "encoder_state")
            assert (other == contract) is (name == "encoder_state")

    @pytest.mark.parametrize(
        "foreign",
        [
            None,
            0,
            "text",
            (),
            [],
            {},
            {"a": 1},
            object(),
            NotImplemented,
            np.arange(3),
            np.array(["image", "x"]),
            np.ones((3, 3)),
            np.float64(1),
            torch.arange(3),
            torch.ones(1),
            torch.ones(()),
            mock.MagicMock(),
            MultimodalItemPartition((9,)),
            FrozenMapping({}),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_against_a_foreign_value_it_is_a_bool(
        self, build: Callable[[], object], foreign: object
    ) -> None:
        contract = build()
        assert (contract == foreign) is False
        assert (foreign == contract) is False
        assert (contract != foreign) is True
        assert (foreign != contract) is True

    def test_types_with_the_same_fields_differ(self) -> None:
        assert Concat(0) != Stack(0)
        assert Replace() != Append()
        assert len({Concat(0), Stack(0), Replace(), Append(), Concat(0), Append()}) == 4

    def test_pure_metadata_hashes_and_the_rest_does_not(self, build: Callable[[], object]) -> None:
        """msgspec#139"""
        contract = build()
        if type(contract).__name__ in PURE_METADATA:
            assert hash(contract) == hash(build())
            assert {contract: "found"}[build()] == "found"
        else:
            with pytest.raises(TypeError):
                hash(contract)
        if isinstance(contract, Contract) and type(contract).__name__ not in PURE_METADATA:
            assert type(contract).__hash__ is None

    def test_lists_tuples_and_dict_order_make_no_difference(self) -> None:
        one = MultimodalItemMetadata(
            [["image", 0], ("audio", 0)], [1, 2], (3, 4), {"image": {}, "audio": {}}
        )
        other = MultimodalItemMetadata(
            (("image", 0), ["audio", 0]), (1, 2), [3, 4], {"audio": {}, "image": {}}
        )
        assert one == other
        assert hash(one) == hash(other)
        assert hash(OutputSpec({"a": Concat(0), "b": Append()})) == hash(
            OutputSpec({"b": Append(), "a": Concat(0)})
        )

    def test_different_metadata_hashes_differently(self) -> None:
        parts = [
            MultimodalItemPartition(lengths, axis) for lengths in (None, (1,)) for axis in (0, 1)
        ]
        assert len(set(parts)) == len({hash(part) for part in parts}) == 4


def test_encoder_state_does_not_count() -> None:
    assert MultimodalParams(encoder_state=object()) == MultimodalParams(encoder_state=object())
    assert MultimodalParams(encoder_state=object()) == MultimodalParams()


def test_handles_compare_by_what_they_declare_and_hold() -> None:
    def handle(*fields: object) -> TensorHandle:
        return TensorHandle(*fields)

    tensor = torch.ones(2)
    local = handle("local", torch.float32, (2,), tensor)
    assert local == handle("local", torch.float32, (2,), tensor.clone())
    assert local != handle("local", torch.float32, (2,), torch.zeros(2))
    assert local != tensor
    remote = handle("arena", torch.float32, (2,), b"x")
    assert remote == handle("arena", torch.float32, [2], b"x")
    for other in (
        handle("cuda_ipc", torch.float32, (2,), b"x"),
        handle("arena", torch.float64, (2,), b"x"),
        handle("arena", torch.float32, (3,), b"x"),
        handle("arena", torch.float32, (2,), b"y"),
    ):
        assert remote != other


def test_errors_compare_by_type_and_arguments() -> None:
    def output(*arguments: str) -> RequestOutput:
        return RequestOutput("r1", errors={"audio": AccumulationError(*arguments)})

    assert output("x", "r1", "audio") == output("x", "r1", "audio")
    assert output("x", "r1", "audio") != output("x", "r1", "audio", "key")
    assert output("x", "r1") != output("y", "r1")


def test_mappings_of_any_kind_compare_by_content() -> None:
    assert structurally_equal({"a": 1.0}, FrozenMapping({"a": 1.0}))
    assert not structurally_equal({"a": 1.0}, FrozenMapping({"a": 1}))
