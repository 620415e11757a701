"""`ItemRef` and `MultimodalItemMetadata`: every rule, selection and merging."""

import enum

import numpy as np
import pytest

from omniwire.contracts import (
    ContractTypeError,
    ContractValueError,
    FrozenMapping,
    ItemRef,
    MultimodalItemMetadata,
    MultimodalItemPartition,
)

NOT_INTS = [True, 1.0, "1", None, b"1", np.int64(1), enum.IntEnum("E", {"ONE": 1}).ONE]
PACKED = MultimodalItemPartition


class Text(str):
    __slots__ = ()


class TestItemRef:
    @pytest.mark.parametrize("name", ["a", "image", "a_1", "x0", "a" + "0_z" * 21])
    def test_a_name_of_1_to_64_small_letters_digits_and_underscores(self, name: str) -> None:
        assert ItemRef(name, 0).modality == name

    @pytest.mark.parametrize(
        "name", ["", "Image", "1a", "_a", "a-b", "a.b", "a" * 65, "a\n", "a ", "é", "aé", "a\ud800"]
    )
    def test_a_malformed_name(self, refusal, name: str) -> None:
        assert refusal(ItemRef, name, 0) == (ContractValueError, [(("modality",), "format")])

    @pytest.mark.parametrize("name", [None, 5, b"image", Text("image"), ["image"]])
    def test_a_name_that_is_no_str(self, refusal, name: object) -> None:
        assert refusal(ItemRef, name, 0) == (ContractTypeError, [(("modality",), "type")])

    @pytest.mark.parametrize("index", NOT_INTS)
    def test_an_index_that_is_no_int(self, refusal, index: object) -> None:
        assert refusal(ItemRef, "image", index) == (ContractTypeError, [(("index",), "type")])

    @pytest.mark.parametrize("index", [-1, -(2**70), 2**63])
    def test_an_index_out_of_range(self, refusal, index: int) -> None:
        assert refusal(ItemRef, "image", index) == (ContractValueError, [(("index",), "range")])

    def test_both_parts_are_judged(self, refusal) -> None:
        assert refusal(ItemRef, "Image", True) == (
            ContractTypeError,
            [(("modality",), "format"), (("index",), "type")],
        )

    def test_it_equals_and_hashes_like_a_plain_pair(self) -> None:
        ref = ItemRef("image", 2)
        assert ref == ("image", 2)
        assert ("image", 2) == ref  # noqa: SIM300  # both sides are asked
        assert ref != ("image", 1)
        assert ref != ("image",)
        assert {("image", 2): "found"}[ref] == "found"

    def test_it_is_a_tuple(self) -> None:
        modality, index = ref = ItemRef(modality="image", index=2)
        assert (modality, index) == ("image", 2) == (ref.modality, ref.index)
        assert isinstance(ref, tuple)
        assert len(ref) == 2
        assert sorted([ItemRef("video", 0), ItemRef("image", 1), ItemRef("image", 0)]) == [
            ("image", 0),
            ("image", 1),
            ("video", 0),
        ]

    def test_replacing_a_part_checks_it(self, refusal) -> None:
        assert ItemRef("image", 2)._replace(index=0) == ("image", 0)
        assert refusal(ItemRef("image", 2)._replace, index=-1) == (
            ContractValueError,
            [(("index",), "range")],
        )


