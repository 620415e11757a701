"""`TensorHandle`: a tensor that is somewhere else, or only in this process."""

from collections.abc import Iterable
from typing import Final, Protocol, runtime_checkable

import attrs
import torch

from omniwire.contracts.base import Contract
from omniwire.contracts.checks import as_ints, check_instance, check_ints, raise_problems
from omniwire.contracts.describe import describe, describe_tensor
from omniwire.contracts.errors import HandoffError, Problem
from omniwire.contracts.tensors import tensor_problem

HANDLE_KINDS: Final = ("local", "arena", "cuda_ipc")


@runtime_checkable
class TensorSource(Protocol):
    """The payload of a handle that its channel has attached."""

    def resolve_tensor(self) -> torch.Tensor:
        """The tensor, as a view of the memory where it lives.

        Raises:
            HandoffError: The memory is gone, or the reference is stale.
        """
        ...


def _as_shape(value: Iterable[int]) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, torch.Size) else as_ints(value)


@attrs.frozen(eq=False, repr=False)
class TensorHandle(Contract):
    """A reference to a tensor; legal wherever a tensor is. Unhashable.

    Attributes:
        kind: `"local"`: the tensor itself, in this process only. `"arena"`: shared host
            memory. `"cuda_ipc"`: device memory of another process.
        dtype: The tensor's data type.
        shape: The tensor's shape, each dimension >= 0.
        payload: The tensor (`"local"`), a `TensorSource` attached by a channel, or opaque bytes
            that a channel can attach. The handle holds it; whoever made it owns the memory.

    Raises:
        ContractTypeError: A field has the wrong type.
        ContractValueError: The kind is unknown, a dimension negative, or a local tensor is of
            another dtype or shape.

    >>> TensorHandle("local", torch.int64, (2,), torch.tensor([4, 5])).resolve()
    tensor([4, 5])
    """

    kind: str
    dtype: torch.dtype
    shape: tuple[int, ...] = attrs.field(converter=_as_shape)
    payload: object

    __hash__ = None  # type: ignore[assignment]  # may hold a tensor

    def __attrs_post_init__(self) -> None:
        problems: list[Problem] = []
        kind, expected = self.kind, f"one of {', '.join(HANDLE_KINDS)}"
        if check_instance(problems, ("kind",), kind, str, expected) and kind not in HANDLE_KINDS:
            problems.append(Problem(("kind",), "unknown", expected, describe(kind)))
        if not isinstance(self.dtype, torch.dtype):
            problems.append(Problem(("dtype",), "type", "a torch.dtype", describe(self.dtype)))
        check_ints(problems, ("shape",), self.shape, 0)
        if not problems:
            self._check_payload(problems)
        raise_problems("TensorHandle", problems)

    def _check_payload(self, problems: list[Problem]) -> None:
        payload, path = self.payload, ("payload",)
        if self.kind != "local":
            if not isinstance(payload, bytes | TensorSource):
                expected = "bytes or a TensorSource"
                problems.append(Problem(path, "type", expected, describe(payload)))
        elif not isinstance(payload, torch.Tensor):
            problems.append(Problem(path, "type", "the tensor itself", describe(payload)))
        elif (problem := tensor_problem(path, payload)) is not None:
            problems.append(problem)
        elif payload.dtype != self.dtype or payload.shape != self.shape:
            expected = describe_tensor(self.dtype, self.shape)
            problems.append(Problem(path, "shape", expected, describe(payload)))

    def resolve(self) -> torch.Tensor:
        """The tensor, without a copy; read-only by contract.

        Raises:
            HandoffError: The handle is not attached to a channel in this process, its memory
                is gone, or it resolved to another tensor than it declares.
        """
        payload = self.payload
        if isinstance(payload, torch.Tensor):
            return payload
        if not isinstance(payload, TensorSource):
            raise HandoffError(f"expected a handle attached by a channel, got an unattached {self}")
        tensor = payload.resolve_tensor()
        if tensor.dtype != self.dtype or tensor.shape != self.shape:
            raise HandoffError(f"expected {self}, got {describe(tensor)}")
        return tensor

    def __repr__(self) -> str:
        return f"TensorHandle({self.kind}, {describe_tensor(self.dtype, self.shape)})"


def resolved(value: torch.Tensor | TensorHandle) -> torch.Tensor:
    """The tensor that a tensor or handle stands for."""
    return value.resolve() if isinstance(value, TensorHandle) else value
