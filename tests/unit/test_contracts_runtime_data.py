"""`MultimodalRuntimeData`: the record, and its three sources."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from omniwire.contracts import (
    ContractTypeError,
    ContractValueError,
    MultimodalInput,
    MultimodalRuntimeData,
)

INT32_MAX = 2**31 - 1
NOT_INTS = [True, 1.0, "1", None, np.int64(1), torch.tensor(1)]
FIELDS = {
    "past_seen_token_num": 4,
    "chunk_end_pos": 9,
    "num_cached_mm_tokens": 2,
    "num_mm_tokens_in_chunk": 3,
    "total_embeds_in_request": 12,
}
HASH = (0,) * 8

for_chunk = MultimodalRuntimeData.for_chunk


def inputs(positions: list[int], lengths: list[int], *runs: list[int]) -> MultimodalInput:
    return MultimodalInput([HASH] * len(positions), positions, lengths, None, *runs)


def record(**fields: object) -> MultimodalRuntimeData:
    return MultimodalRuntimeData(**{**FIELDS, **fields})


class TestRecord:
    def test_its_rows_are_half_open(self) -> None:
        assert record().row_range == (2, 5)
        assert record(num_mm_tokens_in_chunk=0).row_range == (2, 2)

    @pytest.mark.parametrize("name", FIELDS)
    @pytest.mark.parametrize("value", NOT_INTS)
    def test_a_field_that_is_no_int(self, refusal, name: str, value: object) -> None:
        assert refusal(record, **{name: value}) == (ContractTypeError, [((name,), "type")])

    @pytest.mark.parametrize("name", FIELDS)
    @pytest.mark.parametrize("value", [-1, 2**31])
    def test_a_field_out_of_range(self, refusal, name: str, value: int) -> None:
        assert refusal(record, **{name: value}) == (ContractValueError, [((name,), "range")])

    @pytest.mark.parametrize(
        ("fields", "name"),
        [
            ({"chunk_end_pos": 3}, "chunk_end_pos"),
            ({"num_cached_mm_tokens": 5}, "num_cached_mm_tokens"),
            ({"num_mm_tokens_in_chunk": 6}, "num_mm_tokens_in_chunk"),
            ({"chunk_end_pos": 4, "num_mm_tokens_in_chunk": 1}, "num_mm_tokens_in_chunk"),
            ({"total_embeds_in_request": 4}, "total_embeds_in_request"),
        ],
    )
    def test_a_field_in_contradiction_to_another(self, refusal, fields: dict, name: str) -> None:
        assert refusal(record, **fields) == (ContractValueError, [((name,), "range")])

    @pytest.mark.parametrize(
        "fields",
        [
            {"chunk_end_pos": 4, "num_mm_tokens_in_chunk": 0},
            {"num_cached_mm_tokens": 4},
            {"num_mm_tokens_in_chunk": 5},
            {"total_embeds_in_request": 5},
            {name: INT32_MAX if name[0] in "pct" else 0 for name in FIELDS},
            dict.fromkeys(FIELDS, 0),
        ],
    )
    def test_the_bounds_are_inclusive(self, fields: dict) -> None:
        assert record(**fields)

    def test_every_problem_is_reported_and_what_depends_on_a_faulty_field_skipped(
        self, refusal
    ) -> None:
        assert refusal(MultimodalRuntimeData, 4, 9, 5, 6, 10) == (
            ContractValueError,
            [
                (("num_cached_mm_tokens",), "range"),
                (("num_mm_tokens_in_chunk",), "range"),
                (("total_embeds_in_request",), "range"),
            ],
        )
        assert refusal(MultimodalRuntimeData, 4, 3, 5, 1, True) == (
            ContractTypeError,
            [(("total_embeds_in_request",), "type")],
        )
        assert refusal(MultimodalRuntimeData, 4, 3, 0, 1, 9) == (
            ContractValueError,
            [(("chunk_end_pos",), "range")],
        )


def cumsum_of(mask: list[int]) -> list[int]:
    return [sum(mask[: end + 1]) for end in range(len(mask))]


SOURCES: dict[str, Callable[[list[int]], dict[str, object]]] = {
    "mask": lambda mask: {"embed_mask": mask},
    "mask of bools": lambda mask: {"embed_mask": tuple(map(bool, mask))},
    "array": lambda mask: {"embed_mask": np.array(mask, dtype=np.uint8)},
    "array of bools": lambda mask: {"embed_mask": np.array(mask, dtype=bool)},
    "tensor": lambda mask: {"embed_mask": torch.tensor(mask)},
    "tensor of bools": lambda mask: {"embed_mask": torch.tensor(mask, dtype=torch.bool)},
    "strided tensor": lambda mask: {"embed_mask": torch.tensor(mask).repeat_interleave(2)[::2]},
    "cumsum": lambda mask: {"embed_mask_cumsum": cumsum_of(mask)},
    "cumsum array": lambda mask: {"embed_mask_cumsum": np.array(cumsum_of(mask), dtype=np.uint16)},
    "cumsum tensor": lambda mask: {
        "embed_mask_cumsum": torch.tensor(cumsum_of(mask), dtype=torch.int32)
    },
}


class TestChunkWindows:
    @pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES.keys())
    @pytest.mark.parametrize(
        ("past", "end", "cached", "in_chunk"),
        [(0, 5, 0, 3), (5, 8, 3, 2), (0, 8, 0, 5), (3, 4, 2, 0), (0, 0, 0, 0), (8, 8, 5, 0)],
    )
    def test_mask_0_1_1_0_1_1_1_0(self, source, past: int, end: int, cached, in_chunk) -> None:
        mask = [0, 1, 1, 0, 1, 1, 1, 0]
        found = for_chunk(past_seen_token_num=past, chunk_end_pos=end, **source(mask))
        assert found == MultimodalRuntimeData(past, end, cached, in_chunk, 5)

    @pytest.mark.parametrize(
        "source",
        [
            {"embed_mask": [0, 1, 1, 0, 0, 1, 1, 1]},
            {"embed_mask_cumsum": [0, 1, 2, 2, 2, 3, 4, 5]},
            {"multimodal_input": inputs([1, 5], [2, 3])},
            {"multimodal_input": inputs([1, 5], [2, 3], [0, 1, 2], [1, 5], [2, 3])},
        ],
    )
    @pytest.mark.parametrize(
        ("past", "end", "rows"), [(0, 3, (0, 2)), (2, 7, (1, 4)), (6, 8, (3, 5)), (3, 5, (2, 2))]
    )
    def test_items_of_2_and_3_rows(self, source: dict, past: int, end: int, rows) -> None:
        """vllm#18414: a chunk with no token of an item needs none of its rows."""
        found = for_chunk(past_seen_token_num=past, chunk_end_pos=end, **source)
        assert found.row_range == rows
        assert found.total_embeds_in_request == 5

    @pytest.mark.parametrize(
        ("past", "end", "rows"),
        [(0, 4, (0, 2)), (4, 7, (2, 3)), (0, 7, (0, 3)), (3, 4, (2, 2)), (5, 6, (3, 3))],
    )
    def test_framing_tokens_take_no_row(self, past: int, end: int, rows) -> None:
        """TRT-LLM#12944, vllm-omni#7509: 1 5 5 6 5 7 2 with framing tokens 6 and 7."""
        found = for_chunk(
            past_seen_token_num=past,
            chunk_end_pos=end,
            multimodal_input=inputs([1], [5], [0, 1], [1], [5]),
            special_token_offsets=((2, 4),),
        )
        assert found.row_range == rows
        assert found.total_embeds_in_request == 3

    @pytest.mark.parametrize(
        ("past", "end", "rows"),
        [(0, 5, (0, 3)), (5, 8, (3, 5)), (3, 4, (2, 2)), (4, 7, (2, 4)), (0, 100, (0, 5))],
    )
    def test_multimodal_tokens_at_1_2_4_6_7(self, past: int, end: int, rows) -> None:
        runs = inputs([1, 4], [2, 3], [0, 1, 3], [1, 4, 6], [2, 1, 2])
        found = for_chunk(past_seen_token_num=past, chunk_end_pos=end, multimodal_input=runs)
        assert found.row_range == rows

    def test_framing_offsets_count_the_item_s_own_tokens(self) -> None:
        """Items with tokens at 1, 2 and at 4, 6, 7, of which 2, 6 and 7 are framing."""
        runs = inputs([1, 4], [2, 3], [0, 1, 3], [1, 4, 6], [2, 1, 2])
        expected = {2: 1, 3: 1, 4: 1, 5: 2, 6: 2, 7: 2, 8: 2}
        for end, rows in expected.items():
            found = for_chunk(
                past_seen_token_num=0,
                chunk_end_pos=end,
                multimodal_input=runs,
                special_token_offsets=[[1], (1, 2)],
            )
            assert found.row_range == (0, rows)

    def test_a_framing_token_is_one_token_of_one_run(self) -> None:
        """Tokens 0, 1 and 5, 6, of which 0 and 5 are framing."""
        found = for_chunk(
            past_seen_token_num=0,
            chunk_end_pos=6,
            multimodal_input=inputs([0], [4], [0, 2], [0, 5], [2, 2]),
            special_token_offsets=[(0, 2)],
        )
        assert found == MultimodalRuntimeData(0, 6, 0, 1, 2)

    def test_an_empty_item_stands_in_nobody_s_way(self) -> None:
        empty = inputs([0, 3, 5], [5, 0, 1])
        found = for_chunk(past_seen_token_num=0, chunk_end_pos=6, multimodal_input=empty)
        assert found.row_range == (0, 6)

    def test_items_without_tokens_and_no_items(self) -> None:
        empty = for_chunk(
            past_seen_token_num=0,
            chunk_end_pos=4,
            multimodal_input=inputs([1, 2, 2], [1, 0, 2]),
            special_token_offsets=[(), (), (0,)],
        )
        assert empty == MultimodalRuntimeData(0, 4, 0, 2, 2)
        nothing = for_chunk(past_seen_token_num=2, chunk_end_pos=4, multimodal_input=inputs([], []))
        assert nothing == MultimodalRuntimeData(2, 4, 0, 0, 0)

    def test_an_empty_prompt(self) -> None:
        for name in ("embed_mask", "embed_mask_cumsum"):
            found = for_chunk(past_seen_token_num=0, chunk_end_pos=0, **{name: []})
            assert found == MultimodalRuntimeData(0, 0, 0, 0, 0)