class TestRefs:
    def test_lists_and_pairs_become_a_tuple_of_refs(self) -> None:
        record = MultimodalItemMetadata([("image", 0), ["image", 1], ItemRef("audio", 0)])
        assert type(record.item_refs) is tuple
        assert record.item_refs == (("image", 0), ("image", 1), ("audio", 0))
        assert {type(ref) for ref in record.item_refs} == {ItemRef}

    def test_local_indices_may_stand_in_any_order(self) -> None:
        record = MultimodalItemMetadata([("image", 2), ("audio", 0), ("image", 0), ("image", 1)])
        assert record.local_indices("image") == (2, 0, 1)
        assert record.prompt_indices("image") == (0, 2, 3)

    def test_prompt_and_local_index_differ(self) -> None:
        """TRT-LLM#15852: with video first, the only image is local 0 and prompt-global 1."""
        record = MultimodalItemMetadata([("video", 0), ("image", 0)])
        assert record.local_indices("image") == (0,)
        assert record.prompt_indices("image") == (1,)
        assert record.prompt_indices("audio") == record.local_indices("audio") == ()

    def test_each_item_carries_its_modality_in_prompt_order(self) -> None:
        """vllm#32249, vllm#46213: V0 A0 V1 A1 stays V0 A0 V1 A1."""
        refs = [("video", 0), ("audio", 0), ("video", 1), ("audio", 1)]
        assert MultimodalItemMetadata(refs).item_refs == tuple(refs)

    @pytest.mark.parametrize("refs", [None, "image", 5, {("image", 0)}, iter([("image", 0)])])
    def test_refs_that_are_no_tuple_or_list(self, refusal, refs: object) -> None:
        assert refusal(MultimodalItemMetadata, refs) == (
            ContractTypeError,
            [(("item_refs",), "type")],
        )

    @pytest.mark.parametrize(
        "ref", [None, "ab", ("image",), ("image", 0, 1), 7, {"image": 0, 1: 2}]
    )
    def test_a_ref_that_is_no_pair(self, refusal, ref: object) -> None:
        assert refusal(MultimodalItemMetadata, [("image", 0), ref]) == (
            ContractTypeError,
            [(("item_refs", 1), "type")],
        )

    def test_every_part_of_every_ref_is_judged(self, refusal) -> None:
        refs = [("Image", 0), ("Image", 1), ("image", -1), ("image", True), (None, 0), ([], "0")]
        assert refusal(MultimodalItemMetadata, refs) == (
            ContractTypeError,
            [
                (("item_refs", 0, "modality"), "format"),
                (("item_refs", 1, "modality"), "format"),
                (("item_refs", 2, "index"), "range"),
                (("item_refs", 3, "index"), "type"),
                (("item_refs", 4, "modality"), "type"),
                (("item_refs", 5, "modality"), "type"),
                (("item_refs", 5, "index"), "type"),
            ],
        )

    def test_a_negative_index_of_a_modality_seen_before(self, refusal) -> None:
        refs = [("image", 0), ("image", -1), ("image", 1)]
        assert refusal(MultimodalItemMetadata, refs) == (
            ContractValueError,
            [(("item_refs", 1, "index"), "range")],
        )

    @pytest.mark.parametrize("index", NOT_INTS)
    def test_the_last_index_of_a_thousand(self, refusal, index: object) -> None:
        refs = [*[("image", i) for i in range(999)], ("image", index)]
        assert refusal(MultimodalItemMetadata, refs) == (
            ContractTypeError,
            [(("item_refs", 999, "index"), "type")],
        )

    def test_the_same_item_twice(self, refusal) -> None:
        refs = [("image", 0), ("audio", 0), ("image", 1), ("image", 0)]
        assert refusal(MultimodalItemMetadata, refs) == (
            ContractValueError,
            [(("item_refs", 3), "duplicate")],
        )

    def test_a_gap_in_the_local_indices(self, refusal) -> None:
        refs = [("image", 0), ("audio", 0), ("image", 2), ("audio", 2)]
        assert refusal(MultimodalItemMetadata, refs) == (
            ContractValueError,
            [(("item_refs", 2), "sequence"), (("item_refs", 3), "sequence")],
        )

    def test_local_indices_that_do_not_start_at_0(self, refusal) -> None:
        assert refusal(MultimodalItemMetadata, [("image", 1)]) == (
            ContractValueError,
            [(("item_refs", 0), "sequence")],
        )

    def test_no_items_at_all(self, refusal) -> None:
        record = MultimodalItemMetadata([], [], [], {})
        assert record.item_refs == record.encoder_token_lengths == ()
        assert record.local_indices("image") == ()
        assert refusal(MultimodalItemMetadata, [], [1], [2], {"image": {}}) == (
            ContractValueError,
            [
                (("encoder_token_lengths",), "count"),
                (("output_embedding_lengths",), "count"),
                (("input_partitions", "image"), "unknown"),
            ],
        )

    def test_ten_thousand_items(self, refusal) -> None:
        refs = [("image", i) for i in reversed(range(10_000))]
        lengths = [i + 1 for i in range(10_000)]
        record = MultimodalItemMetadata(
            refs, lengths, lengths, {"image": {"pixels": PACKED(lengths)}}
        )
        assert record.local_indices("image")[:2] == (9999, 9998)
        assert refusal(MultimodalItemMetadata, [*refs, ("image", 0)]) == (
            ContractValueError,
            [(("item_refs", 10_000), "duplicate")],
        )


