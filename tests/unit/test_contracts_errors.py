"""The errors: their classes, what they carry, that they pickle and keep nothing alive."""

import builtins
import copy
import gc
import itertools
import pickle
import weakref
from collections.abc import Callable
from unittest import mock

import attrs
import numpy as np
import pytest
import torch

from omniwire import contracts
from omniwire.contracts import (
    AccumulationError,
    AdmissionError,
    ArenaFull,
    ContractError,
    ContractTypeError,
    ContractValueError,
    DecodeError,
    EncodeError,
    FrozenMapping,
    HandlerNotFoundError,
    HandoffError,
    HandoffTimeout,
    ItemRef,
    MultimodalInput,
    MultimodalItemMetadata,
    MultimodalItemPartition,
    MultimodalParams,
    OmniOutput,
    OmniwireError,
    PeerClosed,
    PeerDied,
    Problem,
    ProcessedRequest,
    TokenIds,
    UnsupportedVersionError,
    check_admission,
    check_producer,
    content_hash,
)
from omniwire.contracts.checks import MAX_PROBLEMS
from omniwire.contracts.errors import (
    DECODE_CODES,
    PROBLEM_CODES,
    WIRE_ERRORS,
    contract_error,
    error_arguments,
)

PROBLEM = Problem(("image", 0), "range", "at least 1", "0")
PROBLEMS = [PROBLEM, Problem(("audio",), "type", "a str", "None")]

ONE_OF_EACH: dict[str, Callable[[], OmniwireError]] = {
    "OmniwireError": lambda: OmniwireError("text", 5),
    "ContractError": lambda: ContractError("Subject", PROBLEMS),
    "ContractTypeError": lambda: ContractTypeError("Subject", PROBLEMS),
    "ContractValueError": lambda: ContractValueError("Subject", PROBLEMS[:1]),
    "AdmissionError": lambda: AdmissionError("Subject", PROBLEMS, "r1"),
    "EncodeError": lambda: EncodeError("Subject", PROBLEM),
    "DecodeError": lambda: DecodeError("text", "syntax", 7),
    "UnsupportedVersionError": lambda: UnsupportedVersionError(3, 2),
    "HandoffError": lambda: HandoffError("text"),
    "PeerClosed": lambda: PeerClosed("text"),
    "PeerDied": lambda: PeerDied("text"),
    "HandoffTimeout": lambda: HandoffTimeout("text"),
    "ArenaFull": lambda: ArenaFull("text"),
    "HandlerNotFoundError": lambda: HandlerNotFoundError("smell", ["audio", "image"]),
    "AccumulationError": lambda: AccumulationError("text", "r1", "audio", "codes"),
}
ATTRIBUTES = (
    "subject",
    "problems",
    "problem",
    "request_id",
    "path",
    "code",
    "offset",
    "found",
    "supported",
    "modality",
    "registered",
    "key",
)


@pytest.fixture(params=ONE_OF_EACH.values(), ids=ONE_OF_EACH.keys())
def error(request: pytest.FixtureRequest) -> OmniwireError:
    return request.param()


def subclasses(kind: type) -> set[type]:
    return {kind}.union(*map(subclasses, kind.__subclasses__()))


