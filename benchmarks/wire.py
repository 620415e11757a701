"""The wire format beside what one would use instead: sizes, encode, decode, peak memory.

Run it with `OMP_NUM_THREADS=1 python benchmarks/wire.py`. Every peer moves the same request:

- `msgspec`: structs with a hook that puts tensors out of band, as one would write it by hand;
  checks types of fields, no rule of a contract;
- `pickle 5`: nested dicts of tensors; runs whatever a peer sends;
- `torch.save`, read with `weights_only`;
- `safetensors`: a flat dict of tensors, everything else as JSON in its metadata.

omniwire validates what it decodes, here as always. Times are the best of many rounds, so that
a busy machine does not count; memory is the growth of the process's peak over one round trip.
The last rows send the same messages through a pyzmq socket pair within the process, without
copying.
"""

import io
import json
import multiprocessing
import pickle
import sys
import timeit
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import safetensors.torch
import torch
import zmq
from records import request as image_request

import omniwire as ow

MIB = 1024 * 1024


class Peer(NamedTuple):
    """One way to move a request: to frames, and back."""

    name: str
    prepare: Callable[[ow.ProcessedRequest], Any]
    encode: Callable[[Any], list[Any]]
    decode: Callable[[list[Any]], Any]


# ---- msgspec, by hand -------------------------------------------------------------------------


class Items(msgspec.Struct):
    """The fields of a request's items, flat, as a serving system keeps them today."""

    item_refs: list[tuple[str, int]]
    encoder_token_lengths: list[int] | None
    output_embedding_lengths: list[int] | None
    packed: dict[str, list[int] | None]
    multimodal_hashes: list[list[int]]
    multimodal_positions: list[int]
    multimodal_lengths: list[int]
    multimodal_uuids: list[str | None] | None
    multimodal_run_positions: list[int] | None
    multimodal_run_lengths: list[int] | None


class Request(msgspec.Struct):
    """A request with its tensors."""

    request_id: str
    prompt_token_ids: list[int]
    items: Items | None
    tensors: dict[str, torch.Tensor]


def to_struct(request: ow.ProcessedRequest) -> Request:
    """The request as msgspec's structs."""
    params = request.multimodal_params
    assert params is not None
    tensors = {
        f"{modality}.{field}": value
        for modality, fields in params.multimodal_data.items()
        if modality != "item_metadata"
        for field, value in fields.items()
    }
    record, given = params.item_metadata, params.multimodal_input
    items = None
    if record is not None and given is not None:
        partitions = record.input_partitions or {}
        items = Items(
            [tuple(ref) for ref in record.item_refs],
            list(record.encoder_token_lengths or ()),
            list(record.output_embedding_lengths or ()),
            {
                f"{modality}.{field}": list(partition.item_lengths or ()) or None
                for modality, fields in partitions.items()
                for field, partition in fields.items()
            },
            [list(words) for words in given.multimodal_hashes],
            list(given.multimodal_positions),
            list(given.multimodal_lengths),
            list(given.multimodal_uuids or ()) or None,
            list(given.multimodal_run_positions or ()) or None,
            list(given.multimodal_run_lengths or ()) or None,
        )
    return Request(request.request_id, list(request.prompt_token_ids), items, tensors)


def msgspec_encode(request: Request) -> list[Any]:
    """One msgpack frame, and one frame a tensor."""
    frames: list[Any] = [b""]

    def hook(tensor: torch.Tensor) -> tuple[str, list[int], int]:
        frames.append(memoryview(tensor.contiguous().view(-1).view(torch.uint8).numpy()))
        return str(tensor.dtype).removeprefix("torch."), list(tensor.shape), len(frames) - 1

    frames[0] = msgspec.msgpack.Encoder(enc_hook=hook).encode(request)
    return frames


def msgspec_decode(frames: list[Any]) -> Request:
    """The request, its tensors aliasing the frames."""

    def hook(_: type, value: Any) -> torch.Tensor:
        dtype, shape, index = value
        return torch.frombuffer(frames[index], dtype=getattr(torch, dtype)).view(shape)

    return msgspec.msgpack.Decoder(Request, dec_hook=hook).decode(frames[0])


# ---- the others -------------------------------------------------------------------------------


def to_dict(request: ow.ProcessedRequest) -> dict[str, Any]:
    """The request as nested dicts of tensors."""
    struct = to_struct(request)
    return {
        "request_id": struct.request_id,
        "prompt_token_ids": struct.prompt_token_ids,
        "items": None if struct.items is None else msgspec.structs.asdict(struct.items),
        "tensors": struct.tensors,
    }


