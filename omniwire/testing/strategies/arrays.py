"""Tensors and arrays: every data type, odd memory layouts, odd bit patterns."""

import functools
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Final

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from omniwire.contracts.describe import describe
from omniwire.contracts.tensors import logical_bytes

Shape = tuple[int, ...]

_QUANTIZED: Final = ("qint", "quint")

# Little-endian ends of floats that go wrong most often: -0.0, infinities and NaNs (quiet,
# negative) of half, bfloat, single and double precision. Cut to the size of a data type.
_TOPS: Final = (
    b"\x80",
    b"\x80\x3f",
    b"\x00\x7c",
    b"\x80\x7f",
    b"\xf0\x7f",
    b"\x00\xfe",
    b"\xc0\xff",
)

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


def shapes(*, max_dims: int = 4) -> SearchStrategy[Shape]:
    """Shapes of up to `max_dims` dimensions of 0 to 3."""
    return st.lists(st.integers(0, 3), max_size=max_dims).map(tuple)


@st.composite
def tensors(
    draw: DrawFn,
    *,
    dtypes: SearchStrategy[torch.dtype] | None = None,
    shapes: SearchStrategy[Shape] | None = None,
) -> torch.Tensor:
    """CPU tensors of every strided data type, with any bits, in any layout.

    Among them are tensors without elements and without dimensions; transposed, sliced,
    expanded and oddly strided ones; ones with a conjugate or negative bit; NaNs with a
    payload, infinities and -0.0.

    Args:
        draw: Supplied by Hypothesis.
        dtypes: Data types to draw from; by default all.
        shapes: Shapes to draw from; by default up to 4 dimensions of 0 to 3.
    """
    dtype = draw(_DTYPES if dtypes is None else dtypes)
    shape = draw(_SHAPES if shapes is None else shapes)
    tensor = draw(st.sampled_from(_TENSOR_LAYOUTS))(draw, dtype, shape)
    if not _is_printable(dtype):
        _make_printable(tensor)
    return tensor


@st.composite
def arrays(
    draw: DrawFn,
    *,
    dtypes: SearchStrategy["np.dtype[np.generic]"] | None = None,
    shapes: SearchStrategy[Shape] | None = None,
) -> np.ndarray:
    """Numpy arrays of every data type that a contract carries, with any bits, in any layout.

    Args:
        draw: Supplied by Hypothesis.
        dtypes: Data types to draw from; by default all.
        shapes: Shapes to draw from; by default up to 4 dimensions of 0 to 3.
    """
    dtype = draw(st.sampled_from(_NUMPY_DTYPES) if dtypes is None else dtypes)
    shape = draw(_SHAPES if shapes is None else shapes)
    array: np.ndarray = draw(st.sampled_from(_ARRAY_LAYOUTS))(draw, dtype, shape)
    return array


_SHAPES: Final = shapes()
_DTYPES: Final = st.sampled_from(
    (torch.float32, torch.bfloat16, torch.float16, torch.int64)
) | st.sampled_from(strided_dtypes())


def _contents(draw: DrawFn, component_bytes: int, count: int, *, is_bool: bool) -> bytes:
    """The bytes of `count` numbers, either arbitrary or picked from the awkward ones."""
    if is_bool:
        return draw(_joined((b"\x00", b"\x01"), count))
    size = count * component_bytes
    return draw(_joined(_awkward(component_bytes), count) | st.binary(min_size=size, max_size=size))


@functools.cache
def _joined(patterns: Sequence[bytes], count: int) -> SearchStrategy[bytes]:
    return st.lists(st.sampled_from(patterns), min_size=count, max_size=count).map(b"".join)


@functools.cache
def _awkward(size: int) -> tuple[bytes, ...]:
    """Bit patterns of `size` bytes: 0, 1 and -1 as integers, then ends of floats."""
    patterns = [bytes(size), b"\x01".ljust(size, b"\x00"), b"\xff" * size]
    patterns += [
        (low * (size - len(top)) + top)[-size:] for top in _TOPS for low in (b"\x00", b"\x01")
    ]
    return tuple(dict.fromkeys(patterns))


