"""`TensorLRUCache`: encoder outputs kept by content, bounded in bytes."""

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from typing import TypeVar

import attrs
import torch

from omniwire.contracts.checks import check_int
from omniwire.contracts.describe import describe
from omniwire.contracts.errors import Path, Problem, contract_error

_SUBJECT = "TensorLRUCache"

_Key = TypeVar("_Key", bound=Hashable)


@attrs.define(eq=False)
class _Entry:
    tensor: torch.Tensor
    num_bytes: int
    num_leases: int = 0


class CacheLease:
    """A hold on one cached tensor: the entry stays until the lease is released.

    Attributes:
        tensor: The cached rows, read-only by contract.
    """

    __slots__ = ("_entry", "tensor")

    def __init__(self, entry: _Entry) -> None:
        self.tensor = entry.tensor
        self._entry: _Entry | None = entry
        entry.num_leases += 1

    def release(self) -> None:
        """Give the hold up; the second and later calls do nothing."""
        entry, self._entry = self._entry, None
        if entry is not None:
            entry.num_leases -= 1

    def share(self) -> "CacheLease":
        """A further lease on the same tensor, to be released on its own.

        Raises:
            ContractValueError: This lease is released already.
        """
        if self._entry is None:
            problem = Problem(("lease",), "state", "a lease not released yet", "a released one")
            raise contract_error("CacheLease", [problem])
        return CacheLease(self._entry)


class TensorLRUCache:
    """A byte-bounded cache of encoder outputs; lives as long as the model that owns it.

    `acquire` what is there, `reserve` room for each miss, encode the misses, `commit` them all
    or `cancel` their reservations. Entries and reservations together never exceed the bound;
    the least recently used entries without a lease make room. Used from one thread.

    Args:
        max_bytes: Most bytes of tensors held and promised, >= 0.

    Raises:
        ContractError: `max_bytes` is not an int of at least 0.

    >>> cache = TensorLRUCache(max_bytes=64)
    >>> cache.acquire("digest") is None and cache.reserve("digest", 16)
    True
    >>> lease = cache.commit({"digest": torch.ones(1, 4)})["digest"]
    >>> lease.release()
    >>> cache.acquire("digest").tensor.shape
    torch.Size([1, 4])
    """

    def __init__(self, max_bytes: int) -> None:
        problems: list[Problem] = []
        check_int(problems, ("max_bytes",), max_bytes, 0)
        if problems:
            raise contract_error(_SUBJECT, problems)
        self._max_bytes = max_bytes
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._reserved: dict[Hashable, int] = {}
        self._dropped: list[_Entry] = []
        self._used_bytes = 0

    @property
    def max_bytes(self) -> int:
        """The bound."""
        return self._max_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes of entries and reservations, never above the bound."""
        self._forget_dropped()
        return self._used_bytes

    def __len__(self) -> int:
        """Number of committed entries."""
        return len(self._entries)

    def __contains__(self, key: Hashable) -> bool:
        """Whether a committed entry has this key; does not count as a use."""
        return key in self._entries

    def is_reserved(self, key: Hashable) -> bool:
        """Whether the output of this key is being encoded."""
        return key in self._reserved

    def acquire(self, key: Hashable, *, num_rows: int | None = None) -> CacheLease | None:
        """A lease on the entry of this key, or None for a miss.

        A hit makes the entry the most recently used one.

        Args:
            key: Identity of the item's output.
            num_rows: Rows that the item has, if known. An entry with other rows cannot be its
                output: it is a miss, and the entry is dropped (its bytes count until those
                who hold it are done).
        """
        entry = self._entries.get(key)
        if entry is None:
            return None
        if num_rows is not None and (entry.tensor.dim() < 1 or entry.tensor.size(0) != num_rows):
            self._dropped.append(self._entries.pop(key))
            return None
        self._entries.move_to_end(key)
        return CacheLease(entry)

    def reserve(self, key: Hashable, num_bytes: int) -> bool:
        """Promise room for an output, evicting entries without a lease if need be.

        Args:
            key: Identity of the item's output.
            num_bytes: Its size.

        Returns:
            False, and nothing evicted, if the room cannot be made now: encode without cache.

        Raises:
            ContractTypeError: `num_bytes` is not an int.
            ContractValueError: It is negative, or the key is committed or reserved already.
        """
        problems: list[Problem] = []
        check_int(problems, ("num_bytes",), num_bytes, 0)
        if key in self._entries or key in self._reserved:
            problems.append(Problem(("key",), "duplicate", "a key not held yet", describe(key)))
        if problems:
            raise contract_error(_SUBJECT, problems)
        excess = self.used_bytes + num_bytes - self._max_bytes
        victims: list[Hashable] = []
        for candidate, entry in self._entries.items():
            if excess <= 0:
                break
            if entry.num_leases == 0:
                victims.append(candidate)
                excess -= entry.num_bytes
        if excess > 0:
            return False
        for victim in victims:
            self._used_bytes -= self._entries.pop(victim).num_bytes
        self._reserved[key] = num_bytes
        self._used_bytes += num_bytes
        return True

    def cancel(self, key: Hashable) -> None:
        """Give up a reservation, after a failed encode; without one, do nothing."""
        self._used_bytes -= self._reserved.pop(key, 0)

    def commit(self, outputs: Mapping[_Key, torch.Tensor]) -> dict[_Key, CacheLease]:
        """Store outputs under their reservations: all of them, or none if one is wrong.

        Each tensor is copied, so that an entry keeps neither the batch that it was cut from
        nor an arena slot alive.

        Args:
            outputs: Tensors of exactly the bytes reserved for their keys.

        Returns:
            A lease per key, for the caller to release.

        Raises:
            ContractTypeError: A value is no tensor.
            ContractValueError: A key is not reserved, or its tensor has other bytes. All
                reservations stay, to be committed or cancelled.
        """
        problems: list[Problem] = []
        for position, (key, tensor) in enumerate(outputs.items()):
            path: Path = ("outputs", key if isinstance(key, str) else position)
            if not isinstance(tensor, torch.Tensor):
                problems.append(Problem(path, "type", "a tensor", describe(tensor)))
            elif key not in self._reserved:
                problems.append(Problem(path, "missing", "a reservation", "none"))
            elif tensor.nbytes != self._reserved[key]:
                expected = f"the {self._reserved[key]} bytes reserved"
                problems.append(Problem(path, "count", expected, str(tensor.nbytes)))
        if problems:
            raise contract_error(_SUBJECT, problems)
        copies = {
            key: tensor.detach().clone(memory_format=torch.contiguous_format)
            for key, tensor in outputs.items()
        }
        leases: dict[_Key, CacheLease] = {}
        for key, tensor in copies.items():
            self._entries[key] = _Entry(tensor, self._reserved.pop(key))
            leases[key] = CacheLease(self._entries[key])
        return leases

    def _forget_dropped(self) -> None:
        """Take the bytes of dropped entries that nobody holds any more off the account."""
        held = [entry for entry in self._dropped if entry.num_leases]
        if len(held) < len(self._dropped):
            done = sum(entry.num_bytes for entry in self._dropped if not entry.num_leases)
            self._used_bytes -= done
            self._dropped = held
