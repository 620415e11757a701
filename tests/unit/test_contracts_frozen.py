"""`FrozenMapping`, what a payload may hold, and that no contract can be changed."""

import collections
import contextlib
import enum
import functools
import time
import types
from collections.abc import Callable
from typing import NamedTuple

import attrs
import numpy as np
import pytest
import torch

from omniwire import contracts
from omniwire.contracts import (
    Concat,
    ContractTypeError,
    ContractValueError,
    FrozenMapping,
    ItemRef,
    MultimodalItemMetadata,
    MultimodalItemPartition,
    MultimodalParams,
    OmniOutput,
    Replace,
    TensorHandle,
    TokenIds,
    content_hash,
)
from omniwire.contracts.base import Contract
from omniwire.contracts.frozen import MAX_PAYLOAD_DEPTH
from omniwire.serialization import Limits, dumps, loads

HANDLE = TensorHandle("arena", torch.float32, (2, 3), b"slot")


class TestLegalLeaves:
    @pytest.mark.parametrize(
        "leaf",
        [
            None,
            True,
            False,
            0,
            -(2**63),
            2**64 - 1,
            0.5,
            float("nan"),
            float("inf"),
            "",
            "text",
            "é漢😀",
            "\0",
            b"",
            b"\xff",
            TokenIds([1]),
            ItemRef("image", 0),
            HANDLE,
            Concat(0),
            MultimodalParams(),
            OmniOutput(),
            (),
        ],
        ids=repr,
    )
    def test_it_is_kept_as_it_is(self, leaf: object) -> None:
        kept = FrozenMapping({"a": {"b": [leaf]}})["a"]["b"][0]
        assert kept is leaf

    @pytest.mark.parametrize("code", "?bBhHiIlLqQefdFD")
    def test_numpy_arrays_of_bools_ints_floats_and_complex_numbers(self, code: str) -> None:
        array = np.zeros((2, 3), dtype=code)
        assert FrozenMapping({"a": array})["a"] is array
        assert FrozenMapping({"a": array[::2, ::-1]})["a"].shape == (1, 3)
        assert FrozenMapping({"a": np.zeros((), code), "b": np.zeros((0, 4), code)})

    @pytest.mark.parametrize(
        "dtype",
        [
            torch.bool,
            torch.uint8,
            torch.int8,
            torch.uint16,
            torch.int16,
            torch.uint32,
            torch.int32,
            torch.uint64,
            torch.int64,
            torch.float16,
            torch.bfloat16,
            torch.float32,
            torch.float64,
            torch.complex32,
            torch.complex64,
            torch.complex128,
            torch.float8_e4m3fn,
            torch.float8_e4m3fnuz,
            torch.float8_e5m2,
            torch.float8_e5m2fnuz,
            torch.float8_e8m0fnu,
            torch.float4_e2m1fn_x2,
        ],
    )
    @pytest.mark.filterwarnings("ignore:ComplexHalf")
    def test_tensors_of_any_strided_data_type(self, dtype: torch.dtype) -> None:
        tensor = torch.zeros(2, 48, dtype=torch.uint8).view(dtype)
        kept = FrozenMapping({"a": tensor})
        assert kept["a"] is tensor
        assert kept == FrozenMapping({"a": tensor.clone()})
        assert len(content_hash(tensor)) == 64

    def test_tensors_of_any_strides(self) -> None:
        base = torch.zeros(4, 3, 2)
        for tensor in (
            base.transpose(0, 2),
            base[::2],
            base[:, 0],
            torch.zeros(1).expand(5, 5),
            torch.zeros(()),
            torch.zeros(0, 7),
            torch.zeros(1, 2, 3, 4).to(memory_format=torch.channels_last),
            torch.zeros(2, dtype=torch.complex64).conj(),
            torch.ones(2, requires_grad=True) * 2,
        ):
            assert FrozenMapping({"a": tensor})["a"] is tensor


class Text(str):
    __slots__ = ()


class Number(enum.IntEnum):
    ONE = 1


class Pair(NamedTuple):
    a: int
    b: int


class Values(list):
    pass


