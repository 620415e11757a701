"""What the tests of the handoff and their child processes share.

A module of its own, since children cannot import test modules by name.
"""

import gc
import socket
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

import omniwire as ow

TIMEOUT_S = 60
"""Nothing takes so long: whatever does hangs."""


def request(tensor: torch.Tensor | None = None, request_id: str = "r", **fields: Any) -> Any:
    """A request with these values in its payload; `tensor` is under `"x"`."""
    if tensor is not None:
        fields["x"] = tensor
    params = ow.MultimodalParams(multimodal_data={"image": fields}) if fields else None
    return ow.ProcessedRequest(request_id, [1, 2], params)


def tensor_of(received: Any, field: str = "x") -> Any:
    """A value of the payload of a `request`."""
    return received.multimodal_params.multimodal_data["image"][field]


def pattern(num_bytes: int, seed: int = 0) -> torch.Tensor:
    """Bytes that tell where they are, and differ by seed."""
    period = ((torch.arange(251) + seed) % 251).to(torch.uint8)
    return period.repeat(num_bytes // 251 + 1)[:num_bytes].clone()


def is_pattern(tensor: torch.Tensor, seed: int = 0) -> bool:
    """Whether a tensor is the `pattern` of its size."""
    return torch.equal(tensor, pattern(tensor.numel(), seed))


class Puppet:
    """Uses one end of a channel in a process of its own, step by step as its test says."""

    def __init__(self, channel: ow.Channel) -> None:
        self.channel = channel
        self.held: list[Any] = []

    def receive(self, num: int = 1, *, keep: bool = True) -> list[str]:
        """Receive some requests; their ids. They are held, or dropped."""
        ids = []
        for _ in range(num):
            received = self.channel.recv(TIMEOUT_S)
            ids.append(received.request_id)
            if keep:
                self.held.append(received)
        return ids

    def receive_until(self, last: str) -> int:
        """Receive and drop requests up to the one with this id; how many."""
        num = 1
        while self.channel.recv(TIMEOUT_S).request_id != last:
            num += 1
        return num

    def is_intact(self, seed: int = 0) -> bool:
        """Whether every tensor held is the pattern it was sent as."""
        return all(is_pattern(tensor_of(each), seed) for each in self.held)

    def values(self) -> list[Any]:
        """The sum of every tensor held."""
        return [tensor_of(each).sum().item() for each in self.held]

    def drop(self, position: int | None = None) -> None:
        """Drop one request that is held, or all."""
        if position is None:
            self.held.clear()
        else:
            del self.held[position]

    def hold_in_cycle(self) -> None:
        """Receive a request, and leave it in a reference cycle that only a collection frees."""
        gc.disable()
        cycle: list[Any] = [self.channel.recv(TIMEOUT_S)]
        cycle.append(cycle)

    def resolve(self) -> float:
        """Receive a request with a handle; the sum of what it resolves to, which is kept."""
        tensor = tensor_of(self.channel.recv(TIMEOUT_S)).resolve()
        self.held.append(request(tensor))
        return float(tensor.sum().item())

    def send(self, num_bytes: int = 0, request_id: str = "r", seed: int = 0) -> None:
        """Send a request with a pattern."""
        tensor = pattern(num_bytes, seed) if num_bytes else None
        self.channel.send(request(tensor, request_id), TIMEOUT_S)

    def send_many(self, num: int, num_bytes: int = 0) -> None:
        """Send requests that are numbered from 0, with a pattern of that seed."""
        for number in range(num):
            self.send(num_bytes, str(number), number)

    def send_back(self) -> None:
        """Send on what is held, as it is."""
        for each in self.held:
            self.channel.send(each, TIMEOUT_S)

    def stats(self) -> dict[str, int]:
        """The statistics of the end."""
        return dict(self.channel.stats())

    def close(self) -> None:
        """Close the end."""
        self.channel.close()


def run_puppet(control: Connection, end: ow.Channel | str, options: dict[str, Any]) -> None:
    """Do what a test says until it says no more.

    Args:
        control: Where calls come from, as a name and arguments, and results go to.
        end: The end of a channel, or the path of a server to connect to.
        options: For the connection.
    """
    torch.set_num_threads(1)
    channel = ow.Channel.connect(end, TIMEOUT_S, **options) if isinstance(end, str) else end
    puppet = Puppet(channel)
    while True:
        try:
            name, args, kwargs = control.recv()
        except EOFError:
            return
        control.send(_outcome(getattr(puppet, name), *args, **kwargs))


def listen(control: Connection, path: str) -> None:
    """Have a server that accepts nobody until the test says so."""
    with ow.ChannelServer(path):
        control.send("listening")
        control.recv()


def serve_hello(control: Connection, path: str, hello: bytes) -> None:
    """Be a server that says this to the first who connects."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        control.send("listening")
        sock, _ = listener.accept()
        with sock:
            sock.send(hello)
            control.recv()


def run_function(control: Connection, function: Callable[..., Any], *args: Any) -> None:
    """Call a function, and say what became of it."""
    torch.set_num_threads(1)
    control.send(_outcome(function, control, *args))


def _outcome(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[bool, Any]:
    try:
        return True, function(*args, **kwargs)
    except Exception as error:  # noqa: BLE001  # raised again by the test
        if not isinstance(error, ow.OmniwireError):
            sys.excepthook(type(error), error, error.__traceback__)
        return False, error.with_traceback(None)
