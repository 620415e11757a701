"""`ProcessedRequest` and `DisaggregatedParams`."""

import numpy as np
import pytest
import torch

from omniwire.contracts import (
    ContractTypeError,
    ContractValueError,
    DisaggregatedParams,
    MultimodalParams,
    ProcessedRequest,
    TensorHandle,
    TokenIds,
)

HASH = (0,) * 8
BAD_TEXTS = [
    (None, ContractTypeError, "type"),
    (5, ContractTypeError, "type"),
    (b"r1", ContractTypeError, "type"),
    (type("Text", (str,), {})("r1"), ContractTypeError, "type"),
    ("", ContractValueError, "format"),
    ("r\ud800", ContractValueError, "format"),
]


def handle() -> TensorHandle:
    return TensorHandle("arena", torch.float32, (2, 3), b"slot")


class TestProcessedRequest:
    def test_a_text_only_request_carries_no_params(self) -> None:
        assert ProcessedRequest("r1", [1]).multimodal_params is None

    @pytest.mark.parametrize(("request_id", "kind", "code"), BAD_TEXTS)
    def test_the_id_is_a_non_empty_str(self, refusal, request_id, kind: type, code: str) -> None:
        assert refusal(ProcessedRequest, request_id, [1]) == (kind, [(("request_id",), code)])

    @pytest.mark.parametrize(
        "ids", [[1, 5, 2], (1, 5, 2), np.array([1, 5, 2]), torch.tensor([1, 5, 2])]
    )
    def test_the_prompt_is_stored_as_token_ids(self, ids: object) -> None:
        request = ProcessedRequest("r1", ids)
        assert type(request.prompt_token_ids) is TokenIds
        assert request.prompt_token_ids == (1, 5, 2)

    def test_token_ids_are_taken_as_they_are(self) -> None:
        ids = TokenIds([1, 2])
        assert ProcessedRequest("r1", ids).prompt_token_ids is ids

    def test_the_prompt_may_be_empty(self) -> None:
        assert ProcessedRequest("r1", []).prompt_token_ids == ()

    @pytest.mark.parametrize(
        ("ids", "kind", "problems"),
        [
            (None, ContractTypeError, [((), "type")]),
            ("12", ContractTypeError, [((), "type")]),
            ([*[1] * 999, True], ContractTypeError, [((999,), "type")]),
            ([1, -1, 2**31], ContractValueError, [((1,), "range"), ((2,), "range")]),
            (torch.tensor([1.0]), ContractTypeError, [((), "type")]),
            (np.array([[1]]), ContractValueError, [((), "shape")]),
        ],
    )
    def test_a_bad_prompt(self, refusal, ids: object, kind: type, problems: list) -> None:
        expected = [(("prompt_token_ids", *path), code) for path, code in problems]
        assert refusal(ProcessedRequest, "r1", ids) == (kind, expected)

    @pytest.mark.parametrize("params", [{}, "params", handle(), MultimodalParams])
    def test_params_are_multimodal_params(self, refusal, params: object) -> None:
        assert refusal(ProcessedRequest, "r1", [1], params) == (
            ContractTypeError,
            [(("multimodal_params",), "type")],
        )

    def test_every_problem_is_reported(self, refusal) -> None:
        assert refusal(ProcessedRequest, "", [0, -1], 5) == (
            ContractTypeError,
            [
                (("request_id",), "format"),
                (("prompt_token_ids", 1), "range"),
                (("multimodal_params",), "type"),
            ],
        )


class TestDisaggregatedParams:
    def test_its_defaults(self) -> None:
        params = DisaggregatedParams()
        assert params.multimodal_embedding_handles is None
        assert params.multimodal_hashes is None
        assert params.request_type == "prefill"
        assert params.opaque_state is None

    def test_lists_are_stored_as_tuples(self) -> None:
        handles, hashes = [handle()], [list(HASH)]
        params = DisaggregatedParams(handles, hashes)
        handles.clear()
        hashes[0][0] = 9
        assert params.multimodal_embedding_handles == (handle(),)
        assert params.multimodal_hashes == (HASH,)
        assert type(params.multimodal_embedding_handles) is tuple

    @pytest.mark.parametrize("handles", [5, "h", {}, handle(), iter([])])
    def test_no_tuple_or_list_of_handles(self, refusal, handles: object) -> None:
        assert refusal(DisaggregatedParams, handles) == (
            ContractTypeError,
            [(("multimodal_embedding_handles",), "type")],
        )

    @pytest.mark.parametrize("one", [None, torch.zeros(2, 3), b"slot"])
    def test_the_last_handle_of_a_thousand(self, refusal, one: object) -> None:
        assert refusal(DisaggregatedParams, [*[handle()] * 999, one]) == (
            ContractTypeError,
            [(("multimodal_embedding_handles", 999), "type")],
        )

    @pytest.mark.parametrize(
        ("hashes", "kind", "problems"),
        [
            ("x", ContractTypeError, [((), "type")]),
            ([None], ContractTypeError, [((0,), "type")]),
            ([HASH[:7]], ContractValueError, [((0,), "count")]),
            ([(*HASH[:7], True)], ContractTypeError, [((0, 7), "type")]),
            ([(*HASH[:7], 2**31)], ContractValueError, [((0, 7), "range")]),
        ],
    )
    def test_bad_hashes(self, refusal, hashes: object, kind: type, problems: list) -> None:
        expected = [(("multimodal_hashes", *path), code) for path, code in problems]
        assert refusal(DisaggregatedParams, None, hashes) == (kind, expected)
        assert refusal(DisaggregatedParams, [handle()] * 2, hashes) == (kind, expected)

    @pytest.mark.parametrize("hashes", [[], [HASH] * 2])
    def test_as_many_hashes_as_handles(self, refusal, hashes: list) -> None:
        assert refusal(DisaggregatedParams, [handle()], hashes) == (
            ContractValueError,
            [(("multimodal_hashes",), "count")],
        )
        assert DisaggregatedParams(None, hashes)
        assert DisaggregatedParams([handle()], None)

    @pytest.mark.parametrize(("request_type", "kind", "code"), BAD_TEXTS)
    def test_the_request_type_is_a_non_empty_str(self, refusal, request_type, kind, code) -> None:
        assert refusal(DisaggregatedParams, request_type=request_type) == (
            kind,
            [(("request_type",), code)],
        )

    @pytest.mark.parametrize("state", ["x", bytearray(1), memoryview(b"x"), 5, {}])
    def test_the_opaque_state_is_bytes(self, refusal, state: object) -> None:
        assert refusal(DisaggregatedParams, opaque_state=state) == (
            ContractTypeError,
            [(("opaque_state",), "type")],
        )
        assert DisaggregatedParams(opaque_state=b"").opaque_state == b""

    def test_every_problem_is_reported(self, refusal) -> None:
        assert refusal(DisaggregatedParams, [None], [HASH, ()], "", "") == (
            ContractTypeError,
            [
                (("multimodal_embedding_handles", 0), "type"),
                (("multimodal_hashes", 1), "count"),
                (("request_type",), "format"),
                (("opaque_state",), "type"),
            ],
        )