class TestIllegalLeaves:
    @pytest.mark.parametrize(
        ("leaf", "kind", "code"),
        [
            (object(), ContractTypeError, "type"),
            (1j, ContractTypeError, "type"),
            ({1, 2}, ContractTypeError, "type"),
            (frozenset(), ContractTypeError, "type"),
            (bytearray(2), ContractTypeError, "type"),
            (memoryview(b"x"), ContractTypeError, "type"),
            (range(3), ContractTypeError, "type"),
            (iter([1]), ContractTypeError, "type"),
            (len, ContractTypeError, "type"),
            (int, ContractTypeError, "type"),
            (Text("x"), ContractTypeError, "type"),
            (Number.ONE, ContractTypeError, "type"),
            (Pair(1, 2), ContractTypeError, "type"),
            (Values([1]), ContractTypeError, "type"),
            (torch.Size([1]), ContractTypeError, "type"),
            (np.int64(1), ContractTypeError, "type"),
            (np.float64(1), ContractTypeError, "type"),
            (np.bool_(True), ContractTypeError, "type"),
            (torch.float32, ContractTypeError, "type"),
            (torch.device("cpu"), ContractTypeError, "type"),
            (ValueError("x"), ContractTypeError, "type"),
            ("a\ud800", ContractValueError, "format"),
            ("\udfff" * 100, ContractValueError, "format"),
            (2**64, ContractValueError, "range"),
            (-(2**63) - 1, ContractValueError, "range"),
            (10**5000, ContractValueError, "range"),
            (np.array([None]), ContractValueError, "dtype"),
            (np.zeros(1, dtype=[("a", "i4")]), ContractValueError, "dtype"),
            (np.zeros(1, dtype=">i4"), ContractValueError, "dtype"),
            (np.zeros(1, dtype=">f8"), ContractValueError, "dtype"),
            (np.array(["x"]), ContractValueError, "dtype"),
            (np.array([b"x"]), ContractValueError, "dtype"),
            (np.zeros(1, dtype="M8[s]"), ContractValueError, "dtype"),
            (np.zeros(1, dtype="m8[s]"), ContractValueError, "dtype"),
            (np.zeros(1, dtype=np.longdouble), ContractValueError, "dtype"),
            (np.zeros(1, dtype=np.clongdouble), ContractValueError, "dtype"),
            (np.ma.masked_array([1]), ContractTypeError, "type"),
            (np.rec.array([(1,)], dtype=[("a", "i4")]), ContractTypeError, "type"),
            (torch.zeros(2).to_sparse(), ContractValueError, "layout"),
            (torch.zeros(2).to_mkldnn(), ContractValueError, "layout"),
            (torch.zeros(2, device="meta"), ContractValueError, "layout"),
            (torch.nn.Parameter(torch.zeros(2)), ContractTypeError, "type"),
        ],
        ids=lambda value: type(value).__name__,
    )
    @pytest.mark.filterwarnings("ignore:Sparse")
    def test_it_is_refused_with_its_path(self, refusal, leaf, kind: type, code: str) -> None:
        """vllm#30572, dynamo#9517"""
        assert refusal(FrozenMapping, {"a": {"b": [0, leaf]}}) == (kind, [(("a", "b", 1), code)])
        assert refusal(MultimodalParams, multimodal_data={"a": (leaf,)}) == (
            kind,
            [(("multimodal_data", "a", 0), code)],
        )
        assert refusal(content_hash, leaf) == (kind, [((), code)])

    @pytest.mark.filterwarnings("ignore::UserWarning")  # such tensors are prototypes
    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_nested_quantized_and_compressed_tensors(self, refusal) -> None:
        """A nested tensor reports a strided layout and raises when asked for its shape."""
        compressed = torch.zeros(2, 2).to_sparse_csr()
        nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
        quantized = torch.quantize_per_tensor(torch.zeros(2), 1.0, 0, torch.quint8)
        assert refusal(FrozenMapping, {"a": nested, "b": quantized, "c": compressed}) == (
            ContractValueError,
            [(("a",), "layout"), (("b",), "layout"), (("c",), "layout")],
        )

    def test_every_one_is_reported(self, refusal) -> None:
        bad = [1j, "ok", 2**64, {"x": "\ud800", "y": [None, np.array([None])]}]
        assert refusal(FrozenMapping, {"a": bad, "b": torch.zeros(1).to_sparse()}) == (
            ContractTypeError,
            [
                (("a", 0), "type"),
                (("a", 2), "range"),
                (("a", 3, "x"), "format"),
                (("a", 3, "y", 1), "dtype"),
                (("b",), "layout"),
            ],
        )

    def test_the_last_of_a_thousand(self, refusal) -> None:
        assert refusal(FrozenMapping, {"a": [*[1] * 999, object()]}) == (
            ContractTypeError,
            [(("a", 999), "type")],
        )
        many = {**{f"k{i}": i for i in range(999)}, "last": object()}
        assert refusal(FrozenMapping, many) == (ContractTypeError, [(("last",), "type")])