class TestClasses:
    def test_there_is_an_example_of_each(self) -> None:
        ours = {
            kind.__name__ for kind in subclasses(OmniwireError) if "contracts" in kind.__module__
        }
        assert ours == set(ONE_OF_EACH)

    @pytest.mark.parametrize(
        ("kind", "bases"),
        [
            (ContractError, [OmniwireError]),
            (ContractTypeError, [ContractError, TypeError]),
            (ContractValueError, [ContractError, ValueError]),
            (AdmissionError, [ContractError]),
            (EncodeError, [OmniwireError, ValueError]),
            (DecodeError, [OmniwireError, ValueError]),
            (UnsupportedVersionError, [DecodeError]),
            (HandoffError, [OmniwireError, ConnectionError]),
            (PeerClosed, [HandoffError]),
            (PeerDied, [HandoffError]),
            (HandoffTimeout, [HandoffError, TimeoutError]),
            (ArenaFull, [HandoffError]),
            (HandlerNotFoundError, [OmniwireError, LookupError]),
            (AccumulationError, [OmniwireError, RuntimeError]),
        ],
    )
    def test_each_is_the_nearest_builtin_too(self, kind: type, bases: list[type]) -> None:
        assert issubclass(kind, OmniwireError)
        assert all(issubclass(kind, base) for base in bases)

    def test_type_and_value_errors_of_contracts_are_apart(self) -> None:
        assert not issubclass(ContractTypeError, ValueError)
        assert not issubclass(ContractValueError, TypeError)
        assert not issubclass(AdmissionError, (TypeError, ValueError))

    def test_a_contract_error_is_of_type_when_any_problem_is(self) -> None:
        def found(code: str) -> Problem:
            return Problem((), code, "this", "that")

        for code in PROBLEM_CODES:
            expected = ContractTypeError if code == "type" else ContractValueError
            assert type(contract_error("S", [found(code)])) is expected
        mixed = contract_error("S", iter([found("range"), found("type"), found("count")]))
        assert type(mixed) is ContractTypeError
        assert [problem.code for problem in mixed.problems] == ["range", "type", "count"]

    def test_what_each_carries(self) -> None:
        assert ONE_OF_EACH["ContractError"]().problems == tuple(PROBLEMS)
        assert ONE_OF_EACH["AdmissionError"]().request_id == "r1"
        encode_error = ONE_OF_EACH["EncodeError"]()
        assert (encode_error.path, encode_error.code) == (("image", 0), "range")
        decode_error = ONE_OF_EACH["DecodeError"]()
        assert (decode_error.code, decode_error.offset) == ("syntax", 7)
        assert DecodeError("text", "syntax").offset is None
        version_error = ONE_OF_EACH["UnsupportedVersionError"]()
        assert (version_error.found, version_error.supported) == (3, 2)
        assert version_error.code == "version"
        handler_error = ONE_OF_EACH["HandlerNotFoundError"]()
        assert handler_error.modality == "smell"
        assert handler_error.registered == ("audio", "image")
        accumulation_error = ONE_OF_EACH["AccumulationError"]()
        assert accumulation_error.request_id == "r1"
        assert (accumulation_error.modality, accumulation_error.key) == ("audio", "codes")
        assert (AccumulationError("text", "r1").modality, AccumulationError("t", "r1").key) == (
            "",
            "",
        )

    def test_a_problem_is_a_plain_tuple_too(self) -> None:
        path, code, expected, got = PROBLEM
        assert (path, code, expected, got) == (("image", 0), "range", "at least 1", "0")
        assert PROBLEM == (("image", 0), "range", "at least 1", "0")

    def test_the_tables_are_closed(self) -> None:
        for table in (PROBLEM_CODES, DECODE_CODES, WIRE_ERRORS):
            with pytest.raises(TypeError):
                table["new"] = "entry"
        assert all(PROBLEM_CODES.values())
        assert all(DECODE_CODES.values())

    def test_every_error_that_can_be_made_may_cross_the_wire(self) -> None:
        assert set(WIRE_ERRORS) == set(ONE_OF_EACH) - {"ContractError"}
        assert all(kind.__name__ == name for name, kind in WIRE_ERRORS.items())


class TestPickling:
    @pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
    def test_an_error_arrives_as_it_was(self, error: OmniwireError, protocol: int) -> None:
        self.assert_same(pickle.loads(pickle.dumps(error, protocol)), error)

    def test_an_error_copies(self, error: OmniwireError) -> None:
        self.assert_same(copy.copy(error), error)
        self.assert_same(copy.deepcopy(error), error)

    def test_its_plain_arguments_build_it_anew(self, error: OmniwireError) -> None:
        self.assert_same(type(error)(*error_arguments(error)), error)
        kind, arguments = error.__reduce__()[:2]
        assert kind is type(error)
        assert arguments == error_arguments(error)

    @staticmethod
    def assert_same(arrived: OmniwireError, error: OmniwireError) -> None:
        assert type(arrived) is type(error)
        assert str(arrived) == str(error)
        for name in ATTRIBUTES:
            assert getattr(arrived, name, None) == getattr(error, name, None)
        assert all(type(problem) is Problem for problem in getattr(arrived, "problems", ()))

    def test_problems_from_plain_tuples_are_problems(self) -> None:
        """As they come out of a message."""
        made = ContractValueError("Subject", [tuple(PROBLEM)])
        assert type(made.problems[0]) is Problem
        assert type(EncodeError("Subject", tuple(PROBLEM)).problem) is Problem


