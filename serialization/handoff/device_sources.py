"""The sources of handles for tensors on devices."""

import abc
import os
import sys
import threading
from collections.abc import Callable
from math import prod
from typing import NamedTuple

import torch

from omniwire.contracts.errors import HandoffError
from omniwire.contracts.handles import TensorHandle
from omniwire.serialization.handoff.device import DeviceBackend, Event, Opened, Record, Stream
from omniwire.serialization.handoff.device_books import DeviceBooks, Returned, device_books
from omniwire.serialization.handoff.lease import Lease, SlotBytes
from omniwire.serialization.handoff.ledger import ReaderLedger


class DeviceSource(abc.ABC):
    """A tensor on a device, or one that was there when it was shared.

    Resolves any number of times, always to the same memory, and in the order of the stream
    that is current then. The source keeps the tensor, and a tensor its memory.
    """

    @abc.abstractmethod
    def resolve_tensor(self) -> torch.Tensor:
        """The tensor.

        Raises:
            HandoffError: Its memory is gone.
        """


class OwnSource(DeviceSource):
    """A tensor of this process.

    Args:
        books: This process's.
        tensor: The tensor.
    """

    def __init__(self, books: DeviceBooks, tensor: torch.Tensor) -> None:
        self._books = books
        self._tensor = tensor
        self._device = books.backend.device_of(tensor)
        self._event = books.backend.record(self._device)

    def resolve_tensor(self) -> torch.Tensor:
        """The tensor, after what was queued when this was made."""
        self._books.backend.wait(self._device, self._event)
        return self._tensor


def share_on_device(tensor: torch.Tensor) -> TensorHandle:
    """A handle for a tensor of this process on a device, copied there if it is not contiguous."""
    books, shape, dtype = device_books(), tuple(tensor.shape), tensor.dtype
    if not is_plain(tensor):
        tensor = books.backend.copy(tensor).view(dtype).view(shape)
    return TensorHandle("cuda_ipc", dtype, shape, OwnSource(books, tensor.detach()))


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor's values are its memory, row-major."""
    return tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())


class SentEvent:
    """An event of another process, opened once; after it, what a message lends is there.

    Args:
        backend: The devices.
        device: Number of the device here.
        handle: What the sender made of the event.
    """

    def __init__(self, backend: DeviceBackend, device: int, handle: bytes) -> None:
        self.handle = handle
        self._backend = backend
        self._device = device
        self._lock = threading.Lock()
        self._event: Event | None = None

    def wait(self) -> None:
        """Have later work on the current stream start after it.

        Raises:
            HandoffError: It is there no more.
        """
        with self._lock:
            if self._event is None:
                self._event = self._backend.open_event(self._device, self.handle)
        self._backend.wait(self._device, self._event)


class SentMemory(NamedTuple):
    """Memory of another process, as a message says.

    Attributes:
        device: Number here of the device that it is on.
        record: Where it is.
        event: After which it may be read.
        lease: On the slot of the record, and so on the memory.
        ledger: Where to report that it cannot be opened.
    """

    device: int
    record: Record
    event: SentEvent
    lease: Lease
    ledger: ReaderLedger


class BorrowedSource(DeviceSource):
    """Memory of another process: opened when it is first resolved, and then only once.

    Args:
        books: This process's.
        memory: Where it is.
        dtype: The tensor's.
        shape: The tensor's.
    """

    def __init__(
        self, books: DeviceBooks, memory: SentMemory, dtype: torch.dtype, shape: tuple[int, ...]
    ) -> None:
        self._books = books
        self._memory: SentMemory | None = memory
        self._device = memory.device
        self._event = memory.event
        self._dtype = dtype
        self._shape = shape
        self._lock = threading.Lock()
        self._opened: tuple[torch.Tensor, _Borrowed] | None = None

    def resolve_tensor(self) -> torch.Tensor:
        """The tensor; later work on the current stream starts when it is there."""
        with self._lock:
            if self._opened is None:
                assert self._memory is not None
                self._opened = self._open(self._memory)
                self._memory = None
            tensor, borrowed = self._opened
            self._event.wait()
            borrowed.streams.add(self._books.backend.stream(self._device))
        return tensor

    def _open(self, memory: SentMemory) -> "tuple[torch.Tensor, _Borrowed]":
        backend, record = self._books.backend, memory.record
        try:
            opened = backend.open(memory.device, record.memory)
        except HandoffError:
            memory.ledger.report(record.device, opens=False)
            raise
        try:
            _check_range(record, opened, self._dtype)
            borrowed = _Borrowed(self._books, opened, memory.lease)
        except BaseException:
            backend.close(opened)
            raise
        flat = backend.view(opened, record.offset, record.nbytes, borrowed)
        return flat.view(self._dtype).view(self._shape), borrowed