def _tensor(draw: DrawFn, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """A contiguous tensor with drawn contents."""
    component_bytes = dtype.itemsize // 2 if dtype.is_complex else dtype.itemsize
    count = prod(shape) * (dtype.itemsize // component_bytes)
    content = _contents(draw, component_bytes, count, is_bool=dtype is torch.bool)
    if not content:
        return torch.empty(0, dtype=torch.uint8).view(dtype).reshape(shape)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(dtype).reshape(shape)


@functools.cache
def _is_printable(dtype: torch.dtype) -> bool:
    try:
        repr(torch.zeros(dtype.itemsize, dtype=torch.uint8).view(dtype)[0])
    except NotImplementedError:
        return False
    return True


def _make_printable(tensor: torch.Tensor) -> None:
    """Give a tensor that has no repr a text for the reports of Hypothesis and IPython."""
    text = f"<{describe(tensor)} with bytes {logical_bytes(tensor).numpy().tobytes().hex(' ')}>"

    def print_text(printer: Any, _: bool) -> None:
        printer.text(text)

    vars(tensor)["_repr_pretty_"] = print_text


def _transposed(draw: DrawFn, dtype: torch.dtype, shape: Shape) -> torch.Tensor:
    order = draw(st.permutations(range(len(shape))))
    inverse = sorted(range(len(shape)), key=order.__getitem__)
    return _tensor(draw, dtype, [shape[dim] for dim in order]).permute(inverse)


def _sliced(draw: DrawFn, dtype: torch.dtype, shape: Shape) -> torch.Tensor:
    if not shape:
        return _tensor(draw, dtype, (2,))[1]
    dim = draw(st.integers(0, len(shape) - 1))
    whole = _tensor(draw, dtype, _with_extent(shape, dim, 2 * shape[dim] + 1))
    return whole[(slice(None),) * dim + (slice(1, None, 2),)]


def _expanded(draw: DrawFn, dtype: torch.dtype, shape: Shape) -> torch.Tensor:
    if not shape:
        return _tensor(draw, dtype, shape)
    dim = draw(st.integers(0, len(shape) - 1))
    return _tensor(draw, dtype, _with_extent(shape, dim, 1)).expand(shape)


def _oddly_strided(draw: DrawFn, dtype: torch.dtype, shape: Shape) -> torch.Tensor:
    """Dimensions of one element may have any stride and still count as contiguous."""
    whole = _tensor(draw, dtype, shape)
    strides = [7 if n == 1 else stride for n, stride in zip(shape, whole.stride(), strict=True)]
    return whole.as_strided(shape, strides)


def _conjugated(draw: DrawFn, dtype: torch.dtype, shape: Shape) -> torch.Tensor:
    """Tensors whose stored bits are not their values, where the data type allows for them."""
    if dtype.is_complex and dtype is not torch.complex32:  # torch warns when it resolves one
        return _tensor(draw, dtype, shape).conj()
    if dtype in _COMPLEX_OF:
        return _tensor(draw, _COMPLEX_OF[dtype], shape).conj().imag
    return _tensor(draw, dtype, shape)


def _array(draw: DrawFn, dtype: "np.dtype[np.generic]", shape: Sequence[int]) -> np.ndarray:
    component_bytes = dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize
    count = prod(shape) * (dtype.itemsize // component_bytes)
    content = _contents(draw, component_bytes, count, is_bool=dtype.kind == "b")
    return np.frombuffer(bytearray(content), dtype).reshape(shape)


def _transposed_array(draw: DrawFn, dtype: "np.dtype[np.generic]", shape: Shape) -> np.ndarray:
    return _array(draw, dtype, shape[::-1]).T


def _reversed_array(draw: DrawFn, dtype: "np.dtype[np.generic]", shape: Shape) -> np.ndarray:
    return _array(draw, dtype, shape)[(slice(None, None, -1),) * len(shape) + (...,)]


def _sliced_array(draw: DrawFn, dtype: "np.dtype[np.generic]", shape: Shape) -> np.ndarray:
    if not shape:
        return _array(draw, dtype, (2,))[1, ...]
    return _array(draw, dtype, _with_extent(shape, 0, 2 * shape[0] + 1))[1::2]


def _broadcast_array(draw: DrawFn, dtype: "np.dtype[np.generic]", shape: Shape) -> np.ndarray:
    """A read-only array."""
    return np.broadcast_to(_array(draw, dtype, shape[1:]), shape)


def _with_extent(shape: Shape, dim: int, extent: int) -> list[int]:
    return [*shape[:dim], extent, *shape[dim + 1 :]]


_TENSOR_LAYOUTS: Final[Sequence[Callable[[DrawFn, torch.dtype, Shape], torch.Tensor]]] = (
    _tensor,
    _transposed,
    _sliced,
    _expanded,
    _oddly_strided,
    _conjugated,
)
_ARRAY_LAYOUTS: Final[Sequence[Callable[[DrawFn, "np.dtype[np.generic]", Shape], np.ndarray]]] = (
    _array,
    _transposed_array,
    _reversed_array,
    _sliced_array,
    _broadcast_array,
)