def pickle_encode(value: dict[str, Any]) -> list[Any]:
    """One frame, and the buffers that pickle puts out of band."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(value, 5, buffer_callback=buffers.append)
    return [head, *[buffer.raw() for buffer in buffers]]


def torch_encode(value: dict[str, Any]) -> list[Any]:
    """What `torch.save` writes."""
    file = io.BytesIO()
    torch.save(value, file)
    return [file.getbuffer()]


def safetensors_encode(value: dict[str, Any]) -> list[Any]:
    """What safetensors writes."""
    rest = {name: part for name, part in value.items() if name != "tensors"}
    return [safetensors.torch.save(value["tensors"], {"request": json.dumps(rest)})]


def safetensors_decode(frames: list[Any]) -> dict[str, Any]:
    """What safetensors reads, with the rest from its metadata."""
    blob = bytes(frames[0])
    size = int.from_bytes(blob[:8], "little")
    rest = json.loads(json.loads(blob[8 : 8 + size])["__metadata__"]["request"])
    return {**rest, "tensors": safetensors.torch.load(blob)}


def identity(request: ow.ProcessedRequest) -> ow.ProcessedRequest:
    """A contract travels as it is."""
    return request


PEERS = (
    Peer("omniwire", identity, ow.encode, ow.decode),
    Peer("omniwire, one buffer", identity, lambda r: [ow.dumps(r)], lambda f: ow.loads(f[0])),
    Peer("msgspec by hand", to_struct, msgspec_encode, msgspec_decode),
    Peer("pickle 5", to_dict, pickle_encode, lambda f: pickle.loads(f[0], buffers=f[1:])),
    Peer(
        "torch.save",
        to_dict,
        torch_encode,
        lambda f: torch.load(io.BytesIO(f[0]), weights_only=True),
    ),
    Peer("safetensors", to_dict, safetensors_encode, safetensors_decode),
)

# ---- what travels -----------------------------------------------------------------------------


def pixels(mib: int) -> ow.ProcessedRequest:
    """Three images whose patches take this many MiB as float32."""
    rows = mib * MIB // 4 // 1176 // 3
    record = ow.MultimodalItemMetadata(
        [("image", 0), ("image", 1), ("image", 2)],
        [rows] * 3,
        [rows // 4] * 3,
        {"image": {"pixel_values": ow.MultimodalItemPartition([rows] * 3)}},
    )
    located = ow.MultimodalInput([[1] * 8] * 3, [0, 100, 200], [100] * 3)
    data = {"image": {"pixel_values": torch.rand(3 * rows, 1176)}, "item_metadata": record}
    return ow.ProcessedRequest("request-1", range(300), ow.MultimodalParams(located, data))


def small_tensors() -> ow.ProcessedRequest:
    """150 tensors of 4 KiB."""
    data = {"audio": {f"clip_{i}": torch.rand(1024) for i in range(150)}}
    return ow.ProcessedRequest("request-1", range(300), ow.MultimodalParams(None, data))


def long_prompt() -> ow.ProcessedRequest:
    """128k prompt tokens and one tensor."""
    data = {"image": {"pixel_values": torch.rand(16, 16)}}
    return ow.ProcessedRequest("request-1", range(128 * 1024), ow.MultimodalParams(None, data))


WORK: dict[str, Callable[[], ow.ProcessedRequest]] = {
    "10 small images": lambda: image_request(10, 8),
    "12 MiB of patches": lambda: pixels(12),
    "48 MiB of patches": lambda: pixels(48),
    "150 tensors of 4 KiB": small_tensors,
    "128k prompt tokens": long_prompt,
}

# ---- measuring --------------------------------------------------------------------------------


def best(work: Callable[[], object]) -> float:
    """Microseconds of one call, best of many rounds of some milliseconds."""
    number = max(1, int(2e-3 / max(timeit.timeit(work, number=1), 1e-6)))
    repeat = max(5, min(60, int(0.6 / (number * max(timeit.timeit(work, number=1), 1e-6)))))
    return min(timeit.repeat(work, number=number, repeat=repeat)) / number * 1e6


def _status(name: str) -> int:
    with Path("/proc/self/status").open() as status:
        for entry in status:
            if entry.startswith(name):
                return int(entry.split()[1]) * 1024
    raise LookupError(name)


def _measure_memory(results: Connection, peer: Peer, name: str) -> None:
    value = peer.prepare(WORK[name]())
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    received = peer.decode(peer.encode(value))
    results.send(max(0, _status("VmHWM") - before))
    del received


def peak_memory(peer: Peer, name: str) -> int:
    """Bytes by which one round trip raises the peak of a fresh process."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure_memory, args=(sender, peer, name))
    process.start()
    grown: int = receiver.recv()
    process.join()
    return grown


def through_socket(peer: Peer) -> Iterator[Callable[[Any], Any]]:
    """A round trip of frames through a pair of sockets in this process."""
    context = zmq.Context()
    sender, receiver = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    sender.bind("inproc://wire")
    receiver.connect("inproc://wire")

    def work(value: Any) -> Any:
        sender.send_multipart(peer.encode(value), copy=False)
        return peer.decode([frame.buffer for frame in receiver.recv_multipart(copy=False)])

    yield work
    context.destroy(linger=0)


def main() -> None:
    """Print one table a kind of request."""
    torch.set_num_threads(1)
    for name, make in WORK.items():
        request = make()
        print(f"\n{name}")
        print(
            f"{'':<24}{'frames':>7}{'bytes':>13}{'encode us':>11}{'decode us':>11}{'peak MiB':>10}"
        )
        for peer in PEERS:
            value = peer.prepare(request)
            frames = peer.encode(value)
            size = sum(memoryview(frame).nbytes for frame in frames)
            writing = best(lambda peer=peer, value=value: peer.encode(value))
            reading = best(lambda peer=peer, frames=frames: peer.decode(frames))
            memory = peak_memory(peer, name) / MIB
            print(
                f"{peer.name:<24}{len(frames):>7}{size:>13,}{writing:>11.1f}{reading:>11.1f}"
                f"{memory:>10.1f}"
            )
        for peer in (PEERS[0], PEERS[2]):
            value = peer.prepare(request)
            for work in through_socket(peer):
                both = best(lambda work=work, value=value: work(value))
                print(f"{peer.name + ' + pyzmq':<24}{'':>20}{'both':>11}{both:>11.1f}")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
