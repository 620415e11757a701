"""Tensors and arrays: every data type, odd memory layouts, odd bit patterns."""

import functools
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from omniwire.contracts.describe import describe
from omniwire.contracts.tensors import logical_bytes
from omniwire.testing.strategies.bits import contents
from omniwire.testing.strategies.knobs import ARRAY_LAYOUTS, TENSOR_LAYOUTS, check_names

Shape = tuple[int, ...]

_QUANTIZED: Final = ("qint", "quint")

_NUMPY_DTYPES: Final = tuple(
    np.dtype(name)
    for name in ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16")
)

_COMPLEX_OF: Final = {
    torch.float16: torch.complex32,
    torch.float32: torch.complex64,
    torch.float64: torch.complex128,
}


@functools.cache
def strided_dtypes() -> tuple[torch.dtype, ...]:
    """Every data type that this version of torch has for strided tensors, bytes first."""
    found = {
        value: None
        for name, value in vars(torch).items()
        if isinstance(value, torch.dtype) and not name.startswith(_QUANTIZED)
    }
    return tuple(found)


def numpy_dtypes(dtypes: Sequence[torch.dtype]) -> "tuple[np.dtype[np.generic], ...]":
    """Those of numpy's data types that are among torch's."""
    names = {str(dtype).removeprefix("torch.") for dtype in dtypes}
    return tuple(dtype for dtype in _NUMPY_DTYPES if dtype.name in names)


def shapes(*, max_dims: int = 4) -> SearchStrategy[Shape]:
    """Shapes of up to `max_dims` dimensions of 0 to 3."""
    return st.lists(st.integers(0, 3), max_size=max_dims).map(tuple)


def tensors(
    *,
    dtypes: Sequence[torch.dtype] | None = None,
    shapes: SearchStrategy[Shape] | None = None,
    devices: Sequence[str] = ("cpu",),
    memory_layouts: Sequence[str] = TENSOR_LAYOUTS,
) -> SearchStrategy[torch.Tensor]:
    """Tensors of every strided data type, with any bits, in any layout.

    Among them are tensors without elements and without dimensions; transposed, sliced,
    expanded and oddly strided ones; ones with a conjugate or negative bit; NaNs with a
    payload, infinities and -0.0.

    Args:
        dtypes: Data types to draw from; by default all.
        shapes: Shapes to draw from; by default up to 4 dimensions of 0 to 3.
        devices: Devices to draw from.
        memory_layouts: How they lie in memory, out of `TENSOR_LAYOUTS`. Where a data type
            cannot be conjugated, such a tensor is contiguous.

    Raises:
        ValueError: A layout is unknown.

    >>> from hypothesis import find
    >>> find(tensors(dtypes=[torch.int8], memory_layouts=["transposed"]), lambda one: one.ndim > 1)
    tensor([], size=(0, 0), dtype=torch.int8)
    """
    check_names("memory_layouts", memory_layouts, TENSOR_LAYOUTS)
    return _tensors(
        _DTYPES if dtypes is None else st.sampled_from(list(dtypes)),
        _SHAPES if shapes is None else shapes,
        st.sampled_from(list(devices)),
        st.sampled_from(list(memory_layouts)),
    )


def arrays(
    *,
    dtypes: "Sequence[np.dtype[np.generic]] | None" = None,
    shapes: SearchStrategy[Shape] | None = None,
    memory_layouts: Sequence[str] = ARRAY_LAYOUTS,
) -> SearchStrategy[np.ndarray]:
    """Numpy arrays of every data type that a contract carries, with any bits, in any layout.

    Args:
        dtypes: Data types to draw from; by default all.
        shapes: Shapes to draw from; by default up to 4 dimensions of 0 to 3.
        memory_layouts: How they lie in memory, out of `ARRAY_LAYOUTS`.

    Raises:
        ValueError: A layout is unknown.
    """
    check_names("memory_layouts", memory_layouts, ARRAY_LAYOUTS)
    return _arrays(
        st.sampled_from(_NUMPY_DTYPES if dtypes is None else list(dtypes)),
        _SHAPES if shapes is None else shapes,
        st.sampled_from(list(memory_layouts)),
    )


_SHAPES: Final = shapes()
_DTYPES: Final = st.sampled_from(
    (torch.float32, torch.bfloat16, torch.float16, torch.int64)
) | st.sampled_from(strided_dtypes())


@st.composite
def _tensors(
    draw: DrawFn,
    dtypes: SearchStrategy[torch.dtype],
    shapes: SearchStrategy[Shape],
    devices: SearchStrategy[str],
    layouts: SearchStrategy[str],
) -> torch.Tensor:
    dtype, shape, device = draw(dtypes), draw(shapes), draw(devices)

    def make(shape: Sequence[int], dtype: torch.dtype = dtype) -> torch.Tensor:
        """A contiguous tensor with drawn contents."""
        content = contents(draw, dtype.itemsize, prod(shape), _kind_of(dtype))
        if not content:
            return torch.empty(0, dtype=torch.uint8, device=device).view(dtype).reshape(shape)
        values = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        return values.to(device).view(dtype).reshape(shape)

    tensor = _TENSOR_MAKERS[draw(layouts)](draw, make, dtype, shape)
    if not _is_printable(dtype):
        _make_printable(tensor)
    return tensor