class TestNotes:
    """Beside the text, so that it stays one sentence a problem: where each is explained."""

    @pytest.mark.parametrize("code", PROBLEM_CODES)
    def test_every_code_of_a_problem_leads_to_its_anchor(self, code: str) -> None:
        problem = PROBLEM._replace(code=code)
        for made in (contract_error("S", [problem]), EncodeError("S", problem)):
            assert made.__notes__[0].endswith(f"errors.md#problem-{code}")

    @pytest.mark.parametrize("code", DECODE_CODES)
    def test_every_code_of_a_message_leads_to_its_anchor(self, code: str) -> None:
        assert DecodeError("text", code).__notes__[0].endswith(f"errors.md#decode-{code}")

    def test_errors_without_a_code_lead_to_their_class(self) -> None:
        for name in ("PeerClosed", "PeerDied", "HandoffTimeout", "ArenaFull", "HandoffError"):
            assert ONE_OF_EACH[name]().__notes__[0].endswith(f"errors.md#{name.lower()}")
        for name in ("HandlerNotFoundError", "AccumulationError"):
            assert ONE_OF_EACH[name]().__notes__[0].endswith(f"errors.md#{name.lower()}")

    def test_codes_of_a_peer_that_are_not_ours_lead_to_the_class(self) -> None:
        later = PROBLEM._replace(code="] later")
        assert ContractValueError("S", [later]).__notes__[0].endswith("#contracterror")
        assert EncodeError("S", later).__notes__[0].endswith("#encodeerror")
        assert DecodeError("text", "] later").__notes__[0].endswith("#decodeerror")

    def test_there_is_one_note_however_an_error_was_made(self, error: OmniwireError) -> None:
        notes = getattr(error, "__notes__", [])
        assert len(notes) == (type(error) is not OmniwireError)
        for again in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
            assert getattr(again, "__notes__", []) == notes

    def test_of_many_problems_those_in_the_text_are_explained(self) -> None:
        problems = [PROBLEM] * 20 + [PROBLEM._replace(code="count")]
        assert "count" not in ContractValueError("S", problems).__notes__[0]


def secret() -> torch.Tensor:
    return torch.full((3, 2), 71825.5)


def refused_values() -> dict[str, Callable[[object], object]]:
    """Ways to be refused while holding a payload."""
    record = MultimodalItemMetadata(
        [("image", 0)], input_partitions={"image": {"a": MultimodalItemPartition()}}
    )

    def request(payload: object) -> ProcessedRequest:
        data = {"item_metadata": record, "image": {"a": payload}}
        return ProcessedRequest("r1", [1], MultimodalParams(multimodal_data=data))

    return {
        "field": lambda payload: ProcessedRequest("r1", [1], payload),
        "leaf": lambda payload: FrozenMapping({"a": [payload, object()]}),
        "beside a leaf": lambda payload: MultimodalParams(
            multimodal_data={"a": {"ok": payload}, "b": 1j}
        ),
        "text": lambda payload: OmniOutput(payload, {"a": None}),
        "guard": lambda payload: MultimodalInput.from_hexdigests(payload, [1], [1]),
        "ids": lambda payload: ProcessedRequest("r1", payload),
        "elements": lambda payload: ItemRef(payload, payload),
        "hash": lambda payload: content_hash([payload, {1}]),
        "producer": lambda payload: check_producer(request(payload)),
        "admission": lambda payload: check_admission(request(payload)),
    }


