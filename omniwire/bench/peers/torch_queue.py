"""`torch.multiprocessing.Queue`, which moves tensors to shared memory and passes descriptors."""

from multiprocessing.queues import Queue
from typing import Any, Final, TypeAlias

import torch
import torch.multiprocessing

from omniwire.bench.content import (
    Case,
    Tensors,
    as_plain,
    fill,
    floats_in_one_block,
    new_floats,
    sum_of_first_values,
)
from omniwire.bench.peers.base import Receiver, Sender, Transport

_Ends: TypeAlias = tuple["Queue[Any]", "Queue[Any]"]
"""The queue of messages and the queue of answers."""


class _OneCopySender(Sender[dict[str, Any]]):
    """Puts ordinary tensors, which are copied to new shared memory."""

    def __init__(self, ends: _Ends) -> None:
        self._messages, self._answers = ends

    def make(self, case: Case, value: int) -> dict[str, Any]:
        return as_plain(case, fill(case, new_floats(case), value))

    def hand_over(self, message: dict[str, Any]) -> int:
        self._messages.put(message)
        return int(self._answers.get())


class _InPlaceSender(_OneCopySender):
    """Puts tensors that lie in shared memory, and writes the next ones to the same place."""

    _floats: Tensors | None = None

    def make(self, case: Case, value: int) -> dict[str, Any]:
        if self._floats is None and case.floats:
            self._floats = floats_in_one_block(case, _allocate_shared)
        return as_plain(case, fill(case, self._floats or {}, value))


def _allocate_shared(size: int) -> torch.Tensor:
    block = torch.empty(size)
    block.share_memory_()  # type: ignore[no-untyped-call]  # torch leaves it bare
    return block


class _Receiver(Receiver):
    def __init__(self, ends: _Ends) -> None:
        self._messages, self._answers = ends

    def answer(self) -> None:
        request = self._messages.get()
        self._answers.put(sum_of_first_values(request["tensors"].values()))


def _make_ends(_folder: str) -> tuple[_Ends, _Ends]:
    queues = torch.multiprocessing.get_context("forkserver")
    ends = queues.Queue(), queues.Queue()
    return ends, ends


ONE_COPY: Final = Transport(_make_ends, _OneCopySender, _Receiver)
IN_PLACE: Final = Transport(_make_ends, _InPlaceSender, _Receiver)
