"""Writing tensors and arrays: as bytes in the header, in a shared frame, or in their own.

A tensor's extension payload is `<dtype code> <placement> <number of dimensions>`, one byte
each, then every dimension as a little-endian uint64, then for an inline tensor its bytes, for
one in a frame the frame's index as uint32 and the byte offset as uint64, little-endian.
"""

import ctypes
import struct
from collections.abc import Hashable
from math import prod
from typing import Any, Final, NoReturn

import numpy as np
import torch
from msgpack import ExtType

from omniwire.contracts.describe import describe
from omniwire.contracts.tensors import array_problem, contiguous, tensor_problem
from omniwire.serialization.dtypes import NUMPY_CODES, TORCH_CODES
from omniwire.serialization.extensions import EXT_ARRAY, EXT_TENSOR
from omniwire.serialization.refusal import Refused

INLINE: Final = 0
IN_FRAME: Final = 1

MAX_INLINE_BYTES: Final = 512
"""Tensors up to this size travel in the header: cheaper than a place in a frame."""

MIN_OWN_FRAME_BYTES: Final = 64 * 1024
"""Tensors from this size on get a frame that aliases their memory; smaller ones are copied
into one shared frame: a frame of its own costs a transport more than copying so little."""

ALIGNMENT: Final = 64
"""Every tensor in a frame starts at a multiple of this."""

MAX_ELEMENTS: Final = 2**63 - 1
"""Bound of a tensor's dimensions multiplied, each counted as at least 1, as torch has it."""

MAX_DIMS: Final = 64

SHAPED: Final = tuple(struct.Struct(f"<BBB{n}Q") for n in range(MAX_DIMS + 1))
"""By number of dimensions: the start of an extension payload."""

PLACED: Final = tuple(struct.Struct(f"<BBB{n}QIQ") for n in range(MAX_DIMS + 1))
"""By number of dimensions: an extension payload with a place in a frame."""