class TestKeys:
    @pytest.mark.parametrize("key", [None, 1, True, b"a", ("a",), Text("a"), 1.5])
    def test_a_key_that_is_no_str(self, refusal, key: object) -> None:
        assert refusal(FrozenMapping, {"a": {key: 1}}) == (ContractTypeError, [(("a",), "type")])
        assert refusal(FrozenMapping, {key: 1}) == (ContractTypeError, [((), "type")])

    def test_a_key_with_a_lone_surrogate(self, refusal) -> None:
        assert refusal(FrozenMapping, {"a\ud800": 1, "b": {"\udc00": object()}}) == (
            ContractTypeError,
            [(("a\ud800",), "format"), (("b", "\udc00"), "format"), (("b", "\udc00"), "type")],
        )

    def test_every_key_is_reported(self, refusal) -> None:
        assert refusal(FrozenMapping, {1: 0, "a": 1j, 2: 0}) == (
            ContractTypeError,
            [((), "type"), (("a",), "type"), ((), "type")],
        )


class TestMapping:
    @pytest.mark.parametrize("values", [None, 5, "ab", [("a", 1)], {"a"}, iter({})])
    def test_only_from_a_mapping(self, refusal, values: object) -> None:
        assert refusal(FrozenMapping, values) == (ContractTypeError, [((), "type")])

    @pytest.mark.parametrize(
        "wrap",
        [
            dict,
            collections.OrderedDict,
            types.MappingProxyType,
            collections.UserDict,
            FrozenMapping,
        ],
    )
    def test_from_any_mapping(self, wrap: Callable[[dict], object]) -> None:
        frozen = FrozenMapping({"outer": wrap({"b": 1, "a": [2]})})
        assert list(frozen["outer"].items()) == [("b", 1), ("a", (2,))]
        assert type(frozen["outer"]) is FrozenMapping

    def test_it_reads_like_a_dict(self) -> None:
        frozen = FrozenMapping({"b": 1, "a": None})
        assert len(frozen) == 2
        assert list(frozen) == list(frozen.keys()) == ["b", "a"]
        assert list(frozen.values()) == [1, None]
        assert "a" in frozen
        assert "c" not in frozen
        assert frozen.get("c", 7) == 7
        assert {**frozen} == {"b": 1, "a": None}
        assert not FrozenMapping({})
        with pytest.raises(KeyError):
            frozen["c"]

    def test_lists_become_tuples_all_the_way_down(self) -> None:
        """dynamo#10071: a list of one stays a sequence of one."""
        frozen = FrozenMapping({"a": [[1, [2]], ({"b": [3]},)]})
        assert frozen["a"] == ((1, (2,)), ({"b": (3,)},))
        assert type(frozen["a"]) is type(frozen["a"][0]) is type(frozen["a"][0][1]) is tuple
        assert type(frozen["a"][1][0]["b"]) is tuple

    def test_changing_the_source_afterwards_changes_nothing(self) -> None:
        """frozendict#31"""
        innermost = [1]
        inner = {"b": innermost}
        source = {"a": inner, "list": [inner]}
        frozen = FrozenMapping(source)
        innermost.append(2)
        inner["c"] = 3
        source["list"].append(4)
        source["d"] = 5
        assert frozen == {"a": {"b": (1,)}, "list": ({"b": (1,)},)}

    def test_what_is_frozen_already_is_shared(self) -> None:
        inner = FrozenMapping({"b": 1})
        assert FrozenMapping({"a": inner})["a"] is inner
        assert MultimodalParams(multimodal_data=inner).multimodal_data is inner

    def test_it_is_never_a_mapping_proxy(self) -> None:
        frozen = FrozenMapping({"a": types.MappingProxyType({"b": 1})})
        assert type(frozen["a"]) is FrozenMapping


def nested_lists(depth: int) -> list:
    value: list = []
    for _ in range(depth - 1):
        value = [value]
    return value


def nested_dicts(depth: int) -> dict:
    value: dict = {}
    for _ in range(depth - 1):
        value = {"k": value}
    return value


