"""Contracts on the wire: every type arrives as it was sent, or is refused by path."""

import math
import pickle
import struct
import threading
from collections.abc import Callable

import attrs
import numpy as np
import pytest
import torch
from cattrs.fns import identity

from omniwire.contracts import (
    AccumulationError,
    Concat,
    ContractValueError,
    DecodeError,
    EncodeError,
    FrozenMapping,
    ItemRef,
    MultimodalInput,
    MultimodalItemMetadata,
    MultimodalItemPartition,
    MultimodalParams,
    OmniOutput,
    OmniwireError,
    OutputChunk,
    Problem,
    ProcessedRequest,
    RequestOutput,
    TensorHandle,
    TokenIds,
)
from omniwire.contracts.errors import WIRE_ERRORS
from omniwire.serialization import decode, dumps, encode, loads
from omniwire.serialization.converter import codecs
from omniwire.serialization.dtypes import TORCH_CODES


def arrive(value: object) -> object:
    return decode(encode(FrozenMapping({"value": value})))["value"]


def refused(value: object) -> tuple[tuple[str | int, ...], str]:
    """The path and code with which a value is refused."""
    with pytest.raises(EncodeError) as caught:
        encode(value)
    with pytest.raises(EncodeError):
        dumps(value)
    assert caught.value.__context__ is None
    return caught.value.path, caught.value.code


class TestEveryContract:
    def test_arrives_equal(self, build_to_send: Callable[[], object]) -> None:
        sent = build_to_send()
        for arrived in (decode(encode(sent)), loads(dumps(sent)), loads(dumps(sent), copy=True)):
            assert type(arrived) is type(sent)
            assert arrived == sent == build_to_send()

    def test_arrives_inside_a_payload(self, build_to_send: Callable[[], object]) -> None:
        sent = build_to_send()
        arrived = arrive((sent, {"again": sent}))
        assert type(arrived[0]) is type(arrived[1]["again"]) is type(sent)
        assert arrived == (sent, FrozenMapping({"again": sent}))

    def test_is_encoded_the_same_way_each_time(self, build_to_send: Callable[[], object]) -> None:
        assert dumps(build_to_send()) == dumps(build_to_send())

    def test_is_decoded_by_many_threads_at_once(self, build_to_send: Callable[[], object]) -> None:
        sent, frames = build_to_send(), encode(build_to_send())
        equal = []

        def read() -> None:
            equal.append(all(decode(frames) == sent for _ in range(20)))

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert equal == [True] * 4


class TestPayloadValues:
    @pytest.mark.parametrize(
        "value",
        [
            0, -1, 127, 128, -32, -33, 2**31, -(2**31), 2**32, 2**63 - 1, -(2**63), 2**64 - 1,
            True, False, None, "", "mp3", "\u00e9\U0001f600\x00", b"", b"\x00\xff",
            0.0, 1.5, math.inf, -math.inf, 5e-324, 1.7976931348623157e308,
            (), (1,), ((1,), ((),)), (1, True, 1.0, "1", b"1", None),
        ],
        ids=repr,
    )  # fmt: skip
    def test_are_exact(self, value: object) -> None:
        arrived = arrive(value)
        assert type(arrived) is type(value)
        assert arrived == value
        assert repr(arrived) == repr(value)

    @pytest.mark.parametrize(
        "bits", ["8000000000000000", "7ff8000000000001", "fff8dead0000beef", "7ff0000000000001"]
    )
    def test_floats_keep_their_bits(self, bits: str) -> None:
        value = struct.unpack(">d", bytes.fromhex(bits))[0]
        assert struct.pack(">d", arrive(value)).hex() == bits

    def test_structure_travels_with_the_payload(self) -> None:
        """dynamo#10071: a tuple of one tensor is not that tensor."""
        tensor = torch.arange(3)
        arrived = arrive({"one": [tensor], "bare": tensor, "nested": ((tensor,),)})
        assert type(arrived) is FrozenMapping
        assert type(arrived["one"]) is tuple
        assert len(arrived["one"]) == 1
        assert torch.equal(arrived["one"][0], tensor)
        assert torch.equal(arrived["bare"], tensor)
        assert torch.equal(arrived["nested"][0][0], tensor)

    def test_numbers_and_tensors_side_by_side(self) -> None:
        """dynamo#9517"""
        arrived = arrive({"audio": torch.ones(1, 4), "sr": 24000})
        assert type(arrived["sr"]) is int
        assert arrived["sr"] == 24000

    def test_an_item_ref_is_no_tuple_and_a_tuple_no_item_ref(self) -> None:
        arrived = arrive((ItemRef("image", 0), ("image", 0)))
        assert type(arrived[0]) is ItemRef
        assert type(arrived[1]) is tuple

    def test_key_order_is_kept(self) -> None:
        keys = ["b", "a", "", "c.d", "\u00e9"]
        assert list(arrive(dict.fromkeys(keys))) == keys

    @pytest.mark.parametrize(
        "values",
        [
            range(64),
            range(-5000, 5000),
            [2**31 - 1, -(2**31)] * 40,
            [2**31] * 64,
            [2**63 - 1, -(2**63)] * 40,
            [2**64 - 1] * 64,
            [*range(100), True],
            [*range(100), 1.0],
        ],
        ids=lambda values: f"{len(values)} from {values[0]}",
    )
    def test_long_tuples(self, values: list[object]) -> None:
        arrived = arrive(tuple(values))
        assert arrived == tuple(values)
        assert list(map(type, arrived)) == list(map(type, values))

    def test_deep_nesting(self) -> None:
        value: object = torch.ones(2)
        for level in range(31):
            value = (value,) if level % 2 else {"k": value}
        payload = FrozenMapping({"value": value})
        assert decode(encode(payload)) == payload


