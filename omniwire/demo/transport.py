"""The data path between a processor and an executor process: contract objects, both ways."""

from multiprocessing.connection import Connection
from typing import Any

import omniwire as ow


class Transport:
    """One process's end of the data path; lives as long as its connection.

    Args:
        connection: This process's end of a two-way pipe.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._stats = {"sent in messages": 0, "received in messages": 0}

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