class TestArguments:
    @pytest.mark.parametrize(
        "given",
        [
            {},
            {"embed_mask": [1], "embed_mask_cumsum": [1]},
            {"embed_mask": [1], "multimodal_input": inputs([0], [1])},
            {"embed_mask_cumsum": [1], "multimodal_input": inputs([0], [1])},
        ],
    )
    def test_exactly_one_source(self, refusal, given: dict) -> None:
        assert refusal(for_chunk, past_seen_token_num=0, chunk_end_pos=1, **given) == (
            ContractValueError,
            [((), "conflict")],
        )

    def test_offsets_only_with_items(self, refusal) -> None:
        arguments = {"embed_mask": [1], "special_token_offsets": [(0,)]}
        assert refusal(for_chunk, past_seen_token_num=0, chunk_end_pos=1, **arguments) == (
            ContractValueError,
            [(("special_token_offsets",), "conflict")],
        )

    @pytest.mark.parametrize("value", NOT_INTS)
    def test_positions_that_are_no_ints(self, refusal, value: object) -> None:
        assert refusal(for_chunk, past_seen_token_num=value, chunk_end_pos=1, embed_mask=[1]) == (
            ContractTypeError,
            [(("past_seen_token_num",), "type")],
        )
        assert refusal(for_chunk, past_seen_token_num=0, chunk_end_pos=value, embed_mask=[1]) == (
            ContractTypeError,
            [(("chunk_end_pos",), "type")],
        )

    @pytest.mark.parametrize(
        ("past", "end", "name"),
        [
            (-1, 1, "past_seen_token_num"),
            (2**31, 1, "past_seen_token_num"),
            (1, 0, "chunk_end_pos"),
            (0, 4, "chunk_end_pos"),
            (0, 2**31, "chunk_end_pos"),
        ],
    )
    @pytest.mark.parametrize("name_of_mask", ["embed_mask", "embed_mask_cumsum"])
    def test_positions_out_of_range(self, refusal, past, end, name: str, name_of_mask) -> None:
        mask = {name_of_mask: [0, 0, 0]}
        assert refusal(for_chunk, past_seen_token_num=past, chunk_end_pos=end, **mask) == (
            ContractValueError,
            [((name,), "range")],
        )

    def test_several_faulty_arguments(self, refusal) -> None:
        assert refusal(
            for_chunk, past_seen_token_num=-1, chunk_end_pos=1, special_token_offsets=None
        ) == (
            ContractTypeError,
            [
                ((), "conflict"),
                (("special_token_offsets",), "type"),
                (("past_seen_token_num",), "range"),
            ],
        )