@pytest.mark.parametrize("name", ["encoder_token_lengths", "output_embedding_lengths"])
class TestLengths:
    def test_a_list_is_stored_as_a_tuple(self, name: str) -> None:
        record = MultimodalItemMetadata([("image", 0), ("image", 1)], **{name: [4, 6]})
        assert getattr(record, name) == (4, 6)
        assert type(getattr(record, name)) is tuple

    def test_unknown_lengths_are_none(self, name: str) -> None:
        assert getattr(MultimodalItemMetadata([("image", 0)]), name) is None

    @pytest.mark.parametrize("lengths", ["12", 5, {1: 2}, range(1, 3), np.array([1, 2])])
    def test_no_tuple_or_list(self, refusal, name: str, lengths: object) -> None:
        assert refusal(MultimodalItemMetadata, [("image", 0), ("image", 1)], **{name: lengths}) == (
            ContractTypeError,
            [((name,), "type")],
        )

    @pytest.mark.parametrize("length", NOT_INTS)
    def test_the_last_of_a_thousand_is_no_int(self, refusal, name: str, length: object) -> None:
        refs = [("image", i) for i in range(1000)]
        lengths = [*[4] * 999, length]
        assert refusal(MultimodalItemMetadata, refs, **{name: lengths}) == (
            ContractTypeError,
            [((name, 999), "type")],
        )

    def test_each_is_positive(self, refusal, name: str) -> None:
        """vllm#34862: an item without rows is refused where it is made."""
        lengths = [4, 0, 1, -1]
        refs = [("image", i) for i in range(4)]
        assert refusal(MultimodalItemMetadata, refs, **{name: lengths}) == (
            ContractValueError,
            [((name, 1), "range"), ((name, 3), "range")],
        )

    def test_each_fits_64_bits(self, refusal, name: str) -> None:
        assert refusal(MultimodalItemMetadata, [("image", 0)], **{name: [2**63]}) == (
            ContractValueError,
            [((name, 0), "range")],
        )

    @pytest.mark.parametrize("lengths", [[], [4], [4, 4, 4]])
    def test_one_per_item(self, refusal, name: str, lengths: list[int]) -> None:
        refs = [("image", 0), ("image", 1)]
        assert refusal(MultimodalItemMetadata, refs, **{name: lengths}) == (
            ContractValueError,
            [((name,), "count")],
        )

    def test_the_count_is_not_judged_against_faulty_refs(self, refusal, name: str) -> None:
        refs = [("image", 0), ("image", 0)]
        assert refusal(MultimodalItemMetadata, refs, **{name: [4]}) == (
            ContractValueError,
            [(("item_refs", 1), "duplicate")],
        )


