"""What child processes do on a CUDA device for their tests."""

import os
from multiprocessing.connection import Connection
from typing import Any

import torch
from handoff_children import TIMEOUT_S, Puppet, _outcome, request, tensor_of

import omniwire as ow
from omniwire.serialization.handoff.device_books import device_books

BUSY_CYCLES = 200_000_000  # about a tenth of a second


def keep_busy(cycles: int = BUSY_CYCLES) -> None:
    """Give the current stream something to do."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]  # torch leaves it bare


class GpuPuppet(Puppet):
    """A process that may have CUDA devices."""

    def __init__(self, channel: ow.Channel) -> None:
        super().__init__(channel)
        self._later: list[torch.Tensor] = []

    def where(self) -> list[str]:
        """Where each tensor held is, and whether in memory of the sender."""
        places = []
        for each in self.held:
            value = tensor_of(each)
            tensor = value.resolve() if isinstance(value, ow.TensorHandle) else value
            borrowed = tensor.is_cuda and device_books().keeper.is_borrowed(tensor)
            places.append(f"{tensor.device}{' borrowed' if borrowed else ''}")
        return places

    def receive_fields(self, names: list[str]) -> dict[str, torch.Tensor]:
        """Receive a request; copies of some of its values in host memory."""
        received = self.channel.recv(TIMEOUT_S)
        return {name: tensor_of(received, name).cpu().clone() for name in names}

    def receive_without_waiting(self) -> None:
        """Receive and hold a request; an error if anything makes the host wait."""
        torch.cuda.set_sync_debug_mode("error")
        try:
            self.receive()
        finally:
            torch.cuda.set_sync_debug_mode("default")

    def read_later(self, cycles: int) -> None:
        """Queue a copy of the tensor held behind other work, and drop the tensor."""
        torch.cuda.synchronize()
        keep_busy(cycles)
        self._later = [tensor_of(self.held[0]).clone()]
        self.held.clear()

    def what_was_read(self) -> list[float]:
        """The least and the largest value of that copy."""
        (copied,) = self._later
        return [copied.min().item(), copied.max().item()]

    def resolve_twice(self) -> float:
        """Resolve the handle held on two streams, to the same memory; the sum."""
        handle = tensor_of(self.held[0])
        first = handle.resolve()
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]  # torch leaves it bare
            second = handle.resolve()
            assert first.data_ptr() == second.data_ptr()
            return float(second.double().sum().item())

    def send_filled(self, shape: tuple[int, ...], value: float) -> None:
        """Send a tensor of a device of this process."""
        self.channel.send(request(torch.full(shape, value, device="cuda")), TIMEOUT_S)

    def share_filled(self, shape: tuple[int, ...], value: float) -> None:
        """Send a handle of such a tensor."""
        handle = self.channel.share(torch.full(shape, value, device="cuda"))
        self.channel.send(request(x=handle), TIMEOUT_S)

    def allocated(self) -> int:
        """Bytes of the device that tensors of this process take."""
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()


def run_gpu_puppet(control: Connection, end: ow.Channel) -> None:
    """As `run_puppet`."""
    puppet: Any = GpuPuppet(end)
    control.send((True, os.getpid()))
    while True:
        try:
            name, args, kwargs = control.recv()
        except EOFError:
            return
        control.send(_outcome(getattr(puppet, name), *args, **kwargs))
