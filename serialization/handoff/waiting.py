"""Operations that may have to wait, written once for threads and for asyncio.

An operation is a generator that yields what it waits for and returns its result. Whoever runs
it waits in its own way, and closes it when there is no time left or nobody wants the result.
"""

import asyncio
import math
import select
import time
from collections.abc import Callable, Generator, Iterable
from typing import Final, NamedTuple, Protocol, TypeVar

from omniwire.contracts.checks import raise_problems
from omniwire.contracts.describe import describe
from omniwire.contracts.errors import HandoffError, Problem
from omniwire.serialization.handoff.descriptors import limit_named

Result = TypeVar("Result")

Timeout = float | int | None
"""Seconds that an operation may wait in all, >= 0; None for as long as it takes."""

POLL_AGAIN_S: Final = 1.0
"""Nobody sleeps longer before looking again, in case a wake-up was missed."""


_FOREVER_S: Final = 1e9


class HasDescriptor(Protocol):
    """Anything that `select` can wait for."""

    def fileno(self) -> int:
        """The number of its descriptor."""
        ...


class Wait(NamedTuple):
    """What an operation waits for: any of these.

    Attributes:
        readable: Descriptors to become readable, or to be at their end.
        writable: Descriptors to become writable.
        hung_up: Sockets to lose their other end.
        at_most_s: Seconds after which to go on in any case.
        error: What to raise when there is no time left.
    """

    error: Callable[[], HandoffError]
    readable: Iterable[int | HasDescriptor] = ()
    writable: Iterable[int | HasDescriptor] = ()
    hung_up: Iterable[int | HasDescriptor] = ()
    at_most_s: float = POLL_AGAIN_S

    def events(self) -> list[tuple[int, int]]:
        """Every open descriptor with its events, which `poll` and `epoll` number alike."""
        masks: dict[int, int] = {}
        for descriptors, mask in (
            (self.readable, select.POLLIN),
            (self.writable, select.POLLOUT),
            (self.hung_up, select.POLLRDHUP),
        ):
            for descriptor in descriptors:
                number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
                if number >= 0:
                    masks[number] = masks.get(number, 0) | mask
        return list(masks.items())


Steps = Generator[Wait, None, Result]


def run(steps: Steps[Result], timeout: Timeout) -> Result:
    """Run an operation, blocking this thread while it waits.

    Args:
        steps: The operation.
        timeout: Seconds that it may wait in all; None for as long as it takes.

    Raises:
        HandoffError: As the operation, or of the kind that it names when there is no time left.
    """
    check_timeout(timeout)
    deadline = None
    try:
        wait = next(steps)
        deadline = deadline_of(timeout)
        while True:
            left = POLL_AGAIN_S if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise wait.error()
            poll = select.poll()
            for number, mask in wait.events():
                poll.register(number, mask)
            poll.poll(math.ceil(min(left, wait.at_most_s) * 1000))
            wait = next(steps)
    except StopIteration as stop:
        result: Result = stop.value
        return result
    finally:
        steps.close()


def check_timeout(timeout: Timeout) -> None:
    """Check a timeout.

    Raises:
        ContractError: It is no number of seconds >= 0.
    """
    if timeout is None:
        return
    path, got = ("timeout",), describe(timeout)
    problems = []
    if isinstance(timeout, bool) or not isinstance(timeout, float | int):
        problems.append(Problem(path, "type", "a number of seconds or None", got))
    elif not timeout >= 0:
        problems.append(Problem(path, "range", "a number of seconds >= 0", got))
    raise_problems("channel", problems)


def deadline_of(timeout: Timeout) -> float | None:
    """When there will be no time left, as `time.monotonic` counts."""
    return None if timeout is None or timeout > _FOREVER_S else time.monotonic() + timeout


async def run_async(steps: Steps[Result]) -> Result:
    """Run an operation, leaving the event loop to others while it waits.

    Canceling it is safe: either it has its result, or nothing has happened.
    """
    try:
        wait = next(steps)
        while True:
            await _any_event(wait)
            wait = next(steps)
    except StopIteration as stop:
        result: Result = stop.value
        return result
    finally:
        steps.close()


async def _any_event(wait: Wait) -> None:
    loop = asyncio.get_running_loop()
    happened = asyncio.Event()
    # A descriptor of its own: the loop knows each one once, but several tasks may wait for it.
    with limit_named(), select.epoll() as epoll:
        for number, mask in wait.events():
            epoll.register(number, mask)
        loop.add_reader(epoll.fileno(), happened.set)
        try:
            async with asyncio.timeout(wait.at_most_s):
                await happened.wait()
        except TimeoutError:
            return
        finally:
            loop.remove_reader(epoll.fileno())
