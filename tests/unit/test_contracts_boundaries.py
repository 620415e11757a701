"""`check_producer` and `check_admission`: every rule, with its path."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from omniwire.contracts import (
    AdmissionError,
    ContractTypeError,
    ContractValueError,
    EncoderBudget,
    EncoderCapability,
    MultimodalInput,
    MultimodalItemMetadata,
    MultimodalItemPartition,
    MultimodalParams,
    MultimodalRuntimeData,
    ProcessedRequest,
    TensorHandle,
    check_admission,
    check_producer,
)

HASH = (0,) * 8
PARAMS = ("multimodal_params",)
DATA = (*PARAMS, "multimodal_data")
RECORD = (*DATA, "item_metadata")
EMBEDDING = (*DATA, "multimodal_embedding")
POSITIONS = (*PARAMS, "multimodal_input", "multimodal_positions")
BATCHED = MultimodalItemPartition()
PACKED = MultimodalItemPartition
REFS = [("image", 0), ("image", 1)]


def handle(*shape: int) -> TensorHandle:
    return TensorHandle("arena", torch.float32, shape, b"slot")


def request(
    data: dict | None = None,
    record: MultimodalItemMetadata | None = None,
    inputs: MultimodalInput | None = None,
    *,
    num_prompt_tokens: int = 20,
    **params: object,
) -> ProcessedRequest:
    payload = dict(data or {})
    if record is not None:
        payload["item_metadata"] = record
    return ProcessedRequest(
        "r1", range(num_prompt_tokens), MultimodalParams(inputs, payload, **params)
    )


def items(partitions: dict | None = None, **fields: object) -> MultimodalItemMetadata:
    return MultimodalItemMetadata(REFS, input_partitions=partitions, **fields)


def spans(positions: list[int], lengths: list[int], *runs: list[int]) -> MultimodalInput:
    return MultimodalInput([HASH] * len(positions), positions, lengths, None, *runs)


@pytest.fixture(params=[check_producer, check_admission], ids=["producer", "admission"])
def refused(request: pytest.FixtureRequest, refusal) -> Callable[[ProcessedRequest], list]:
    """What either check finds wrong: admission is everything that the producer check is."""

    def refuse(wrong: ProcessedRequest) -> list:
        if request.param is check_producer:
            kind, problems = refusal(check_producer, wrong)
            is_type = any(code == "type" for _, code in problems)
            assert kind is (ContractTypeError if is_type else ContractValueError)
        else:
            kind, problems = refusal(check_admission, wrong, FULL_REQUEST)
            assert kind is AdmissionError
        return problems

    return refuse


FULL_REQUEST = EncoderCapability(item_scheduling=False)


def accept(good: ProcessedRequest) -> None:
    assert check_producer(good) is good
    assert check_admission(good, FULL_REQUEST) is good


class TestBatchedFields:
    @pytest.mark.parametrize(
        "value",
        [torch.zeros(2, 3), np.zeros((2, 3)), handle(2, 3), [1, "b"], [torch.zeros(3)] * 2],
    )
    def test_one_slice_per_item(self, value: object) -> None:
        accept(request({"image": {"grid": value}}, items({"image": {"grid": BATCHED}})))

    @pytest.mark.parametrize(
        "value",
        [torch.zeros(3, 2), np.zeros((1, 2)), handle(0, 2), [1], [torch.zeros(2)] * 3, ()],
    )
    def test_another_number_of_slices(self, refused, value: object) -> None:
        wrong = request({"image": {"grid": value}}, items({"image": {"grid": BATCHED}}))
        assert refused(wrong) == [((*DATA, "image", "grid"), "count")]

    @pytest.mark.parametrize("value", [torch.zeros(3, 2), np.zeros((3, 2)), handle(3, 2)])
    def test_along_another_axis(self, refused, value: object) -> None:
        record = items({"image": {"grid": PACKED(axis=1)}})
        accept(request({"image": {"grid": value}}, record))
        wrong = request({"image": {"grid": torch.zeros(2, 3)}}, record)
        assert refused(wrong) == [((*DATA, "image", "grid"), "count")]

    def test_the_items_of_its_own_modality_count(self, refused) -> None:
        record = MultimodalItemMetadata(
            [("image", 0), ("audio", 0), ("image", 1)],
            input_partitions={"image": {"grid": BATCHED}, "audio": {"rate": BATCHED}},
        )
        accept(request({"image": {"grid": [1, 2]}, "audio": {"rate": [1]}}, record))
        wrong = request({"image": {"grid": [1, 2, 3]}, "audio": {"rate": [1, 2]}}, record)
        assert refused(wrong) == [
            ((*DATA, "image", "grid"), "count"),
            ((*DATA, "audio", "rate"), "count"),
        ]


class TestPackedFields:
    @pytest.mark.parametrize("value", [torch.zeros(5, 2), np.zeros(5), handle(5), [1] * 5])
    def test_the_lengths_sum_to_the_axis(self, value: object) -> None:
        accept(request({"image": {"pixels": value}}, items({"image": {"pixels": PACKED((2, 3))}})))

    @pytest.mark.parametrize("value", [torch.zeros(4, 5), np.zeros(6), handle(0, 5), [1] * 4])
    def test_another_sum(self, refused, value: object) -> None:
        wrong = request({"image": {"pixels": value}}, items({"image": {"pixels": PACKED((2, 3))}}))
        assert refused(wrong) == [((*DATA, "image", "pixels"), "sum")]

    def test_along_another_axis(self, refused) -> None:
        record = items({"image": {"pixels": PACKED((2, 3), axis=2)}})
        accept(request({"image": {"pixels": torch.zeros(1, 2, 5)}}, record))
        wrong = request({"image": {"pixels": torch.zeros(5, 2, 1)}}, record)
        assert refused(wrong) == [((*DATA, "image", "pixels"), "sum")]

    def test_empty_items(self) -> None:
        record = items({"image": {"pixels": PACKED((0, 0))}})
        accept(request({"image": {"pixels": torch.zeros(0, 4)}}, record))


class TestDeclaredFields:
    @pytest.mark.parametrize("partition", [BATCHED, PACKED((1, 1))])
    @pytest.mark.parametrize(
        ("value", "axis"),
        [(torch.zeros(()), 0), (torch.zeros(2), 1), (np.zeros(2), 1), ([1, 2], 1), (handle(2), 1)],
    )
    def test_an_axis_that_the_field_does_not_have(self, refused, partition, value, axis) -> None:
        partition = PACKED(partition.item_lengths, axis)
        wrong = request({"image": {"grid": value}}, items({"image": {"grid": partition}}))
        assert refused(wrong) == [((*DATA, "image", "grid"), "axis")]

    @pytest.mark.parametrize("value", [None, 5, "ab", b"ab", True])
    def test_a_field_without_an_item_axis(self, refused, value: object) -> None:
        wrong = request({"image": {"grid": value}}, items({"image": {"grid": BATCHED}}))
        assert refused(wrong) == [((*DATA, "image", "grid"), "type")]

    def test_a_nested_field_divides_everywhere(self, refused) -> None:
        record = items({"image": {"views": BATCHED}})
        accept(request({"image": {"views": {"a": [1, 2], "b": {"c": torch.zeros(2)}}}}, record))
        wrong = request({"image": {"views": {"a": [1], "b": {"c": torch.zeros(3)}}}}, record)
        assert refused(wrong) == [
            ((*DATA, "image", "views", "a"), "count"),
            ((*DATA, "image", "views", "b", "c"), "count"),
        ]

    def test_a_field_that_is_not_there(self, refused) -> None:
        record = items({"image": {"grid": BATCHED, "pixels": PACKED((1, 1)), "x": BATCHED}})
        wrong = request({"image": {"grid": [1, 2]}}, record)
        assert refused(wrong) == [
            ((*DATA, "image", "pixels"), "missing"),
            ((*DATA, "image", "x"), "missing"),
        ]
        assert refused(request({}, record)) == [
            ((*DATA, "image", name), "missing") for name in ("grid", "pixels", "x")
        ]

    def test_with_embeddings_attached_it_may_be_absent(self, refused) -> None:
        record = items({"image": {"grid": BATCHED, "pixels": PACKED((1, 1))}})
        accept(request({"multimodal_embedding": torch.zeros(5, 8)}, record))
        accept(request({"multimodal_embedding": torch.zeros(5, 8), "image": {}}, record))
        wrong = request({"multimodal_embedding": torch.zeros(5, 8), "image": {"grid": [1]}}, record)
        assert refused(wrong) == [((*DATA, "image", "grid"), "count")]

    def test_a_payload_that_has_no_fields(self, refused) -> None:
        record = items({"image": {"grid": BATCHED}})
        wrong = request({"image": torch.zeros(2, 3)}, record)
        assert refused(wrong) == [((*DATA, "image"), "type")]

    def test_shared_and_undeclared_fields_are_free(self) -> None:
        data = {"image": {"scale": 0.5, "table": torch.zeros(7)}, "other": [1, 2, 3]}
        accept(request(data, items({"image": {}})))
        accept(request(data, items({})))
        accept(request(data, items()))
        accept(request({"image": torch.zeros(7)}, items({"image": {}})))
        accept(request({}, items({"image": {}})))


class TestCounts:
    @pytest.mark.parametrize("count", [0, 1, 3])
    def test_as_many_hashes_as_items(self, refused, count: int) -> None:
        wrong = request({}, items(), spans(list(range(count)), [1] * count))
        path = (*PARAMS, "multimodal_input", "multimodal_hashes")
        assert refused(wrong) == [(path, "count")]
        accept(request({}, items(), spans([0, 1], [1, 1])))

    def test_without_a_record_there_is_nothing_to_count(self) -> None:
        accept(request({}, None, spans([0, 1, 2], [1, 1, 1])))


class TestSpans:
    @pytest.mark.parametrize(
        ("inputs", "num_prompt_tokens"),
        [
            (spans([0, 5], [5, 5]), 10),
            (spans([9], [1]), 10),
            (spans([10], [0]), 10),
            (spans([3, 3, 3], [0, 0, 2]), 10),
            (spans([], []), 0),
            (spans([1, 4], [2, 3], [0, 1, 3], [1, 4, 6], [2, 1, 2]), 8),
            (spans([1, 3], [2, 3], [0, 1, 3], [1, 3, 6], [2, 1, 2]), 8),
        ],
    )
    def test_inside_the_prompt_in_order_and_apart(self, inputs, num_prompt_tokens: int) -> None:
        accept(request({}, None, inputs, num_prompt_tokens=num_prompt_tokens))

    @pytest.mark.parametrize(
        ("inputs", "item", "code"),
        [
            (spans([0, 5], [5, 6]), 1, "range"),
            (spans([9], [2]), 0, "range"),
            (spans([11], [0]), 0, "range"),
            (spans([2**31 - 2], [1]), 0, "range"),
            (spans([4], [4], [0, 2], [4, 8], [1, 3]), 0, "range"),
            (spans([5, 0], [5, 5]), 1, "order"),
            (spans([0, 4], [5, 5]), 1, "order"),
            (spans([0, 0], [1, 1]), 1, "order"),
            (spans([4, 3], [0, 1]), 1, "order"),
            (spans([1, 4], [3, 1], [0, 2, 3], [1, 5, 4], [1, 2, 1]), 1, "order"),
        ],
    )
    def test_outside_the_prompt_or_out_of_order(self, refused, inputs, item: int, code) -> None:
        wrong = request({}, None, inputs, num_prompt_tokens=10)
        assert refused(wrong) == [((*POSITIONS, item), code)]

    def test_every_span_is_judged(self, refused) -> None:
        positions = [*range(0, 1998, 2), 5]
        inputs = spans(positions, [1] * 1000)
        assert refused(request({}, None, inputs, num_prompt_tokens=1995)) == [
            ((*POSITIONS, 998), "range"),
            ((*POSITIONS, 999), "order"),
        ]


class TestRows:
    """sglang#32404: as many rows as the items have, or it is no use."""

    KNOWN = items(output_embedding_lengths=(2, 3))

    @pytest.mark.parametrize(
        "embeddings",
        [
            torch.zeros(5, 8),
            handle(5, 8),
            [torch.zeros(2, 8), handle(3, 8)],
            torch.zeros(5, 2, 8),
        ],
    )
    def test_the_rows_that_are_known(self, embeddings: object) -> None:
        accept(request({"multimodal_embedding": embeddings}, self.KNOWN))

    @pytest.mark.parametrize(
        ("embeddings", "path", "code"),
        [
            (torch.zeros(4, 8), (), "count"),
            (handle(6, 8), (), "count"),
            ([torch.zeros(2, 8)], (), "count"),
            ([torch.zeros(2, 8), torch.zeros(3, 8), torch.zeros(1, 8)], (), "count"),
            ([torch.zeros(2, 8), handle(4, 8)], (1,), "count"),
            (torch.zeros(5), (), "shape"),
            (handle(5), (), "shape"),
            (torch.zeros(()), (), "shape"),
            ([torch.zeros(2, 8), torch.zeros(3)], (1,), "shape"),
        ],
    )
    def test_other_rows(self, refused, embeddings: object, path: tuple, code: str) -> None:
        wrong = request({"multimodal_embedding": embeddings}, self.KNOWN)
        assert refused(wrong) == [((*EMBEDDING, *path), code)]

    def test_all_rows_are_judged(self, refused) -> None:
        several = [torch.zeros(3, 8), torch.zeros(2, 8)]
        wrong = request({"multimodal_embedding": several}, self.KNOWN)
        assert refused(wrong) == [((*EMBEDDING, 0), "count"), ((*EMBEDDING, 1), "count")]

    def test_unknown_rows_are_not_judged_but_the_items_are(self, refused) -> None:
        unknown = items()
        accept(request({"multimodal_embedding": torch.zeros(99, 8)}, unknown))
        accept(request({"multimodal_embedding": [torch.zeros(9, 8)] * 2}, unknown))
        wrong = request({"multimodal_embedding": [torch.zeros(9, 8)] * 3}, unknown)
        assert refused(wrong) == [(EMBEDDING, "count")]

    def test_the_items_may_be_known_from_their_hashes_alone(self, refused) -> None:
        inputs = spans([0, 5], [2, 3])
        several = [torch.zeros(2, 8), torch.zeros(3, 8)]
        accept(request({"multimodal_embedding": several}, None, inputs))
        wrong = request({"multimodal_embedding": several[:1]}, None, inputs)
        assert refused(wrong) == [(EMBEDDING, "count")]

    def test_embeddings_alone(self) -> None:
        accept(request({"multimodal_embedding": torch.zeros(5, 8)}))
        accept(request({"multimodal_embedding": [torch.zeros(5, 8)]}))


