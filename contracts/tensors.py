"""Which tensors and arrays a contract may hold, and the bytes they consist of."""

from typing import Final

import numpy as np
import torch

from omniwire.contracts.describe import describe
from omniwire.contracts.errors import Path, Problem

_NUMPY_KINDS: Final = frozenset("biufc")
_MAX_NUMPY_ITEM_BYTES: Final = 8  # per real number: long double has no portable form
SAME_SIZE_INT: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By bytes of an element, a type that every kernel of torch knows."""
_INT_DTYPES: Final = frozenset(
    getattr(torch, f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)
)


def tensor_problem(path: Path, tensor: torch.Tensor) -> Problem | None:
    """What keeps `tensor` out of a contract, if anything does.

    A contract holds plain strided tensors with storage: no subclass, no sparse, nested or
    quantized layout, no meta tensor.
    """
    expected = "a plain strided tensor with storage"
    if type(tensor) is not torch.Tensor:
        return Problem(path, "type", expected, describe(tensor))
    if (
        tensor.layout is not torch.strided
        or tensor.is_nested
        or tensor.is_quantized
        or tensor.is_meta
    ):
        return Problem(path, "layout", expected, describe(tensor))
    return None


def int_tensor_problem(
    path: Path, tensor: torch.Tensor, *, or_bool: bool = False
) -> Problem | None:
    """What keeps the ints (`or_bool`: or bools) of `tensor` from being read, if anything does."""
    if tensor.device.type != "cpu":
        return Problem(path, "device", "a tensor on the CPU", describe(tensor))
    problem = tensor_problem(path, tensor)
    if problem is not None:
        return problem
    if tensor.dtype in _INT_DTYPES or (or_bool and tensor.dtype is torch.bool):
        return None
    return Problem(path, "type", "a tensor of ints", describe(tensor))


def array_problem(path: Path, array: np.ndarray) -> Problem | None:
    """What keeps `array` out of a contract, if anything does.

    A contract holds plain numpy arrays of booleans, ints, floats and complex numbers of up
    to 64 bits a component, in native byte order.
    """
    if type(array) is not np.ndarray:
        return Problem(path, "type", "a plain numpy array", describe(array))
    dtype = array.dtype
    component = dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize
    if dtype.kind not in _NUMPY_KINDS or component > _MAX_NUMPY_ITEM_BYTES:
        expected = "an array of bools, ints, floats or complex numbers of up to 64 bits"
        return Problem(path, "dtype", expected, describe(array))
    if not dtype.isnative:
        return Problem(path, "dtype", "an array in native byte order", f"{dtype.str} data")
    return None


def contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """A strided tensor's values in row-major order, conjugate and negative bits resolved.

    The result may have another data type of the same size: there is no kernel to copy some of
    the narrow ones. It aliases `tensor` where that is contiguous already.
    """
    tensor = tensor.detach().resolve_neg()
    if tensor.is_conj():
        # Through real numbers: torch warns when it allocates half-precision complex ones.
        parts = torch.view_as_real(tensor.conj()).clone(memory_format=torch.contiguous_format)
        parts[..., 1].neg_()
        return parts
    same_size = SAME_SIZE_INT.get(tensor.itemsize)
    return (tensor if same_size is None else tensor.view(same_size)).contiguous()


def logical_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's own values, in row-major order, as a 1-D uint8 tensor.

    Conjugate and negative bits are resolved and the gradient is dropped. The result aliases
    `tensor` where that is contiguous already, and is a copy otherwise.
    """
    flat = contiguous(tensor).view(-1)
    if flat.numel() <= 1 and flat.stride(0) != 1:
        # It counts as contiguous, yet refuses a view as bytes.
        flat = flat.as_strided((flat.numel(),), (1,))
    return flat.view(torch.uint8)


def array_bytes(array: np.ndarray) -> np.ndarray:
    """The array's own values, in row-major order, as a 1-D uint8 array.

    The result aliases `array` where that is contiguous already, and is a copy otherwise.
    """
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def tensors_equal(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two strided tensors agree in dtype, shape, device type and every bit.

    NaN equals a NaN of the same bits; -0.0 differs from 0.0.
    """
    if left is right:
        return True
    if (
        left.dtype != right.dtype
        or left.shape != right.shape
        or left.device.type != right.device.type
    ):
        return False
    if left.numel() == 0:
        return True
    return torch.equal(logical_bytes(left), logical_bytes(right).to(left.device))


def arrays_equal(left: np.ndarray, right: np.ndarray) -> bool:
    """Whether two arrays agree in dtype, shape and every bit."""
    if left is right:
        return True
    return (
        left.dtype == right.dtype
        and left.shape == right.shape
        and np.array_equal(array_bytes(left), array_bytes(right))
    )
