"""The law of the wire: what arrives equals what was sent, bit for bit, or was refused by path."""

import pickle
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping

import attrs
import msgpack
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as hst
from hypothesis.strategies import SearchStrategy

from omniwire.contracts import (
    DecodeError,
    EncodeError,
    EncoderBudget,
    EncoderCapability,
    FrozenMapping,
    ItemRef,
    TensorHandle,
)
from omniwire.serialization import decode, dumps, encode, loads
from omniwire.serialization.converter import codecs
from omniwire.testing import assert_equal
from omniwire.testing import strategies as st

CONTRACTS: dict[str, SearchStrategy[object]] = {
    "accumulation_rules": st.accumulation_rules(),
    "disaggregated_params": st.disaggregated_params(),
    "encoder_budgets": st.encoder_budgets(),
    "encoder_capabilities": st.encoder_capabilities(),
    "item_metadata": st.item_metadata(),
    "item_partitions": st.item_partitions(),
    "multimodal_inputs": st.multimodal_inputs(),
    "multimodal_params": st.multimodal_params(),
    "omni_outputs": st.omni_outputs(),
    "output_chunks": st.output_chunks(),
    "output_specs": st.output_specs(),
    "payloads": st.payloads(),
    "processed_requests": st.processed_requests(),
    "request_outputs": st.request_outputs(),
    "runtime_data": st.runtime_data(),
    "tensor_handles": st.tensor_handles(),
    "token_ids": st.token_ids(),
}

contracts = pytest.mark.parametrize("strategy", CONTRACTS.values(), ids=CONTRACTS.keys())


