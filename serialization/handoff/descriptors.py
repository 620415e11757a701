"""File descriptors that are closed with the last thing that needs them."""

import contextlib
import errno
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

from omniwire.contracts.errors import HandoffError


class Descriptor:
    """A file descriptor; closed by `close`, or when this is garbage-collected.

    A forked child has its own copies and closes those.
    """

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def fileno(self) -> int:
        """The descriptor's number, -1 once closed."""
        return self.number

    def close(self) -> None:
        """Close it; again does nothing."""
        number, self.number = self.number, -1
        if number >= 0:
            os.close(number)

    def __del__(self, _close: Callable[[int], None] = os.close) -> None:
        if self.number >= 0:
            _close(self.number)


def new_event() -> Descriptor:
    """An eventfd at 0, which neither blocks nor is inherited by a new program."""
    return Descriptor(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))


def own_pidfd() -> Descriptor:
    """A descriptor that becomes readable when this process ends."""
    return Descriptor(os.pidfd_open(os.getpid()))


def is_pidfd(number: int) -> bool:
    """Whether a descriptor that a peer sent is what it should be."""
    return target(number).startswith(("anon_inode:[pidfd]", "pidfd:"))


def is_event(number: int) -> bool:
    """Whether a descriptor that a peer sent is what it should be."""
    return target(number) == "anon_inode:[eventfd]"


def target(number: int) -> str:
    """What kind of thing a descriptor stands for, as the system names it."""
    return str(Path(f"/proc/self/fd/{number}").readlink())


def signal_event(number: int) -> None:
    """Make an eventfd readable; it stays so if it already is."""
    try:
        os.eventfd_write(number, 1)
    except BlockingIOError:
        return


def clear_event(number: int) -> None:
    """Make an eventfd unreadable until it is signaled again."""
    try:
        os.eventfd_read(number)
    except BlockingIOError:
        return


@contextlib.contextmanager
def limit_named() -> Iterator[None]:
    """Make the error of a reached limit of open files one that says so."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        got = f"{error.strerror} (the limit of this process is {limit})"
        raise HandoffError(f"expected a free file descriptor, got {got}") from None
