"""Reading tensors and arrays: views of the frames they travel in, checked range by range."""

import struct
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final, NoReturn, TypeVar

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from omniwire.contracts.errors import DecodeError
from omniwire.serialization.buffer_writer import (
    ALIGNMENT,
    IN_FRAME,
    INLINE,
    MAX_DIMS,
    MAX_ELEMENTS,
    SHAPED,
)
from omniwire.serialization.dtypes import NUMPY_DTYPES, TORCH_DTYPES
from omniwire.serialization.limits import Limits
from omniwire.serialization.pages import is_writable

DtypeT = TypeVar("DtypeT", torch.dtype, np.dtype[Any])

_PLACE: Final = struct.Struct("<IQ")
_CARRIERS: Final[dict[torch.dtype, np.dtype[np.generic]]] = {
    dtype: np.dtype(name)
    for dtype, name in (
        (torch.uint8, "u1"),
        (torch.int32, "<i4"),
        (torch.int64, "<i8"),
        (torch.float16, "<f2"),
        (torch.float32, "<f4"),
        (torch.float64, "<f8"),
        (torch.complex128, "<c16"),
    )
}
"""The data types in which numpy hands memory to torch as it is; others are viewed once there."""

_SAME_SIZE: Final[dict[int, np.dtype[np.generic]]] = {
    1: np.dtype("u1"),
    2: np.dtype("<i2"),
    4: np.dtype("<i4"),
    8: np.dtype("<i8"),
}
_WORD_BYTES: Final = 8  # the strictest alignment of any data type: complex128 is two doubles


Start = tuple[DtypeT, tuple[int, ...], int, int, int]
"""How an extension payload starts: data type, shape, bytes of content, own length, placement."""


