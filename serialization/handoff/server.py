"""`ChannelServer`: where processes connect that this one did not start."""

import contextlib
import os
import threading
from typing import Self

from omniwire.contracts.errors import HandoffError, HandoffTimeout, PeerClosed, PeerDied
from omniwire.contracts.guard import guarded
from omniwire.serialization.handoff import address
from omniwire.serialization.handoff.channel import ARENA_BYTES, MAX_BYTES, Channel, check_sizes
from omniwire.serialization.handoff.descriptors import limit_named
from omniwire.serialization.handoff.end import End
from omniwire.serialization.handoff.link import check_user
from omniwire.serialization.handoff.recording import Recording, as_recorder
from omniwire.serialization.handoff.waiting import HasDescriptor, Steps, Timeout, Wait, run


class ChannelServer:
    """Listens at a path for processes of the same user; closed at the end of a `with` block.

    The path is a socket that only this user can use. One that a dead server left there is
    replaced; one that a live server listens at is refused. `close` removes it.

    Args:
        path: Where to listen, at most 107 bytes long.
        arena_bytes: As for `Channel.pair`, for what accepted channels send.
        max_bytes: As for `Channel.pair`, of each accepted channel.
        record: A directory, or `Recording`, for every message of the accepted channels.

    Raises:
        HandoffError: The path is in use, is no socket, or cannot be made.
    """

    @guarded
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        arena_bytes: int = ARENA_BYTES,
        max_bytes: int = MAX_BYTES,
        record: str | os.PathLike[str] | Recording | None = None,
    ) -> None:
        check_sizes(arena_bytes, max_bytes)
        self.path = os.fspath(path)
        self._absolute = os.path.abspath(self.path)  # noqa: PTH100  # of a path that may be bad
        self._sizes = (arena_bytes, max_bytes)
        self._record = record
        self._greeted: list[End] = []  # those whose peer has not said hello yet
        self._accepts = threading.Lock()
        self._pid = os.getpid()
        with limit_named(), contextlib.ExitStack() as undo:
            self._socket = address.listen(self.path)
            undo.callback(self._socket.close)
            self._identity = address.identity(self.path)
            undo.pop_all()

    def accept(self, timeout: Timeout = None) -> Channel:
        """Wait for the next process that connects and says hello; a silent one keeps none waiting.

        Args:
            timeout: Seconds to wait; None for as long as it takes.

        Raises:
            HandoffTimeout: Nobody connected in time.
            HandoffError: Somebody did who is of another user or version. The server goes on.
        """
        return run(self._accepting(), timeout)

    def close(self) -> None:
        """Stop listening and remove the path; accepted channels stay. Again does nothing."""
        if self._socket.fileno() < 0:
            return
        if self._pid == os.getpid():
            address.remove(self._absolute, self._identity)
            for end in self._greeted:
                end.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accepting(self) -> Steps[Channel]:
        while True:
            if self._socket.fileno() < 0:
                raise HandoffError("expected a listening server, got a closed one")
            with self._accepts:
                self._greet()
                for end in list(self._greeted):
                    if self._has_met(end):
                        self._greeted.remove(end)
                        return Channel(end)
            waits: list[int | HasDescriptor] = [
                self._socket,
                *(end.link for end in self._greeted),
            ]
            yield Wait(
                lambda: HandoffTimeout(f"expected a process to connect to {self.path} in time"),
                readable=waits,
            )

    def _greet(self) -> None:
        """Say hello to those who connected."""
        while True:
            try:
                with limit_named():
                    sock, _ = self._socket.accept()
            except BlockingIOError:
                return
            with limit_named(), contextlib.ExitStack() as undo:
                undo.callback(sock.close)
                check_user(sock)
                end = End(sock, self._sizes, as_recorder(self._record))
                end.started()
                undo.pop_all()
            self._greeted.append(end)

    def _has_met(self, end: End) -> bool:
        """Whether the peer has said hello; who goes before that is forgotten.

        Raises:
            HandoffError: It said something else, or is of a version that this end cannot talk to.
        """
        try:
            has_met = end.meet()
        except (PeerClosed, PeerDied):
            has_met = False
        except HandoffError:
            self._greeted.remove(end)
            end.close()
            raise
        else:
            return has_met
        self._greeted.remove(end)
        end.close()
        return has_met
