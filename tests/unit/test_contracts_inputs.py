"""`MultimodalInput`: hashes, spans and exact runs."""

import itertools

import numpy as np
import pytest
import torch

from omniwire.contracts import ContractTypeError, ContractValueError, MultimodalInput, content_hash

INT32_MAX = 2**31 - 1
NOT_INTS = [True, 1.0, "1", None, b"1", np.int32(1)]
HASH = (0,) * 8
RUN_FIELDS = (
    "multimodal_item_run_cu_offsets",
    "multimodal_run_positions",
    "multimodal_run_lengths",
)


def one_item(**fields: object) -> MultimodalInput:
    """An item of 5 prompt tokens from position 1, with other values for some fields."""
    given = {
        "multimodal_hashes": [HASH],
        "multimodal_positions": [1],
        "multimodal_lengths": [5],
        **fields,
    }
    return MultimodalInput(**given)


def with_runs(offsets: object, positions: object, lengths: object, **fields: object):
    """Two items of 2 and 3 prompt tokens at positions 1, 2 and 4, 6, 7, with other runs."""
    given = {
        "multimodal_hashes": [HASH, HASH],
        "multimodal_positions": [1, 4],
        "multimodal_lengths": [2, 3],
        **fields,
    }
    return MultimodalInput(
        **given, **dict(zip(RUN_FIELDS, (offsets, positions, lengths), strict=True))
    )


class TestHashes:
    def test_words_are_the_digest_as_big_endian_signed_32_bit_ints(self) -> None:
        digest = "ffffffff" + "80000000" + "7fffffff" + "00000001" + "deadbeef" + "00000000" * 3
        record = MultimodalInput.from_hexdigests([digest, digest.upper()], [0, 1], [1, 1])
        words = (-1, -2147483648, 2147483647, 1, -559038737, 0, 0, 0)
        assert record.multimodal_hashes == (words, words)

    def test_all_256_bits_count(self) -> None:
        """LMCache#4086: digests with the same last digits stay different."""
        record = MultimodalInput.from_hexdigests(
            ["0" * 63 + "1", "1" + "0" * 62 + "1"], [0, 1], [1, 1]
        )
        assert record.multimodal_hashes == ((0,) * 7 + (1,), (268435456,) + (0,) * 6 + (1,))

    def test_a_content_hash_is_a_digest(self) -> None:
        digest = content_hash(torch.ones(2))
        record = MultimodalInput.from_hexdigests([digest], [0], [1], multimodal_uuids=["u"])
        words = np.array(record.multimodal_hashes[0], dtype=">i4")
        assert words.tobytes().hex() == digest
        assert record.multimodal_uuids == ("u",)

    @pytest.mark.parametrize(
        "digest",
        [
            "",
            "0" * 63,
            "0" * 65,
            "g" + "0" * 63,
            "0x" + "0" * 62,
            " " + "0" * 63,
            "0" * 64 + "\n",
            "٣" * 64,
        ],
    )
    def test_a_malformed_digest(self, refusal, digest: str) -> None:
        good = "0" * 64
        assert refusal(MultimodalInput.from_hexdigests, [good, digest], [0, 1], [1, 1]) == (
            ContractValueError,
            [(("hexdigests", 1), "format")],
        )

    def test_every_digest_is_judged(self, refusal) -> None:
        digests = [None, "0" * 64, b"0" * 64, "f"]
        assert refusal(MultimodalInput.from_hexdigests, digests, [0] * 4, [1] * 4) == (
            ContractTypeError,
            [
                (("hexdigests", 0), "type"),
                (("hexdigests", 2), "type"),
                (("hexdigests", 3), "format"),
            ],
        )

    def test_lists_are_stored_as_tuples_of_tuples(self) -> None:
        words = [1, 2, 3, 4, 5, 6, 7, 8]
        record = MultimodalInput([words], [1], [5])
        words[0] = 9
        assert record.multimodal_hashes == ((1, 2, 3, 4, 5, 6, 7, 8),)
        assert type(record.multimodal_hashes[0]) is tuple
        assert MultimodalInput((words,), (1,), (5,)).multimodal_hashes == ((9, *words[1:]),)

    @pytest.mark.parametrize("hashes", [None, "hash", 5, {0: HASH}, iter([HASH])])
    def test_no_tuple_or_list_of_hashes(self, refusal, hashes: object) -> None:
        assert refusal(one_item, multimodal_hashes=hashes) == (
            ContractTypeError,
            [(("multimodal_hashes",), "type")],
        )

    @pytest.mark.parametrize("one", [None, "00000000", 5, range(8)])
    def test_a_hash_that_is_no_tuple_or_list(self, refusal, one: object) -> None:
        assert refusal(one_item, multimodal_hashes=[one]) == (
            ContractTypeError,
            [(("multimodal_hashes", 0), "type")],
        )

    @pytest.mark.parametrize("words", [(), (0,) * 7, (0,) * 9])
    def test_a_hash_has_8_words(self, refusal, words: tuple[int, ...]) -> None:
        hashes = [*[HASH] * 999, words]
        positions, lengths = list(range(1000)), [1] * 1000
        assert refusal(MultimodalInput, hashes, positions, lengths) == (
            ContractValueError,
            [(("multimodal_hashes", 999), "count")],
        )

    @pytest.mark.parametrize("word", NOT_INTS)
    def test_the_last_word_of_a_thousand_hashes_is_no_int(self, refusal, word: object) -> None:
        hashes = [*[HASH] * 999, (*HASH[:7], word)]
        assert refusal(MultimodalInput, hashes, list(range(1000)), [1] * 1000) == (
            ContractTypeError,
            [(("multimodal_hashes", 999, 7), "type")],
        )

    @pytest.mark.parametrize("word", [2**31, -(2**31) - 1])
    def test_a_word_is_a_signed_32_bit_int(self, refusal, word: int) -> None:
        assert refusal(one_item, multimodal_hashes=[(*HASH[:7], word)]) == (
            ContractValueError,
            [(("multimodal_hashes", 0, 7), "range")],
        )

    @pytest.mark.parametrize("word", [INT32_MAX, -(2**31)])
    def test_the_extreme_words_are_sound(self, refusal, word: int) -> None:
        """So the other fields are judged against the number of hashes."""
        hashes = [(word, *HASH[1:])]
        assert one_item(multimodal_hashes=hashes).multimodal_hashes[0][0] == word
        assert refusal(one_item, multimodal_hashes=hashes, multimodal_positions=[]) == (
            ContractValueError,
            [(("multimodal_positions",), "count")],
        )