class TestDepth:
    def test_the_deepest_legal_payload(self) -> None:
        assert FrozenMapping(nested_dicts(32))
        assert FrozenMapping({"a": nested_lists(31)})
        assert MAX_PAYLOAD_DEPTH == 32

    @pytest.mark.parametrize("depth", [32, 33, 1000, 100_000])
    def test_one_level_too_many(self, refusal, depth: int) -> None:
        started = time.perf_counter()
        path = ("a", *[0] * 31)
        assert refusal(FrozenMapping, {"a": nested_lists(depth)}) == (
            ContractValueError,
            [(path, "depth")],
        )
        assert refusal(FrozenMapping, {"a": nested_dicts(depth)}) == (
            ContractValueError,
            [(("a", *["k"] * 31), "depth")],
        )
        assert time.perf_counter() - started < 5

    def test_frozen_parts_count_with_all_their_levels(self, refusal) -> None:
        inner = FrozenMapping(nested_dicts(31))
        assert FrozenMapping({"a": inner})
        for value in ([inner], {"b": inner}):
            assert refusal(FrozenMapping, {"a": value})[1] in (
                [(("a", 0), "depth")],
                [(("a", "b"), "depth")],
            )

    def test_frozen_tuples_count_with_all_their_levels(self, refusal) -> None:
        payload = FrozenMapping({"a": nested_lists(20)})  # 21 levels
        for _ in range(11):
            payload = FrozenMapping({"k": payload})
        assert refusal(FrozenMapping, {"k": payload}) == (ContractValueError, [(("k",), "depth")])

    @pytest.mark.parametrize(
        "leaf", [None, "x", torch.ones(1), np.ones(1), TokenIds([1])], ids=repr
    )
    def test_leaves_are_no_level(self, refusal, leaf: object) -> None:
        payload = FrozenMapping({"x": leaf})
        for _ in range(31):
            payload = FrozenMapping({"k": payload})
        assert refusal(FrozenMapping, {"k": payload}) == (ContractValueError, [(("k",), "depth")])

    @pytest.mark.parametrize("record", [ItemRef("image", 0), Replace(), Concat(0)], ids=repr)
    def test_a_flat_record_is_one_level(self, refusal, record: object) -> None:
        payload = FrozenMapping({"x": record})
        for _ in range(30):
            payload = FrozenMapping({"k": payload})
        assert refusal(FrozenMapping, {"k": payload}) == (ContractValueError, [(("k",), "depth")])

    def test_a_record_of_empty_fields(self) -> None:
        records = [MultimodalItemPartition(()), MultimodalItemMetadata([], [], [], {})]
        assert FrozenMapping({"a": records})["a"] == tuple(records)

    def test_records_count_with_all_their_levels(self, refusal) -> None:
        """A record is one level, and its payload the levels below it."""
        record = MultimodalParams(multimodal_data=nested_dicts(30))
        assert FrozenMapping({"a": record})
        assert refusal(FrozenMapping, {"a": [record]}) == (
            ContractValueError,
            [(("a", 0), "depth")],
        )
        assert refusal(
            FrozenMapping, {"a": MultimodalParams(multimodal_data=nested_dicts(31))}
        ) == (ContractValueError, [(("a",), "depth")])

    def test_the_deepest_that_a_payload_may_hold_is_what_the_wire_carries(
        self, build_to_send: Callable[[], object]
    ) -> None:
        """Contracts and the default `Limits` count the same levels."""
        assert Limits().max_depth == MAX_PAYLOAD_DEPTH
        payload: object = build_to_send()
        with contextlib.suppress(ContractValueError):
            while True:
                payload = FrozenMapping({"k": payload})
        assert loads(dumps(payload)) == payload

    def test_a_list_that_contains_itself(self, refusal) -> None:
        endless: list = []
        endless.append(endless)
        mapping: dict = {}
        mapping["k"] = mapping
        assert refusal(FrozenMapping, {"a": endless})[1] == [(("a", *[0] * 31), "depth")]
        assert refusal(FrozenMapping, mapping)[1] == [(("k",) * 32, "depth")]
        assert refusal(content_hash, endless)[1] == [((0,) * 32, "depth")]

    def test_a_list_that_contains_itself_many_times(self, refusal) -> None:
        endless: list = []
        endless.extend([endless] * 1000)
        assert refusal(FrozenMapping, {"a": endless})[1] == [(("a", *[0] * 31), "depth")]

    def test_a_billion_laughs(self, refusal) -> None:
        """Ten lists of ten, a hundred objects, unfold to ten thousand million elements."""
        laughs: list = ["ha"] * 10
        for _ in range(9):
            laughs = [laughs] * 10
        started = time.perf_counter()
        kind, problems = refusal(FrozenMapping, {"a": laughs})
        assert time.perf_counter() - started < 30
        assert kind is ContractValueError
        assert [code for _, code in problems] == ["count"]

    def test_a_list_of_too_many_elements_is_not_walked(self, refusal) -> None:
        started = time.perf_counter()
        assert refusal(FrozenMapping, {"a": [None] * (2**22 + 1)}) == (
            ContractValueError,
            [(("a",), "count")],
        )
        assert time.perf_counter() - started < 1

    @pytest.mark.parametrize("name", [f.name for f in attrs.fields(MultimodalItemMetadata)])
    def test_no_field_recurses_into_a_deep_list(self, refusal, name: str) -> None:
        fields = {"item_refs": [("image", 0)], name: nested_lists(100_000)}
        assert refusal(MultimodalItemMetadata, **fields)[0] is ContractTypeError


