"""`HostCopies`: a request's chunks in host memory of their own, without making a step wait."""

import torch


class HostCopies:
    """Copies chunks into host memory; lives as long as the request that they belong to.

    A copy from a CUDA device is queued, not awaited: on a stream of its own, into pinned
    memory, followed by an event. `wait` before anything reads what was copied. Elsewhere a
    copy is complete when `copy` returns, and there is nothing to wait for.
    """

    __slots__ = ("_last", "_side_streams")

    def __init__(self) -> None:
        self._side_streams: dict[torch.device, torch.cuda.Stream] = {}
        # By device, the event of the last copy: those before it on the same stream are complete
        # when it is.
        self._last: dict[torch.device, torch.cuda.Event] = {}

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor's values in memory of their own; what it was made from may be reused."""
        if tensor.requires_grad:
            tensor = tensor.detach()
        if tensor.is_cpu:
            return tensor.clone()
        return self._leave_device(tensor) if tensor.is_cuda else tensor.cpu()

    def _leave_device(self, tensor: torch.Tensor) -> torch.Tensor:
        device = tensor.device
        side_stream = self._side_streams.get(device)
        if side_stream is None:
            side_stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it bare
            self._side_streams[device] = side_stream
        # A copy on the device first, in the order of the producer's own work: its next step may
        # write to the tensor, and does not wait for the slower way to the host.
        source = tensor.resolve_conj().resolve_neg()
        source = source.clone(memory_format=torch.contiguous_format)
        copied = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
        side_stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side_stream):
            copied.copy_(source, non_blocking=True)
            event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # torch leaves it bare
            event.record(side_stream)
        source.record_stream(side_stream)
        self._last[device] = event
        return copied

    @property
    def unfinished(self) -> bool:
        """Whether a copy is still on its way."""
        if not self._last:
            return False
        return any(not event.query() for event in self._last.values())  # type: ignore[no-untyped-call]  # torch leaves it bare

    def wait(self) -> None:
        """Return when every copy made so far is complete; any thread may call it."""
        if self._last:
            for event in tuple(self._last.values()):
                event.synchronize()