@pytest.mark.parametrize("name", ["multimodal_positions", "multimodal_lengths"])
class TestSpans:
    @pytest.mark.parametrize("values", [None, "1", 1, range(1), torch.tensor([1])])
    def test_no_tuple_or_list(self, refusal, name: str, values: object) -> None:
        assert refusal(one_item, **{name: values}) == (ContractTypeError, [((name,), "type")])

    @pytest.mark.parametrize("value", NOT_INTS)
    def test_no_int(self, refusal, name: str, value: object) -> None:
        assert refusal(one_item, **{name: [value]}) == (ContractTypeError, [((name, 0), "type")])

    @pytest.mark.parametrize("value", [-1, 2**31])
    def test_out_of_range(self, refusal, name: str, value: int) -> None:
        assert refusal(one_item, **{name: [value]}) == (ContractValueError, [((name, 0), "range")])

    @pytest.mark.parametrize("values", [[], [1, 2]])
    def test_one_per_item(self, refusal, name: str, values: list[int]) -> None:
        assert refusal(one_item, **{name: values}) == (ContractValueError, [((name,), "count")])

    def test_the_last_of_a_thousand(self, refusal, name: str) -> None:
        fields = {"multimodal_positions": list(range(1000)), "multimodal_lengths": [1] * 1000}
        fields[name][999] = -1
        assert refusal(MultimodalInput, [HASH] * 1000, **fields) == (
            ContractValueError,
            [((name, 999), "range")],
        )

    def test_it_is_stored_as_a_tuple(self, name: str) -> None:
        assert getattr(one_item(**{name: [3]}), name) == (3,)


def test_a_span_ends_inside_int32(refusal) -> None:
    hashes, positions = [HASH] * 3, [INT32_MAX - 2, 0, INT32_MAX]
    assert MultimodalInput(hashes, positions, [2, INT32_MAX, 0])
    assert refusal(MultimodalInput, hashes, positions, [3, INT32_MAX, 1]) == (
        ContractValueError,
        [(("multimodal_lengths", 0), "range"), (("multimodal_lengths", 2), "range")],
    )


def test_ends_of_fields_that_disagree_are_not_judged(refusal) -> None:
    assert refusal(MultimodalInput, None, [INT32_MAX, 0], [5]) == (
        ContractTypeError,
        [(("multimodal_hashes",), "type")],
    )


