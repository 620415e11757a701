"""An older and a newer peer, in both directions: rules 2 to 7 of the format's evolution.

The newer peer is this code as a version 2 would have it: two records with new fields, of which
one holds a record that is new as well. The older one is this code as it is.
"""

import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import msgpack
import pytest
import torch

from omniwire import contracts
from omniwire.contracts import DecodeError, FrozenMapping, OmniOutput, UnsupportedVersionError
from omniwire.contracts.base import Contract
from omniwire.serialization import WIRE_VERSION, codec, converter, decode, encode, envelope, loads

Vector = dict[str, Any]
Plain = Callable[[object], Any]

NEWER = WIRE_VERSION + 1
NEW_FIELDS = ("latency", "timings", "marker", "max_items")


@attrs.frozen(eq=False, repr=False)
class Marker(Contract):
    text: str
    preview: torch.Tensor | contracts.TensorHandle | None = None


@attrs.frozen(eq=False, repr=False)
class OutputChunk(contracts.OutputChunk):
    latency: float = 0.5
    timings: FrozenMapping[Any] = attrs.field(factory=lambda: FrozenMapping({}))
    marker: Marker | None = None

    __hash__ = None  # type: ignore[assignment]  # as the class it extends


@attrs.frozen(eq=False, repr=False)
class EncoderCapability(contracts.EncoderCapability):
    max_items: int | None = None


@contextmanager
def newer_peer(oldest: int = WIRE_VERSION) -> Iterator[None]:
    """While it lasts, this code is version 2; `oldest` is what it asks of readers."""
    replaced = (contracts.OutputChunk, contracts.EncoderCapability)
    records = [record for record in converter._RECORDS if record not in replaced]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(converter, "_RECORDS", (*records, Marker, OutputChunk, EncoderCapability))
        patch.setattr(envelope, "WIRE_VERSION", NEWER)
        patch.setattr(envelope, "OLDEST_READER", oldest)
        patch.setattr(codec, "WIRE_VERSION", NEWER)
        converter.codecs.cache_clear()
        yield
    converter.codecs.cache_clear()


def versions(frames: list[bytes | memoryview]) -> tuple[int, int]:
    header = bytes(frames[0])
    return struct.unpack(">H", header[11:13])[0], struct.unpack(">H", header[14:16])[0]


def code_of(frames: list[Any]) -> str:
    with pytest.raises(DecodeError) as caught:
        decode(frames)
    return caught.value.code


def resealed(frames: list[Any], change: Callable[[list[Any]], None], version: int) -> list[Any]:
    """The message with other parts in its body, as of a version that asks for readers of 1."""
    parts = msgpack.unpackb(bytes(frames[0])[26:])
    change(parts)
    body = msgpack.packb(parts)
    head = bytes(frames[0])[:10] + struct.pack(">BHBH", 0xCD, version, 0xCD, 1)
    header = head + struct.pack(">BIBI", 0xCE, zlib.crc32(body), 0xC6, len(body)) + body
    return [header, *frames[1:]]


def new_chunk() -> OutputChunk:
    """A chunk that uses every new field, with tensors inline, shared and in a frame of its own."""
    shared = torch.arange(1000)
    return OutputChunk(
        "r1",
        3,
        "audio",
        [1, 2],
        OmniOutput(multimodal_outputs={"audio": shared, "small": torch.ones(2)}),
        latency=1.25,
        timings=FrozenMapping({"steps": torch.zeros(70_000), "shared": (shared, torch.ones(900))}),
        marker=Marker("new", torch.ones(3)),
    )


def old_chunk() -> contracts.OutputChunk:
    """The same, as far as the older peer knows it."""
    output = OmniOutput(multimodal_outputs={"audio": torch.arange(1000), "small": torch.ones(2)})
    return contracts.OutputChunk("r1", 3, "audio", [1, 2], output)


