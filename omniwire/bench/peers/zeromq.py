"""pyzmq multipart messages that are not copied, with a msgspec header."""

from pathlib import Path
from typing import Any, Final

import msgspec
import torch
import zmq

from omniwire.bench.content import Case, as_plain, fill, new_floats, sum_of_first_values
from omniwire.bench.peers.base import Receiver, Sender, Transport

_DTYPES: Final = {"float32": torch.float32, "int64": torch.int64}


class Items(msgspec.Struct):
    """The fields of a request's items."""

    refs: list[tuple[str, int]]
    encoder_token_lengths: list[int]
    output_embedding_lengths: list[int]
    packed: dict[str, list[int]]
    batched: list[str]
    hashes: list[list[int]]
    positions: list[int]
    lengths: list[int]


class Request(msgspec.Struct):
    """A request; its tensors travel beside it, one frame each."""

    request_id: str
    prompt_token_ids: list[int]
    items: Items
    tensors: dict[str, torch.Tensor]


class _Sender(Sender[Request]):
    def __init__(self, address: str) -> None:
        self._socket = zmq.Context().socket(zmq.PAIR)
        self._socket.bind(address)
        self._frames: list[Any] = []
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._put_out_of_band)
        self._decoder = msgspec.msgpack.Decoder(int)

    def make(self, case: Case, value: int) -> Request:
        plain = as_plain(case, {})
        return Request(
            "request-1",
            plain["prompt_token_ids"],
            Items(**plain["items"]),
            fill(case, new_floats(case), value),
        )

    def hand_over(self, message: Request) -> int:
        self._frames = [b""]
        self._frames[0] = self._encoder.encode(message)
        self._socket.send_multipart(self._frames, copy=False)
        self._frames = []
        return self._decoder.decode(self._socket.recv())

    def _put_out_of_band(self, tensor: torch.Tensor) -> tuple[str, list[int], int]:
        self._frames.append(tensor.numpy())
        dtype = str(tensor.dtype).removeprefix("torch.")
        return dtype, list(tensor.shape), len(self._frames) - 1

    def close(self) -> None:
        self._socket.close(linger=0)


class _Receiver(Receiver):
    def __init__(self, address: str) -> None:
        self._socket = zmq.Context().socket(zmq.PAIR)
        self._socket.connect(address)
        self._frames: list[zmq.Frame] = []
        self._decoder = msgspec.msgpack.Decoder(Request, dec_hook=self._rebuild)
        self._encoder = msgspec.msgpack.Encoder()

    def answer(self) -> None:
        self._frames = self._socket.recv_multipart(copy=False)
        request = self._decoder.decode(self._frames[0].buffer)
        total = sum_of_first_values(request.tensors.values())
        self._socket.send(self._encoder.encode(total))
        self._frames = []

    def _rebuild(self, _: type, described: tuple[str, list[int], int]) -> torch.Tensor:
        dtype, shape, index = described
        return torch.frombuffer(self._frames[index].buffer, dtype=_DTYPES[dtype]).view(shape)


def _make_ends(folder: str) -> tuple[str, str]:
    address = f"ipc://{Path(folder, 'zeromq')}"
    return address, address


TRANSPORT: Final = Transport(_make_ends, _Sender, _Receiver)
