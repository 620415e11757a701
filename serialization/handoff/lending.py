"""What a message lends to its readers: tensors on devices, and those of handles."""

import secrets
from collections.abc import Hashable, Sequence
from typing import Any, Final, Protocol

import numpy as np
import torch
from msgpack import ExtType

from omniwire.contracts.errors import HandoffError
from omniwire.contracts.handles import TensorHandle
from omniwire.contracts.tensors import tensor_problem
from omniwire.serialization.buffer_writer import MAX_DIMS, BufferWriter, FramePlan
from omniwire.serialization.converter import codecs
from omniwire.serialization.dtypes import TORCH_CODES
from omniwire.serialization.extensions import EXT_RECORD
from omniwire.serialization.handoff.arena import Slot
from omniwire.serialization.handoff.device import (
    COPIED,
    OBJECT,
    PATTERN_BYTES,
    RECORD_BYTES,
    SHARED,
    Event,
    Record,
    pack_record,
)
from omniwire.serialization.handoff.device_books import Loan, device_books
from omniwire.serialization.handoff.device_sources import DeviceSource, is_plain
from omniwire.serialization.handoff.ledger import MAX_DEVICES
from omniwire.serialization.handoff.pool import Pool
from omniwire.serialization.handoff.sources import SlotSource

HANDLE_PAYLOAD: Final = b"omniwire:slot:"
"""Starts the payload of a handle on its way; its number among the message's handles follows."""

LENT_HANDLE: Final = b"omniwire:lent:"
"""The same for a handle whose place has a record."""

LENT_TENSOR: Final = b"omniwire:leaf:"
"""The same for what is a tensor and no handle, at both ends."""

_NOTHING: Final = Record(COPIED, 0, b"", 0, 0, 0, b"", b"", b"", b"")


class Peer(Protocol):
    """Who a message is for."""

    def is_here(self) -> bool | None:
        """Whether it is in this process; None if it is as yet, but may still be given away."""
        ...

    def opens(self, device: int) -> bool | None:
        """Whether it can open memory of a device of this process; None if it was never tried."""
        ...


class LendingWriter(BufferWriter):
    """As its base, but for certain readers, who can get more than what is in frames.

    Attributes:
        handles: What the message carries after its frames: the tensors of handles, and what
            stands for those that are lent.
        lending: What is lent, if anything is.

    Args:
        peers: The readers.
    """

    def __init__(self, peers: Sequence[Peer]) -> None:
        super().__init__()
        self.handles: list[FramePlan] = []
        self.lending: Lending | None = None
        self._peers = peers

    def other_tensor(self, tensor: torch.Tensor) -> ExtType | list[Any]:
        """As a record of a payload: a handle, of which the reader makes a tensor again.

        Raises:
            Refused: It is not a plain strided tensor, on the CPU or a device that is known.
        """
        if (
            tensor_problem((), tensor) is not None
            or tensor.dtype not in TORCH_CODES
            or tensor.dim() > MAX_DIMS
            or not device_books().backend.owns(tensor)
        ):
            return super().other_tensor(tensor)
        payload = LENT_TENSOR + b"%d" % self._lend().tensor(tensor)
        handle = TensorHandle("cuda_ipc", tensor.dtype, tuple(tensor.shape), payload)
        return [ExtType(EXT_RECORD, b"TensorHandle"), codecs().to_wire[TensorHandle](handle)]

    def detach(self, handle: TensorHandle) -> TensorHandle:
        """A handle that the readers can attach; the same one if they cannot."""
        source = handle.payload
        if isinstance(source, SlotSource):
            payload = self._hold(source.resolve_tensor())
        elif isinstance(source, DeviceSource):
            number = self._lend().source(source)
            if number is None:  # it is in host memory
                payload = self._hold(source.resolve_tensor().contiguous())
            else:
                payload = LENT_HANDLE + b"%d" % number
        elif isinstance(source, torch.Tensor) and self._lend().is_for_here:
            payload = LENT_HANDLE + b"%d" % self._lend().own(source)
        else:
            return handle
        # A local handle has its tensor, or is none: on its way it is of another kind.
        kind = "arena" if handle.kind == "local" else handle.kind
        return TensorHandle(kind, handle.dtype, handle.shape, payload)

    def _hold(self, tensor: torch.Tensor) -> bytes:
        """The payload of a handle for a contiguous CPU tensor."""
        if not tensor.nbytes:
            return HANDLE_PAYLOAD
        self.handles.append(_plan(tensor.data_ptr(), tensor.nbytes, tensor))
        return HANDLE_PAYLOAD + b"%d" % (len(self.handles) - 1)

    def _lend(self) -> "Lending":
        if self.lending is None:
            self.lending = Lending(self._peers, self.handles)
        return self.lending


