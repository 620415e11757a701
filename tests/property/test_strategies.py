"""What the strategies promise: consistent requests, every corner reached, nothing beyond."""

from collections.abc import Mapping

import attrs
import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as hst

from omniwire.contracts import (
    FrozenMapping,
    MultimodalItemMetadata,
    TensorHandle,
    check_producer,
)
from omniwire.runtime import OmniRequestState, default_registry
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


def tensors_in(value):
    """Every tensor and array in a value, those behind handles too."""
    if isinstance(value, torch.Tensor | np.ndarray):
        yield value
    elif isinstance(value, TensorHandle):
        yield from tensors_in(value.payload)
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_in(part)
    elif isinstance(value, tuple):
        for part in value:
            yield from tensors_in(part)
    elif attrs.has(type(value)):
        for field in attrs.fields(type(value)):
            yield from tensors_in(getattr(value, field.name))


WITH_TENSORS = {
    "disaggregated_params": {"handle_kinds": ["local"]},
    "multimodal_params": {"min_items": 1},
    "omni_outputs": {},
    "output_chunks": {},
    "payload_values": {},
    "payloads": {},
    "processed_requests": {"min_items": 1},
    "request_outputs": {},
    "tensor_handles": {},
}


@pytest.mark.parametrize("name", WITH_TENSORS)
def test_the_knobs_of_tensors_hold_wherever_there_are_tensors(name):
    strategy = getattr(st, name)(
        **{"handle_kinds": ["local"], **WITH_TENSORS[name]},
        dtypes=[torch.int16, torch.bfloat16],
        memory_layouts=["contiguous", "reversed"],
    )

    def classify(value):
        for tensor in tensors_in(value):
            if isinstance(tensor, torch.Tensor):
                assert tensor.is_contiguous()
            else:
                assert tensor.dtype == np.int16
            yield str(tensor.dtype).removeprefix("torch.")

    assert kinds_found(strategy, classify, 120) == {"int16", "bfloat16"}


def test_tensors_are_made_on_the_device_that_is_asked_for():
    """Without a device at hand, that of torch which computes nothing."""
    for layout in st.TENSOR_LAYOUTS:
        on_meta = st.tensors(devices=["meta"], dtypes=[torch.float32], memory_layouts=[layout])
        assert kinds_found(on_meta, lambda tensor: {tensor.device.type}, 5) == {"meta"}


def test_arrays_are_left_out_where_numpy_has_no_such_data_type_or_layout():
    for knobs in ({"dtypes": [torch.bfloat16]}, {"memory_layouts": ["conjugated"]}):
        kinds = kinds_found(st.payloads(**knobs), lambda value: map(type, tensors_in(value)), 120)
        assert kinds == {torch.Tensor}


def test_payload_layouts_hold():
    def classify(value):
        record = value if isinstance(value, MultimodalItemMetadata) else value.item_metadata
        for modality in {ref.modality for ref in record.item_refs}:
            partitions = (record.input_partitions or {}).get(modality)
            if partitions is None:
                yield "undeclared"
                continue
            for partition in partitions.values():
                yield "batched" if partition.item_lengths is None else "packed"
            given = record is value or value.multimodal_data.get(modality, {})
            if not partitions or (record is not value and given.keys() - partitions.keys()):
                yield "shared"

    for layouts in (["batched"], ["packed"], ["shared"], ["undeclared"], ["packed", "undeclared"]):
        for strategy in (st.item_metadata, st.multimodal_params):
            drawn = strategy(min_items=1, payload_layouts=layouts)
            assert kinds_found(drawn, classify, 60) == set(layouts)


def test_output_layouts_and_modalities_hold():
    def classify(output):
        for key, value in output.multimodal_outputs.items():
            assert key in {"audio", "depth"}
            yield "nested" if isinstance(value, Mapping) else "flat"

    for layouts in (["flat"], ["nested"], ["flat", "nested"]):
        drawn = st.omni_outputs(modalities=["audio", "depth"], payload_layouts=layouts)
        assert kinds_found(drawn, classify, 60) == set(layouts)
    nested = st.omni_outputs(payload_layouts=["nested"])
    assert kinds_found(
        nested, lambda output: map(type, output.multimodal_outputs.values()), 60
    ) == {FrozenMapping}


@MODEST
@given(data=hst.data())
def test_outputs_of_modalities_are_what_their_handlers_take(data):
    """Whatever is drawn for a modality is extracted as its own; nothing is ambiguous."""
    chunk = data.draw(st.output_chunks(modalities=["audio", "image"]))
    assert chunk.output_type == "audio+image"
    state = OmniRequestState("r", chunk.output_type, registry=default_registry())
    state.take_in(attrs.evolve(chunk, request_id="r", step=0, finish_reason="stop"))
    assert "" not in state.emit().errors


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: st.payloads(layouts=["contiguous"]), "layouts"),
        (lambda: st.payloads(memory_layouts=["tight"]), "expected any of contiguous, "),
        (lambda: st.payloads(memory_layouts=["reversed"]), "for the tensors"),
        (lambda: st.payloads(handle_kinds=["remote"]), "expected any of local, arena, cuda_ipc"),
        (lambda: st.payloads(dtypes=[]), "dtypes: expected at least one"),
        (lambda: st.payloads(devices="cuda"), "devices: expected a sequence"),
        (lambda: st.tensors(memory_layouts=["reversed"]), "expected any of contiguous, "),
        (lambda: st.arrays(memory_layouts=["conjugated"]), "expected any of contiguous, "),
        (lambda: st.item_metadata(payload_layouts=["flat"]), "expected any of batched, "),
        (lambda: st.item_partitions(payload_layouts=["shared"]), "batched, packed"),
        (lambda: st.multimodal_params(payload_layouts=["flat"]), "expected any of batched, "),
        (lambda: st.omni_outputs(payload_layouts=["packed"]), "expected any of flat, nested"),
    ],
)
def test_a_knob_that_is_no_knob_is_refused_at_once(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


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
        one_of_it = st.tensors(dtypes=[dtype])
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

    dtypes = [torch.complex64, torch.float64]
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

    check_all_found(st.tensors(dtypes=[torch.float32]), classify)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64])
def test_tensors_may_be_large(dtype):
    def classify(tensor):
        assert tensor.shape == (40, 1000)
        numbers = tensor.view(torch.uint8)[20:]
        assert dtype is not torch.bool or numbers.max() <= 1
        return {"other"} if numbers.any() else {"zero"}

    drawn = st.tensors(dtypes=[dtype], shapes=hst.just((40, 1000)), memory_layouts=["contiguous"])
    assert kinds_found(drawn, classify, 30) == {"zero", "other"}


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
    @given(tensor=st.tensors(dtypes=[dtype]))
    def fail(tensor):
        assert tensor is None

    with pytest.raises(AssertionError) as caught:
        fail()
    assert any("tensor=" in note for note in caught.value.__notes__)
