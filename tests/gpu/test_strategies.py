"""The strategies draw on the device that they are asked for, whatever the data type or layout."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as hst

from omniwire.contracts import check_producer
from omniwire.testing import assert_equal
from omniwire.testing import strategies as st
from omniwire.testing.strategies.arrays import strided_dtypes


@settings(max_examples=100)
@given(data=hst.data(), layout=hst.sampled_from(st.TENSOR_LAYOUTS))
def test_every_data_type_and_layout_is_drawn_there(data, layout):
    dtype = data.draw(hst.sampled_from(strided_dtypes()))
    knobs = {"dtypes": [dtype], "devices": ["cuda"], "memory_layouts": [layout]}
    tensor = data.draw(st.tensors(**knobs))
    assert (tensor.device.type, tensor.dtype) == ("cuda", dtype)


@settings(max_examples=50)
@given(request=st.processed_requests(min_items=1, devices=["cuda"], dtypes=[torch.float16]))
def test_requests_are_consistent_there(request):
    assert_equal(check_producer(request), request)