class TestPartitions:
    def test_they_are_deep_frozen(self) -> None:
        fields = {"pixels": PACKED([3, 2])}
        given = {"image": fields}
        record = MultimodalItemMetadata([("image", 0), ("image", 1)], input_partitions=given)
        fields["other"] = PACKED()
        given["audio"] = {}
        assert record.input_partitions == {"image": {"pixels": PACKED((3, 2))}}
        assert type(record.input_partitions) is FrozenMapping
        assert type(record.input_partitions["image"]) is FrozenMapping

    def test_none_an_empty_declaration_and_an_empty_modality_are_three_things(self) -> None:
        refs = [("image", 0)]
        undeclared = MultimodalItemMetadata(refs)
        nothing = MultimodalItemMetadata(refs, input_partitions={})
        shared = MultimodalItemMetadata(refs, input_partitions={"image": {}})
        assert undeclared.input_partitions is None
        assert nothing.input_partitions == {}
        assert shared.input_partitions == {"image": {}}
        assert undeclared != nothing != shared != undeclared

    @pytest.mark.parametrize("partitions", [[], "image", 5, [("image", {})]])
    def test_no_mapping(self, refusal, partitions: object) -> None:
        assert refusal(MultimodalItemMetadata, [("image", 0)], input_partitions=partitions) == (
            ContractTypeError,
            [(("input_partitions",), "type")],
        )

    def test_keys_that_are_no_str(self, refusal) -> None:
        partitions = {"image": {1: PACKED()}, None: {}}
        assert refusal(MultimodalItemMetadata, [("image", 0)], input_partitions=partitions) == (
            ContractTypeError,
            [(("input_partitions", "image"), "type"), (("input_partitions",), "type")],
        )

    def test_every_key_is_a_modality_among_the_refs(self, refusal) -> None:
        partitions = {"image": {}, "audio": {}, "Video": {}}
        assert refusal(MultimodalItemMetadata, [("image", 0)], input_partitions=partitions) == (
            ContractValueError,
            [(("input_partitions", "audio"), "unknown"), (("input_partitions", "Video"), "format")],
        )

    def test_packed_lengths_of_an_unknown_modality_have_no_count(self, refusal) -> None:
        partitions = {"audio": {"features": PACKED([1, 2])}}
        assert refusal(MultimodalItemMetadata, [("image", 0)], input_partitions=partitions) == (
            ContractValueError,
            [(("input_partitions", "audio"), "unknown")],
        )

    def test_modalities_are_not_judged_against_faulty_refs(self, refusal) -> None:
        partitions = {"audio": {"features": PACKED([1, 2])}, "Video": {}}
        assert refusal(MultimodalItemMetadata, [("image", 7)], input_partitions=partitions) == (
            ContractValueError,
            [(("item_refs", 0), "sequence"), (("input_partitions", "Video"), "format")],
        )

    @pytest.mark.parametrize("fields", [None, [], (PACKED(),), PACKED(), "pixels"])
    def test_the_fields_of_a_modality_are_a_mapping(self, refusal, fields: object) -> None:
        assert refusal(
            MultimodalItemMetadata, [("image", 0)], input_partitions={"image": fields}
        ) == (ContractTypeError, [(("input_partitions", "image"), "type")])

    @pytest.mark.parametrize("partition", [None, (2, 1), {}, 0, ItemRef("image", 0)])
    def test_a_field_that_is_no_partition(self, refusal, partition: object) -> None:
        partitions = {"image": {"grid": PACKED(), "pixels": partition}}
        assert refusal(MultimodalItemMetadata, [("image", 0)], input_partitions=partitions) == (
            ContractTypeError,
            [(("input_partitions", "image", "pixels"), "type")],
        )

    @pytest.mark.parametrize("lengths", [[], [1], [1, 2, 3]])
    def test_packed_lengths_are_one_per_item_of_the_modality(self, refusal, lengths) -> None:
        refs = [("image", 0), ("audio", 0), ("image", 1)]
        partitions = {"image": {"pixels": PACKED(lengths)}, "audio": {"features": PACKED([9])}}
        path = ("input_partitions", "image", "pixels", "item_lengths")
        assert refusal(MultimodalItemMetadata, refs, input_partitions=partitions) == (
            ContractValueError,
            [(path, "count")],
        )


def test_every_problem_of_a_record_is_reported_at_once(refusal) -> None:
    assert refusal(
        MultimodalItemMetadata,
        [("image", 0), ("image", 1)],
        [1, 0],
        ["4", 4, 4],
        {"video": {}, "image": {"a": PACKED([1]), "b": None}},
    ) == (
        ContractTypeError,
        [
            (("encoder_token_lengths", 1), "range"),
            (("output_embedding_lengths", 0), "type"),
            (("input_partitions", "video"), "unknown"),
            (("input_partitions", "image", "a", "item_lengths"), "count"),
            (("input_partitions", "image", "b"), "type"),
        ],
    )


