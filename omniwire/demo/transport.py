"""The data path between a processor and an executor process: contract objects, both ways."""

import multiprocessing
from multiprocessing.connection import Connection
from typing import Any, Self

import omniwire as ow


class Transport:
    """One end of the data path; travels to a process as an argument, and lives until `close`.

    Args:
        connection: One end of a two-way pipe.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._stats = {"sent in messages": 0, "received in messages": 0}

    @classmethod
    def pair(cls) -> tuple[Self, Self]:
        """Two ends that are connected."""
        one, other = multiprocessing.get_context("spawn").Pipe()
        return cls(one), cls(other)

    def send(self, obj: object) -> None:
        """Send one contract object.

        Raises:
            EncodeError: It cannot be sent.
            ConnectionError: The other process went away.
        """
        message = ow.dumps(obj)
        self._stats["sent in messages"] += len(message)
        self._connection.send_bytes(message)

    def recv(self) -> Any:
        """The next object; its tensors are views of the received message.

        Raises:
            DecodeError: The message is malformed.
            EOFError: The other process went away.
        """
        message = self._connection.recv_bytes()
        self._stats["received in messages"] += len(message)
        return ow.loads(message)

    def stats(self) -> dict[str, int]:
        """Bytes so far, by what they are."""
        return dict(self._stats)

    def close(self) -> None:
        """Close this process's copy of this end."""
        self._connection.close()