class TestState:
    def test_no_live_executor_state(self, refused) -> None:
        assert refused(request(encoder_state=object())) == [((*PARAMS, "encoder_state"), "state")]

    def test_no_chunk_runtime(self, refused) -> None:
        wrong = request(multimodal_runtime=MultimodalRuntimeData(0, 1, 0, 0, 0))
        assert refused(wrong) == [((*PARAMS, "multimodal_runtime"), "state")]


def test_text_only_requests_pass() -> None:
    text = ProcessedRequest("r1", [1, 2])
    assert check_producer(text) is check_admission(text) is text
    accept(request())


def test_every_problem_of_a_request_is_reported_at_once(refused) -> None:
    wrong = request(
        {
            "image": {"grid": [1]},
            "multimodal_embedding": [torch.zeros(2, 8), torch.zeros(1, 8)],
        },
        items({"image": {"grid": BATCHED}}, output_embedding_lengths=(2, 3)),
        spans([1, 0, 30], [1, 1, 1]),
        encoder_state=object(),
    )
    assert refused(wrong) == [
        ((*PARAMS, "encoder_state"), "state"),
        ((*PARAMS, "multimodal_input", "multimodal_hashes"), "count"),
        ((*POSITIONS, 1), "order"),
        ((*POSITIONS, 2), "range"),
        ((*DATA, "image", "grid"), "count"),
        ((*EMBEDDING, 1), "count"),
    ]


