"""What comes back: `OmniOutput`, `OutputChunk`, `OutputSpec` and its rules, `RequestOutput`."""

from collections.abc import Callable

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
    OmniOutput,
    OutputChunk,
    OutputKind,
    OutputSpec,
    Replace,
    RequestOutput,
    Stack,
    TensorHandle,
    TokenIds,
)

NOT_INTS = [True, 1.0, "1", None, np.int64(1)]
HANDLE = TensorHandle("arena", torch.float32, (2, 3), b"slot")
BAD_TEXTS = [
    (5, ContractTypeError, "type"),
    (b"r1", ContractTypeError, "type"),
    ("", ContractValueError, "format"),
    ("r\ud800", ContractValueError, "format"),
]
BAD_TENSORS = [
    (torch.zeros(2).to_sparse(), ContractValueError, "layout"),
    (torch.zeros(2, device="meta"), ContractValueError, "layout"),
    (torch.nn.Parameter(torch.zeros(2)), ContractTypeError, "type"),
]
NO_TENSORS = [None, 1, 1.0, "t", b"t", np.zeros(2), TokenIds([1])]


def test_the_kinds() -> None:
    assert {kind.name for kind in ChunkKind} == {"DELTA", "CUMULATIVE", "FINAL"}
    assert {kind.name for kind in OutputKind} == {"DELTA", "CUMULATIVE", "FINAL_ONLY"}


class TestOmniOutput:
    def test_it_may_be_empty(self) -> None:
        output = OmniOutput()
        assert output.text_hidden_states is None
        assert output.multimodal_outputs == output.inter_stage_outputs == {}
        assert type(output.multimodal_outputs) is FrozenMapping

    def test_it_holds_hidden_states(self) -> None:
        hidden = torch.zeros(3, 8)
        assert OmniOutput(hidden).text_hidden_states is hidden

    def test_a_handle_is_legal_wherever_a_tensor_is(self) -> None:
        output = OmniOutput(HANDLE, {"a": HANDLE, "b": [HANDLE, torch.ones(1)]}, {"c": HANDLE})
        assert output.text_hidden_states is HANDLE
        assert output.multimodal_outputs["a"] is HANDLE

    @pytest.mark.parametrize("hidden", [5, "x", np.zeros(2), [torch.ones(1)], {}])
    def test_hidden_states_that_are_no_tensor(self, refusal, hidden: object) -> None:
        assert refusal(OmniOutput, hidden) == (
            ContractTypeError,
            [(("text_hidden_states",), "type")],
        )

    @pytest.mark.parametrize(("hidden", "kind", "code"), BAD_TENSORS)
    def test_hidden_states_that_cannot_be_carried(self, refusal, hidden, kind, code) -> None:
        assert refusal(OmniOutput, hidden) == (kind, [(("text_hidden_states",), code)])


@pytest.mark.parametrize("name", ["multimodal_outputs", "inter_stage_outputs"])
class TestOutputTree:
    def test_tensors_scalars_strings_chunks_and_mappings_of_those(self, name: str) -> None:
        """vllm-omni#472: one accepted set."""
        chunks = [torch.ones(3), torch.ones(2)]
        given = {
            "t": torch.ones(2),
            "i": 1,
            "f": 0.5,
            "b": True,
            "s": "mp3",
            "chunks": chunks,
            "nested": {"codes": {"audio": torch.ones(1)}, "none": ()},
        }
        tree = getattr(OmniOutput(**{name: given}), name)
        chunks.clear()
        assert tree == {**given, "chunks": (torch.ones(3), torch.ones(2))}
        assert type(tree["chunks"]) is tuple
        assert type(tree["nested"]["codes"]) is FrozenMapping

    @pytest.mark.parametrize(
        "value", [None, b"x", np.zeros(2), TokenIds([1]), object(), {1, 2}, 1j, ChunkKind.DELTA]
    )
    def test_a_value_of_another_kind(self, refusal, name: str, value: object) -> None:
        """dynamo#9517, vllm-omni#1601: refused with its path, never turned into something."""
        assert refusal(OmniOutput, **{name: {"a": {"b": value}}}) == (
            ContractTypeError,
            [((name, "a", "b"), "type")],
        )

    @pytest.mark.parametrize("value", [*NO_TENSORS, [torch.ones(1)], {"x": torch.ones(1)}])
    def test_a_tuple_holds_tensors_only(self, refusal, name: str, value: object) -> None:
        assert refusal(OmniOutput, **{name: {"a": [*[torch.ones(1)] * 99, value]}}) == (
            ContractTypeError,
            [((name, "a", 99), "type")],
        )

    @pytest.mark.parametrize(("tensor", "kind", "code"), BAD_TENSORS)
    def test_a_tensor_that_cannot_be_carried(self, refusal, name: str, tensor, kind, code) -> None:
        assert refusal(OmniOutput, **{name: {"a": [tensor]}}) == (kind, [((name, "a", 0), code)])

    @pytest.mark.parametrize("tree", [None, 5, "x", [], [("a", 1)], torch.ones(1)])
    def test_no_mapping(self, refusal, name: str, tree: object) -> None:
        assert refusal(OmniOutput, **{name: tree}) == (ContractTypeError, [((name,), "type")])

    def test_keys_are_str(self, refusal, name: str) -> None:
        assert refusal(OmniOutput, **{name: {"a": {0: 1}, None: 1}}) == (
            ContractTypeError,
            [((name, "a"), "type"), ((name,), "type")],
        )