def local_handles(value: object, path: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    """Where a value holds handles that mean nothing in another process."""
    if isinstance(value, TensorHandle):
        if value.kind == "local":
            yield path
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from local_handles(item, (*path, key))
    elif type(value) is tuple:
        for index, item in enumerate(value):
            yield from local_handles(item, (*path, index))
    elif attrs.has(type(value)):
        for field in attrs.fields(type(value)):
            yield from local_handles(getattr(value, field.name), (*path, field.name))


def send(value: object, through: Callable[[object], object]) -> None:
    """Check that a value arrives equal, or is refused for its first local handle."""
    refused = next(local_handles(value), None)
    if refused is None:
        arrived = through(value)
        assert type(arrived) is type(value)
        assert_equal(arrived, value)
        assert arrived == value
    else:
        with pytest.raises(EncodeError) as caught:
            through(value)
        assert (caught.value.path, caught.value.code) == (refused, "state")


@contracts
@given(data=hst.data())
def test_frames(strategy: SearchStrategy[object], data: hst.DataObject) -> None:
    send(data.draw(strategy), lambda value: decode(encode(value)))


@contracts
@given(data=hst.data(), copy=hst.booleans(), shift=hst.integers(0, 9))
def test_one_buffer(
    strategy: SearchStrategy[object], data: hst.DataObject, copy: bool, shift: int
) -> None:
    """Also at an address that suits no tensor."""

    def through(value: object) -> object:
        blob = bytes(shift) + dumps(value)
        return loads(memoryview(blob)[shift:], copy=copy)

    send(data.draw(strategy), through)


@contracts
@given(data=hst.data(), protocol=hst.integers(2, pickle.HIGHEST_PROTOCOL))
def test_pickles(strategy: SearchStrategy[object], data: hst.DataObject, protocol: int) -> None:
    send(data.draw(strategy), lambda value: pickle.loads(pickle.dumps(value, protocol)))


@given(st.payloads().filter(lambda payload: not any(local_handles(payload))))
def test_the_same_value_has_the_same_bytes(payload: FrozenMapping[object]) -> None:
    """Writing is a function of the value, down to the padding."""
    first, second = encode(payload), encode(payload)
    assert list(map(bytes, first)) == list(map(bytes, second))
    again = encode(decode(first))
    assert list(map(bytes, again)) == list(map(bytes, first))


@given(hst.lists(st.tensors(), max_size=4))
def test_each_tensor_stays_on_its_own(tensors: list[torch.Tensor]) -> None:
    """Tensors of one message never read one another's bytes."""
    arrived = decode(encode(FrozenMapping({"tensors": tensors})))["tensors"]
    assert_equal(arrived, tuple(tensors))


@given(hst.binary(max_size=200))
def test_arbitrary_bytes_are_refused(junk: bytes) -> None:
    for read in (lambda: decode([junk]), lambda: loads(junk), lambda: decode([junk, junk])):
        with pytest.raises(DecodeError):
            read()


def sealed(body: bytes, version: int) -> bytes:
    head = b"\x95\xa8omniwire" + struct.pack(">BHBH", 0xCD, version, 0xCD, 1)
    return head + struct.pack(">BIBI", 0xCE, zlib.crc32(body), 0xC6, len(body)) + body


NAMES = [*codecs().from_wire, "Later"]
FIELDS = sorted(
    {name for kind in codecs().to_wire if attrs.has(kind) for name in attrs.fields_dict(kind)}
)
EXTENSIONS = hst.builds(
    msgpack.ExtType,
    hst.integers(0, 9),
    hst.binary(max_size=40) | hst.sampled_from([name.encode() for name in NAMES]),
)
TENSORS = hst.builds(
    lambda kind, start, shape, rest: msgpack.ExtType(
        kind, struct.pack(f"<BBB{len(shape)}Q", *start, len(shape), *shape) + rest
    ),
    hst.sampled_from([2, 3]),
    hst.tuples(hst.integers(0, 42), hst.integers(0, 2)),
    hst.lists(hst.sampled_from([0, 1, 2, 16, 2**32, 2**63]), max_size=3),
    hst.binary(max_size=16) | hst.just(bytes(12)),
)
MSGPACK = hst.recursive(
    hst.none()
    | hst.booleans()
    | hst.integers(-(2**63), 2**64 - 1)
    | hst.floats()
    | hst.text(max_size=5)
    | hst.sampled_from(["image", "delta", "arena", "PeerDied"])
    | hst.binary(max_size=5)
    | EXTENSIONS
    | TENSORS,
    lambda values: (
        hst.lists(values, max_size=4)
        | hst.dictionaries(hst.sampled_from(FIELDS) | hst.text(max_size=3), values, max_size=4)
        | hst.tuples(hst.sampled_from(NAMES), values).map(
            lambda pair: [msgpack.ExtType(1, pair[0].encode()), pair[1]]
        )
    ),
    max_leaves=20,
)


@settings(max_examples=500)
@given(
    hst.sampled_from(NAMES),
    MSGPACK,
    hst.sampled_from([[], [16], [128]]),
    hst.integers(1, 2),
    hst.booleans(),
)
def test_arbitrary_msgpack_is_refused_or_valid(
    name: str, value: object, sizes: list[int], version: int, copy: bool
) -> None:
    header = sealed(msgpack.packb([name, value, sizes]), version)
    try:
        arrived = decode([header, *map(bytes, sizes)], copy=copy)
    except DecodeError:
        return
    assert_equal(decode(encode(arrived)), arrived)


@given(hst.sampled_from(["image", "audio"]), hst.integers(0, 2**63 - 1))
def test_item_refs(modality: str, index: int) -> None:
    ref = ItemRef(modality, index)
    assert type(decode(encode(ref))) is ItemRef
    assert decode(encode(ref)) == ref


def test_every_contract_has_its_law() -> None:
    """The table above leaves out none of the attrs classes that travel."""
    drawn = {
        "Append", "Concat", "DisaggregatedParams", "EncoderBudget", "EncoderCapability",
        "FrozenMapping", "ItemRef", "MultimodalInput", "MultimodalItemMetadata",
        "MultimodalItemPartition", "MultimodalParams", "MultimodalRuntimeData", "OmniOutput",
        "OutputChunk", "OutputSpec", "ProcessedRequest", "Replace", "RequestOutput", "Stack",
        "TensorHandle", "TokenIds",
    }  # fmt: skip
    assert set(codecs().from_wire) == drawn


def test_defaults_travel() -> None:
    for contract in (EncoderBudget(), EncoderCapability(), FrozenMapping({})):
        assert decode(encode(contract)) == contract