class TestFromTheNewerToTheOlder:
    def test_new_fields_are_ignored_and_their_tensors_accounted_for(self) -> None:
        with newer_peer():
            frames = encode(new_chunk())
        assert versions(frames) == (NEWER, WIRE_VERSION)
        assert len(frames) == 3
        assert decode(frames) == old_chunk()

    def test_also_inside_payloads(self) -> None:
        with newer_peer():
            frames = encode(FrozenMapping({"a": [{"b": new_chunk()}], "c": EncoderCapability()}))
        received = decode(frames)
        assert received["a"][0]["b"] == old_chunk()
        assert received["c"] == contracts.EncoderCapability()

    def test_tensors_of_new_fields_are_still_checked(self) -> None:
        with newer_peer():
            header, shared, own = encode(new_chunk())
        assert code_of([header, shared]) == "frames"
        assert code_of([header, shared, own[:-4]]) in ("frames", "buffer")
        assert code_of([header, shared, own, b"more"]) == "frames"

    def test_new_parts_are_ignored(self) -> None:
        with newer_peer():
            frames = encode(new_chunk().output)
        parts = ["part", {"a": [1]}, None]
        assert decode(resealed(frames, lambda body: body.extend(parts), NEWER)) == decode(frames)

    def test_a_new_type_asks_for_a_newer_reader(self) -> None:
        with newer_peer(oldest=NEWER):
            frames = encode(Marker("new"))
            assert decode(frames) == Marker("new")
        with pytest.raises(UnsupportedVersionError) as caught:
            decode(frames)
        assert (caught.value.found, caught.value.supported) == (NEWER, WIRE_VERSION)

    def test_a_new_type_is_refused_also_from_a_writer_that_does_not_ask(self) -> None:
        with newer_peer():
            alone, held = encode(Marker("new")), encode(FrozenMapping({"a": Marker("new")}))
        assert code_of(alone) == code_of(held) == "unknown"

    def test_what_the_older_peer_sends_on_is_of_its_version(self) -> None:
        with newer_peer():
            frames = encode(new_chunk())
        onward = encode(decode(frames))
        assert versions(onward) == (WIRE_VERSION, WIRE_VERSION)
        with newer_peer():
            received = decode(onward)
        assert (received.latency, received.marker, received.step) == (0.5, None, 3)


class TestFromTheOlderToTheNewer:
    def test_new_fields_have_their_defaults(self) -> None:
        frames = encode(old_chunk())
        with newer_peer():
            received = decode(frames)
        assert type(received) is OutputChunk
        assert received.output == old_chunk().output
        assert (received.latency, len(received.timings), received.marker) == (0.5, 0, None)

    def test_also_inside_payloads(self) -> None:
        frames = encode(FrozenMapping({"a": [contracts.EncoderCapability(hidden_size=8)]}))
        with newer_peer():
            assert decode(frames)["a"] == (EncoderCapability(hidden_size=8),)

    def test_fields_that_neither_knows_are_refused_unless_the_writer_is_newer(self) -> None:
        def add(body: list[Any]) -> None:
            body[1]["no_such_field"] = 1

        frames = encode(contracts.EncoderCapability())
        sent = {version: resealed(frames, add, version) for version in (1, NEWER, NEWER + 1)}
        assert code_of(sent[WIRE_VERSION]) == "unknown"
        assert decode(sent[NEWER]) == contracts.EncoderCapability()
        with newer_peer():
            assert code_of(sent[WIRE_VERSION]) == code_of(sent[NEWER]) == "unknown"
            assert decode(sent[NEWER + 1]) == EncoderCapability()

    def test_parts_that_neither_knows_too(self) -> None:
        frames = encode(contracts.EncoderCapability())
        longer = resealed(frames, lambda body: body.append("part"), WIRE_VERSION)
        assert code_of(longer) == "unknown"
        with newer_peer():
            assert code_of(longer) == "unknown"


class TestAmongNewerPeers:
    def test_nothing_is_lost(self) -> None:
        with newer_peer():
            received = decode(encode(new_chunk()))
            assert received == new_chunk()
            assert received.marker.preview.tolist() == [1, 1, 1]


class TestTheVectors:
    """The golden messages stand for every older writer; both peers read them all."""

    def known(self, plain: Any) -> Any:
        """The plain form without the new fields."""
        if isinstance(plain, list):
            return list(map(self.known, plain))
        if not isinstance(plain, dict):
            return plain
        new = NEW_FIELDS if plain.keys() >= {"step"} or "hidden_size" in plain else ()
        return {key: self.known(value) for key, value in plain.items() if key not in new}

    def test_the_newer_peer_reads_them(
        self, manifest: list[Vector], vectors: Path, plain: Plain
    ) -> None:
        with newer_peer():
            for vector in manifest:
                blob = (vectors / vector["file"]).read_bytes()
                if "content" in vector:
                    assert self.known(plain(loads(blob))) == vector["content"], vector["file"]
                else:
                    with pytest.raises(DecodeError) as caught:
                        loads(blob)
                    assert caught.value.code == vector["code"], vector["file"]

    def test_the_older_peer_reads_what_the_newer_makes_of_them(
        self, manifest: list[Vector], vectors: Path, plain: Plain
    ) -> None:
        for vector in manifest:
            if "content" in vector:
                with newer_peer():
                    frames = encode(loads((vectors / vector["file"]).read_bytes()))
                assert versions(frames) == (NEWER, WIRE_VERSION)
                assert plain(decode(frames)) == vector["content"], vector["file"]