class TestPacking:
    def test_token_ids_take_four_bytes(self) -> None:
        request = ProcessedRequest("r1", range(131_072))
        (header,) = encode(request)
        assert 4 * 131_072 < len(header) < 4 * 131_072 + 200
        assert decode([header]) == request

    def test_runs_take_four_bytes_a_number(self) -> None:
        runs = 2000
        record = MultimodalInput(
            [[0] * 8], [0], [50 * runs], None, [0, runs], range_of(runs, 60), [50] * runs
        )
        (header,) = encode(record)
        assert 8 * runs < len(header) < 8 * runs + 400
        assert decode([header]) == record

    def test_hashes_take_32_bytes(self) -> None:
        record = MultimodalInput([[-(2**31), 2**31 - 1] * 4] * 100, [0] * 100, [0] * 100)
        (header,) = encode(record)
        assert 3200 + 2 * 400 < len(header) < 3200 + 2 * 400 + 300
        assert decode([header]) == record

    def test_packed_integers_are_little_endian(self) -> None:
        (header,) = encode(TokenIds([1, 2**31 - 1, 258]))
        assert bytes.fromhex("01000000 ffffff7f 02010000") in header


def range_of(count: int, step: int) -> list[int]:
    return list(range(0, count * step, step))


class TestErrors:
    def build(self, name: str) -> OmniwireError:
        problems = [
            Problem(("image", 0, "grid"), "shape", "f32[2]", "f32[3]"),
            Problem((), "a", "b", "c"),
        ]
        arguments: dict[str, tuple[object, ...]] = {
            "ContractTypeError": ("Subject", problems),
            "ContractValueError": ("Subject", problems[:1]),
            "AdmissionError": ("Subject", problems, "r1"),
            "EncodeError": ("Subject", problems[0]),
            "DecodeError": ("words", "syntax", 7),
            "UnsupportedVersionError": (3, 1),
            "HandlerNotFoundError": ("image", ("audio", "text")),
            "AccumulationError": ("words", "r1", "audio", "codes"),
        }
        return WIRE_ERRORS[name](*arguments.get(name, ("words",)))

    @pytest.mark.parametrize("name", WIRE_ERRORS)
    def test_every_error_travels_by_name_and_arguments(self, name: str) -> None:
        error = self.build(name)
        output = RequestOutput("r1", errors={"audio": error, "": error})
        arrived = decode(encode(output))
        assert arrived == output
        for one in arrived.errors.values():
            assert type(one) is type(error)
            assert str(one) == str(error)
            assert vars(one) == vars(error)
            assert pickle.loads(pickle.dumps(one)).args == error.args

    def test_problems_arrive_as_problems(self) -> None:
        output = RequestOutput("r1", errors={"": self.build("AdmissionError")})
        problem = decode(encode(output)).errors[""].problems[0]
        assert type(problem) is Problem
        assert problem.path == ("image", 0, "grid")

    def test_the_cause_stays_behind(self) -> None:
        error = self.build("AccumulationError")
        error.__cause__ = KeyError("local")
        arrived = decode(encode(RequestOutput("r1", errors={"": error}))).errors[""]
        assert arrived.__cause__ is None

    def test_a_class_outside_the_table_is_refused(self) -> None:
        class Homemade(AccumulationError):
            pass

        for error in (Homemade("a", "b"), type("AccumulationError", (Homemade,), {})("a", "b")):
            output = RequestOutput("r1", errors={"audio": error})
            assert refused(output) == (("errors", "audio"), "type")

    @pytest.mark.parametrize(
        "error",
        [
            OmniwireError("a", "b"),
            OmniwireError(),
            AccumulationError(object(), "r"),  # type: ignore[arg-type]  # what is tested
            AccumulationError("\ud800", "r"),
            DecodeError("a", "syntax", 2**70),
            ContractValueError("s", [Problem(("a", True), "b", "c", "d")]),
        ],
        ids=repr,
    )
    def test_odd_arguments_are_refused(self, error: OmniwireError) -> None:
        output = RequestOutput("r1", errors={"audio": error})
        assert refused(output) == (("errors", "audio"), "type")