class TestSelect:
    def test_the_audio_items_of_two_and_one_clips(self) -> None:
        record = MultimodalItemMetadata(
            [("audio", 0), ("audio", 1)],
            [200, 100],
            [20, 10],
            {
                "audio": {
                    "input_audio_features": PACKED((2, 1)),
                    "feature_attention_mask": PACKED((2, 1)),
                    "audio_num_clips": PACKED(),
                }
            },
        )
        selected = record.select([1])
        assert selected.item_refs == (("audio", 0),)
        assert selected.encoder_token_lengths == (100,)
        assert selected.output_embedding_lengths == (10,)
        assert selected.input_partitions == {
            "audio": {
                "input_audio_features": PACKED((1,)),
                "feature_attention_mask": PACKED((1,)),
                "audio_num_clips": PACKED(),
            }
        }

    def test_packed_lengths_follow_local_indices_and_own_lengths_the_prompt(self) -> None:
        record = MultimodalItemMetadata(
            [("image", 1), ("video", 0), ("image", 0)],
            [11, 20, 10],
            [5, 6, 4],
            {"image": {"pixels": PACKED((100, 110), axis=2)}, "video": {"frames": PACKED((200,))}},
        )
        selected = record.select([2, 0])
        assert selected.item_refs == (("image", 0), ("image", 1))
        assert selected.encoder_token_lengths == (10, 11)
        assert selected.output_embedding_lengths == (4, 5)
        assert selected.input_partitions == {"image": {"pixels": PACKED((100, 110), axis=2)}}
        reverse = record.select([0, 1, 2])
        assert reverse.item_refs == (("image", 0), ("video", 0), ("image", 1))
        assert reverse.input_partitions == {
            "image": {"pixels": PACKED((110, 100), axis=2)},
            "video": {"frames": PACKED((200,))},
        }

    def test_repeats_are_items_of_their_own(self) -> None:
        selected = MultimodalItemMetadata([("image", 0), ("audio", 0)], [7, 8]).select([0, 1, 0])
        assert selected.item_refs == (("image", 0), ("audio", 0), ("image", 1))
        assert selected.encoder_token_lengths == (7, 8, 7)

    def test_what_is_unknown_stays_unknown(self) -> None:
        selected = MultimodalItemMetadata([("image", 0), ("image", 1)]).select((1,))
        assert selected == MultimodalItemMetadata([("image", 0)])

    def test_the_result_passes_every_check(self) -> None:
        record = MultimodalItemMetadata(
            [("image", 1), ("video", 0), ("image", 0)],
            [1, 2, 3],
            [4, 5, 6],
            {"image": {"pixels": PACKED((7, 8))}, "video": {}},
        )
        selected = record.select([1, 0, 1])
        rebuilt = MultimodalItemMetadata(
            selected.item_refs,
            selected.encoder_token_lengths,
            selected.output_embedding_lengths,
            selected.input_partitions,
        )
        assert rebuilt == selected
        assert hash(rebuilt) == hash(selected)

    @pytest.mark.parametrize(
        ("indices", "kind", "problems"),
        [
            ([], ContractValueError, [(("prompt_indices",), "index")]),
            ([2], ContractValueError, [(("prompt_indices", 0), "index")]),
            ([0, -1], ContractValueError, [(("prompt_indices", 1), "index")]),
            ([0, True], ContractTypeError, [(("prompt_indices", 1), "type")]),
            (
                [0, 1.0, 5, None],
                ContractTypeError,
                [
                    (("prompt_indices", 1), "type"),
                    (("prompt_indices", 2), "index"),
                    (("prompt_indices", 3), "type"),
                ],
            ),
            ([*[0] * 999, 2], ContractValueError, [(("prompt_indices", 999), "index")]),
            ("01", ContractTypeError, [(("prompt_indices",), "type")]),
            (b"\0", ContractTypeError, [(("prompt_indices",), "type")]),
            (0, ContractTypeError, [(("prompt_indices",), "type")]),
            (None, ContractTypeError, [(("prompt_indices",), "type")]),
            ({0}, ContractTypeError, [(("prompt_indices",), "type")]),
        ],
    )
    def test_bad_indices(self, refusal, indices: object, kind: type, problems: list) -> None:
        record = MultimodalItemMetadata([("image", 0), ("image", 1)])
        assert refusal(record.select, indices) == (kind, problems)

    def test_a_range_selects(self) -> None:
        record = MultimodalItemMetadata([("image", 0), ("image", 1)], [3, 4])
        assert record.select(range(1, -1, -1)).encoder_token_lengths == (4, 3)