class BufferReader:
    """Builds the tensors of one message; lives as long as one `decode` call.

    Args:
        frames: The frames after the header, as bytes.
        limits: Bounds on the number of tensors and their bytes.
        copy: Whether tensors own their memory, instead of aliasing a frame. References to one
            range share it either way.
    """

    def __init__(self, frames: Sequence[memoryview], limits: Limits, *, copy: bool) -> None:
        self._frames = frames
        self._flat: dict[int, np.ndarray] = {}
        self._private: dict[tuple[int, int], bytearray] = {}
        self._tensors: dict[bytes, Start[torch.dtype]] = {}
        self._arrays: dict[bytes, Start[np.dtype[Any]]] = {}
        self._max_tensors = limits.max_tensors
        self._max_bytes = limits.max_total_bytes
        self._copy = copy
        self._ranges: list[dict[int, int]] = [{} for _ in frames]  # start -> end
        self._num_tensors = 0
        self._num_bytes = 0

    def tensor(self, data: bytes) -> torch.Tensor:
        """Rebuild a tensor from its extension payload.

        Raises:
            DecodeError: A number is out of range, or the bytes are not where it says.
        """
        dtype, shape, memory, offset = self._find(data, TORCH_DTYPES, self._tensors)
        if memory is None:
            return torch.empty(0, dtype=torch.uint8).view(dtype).view(shape)
        carrier = _CARRIERS.get(dtype)
        array = np.ndarray(shape, carrier or _SAME_SIZE[dtype.itemsize], memory, offset)
        # By way of numpy: it exports read-only memory to torch without a warning.
        tensor = torch.from_numpy(array) if array.flags.writeable else from_dlpack(array)
        return tensor if carrier else tensor.view(dtype)

    def array(self, data: bytes) -> np.ndarray:
        """Rebuild a numpy array from its extension payload; read-only unless it is a copy.

        Raises:
            DecodeError: A number is out of range, or the bytes are not where it says.
        """
        dtype, shape, memory, offset = self._find(data, NUMPY_DTYPES, self._arrays)
        if memory is None:
            if prod(n or 1 for n in shape) > MAX_ELEMENTS // dtype.itemsize:
                raise DecodeError("expected a shape that a numpy array can have", "range")
            memory = bytearray()
        array = np.ndarray(shape, dtype, memory, offset)
        if not self._copy:
            array.flags.writeable = False
        return array

    def finish(self) -> None:
        """Check that the tensors account for every frame, and that none overlaps another.

        Raises:
            DecodeError: With code `frames` or `buffer`.
        """
        for index, (frame, ranges) in enumerate(zip(self._frames, self._ranges, strict=True)):
            past = 0
            for start, end in sorted(ranges.items()):
                if start < past:
                    expected = f"expected separate or equal tensors in buffer {index}"
                    raise DecodeError(f"{expected}, got two that overlap", "buffer")
                past = end
            if past != len(frame) or not past:
                expected = f"expected buffer {index} to end with its last tensor at byte {past}"
                raise DecodeError(f"{expected}, got {len(frame)} bytes", "frames")

    def _find(
        self, data: bytes, dtypes: Mapping[int, DtypeT], known: dict[bytes, Start[DtypeT]]
    ) -> tuple[DtypeT, tuple[int, ...], np.ndarray | bytearray | None, int]:
        """What an extension payload says: data type, shape, memory and where in it they start.

        The memory is None if the shape has no elements. `known` has what payloads of tensors in
        frames start with, since those of one message are often alike.
        """
        start = known.get(data[: -_PLACE.size])
        if start is None:
            start = _start(data, dtypes)
        dtype, shape, nbytes, end, placement = start
        self._num_tensors += 1
        self._num_bytes += nbytes
        if self._num_tensors > self._max_tensors or self._num_bytes > self._max_bytes:
            self._refuse()
        if placement == IN_FRAME:
            index, offset = self._locate(data, end, nbytes)
            known[data[:end]] = start
            if self._copy:
                return dtype, shape, self._copied(index, offset, nbytes), 0
            memory = self._flat.get(index)
            return dtype, shape, self._memory(index) if memory is None else memory, offset
        if placement != INLINE:
            raise DecodeError(f"expected a placement of 0 or 1, got {placement}", "unknown")
        if len(data) != end + nbytes:
            expected = f"expected {nbytes} inline bytes"
            raise DecodeError(f"{expected}, got {len(data) - end}", "buffer")
        return dtype, shape, bytearray(data[end:]) if nbytes else None, 0

    def _refuse(self) -> NoReturn:
        if self._num_tensors > self._max_tensors:
            what, bound, number = "tensors", self._max_tensors, self._num_tensors
        else:
            what, bound, number = "bytes of tensors", self._max_bytes, self._num_bytes
        raise DecodeError(f"expected at most {bound} {what}, got {number} or more", "limit")

    def _copied(self, index: int, offset: int, nbytes: int) -> bytearray:
        """A copy of a range, one however often it is used: no more memory than arrived."""
        private = self._private.get((index, offset))
        if private is None:
            private = bytearray(self._frames[index][offset : offset + nbytes])
            self._private[index, offset] = private
        return private

    def _locate(self, data: bytes, end: int, nbytes: int) -> tuple[int, int]:
        """The frame and offset of a tensor, after checking that its bytes are there."""
        if len(data) != end + _PLACE.size:
            raise DecodeError(f"expected a tensor of {end + 12} bytes, got {len(data)}", "syntax")
        index, offset = _PLACE.unpack_from(data, end)
        if index >= len(self._frames):
            expected = f"expected one of {len(self._frames)} buffers"
            raise DecodeError(f"{expected}, got index {index}", "frames")
        if offset % ALIGNMENT:
            expected = f"expected an offset that is a multiple of {ALIGNMENT}"
            raise DecodeError(f"{expected}, got {offset}", "buffer")
        size = len(self._frames[index])
        if not nbytes or offset + nbytes > size:
            expected = f"expected a tensor inside the {size} bytes of buffer {index}"
            raise DecodeError(f"{expected}, got bytes {offset} to {offset + nbytes}", "buffer")
        if self._ranges[index].setdefault(offset, offset + nbytes) != offset + nbytes:
            expected = f"expected separate or equal tensors in buffer {index}"
            raise DecodeError(f"{expected}, got two that overlap", "buffer")
        return index, offset

    def _memory(self, index: int) -> np.ndarray:
        """A frame as a 1-D uint8 array, aliasing it where that is safe.

        It is copied where its address does not suit every data type, and where a write, which
        torch cannot forbid, would end the process: in memory that is mapped for reading only.

        `frombuffer` holds the buffer, so that its owner can neither resize nor close it under
        the tensors; the constructor of an array does not.
        """
        frame = self._frames[index]
        flat = np.frombuffer(frame, np.uint8)
        address: int = flat.__array_interface__["data"][0]  # in half the time of `ctypes.data`
        unwritable = _may_be_mapped(frame) and not is_writable(address, len(frame))
        if unwritable or address % _WORD_BYTES:
            # Memory from Python's own allocators does suit.
            flat = np.frombuffer(bytearray(frame), np.uint8)
        self._flat[index] = flat
        return flat


def _start(data: bytes, dtypes: Mapping[int, DtypeT]) -> Start[DtypeT]:
    """Read and check the start of an extension payload."""
    num_dims = data[2] if len(data) > 2 else 0
    end = 3 + 8 * num_dims
    if len(data) < end:
        raise DecodeError(f"expected a whole tensor, got {len(data)} bytes", "syntax")
    if num_dims > MAX_DIMS:
        raise DecodeError(f"expected at most {MAX_DIMS} dimensions, got {num_dims}", "range")
    code, placement, _, *dims = SHAPED[num_dims].unpack_from(data)
    dtype = dtypes.get(code)
    if dtype is None:
        raise DecodeError(f"expected the code of a data type, got {code}", "unknown")
    num_elements = prod(dims)
    if num_elements > MAX_ELEMENTS or (
        not num_elements and prod(n or 1 for n in dims) > MAX_ELEMENTS
    ):
        raise DecodeError("expected a shape that a tensor can have", "range")
    return dtype, tuple(dims), num_elements * dtype.itemsize, end, placement


def _may_be_mapped(frame: memoryview) -> bool:
    """Whether a frame may lie in memory that is mapped for reading only.

    What Python or numpy allocated does not: it is read-only to them alone, if at all.
    """
    owner: object = frame.obj
    if not frame.readonly or type(owner) in (bytes, bytearray):
        return False
    return not (type(owner) is np.ndarray and owner.flags.writeable)