class TestMasks:
    @pytest.fixture
    def refused(self, refusal):
        return lambda **mask: refusal(for_chunk, past_seen_token_num=0, chunk_end_pos=1, **mask)

    @pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
    def test_every_element_of_a_mask_is_0_or_1(self, refused, kind) -> None:
        mask = kind([0, 2, 1, *[1] * 997, -1])
        assert refused(embed_mask=mask) == (
            ContractValueError,
            [(("embed_mask", 1), "range"), (("embed_mask", 1000), "range")],
        )

    @pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
    def test_a_running_count_grows_by_0_or_1(self, refused, kind) -> None:
        assert refused(embed_mask_cumsum=kind([2, 2, 1, 1, 3])) == (
            ContractValueError,
            [((("embed_mask_cumsum", i)), "range") for i in (0, 2, 4)],
        )
        assert refused(embed_mask_cumsum=kind([-1])) == (
            ContractValueError,
            [(("embed_mask_cumsum", 0), "range")],
        )

    @pytest.mark.parametrize("element", [1.0, "1", None, np.int64(1)])
    def test_every_element_is_an_int(self, refused, element: object) -> None:
        for name in ("embed_mask", "embed_mask_cumsum"):
            assert refused(**{name: [*[1] * 999, element]}) == (
                ContractTypeError,
                [((name, 999), "type")],
            )

    def test_a_bool_is_no_running_count(self, refused) -> None:
        assert refused(embed_mask_cumsum=[0, True]) == (
            ContractTypeError,
            [(("embed_mask_cumsum", 1), "type")],
        )
        for wrong in (np.array([True]), torch.tensor([True])):
            assert refused(embed_mask_cumsum=wrong) == (
                ContractTypeError,
                [(("embed_mask_cumsum",), "type")],
            )

    def test_elements_beyond_64_bits(self, refused) -> None:
        assert refused(embed_mask=[0, 2**70]) == (
            ContractValueError,
            [(("embed_mask", 1), "range")],
        )
        assert refused(embed_mask=np.array([2**64 - 1], dtype=np.uint64))[0] is ContractValueError

    @pytest.mark.parametrize(
        ("mask", "kind", "code"),
        [
            ("01", ContractTypeError, "type"),
            (b"\0\1", ContractTypeError, "type"),
            ({0: 1}, ContractTypeError, "type"),
            (7, ContractTypeError, "type"),
            (np.array([1.0]), ContractTypeError, "type"),
            (np.array([1, 0], dtype=object), ContractTypeError, "type"),
            (torch.tensor([1.0]), ContractTypeError, "type"),
            (torch.tensor([1.0], dtype=torch.bfloat16), ContractTypeError, "type"),
            (torch.tensor([1.0], requires_grad=True), ContractTypeError, "type"),
            (torch.tensor([1j]), ContractTypeError, "type"),
            (np.array([[1]]), ContractValueError, "shape"),
            (torch.tensor([[1]]), ContractValueError, "shape"),
            (torch.tensor(1), ContractValueError, "shape"),
            (torch.zeros(2, dtype=torch.int64, device="meta"), ContractValueError, "device"),
            (torch.ones(2, dtype=torch.int64).to_sparse(), ContractValueError, "layout"),
        ],
    )
    def test_something_else(self, refused, mask: object, kind: type, code: str) -> None:
        for name in ("embed_mask", "embed_mask_cumsum"):
            assert refused(**{name: mask}) == (kind, [((name,), code)])


