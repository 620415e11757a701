"""Where in a file the parts of a message are, without touching its tensors."""

import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import omniwire as ow
from omniwire.serialization import Limits
from omniwire.serialization.layout import LocatedMessage, Place, Placement, Span, locate

KIB = 1024


def located(path: Path, limits: Limits = Limits()) -> LocatedMessage:  # noqa: B008  # immutable
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return locate(descriptor, limits)
    finally:
        os.close(descriptor)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "one.omniwire"


@pytest.fixture
def tensors() -> dict[str, torch.Tensor | np.ndarray]:
    """Of each kind: inline up to 512 bytes, shared below 64 KiB, own from there on."""
    return {
        "inline": torch.full((512,), 1, dtype=torch.uint8),
        "first": torch.full((1000,), 2, dtype=torch.uint8),
        "second": np.full(75, 3.5),  # 600 bytes
        "large": torch.full((64 * KIB,), 4, dtype=torch.uint8),
        "last": torch.full((64 * KIB - 1,), 5, dtype=torch.uint8),
        "empty": torch.zeros(0, 7),
    }


def test_offsets_worked_out_by_hand(
    path: Path, tensors: dict[str, torch.Tensor | np.ndarray]
) -> None:
    ow.save(ow.FrozenMapping(tensors), path)
    content = path.read_bytes()
    (header_size,) = struct.unpack_from("<Q", content, 16)
    message = located(path)
    # 8 magic, 8 count, 3 sizes: 40 bytes. Shared: 1000, 600 from 1024 on, 65,535 from 1664 on.
    shared = -(-(64 + header_size) // 64) * 64
    own = -(-(shared + 1664 + 65_535) // 64) * 64
    assert message.frames == (
        Span(64, header_size),
        Span(shared, 1664 + 65_535),
        Span(own, 65_536),
    )
    assert message.num_file_bytes == len(content) == own + 65_536
    assert message.version == ow.WIRE_VERSION
    assert {name: message.place(value) for name, value in message.obj.items()} == {
        "inline": Place(Placement.INLINE, None),
        "first": Place(Placement.SHARED, shared),
        "second": Place(Placement.SHARED, shared + 1024),
        "large": Place(Placement.OWN, own),
        "last": Place(Placement.SHARED, shared + 1664),
        "empty": Place(Placement.INLINE, None),
    }


def test_the_bytes_of_a_tensor_are_at_its_offset(
    path: Path, tensors: dict[str, torch.Tensor | np.ndarray]
) -> None:
    ow.save(ow.FrozenMapping(tensors), path)
    content = path.read_bytes()
    message = located(path)
    for name, value in tensors.items():
        offset = message.place(message.obj[name]).offset
        if offset is not None:
            expected = np.asarray(value).tobytes()
            assert content[offset : offset + len(expected)] == expected


def test_a_tensor_that_stands_twice_is_in_one_place(path: Path) -> None:
    tensor = torch.zeros(20_000)
    ow.save(ow.FrozenMapping({"a": tensor, "b": (tensor, tensor.view(100, 200))}), path)
    message = located(path)
    places = {message.place(message.obj["a"]), *map(message.place, message.obj["b"])}
    assert len(places) == 1
    assert message.num_file_bytes == message.frames[1].offset + 80_000


def test_what_is_read_equals_what_was_saved(
    build_to_send: Callable[[], object], path: Path
) -> None:
    ow.save(build_to_send(), path)
    assert located(path).obj == build_to_send()


def _outcome(function: Callable[..., object], *arguments: object) -> object:
    try:
        return function(*arguments)
    except ow.DecodeError as error:
        return str(error)


def test_every_damaged_file_is_judged_as_loads_judges_its_bytes(path: Path) -> None:
    """Cut at every byte, every bit of its first 128 bytes flipped, and with bytes added."""
    whole = ow.dumps(ow.FrozenMapping({"a": torch.zeros(150), "b": torch.ones(130), "c": "x"}))
    damaged = [whole[:size] for size in range(1, len(whole))]
    damaged += [whole + b"\0", whole + bytes(64), whole[:-1] + b"\1"]
    for position in range(8 * 128):
        flipped = bytearray(whole)
        flipped[position // 8] ^= 1 << position % 8
        damaged.append(bytes(flipped))
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    for content in damaged:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, content, 0)
        expected = _outcome(ow.loads, content)
        found = _outcome(locate, descriptor)
        assert (found.obj if isinstance(found, LocatedMessage) else found) == expected
    os.close(descriptor)


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        (Limits(max_tensors=1), "expected at most 2 frames, got 3"),
        (Limits(max_header_bytes=99), "expected a header of at most 99 bytes"),
        (Limits(max_total_bytes=99), "expected at most 99 bytes of tensors"),
    ],
)
def test_limits_hold(limits: Limits, text: str, path: Path) -> None:
    ow.save(ow.FrozenMapping({"a": torch.zeros(20_000), "b": torch.zeros(20_000)}), path)
    with pytest.raises(ow.DecodeError, match=text) as caught:
        located(path, limits)
    assert caught.value.code == "limit"


def test_a_file_that_shrinks_before_it_is_mapped(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ow.save(ow.FrozenMapping({"a": torch.zeros(20_000)}), path)
    pread = os.pread

    def read_and_cut(descriptor: int, size: int, offset: int) -> bytes:
        content = pread(descriptor, size, offset)
        if offset == 64:  # the header, read last
            os.truncate(path, 1000)
        return content

    monkeypatch.setattr(os, "pread", read_and_cut)
    with pytest.raises(ow.DecodeError) as caught:
        located(path)
    assert caught.value.code == "truncated"


def test_a_file_that_shrinks_while_its_header_is_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ow.save(ow.FrozenMapping({"a": "x" * 5000}), path)
    pread = os.pread

    def read_short(descriptor: int, size: int, offset: int) -> bytes:
        return pread(descriptor, min(size, max(0, 1000 - offset)), offset)

    monkeypatch.setattr(os, "pread", read_short)
    with pytest.raises(ow.DecodeError, match="got 1000") as caught:
        located(path)
    assert caught.value.code == "truncated"
