"""Laws of conversion: what is turned into another form and back is what it was."""

import struct

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as hst

from omniwire.contracts import FrozenMapping, MultimodalInput, TokenIds, content_hash
from omniwire.testing import strategies as st

MODEST = settings(max_examples=60)
INT_DTYPES = (torch.int32, torch.int64)


@MODEST
@given(record=st.multimodal_inputs(), dtype=hst.sampled_from(INT_DTYPES))
def test_an_input_survives_its_tensors(record, dtype):
    tensors = record.to_tensors()
    assert {tensor.dtype for tensor in tensors.values()} == {torch.int32}
    assert tensors["multimodal_hashes"].shape == (len(record.multimodal_hashes), 8)
    wider = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    assert MultimodalInput.from_tensors(wider, record.multimodal_uuids) == record


@MODEST
@given(record=st.multimodal_inputs(), upper=hst.booleans())
def test_hash_words_survive_their_digests(record, upper):
    digests = [struct.pack(">8i", *words).hex() for words in record.multimodal_hashes]
    built = MultimodalInput.from_hexdigests(
        [digest.upper() if upper else digest for digest in digests],
        record.multimodal_positions,
        record.multimodal_lengths,
        multimodal_uuids=record.multimodal_uuids,
        multimodal_item_run_cu_offsets=record.multimodal_item_run_cu_offsets,
        multimodal_run_positions=record.multimodal_run_positions,
        multimodal_run_lengths=record.multimodal_run_lengths,
    )
    assert built == record


@MODEST
@given(value=st.payload_values())
def test_any_content_hash_is_a_digest_of_an_item(value):
    digest = content_hash(value)
    built = MultimodalInput.from_hexdigests([digest], [0], [1])
    assert struct.pack(">8i", *built.multimodal_hashes[0]).hex() == digest


@MODEST
@given(ids=st.token_ids())
def test_token_ids_survive_every_form(ids):
    plain = tuple(ids)
    forms = [
        list(ids),
        np.array(plain, dtype=np.int64),
        np.array(plain, dtype=np.uint32),
        np.array(plain, dtype=">i4"),
        np.array(plain, dtype=np.int64).repeat(2)[::2],
        ids.to_tensor(),
        ids.to_tensor().long(),
        torch.tensor([plain, plain], dtype=torch.int64).t().reshape(-1, 2)[:, 1],
    ]
    for form in forms:
        assert TokenIds(form) == ids == plain
    assert TokenIds.frombytes(ids.tobytes()) == ids
    assert ids.tobytes() == struct.pack(f"<{len(plain)}i", *plain)
    assert ids.to_tensor().dtype == torch.int32
    assert hash(ids) == hash(plain)


@MODEST
@given(ids=st.token_ids(), data=hst.data())
def test_token_ids_behave_as_their_tuple(ids, data):
    plain = tuple(ids)
    part = data.draw(hst.slices(len(plain)))
    assert ids[part] == plain[part]
    assert type(ids[part]) is TokenIds
    assert [ids[index] for index in range(-len(plain), len(plain))] == [*plain, *plain]
    assert list(reversed(ids)) == list(reversed(plain))
    for wanted in (*plain, -1, 2**31):
        assert (wanted in ids) is (wanted in plain)
        assert ids.count(wanted) == plain.count(wanted)


@MODEST
@given(payload=st.payloads())
def test_a_frozen_mapping_behaves_as_its_dictionary(payload):
    plain = dict(payload)
    assert len(payload) == len(plain)
    assert list(payload) == list(plain)
    assert list(payload.items()) == list(plain.items())
    assert payload == plain
    assert all(key in payload and payload[key] is plain[key] for key in plain)
    assert FrozenMapping(payload) == payload
    assert {**payload} == payload


@MODEST
@given(payload=st.payloads(), data=hst.data())
def test_the_content_hash_does_not_depend_on_the_order_of_keys(payload, data):
    order = data.draw(hst.permutations(list(payload)))
    assert content_hash({key: payload[key] for key in order}) == content_hash(payload)


@MODEST
@given(tensor=st.tensors())
def test_the_content_hash_does_not_depend_on_memory_layout(tensor, rebuild):
    assert content_hash(tensor) == content_hash(rebuild(tensor))


@MODEST
@given(array=st.arrays())
def test_the_content_hash_of_an_array_does_not_depend_on_memory_layout(array):
    for order in "CF":
        assert content_hash(array.copy(order)) == content_hash(array)