def test_items_may_be_empty_and_out_of_prompt_order() -> None:
    """A selected view may hold them so; `check_producer` asks for prompt order."""
    record = MultimodalInput([HASH, HASH], [7, 0], [0, 9])
    assert record.multimodal_positions == (7, 0)


def test_no_items() -> None:
    record = MultimodalInput([], [], [], [], [0], [], [])
    assert record.multimodal_hashes == ()
    assert record.to_tensors()["multimodal_hashes"].shape == (0, 8)


class TestUuids:
    def test_one_str_or_none_per_item(self) -> None:
        record = MultimodalInput([HASH, HASH], [0, 1], [1, 1], ["a", None])
        assert record.multimodal_uuids == ("a", None)
        assert one_item().multimodal_uuids is None

    @pytest.mark.parametrize("uuids", ["a", 5, {"a"}, iter(["a"])])
    def test_no_tuple_or_list(self, refusal, uuids: object) -> None:
        assert refusal(one_item, multimodal_uuids=uuids) == (
            ContractTypeError,
            [(("multimodal_uuids",), "type")],
        )

    @pytest.mark.parametrize(
        ("uuid", "kind", "code"),
        [
            (5, ContractTypeError, "type"),
            (b"a", ContractTypeError, "type"),
            ("", ContractValueError, "format"),
            ("\ud800", ContractValueError, "format"),
        ],
    )
    def test_no_proper_str(self, refusal, uuid: object, kind: type, code: str) -> None:
        assert refusal(one_item, multimodal_uuids=[uuid]) == (
            kind,
            [(("multimodal_uuids", 0), code)],
        )

    @pytest.mark.parametrize("uuids", [[], ["a", "b"]])
    def test_one_per_item(self, refusal, uuids: list[str]) -> None:
        assert refusal(one_item, multimodal_uuids=uuids) == (
            ContractValueError,
            [(("multimodal_uuids",), "count")],
        )


