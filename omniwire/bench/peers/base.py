"""What a way to send a request consists of."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from omniwire.bench.content import Case

Message = TypeVar("Message")
"""What is sent for a request."""


class Sender(ABC, Generic[Message]):
    """The sending end, in a process of its own; lives as long as that."""

    @abstractmethod
    def make(self, case: Case, value: int) -> Message:
        """A new message with a value in all its tensors; not part of what is measured."""

    @abstractmethod
    def hand_over(self, message: Message) -> int:
        """Send a message and wait for the receiver's answer; this is what is measured.

        Returns:
            The sum that the receiver found.
        """

    def close(self) -> None:
        """Release what must not be left behind; nothing by default."""


class Receiver(ABC):
    """The receiving end, in another process."""

    @abstractmethod
    def answer(self) -> None:
        """Wait for a message, look at its tensors, answer with the sum, drop the message."""


def _no_setup(_folder: str) -> None:
    """Nothing has to run beside the two processes."""


@dataclass(frozen=True)
class Transport:
    """A way to send a request.

    Attributes:
        make_ends: Called in the parent with a temporary folder; returns what the sender and what
            the receiver is opened with, and multiprocessing hands to them.
        open_sender: Makes the sending end, in its process.
        open_receiver: Makes the receiving end, in its process; None where `set_up` starts it.
        set_up: Called in the sending process with the temporary folder, before memory is measured
            for the first time: what runs on a machine in any case.
    """

    make_ends: Callable[[str], tuple[Any, Any]]
    open_sender: Callable[[Any], Sender[Any]]
    open_receiver: Callable[[Any], Receiver] | None
    set_up: Callable[[str], None] = _no_setup
