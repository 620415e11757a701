"""The ways to send a request that are compared, each in a module of its own.

Each is written as its users write it when they care for speed, and checks nothing that it
receives; omniwire makes all of its checks.
"""

import importlib.util
from dataclasses import dataclass
from importlib import import_module
from typing import Final

from omniwire.bench.peers.base import Transport


@dataclass(frozen=True)
class Peer:
    """A way to send a request, by name.

    Attributes:
        name: What the tables call it.
        module: The module with its `Transport`.
        transport: The name of that there.
        needs: The packages that it is made with.
    """

    name: str
    module: str
    transport: str
    needs: tuple[str, ...] = ()

    @property
    def is_ours(self) -> bool:
        """Whether it is omniwire."""
        return self.module.endswith(".channel")

    @property
    def missing(self) -> list[str]:
        """Those of the packages that are not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]

    def load(self) -> Transport:
        """Import it."""
        transport = getattr(import_module(self.module), self.transport)
        assert isinstance(transport, Transport)
        return transport


BASELINE: Final = Peer("pyzmq + msgspec", f"{__name__}.zeromq", "TRANSPORT", ("zmq", "msgspec"))
"""What the others are compared with."""

PEERS: Final = (
    Peer("omniwire, in place", f"{__name__}.channel", "IN_PLACE"),
    Peer("omniwire, one copy", f"{__name__}.channel", "ONE_COPY"),
    BASELINE,
    Peer("torch Queue, in place", f"{__name__}.torch_queue", "IN_PLACE"),
    Peer("torch Queue", f"{__name__}.torch_queue", "ONE_COPY"),
    Peer("Pipe + pickle 5", f"{__name__}.pipe", "TRANSPORT"),
    Peer("shared_memory", f"{__name__}.segments", "TRANSPORT"),
    Peer("Ray", f"{__name__}.ray_actor", "TRANSPORT", ("ray",)),
)