class TestMerge:
    REFS = (("image", 0), ("image", 1))

    def test_rows_of_the_preparation_and_costs_of_the_model(self) -> None:
        preparation = MultimodalItemMetadata(self.REFS, None, (4, 6))
        model = MultimodalItemMetadata(self.REFS, (16, 24), None)
        both = MultimodalItemMetadata(self.REFS, (16, 24), (4, 6))
        assert preparation.merge(model) == both
        assert model.merge(preparation) == both

    def test_none_never_erases(self) -> None:
        record = MultimodalItemMetadata(self.REFS, (16, 24), (4, 6), {"image": {"grid": PACKED()}})
        nothing = MultimodalItemMetadata(self.REFS)
        assert record.merge(nothing) == record
        assert nothing.merge(record) == record
        assert record.merge(record) == record

    def test_rows_in_conflict(self, refusal) -> None:
        preparation = MultimodalItemMetadata(self.REFS, None, (4, 6))
        model = MultimodalItemMetadata(self.REFS, None, (4, 7))
        conflict = (ContractValueError, [(("output_embedding_lengths", 1), "conflict")])
        assert refusal(preparation.merge, model) == conflict
        assert refusal(model.merge, preparation) == conflict

    def test_every_conflict_is_reported(self, refusal) -> None:
        """TRT-LLM#16792: another order is an error, never a silent choice."""
        one = MultimodalItemMetadata(
            [("image", 0), ("image", 1)],
            (1, 2),
            (3, 4),
            {"image": {"a": PACKED(), "b": PACKED((1, 2)), "same": PACKED((3, 4)), "c": PACKED()}},
        )
        other = MultimodalItemMetadata(
            [("image", 1), ("image", 0)],
            (1, 9),
            (9, 9),
            {
                "image": {
                    "a": PACKED(axis=1),
                    "b": PACKED((2, 1)),
                    "same": PACKED((3, 4)),
                    "d": PACKED(),
                }
            },
        )
        assert refusal(one.merge, other) == (
            ContractValueError,
            [
                (("item_refs", 0), "conflict"),
                (("item_refs", 1), "conflict"),
                (("encoder_token_lengths", 1), "conflict"),
                (("output_embedding_lengths", 0), "conflict"),
                (("output_embedding_lengths", 1), "conflict"),
                (("input_partitions", "image", "a"), "conflict"),
                (("input_partitions", "image", "b"), "conflict"),
                (("input_partitions", "image", "c"), "conflict"),
                (("input_partitions", "image", "d"), "conflict"),
            ],
        )

    def test_another_number_of_items(self, refusal) -> None:
        one = MultimodalItemMetadata([("image", 0)])
        other = MultimodalItemMetadata(self.REFS)
        assert refusal(one.merge, other) == (ContractValueError, [(("item_refs",), "count")])

    def test_declarations_of_different_modalities_come_together(self) -> None:
        refs = (("image", 0), ("audio", 0))
        one = MultimodalItemMetadata(refs, input_partitions={"image": {"grid": PACKED()}})
        other = MultimodalItemMetadata(refs, input_partitions={"audio": {}})
        merged = one.merge(other)
        assert merged.input_partitions == {"image": {"grid": PACKED()}, "audio": {}}
        assert one.input_partitions == {"image": {"grid": PACKED()}}

    def test_shared_and_batched_are_in_conflict(self, refusal) -> None:
        refs = (("image", 0),)
        shared = MultimodalItemMetadata(refs, input_partitions={"image": {}})
        batched = MultimodalItemMetadata(refs, input_partitions={"image": {"grid": PACKED()}})
        conflict = (ContractValueError, [(("input_partitions", "image", "grid"), "conflict")])
        assert refusal(shared.merge, batched) == conflict
        assert refusal(batched.merge, shared) == conflict

    @pytest.mark.parametrize("other", [None, (), {}, "record"])
    def test_something_else(self, refusal, other: object) -> None:
        record = MultimodalItemMetadata(self.REFS)
        assert refusal(record.merge, other) == (ContractTypeError, [(("other",), "type")])