class Lending:
    """What one message lends to its readers.

    A reader in this process gets tensors of devices, and local handles, as the objects that
    they are. Another process gets a handle of a device's memory once it has shown, with the
    first message, that it can open such memory, and until then a copy by way of host memory.

    Attributes:
        shared_bytes: Bytes of tensors that other processes may open in place.

    Args:
        peers: The readers.
        handles: Receives records, and copies after theirs.
    """

    def __init__(self, peers: Sequence[Peer], handles: list[FramePlan]) -> None:
        self.shared_bytes = 0
        self._books = device_books()
        self._peers = peers
        self._here = [peer.is_here() for peer in peers]
        self._handles = handles
        self._records: dict[int, Loan | None] = {}  # by number of the handle
        self._numbers: dict[Hashable, int] = {}
        self._events: dict[int, tuple[Event, bytes]] = {}
        self._tried: set[int] = set()

    @property
    def is_for_here(self) -> bool:
        """Whether every reader is in this process, as far as is known."""
        return False not in self._here

    def tensor(self, tensor: torch.Tensor) -> int:
        """The number of the record of a tensor on a device."""
        view = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        return self._once((*view, tensor.is_conj(), tensor.is_neg()), tensor, tensor)

    def source(self, source: DeviceSource) -> int | None:
        """The number of the record of a handle's tensor; None if it is not on a device."""
        if all(self._here):
            return self.own(source)
        tensor = source.resolve_tensor()
        if not self._books.backend.owns(tensor):
            return None
        return self._once(id(source), tensor, source)

    def own(self, value: object) -> int:
        """The number of the record of something that only readers in this process can have."""
        number = self._numbers.get(id(value))
        if number is None:
            books = self._books
            device = None
            if isinstance(value, torch.Tensor) and books.backend.owns(value):
                device = books.backend.device_of(value)
            loan = books.lend(value, device)
            record = _NOTHING._replace(mode=OBJECT, process=books.token, number=loan.number)
            number = self._numbers[id(value)] = self._add_record(record, loan)
        return number

    def end(self) -> None:
        """Note when all that is lent is there: no more work for this message is queued."""
        events: dict[int, Event] = {}
        for loan in self._records.values():
            if loan is not None and loan.device is not None:
                device = loan.device
                if device not in events:
                    shared, _ = self._events.get(device, (None, b""))
                    events[device] = self._books.backend.record(device, shared)
                loan.event = events[device]

    def place(self, slots: Sequence[Slot], pool: Pool) -> int:
        """Have what is lent last as long as the slots of the records.

        Args:
            slots: Of all handles, in order.
            pool: Which they are from.

        Returns:
            The bytes of the records themselves.
        """
        for number, loan in self._records.items():
            if loan is not None:
                slots[number].guest = loan
                self._books.keeper.watch(loan, pool)
        return RECORD_BYTES * len(self._records)

    def _once(self, key: Hashable, tensor: torch.Tensor, value: object) -> int:
        """Lend a tensor on a device, once however often the message has it.

        Args:
            key: Tells it apart.
            tensor: The tensor.
            value: What a reader in this process gets.
        """
        if all(self._here):
            return self.own(value)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._lend(tensor, value)
        return number

    def _lend(self, tensor: torch.Tensor, value: object) -> int:
        books = self._books
        device = books.backend.device_of(tensor)
        may_be_here = any(is_here is not False for is_here in self._here)
        loan = books.lend(value if may_be_here else None, device)
        record = _NOTHING._replace(
            device=device % MAX_DEVICES,
            process=books.token,
            number=loan.number,
            nbytes=tensor.nbytes,
            name=books.backend.name_of(device),
        )
        peers = zip(self._peers, self._here, strict=True)
        opens = [peer.opens(device) for peer, is_here in peers if not is_here]
        if tensor.nbytes and all(opens):
            try:
                return self._add_record(self._share(record, loan, tensor), loan)
            except HandoffError:
                opens = []  # not memory that can be shared, whoever the readers are
        if tensor.nbytes and None in opens and device not in self._tried:
            self._tried.add(device)
            record = self._try(record, loan)
        if not may_be_here:
            loan.device = None  # there is nothing to wait for
        number = self._add_record(record, loan if loan.kept or may_be_here else None)
        if tensor.nbytes:
            copied = books.backend.to_host(tensor)
            self._handles.append(_plan(copied.data_ptr(), copied.nbytes, copied))
        return number

    def _share(self, record: Record, loan: Loan, tensor: torch.Tensor) -> Record:
        """The record of a tensor that its readers will open.

        Raises:
            HandoffError: They cannot, because of the memory that it is in.
        """
        backend, flat = self._books.backend, tensor.detach()
        # Only the process that memory is from can share it.
        if not is_plain(tensor) or self._books.keeper.is_borrowed(tensor):
            flat = backend.copy(tensor)
        memory, offset = backend.export(flat)
        device = backend.device_of(flat)
        if device not in self._events:
            self._events[device] = backend.new_event(device)
        loan.kept.append(flat)
        loan.is_shared = True
        self.shared_bytes += flat.nbytes
        event = self._events[device][1]
        return record._replace(mode=SHARED, offset=offset, memory=memory, event=event)

    def _try(self, record: Record, loan: Loan) -> Record:
        """The record with something that its readers try to open."""
        content = secrets.token_bytes(PATTERN_BYTES - 1) + b"\1"  # never zeros alone
        backend = self._books.backend
        try:
            tensor, event, handle = backend.new_pattern(record.device, content)
            memory, offset = backend.export(tensor)
        except HandoffError:
            return record
        loan.kept += [tensor, event]
        return record._replace(offset=offset, memory=memory, event=handle, pattern=content)

    def _add_record(self, record: Record, loan: Loan | None) -> int:
        content = np.frombuffer(pack_record(record), np.uint8)
        number = len(self._handles)
        self._handles.append(_plan(content.ctypes.data, content.nbytes, content))
        self._records[number] = loan
        return number


def _plan(address: int, nbytes: int, owner: torch.Tensor | np.ndarray) -> FramePlan:
    plan = FramePlan()
    plan.nbytes = nbytes
    plan.pieces.append((0, address, nbytes, owner))
    return plan
