"""Hypothesis strategies for every contract, valid and invalid.

The valid ones are small by default and reach into the corners: every data type and memory
layout, NaNs with payloads, items of several modalities in any order, integers up to their
bounds. Keyword arguments narrow them down: which modalities and how many items, how payload
fields divide (`PAYLOAD_LAYOUTS`), how model outputs nest (`OUTPUT_LAYOUTS`), and of tensors the
data types, devices, memory layouts and kinds of handles (`TensorKnobs`). Each strategy of
invalid ones draws an `Invalid`: a call that must be refused, with the path and code of its one
problem.

>>> from hypothesis import given
>>> from omniwire.contracts import check_producer
>>> from omniwire.testing import strategies as st
>>> @given(st.processed_requests(modalities=["image", "audio"], max_items=3))
... def test_requests_are_consistent(request):
...     check_producer(request)
>>> test_requests_are_consistent()
"""

try:
    import hypothesis as _hypothesis  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "the strategies need hypothesis: pip install 'omniwire[testing]'", name="hypothesis"
    ) from error

from omniwire.testing.strategies.arrays import arrays, tensors
from omniwire.testing.strategies.inputs import multimodal_inputs, runtime_data
from omniwire.testing.strategies.invalid import Invalid
from omniwire.testing.strategies.invalid_boundaries import (
    requests_refused_by_admission,
    requests_refused_by_producer,
)
from omniwire.testing.strategies.invalid_inputs import (
    invalid_multimodal_inputs,
    invalid_runtime_data,
    invalid_token_ids,
)
from omniwire.testing.strategies.invalid_items import (
    invalid_item_metadata,
    invalid_item_partitions,
    invalid_item_refs,
)
from omniwire.testing.strategies.invalid_outputs import (
    invalid_omni_outputs,
    invalid_output_chunks,
    invalid_output_specs,
    invalid_request_outputs,
)
from omniwire.testing.strategies.invalid_payloads import invalid_payloads, invalid_tensor_handles
from omniwire.testing.strategies.invalid_requests import (
    invalid_disaggregated_params,
    invalid_encoder_budgets,
    invalid_encoder_capabilities,
    invalid_multimodal_params,
    invalid_processed_requests,
)
from omniwire.testing.strategies.items import item_metadata, item_partitions, item_refs
from omniwire.testing.strategies.knobs import (
    ARRAY_LAYOUTS,
    MEMORY_LAYOUTS,
    OUTPUT_LAYOUTS,
    PAYLOAD_LAYOUTS,
    TENSOR_LAYOUTS,
    TensorKnobs,
)
from omniwire.testing.strategies.outputs import (
    accumulation_rules,
    concats,
    omni_outputs,
    output_chunks,
    output_specs,
    problems,
    request_outputs,
    stacks,
    wire_errors,
)
from omniwire.testing.strategies.payloads import (
    payload_values,
    payloads,
    tensor_handles,
)
from omniwire.testing.strategies.requests import (
    disaggregated_params,
    encoder_budgets,
    encoder_capabilities,
    multimodal_params,
    processed_requests,
)
from omniwire.testing.strategies.tokens import token_ids

__all__ = [
    "ARRAY_LAYOUTS",
    "MEMORY_LAYOUTS",
    "OUTPUT_LAYOUTS",
    "PAYLOAD_LAYOUTS",
    "TENSOR_LAYOUTS",
    "Invalid",
    "TensorKnobs",
    "accumulation_rules",
    "arrays",
    "concats",
    "disaggregated_params",
    "encoder_budgets",
    "encoder_capabilities",
    "invalid_disaggregated_params",
    "invalid_encoder_budgets",
    "invalid_encoder_capabilities",
    "invalid_item_metadata",
    "invalid_item_partitions",
    "invalid_item_refs",
    "invalid_multimodal_inputs",
    "invalid_multimodal_params",
    "invalid_omni_outputs",
    "invalid_output_chunks",
    "invalid_output_specs",
    "invalid_payloads",
    "invalid_processed_requests",
    "invalid_request_outputs",
    "invalid_runtime_data",
    "invalid_tensor_handles",
    "invalid_token_ids",
    "item_metadata",
    "item_partitions",
    "item_refs",
    "multimodal_inputs",
    "multimodal_params",
    "omni_outputs",
    "output_chunks",
    "output_specs",
    "payload_values",
    "payloads",
    "problems",
    "processed_requests",
    "request_outputs",
    "requests_refused_by_admission",
    "requests_refused_by_producer",
    "runtime_data",
    "stacks",
    "tensor_handles",
    "tensors",
    "token_ids",
    "wire_errors",
]