@st.composite
def _arrays(
    draw: DrawFn,
    dtypes: "SearchStrategy[np.dtype[np.generic]]",
    shapes: SearchStrategy[Shape],
    layouts: SearchStrategy[str],
) -> np.ndarray:
    dtype, shape = draw(dtypes), draw(shapes)

    def make(shape: Sequence[int]) -> np.ndarray:
        content = contents(draw, dtype.itemsize, prod(shape), dtype.kind)
        return np.frombuffer(bytearray(content), dtype).reshape(shape)

    return _ARRAY_MAKERS[draw(layouts)](draw, make, shape)


def _kind_of(dtype: torch.dtype) -> str:
    """As numpy has it: `"b"` for booleans, `"c"` for complex numbers."""
    return "b" if dtype is torch.bool else "c" if dtype.is_complex else ""


@functools.cache
def _is_printable(dtype: torch.dtype) -> bool:
    try:
        repr(torch.zeros(dtype.itemsize, dtype=torch.uint8).view(dtype)[0])
    except NotImplementedError:
        return False
    return True


def _make_printable(tensor: torch.Tensor) -> None:
    """Give a tensor that has no repr a text for the reports of Hypothesis and IPython."""
    content = logical_bytes(tensor).cpu().numpy().tobytes().hex(" ")
    text = f"<{describe(tensor)} with bytes {content}>"

    def print_text(printer: Any, _: bool) -> None:
        printer.text(text)

    vars(tensor)["_repr_pretty_"] = print_text


_Make = Callable[..., torch.Tensor]
_MakeArray = Callable[[Sequence[int]], np.ndarray]


def _contiguous(_: DrawFn, make: _Make, __: torch.dtype, shape: Shape) -> torch.Tensor:
    return make(shape)


def _transposed(draw: DrawFn, make: _Make, _: torch.dtype, shape: Shape) -> torch.Tensor:
    order = draw(st.permutations(range(len(shape))))
    inverse = sorted(range(len(shape)), key=order.__getitem__)
    return make([shape[dim] for dim in order]).permute(inverse)


def _sliced(draw: DrawFn, make: _Make, _: torch.dtype, shape: Shape) -> torch.Tensor:
    if not shape:
        return make((2,))[1]
    dim = draw(st.integers(0, len(shape) - 1))
    whole = make(_with_extent(shape, dim, 2 * shape[dim] + 1))
    return whole[(slice(None),) * dim + (slice(1, None, 2),)]


def _expanded(draw: DrawFn, make: _Make, _: torch.dtype, shape: Shape) -> torch.Tensor:
    if not shape:
        return make(shape)
    dim = draw(st.integers(0, len(shape) - 1))
    return make(_with_extent(shape, dim, 1)).expand(shape)


def _with_stray_strides(_: DrawFn, make: _Make, __: torch.dtype, shape: Shape) -> torch.Tensor:
    """Dimensions of one element may have any stride and still count as contiguous."""
    whole = make(shape)
    strides = [7 if n == 1 else stride for n, stride in zip(shape, whole.stride(), strict=True)]
    return whole.as_strided(shape, strides)


def _conjugated(_: DrawFn, make: _Make, dtype: torch.dtype, shape: Shape) -> torch.Tensor:
    """Tensors whose stored bits are not their values, where the data type allows for them."""
    if dtype.is_complex and dtype is not torch.complex32:  # torch warns when it resolves one
        return make(shape).conj()
    if dtype in _COMPLEX_OF:
        return make(shape, _COMPLEX_OF[dtype]).conj().imag
    return make(shape)


def _contiguous_array(_: DrawFn, make: _MakeArray, shape: Shape) -> np.ndarray:
    return make(shape)


def _transposed_array(_: DrawFn, make: _MakeArray, shape: Shape) -> np.ndarray:
    return make(shape[::-1]).T


def _sliced_array(_: DrawFn, make: _MakeArray, shape: Shape) -> np.ndarray:
    if not shape:
        return make((2,))[1, ...]
    return make(_with_extent(shape, 0, 2 * shape[0] + 1))[1::2]


def _broadcast_array(_: DrawFn, make: _MakeArray, shape: Shape) -> np.ndarray:
    """A read-only array."""
    return np.broadcast_to(make(shape[1:]), shape)


def _reversed_array(_: DrawFn, make: _MakeArray, shape: Shape) -> np.ndarray:
    return make(shape)[(slice(None, None, -1),) * len(shape) + (...,)]


def _with_extent(shape: Shape, dim: int, extent: int) -> list[int]:
    return [*shape[:dim], extent, *shape[dim + 1 :]]


_TENSOR_MAKERS: Final[Mapping[str, Callable[[DrawFn, _Make, torch.dtype, Shape], torch.Tensor]]] = (
    dict(
        zip(
            TENSOR_LAYOUTS,
            (_contiguous, _transposed, _sliced, _expanded, _with_stray_strides, _conjugated),
            strict=True,
        )
    )
)
_ARRAY_MAKERS: Final[Mapping[str, Callable[[DrawFn, _MakeArray, Shape], np.ndarray]]] = dict(
    zip(
        ARRAY_LAYOUTS,
        (_contiguous_array, _transposed_array, _sliced_array, _broadcast_array, _reversed_array),
        strict=True,
    )
)
