"""How much memory is in what a custom handler accumulated."""

from collections.abc import Callable, Mapping

import torch

from omniwire.runtime.accumulate import Value, parts_of


def held_bytes(value: object) -> int:
    """Bytes of memory in what a custom handler accumulated, each storage once.

    Counted are tensors, in containers too, and what says its own size as `nbytes`.
    """
    storages: dict[int, int] = {}
    own = _visit(value, storages)
    return own + sum(storages.values())


def _visit(value: object, storages: dict[int, int]) -> int:
    """Note the storages in a value; bytes of what is in none."""
    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return 0
    if isinstance(value, Mapping):
        return sum(_visit(item, storages) for item in value.values())
    if isinstance(value, list | tuple):
        return sum(_visit(item, storages) for item in value)
    nbytes = getattr(value, "nbytes", 0)
    return nbytes if isinstance(nbytes, int) else 0


class Estimate:
    """Bytes that a custom handler holds, without a walk over all of it at every chunk.

    They are counted when there are an eighth more chunks than at the last time, so at each of the
    first sixteen. Between two counts a chunk is taken to be held as it was handed over.
    """

    __slots__ = ("_nbytes", "_next_count", "_num_chunks")

    def __init__(self) -> None:
        self._nbytes = self._num_chunks = self._next_count = 0

    def add(self, chunk: Value) -> None:
        """Note what is handed over."""
        parts = parts_of(chunk)
        self._num_chunks += len(parts)
        self._nbytes += sum(part.nbytes for part in parts)

    def nbytes(self, count: Callable[[], int]) -> int:
        """The estimate; `count` gives the true number."""
        if self._num_chunks >= self._next_count:
            self._nbytes = count()
            self._next_count = self._num_chunks + max(1, self._num_chunks // 8)
        return self._nbytes
