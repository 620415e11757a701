"""Ray: a call of an actor, whose large arguments go through the object store."""

import logging
import os
from typing import Any, Final

import ray
import torch

from omniwire.bench.content import Case, as_plain, fill, new_floats, sum_of_first_values
from omniwire.bench.peers.base import Sender, Transport

_STORE_BYTES: Final = 512 * 1024 * 1024


class _Actor:
    """The receiving end, in a process of Ray's."""

    def answer(self, request: dict[str, Any]) -> int:
        tensors = [torch.from_numpy(array) for array in request["tensors"].values()]
        return sum_of_first_values(tensors)


class _Sender(Sender[dict[str, Any]]):
    def __init__(self, end: None) -> None:
        self._actor: Any = ray.remote(_Actor).remote()

    def make(self, case: Case, value: int) -> dict[str, Any]:
        tensors = fill(case, new_floats(case), value)
        # Arrays, since those are not copied out of the object store.
        return as_plain(case, {name: tensor.numpy() for name, tensor in tensors.items()})

    def hand_over(self, message: dict[str, Any]) -> int:
        total: int = ray.get(self._actor.answer.remote(message))
        return total

    def close(self) -> None:
        ray.shutdown()


def _make_ends(_folder: str) -> tuple[None, None]:
    return None, None


def _start_cluster(folder: str) -> None:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        num_cpus=1,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=_STORE_BYTES,
        _temp_dir=folder,
    )


TRANSPORT: Final = Transport(_make_ends, _Sender, None, _start_cluster)