class TestImmutability:
    def test_no_attribute_can_be_set_or_deleted(self, build: Callable[[], object]) -> None:
        contract, same = build(), build()
        names = [
            *(
                contract._field_names()
                if isinstance(contract, Contract) and attrs.has(type(contract))
                else ()
            ),
            *{"ItemRef": ("modality", "index"), "FrozenMapping": ("_values", "_depth")}.get(
                type(contract).__name__, ()
            ),
        ]
        for name in (*names, "new", "__dict__", "__class__"):
            with pytest.raises((AttributeError, TypeError)):
                setattr(contract, name, None)
            with pytest.raises((AttributeError, TypeError)):
                delattr(contract, name)
        assert contract == same

    def test_nothing_has_a_dict_of_its_own(self, build: Callable[[], object]) -> None:
        assert not hasattr(build(), "__dict__")

    def test_no_item_can_be_set_or_deleted(self, build: Callable[[], object]) -> None:
        contract, same = build(), build()
        for key in ("a", 0, slice(None)):
            with pytest.raises(TypeError):
                contract[key] = None
            with pytest.raises(TypeError):
                del contract[key]
        assert contract == same

    @pytest.mark.parametrize(
        "name", ["update", "clear", "pop", "popitem", "setdefault", "append", "extend", "sort"]
    )
    def test_no_method_changes_anything(self, build: Callable[[], object], name: str) -> None:
        assert not hasattr(build(), name)

    def test_augmented_assignment_changes_nothing(self) -> None:
        frozen = before = FrozenMapping({"a": 1})
        with pytest.raises(TypeError):
            frozen |= {"b": 2}
        ref = before_ref = ItemRef("image", 0)
        ref += (1,)
        assert before == {"a": 1}
        assert before_ref == ("image", 0)

    def test_the_views_of_a_mapping_are_read_only(self) -> None:
        frozen = FrozenMapping({"a": 1})
        with pytest.raises(TypeError):
            frozen.keys().mapping["a"] = 2
        assert frozen == {"a": 1}

    def test_nothing_derived_is_cached_in_a_contract(self, build: Callable[[], object]) -> None:
        """attrs#1420: a derived value is computed anew and never becomes state."""
        attributes = [vars(kind) for kind in type(build()).__mro__]
        kinds = {type(value) for names in attributes for value in names.values()}
        assert functools.cached_property not in kinds


CLASSES = [
    cls for cls in vars(contracts).values() if isinstance(cls, type) and issubclass(cls, Contract)
]


class TestTypes:
    """Of the classes themselves."""

    def test_there_is_an_example_of_every_type(self, examples: dict) -> None:
        """Which the fixture `build` then hands to every test that asks for it."""
        assert set(examples) == {cls.__name__ for cls in CLASSES} | {"FrozenMapping"}
        for name, build in examples.items():
            assert type(build()).__name__ == name

    @pytest.mark.parametrize("cls", CLASSES)
    def test_field_types_exist_at_run_time(self, cls: type) -> None:
        """beartype#364, cattrs#160: no type only a checker can see, none hidden by a field."""
        if attrs.has(cls):
            attrs.resolve_types(cls)
            assert all(not isinstance(field.type, str) for field in attrs.fields(cls))

    @pytest.mark.parametrize("cls", CLASSES)
    def test_every_field_is_described(self, cls: type) -> None:
        for field in attrs.fields(cls) if attrs.has(cls) else ():
            assert field.name.startswith("_") or f"{field.name}" in cls.__doc__

    @pytest.mark.parametrize("cls", CLASSES)
    def test_classes_are_slotted(self, cls: type) -> None:
        assert "__slots__" in vars(cls)
        assert "__dict__" not in dir(cls)