@pytest.mark.parametrize("refuse", refused_values().values(), ids=refused_values().keys())
class TestPayloads:
    def test_no_value_of_a_tensor_is_printed(self, refuse: Callable[[object], object]) -> None:
        for payload in (secret(), secret().numpy()):
            with pytest.raises(ContractError) as caught:
                refuse(payload)
            for text in (str(caught.value), repr(caught.value), repr(caught.value.problems)):
                assert "71825" not in text

    def test_no_payload_is_kept_alive(self, refuse: Callable[[object], object]) -> None:
        """The traceback aside, whose frames do hold it."""
        payload = secret()
        watch = weakref.ref(payload)
        try:
            refuse(payload)
        except ContractError as raised:
            error = raised.with_traceback(None)
        del payload
        gc.collect()
        assert watch() is None
        assert error.__context__ is None
        assert error.__cause__ is None
        assert error.problems

    def test_what_the_error_refers_to_is_plain(self, refuse: Callable[[object], object]) -> None:
        with pytest.raises(ContractError) as caught:
            refuse(secret())
        state = [vars(caught.value), caught.value.args]
        kinds = set()
        while state:
            value = state.pop()
            kinds.add(type(value))
            if isinstance(value, dict):
                state.extend(value.values())
            elif isinstance(value, tuple | list):
                state.extend(value)
        assert kinds <= {dict, tuple, list, Problem, str, int}


def test_text_does_not_grow_with_the_payload() -> None:
    """A long string or sequence is cut, and of many problems the first twenty are printed."""
    with pytest.raises(ContractError) as caught:
        TokenIds(["x" * 10**6] * 10_000)
    assert len(caught.value.problems) == 10_000
    assert len(str(caught.value)) < 5000


MANY = 10_001
MANY_ITEMS = MultimodalItemMetadata(
    [("image", i) for i in range(MANY)], [2] * MANY, [1] * MANY, {"image": {}}
)


@pytest.mark.parametrize(
    "refuse",
    [
        lambda: TokenIds(["x"] * MANY),
        lambda: TokenIds([2**40] * MANY),
        lambda: TokenIds([-1] * MANY),
        lambda: TokenIds.frombytes(b"\xff" * 4 * MANY),
        lambda: MultimodalItemPartition([-1] * MANY),
        lambda: MultimodalItemMetadata([5] * MANY),
        lambda: MultimodalItemMetadata([("image", 0)] * (MANY + 1)),
        lambda: MultimodalItemMetadata([("image", 0)]).select([1] * MANY),
        lambda: MANY_ITEMS.merge(MultimodalItemMetadata(MANY_ITEMS.item_refs, [1] * MANY)),
        lambda: MultimodalInput([5] * MANY, [0], [0]),
        lambda: MultimodalInput([(0,) * 8] * MANY, [2**31 - 1] * MANY, [1] * MANY),
        lambda: MultimodalInput([(0,) * 8] * MANY, [0] * MANY, [0] * MANY, [""] * MANY),
        lambda: MultimodalInput(
            [(0,) * 8] * MANY, [0] * MANY, [5] * MANY, None, [0] * MANY + [1], [0], [5]
        ),
        lambda: MultimodalInput(
            [(0,) * 8] * 2 * MANY, *[[0] * 2 * MANY] * 2, None, [1, 0] * MANY + [1], [0], [5]
        ),
        lambda: MultimodalInput.from_hexdigests([""] * MANY, [], []),
        lambda: FrozenMapping({"a": [1j] * MANY}),
        lambda: FrozenMapping({"a": [torch.zeros(1, device="meta")] * MANY}),
        lambda: FrozenMapping({str(i): 1j for i in range(MANY)}),
        lambda: FrozenMapping(dict.fromkeys(range(MANY), 1)),
        lambda: OmniOutput(None, {"a": [1] * MANY}),
        lambda: contracts.DisaggregatedParams([5] * MANY),
        lambda: contracts.RequestOutput("r1", tensors={"a": [1] * MANY}),
        lambda: contracts.MultimodalRuntimeData.for_chunk(
            past_seen_token_num=0, chunk_end_pos=0, embed_mask=["x"] * MANY
        ),
        lambda: contracts.MultimodalRuntimeData.for_chunk(
            past_seen_token_num=0, chunk_end_pos=0, embed_mask=[2] * MANY
        ),
        lambda: check_producer(
            ProcessedRequest(
                "r1",
                [],
                MultimodalParams(MultimodalInput([(0,) * 8] * MANY, [1] * MANY, [0] * MANY)),
            )
        ),
        lambda: check_producer(
            ProcessedRequest(
                "r1",
                [],
                MultimodalParams.from_embeddings([torch.zeros(2, 1)] * MANY, MANY_ITEMS),
            )
        ),
        lambda: check_admission(
            ProcessedRequest(
                "r1", [], MultimodalParams(multimodal_data={"item_metadata": MANY_ITEMS})
            ),
            budget=contracts.EncoderBudget(1),
        ),
    ],
)
def test_of_more_problems_than_anyone_reads_ten_thousand_are_listed(
    refuse: Callable[[], object],
) -> None:
    with pytest.raises(ContractError) as caught:
        refuse()
    assert len(caught.value.problems) == MAX_PROBLEMS == 10_000


