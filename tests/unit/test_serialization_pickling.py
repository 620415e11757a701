"""Pickles of contracts: encoded on the way out, strictly decoded on the way in."""

import pickle

import pytest
import torch

from omniwire.contracts import DecodeError, FrozenMapping, ItemRef
from omniwire.serialization.pickling import reduce_contract, restore_blob, restore_frames

VALUE = FrozenMapping({"large": torch.arange(30_000.0), "small": torch.arange(200)})


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_older_protocols_carry_one_buffer(protocol: int) -> None:
    function, (blob,) = reduce_contract(VALUE, protocol)
    assert function is restore_blob
    assert type(blob) is bytes
    assert pickle.loads(pickle.dumps(VALUE, protocol)) == VALUE


def test_protocol_5_carries_frames() -> None:
    function, (header, *frames) = reduce_contract(VALUE, 5)
    assert function is restore_frames
    assert type(header) is bytes
    assert [frame.raw().nbytes for frame in frames] == [120_000, 1600]


@pytest.mark.parametrize("receive", [bytes, bytearray, memoryview, lambda buffer: buffer])
def test_out_of_band(receive: type) -> None:
    """Whatever the transport hands back, such as Ray's read-only buffers."""
    buffers: list[pickle.PickleBuffer] = []
    header = pickle.dumps([VALUE, VALUE], 5, buffer_callback=buffers.append)
    assert len(header) < 2000
    received = [receive(buffer) for buffer in buffers]
    arrived = pickle.loads(header, buffers=received)
    assert arrived == [VALUE, VALUE]


def test_in_band() -> None:
    assert pickle.loads(pickle.dumps(VALUE, 5)) == VALUE


def test_the_strict_decoder_reads_pickles() -> None:
    _, (header, *_) = reduce_contract(ItemRef("image", 3), 5)
    with pytest.raises(DecodeError) as caught:
        restore_frames(header[:-1] + b"\x01")
    assert caught.value.code == "checksum"
    for protocol in (2, 5):
        pickled = pickle.dumps(ItemRef("image", 3), protocol)
        with pytest.raises(DecodeError):
            pickle.loads(pickled.replace(b"image", b"Image"))


def test_a_missing_buffer_is_noticed() -> None:
    _, (header, *frames) = reduce_contract(VALUE, 5)
    with pytest.raises(DecodeError) as caught:
        restore_frames(header, *frames[:1])
    assert caught.value.code == "frames"
