"""Sockets with a path: connecting to one, and listening at one."""

import contextlib
import errno
import fcntl
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from omniwire.contracts.errors import HandoffError, HandoffTimeout

_RETRY_S: Final = 0.01
_BACKLOG: Final = 128
_MAX_PATH_BYTES: Final = 107  # sun_path, with its last zero


def connect(path: str, deadline: float | None) -> socket.socket:
    """Connect to a path, waiting until somebody listens there.

    Args:
        path: Of the socket.
        deadline: When to give up, as `time.monotonic` counts; None for never.

    Raises:
        HandoffTimeout: Nobody listens there in time.
        HandoffError: The path is no socket, or not for this user.
    """
    _check_path(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.setblocking(False)
    try:
        while True:
            try:
                sock.connect(path)
            except (FileNotFoundError, ConnectionRefusedError, BlockingIOError) as error:
                _is_socket(path)
                if deadline is not None and time.monotonic() >= deadline:
                    raise HandoffTimeout(
                        f"expected a server at {path} in time, got {error.strerror}"
                    ) from None
                time.sleep(_RETRY_S)
            except OSError as error:
                raise HandoffError(f"expected a server at {path}, got {error.strerror}") from None
            else:
                return sock
    except BaseException:
        sock.close()
        raise


def listen(path: str) -> socket.socket:
    """Listen at a path, for this user only; a socket that a dead server left there is replaced.

    Raises:
        HandoffError: The path is in use, or cannot be a socket.
    """
    _check_path(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.setblocking(False)
        os.fchmod(sock.fileno(), stat.S_IRUSR | stat.S_IWUSR)  # before it has a name
        with _alone_in(Path(path).absolute().parent):
            _remove_stale(path)
            sock.bind(path)
            sock.listen(_BACKLOG)
    except BaseException as error:
        sock.close()
        if isinstance(error, OSError) and not isinstance(error, HandoffError):
            expected = f"expected a path that a server can listen at, got {path}"
            raise HandoffError(f"{expected}: {error.strerror}") from None
        raise
    return sock


def identity(path: str) -> tuple[int, int]:
    """The device and inode of what lies at a path."""
    status = Path(path).lstat()
    return status.st_dev, status.st_ino


def remove(path: str, known: tuple[int, int]) -> None:
    """Remove the socket at a path, if it still has this identity."""
    with contextlib.suppress(FileNotFoundError), _alone_in(Path(path).absolute().parent):
        if identity(path) == known:
            Path(path).unlink()


def _is_socket(path: str) -> bool:
    """Whether there is a socket at a path, as opposed to nothing.

    Raises:
        HandoffError: There is something else.
    """
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISSOCK(mode):
        raise HandoffError(f"expected a path without a file, or with a socket, got {path}")
    return True


def _check_path(path: str) -> None:
    try:
        size = len(os.fsencode(path))
    except UnicodeEncodeError:
        raise HandoffError(f"expected a path that the system can name, got {path!a}") from None
    if not 0 < size <= _MAX_PATH_BYTES or "\0" in path:
        expected = f"expected a path of 1 to {_MAX_PATH_BYTES} bytes without zeros"
        raise HandoffError(f"{expected}, got {size}")


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep other servers from replacing sockets in a folder, without leaving a file."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_stale(path: str) -> None:
    """Remove a socket that nobody listens at.

    Raises:
        HandoffError: Somebody does, or the path is something else.
    """
    if not _is_socket(path):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink()
            return
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EPROTOTYPE):
                raise
    raise HandoffError(f"expected a path that no server listens at, got {path}")
