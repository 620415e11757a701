"""`DeviceBackend`: what the handoff needs of devices whose memory other processes can open.

Also the record that stands for a tensor of a device, or of this process, in a message: plain
data of a fixed size, in a slot of its own. Whoever holds the slot holds the tensor.
"""

import struct
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, Protocol

import torch

from omniwire.contracts.errors import DecodeError
from omniwire.serialization.handoff.ledger import MAX_DEVICES

Event = Any
"""A point in a device's work, as its backend has it."""

Stream = Any
"""A queue of a device's work, as its backend has it."""

OBJECT: Final = 0
"""The tensor itself, for a reader in the process that sent it."""

SHARED: Final = 1
"""Memory of a device that the reader opens."""

COPIED: Final = 2
"""A copy in host memory, at the next place of the message; none for a tensor without bytes."""

HANDLE_BYTES: Final = 64
"""Room for a handle of memory or of an event."""

PATTERN_BYTES: Final = 64
"""Size of what a reader is tried with before it is lent anything."""

_RECORD: Final = struct.Struct(f"=BB6x16sQQQ64s{HANDLE_BYTES}s{HANDLE_BYTES}s{PATTERN_BYTES}s")
_MODES: Final = (OBJECT, SHARED, COPIED)

RECORD_BYTES: Final = _RECORD.size


class Exported(NamedTuple):
    """Where memory is, for other processes.

    Attributes:
        memory: A handle of the allocation that it is part of, at most `HANDLE_BYTES` long.
        offset: Of its first byte in the allocation.
    """

    memory: bytes
    offset: int


class Opened(NamedTuple):
    """An allocation of another process, as it is mapped in this one.

    Attributes:
        device: Number of the device it is on.
        address: Of its first byte.
        size: Its bytes.
    """

    device: int
    address: int
    size: int


class Record(NamedTuple):
    """A tensor in a message that is not in its frames.

    Attributes:
        mode: `OBJECT`, `SHARED` or `COPIED`.
        device: Number of the device in the process that sent it; 0 if it is on none.
        process: Token of that process.
        number: Of the tensor among all that the process has lent.
        offset: Of its first byte in the allocation.
        nbytes: Its bytes.
        name: By which every process knows the device; empty if it is on none.
        memory: Handle of the allocation. Of a copied tensor: that of the pattern.
        event: Handle of the event after which the bytes are there.
        pattern: What the reader should find there, if the sender does not yet know whether it
            can open memory of this device; else zeros.
    """

    mode: int
    device: int
    process: bytes
    number: int
    offset: int
    nbytes: int
    name: bytes
    memory: bytes
    event: bytes
    pattern: bytes

    @property
    def is_trial(self) -> bool:
        """Whether the reader should look for the pattern and report what it found."""
        return self.mode == COPIED and any(self.pattern)


def pack_record(record: Record) -> bytes:
    """A record as the content of a slot."""
    return _RECORD.pack(*record)


def unpack_record(content: bytes) -> Record:
    """Read a record.

    Raises:
        DecodeError: It is none.
    """
    if len(content) != RECORD_BYTES:
        raise DecodeError(
            f"expected a record of {RECORD_BYTES} bytes, got {len(content)}", "buffer"
        )
    record = Record(*_RECORD.unpack(content))
    if record.mode not in _MODES or record.device >= MAX_DEVICES:
        got = f"mode {record.mode} on device {record.device}"
        raise DecodeError(f"expected the record of a tensor, got {got}", "buffer")
    return record._replace(name=record.name.rstrip(b"\0"))


class DeviceBackend(Protocol):
    """Devices of one kind. Every method may be called from any thread.

    None of them makes the host wait for a device, but for `to_host`, `read` and `synchronize`.
    What cannot be done is a `HandoffError`; a device that fails is a `RuntimeError`, as in torch.
    """

    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is in the memory of such a device."""
        ...

    def device_of(self, tensor: torch.Tensor) -> int:
        """The number of its device in this process."""
        ...

    def name_of(self, device: int) -> bytes:
        """The name by which every process knows a device, at most 64 bytes."""
        ...

    def find(self, name: bytes) -> int | None:
        """The number of a device in this process; None if it cannot be used here."""
        ...

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """The values of a tensor in new memory of its device, row-major; of some data type."""
        ...

    def export(self, tensor: torch.Tensor) -> Exported:
        """Let other processes open the memory of a contiguous tensor of this process.

        Raises:
            HandoffError: Memory of its kind cannot be shared.
        """
        ...

    def open(self, device: int, memory: bytes) -> Opened:
        """Map an allocation of another process, on the device that it is on.

        Raises:
            HandoffError: It cannot be opened here, or is there no more.
        """
        ...

    def close(self, opened: Opened) -> None:
        """Undo `open`; no work on the memory may be left to do."""
        ...

    def view(self, opened: Opened, offset: int, nbytes: int, keeper: object) -> torch.Tensor:
        """Bytes of an opened allocation, as a tensor whose last view drops `keeper`."""
        ...

    def new_event(self, device: int) -> tuple[Event, bytes]:
        """An event to be recorded later, and a handle by which others can open it.

        Raises:
            HandoffError: Events cannot be shared.
        """
        ...

    def open_event(self, device: int, handle: bytes) -> Event:
        """An event of another process.

        Raises:
            HandoffError: It is there no more.
        """
        ...

    def record(self, device: int, event: Event | None = None) -> Event:
        """Record an event, by default a new one of this process, on the current stream."""
        ...

    def wait(self, device: int, event: Event) -> None:
        """Have later work on the current stream start after an event."""
        ...

    def stream(self, device: int) -> Stream:
        """The current stream; hashable."""
        ...

    def mark(self, device: int, streams: Iterable[Stream]) -> list[Event]:
        """Record an event on each of these streams, and on the current one."""
        ...

    def synchronize(self, events: Iterable[Event]) -> None:
        """Wait until the device is past these events, on a thread that does nothing else."""
        ...

    def retain(self, tensor: torch.Tensor) -> None:
        """Keep the memory of a tensor of this process until work queued by now is done with it."""
        ...

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """The values of a tensor in host memory, row-major and complete; as 1-D uint8."""
        ...

    def to_device(self, flat: torch.Tensor, device: int) -> torch.Tensor:
        """Bytes on a device. They may be read from host memory until an event recorded after."""
        ...

    def new_pattern(self, device: int, content: bytes) -> tuple[torch.Tensor, Event, bytes]:
        """Bytes on a device, and the event after which they are there, with its handle.

        They do not wait for work on the current stream.

        Raises:
            HandoffError: Events cannot be shared.
        """
        ...

    def read(self, opened: Opened, offset: int, nbytes: int, event: Event) -> bytes:
        """Bytes of an opened allocation, once an event has happened; work here goes on."""
        ...
