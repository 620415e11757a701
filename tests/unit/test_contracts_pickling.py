"""Contracts pickle and copy, at every protocol, and arrive equal."""

import copy
import io
import multiprocessing
import pickle
from collections.abc import Callable

import pytest
import torch

from omniwire.contracts import (
    EncodeError,
    FrozenMapping,
    MultimodalParams,
    OmniOutput,
    ProcessedRequest,
)

PROTOCOLS = range(2, pickle.HIGHEST_PROTOCOL + 1)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_contract_arrives_equal(build_to_send: Callable[[], object], protocol: int) -> None:
    contract = build_to_send()
    arrived = pickle.loads(pickle.dumps(contract, protocol))
    assert type(arrived) is type(contract)
    assert arrived == contract
    assert contract == arrived


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_inside_plain_containers(build_to_send: Callable[[], object], protocol: int) -> None:
    contract = build_to_send()
    arrived = pickle.loads(pickle.dumps({"a": [contract, (contract,)]}, protocol))
    assert arrived["a"][0] == contract
    assert arrived["a"][1] == (contract,)


def test_what_arrives_is_immutable_too(build_to_send: Callable[[], object]) -> None:
    arrived = pickle.loads(pickle.dumps(build_to_send()))
    with pytest.raises((AttributeError, TypeError)):
        arrived.new = 1
    with pytest.raises(TypeError):
        arrived["a"] = 1


def test_a_copy_is_the_contract_itself(build_to_send: Callable[[], object]) -> None:
    contract = build_to_send()
    assert copy.copy(contract) is contract


def test_a_deep_copy_is_equal(build_to_send: Callable[[], object]) -> None:
    contract = build_to_send()
    assert copy.deepcopy(contract) == contract


def test_a_deep_copy_shares_no_tensor_memory() -> None:
    output = OmniOutput(torch.zeros(3), {"a": torch.zeros(1 << 16)})
    twin = copy.deepcopy(output)
    output.text_hidden_states.fill_(1)
    output.multimodal_outputs["a"].fill_(1)
    assert twin.text_hidden_states.sum() == 0
    assert twin.multimodal_outputs["a"].sum() == 0


def test_tensors_travel_out_of_band_with_protocol_5() -> None:
    pixels = torch.arange(1 << 18, dtype=torch.uint8)
    params = MultimodalParams(multimodal_data={"image": {"pixels": pixels}})
    buffers: list[pickle.PickleBuffer] = []
    header = pickle.dumps(params, protocol=5, buffer_callback=buffers.append)
    assert len(header) < 4096
    assert sum(buffer.raw().nbytes for buffer in buffers) >= 1 << 18
    arrived = pickle.loads(header, buffers=buffers)
    assert arrived == params
    assert arrived.multimodal_data["image"]["pixels"].data_ptr() == pixels.data_ptr()


def test_only_the_view_s_own_bytes_are_pickled() -> None:
    """pytorch#65604: a row of a large tensor costs a row."""
    row = torch.zeros(1024, 1024)[:1]
    for protocol in PROTOCOLS:
        params = MultimodalParams(multimodal_data={"a": row})
        assert len(pickle.dumps(params, protocol)) < 4096 + 4096


def test_a_mapping_pickles() -> None:
    frozen = FrozenMapping({"a": [1, {"b": torch.ones(2)}], "c": float("nan")})
    arrived = pickle.loads(pickle.dumps(frozen))
    assert type(arrived) is FrozenMapping
    assert arrived == frozen


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_live_state_does_not_pickle(protocol: int) -> None:
    params = MultimodalParams(encoder_state=object())
    request = ProcessedRequest("r1", [1], params)
    for value, path in (
        (params, ("encoder_state",)),
        (request, ("multimodal_params", "encoder_state")),
    ):
        with pytest.raises(EncodeError) as caught:
            pickle.dumps(value, protocol)
        assert caught.value.path == path
        assert caught.value.code == "state"


def test_a_pickle_names_only_what_restores_it(build_to_send: Callable[[], object]) -> None:
    """vllm#29565: nothing else is looked up, so a restricted unpickler can allow just that."""
    found = set()

    class Watching(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> object:
            found.add((module, name))
            return super().find_class(module, name)

    Watching(io.BytesIO(pickle.dumps(build_to_send()))).load()
    assert found <= {
        ("omniwire.serialization.pickling", "restore_frames"),
        ("omniwire.serialization.pickling", "restore_blob"),
        ("builtins", "bytearray"),
    }


def test_multiprocessing_carries_contracts(build_to_send: Callable[[], object]) -> None:
    receiver, sender = multiprocessing.Pipe(duplex=False)
    with receiver, sender:
        sender.send(build_to_send())
        assert receiver.recv() == build_to_send()
