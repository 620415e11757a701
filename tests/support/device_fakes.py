"""Devices that are files: everything of a device tensor's way but CUDA itself.

The memory of a device is a file that any process can map, and so are its events: one byte each,
1 once the device is past it. A device does nothing but what a test says it does.
"""

import itertools
import mmap
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from handoff_children import TIMEOUT_S, Puppet, _outcome, request, tensor_of

import omniwire as ow
from omniwire.contracts.tensors import logical_bytes
from omniwire.serialization.buffer_writer import BufferWriter
from omniwire.serialization.handoff import device_books
from omniwire.serialization.handoff.device import Exported, Opened
from omniwire.serialization.handoff.lending import LendingWriter

MEMORY_BYTES = 2**20
START = 4096  # no tensor is at the beginning of its allocation


class Bytes(np.ndarray[Any, Any]):
    """Memory of a device; every view keeps what is attached."""

    keeper: object = None


class Event:
    """A byte of a file."""

    def __init__(self, path: str, number: int) -> None:
        self.path = path
        self.number = number

    @property
    def handle(self) -> bytes:
        return f"{self.number}:{self.path}".encode()

    @property
    def is_over(self) -> bool:
        return Path(self.path).read_bytes()[self.number] == 1

    def happen(self) -> None:
        with Path(self.path).open("r+b") as file:
            file.seek(self.number)
            file.write(b"\1")