class Hostile:
    """Raises whenever it is looked at too closely."""

    def __repr__(self) -> str:
        raise AssertionError("printed")

    __str__ = __format__ = __bool__ = __len__ = __iter__ = __repr__

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared")

    __lt__ = __gt__ = __le__ = __ge__ = __eq__

    def __hash__(self) -> int:
        raise AssertionError("hashed")


class HostileMeta(type):
    def __repr__(cls) -> str:
        raise AssertionError("printed")

    __str__ = __repr__


class HostileClass(metaclass=HostileMeta):
    __module__ = None


class HostileModule:
    @property
    def __module__(self) -> str:
        raise AssertionError("asked")


def hostile_values() -> list[object]:
    proxy = mock.MagicMock(spec=torch.Tensor)  # says of itself that it is a tensor
    proxy.__repr__ = Hostile.__repr__
    return [Hostile(), HostileClass(), HostileClass, HostileModule(), proxy]


def junk() -> list[object]:
    """Values of every wrong kind."""
    deep: list = []
    for _ in range(2000):
        deep = [deep]
    endless: list = []
    endless.append(endless)
    return [
        *hostile_values(),
        *([value] for value in hostile_values()),
        *({"a": value} for value in hostile_values()),
        *({"a": {"b": (value,)}} for value in hostile_values()),
        None,
        True,
        -1,
        0,
        2**80,
        1.5,
        float("nan"),
        "",
        "x",
        "\ud800",
        b"x",
        (),
        [],
        [[]],
        [0],
        [-1, True, None],
        [(0,) * 8],
        [("image", 0)],
        [("image", -1), ("", None), 5],
        {},
        {1: 2},
        {"": {}},
        {"a": None},
        {"image": {"a": 5}},
        {"item_metadata": 5, "multimodal_embedding": {}},
        {"multimodal_embedding": ()},
        {1, 2},
        iter([1]),
        range(3),
        object(),
        int,
        len,
        deep,
        endless,
        deep[0],
        np.zeros(2),
        np.array([None]),
        np.array(["local", "arena"]),
        torch.zeros(2),
        torch.zeros(2, device="meta"),
        torch.zeros(2).to_sparse(),
        ItemRef("image", 0),
        TokenIds([1]),
        FrozenMapping({"a": 1}),
        MultimodalParams(),
        ValueError("x"),
        AccumulationError("x", "r1"),
    ]


def accepted_or_refused(build: Callable[..., object], *args: object, **kwargs: object) -> None:
    """Whatever is given, a contract is made or a `ContractError` says why not."""
    error = None
    try:
        build(*args, **kwargs)
    except ContractError as raised:
        error = raised
    if error is not None:
        codes = {problem.code for problem in error.problems}
        assert codes
        assert codes <= PROBLEM_CODES.keys()
        assert (type(error) is ContractTypeError) == ("type" in codes)
        assert len(str(error)) < 10_000
        for problem in error.problems:
            assert all(type(part) in (str, int) for part in problem.path)


