"""What a message lends to this process, as it is received."""

from collections.abc import Sequence
from math import prod

import torch

from omniwire.contracts.describe import describe
from omniwire.contracts.errors import DecodeError, HandoffError
from omniwire.contracts.handles import TensorHandle
from omniwire.serialization.handoff.device import COPIED, OBJECT, Record, unpack_record
from omniwire.serialization.handoff.device_books import Loan, device_books
from omniwire.serialization.handoff.device_sources import (
    BorrowedSource,
    CopiedSource,
    DeviceSource,
    SentEvent,
    SentMemory,
)
from omniwire.serialization.handoff.lease import Lease, SlotBytes
from omniwire.serialization.handoff.ledger import ReaderLedger
from omniwire.serialization.handoff.lending import LENT_HANDLE, LENT_TENSOR


class Borrower:
    """Attaches the handles of one message that refer to records.

    Args:
        places: What the message carries after its frames, each with a lease.
        ledger: Where to report which devices this process can open memory of.
    """

    def __init__(self, places: Sequence[SlotBytes], ledger: ReaderLedger) -> None:
        self._books = device_books()
        self._places = places
        self._ledger = ledger
        self._events: dict[int, SentEvent] = {}
        self._values: dict[int, object] = {}

    def attach(self, handle: TensorHandle, payload: bytes) -> TensorHandle | torch.Tensor:
        """A handle that can be resolved, or the tensor that it stands for.

        Args:
            handle: As it was unpacked.
            payload: Its payload, which starts with `LENT_HANDLE` or `LENT_TENSOR`.

        Raises:
            DecodeError: It is malformed.
            HandoffError: What it refers to cannot be opened here, or is no more.
        """
        is_tensor = payload.startswith(LENT_TENSOR)
        digits = payload[len(LENT_TENSOR if is_tensor else LENT_HANDLE) :]
        if not digits.isdigit() or int(digits) >= len(self._places):
            raise DecodeError("expected a handle of the message, got another", "buffer")
        number = int(digits)
        value = self._values.get(number)
        if value is None:
            value = self._values[number] = self._value(handle, number)
        if is_tensor:
            tensor = value.resolve_tensor() if isinstance(value, DeviceSource) else value
            if not isinstance(tensor, torch.Tensor) or not _fits(handle, tensor):
                raise DecodeError(f"expected {handle}, got {describe(tensor)}", "buffer")
            return tensor
        kind = "local" if isinstance(value, torch.Tensor) else handle.kind
        return TensorHandle(kind, handle.dtype, handle.shape, value)

    def _value(self, handle: TensorHandle, number: int) -> object:
        """What the record at a place stands for."""
        record = unpack_record(self._places[number].tobytes())
        if record.process == self._books.token:
            return self._lent_here(record)
        if record.mode == OBJECT:
            expected = "expected a tensor that only its own process has to stay there"
            raise HandoffError(f"{expected}, got it in another")
        return self._source(handle, record, number)

    def _lent_here(self, record: Record) -> object:
        """What a thread of this process has sent, as the object that it is."""
        loan: Loan | None = self._books.loans.get(record.number)
        if loan is None:
            raise HandoffError(f"expected a loan of this process, got {record.number}, which ended")
        if loan.device is not None:
            backend = self._books.backend
            backend.wait(loan.device, loan.event)
            if isinstance(loan.value, torch.Tensor):
                backend.retain(loan.value)
        return loan.value

    def _source(self, handle: TensorHandle, record: Record, number: int) -> DeviceSource:
        nbytes = prod(handle.shape) * handle.dtype.itemsize
        if nbytes != record.nbytes:
            raise DecodeError(
                f"expected {nbytes} bytes for {handle}, got {record.nbytes}", "buffer"
            )
        device = self._books.backend.find(record.name)
        if record.mode == COPIED:
            if record.is_trial:
                self._ledger.report(record.device, opens=self._try(record, device))
            content = None
            if record.nbytes:
                if number + 1 >= len(self._places):
                    raise DecodeError("expected a copy after its record, got none", "buffer")
                content = self._places[number + 1]
            return CopiedSource(self._books, device, content, handle.dtype, handle.shape)
        if device is None:
            self._ledger.report(record.device, opens=False)
            name = record.name.decode(errors="replace")
            raise HandoffError(f"expected memory of a device of this process, got one of {name!a}")
        lease = self._places[number].hold
        assert isinstance(lease, Lease)
        event = self._event(device, record.event)
        memory = SentMemory(device, record, event, lease, self._ledger)
        return BorrowedSource(self._books, memory, handle.dtype, handle.shape)

    def _event(self, device: int, handle: bytes) -> SentEvent:
        """The event of a message; usually there is one for all its tensors on a device."""
        event = self._events.get(device)
        if event is None or event.handle != handle:
            event = self._events[device] = SentEvent(self._books.backend, device, handle)
        return event

    def _try(self, record: Record, device: int | None) -> bool:
        """Whether memory of the sender can be opened here, and has in it what it should have."""
        backend = self._books.backend
        if device is None:
            return False
        try:
            event = backend.open_event(device, record.event)
            opened = backend.open(device, record.memory)
        except HandoffError:
            return False
        try:
            end = record.offset + len(record.pattern)
            if end > opened.size:
                return False
            found = backend.read(opened, record.offset, len(record.pattern), event)
        finally:
            backend.close(opened)
        return found == record.pattern


def _fits(handle: TensorHandle, tensor: torch.Tensor) -> bool:
    return tensor.dtype == handle.dtype and tensor.shape == handle.shape
