"""What the property tests share: the strategy of every contract, and how to take one apart."""

from collections.abc import Mapping

import attrs
import numpy as np
import pytest
import torch

from omniwire.contracts import FrozenMapping, ItemRef, OmniwireError, TokenIds
from omniwire.contracts.base import Contract
from omniwire.testing import strategies as st

_SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _contracts(*handle_kinds):
    """A strategy for each contract, by name; some tensors are handles of the given kinds."""
    return {
        "FrozenMapping": st.payloads(handle_kinds=handle_kinds),
        "ItemRef": st.item_refs(),
        "MultimodalItemPartition": st.item_partitions(),
        "MultimodalItemMetadata": st.item_metadata(),
        "MultimodalInput": st.multimodal_inputs(),
        "MultimodalRuntimeData": st.runtime_data(),
        "MultimodalParams": st.multimodal_params(handle_kinds=handle_kinds),
        "TensorHandle": st.tensor_handles(handle_kinds=handle_kinds),
        "TokenIds": st.token_ids(),
        "ProcessedRequest": st.processed_requests(handle_kinds=handle_kinds),
        "DisaggregatedParams": st.disaggregated_params(handle_kinds=handle_kinds),
        "OmniOutput": st.omni_outputs(handle_kinds=handle_kinds),
        "OutputChunk": st.output_chunks(handle_kinds=handle_kinds),
        "accumulation_rule": st.accumulation_rules(),
        "OutputSpec": st.output_specs(),
        "RequestOutput": st.request_outputs(handle_kinds=handle_kinds),
        "EncoderCapability": st.encoder_capabilities(),
        "EncoderBudget": st.encoder_budgets(),
    }


_HELD = _contracts("local")
_SENT = _contracts("arena", "cuda_ipc")


@pytest.fixture(scope="session", params=_HELD.values(), ids=_HELD.keys())
def contracts(request):
    """The strategy of each contract in turn, as they are within a process."""
    return request.param


@pytest.fixture(scope="session", params=_SENT.values(), ids=_SENT.keys())
def sendable_contracts(request):
    """The strategy of each contract in turn, as they may leave a process."""
    return request.param


@pytest.fixture(scope="session")
def arguments_of():
    """Take a contract apart: keyword arguments from which its class builds an equal one."""
    return _arguments_of


@pytest.fixture(scope="session")
def rebuild():
    """Make an equal value that shares nothing, through the validating constructors.

    Tensors become contiguous and mappings change the order of their keys.
    """
    return _rebuild


def _arguments_of(contract):
    if isinstance(contract, FrozenMapping):
        return {"values": dict(contract)}
    if isinstance(contract, TokenIds):
        return {"ids": tuple(contract)}
    if isinstance(contract, ItemRef):
        return contract._asdict()
    return {field.name: getattr(contract, field.name) for field in attrs.fields(type(contract))}


def _rebuild(value):
    if isinstance(value, torch.Tensor):
        plain = value.resolve_conj().resolve_neg()
        words = plain.view(_SAME_SIZE.get(plain.itemsize, plain.dtype))  # all can be copied
        return words.clone(memory_format=torch.contiguous_format).view(plain.dtype)
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Contract | FrozenMapping):
        return type(value)(**_rebuilt_items(_arguments_of(value)))
    if isinstance(value, Mapping):
        return _rebuilt_items(value)
    if type(value) is tuple:
        return tuple(map(_rebuild, value))
    if isinstance(value, OmniwireError):
        kind, arguments = value.__reduce__()[:2]
        return kind(*arguments)
    return value


def _rebuilt_items(mapping):
    rebuilt = {}
    for key in reversed(list(mapping)):
        part = mapping[key]
        # A plain mapping, since what is wrong in one must be judged by the contract it is in.
        rebuilt[key] = _rebuilt_items(part) if isinstance(part, Mapping) else _rebuild(part)
    return rebuilt