@pytest.mark.parametrize("value", [None, "r1", {}, MultimodalParams()])
def test_only_a_request_is_checked(refusal, value: object) -> None:
    for check in (check_producer, check_admission):
        assert refusal(check, value) == (ContractTypeError, [(("request",), "type")])


def test_checking_changes_nothing() -> None:
    good = request({"image": {"grid": [1, 2]}}, items({"image": {"grid": BATCHED}}))
    twin = request({"image": {"grid": [1, 2]}}, items({"image": {"grid": BATCHED}}))
    assert check_admission(check_producer(good), FULL_REQUEST) == twin


def schedulable(**fields: object) -> ProcessedRequest:
    """Two images of 100 and 50 encoder tokens and 25 and 10 rows, with some fields changed."""
    given = {
        "encoder_token_lengths": (100, 50),
        "output_embedding_lengths": (25, 10),
        "input_partitions": {"image": {"grid": BATCHED}},
        **fields,
    }
    return request({"image": {"grid": [1, 2]}}, MultimodalItemMetadata(REFS, **given))


class TestAdmission:
    @pytest.fixture
    def refused(self, refusal):
        """What admission under item scheduling finds wrong."""

        def refuse(wrong: ProcessedRequest, *arguments: object) -> list:
            kind, problems = refusal(check_admission, wrong, *arguments)
            assert kind is AdmissionError
            return problems

        return refuse

    def test_what_item_scheduling_needs(self) -> None:
        good = schedulable()
        assert check_admission(good) is good

    @pytest.mark.parametrize("name", ["encoder_token_lengths", "output_embedding_lengths"])
    def test_costs_and_rows_are_exact(self, refused, name: str) -> None:
        assert refused(schedulable(**{name: None})) == [((*RECORD, name), "missing")]

    @pytest.mark.parametrize("partitions", [None, {}])
    def test_partitions_are_declared(self, refused, partitions: object) -> None:
        assert refused(schedulable(input_partitions=partitions)) == [
            ((*RECORD, "input_partitions", "image"), "missing")
        ]
        assert check_admission(schedulable(input_partitions={"image": {}}))

    def test_for_every_modality(self, refused) -> None:
        record = MultimodalItemMetadata(
            [("image", 0), ("audio", 0), ("video", 0), ("audio", 1)],
            [1] * 4,
            [1] * 4,
            {"image": {}},
        )
        assert refused(request({}, record)) == [
            ((*RECORD, "input_partitions", "audio"), "missing"),
            ((*RECORD, "input_partitions", "video"), "missing"),
        ]

    def test_a_model_that_selects_by_itself_needs_none(self, refused) -> None:
        custom = EncoderCapability(custom_selection=True)
        assert check_admission(schedulable(input_partitions=None), custom)
        assert refused(schedulable(input_partitions=None, encoder_token_lengths=None), custom) == [
            ((*RECORD, "encoder_token_lengths"), "missing")
        ]

    def test_the_cost_of_every_item_fits_the_budget(self, refused) -> None:
        default = EncoderCapability()
        assert check_admission(schedulable(), default, EncoderBudget(max_encoder_tokens=100))
        assert refused(schedulable(), default, EncoderBudget(max_encoder_tokens=99)) == [
            ((*RECORD, "encoder_token_lengths", 0), "budget")
        ]
        assert refused(schedulable(), default, EncoderBudget(max_encoder_tokens=49)) == [
            ((*RECORD, "encoder_token_lengths", 0), "budget"),
            ((*RECORD, "encoder_token_lengths", 1), "budget"),
        ]

    def test_the_output_bytes_of_every_item_fit_the_budget(self, refused) -> None:
        def budget(max_output_bytes: int) -> EncoderBudget:
            return EncoderBudget(None, max_output_bytes, output_row_bytes=8)

        default = EncoderCapability()
        assert check_admission(schedulable(), default, budget(25 * 8))
        assert refused(schedulable(), default, budget(25 * 8 - 1)) == [
            ((*RECORD, "output_embedding_lengths", 0), "budget")
        ]
        assert refused(schedulable(), default, budget(10 * 8 - 1)) == [
            ((*RECORD, "output_embedding_lengths", 0), "budget"),
            ((*RECORD, "output_embedding_lengths", 1), "budget"),
        ]

    def test_the_budget_is_per_item_and_not_per_request(self) -> None:
        budget = EncoderBudget(100, 25 * 8, 8)
        assert check_admission(schedulable(), EncoderCapability(), budget)

    def test_the_bytes_of_a_row_alone_are_no_bound(self) -> None:
        budget = EncoderBudget(output_row_bytes=2**40)
        assert check_admission(schedulable(), EncoderCapability(), budget)

    def test_the_last_of_a_thousand_items(self, refused) -> None:
        refs = [("image", i) for i in range(1000)]
        record = MultimodalItemMetadata(refs, [*[9] * 999, 10], [1] * 1000, {"image": {}})
        wrong = request({}, record)
        assert refused(wrong, EncoderCapability(), EncoderBudget(9)) == [
            ((*RECORD, "encoder_token_lengths", 999), "budget")
        ]

    @pytest.mark.parametrize(
        "wrong",
        [request({"image": {"pixels": torch.zeros(2)}}), request({}, None, spans([0], [1]))],
    )
    def test_items_without_a_record(self, refused, wrong: ProcessedRequest) -> None:
        assert refused(wrong) == [(RECORD, "missing")]

    @pytest.mark.parametrize(
        "params",
        [
            MultimodalParams(),
            MultimodalParams(multimodal_data={"mrope_config": {"x": 1}}),
            MultimodalParams(multimodal_data={"item_metadata": MultimodalItemMetadata([])}),
        ],
    )
    def test_without_items_there_is_nothing_to_schedule(self, params: MultimodalParams) -> None:
        text = ProcessedRequest("r1", [1], params)
        assert check_admission(text, EncoderCapability(), EncoderBudget(1)) is text

    @pytest.mark.parametrize(
        "embeddings", [torch.zeros(35, 8), handle(35, 8), [torch.zeros(25, 8), handle(10, 8)]]
    )
    def test_attached_embeddings_skip_the_costs(self, embeddings: object) -> None:
        record = MultimodalItemMetadata(REFS, None, (25, 10), {"image": {"grid": BATCHED}})
        good = request({"multimodal_embedding": embeddings}, record)
        assert check_admission(good, EncoderCapability(), EncoderBudget(1, 1, 1)) is good

    def test_full_request_encoding_needs_no_costs(self) -> None:
        good = schedulable(encoder_token_lengths=None, input_partitions=None)
        assert check_admission(good, FULL_REQUEST, EncoderBudget(1, 1, 1)) is good

    @pytest.mark.parametrize(
        ("embeddings", "paths"),
        [
            (torch.zeros(10, 4096), [()]),
            (handle(10, 4096), [()]),
            ([torch.zeros(5, 64), handle(5, 32)], [(1,)]),
            ([torch.zeros(5, 1), torch.zeros(5, 2)], [(0,), (1,)]),
            (torch.zeros(10, 64, 2), [()]),
        ],
    )
    @pytest.mark.parametrize("item_scheduling", [True, False])
    def test_the_hidden_size(self, refused, embeddings, paths, item_scheduling: bool) -> None:
        """vllm#30968: embeddings of another model are refused at admission."""
        wrong = request({"multimodal_embedding": embeddings})
        capability = EncoderCapability(item_scheduling, hidden_size=64)
        expected = [((*EMBEDDING, *path), "shape") for path in paths]
        assert refused(wrong, capability) == expected
        assert check_admission(wrong, EncoderCapability(item_scheduling)) is wrong

    def test_the_hidden_size_that_fits(self) -> None:
        capability = EncoderCapability(hidden_size=64)
        for embeddings in (torch.zeros(10, 64), handle(10, 64), [torch.zeros(5, 2, 64)]):
            assert check_admission(request({"multimodal_embedding": embeddings}), capability)
        assert check_admission(schedulable(), capability)

    def test_a_shape_without_rows_is_reported_once(self, refused) -> None:
        wrong = request({"multimodal_embedding": torch.zeros(64)})
        assert refused(wrong, EncoderCapability(hidden_size=8)) == [(EMBEDDING, "shape")]

    def test_everything_at_once(self, refused) -> None:
        wrong = request(
            {"image": {"grid": [1]}},
            MultimodalItemMetadata(REFS, (100, 50), None, {"image": {"grid": BATCHED}}),
            encoder_state=object(),
        )
        assert refused(wrong, EncoderCapability(), EncoderBudget(60)) == [
            ((*PARAMS, "encoder_state"), "state"),
            ((*DATA, "image", "grid"), "count"),
            ((*RECORD, "encoder_token_lengths", 0), "budget"),
            ((*RECORD, "output_embedding_lengths"), "missing"),
        ]

    def test_the_error_names_the_request(self) -> None:
        wrong = ProcessedRequest("request-7", [1], MultimodalParams(encoder_state=object()))
        with pytest.raises(AdmissionError) as caught:
            check_admission(wrong)
        assert caught.value.request_id == "request-7"
        assert not isinstance(caught.value, (ContractTypeError, ContractValueError))

    def test_a_refusal_never_falls_back_and_touches_no_other_request(self, refused) -> None:
        """The capability and budget stay as they are, and the next request is judged alike."""
        capability, budget = EncoderCapability(), EncoderBudget(99)
        wrong, good = schedulable(), schedulable(encoder_token_lengths=(99, 50))
        assert refused(wrong, capability, budget) == refused(wrong, capability, budget)
        assert check_admission(good, capability, budget) is good
        assert capability == EncoderCapability()
        assert wrong == schedulable()

    def test_arguments_of_another_type(self, refusal) -> None:
        assert refusal(check_admission, schedulable(), None, {}) == (
            ContractTypeError,
            [(("capability",), "type"), (("budget",), "type")],
        )
