"""Tensors that are made in the arena."""

from collections.abc import Sequence
from math import prod
from typing import Final

import torch

from omniwire.contracts.checks import as_ints, check_ints, raise_problems
from omniwire.contracts.describe import describe
from omniwire.contracts.errors import Problem
from omniwire.contracts.tensors import tensor_problem
from omniwire.serialization.buffer_writer import align
from omniwire.serialization.handoff.device_books import device_books
from omniwire.serialization.handoff.lease import OwnHold, own_bytes, slot_bytes
from omniwire.serialization.handoff.ledger import BOOKS
from omniwire.serialization.handoff.outbox import Outbox, allocating
from omniwire.serialization.handoff.sources import as_tensor
from omniwire.serialization.handoff.waiting import Steps

_MAX_BYTES: Final = 2**62


def new_tensor(outbox: Outbox, shape: tuple[int, ...], dtype: torch.dtype) -> Steps[torch.Tensor]:
    """Allocate a tensor; what its slot held before is not visible in it.

    Raises:
        ArenaFull: It can never fit.
        Gone: The peer, which would have to release memory first, is.
    """
    nbytes = prod(shape) * dtype.itemsize
    if not nbytes:
        return torch.empty(shape, dtype=dtype)
    pool = outbox.pool
    [slot] = yield from allocating(pool, [align(nbytes)], [outbox])
    if slot.used:
        own_bytes(slot, slot.used).fill(0)
    content = slot_bytes(slot.arena.mapping, slot.offset, nbytes, OwnHold(pool, slot))
    with BOOKS:
        slot.arena.own(slot)
    return as_tensor(content, dtype, shape)


def check_shape(shape: Sequence[int], dtype: torch.dtype) -> tuple[int, ...]:
    """A shape as a tuple of ints.

    Raises:
        ContractError: It is none, or of more bytes than there can be.
    """
    dims = tuple(shape) if isinstance(shape, torch.Size) else as_ints(shape)
    problems: list[Problem] = []
    check_ints(problems, ("shape",), dims, 0)
    if not problems and prod(dims) * dtype.itemsize > _MAX_BYTES:
        problems.append(Problem(("shape",), "range", f"at most {_MAX_BYTES} bytes", describe(dims)))
    raise_problems("empty", problems)
    return dims


def check_shareable(tensor: torch.Tensor) -> None:
    """Check that there can be a handle for a tensor.

    Raises:
        ContractError: It is not a plain strided tensor on the CPU or a CUDA device.
    """
    problem = tensor_problem(("tensor",), tensor)
    if problem is None and not (tensor.is_cpu or device_books().backend.owns(tensor)):
        problem = Problem(("tensor",), "device", "a CPU or CUDA tensor", describe(tensor))
    raise_problems("share", [] if problem is None else [problem])