class TestRefusals:
    @pytest.mark.parametrize(
        "value",
        [
            None,
            1,
            "text",
            b"bytes",
            (1, 2),
            [1],
            {"a": 1},
            object(),
            torch.ones(2),
            np.ones(2),
            ItemRef,
            ValueError(),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_what_is_no_contract(self, value: object) -> None:
        """vllm#29565: also an object with its own `__reduce__`."""
        assert refused(value) == ((), "type")

    def test_a_subclass_of_a_contract(self) -> None:
        class Pair(ItemRef):
            pass

        assert refused(Pair("image", 0)) == ((), "type")

    def test_live_executor_state(self) -> None:
        params = MultimodalParams(encoder_state=object())
        assert refused(params) == (("encoder_state",), "state")
        request = ProcessedRequest("r1", [1], params)
        assert refused(request) == (("multimodal_params", "encoder_state"), "state")
        assert refused(FrozenMapping({"a": [0, params]})) == (("a", 1, "encoder_state"), "state")

    def test_state_is_found_where_it_is_even_if_it_equals_a_field(self) -> None:
        params = MultimodalParams(multimodal_data={"first": "state"}, encoder_state="state")
        assert refused(params) == (("encoder_state",), "state")

    def test_a_handle_of_this_process(self) -> None:
        """TRT-LLM#16050"""
        handle = TensorHandle("local", torch.float32, (2,), torch.ones(2))
        assert refused(handle) == ((), "state")
        params = MultimodalParams.from_embeddings([torch.ones(1, 2), handle])
        path = ("multimodal_data", "multimodal_embedding", 1)
        assert refused(params) == (path, "state")
        assert refused(OmniOutput(handle)) == (("text_hidden_states",), "state")

    def test_an_attached_handle(self) -> None:
        class Source:
            def resolve_tensor(self) -> torch.Tensor:
                return torch.ones(2)

        handle = TensorHandle("arena", torch.float32, (2,), Source())
        assert refused(OmniOutput(multimodal_outputs={"audio": handle})) == (
            ("multimodal_outputs", "audio"),
            "state",
        )

    def test_a_handle_of_a_quantized_type(self) -> None:
        assert refused(TensorHandle("arena", torch.qint8, (2,), b"")) == (("dtype",), "dtype")

    # Contracts refuse these themselves; a trusted view or a later change still brings them here.
    @pytest.mark.parametrize(
        ("build", "code"),
        [
            (lambda: torch.ones(2, 2).to_sparse(), "layout"),
            (lambda: torch.eye(2).to_sparse_csr(), "layout"),
            (lambda: torch.empty(2, device="meta"), "layout"),
            (lambda: torch.nested.nested_tensor([torch.ones(2)], layout=torch.strided), "layout"),
            (lambda: torch.nn.Parameter(torch.ones(2)), "type"),
            (object, "type"),
            (lambda: {1, 2}, "type"),
            (lambda: np.array([object()]), "dtype"),
            (lambda: np.ones(2, ">f4"), "dtype"),
            (lambda: np.ones(2).view(np.matrix), "type"),
            (lambda: 2**64, "range"),
            (lambda: "\ud800", "format"),
        ],
    )  # fmt: skip
    @pytest.mark.filterwarnings("ignore:.*:UserWarning")
    def test_what_a_view_brings_along(self, build: Callable[[], object], code: str) -> None:
        params = MultimodalParams().with_embeddings((torch.ones(1), build()))
        path = ("multimodal_params", "multimodal_data", "multimodal_embedding", 1)
        assert refused(ProcessedRequest("r1", [1], params)) == (path, code)

    @pytest.mark.filterwarnings("ignore:.*:UserWarning")
    def test_quantized(self) -> None:
        tensor = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
        params = MultimodalParams().with_embeddings(tensor)
        assert refused(params) == (("multimodal_data", "multimodal_embedding"), "layout")

    @pytest.mark.parametrize("view", [lambda t: t, lambda t: t[3:], lambda t: t.view(20, 50).t()])
    def test_storage_that_is_gone(self, view: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Never a read of memory that is no longer there."""
        whole = torch.zeros(1000)
        output = OmniOutput(view(whole))
        whole.untyped_storage().resize_(0)
        assert refused(output) == (("text_hidden_states",), "layout")

    def test_storage_that_never_was(self) -> None:
        assert refused(OmniOutput(torch._efficientzerotensor(600))) == (
            ("text_hidden_states",),
            "layout",
        )

    def test_too_many_dimensions(self) -> None:
        assert refused(OmniOutput(torch.zeros([1] * 65))) == (("text_hidden_states",), "shape")
        assert decode(encode(OmniOutput(torch.zeros([1] * 64)))).text_hidden_states.dim() == 64

    def test_dimensions_too_large_to_multiply(self) -> None:
        tensor = torch.empty(2**62, 0, 2)
        assert refused(OmniOutput(tensor)) == (("text_hidden_states",), "shape")
        tensor = torch.empty(2**61, 0, 2)
        assert decode(encode(OmniOutput(tensor))).text_hidden_states.shape == (2**61, 0, 2)

    def test_the_message_describes_and_keeps_nothing(self) -> None:
        params = MultimodalParams().with_embeddings(torch.full((2, 2), 1234.5).to_sparse())
        with pytest.raises(EncodeError) as caught:
            encode(params)
        assert "1234" not in str(caught.value)
        restored = pickle.loads(pickle.dumps(caught.value))
        assert (restored.path, restored.code) == (caught.value.path, caught.value.code)


def test_no_field_is_left_to_the_hooks_of_cattrs() -> None:
    """They coerce: `int("3")`, `list(...)`. Each annotation must be one that we know."""
    to_wire, _, converter = codecs()
    fields = [field for kind in to_wire if attrs.has(kind) for field in attrs.fields(kind)]
    special = {"encoder_state", "payload", "input_partitions", "errors", "_packed"}
    for field in fields:
        if field.name not in special:
            read = converter.get_structure_hook(field.type)
            assert read.__module__ == codecs.__module__, field
            write = converter.get_unstructure_hook(field.type)
            ours = getattr(write, "__module__", None) == codecs.__module__
            assert ours or write in (identity, TORCH_CODES.__getitem__), field


class TestShape:
    """What the bytes look like, read with nothing but msgpack."""

    def body(self, value: object) -> list[object]:
        import msgpack

        magic, version, oldest, _, body = msgpack.unpackb(encode(value)[0])
        assert (magic, version, oldest) == ("omniwire", 1, 1)
        return msgpack.unpackb(body)

    def test_a_record_is_a_map(self) -> None:
        assert self.body(Concat(-1)) == ["Concat", {"dim": -1}, []]
        assert self.body(MultimodalItemPartition((2, 1))) == [
            "MultimodalItemPartition",
            {"item_lengths": [2, 1], "axis": 0},
            [],
        ]

    def test_metadata(self) -> None:
        record = MultimodalItemMetadata(
            [("video", 0), ("image", 0)],
            [64, 16],
            None,
            {"image": {"grid": MultimodalItemPartition()}},
        )
        assert self.body(record) == [
            "MultimodalItemMetadata",
            {
                "item_refs": ["video", 0, "image", 0],
                "encoder_token_lengths": [64, 16],
                "output_embedding_lengths": None,
                "input_partitions": {"image": {"grid": {"item_lengths": None, "axis": 0}}},
            },
            [],
        ]

    def test_a_record_in_a_payload_carries_its_name(self) -> None:
        import msgpack

        payload = FrozenMapping({"a": (ItemRef("image", 2), 7)})
        name = msgpack.ExtType(1, b"ItemRef")
        assert self.body(payload) == ["FrozenMapping", {"a": [[name, ["image", 2]], 7]}, []]

    def test_the_sizes_of_the_frames_are_listed(self) -> None:
        payload = FrozenMapping({"a": torch.zeros(300), "b": torch.zeros(64, 1024)})
        assert self.body(payload)[2] == [1200, 262_144]

    def test_a_chunk(self) -> None:
        body = self.body(OutputChunk("r1", 0, "text"))
        assert body[1]["kind"] == "delta"
        assert "encoder_state" not in self.body(MultimodalParams())[1]