class TestRuns:
    def test_multimodal_tokens_at_1_2_4_6_7(self) -> None:
        record = with_runs([0, 1, 3], [1, 4, 6], [2, 1, 2])
        assert record.multimodal_item_run_cu_offsets == (0, 1, 3)
        assert record.multimodal_run_positions == (1, 4, 6)
        assert record.multimodal_run_lengths == (2, 1, 2)

    def test_every_item_has_a_range_of_its_own(self) -> None:
        """sglang#14970: two images do not both hold two ranges."""
        record = with_runs([0, 1, 3], [1, 4, 6], [2, 1, 2])
        assert record.select([0]).multimodal_run_positions == (1,)
        assert record.select([1]).multimodal_run_positions == (4, 6)

    def test_an_item_of_no_tokens_has_no_runs(self, refusal) -> None:
        first = with_runs([0, 0, 2], [4, 6], [1, 2], multimodal_lengths=[0, 3])
        assert first.multimodal_item_run_cu_offsets == (0, 0, 2)
        last = with_runs([0, 1, 1], [1], [2], multimodal_lengths=[2, 0])
        assert last.multimodal_item_run_cu_offsets == (0, 1, 1)
        assert refusal(with_runs, [0, 0, 2], [4, 6], [1, 2], multimodal_lengths=[1, 4]) == (
            ContractValueError,
            [(("multimodal_lengths", 0), "sum"), (("multimodal_lengths", 1), "sum")],
        )

    @pytest.mark.parametrize(
        "given", [c for n in (1, 2) for c in itertools.combinations(RUN_FIELDS, n)]
    )
    def test_all_three_or_none(self, refusal, given: tuple[str, ...]) -> None:
        values = dict(zip(RUN_FIELDS, ([0, 1], [1], [5]), strict=True))
        kind, problems = refusal(one_item, **{name: values[name] for name in given})
        assert kind is ContractValueError
        assert problems == [((name,), "missing") for name in RUN_FIELDS if name not in given]

    @pytest.mark.parametrize("name", RUN_FIELDS)
    @pytest.mark.parametrize("values", ["0", 1, range(1), np.array([1])])
    def test_no_tuple_or_list(self, refusal, name: str, values: object) -> None:
        runs = {**dict(zip(RUN_FIELDS, ([0, 1], [1], [5]), strict=True)), name: values}
        assert refusal(one_item, **runs) == (ContractTypeError, [((name,), "type")])

    @pytest.mark.parametrize("name", RUN_FIELDS)
    @pytest.mark.parametrize("value", NOT_INTS)
    def test_no_int(self, refusal, name: str, value: object) -> None:
        runs = dict(zip(RUN_FIELDS, ([0, 1], [1], [5]), strict=True))
        runs[name][-1] = value
        path = (name, len(runs[name]) - 1)
        assert refusal(one_item, **runs) == (ContractTypeError, [(path, "type")])

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("multimodal_item_run_cu_offsets", -1),
            ("multimodal_item_run_cu_offsets", 2**31),
            ("multimodal_run_positions", -1),
            ("multimodal_run_positions", 2**31),
            ("multimodal_run_lengths", 0),
            ("multimodal_run_lengths", -1),
            ("multimodal_run_lengths", 2**31),
        ],
    )
    def test_out_of_range(self, refusal, name: str, value: int) -> None:
        runs = dict(zip(RUN_FIELDS, ([0, 1], [1], [5]), strict=True))
        runs[name][-1] = value
        path = (name, len(runs[name]) - 1)
        assert refusal(one_item, **runs) == (ContractValueError, [(path, "range")])

    @pytest.mark.parametrize("offsets", [[0], [0, 3], [0, 1, 3, 3]])
    def test_one_offset_more_than_items(self, refusal, offsets: list[int]) -> None:
        assert refusal(with_runs, offsets, [1, 4, 6], [2, 1, 2]) == (
            ContractValueError,
            [(("multimodal_item_run_cu_offsets",), "count")],
        )

    def test_offsets_start_from_0(self, refusal) -> None:
        assert refusal(with_runs, [1, 1, 3], [1, 4, 6], [2, 1, 2]) == (
            ContractValueError,
            [(("multimodal_item_run_cu_offsets", 0), "sequence")],
        )

    @pytest.mark.parametrize(
        ("offsets", "wrong"),
        [([0, 2, 1, 3], [2]), ([0, 2, 2, 1, 3], [3]), ([0, 3, 1, 2, 1, 3], [2, 4])],
    )
    def test_offsets_never_decrease(self, refusal, offsets: list[int], wrong: list[int]) -> None:
        num_items = len(offsets) - 1
        fields = {
            "multimodal_hashes": [HASH] * num_items,
            "multimodal_positions": [1] * num_items,
            "multimodal_lengths": [1] * num_items,
        }
        assert refusal(with_runs, offsets, [1, 4, 6], [2, 1, 2], **fields) == (
            ContractValueError,
            [(("multimodal_item_run_cu_offsets", i), "sequence") for i in wrong],
        )

    @pytest.mark.parametrize("last", [2, 4])
    def test_offsets_end_at_the_number_of_runs(self, refusal, last: int) -> None:
        assert refusal(with_runs, [0, 1, last], [1, 4, 6], [2, 1, 2]) == (
            ContractValueError,
            [(("multimodal_item_run_cu_offsets", 2), "sum")],
        )

    @pytest.mark.parametrize("lengths", [[2, 1], [2, 1, 1, 1]])
    def test_as_many_positions_as_lengths(self, refusal, lengths: list[int]) -> None:
        assert refusal(with_runs, [0, 1, 3], [1, 4, 6], lengths) == (
            ContractValueError,
            [(("multimodal_run_lengths",), "count")],
        )

    def test_a_run_ends_inside_int32(self, refusal) -> None:
        positions = [1, INT32_MAX - 2]
        runs = dict(zip(RUN_FIELDS, ([0, 2], positions, [2, 2]), strict=True))
        assert one_item(**runs, multimodal_lengths=[4])
        assert refusal(one_item, **runs, multimodal_lengths=[5]) == (
            ContractValueError,
            [(("multimodal_lengths", 0), "sum")],
        )
        runs["multimodal_run_lengths"] = [2, 3]
        assert refusal(one_item, **runs, multimodal_lengths=[9]) == (
            ContractValueError,
            [(("multimodal_run_lengths", 1), "range")],
        )

    def test_the_first_run_starts_at_the_item_s_position(self, refusal) -> None:
        assert refusal(with_runs, [0, 1, 3], [0, 5, 7], [2, 1, 2]) == (
            ContractValueError,
            [
                (("multimodal_run_positions", 0), "conflict"),
                (("multimodal_run_positions", 1), "conflict"),
            ],
        )

    def test_the_runs_of_an_item_are_ordered(self, refusal) -> None:
        assert refusal(with_runs, [0, 1, 3], [1, 6, 4], [2, 2, 1], multimodal_positions=[1, 6]) == (
            ContractValueError,
            [(("multimodal_run_positions", 2), "order")],
        )

    def test_the_runs_of_an_item_are_disjoint(self, refusal) -> None:
        touching = ([0, 1, 3], [1, 4, 5], [2, 1, 2])
        assert with_runs(*touching)
        assert refusal(with_runs, *touching, multimodal_lengths=[2, 4]) == (
            ContractValueError,
            [(("multimodal_lengths", 1), "sum")],
        )
        assert refusal(with_runs, [0, 1, 3], [1, 4, 5], [2, 2, 1]) == (
            ContractValueError,
            [(("multimodal_run_positions", 2), "order")],
        )

    def test_runs_of_different_items_may_overlap(self) -> None:
        assert with_runs([0, 1, 2], [1, 2], [2, 3], multimodal_positions=[1, 2])

    @pytest.mark.parametrize("length", [4, 2])
    def test_the_runs_of_an_item_sum_to_its_length(self, refusal, length: int) -> None:
        assert refusal(
            with_runs, [0, 1, 3], [1, 4, 6], [2, 1, 2], multimodal_lengths=[2, length]
        ) == (ContractValueError, [(("multimodal_lengths", 1), "sum")])

    def test_the_last_run_of_a_thousand_items(self, refusal) -> None:
        hashes, positions = [HASH] * 1000, list(range(0, 2000, 2))
        runs = [list(range(1001)), positions, [*[1] * 999, 2]]
        assert refusal(MultimodalInput, hashes, positions, [1] * 1000, None, *runs) == (
            ContractValueError,
            [(("multimodal_lengths", 999), "sum")],
        )

    def test_everything_that_is_wrong_is_reported(self, refusal) -> None:
        assert refusal(
            MultimodalInput,
            [HASH, (*HASH[:7], True)],
            [1, -1],
            [2, 3.0],
            [None, ""],
            [1, 0, 9],
            [1, 4, -6],
            [0, 1, 2],
        ) == (
            ContractTypeError,
            [
                (("multimodal_hashes", 1, 7), "type"),
                (("multimodal_positions", 1), "range"),
                (("multimodal_lengths", 1), "type"),
                (("multimodal_uuids", 1), "format"),
                (("multimodal_run_positions", 2), "range"),
                (("multimodal_run_lengths", 0), "range"),
            ],
        )

    @pytest.mark.parametrize("hashes", [None, [HASH[:7]], [HASH[:7]] * 2, [HASH]])
    @pytest.mark.parametrize("offsets", [[], [0], [0, 1], [0, 1, 2, 3], [1]])
    @pytest.mark.parametrize("positions", [[], [1], [1, 2, 3], None])
    def test_one_fault_never_breaks_the_check_of_another_field(
        self, refusal, hashes: object, offsets: list[int], positions: object
    ) -> None:
        if hashes == [HASH]:
            offsets = [*offsets, -1]
        kind, problems = refusal(
            MultimodalInput, hashes, [1], [5], None, offsets, positions, [1] * 3
        )
        assert issubclass(kind, (ContractTypeError, ContractValueError))
        assert len(set(problems)) == len(problems) >= 1

    def test_runs_are_not_judged_against_faulty_spans(self, refusal) -> None:
        runs = ([0, 1, 3], [9, 4, 6], [2, 1, 2])
        assert refusal(with_runs, *runs, multimodal_positions=[1]) == (
            ContractValueError,
            [(("multimodal_positions",), "count")],
        )

    def test_an_empty_tuple_of_offsets_beside_faulty_hashes(self, refusal) -> None:
        assert refusal(MultimodalInput, None, [], [], None, [], [], []) == (
            ContractTypeError,
            [(("multimodal_hashes",), "type"), (("multimodal_item_run_cu_offsets",), "count")],
        )


