"""Laws of merging metadata records: idempotent, never erases, commutes where it succeeds."""

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as hst

from omniwire.contracts import ContractValueError, FrozenMapping, MultimodalItemMetadata
from omniwire.testing import strategies as st

MODEST = settings(max_examples=40)
OPTIONAL = ("encoder_token_lengths", "output_embedding_lengths", "input_partitions")


@hst.composite
def halves(draw):
    """Two records that each know a part of one record, and that record."""
    whole = draw(st.item_metadata())
    parts = []
    for _ in range(2):
        known = {name: getattr(whole, name) for name in OPTIONAL if draw(hst.booleans())}
        partitions = known.get("input_partitions")
        if partitions is not None:
            chosen = {m: fields for m, fields in partitions.items() if draw(hst.booleans())}
            known["input_partitions"] = chosen
        parts.append(MultimodalItemMetadata(whole.item_refs, **known))
    return (*parts, whole)


@MODEST
@given(record=st.item_metadata())
def test_merging_a_record_with_itself_changes_nothing(record):
    assert record.merge(record) == record


@MODEST
@given(record=st.item_metadata())
def test_a_record_that_knows_nothing_adds_and_erases_nothing(record):
    bare = MultimodalItemMetadata(record.item_refs)
    assert bare.merge(record) == record
    assert record.merge(bare) == record


@MODEST
@given(parts=halves())
def test_nothing_that_either_knows_is_erased(parts):
    one, other, _ = parts
    merged = one.merge(other)
    for record in (one, other):
        for name in ("encoder_token_lengths", "output_embedding_lengths"):
            if getattr(record, name) is not None:
                assert getattr(merged, name) == getattr(record, name)
        for modality, fields in (record.input_partitions or {}).items():
            assert merged.input_partitions[modality] == fields


@MODEST
@given(parts=halves())
def test_nothing_is_invented(parts):
    one, other, whole = parts
    merged = one.merge(other)
    for name in ("encoder_token_lengths", "output_embedding_lengths"):
        known = getattr(one, name) is not None or getattr(other, name) is not None
        assert getattr(merged, name) == (getattr(whole, name) if known else None)
    declared = {*(one.input_partitions or ()), *(other.input_partitions or ())}
    assert set(merged.input_partitions or ()) == declared


@MODEST
@given(parts=halves())
def test_records_that_agree_merge_in_any_order(parts):
    one, other, whole = parts
    assert one.merge(other) == other.merge(one)
    assert one.merge(other).merge(whole) == one.merge(other.merge(whole)) == whole


@MODEST
@given(parts=halves())
def test_merging_again_changes_nothing(parts):
    one, other, _ = parts
    merged = one.merge(other)
    assert merged.merge(other) == merged
    assert merged.merge(one) == merged


@MODEST
@given(parts=halves())
def test_a_merged_record_is_a_valid_one(parts, arguments_of):
    one, other, _ = parts
    merged = one.merge(other)
    assert MultimodalItemMetadata(**arguments_of(merged)) == merged


@MODEST
@given(data=hst.data(), record=st.item_metadata(min_items=1))
def test_a_conflict_is_found_in_any_order_and_names_the_element(data, record):
    name = data.draw(hst.sampled_from(["encoder_token_lengths", "output_embedding_lengths"]))
    index = data.draw(hst.integers(0, len(record.item_refs) - 1))
    lengths = [3] * len(record.item_refs)
    record = attrs.evolve(record, **{name: lengths})
    lengths[index] = 4
    other = attrs.evolve(record, **{name: lengths})
    for one, two in ((record, other), (other, record)):
        with pytest.raises(ContractValueError) as caught:
            one.merge(two)
        found = [(problem.path, problem.code) for problem in caught.value.problems]
        assert found == [((name, index), "conflict")]


@MODEST
@given(one=st.item_metadata(), other=st.item_metadata())
def test_records_of_other_items_never_merge(one, other):
    if one.item_refs == other.item_refs:
        return
    for first, second in ((one, other), (other, one)):
        with pytest.raises(ContractValueError):
            first.merge(second)


@MODEST
@given(record=st.item_metadata())
def test_partitions_may_come_in_several_parts(record):
    bare = MultimodalItemMetadata(
        record.item_refs, record.encoder_token_lengths, record.output_embedding_lengths
    )
    merged = bare
    for modality, fields in (record.input_partitions or FrozenMapping({})).items():
        merged = merged.merge(
            MultimodalItemMetadata(record.item_refs, input_partitions={modality: fields})
        )
    if record.input_partitions:
        assert merged == record
    else:
        assert merged == bare
