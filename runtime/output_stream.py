"""`OutputStream`: one request's outputs for the client that iterates over them."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Self

from omniwire.contracts.outputs import RequestOutput
from omniwire.runtime.output_state import OmniRequestState


class Reading:
    """What the processor and the client of one streamed request tell each other.

    It does not know the iterator, so that dropping the iterator is enough to end it.
    """

    def __init__(self) -> None:
        self.end: float | None = None  # the deadline, in the time of `time.monotonic`
        self.stopped = False
        self.read = asyncio.Event()
        self.read.set()
        self._news = asyncio.Event()

    def wake(self) -> None:
        """There is something to read."""
        self.read.clear()
        self._news.set()

    def stop(self) -> None:
        """There will be nothing to read."""
        self.stopped = True
        self.read.set()
        self._news.set()

    def done(self) -> None:
        """Everything was read."""
        self._news.clear()
        self.read.set()

    async def news(self) -> None:
        """Wait until there is something to read, or will be nothing."""
        await self._news.wait()


class OutputStream(AsyncIterator[RequestOutput]):
    """The outputs of one request as they come; see `MultimodalOutputProcessor.stream`.

    Args:
        state: The request.
        reading: What the processor sets when there is something to read.
        expire: Ends the request; called at its deadline.
        abandon: Aborts the request if it still runs; called when nobody reads any more.
    """

    def __init__(
        self,
        state: OmniRequestState,
        reading: Reading,
        expire: Callable[[OmniRequestState], None],
        abandon: Callable[[OmniRequestState], None],
    ) -> None:
        self._state: OmniRequestState | None = state
        self._reading = reading
        self._expire = expire
        self._abandon = abandon
        self._timer: asyncio.TimerHandle | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RequestOutput:
        state, reading = self._state, self._reading
        if state is None:
            raise StopAsyncIteration
        if self._timer is None and reading.end is not None:
            delay = max(0.0, reading.end - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay, self._expire, state)
        try:
            await reading.news()
            if state.copies.unfinished and not reading.stopped:
                # Another thread waits for the device; this one has other clients.
                await asyncio.to_thread(state.copies.wait)
        except asyncio.CancelledError:
            self._close()
            raise
        if reading.stopped:
            self._close()
            raise StopAsyncIteration
        output = state.emit()
        reading.done()
        if output.finished:
            self._close()
        return output

    async def aclose(self) -> None:
        """Stop reading; aborts the request if it still runs."""
        self._close()

    def _close(self) -> None:
        state, self._state = self._state, None
        if self._timer is not None:
            self._timer.cancel()
        if state is not None:
            self._reading.done()
            self._abandon(state)

    def __del__(self) -> None:
        self._close()
