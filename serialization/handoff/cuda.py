"""`CudaBackend`: CUDA devices, for the handoff."""

import contextlib
import functools
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from omniwire.contracts.errors import HandoffError
from omniwire.contracts.tensors import contiguous, logical_bytes
from omniwire.serialization.handoff.cuda_driver import CudaDriver
from omniwire.serialization.handoff.device import Event, Exported, Opened, Stream


class CudaBackend:
    """The CUDA devices that torch sees in this process. See `DeviceBackend`.

    Nothing touches CUDA before a CUDA tensor is sent, or one arrives.
    """

    def __init__(self) -> None:
        self._names: dict[int, bytes] = {}
        self._devices: dict[bytes, int] | None = None
        self._lock = threading.Lock()

    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether it is a CUDA tensor."""
        return tensor.is_cuda

    def device_of(self, tensor: torch.Tensor) -> int:
        """Its CUDA ordinal."""
        index = tensor.device.index
        assert index is not None
        return index

    def name_of(self, device: int) -> bytes:
        """Its UUID, whatever CUDA_VISIBLE_DEVICES makes of its ordinal."""
        with self._lock:
            if device not in self._names:
                self._names[device] = _name(device)
            return self._names[device]

    def find(self, name: bytes) -> int | None:
        """The ordinal of a UUID; None as well where CUDA does not start, in a forked child say."""
        with self._lock:
            if self._devices is None:
                self._devices = {_name(device): device for device in _usable_devices()}
            return self._devices.get(name)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Queued on the current stream."""
        flat = contiguous(tensor)
        return flat.clone() if flat.data_ptr() == tensor.data_ptr() else flat

    @functools.cached_property
    def _driver(self) -> CudaDriver:
        return CudaDriver()

    def export(self, tensor: torch.Tensor) -> Exported:
        """A CUDA IPC handle of the allocation that the tensor is in."""
        return Exported(*self._driver.export(self.device_of(tensor), tensor.data_ptr()))

    def open(self, device: int, memory: bytes) -> Opened:
        """Open a CUDA IPC handle; the driver counts how often."""
        return Opened(device, *self._driver.open(device, memory))

    def close(self, opened: Opened) -> None:
        """Close a CUDA IPC handle."""
        self._driver.close(opened.device, opened.address)

    def view(self, opened: Opened, offset: int, nbytes: int, keeper: object) -> torch.Tensor:
        """A tensor whose storage keeps an object: torch's way to take over foreign memory."""
        memory = _Memory(opened.address + offset, nbytes, keeper)
        return torch.as_tensor(memory, device=torch.device("cuda", opened.device))

    def new_event(self, device: int) -> tuple[Event, bytes]:
        """An interprocess event."""
        with _named("an event that can be shared"), torch.cuda.device(device):
            event = torch.cuda.Event(interprocess=True)  # type: ignore[no-untyped-call]  # torch leaves it bare
            return event, event.ipc_handle()  # type: ignore[no-untyped-call]  # as above

    def open_event(self, device: int, handle: bytes) -> Event:
        """An event from its IPC handle."""
        with _named("an event of the sender"):
            return torch.cuda.Event.from_ipc_handle(torch.device("cuda", device), handle)  # type: ignore[no-untyped-call]  # torch leaves it bare

    def record(self, device: int, event: Event | None = None) -> Event:
        """Record on torch's current stream."""
        if event is None:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it bare
        event.record(torch.cuda.current_stream(device))
        return event

    def wait(self, device: int, event: Event) -> None:
        """Have torch's current stream wait."""
        event.wait(torch.cuda.current_stream(device))

    def stream(self, device: int) -> Stream:
        """Torch's current stream."""
        return torch.cuda.current_stream(device)

    def mark(self, device: int, streams: Iterable[Stream]) -> list[Event]:
        """Events that a thread can wait for without keeping a core busy."""
        events = []
        for stream in {*streams, torch.cuda.current_stream(device)}:
            event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # torch leaves it bare
            event.record(stream)
            events.append(event)
        return events

    def synchronize(self, events: Iterable[Event]) -> None:
        """Wait, without the interpreter's lock."""
        # Else it would spoil a graph that another thread is capturing. On ROCm there is no such
        # driver, and nothing is shared, but copies end here too.
        with contextlib.suppress(HandoffError):
            self._driver.relax_captures()
        for event in events:
            event.synchronize()

    def retain(self, tensor: torch.Tensor) -> None:
        """As `record_stream`: torch's allocator looks after the rest."""
        tensor.record_stream(torch.cuda.current_stream(tensor.device))

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in pinned memory."""
        flat = logical_bytes(tensor)
        copied = torch.empty(flat.shape, dtype=torch.uint8, pin_memory=True)
        copied.copy_(flat, non_blocking=True)
        for event in self.mark(self.device_of(tensor), ()):
            event.synchronize()
        return copied

    def to_device(self, flat: torch.Tensor, device: int) -> torch.Tensor:
        """A copy on the device, queued on the current stream as far as CUDA can."""
        return flat.to(torch.device("cuda", device), non_blocking=True)

    def new_pattern(self, device: int, content: bytes) -> tuple[torch.Tensor, Event, bytes]:
        """Made on a stream of its own: whatever else is queued would only delay the reader."""
        event, handle = self.new_event(device)
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it bare
        with torch.cuda.stream(stream):
            tensor = torch.frombuffer(bytearray(content), dtype=torch.uint8).cuda(device)
            event.record(stream)
        return tensor, event, handle

    def read(self, opened: Opened, offset: int, nbytes: int, event: Event) -> bytes:
        """Read on a stream of its own."""
        stream = torch.cuda.Stream(opened.device)  # type: ignore[no-untyped-call]  # torch leaves it bare
        with torch.cuda.stream(stream):
            event.wait(stream)
            return self.view(opened, offset, nbytes, None).cpu().numpy().tobytes()


class _Memory:
    """Bytes of a device, as the CUDA array interface has them."""

    def __init__(self, address: int, nbytes: int, keeper: object) -> None:
        self.keeper = keeper
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),  # torch takes nothing that is marked read-only
            "strides": None,
            "version": 3,
        }


def _name(device: int) -> bytes:
    return str(torch.cuda.get_device_properties(device).uuid).encode()[:64]


def _usable_devices() -> range:
    if not torch.cuda.is_available():
        return range(0)
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]  # torch leaves it bare
    except RuntimeError:
        return range(0)
    return range(torch.cuda.device_count())


@contextlib.contextmanager
def _named(expected: str) -> Iterator[None]:
    """Make an error of CUDA one of the handoff."""
    try:
        yield
    except RuntimeError as error:
        got = str(error).partition("\n")[0]
        raise HandoffError(f"expected {expected}, got {got}") from None