class TestTensors:
    def test_the_integer_fields_as_int32_tensors(self) -> None:
        record = with_runs([0, 1, 3], [1, 4, 6], [2, 1, 2], multimodal_uuids=["a", None])
        tensors = record.to_tensors()
        assert {name: tensor.tolist() for name, tensor in tensors.items()} == {
            "multimodal_hashes": [[0] * 8, [0] * 8],
            "multimodal_positions": [1, 4],
            "multimodal_lengths": [2, 3],
            "multimodal_item_run_cu_offsets": [0, 1, 3],
            "multimodal_run_positions": [1, 4, 6],
            "multimodal_run_lengths": [2, 1, 2],
        }
        assert {tensor.dtype for tensor in tensors.values()} == {torch.int32}

    def test_without_runs_there_are_three(self) -> None:
        assert list(one_item().to_tensors()) == [
            "multimodal_hashes",
            "multimodal_positions",
            "multimodal_lengths",
        ]

    def test_the_extremes_of_int32_survive(self) -> None:
        words = (-(2**31), INT32_MAX, *HASH[2:])
        tensors = one_item(
            multimodal_hashes=[words], multimodal_positions=[INT32_MAX - 5]
        ).to_tensors()
        assert tensors["multimodal_hashes"].tolist() == [list(words)]
        assert tensors["multimodal_positions"].tolist() == [INT32_MAX - 5]

    def test_they_are_the_caller_s_to_change(self) -> None:
        record = one_item()
        record.to_tensors()["multimodal_positions"].zero_()
        assert record.multimodal_positions == (1,)
        assert record.to_tensors()["multimodal_positions"].tolist() == [1]

    def test_the_record_is_rebuilt_from_them(self) -> None:
        record = with_runs([0, 1, 3], [1, 4, 6], [2, 1, 2], multimodal_uuids=["a", None])
        assert MultimodalInput.from_tensors(record.to_tensors(), ["a", None]) == record
        assert MultimodalInput.from_tensors(record.to_tensors()).multimodal_uuids is None
        assert MultimodalInput.from_tensors(MultimodalInput([], [], []).to_tensors())

    def test_what_tensors_may_be_wrong(self, refusal) -> None:
        tensors = {
            "multimodal_hashes": [HASH],
            "multimodal_positions": torch.tensor([1.0]),
            "multimodal_run_lengths": torch.tensor([True]),
            "multimodal_run_positions": torch.zeros(1, dtype=torch.int32, device="meta"),
            "multimodal_uuids": torch.tensor([1]),
        }
        assert refusal(MultimodalInput.from_tensors, tensors) == (
            ContractTypeError,
            [
                (("multimodal_hashes",), "type"),
                (("multimodal_positions",), "type"),
                (("multimodal_run_lengths",), "type"),
                (("multimodal_run_positions",), "device"),
                (("multimodal_uuids",), "unknown"),
                (("multimodal_lengths",), "missing"),
            ],
        )

    def test_the_fields_are_judged_as_ever(self, refusal) -> None:
        tensors = {**one_item().to_tensors(), "multimodal_positions": torch.tensor([-1])}
        assert refusal(MultimodalInput.from_tensors, tensors, "u") == (
            ContractTypeError,
            [(("multimodal_positions", 0), "range"), (("multimodal_uuids",), "type")],
        )


