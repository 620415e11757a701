"""The socket of one end: packets with descriptors, without blocking."""

import array
import errno
import os
import select
import socket
from typing import Final, NamedTuple

from omniwire.contracts.errors import HandoffError
from omniwire.serialization.handoff.descriptors import Descriptor
from omniwire.serialization.handoff.packets import MAX_DESCRIPTORS, MAX_PACKET_BYTES

_DESCRIPTOR_BYTES: Final = array.array("i").itemsize
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(_DESCRIPTOR_BYTES * MAX_DESCRIPTORS)
_RECEIVE_BYTES: Final = MAX_PACKET_BYTES + 1
_FLAGS: Final = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL | socket.MSG_CMSG_CLOEXEC)
_CUT: Final = int(socket.MSG_CTRUNC | socket.MSG_TRUNC)


class Packet(NamedTuple):
    """A packet as it arrived. `is_cut`: not all of it did, or not all of its descriptors."""

    data: bytes
    descriptors: list[Descriptor]
    is_cut: bool


class Gone(Exception):  # not an error yet: the channel finds out which one it is
    """No process holds the other end of a socket any more."""


class Link:
    """One end of a socket pair or connection.

    Not thread-safe in each direction.

    Args:
        sock: A connected SOCK_SEQPACKET socket, owned from now on.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def fileno(self) -> int:
        """The socket's descriptor, -1 once closed."""
        return self._socket.fileno()

    def send(self, data: bytes, descriptors: tuple[int, ...] = ()) -> bool:
        """Send one packet; False if there is no room for it now.

        Raises:
            Gone: The other end is.
        """
        try:
            if descriptors:
                content = array.array("i", descriptors)
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, content)]
                self._socket.sendmsg([data], ancillary, _FLAGS)
            else:
                self._socket.send(data, _FLAGS)
        except BlockingIOError:
            return False
        except ConnectionError:
            raise Gone from None
        except OSError as error:
            raise _failure(error) from None
        return True

    def receive(self) -> Packet | None:
        """The next packet, or None if there is none yet.

        Raises:
            Gone: The other end is, and everything it sent has been received.
        """
        try:
            data, ancillary, flags, _ = self._socket.recvmsg(
                _RECEIVE_BYTES, _ANCILLARY_BYTES, _FLAGS
            )
        except BlockingIOError:
            return None
        except ConnectionResetError:
            # The other end left packets of ours unread. What it sent is still there.
            return self.receive()
        except OSError as error:
            raise _failure(error) from None
        if not data:
            raise Gone
        descriptors = []
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                whole = len(content) - len(content) % _DESCRIPTOR_BYTES
                numbers = array.array("i", content[:whole])
                descriptors += [Descriptor(number) for number in numbers]
        return Packet(data, descriptors, bool(flags & _CUT))

    def close(self) -> None:
        """Drop this process's copy of the end."""
        self._socket.close()


def _failure(error: OSError) -> HandoffError:
    if error.errno == errno.EBADF:
        return HandoffError("expected an open channel, got a closed one")
    return HandoffError(f"expected a socket that works, got {error.strerror}")


def is_hung_up(link: Link) -> bool:
    """Whether the other end is gone, though there may be packets of it to receive.

    Raises:
        HandoffError: This end was closed meanwhile.
    """
    number = link.fileno()
    if number < 0:
        raise _failure(OSError(errno.EBADF, os.strerror(errno.EBADF)))
    poll = select.poll()
    poll.register(number, select.POLLRDHUP)
    return bool(poll.poll(0))


def check_user(sock: socket.socket) -> int:
    """Check that the other end of a connection belongs to the user of this process.

    Returns:
        The process id of the other end.

    Raises:
        HandoffError: It belongs to another user.
    """
    credentials = array.array("i")
    credentials.frombytes(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    pid, user, _ = credentials
    if user != os.geteuid():
        raise HandoffError(f"expected a peer of user {os.geteuid()}, got one of user {user}")
    return pid