class FakeDevices:
    """The devices as one process sees them; a `DeviceBackend`.

    Attributes:
        folder: Where the files are.
        is_busy: Whether what is queued now is still to be done when `finish` is called.
        current: The current stream.
        broken: What does not work: "export", "open", "events"; or "zeros": what is opened has
            other content.
        log: What was called.
        marked: The streams after whose work memory is given back, in order.
        live: How many tensors of this process there are.

    Args:
        folder: Where the files are, with a short path.
        names: The devices by number; by the same name others know the same device.
    """

    def __init__(self, folder: str, names: Iterable[str] = ("gpu-a", "gpu-b")) -> None:
        self.folder = folder
        self.is_busy = False
        self.current = "main"
        self.broken: set[str] = set()
        self.log: list[str] = []
        self.marked: list[set[str]] = []
        self.live = 0
        self._names = [name.encode() for name in names]
        self._paths = [f"{folder}/{os.getpid()}-{n}" for n in range(len(self._names))]
        self._events_path = f"{folder}/{os.getpid()}-events"
        Path(self._events_path).write_bytes(bytes(4096))
        for path in self._paths:
            Path(path).write_bytes(bytes(MEMORY_BYTES))
        self._memory = [_mapped(path) for path in self._paths]
        self._ends = [START for _ in self._paths]
        self._opened: dict[int, mmap.mmap] = {}
        self._num_events = itertools.count()
        self._pending: list[Event] = []

    # What tests do.

    def empty(self, num_bytes: int, device: int = 0) -> torch.Tensor:
        """New memory of a device, as bytes."""
        start = self._ends[device]
        self._ends[device] = -(-(start + num_bytes) // 256) * 256
        array = Bytes((num_bytes,), np.uint8, self._memory[device], start)
        self.live += 1
        weakref.finalize(array, self._free).atexit = False
        return torch.from_numpy(array)

    def tensor(self, values: torch.Tensor, device: int = 0) -> torch.Tensor:
        """A tensor with these values on a device, row-major."""
        flat = self.empty(values.nbytes, device)
        flat.copy_(logical_bytes(values))
        return flat.view(values.dtype).view(values.shape)

    def finish(self) -> None:
        """Do all that is queued."""
        self.is_busy = False
        for event in self._pending:
            event.happen()
        self._pending.clear()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait for what the keeper does."""
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.002)

    @property
    def num_open(self) -> int:
        """How many allocations of others are open."""
        return len(self._opened)

    def remove_files(self) -> None:
        """Let the devices be no more, for others."""
        for path in (*self._paths, self._events_path):
            Path(path).unlink(missing_ok=True)

    def _free(self) -> None:
        self.live -= 1

    # What the handoff does.

    def owns(self, tensor: torch.Tensor) -> bool:
        return self._place(tensor) is not None

    def device_of(self, tensor: torch.Tensor) -> int:
        place = self._place(tensor)
        assert place is not None
        return place[0]

    def name_of(self, device: int) -> bytes:
        return self._names[device]

    def find(self, name: bytes) -> int | None:
        return self._names.index(name) if name in self._names else None

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.tensor(tensor, self.device_of(tensor))

    def export(self, tensor: torch.Tensor) -> Exported:
        self.log.append("export")
        place = self._place(tensor)
        if "export" in self.broken or place is None or place[2]:
            raise ow.HandoffError("expected memory of this process that can be shared")
        return Exported(self._paths[place[0]].encode(), place[1])

    def open(self, device: int, memory: bytes) -> Opened:
        self.log.append("open")
        path = memory.rstrip(b"\0").decode()
        if "open" in self.broken or not Path(path).exists():
            raise ow.HandoffError("expected memory that can be opened")
        mapping = mmap.mmap(-1, MEMORY_BYTES) if "zeros" in self.broken else _mapped(path)
        opened = Opened(device, _address(mapping), MEMORY_BYTES)
        self._opened[opened.address] = mapping
        return opened

    def close(self, opened: Opened) -> None:
        self.log.append("close")
        self._opened.pop(opened.address).close()  # fails if there are views of it

    def view(self, opened: Opened, offset: int, nbytes: int, keeper: object) -> torch.Tensor:
        array = Bytes((nbytes,), np.uint8, self._opened[opened.address], offset)
        array.keeper = keeper
        return torch.from_numpy(array)

    def new_event(self, device: int) -> tuple[Event, bytes]:
        if "events" in self.broken:
            raise ow.HandoffError("expected an event that can be shared")
        event = Event(self._events_path, next(self._num_events))
        return event, event.handle

    def open_event(self, device: int, handle: bytes) -> Event:
        self.log.append("open event")
        number, _, path = handle.rstrip(b"\0").decode().partition(":")
        if not Path(path).exists():
            raise ow.HandoffError("expected an event that is still there")
        return Event(path, int(number))

    def record(self, device: int, event: Event | None = None) -> Event:
        if event is None:
            event = Event(self._events_path, next(self._num_events))
        if self.is_busy:
            self._pending.append(event)
        else:
            event.happen()
        return event

    def wait(self, device: int, event: Event) -> None:
        self.log.append(f"{self.current} waits")

    def stream(self, device: int) -> str:
        return self.current

    def mark(self, device: int, streams: Iterable[str]) -> list[Event]:
        self.marked.append({*streams, self.current})
        return [self.record(device)]

    def synchronize(self, events: Iterable[Event]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not all(event.is_over for event in events):
            assert time.monotonic() < deadline
            time.sleep(0.002)

    def retain(self, tensor: torch.Tensor) -> None:
        self.log.append("retain")

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        self.log.append("to host")
        return logical_bytes(tensor).clone()

    def to_device(self, flat: torch.Tensor, device: int) -> torch.Tensor:
        self.log.append(f"to {device}")
        return self.empty(flat.nbytes, device).copy_(flat)

    def new_pattern(self, device: int, content: bytes) -> tuple[torch.Tensor, Event, bytes]:
        event, handle = self.new_event(device)
        tensor = self.tensor(torch.tensor(list(content), dtype=torch.uint8), device)
        event.happen()
        return tensor, event, handle

    def read(self, opened: Opened, offset: int, nbytes: int, event: Event) -> bytes:
        assert event.is_over
        return bytes(self._opened[opened.address][offset : offset + nbytes])

    def _place(self, tensor: torch.Tensor) -> tuple[int, int, bool] | None:
        """The device of a tensor, its offset in the allocation, and whether that is another's."""
        for number, memory in enumerate(self._memory):
            offset = tensor.data_ptr() - _address(memory)
            if 0 <= offset < MEMORY_BYTES:
                return number, offset, False
        for address in list(self._opened):
            offset = tensor.data_ptr() - address
            if 0 <= offset < MEMORY_BYTES:
                return 0, offset, True
        return None


def _mapped(path: str) -> mmap.mmap:
    with Path(path).open("r+b") as file:
        return mmap.mmap(file.fileno(), MEMORY_BYTES)


def _address(memory: mmap.mmap) -> int:
    address: int = np.frombuffer(memory, np.uint8).ctypes.data
    return address


@contextmanager
def installed(devices: FakeDevices) -> Iterator[FakeDevices]:
    """Let these be the devices of this process.

    Tensors on them are CPU tensors to torch, so the encoder has to be told which they are.
    """

    def tensor(self: LendingWriter, tensor: torch.Tensor) -> Any:
        if devices.owns(tensor):
            return self.other_tensor(tensor)
        return BufferWriter.tensor(self, tensor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_books, "CudaBackend", lambda: devices)
        patch.setattr(device_books, "_LOOK_AGAIN_S", 0.05)
        patch.setattr(LendingWriter, "tensor", tensor, raising=False)
        device_books._books.cache_clear()
        yield devices
        device_books._books.cache_clear()


def wait_for_keeper() -> None:
    """Wait until nothing is lent or borrowed, unless a test that failed still has it."""
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        if not any(thread.name == "omniwire-keeper" for thread in threading.enumerate()):
            return
        time.sleep(0.01)


class DevicePuppet(Puppet):
    """A process with devices."""

    def __init__(self, channel: ow.Channel, devices: FakeDevices) -> None:
        super().__init__(channel)
        self.devices = devices

    def set(self, **values: Any) -> None:
        """Set attributes of the devices."""
        for name, value in values.items():
            setattr(self.devices, name, value)

    def get(self, name: str) -> Any:
        """An attribute of the devices."""
        return getattr(self.devices, name)

    def finish(self) -> None:
        """Let the devices do what is queued."""
        self.devices.finish()

    def where(self) -> list[str]:
        """What the memory of each tensor held is."""
        return [self._where(tensor_of(each)) for each in self.held]

    def _where(self, value: torch.Tensor | ow.TensorHandle) -> str:
        tensor = value.resolve() if isinstance(value, ow.TensorHandle) else value
        place = self.devices._place(tensor)
        if place is None:
            return "host"
        return "borrowed" if place[2] else f"own {place[0]}"

    def send_device(self, num_bytes: int) -> None:
        """Send a tensor of a device of this process."""
        self.channel.send(request(self.devices.empty(num_bytes).fill_(7)), TIMEOUT_S)

    def share_device(self, num_bytes: int) -> None:
        """Send a handle for such a tensor."""
        handle = self.channel.share(self.devices.empty(num_bytes).fill_(7))
        self.channel.send(request(x=handle), TIMEOUT_S)

    def remove_files(self) -> None:
        """Let the devices be no more, for others."""
        self.devices.remove_files()

    def receive_fields(self, names: list[str]) -> dict[str, torch.Tensor]:
        """Receive a request; copies of some of its values."""
        received = self.channel.recv(TIMEOUT_S)
        return {name: tensor_of(received, name).clone() for name in names}

    def fork_and_drop(self) -> None:
        """Have a forked child drop all that is held, and end."""
        pid = os.fork()
        if not pid:
            self.held.clear()
            os._exit(0)
        os.waitpid(pid, 0)

    def narrow(self) -> None:
        """Hold only a part of the tensor held."""
        self.held[:] = [request(tensor_of(self.held[0])[3, 7:9])]

    def resolve_twice(self) -> float:
        """Resolve the handle held twice, to the same memory."""
        handle = tensor_of(self.held[0])
        first, second = handle.resolve(), handle.resolve()
        assert first.data_ptr() == second.data_ptr()
        return float(second.sum().item())


def run_device_puppet(
    control: Connection, end: ow.Channel, folder: str, names: tuple[str, ...]
) -> None:
    """As `run_puppet`, in a process with devices."""
    with installed(FakeDevices(folder, names)) as devices:
        puppet = DevicePuppet(end, devices)
        control.send((True, os.getpid()))
        while True:
            try:
                name, args, kwargs = control.recv()
            except EOFError:
                return
            control.send(_outcome(getattr(puppet, name), *args, **kwargs))