def align(size: int) -> int:
    """The next multiple of `ALIGNMENT`."""
    return -(-size // ALIGNMENT) * ALIGNMENT


Piece = tuple[int, int, int, torch.Tensor | np.ndarray]
"""Bytes of one tensor in a frame: their offset in it, their address, how many, and their owner."""

# Looked up for every tensor. An extension value is made without its class's checks.
_TENSOR: Final = torch.Tensor
_STRIDED: Final = torch.strided
_TUPLE: Final = tuple.__new__


class FramePlan:
    """A frame that is still to be made, of the tensors in it."""

    __slots__ = ("nbytes", "pieces")

    def __init__(self) -> None:
        self.nbytes = 0
        self.pieces: list[Piece] = []

    def address(self) -> int | None:
        """Where the frame's bytes are already, if all tensors lie as they would in it."""
        pieces = self.pieces
        base = pieces[0][1]
        if pieces[-1][1] - pieces[-1][0] != base:
            return None
        is_whole = {address - offset for offset, address, _, _ in pieces} == {base}
        return base if is_whole else None

    def write_to(self, address: int) -> None:
        """Copy the tensors to memory of `nbytes` bytes, with zeros between them."""
        past = 0
        for offset, source, nbytes, _ in self.pieces:
            if offset != past:
                ctypes.memset(address + past, 0, offset - past)
            ctypes.memmove(address + offset, source, nbytes)
            past = offset + nbytes


class BufferWriter:
    """Collects the frames of one message; lives as long as one `encode` call.

    Attributes:
        plans: The frames so far, in order.
        inline_bytes: Bytes of tensors and arrays that are in the header.
    """

    def __init__(self) -> None:
        self.plans: list[FramePlan] = []
        self.inline_bytes = 0
        self._shared: FramePlan | None = None
        self._shared_index = 0
        self._places: dict[Hashable, tuple[int, int]] = {}

    def tensor(self, tensor: torch.Tensor) -> ExtType | list[Any]:
        """The extension value of a tensor; its bytes go inline or into a frame.

        Raises:
            Refused: It is not a plain strided CPU tensor.
        """
        code = TORCH_CODES.get(tensor.dtype)
        if (
            code is None
            or type(tensor) is not _TENSOR
            or tensor.layout is not _STRIDED
            or tensor.is_nested
            or not tensor.is_cpu
        ):
            return self.other_tensor(tensor)
        shape, nbytes = tensor.shape, tensor.nbytes
        num_dims = len(shape)
        if num_dims > MAX_DIMS:
            _refuse_shape(tensor)
        if not nbytes:
            if prod(n or 1 for n in shape) > MAX_ELEMENTS:
                _refuse_shape(tensor)
            start = SHAPED[num_dims].pack(code, INLINE, num_dims, *shape)
            return _TUPLE(ExtType, (EXT_TENSOR, start))
        address = tensor.data_ptr()
        key: Hashable = address, nbytes
        is_plain = tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())
        if is_plain:
            # Its memory has to be there: a storage can be freed under its tensors.
            end = tensor.storage_offset() * tensor.itemsize + nbytes
            if not address or tensor.untyped_storage().nbytes() < end:
                _refuse_storage(tensor)
        else:
            _check_storage(tensor)
            key = address, tensor.dtype, shape, tensor.stride(), tensor.is_conj(), tensor.is_neg()
        place = self._places.get(key)
        if place is None:
            flat = tensor
            if not is_plain:
                flat = contiguous(tensor)
                address = flat.data_ptr()
            if nbytes <= MAX_INLINE_BYTES:
                self.inline_bytes += nbytes
                start = SHAPED[num_dims].pack(code, INLINE, num_dims, *shape)
                return _TUPLE(ExtType, (EXT_TENSOR, start + ctypes.string_at(address, nbytes)))
            place = self._place(key, flat, address, nbytes)
        start = PLACED[num_dims].pack(code, IN_FRAME, num_dims, *shape, *place)
        return _TUPLE(ExtType, (EXT_TENSOR, start))

    def other_tensor(self, tensor: torch.Tensor) -> ExtType | list[Any]:
        """What stands for a tensor whose bytes cannot be in a frame.

        Raises:
            Refused: Nothing does.
        """
        problem = tensor_problem((), tensor)
        if problem is not None:
            raise Refused(tensor, problem.code, problem.expected, problem.got)
        if not tensor.is_cpu:
            expected = 'a CPU tensor (say `to_device("cpu")` first)'
            raise Refused(tensor, "device", expected, describe(tensor))
        raise Refused(tensor, "dtype", "a data type that can travel", describe(tensor))

    def array(self, array: "np.ndarray") -> ExtType:
        """The extension value of a numpy array; its bytes go inline or into a frame.

        Raises:
            Refused: It is a subclass, or of a data type that does not travel.
        """
        problem = array_problem((), array)
        if problem is not None:
            raise Refused(array, problem.code, problem.expected, problem.got)
        code = NUMPY_CODES[array.dtype]
        shape, nbytes = array.shape, array.nbytes
        if len(shape) > MAX_DIMS:
            _refuse_shape(array)
        if nbytes <= MAX_INLINE_BYTES:
            self.inline_bytes += nbytes
            return ExtType(
                EXT_ARRAY,
                SHAPED[len(shape)].pack(code, INLINE, len(shape), *shape) + array.tobytes(),
            )
        address = array.ctypes.data
        key: Hashable = (
            (address, nbytes)
            if array.flags.c_contiguous
            else (address, array.dtype, shape, array.strides)
        )
        place = self._places.get(key)
        if place is None:
            flat = np.ascontiguousarray(array)
            place = self._place(key, flat, flat.ctypes.data, nbytes)
        start = PLACED[len(shape)].pack(code, IN_FRAME, len(shape), *shape, *place)
        return ExtType(EXT_ARRAY, start)

    def finish(self) -> list[memoryview]:
        """The frames, read-only, 1-D, of bytes; the shared one is filled now."""
        return [
            _filled(plan) if plan is self._shared else _memory(plan.pieces[0][3])
            for plan in self.plans
        ]

    def _place(
        self, key: Hashable, flat: torch.Tensor | np.ndarray, address: int, nbytes: int
    ) -> tuple[int, int]:
        """Give the bytes at `address` a place: the index of a frame and the offset in it."""
        plan, index, offset = self._shared, self._shared_index, 0
        if nbytes >= MIN_OWN_FRAME_BYTES or plan is None:
            plan, index = FramePlan(), len(self.plans)
            self.plans.append(plan)
            if nbytes < MIN_OWN_FRAME_BYTES:
                self._shared, self._shared_index = plan, index
        else:
            offset = align(plan.nbytes)
        plan.pieces.append((offset, address, nbytes, flat))
        plan.nbytes = offset + nbytes
        place = self._places[key] = index, offset
        return place


def _refuse_shape(value: torch.Tensor | np.ndarray) -> NoReturn:
    expected = f"at most {MAX_DIMS} dimensions, whose product is at most {MAX_ELEMENTS}"
    raise Refused(value, "shape", expected, describe(value))


def _check_storage(tensor: torch.Tensor) -> None:
    """Check that the memory of a tensor of any strides is really there."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    extent = 1 + sum((n - 1) * stride for n, stride in steps)
    end = (tensor.storage_offset() + extent) * tensor.itemsize
    if tensor.untyped_storage().nbytes() < end or not tensor.data_ptr():
        _refuse_storage(tensor)


def _refuse_storage(tensor: torch.Tensor) -> NoReturn:
    got = f"{describe(tensor)} whose storage is gone"
    raise Refused(tensor, "layout", "a plain strided tensor with storage", got)


def _filled(plan: FramePlan) -> memoryview:
    frame = bytearray(plan.nbytes)
    plan.write_to(ctypes.addressof(ctypes.c_char.from_buffer(frame)))
    return memoryview(frame).toreadonly()


def _memory(flat: torch.Tensor | np.ndarray) -> memoryview:
    """A contiguous tensor's memory, without a copy, as a read-only 1-D view of bytes."""
    if isinstance(flat, torch.Tensor):
        flat = flat.detach().view(-1).view(torch.uint8).numpy()
    return flat.reshape(-1).view(np.uint8).data.toreadonly()
