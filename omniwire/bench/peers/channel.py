"""omniwire's own channel, with every check on both sides."""

from pathlib import Path
from typing import Final

import torch

import omniwire as ow
from omniwire.bench.content import (
    Case,
    Tensors,
    as_request,
    fill,
    floats_in_one_block,
    new_floats,
    sum_of_first_values,
)
from omniwire.bench.peers.base import Receiver, Sender, Transport

_PATIENCE_S: Final = 60.0


class _OneCopySender(Sender[ow.ProcessedRequest]):
    """Sends ordinary tensors, which the channel copies into its arena."""

    def __init__(self, path: str) -> None:
        self._channel = ow.Channel.connect(path, timeout=_PATIENCE_S)

    def make(self, case: Case, value: int) -> ow.ProcessedRequest:
        return as_request(case, fill(case, new_floats(case), value))

    def hand_over(self, message: ow.ProcessedRequest) -> int:
        self._channel.send(ow.check_producer(message))
        (total,) = self._channel.recv()
        return int(total)

    def close(self) -> None:
        self._channel.close()


class _InPlaceSender(_OneCopySender):
    """Sends tensors that lie in the arena, and writes the next ones to the same place."""

    _floats: Tensors | None = None

    def make(self, case: Case, value: int) -> ow.ProcessedRequest:
        if self._floats is None and case.floats:
            self._floats = floats_in_one_block(
                case, lambda size: self._channel.empty((size,), torch.float32)
            )
        return as_request(case, fill(case, self._floats or {}, value))


class _Receiver(Receiver):
    def __init__(self, path: str) -> None:
        with ow.ChannelServer(path) as server:
            self._channel = server.accept(timeout=_PATIENCE_S)

    def answer(self) -> None:
        request = self._channel.recv()
        assert isinstance(request, ow.ProcessedRequest)
        params = ow.check_admission(request).multimodal_params
        total = 0
        if params is not None:
            (modality,) = params.multimodal_data.keys() - {"item_metadata"}
            total = sum_of_first_values(params.multimodal_data[modality].values())
        self._channel.send(ow.TokenIds([total]))


def _make_ends(folder: str) -> tuple[str, str]:
    path = str(Path(folder, "omniwire"))
    return path, path


ONE_COPY: Final = Transport(_make_ends, _OneCopySender, _Receiver)
IN_PLACE: Final = Transport(_make_ends, _InPlaceSender, _Receiver)