def _check_range(record: Record, opened: Opened, dtype: torch.dtype) -> None:
    if record.offset + record.nbytes > opened.size:
        expected = f"expected a tensor inside an allocation of {opened.size} bytes"
        raise HandoffError(f"{expected}, got {record.nbytes} at {record.offset}")
    if (opened.address + record.offset) % dtype.itemsize:
        raise HandoffError(f"expected an offset that suits {dtype}, got {record.offset}")


class _Borrowed:
    """Memory that is open here; given back when this is garbage-collected.

    The storage of the tensor refers to it, and so do all views. The device may still have work
    to do on the memory: it is given back after all that is queued by then on the streams that
    the tensor was resolved on, and on the one that is current where its last view is dropped.
    """

    __slots__ = ("_books", "_lease", "_opened", "streams")

    def __init__(self, books: DeviceBooks, opened: Opened, lease: Lease) -> None:
        self.streams: set[Stream] = set()
        self._books = books
        self._opened = opened
        self._lease: Lease | None = None  # nothing to be given back yet
        # Another object: who gives back all of a message that turned out to be malformed must
        # not give back what the device may be working on.
        moved = lease.moved()
        books.keeper.begin_borrowing(opened)
        self._lease = moved

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        lease, books = self._lease, self._books
        if lease is not None and books.pid == os.getpid() and not _is_finalizing():
            try:
                events = books.backend.mark(self._opened.device, self.streams)
            except RuntimeError:
                events = None
            books.keeper.give_back(Returned(lease, events, self._opened))


class CopiedSource(DeviceSource):
    """A tensor that came by way of host memory.

    Args:
        books: This process's.
        device: Number here of the device that it was on; None if this process has it not.
        content: Its bytes; None if it has none.
        dtype: The tensor's.
        shape: The tensor's.
    """

    def __init__(
        self,
        books: DeviceBooks,
        device: int | None,
        content: SlotBytes | None,
        dtype: torch.dtype,
        shape: tuple[int, ...],
    ) -> None:
        self._books = books
        self._device = device
        self._content = content
        self._dtype = dtype
        self._shape = shape
        self._lock = threading.Lock()
        self._copied: tuple[torch.Tensor, Event] | None = None

    def resolve_tensor(self) -> torch.Tensor:
        """The tensor, on the device it was on, or on the CPU if this process has no such."""
        if self._device is None:
            return self._shaped(self._flat())
        backend = self._books.backend
        with self._lock:
            if self._copied is None:
                self._copied = self._copy(self._device)
            tensor, event = self._copied
            backend.wait(self._device, event)
            backend.retain(tensor)
        return tensor

    def _flat(self) -> torch.Tensor:
        if self._content is None:
            return torch.empty(0, dtype=torch.uint8)
        return torch.from_numpy(self._content)

    def _shaped(self, flat: torch.Tensor) -> torch.Tensor:
        if flat.nbytes != prod(self._shape) * self._dtype.itemsize:
            raise HandoffError(f"expected the bytes of the tensor, got {flat.nbytes}")
        return flat.view(self._dtype).view(self._shape)

    def _copy(self, device: int) -> tuple[torch.Tensor, Event]:
        backend, keeper = self._books.backend, self._books.keeper
        flat = self._flat()
        tensor = self._shaped(backend.to_device(flat, device))
        event = backend.record(device)
        if self._content is not None:
            lease = self._content.hold
            assert isinstance(lease, Lease)
            keeper.begin_borrowing(None)
            keeper.give_back(Returned(lease.moved(), backend.mark(device, ()), None))
            self._content = None
        return tensor, event
