"""`multiprocessing.shared_memory`, a new segment for each message and a pipe to name it."""

import multiprocessing
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from typing import Any, Final

import torch

from omniwire.bench.content import Case, as_plain, fill, new_floats, sum_of_first_values
from omniwire.bench.peers.base import Receiver, Sender, Transport

_ALIGNMENT: Final = 64


class _Sender(Sender[dict[str, Any]]):
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def make(self, case: Case, value: int) -> dict[str, Any]:
        return as_plain(case, fill(case, new_floats(case), value))

    def hand_over(self, message: dict[str, Any]) -> int:
        places = {}
        end = 0
        for name, tensor in message["tensors"].items():
            places[name] = end, tensor.dtype, tensor.shape
            end += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        segment = SharedMemory(create=True, size=end) if end else None
        if segment is not None:
            for name, tensor in message["tensors"].items():
                _view(segment, *places[name]).copy_(tensor)
            segment.close()
        self._connection.send((segment and segment.name, {**message, "tensors": places}))
        return int(self._connection.recv())


class _Receiver(Receiver):
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def answer(self) -> None:
        name, request = self._connection.recv()
        total = 0
        if name is not None:
            segment = SharedMemory(name)
            tensors = [_view(segment, *place) for place in request["tensors"].values()]
            total = sum_of_first_values(tensors)
            tensors.clear()
            segment.close()
            segment.unlink()
        self._connection.send(total)


def _view(
    segment: SharedMemory, offset: int, dtype: torch.dtype, shape: torch.Size
) -> torch.Tensor:
    block = torch.frombuffer(segment.buf, dtype=dtype, count=shape.numel(), offset=offset)
    return block.view(shape)


def _make_ends(_folder: str) -> tuple[object, object]:
    return multiprocessing.Pipe()


TRANSPORT: Final = Transport(_make_ends, _Sender, _Receiver)