def test_every_problem_of_an_output_is_reported(refusal) -> None:
    assert refusal(OmniOutput, 5, {"a": None, "b": [1]}, {"c": torch.zeros(1).to_sparse()}) == (
        ContractTypeError,
        [
            (("text_hidden_states",), "type"),
            (("multimodal_outputs", "a"), "type"),
            (("multimodal_outputs", "b", 0), "type"),
            (("inter_stage_outputs", "c"), "layout"),
        ],
    )


def chunk(**fields: object) -> OutputChunk:
    return OutputChunk(**{"request_id": "r1", "step": 0, "output_type": "text+audio", **fields})


class TestOutputChunk:
    def test_its_defaults(self) -> None:
        assert chunk().new_token_ids == TokenIds()
        assert chunk().output is None
        assert chunk().kind is ChunkKind.DELTA
        assert chunk().finish_reason is None

    @pytest.mark.parametrize("name", ["request_id", "output_type", "finish_reason"])
    @pytest.mark.parametrize(("value", "kind", "code"), BAD_TEXTS)
    def test_texts(self, refusal, name: str, value: object, kind: type, code: str) -> None:
        assert refusal(chunk, **{name: value}) == (kind, [((name,), code)])

    @pytest.mark.parametrize("name", ["request_id", "output_type"])
    def test_texts_that_are_required(self, refusal, name: str) -> None:
        assert refusal(chunk, **{name: None}) == (ContractTypeError, [((name,), "type")])

    @pytest.mark.parametrize("step", NOT_INTS)
    def test_a_step_that_is_no_int(self, refusal, step: object) -> None:
        assert refusal(chunk, step=step) == (ContractTypeError, [(("step",), "type")])

    @pytest.mark.parametrize("step", [-1, 2**63])
    def test_a_step_out_of_range(self, refusal, step: int) -> None:
        assert refusal(chunk, step=step) == (ContractValueError, [(("step",), "range")])

    @pytest.mark.parametrize(
        ("ids", "kind", "problems"),
        [
            (None, ContractTypeError, [((), "type")]),
            ([1, True], ContractTypeError, [((1,), "type")]),
            ([1, -1], ContractValueError, [((1,), "range")]),
        ],
    )
    def test_new_token_ids(self, refusal, ids: object, kind: type, problems: list) -> None:
        expected = [(("new_token_ids", *path), code) for path, code in problems]
        assert refusal(chunk, new_token_ids=ids) == (kind, expected)

    @pytest.mark.parametrize("output", [{}, torch.ones(1), "x", OmniOutput])
    def test_the_output_is_an_omni_output(self, refusal, output: object) -> None:
        assert refusal(chunk, output=output) == (ContractTypeError, [(("output",), "type")])

    @pytest.mark.parametrize("kind", [None, "delta", "DELTA", OutputKind.DELTA, 0])
    def test_the_kind_is_a_chunk_kind(self, refusal, kind: object) -> None:
        """vllm-omni#3032: said by the chunk, never guessed."""
        assert refusal(chunk, kind=kind) == (ContractTypeError, [(("kind",), "type")])

    def test_every_problem_is_reported(self, refusal) -> None:
        assert refusal(OutputChunk, "", -1, None, [True], {}, "delta", "") == (
            ContractTypeError,
            [
                (("request_id",), "format"),
                (("step",), "range"),
                (("output_type",), "type"),
                (("new_token_ids", 0), "type"),
                (("output",), "type"),
                (("kind",), "type"),
                (("finish_reason",), "format"),
            ],
        )