class TestJunk:
    """Values of every kind in every field: made or refused, never another exception."""

    def test_in_one_field_at_a_time(self, build: Callable[[], object]) -> None:
        contract = build()
        kind = type(contract)
        if not attrs.has(kind):
            return
        names = [name.removeprefix("_") for name in contract._field_names()]
        good = {
            name: getattr(contract, own)
            for name, own in zip(names, contract._field_names(), strict=True)
        }
        if kind is TokenIds:
            names, good = ["ids"], {"ids": [1]}
        for name, value in itertools.product(names, junk()):
            accepted_or_refused(kind, **{**good, name: value})

    def test_in_two_fields_at_a_time(self) -> None:
        """The checks of one field rely on another only when that is sound."""
        good = {
            "multimodal_hashes": [(0,) * 8] * 2,
            "multimodal_positions": [1, 4],
            "multimodal_lengths": [2, 3],
            "multimodal_uuids": None,
            "multimodal_item_run_cu_offsets": [0, 1, 3],
            "multimodal_run_positions": [1, 4, 6],
            "multimodal_run_lengths": [2, 1, 2],
        }
        wrong = [None, 5, [], [0], [1, 2], [3, 2, 1], [-1, 5, 2**31], [0, 0, 0, 9], [True, "x"]]
        for one, other in itertools.combinations(good, 2):
            for first, second in itertools.product(wrong, wrong):
                accepted_or_refused(MultimodalInput, **{**good, one: first, other: second})

    @pytest.mark.parametrize("count", [1, 2])
    def test_in_refs_and_mappings(self, count: int) -> None:
        for values in itertools.product(junk(), repeat=count):
            if count == 1:
                accepted_or_refused(FrozenMapping, *values)
                accepted_or_refused(content_hash, *values)
            else:
                accepted_or_refused(ItemRef, *values)
                accepted_or_refused(MultimodalItemMetadata, [values])

    @pytest.mark.parametrize(
        "function",
        [
            check_producer,
            check_admission,
            TokenIds.frombytes,
            MultimodalInput.from_tensors,
            MultimodalParams.from_embeddings,
            MultimodalParams().to_device,
            MultimodalItemMetadata([("image", 0)]).select,
            MultimodalItemMetadata([("image", 0)]).merge,
            MultimodalInput([(0,) * 8], [0], [1]).select,
            lambda value: MultimodalInput.from_hexdigests(value, value, value),
            lambda value: MultimodalInput.from_hexdigests(["0" * 64], [0], value),
            lambda value: MultimodalParams().to_device("cpu", value),
            lambda value: MultimodalParams.from_embeddings(torch.zeros(1, 1), value, value),
            lambda value: check_admission(ProcessedRequest("r1", []), value, value),
            *[
                lambda value, name=name: contracts.MultimodalRuntimeData.for_chunk(
                    **{
                        "past_seen_token_num": 0,
                        "chunk_end_pos": 0,
                        **({} if name == "embed_mask_cumsum" else {"embed_mask": [0]}),
                        name: value,
                    }
                )
                for name in (
                    "past_seen_token_num",
                    "chunk_end_pos",
                    "embed_mask",
                    "embed_mask_cumsum",
                )
            ],
            lambda value: contracts.MultimodalRuntimeData.for_chunk(
                past_seen_token_num=0, chunk_end_pos=0, multimodal_input=value
            ),
            lambda value: contracts.MultimodalRuntimeData.for_chunk(
                past_seen_token_num=0,
                chunk_end_pos=0,
                multimodal_input=MultimodalInput([(0,) * 8], [0], [1]),
                special_token_offsets=value,
            ),
        ],
    )
    def test_in_functions(self, function: Callable[[object], object]) -> None:
        for value in junk():
            accepted_or_refused(function, value)


def test_no_error_of_ours_hides_a_builtin() -> None:
    assert not set(contracts.__all__) & set(dir(builtins))


def test_a_huge_faulty_object_costs_a_bounded_error() -> None:
    """Every element of a thousand is named; of a million, ten thousand."""
    with pytest.raises(ContractValueError) as raised:
        MultimodalItemPartition([-1] * 1_000_000)
    assert len(raised.value.problems) == 10_000
    assert raised.value.problems[-1].path == ("item_lengths", 9_999)
    with pytest.raises(ContractValueError) as raised:
        TokenIds(np.full(1_000_000, -1))
    assert len(raised.value.problems) == 10_000