class TestItems:
    @pytest.fixture
    def refused(self, refusal):
        return lambda **items: refusal(for_chunk, past_seen_token_num=0, chunk_end_pos=1, **items)

    @pytest.mark.parametrize("items", [5, "x", {}, HASH])
    def test_no_input_record(self, refused, items: object) -> None:
        assert refused(multimodal_input=items) == (
            ContractTypeError,
            [(("multimodal_input",), "type")],
        )

    @pytest.mark.parametrize(
        "items",
        [
            inputs([4, 1], [2, 2]),
            inputs([0, 1], [2, 2]),
            inputs([0, 1], [4, 2], [0, 2, 3], [0, 3, 1], [1, 3, 2]),
        ],
    )
    def test_items_are_in_prompt_order_and_apart(self, refused, items: MultimodalInput) -> None:
        assert refused(multimodal_input=items) == (
            ContractValueError,
            [(("multimodal_input", "multimodal_positions", 1), "order")],
        )

    @pytest.mark.parametrize("offsets", [[()], [(), (), ()]])
    def test_offsets_for_every_item(self, refused, offsets: list) -> None:
        items = inputs([0, 2], [2, 2])
        assert refused(multimodal_input=items, special_token_offsets=offsets) == (
            ContractValueError,
            [(("special_token_offsets",), "count")],
        )

    @pytest.mark.parametrize(
        ("offsets", "kind", "problems"),
        [
            ([None, 5], ContractTypeError, [((0,), "type"), ((1,), "type")]),
            (
                [(True,), ("0", 1.0)],
                ContractTypeError,
                [((0, 0), "type"), ((1, 0), "type"), ((1, 1), "type")],
            ),
            ([(-1,), (0, 3)], ContractValueError, [((0, 0), "range"), ((1, 1), "range")]),
            ([(1, 0), (1, 1)], ContractValueError, [((0, 1), "order"), ((1, 1), "order")]),
            ([(2,), (2,)], ContractValueError, [((0, 0), "range")]),
        ],
    )
    def test_bad_offsets(self, refused, offsets: list, kind: type, problems: list) -> None:
        items = inputs([0, 2], [2, 3])
        assert refused(multimodal_input=items, special_token_offsets=offsets) == (
            kind,
            [(("special_token_offsets", *path), code) for path, code in problems],
        )

    def test_the_order_of_every_item_is_judged(self, refused) -> None:
        items = inputs([5, 4, 20, 3], [2, 2, 1, 1])
        assert refused(multimodal_input=items) == (
            ContractValueError,
            [(("multimodal_input", "multimodal_positions", i), "order") for i in (1, 3)],
        )