@pytest.mark.parametrize("rule", [Concat, Stack])
class TestDim:
    @pytest.mark.parametrize("dim", [0, -1, 5, -(2**31), 2**31 - 1])
    def test_it_may_count_from_the_end(self, rule: Callable[[int], object], dim: int) -> None:
        assert rule(dim).dim == dim

    @pytest.mark.parametrize("dim", NOT_INTS)
    def test_no_int(self, refusal, rule, dim: object) -> None:
        assert refusal(rule, dim) == (ContractTypeError, [(("dim",), "type")])

    @pytest.mark.parametrize("dim", [2**31, -(2**31) - 1])
    def test_out_of_range(self, refusal, rule, dim: int) -> None:
        assert refusal(rule, dim) == (ContractValueError, [(("dim",), "range")])


def test_stack_has_a_default_and_concat_none() -> None:
    assert Stack().dim == 0
    with pytest.raises(TypeError):
        Concat()


class TestOutputSpec:
    def test_rules_by_dotted_key_or_modality(self) -> None:
        rules = {"codes.audio": Concat(0), "codes.ref": Replace(), "a": Stack(), "b": Append()}
        spec = OutputSpec(rules)
        rules.clear()
        assert list(spec.entries.items()) == [
            ("codes.audio", Concat(0)),
            ("codes.ref", Replace()),
            ("a", Stack(0)),
            ("b", Append()),
        ]
        assert OutputSpec().entries == {}

    @pytest.mark.parametrize("key", ["", ".", "a.", ".a", "a..b"])
    def test_a_malformed_key(self, refusal, key: str) -> None:
        assert refusal(OutputSpec, {key: Replace()}) == (
            ContractValueError,
            [(("entries", key), "format")],
        )

    @pytest.mark.parametrize("rule", [None, "concat", 0, Concat, {"dim": 0}, [Concat(0)]])
    def test_a_value_that_is_no_rule(self, refusal, rule: object) -> None:
        assert refusal(OutputSpec, {"a": Replace(), "b": rule}) == (
            ContractTypeError,
            [(("entries", "b"), "type")],
        )

    @pytest.mark.parametrize("entries", [None, [], Concat(0), "a"])
    def test_no_mapping(self, refusal, entries: object) -> None:
        assert refusal(OutputSpec, entries) == (ContractTypeError, [(("entries",), "type")])

    def test_every_problem_is_reported(self, refusal) -> None:
        assert refusal(OutputSpec, {"": None, "b": 5}) == (
            ContractTypeError,
            [(("entries", ""), "format"), (("entries", ""), "type"), (("entries", "b"), "type")],
        )


def result(**fields: object) -> RequestOutput:
    return RequestOutput(**{"request_id": "r1", **fields})


