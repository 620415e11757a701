"""`multiprocessing.Pipe`, with arrays pickled by protocol 5 and sent beside the pickle."""

import multiprocessing
import pickle
from multiprocessing.connection import Connection
from typing import Any, Final

import torch

from omniwire.bench.content import Case, as_plain, fill, new_floats, sum_of_first_values
from omniwire.bench.peers.base import Receiver, Sender, Transport


class _Sender(Sender[dict[str, Any]]):
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def make(self, case: Case, value: int) -> dict[str, Any]:
        tensors = fill(case, new_floats(case), value)
        # Arrays, since a tensor puts its values into the pickle.
        return as_plain(case, {name: tensor.numpy() for name, tensor in tensors.items()})

    def hand_over(self, message: dict[str, Any]) -> int:
        buffers: list[pickle.PickleBuffer] = []
        head = pickle.dumps(message, 5, buffer_callback=buffers.append)
        self._connection.send((head, len(buffers)))
        for buffer in buffers:
            self._connection.send_bytes(buffer.raw())
        return int(self._connection.recv())


class _Receiver(Receiver):
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def answer(self) -> None:
        head, num_buffers = self._connection.recv()
        buffers = [self._connection.recv_bytes() for _ in range(num_buffers)]
        request = pickle.loads(head, buffers=buffers)  # noqa: S301  # what is compared
        tensors = [torch.from_numpy(array) for array in request["tensors"].values()]
        self._connection.send(sum_of_first_values(tensors))


def _make_ends(_folder: str) -> tuple[object, object]:
    return multiprocessing.Pipe()


TRANSPORT: Final = Transport(_make_ends, _Sender, _Receiver)
