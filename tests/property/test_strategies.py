"""What the strategies promise: consistent requests, every corner reached, nothing beyond."""

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as hst

from omniwire.contracts import check_producer
from omniwire.serialization import dumps
from omniwire.testing import strategies as st
from omniwire.testing.strategies.arrays import strided_dtypes

MODEST = settings(max_examples=40)


def kinds_found(strategy, classify, max_examples=300):
    """The union of what `classify` says about each example of a fixed search."""
    found = set()

    @settings(max_examples=max_examples, derandomize=True, database=None)
    @given(strategy)
    def collect(example):
        found.update(classify(example))

    collect()
    return found


@MODEST
@given(request=st.processed_requests(handle_kinds=["local", "arena"]))
def test_requests_pass_the_producer_boundary(request):
    assert check_producer(request) is request


@MODEST
@given(request=st.processed_requests())
def test_requests_can_be_encoded(request):
    assert dumps(request)


@MODEST
@given(data=hst.data())
def test_the_knobs_hold(data):
    record = data.draw(st.item_metadata(modalities=["audio", "depth"], min_items=1, max_items=2))
    request = data.draw(st.processed_requests(modalities=["audio"], min_items=1, max_items=2))
    for found in (record, request.multimodal_params.item_metadata):
        assert 1 <= len(found.item_refs) <= 2
        assert {ref.modality for ref in found.item_refs} <= {"audio", "depth"}
    inputs = data.draw(st.multimodal_inputs(min_items=2, max_items=2, in_prompt_order=True))
    assert len(inputs.multimodal_hashes) == 2
    assert list(inputs.multimodal_positions) == sorted(inputs.multimodal_positions)


def test_there_is_no_data_type_that_is_not_drawn():
    assert {
        torch.bool,
        torch.uint16,
        torch.bfloat16,
        torch.complex32,
        torch.float8_e4m3fn,
        torch.float8_e8m0fnu,
        torch.float4_e2m1fn_x2,
    } <= set(strided_dtypes())
    assert torch.qint8 not in strided_dtypes()
    for dtype in strided_dtypes():
        one_of_it = st.tensors(dtypes=hst.just(dtype))
        assert kinds_found(one_of_it, lambda tensor: {tensor.dtype}, max_examples=1) == {dtype}


def test_tensors_reach_the_corners():
    def classify(tensor):
        return {
            "without dimensions": tensor.ndim == 0,
            "empty": 0 in tensor.shape,
            "strided": not tensor.is_contiguous(),
            "expanded": 0 in tensor.stride() and tensor.numel() > 1,
            "stray stride": tensor.is_contiguous() and 7 in tensor.stride(),
            "offset": tensor.storage_offset() > 0,
            "conjugated": tensor.is_conj(),
            "negative": tensor.is_neg(),
        }

    dtypes = hst.sampled_from([torch.complex64, torch.float64])
    check_all_found(st.tensors(dtypes=dtypes), classify)


def test_floats_reach_the_corners():
    def classify(tensor):
        bits = tensor.resolve_neg().contiguous().numpy().view(np.uint32)
        is_nan = bool(tensor.isnan().any())
        return {
            "NaN": is_nan,
            "NaN with a payload": is_nan and bool((bits & 0x3FFFFF).any()),
            "-0.0": bool((tensor.eq(0) & tensor.signbit()).any()),
            "infinite": bool(tensor.isinf().any()),
            "ordinary": bool((tensor.isfinite() & tensor.ne(0)).any()),
        }

    check_all_found(st.tensors(dtypes=hst.just(torch.float32)), classify)


def test_arrays_reach_the_corners():
    def classify(array):
        return {
            "without dimensions": array.ndim == 0,
            "empty": 0 in array.shape,
            "strided": not array.flags.c_contiguous,
            "read-only": not array.flags.writeable,
            "backwards": any(stride < 0 for stride in array.strides),
            "NaN": array.dtype.kind == "f" and bool(np.isnan(array).any()),
        }

    check_all_found(st.arrays(), classify)


def test_records_reach_the_corners():
    def classify(record):
        partitions = record.input_partitions
        return {
            "empty": not record.item_refs,
            "three modalities": len({ref.modality for ref in record.item_refs}) == 3,
            "uncommon order": record.local_indices("image") == (1, 0),
            "nothing declared": partitions == {},
            "every field shared": any(not fields for fields in (partitions or {}).values()),
            "large": max(record.encoder_token_lengths or (0,)) > 2**31,
        }

    check_all_found(st.item_metadata(), classify)


def test_requests_reach_the_corners():
    def classify(request):
        params = request.multimodal_params
        if params is None:
            return {"text-only": True}
        inputs = params.multimodal_input
        return {
            "embeddings per item": isinstance(params.embeddings, tuple),
            "embeddings in one": isinstance(params.embeddings, torch.Tensor),
            "record and runs": params.item_metadata is not None
            and inputs is not None
            and inputs.multimodal_run_lengths is not None,
            "neither record nor input": params.item_metadata is None and inputs is None,
        }

    check_all_found(st.processed_requests(), classify, max_examples=250)


def check_all_found(strategy, classify, max_examples=300):
    """Some example is of every kind that `classify` knows."""
    known = set()

    def kinds(example):
        verdicts = classify(example)
        known.update(verdicts)
        return {kind for kind, verdict in verdicts.items() if verdict}

    assert kinds_found(strategy, kinds, max_examples) == known


@pytest.mark.parametrize("dtype", [torch.bits16, torch.float4_e2m1fn_x2, torch.complex32])
def test_a_failure_shows_its_example_whatever_its_type(dtype):
    """Torch has no repr for some types."""

    @settings(max_examples=1, database=None, phases=[Phase.generate])
    @given(tensor=st.tensors(dtypes=hst.just(dtype)))
    def fail(tensor):
        assert tensor is None

    with pytest.raises(AssertionError) as caught:
        fail()
    assert any("tensor=" in note for note in caught.value.__notes__)
