"""Laws of selection: it composes, and a view is what building its parts anew would give."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as hst

from omniwire.contracts import ContractError, MultimodalParams, content_hash
from omniwire.runtime import select, select_inputs
from omniwire.testing import strategies as st

MODEST = settings(max_examples=30)

# Torch says so, once per process, wherever a complex32 tensor comes into being.
pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")


def selections(count):
    """Indices of up to four of some items, in any order, with repeats."""
    return hst.lists(hst.integers(0, count - 1), min_size=1, max_size=4)


def composed(first, second):
    return [first[index] for index in second]


@MODEST
@given(data=hst.data(), record=st.item_metadata(min_items=1))
def test_selections_of_a_record_compose(data, record):
    first = data.draw(selections(len(record.item_refs)))
    second = data.draw(selections(len(first)))
    assert record.select(first).select(second) == record.select(composed(first, second))


@MODEST
@given(data=hst.data(), record=st.item_metadata(min_items=1))
def test_a_selected_record_is_a_valid_one(data, record, arguments_of):
    view = record.select(data.draw(selections(len(record.item_refs))))
    built = type(view)(**arguments_of(view))
    assert built == view
    assert hash(built) == hash(view)
    assert repr(built) == repr(view)


@MODEST
@given(data=hst.data(), record=st.item_metadata(min_items=1))
def test_a_selected_record_has_the_numbers_of_its_items(data, record):
    chosen = data.draw(selections(len(record.item_refs)))
    view = record.select(chosen)
    assert [ref.modality for ref in view.item_refs] == [
        record.item_refs[index].modality for index in chosen
    ]
    for name in ("encoder_token_lengths", "output_embedding_lengths"):
        lengths = getattr(record, name)
        expected = None if lengths is None else tuple(lengths[index] for index in chosen)
        assert getattr(view, name) == expected
    for modality in {ref.modality for ref in view.item_refs}:
        # Renumbered in selection order, so the local indices just count up.
        assert view.local_indices(modality) == tuple(range(len(view.local_indices(modality))))
        if record.input_partitions is None or modality not in record.input_partitions:
            continue
        old_locals = [
            record.item_refs[i].index for i in chosen if record.item_refs[i][0] == modality
        ]
        for field, partition in record.input_partitions[modality].items():
            lengths = partition.item_lengths
            expected = None if lengths is None else tuple(lengths[i] for i in old_locals)
            assert view.input_partitions[modality][field].item_lengths == expected


@MODEST
@given(data=hst.data(), record=st.multimodal_inputs(min_items=1))
def test_selections_of_an_input_compose(data, record):
    first = data.draw(selections(len(record.multimodal_hashes)))
    second = data.draw(selections(len(first)))
    assert record.select(first).select(second) == record.select(composed(first, second))


@MODEST
@given(data=hst.data(), record=st.multimodal_inputs(min_items=1))
def test_a_selected_input_is_a_valid_one(data, record, arguments_of):
    view = record.select(data.draw(selections(len(record.multimodal_hashes))))
    built = type(view)(**arguments_of(view))
    assert built == view
    assert hash(built) == hash(view)


@MODEST
@given(record=st.multimodal_inputs(min_items=1))
def test_selecting_all_items_in_order_changes_nothing(record):
    assert record.select(range(len(record.multimodal_hashes))) == record


def try_select(params, indices):
    """The view, or None where there is none: an undeclared layout cannot always be told."""
    try:
        return select(params, indices)
    except ContractError as error:
        if {problem.code for problem in error.problems} <= {"missing", "type"}:
            return None
        raise


@MODEST
@given(data=hst.data(), params=st.multimodal_params(min_items=1))
def test_selections_of_params_compose(data, params):
    twice, direct = both_ways(data, params)
    assert twice == direct


@MODEST
@given(data=hst.data(), params=st.multimodal_params(min_items=1, handle_kinds=["local"]))
def test_selections_of_handles_compose(data, params):
    """A handle may become its tensor on the way, which has the same content."""
    twice, direct = both_ways(data, params)
    assert content_hash(twice) == content_hash(direct)


def both_ways(data, params):
    """The view of a view, and the view that should equal it."""
    first = data.draw(selections(len(params.item_metadata.item_refs)))
    second = data.draw(selections(len(first)))
    view = try_select(params, first)
    assume(view is not None)
    twice = try_select(view, second)
    direct = try_select(params, composed(first, second))
    assume(twice is not None)
    assume(direct is not None)
    return twice, direct


@MODEST
@given(data=hst.data(), params=st.multimodal_params(min_items=1, handle_kinds=["local"]))
def test_selected_params_are_valid_ones(data, params, arguments_of):
    view = try_select(params, data.draw(selections(len(params.item_metadata.item_refs))))
    assume(view is not None)
    assert view.multimodal_runtime is None
    assert view.encoder_state is None
    assert MultimodalParams(**arguments_of(view)) == view
    record = view.item_metadata
    assert type(record)(**arguments_of(record)) == record


@MODEST
@given(data=hst.data(), params=st.multimodal_params(min_items=1))
def test_a_payload_and_its_record_select_as_params_do(data, params):
    chosen = data.draw(selections(len(params.item_metadata.item_refs)))
    view = try_select(params, chosen)
    assume(view is not None)
    payload = {k: v for k, v in params.multimodal_data.items() if k != "item_metadata"}
    assert select_inputs(payload, params.item_metadata, chosen) == view.multimodal_data


@MODEST
@given(data=hst.data(), params=st.multimodal_params(min_items=1, handle_kinds=["local"]))
def test_views_are_what_construction_gives(data, params, arguments_of):
    runtime = data.draw(st.runtime_data())
    embeddings = data.draw(st.tensors(shapes=hst.tuples(hst.integers(0, 3), hst.integers(0, 3))))
    for view in (
        params.with_runtime(runtime),
        params.with_embeddings(embeddings),
        params.with_embeddings([embeddings, embeddings]),
        params.strip_for_generation(),
        params.to_device("cpu"),
    ):
        assert MultimodalParams(**arguments_of(view)) == view
    assert params.to_device("cpu") == params