class TestRequestOutput:
    def test_its_defaults(self) -> None:
        output = result()
        assert output.new_token_ids == ()
        for name in ("multimodal_outputs", "metadata", "tensors", "errors"):
            assert getattr(output, name) == {}
            assert type(getattr(output, name)) is FrozenMapping
        assert output.finished is False
        assert output.finish_reason is None

    @pytest.mark.parametrize("name", ["request_id", "finish_reason"])
    @pytest.mark.parametrize(("value", "kind", "code"), BAD_TEXTS)
    def test_texts(self, refusal, name: str, value: object, kind: type, code: str) -> None:
        assert refusal(result, **{name: value}) == (kind, [((name,), code)])

    @pytest.mark.parametrize(("ids", "code"), [([True], "type"), ([-1], "range")])
    def test_new_token_ids(self, refusal, ids: list, code: str) -> None:
        assert refusal(result, new_token_ids=ids)[1] == [(("new_token_ids", 0), code)]

    @pytest.mark.parametrize("name", ["multimodal_outputs", "tensors"])
    def test_a_place_has_a_tensor_or_a_tuple_of_tensors(self, refusal, name: str) -> None:
        chunks = [torch.ones(1), HANDLE]
        output = result(**{name: {"a": torch.ones(2), "b": chunks, "c": HANDLE, "d": ()}})
        chunks.clear()
        assert getattr(output, name)["b"] == (torch.ones(1), HANDLE)
        wrong = {"a": 1, "b": [torch.ones(1), None], "c": {"x": torch.ones(1)}, "d": "s"}
        assert refusal(result, **{name: wrong}) == (
            ContractTypeError,
            [
                ((name, "a"), "type"),
                ((name, "b", 1), "type"),
                ((name, "c"), "type"),
                ((name, "d"), "type"),
            ],
        )

    @pytest.mark.parametrize("name", ["multimodal_outputs", "tensors"])
    @pytest.mark.parametrize(("tensor", "kind", "code"), BAD_TENSORS)
    def test_a_tensor_that_cannot_be_carried(self, refusal, name: str, tensor, kind, code) -> None:
        assert refusal(result, **{name: {"a": tensor}}) == (kind, [((name, "a"), code)])

    def test_metadata_is_scalars_and_strings_by_modality(self, refusal) -> None:
        metadata = {"audio": {"sample_rate": 24000, "format": "wav", "gain": 0.5, "mono": True}}
        assert result(metadata=metadata).metadata == metadata
        wrong = {"audio": {"a": None, "b": torch.ones(1), "c": (1,), "d": {}}, "video": 24}
        assert refusal(result, metadata=wrong) == (
            ContractTypeError,
            [
                (("metadata", "audio", "a"), "type"),
                (("metadata", "audio", "b"), "type"),
                (("metadata", "audio", "c"), "type"),
                (("metadata", "audio", "d"), "type"),
                (("metadata", "video"), "type"),
            ],
        )

    @pytest.mark.parametrize("name", ["multimodal_outputs", "metadata", "tensors", "errors"])
    @pytest.mark.parametrize("value", [None, [], "x", 5, {1: torch.ones(1)}])
    def test_a_mapping_with_str_keys(self, refusal, name: str, value: object) -> None:
        assert refusal(result, **{name: value}) == (ContractTypeError, [((name,), "type")])

    @pytest.mark.parametrize("finished", [None, 1, 0, "yes", np.True_])
    def test_finished_is_a_bool(self, refusal, finished: object) -> None:
        assert refusal(result, finished=finished) == (ContractTypeError, [(("finished",), "type")])

    def test_errors_are_omniwire_errors_by_modality(self, refusal) -> None:
        error = AccumulationError("x", "r1")
        errors = {"": error, "audio": error}
        output = result(errors=errors)
        errors.clear()
        assert output.errors[""] is error
        assert output.errors == {"": error, "audio": error}
        wrong = {"a": ValueError("x"), "b": None, "c": AccumulationError, "d": "x", "\ud800": error}
        assert refusal(result, errors=wrong) == (
            ContractTypeError,
            [
                (("errors", "a"), "type"),
                (("errors", "b"), "type"),
                (("errors", "c"), "type"),
                (("errors", "d"), "type"),
                (("errors", "\ud800"), "format"),
            ],
        )

    def test_every_problem_is_reported(self, refusal) -> None:
        assert refusal(
            RequestOutput, "", [True], {"a": 1}, {"b": 2}, {"c": 3}, 1, "", {"d": 4}
        ) == (
            ContractTypeError,
            [
                (("request_id",), "format"),
                (("new_token_ids", 0), "type"),
                (("multimodal_outputs", "a"), "type"),
                (("tensors", "c"), "type"),
                (("metadata", "b"), "type"),
                (("finished",), "type"),
                (("finish_reason",), "format"),
                (("errors", "d"), "type"),
            ],
        )