class TestSelect:
    RECORD = MultimodalInput(
        [(i, *HASH[1:]) for i in range(3)],
        [1, 4, 9],
        [2, 3, 1],
        ["a", None, "c"],
        [0, 1, 3, 4],
        [1, 4, 6, 9],
        [2, 1, 2, 1],
    )

    def test_all_fields_are_selected_together(self) -> None:
        selected = self.RECORD.select([2, 1])
        assert selected == MultimodalInput(
            [(2, *HASH[1:]), (1, *HASH[1:])],
            [9, 4],
            [1, 3],
            ["c", None],
            [0, 1, 3],
            [9, 4, 6],
            [1, 1, 2],
        )

    def test_repeats(self) -> None:
        selected = self.RECORD.select([1, 1])
        assert selected.multimodal_item_run_cu_offsets == (0, 2, 4)
        assert selected.multimodal_run_positions == (4, 6, 4, 6)

    def test_fields_that_are_none_stay_none(self) -> None:
        selected = MultimodalInput([HASH, HASH], [1, 4], [2, 3]).select((1,))
        assert selected == MultimodalInput([HASH], [4], [3])

    @pytest.mark.parametrize(
        ("indices", "kind", "problems"),
        [
            ([], ContractValueError, [(("prompt_indices",), "index")]),
            ([3], ContractValueError, [(("prompt_indices", 0), "index")]),
            ([-1], ContractValueError, [(("prompt_indices", 0), "index")]),
            ([0, True], ContractTypeError, [(("prompt_indices", 1), "type")]),
            ("0", ContractTypeError, [(("prompt_indices",), "type")]),
        ],
    )
    def test_bad_indices(self, refusal, indices: object, kind: type, problems: list) -> None:
        assert refusal(self.RECORD.select, indices) == (kind, problems)
