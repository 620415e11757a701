"""A peer made by hand: it speaks the packets of a channel, and says whatever its test wants."""

import array
import os
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
import torch
from handoff_children import TIMEOUT_S

import omniwire as ow
from omniwire.serialization.handoff import packets
from omniwire.serialization.handoff.arena import Arena, Slot
from omniwire.serialization.handoff.descriptors import new_event
from omniwire.serialization.handoff.ledger import FIRST_CELL, Ledger


class Peer:
    """One end of a connection, without a channel.

    Attributes:
        ledger: Its ledger, as the sender.
        arena: Memory that it may have announced.
    """

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Not Python's timeout, which waits for much room before it sends anything.
        limit = struct.pack("@ll", TIMEOUT_S, 0)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self.socket.connect(str(path))
        self.event = new_event()
        self.ledger = Ledger(self.event)
        self.process = os.pidfd_open(os.getpid())
        self.arena = Arena(2**20)

    def send(self, packet: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send one packet."""
        content = array.array("i", descriptors)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, content)] if descriptors else []
        self.socket.sendmsg([packet], ancillary)

    def receive(self) -> bytes:
        """Receive one packet; the descriptors that came with it are closed."""
        data, descriptors, _, _ = socket.recv_fds(self.socket, 2**17, 10)
        for each in descriptors:
            os.close(each)
        return data

    @property
    def hello_descriptors(self) -> list[int]:
        """Those of a proper hello."""
        return [self.process, self.ledger.descriptor.number, self.event.number]

    def greet(self) -> None:
        """Say hello as a channel does."""
        self.send(packets.pack_hello(os.getpid()), self.hello_descriptors)

    def announce(self) -> None:
        """Say where the arena is."""
        announcement = packets.NewArena(self.arena.number, self.arena.size)
        self.send(packets.pack_arena(announcement), [self.arena.descriptor.number])

    def slot(self, content: torch.Tensor) -> Slot:
        """Put a tensor into the arena."""
        slot = self.arena.allocate(-(-content.nbytes // 64) * 64)
        assert slot is not None
        memory = np.frombuffer(self.arena.mapping.memory, np.uint8, content.nbytes, slot.offset)
        memory[:] = content.view(-1).view(torch.uint8).numpy()
        return slot

    def ref(self, slot: Slot, size: int) -> packets.Ref:
        """A proper reference to a slot, which is held for the reader from now on."""
        slot.holds += 1
        cell, value = self.ledger.hold(slot, 0)
        return packets.Ref(
            self.arena.number, slot.index, slot.generation, cell, slot.offset, size, value
        )

    def refs(self, obj: object) -> tuple[bytes, list[packets.Ref]]:
        """The header of an object, and references to its frames, which are in the arena now."""
        header, *frames = ow.encode(obj)
        tensors = [torch.frombuffer(bytearray(frame), dtype=torch.uint8) for frame in frames]
        return bytes(header), [self.ref(self.slot(each), each.nbytes) for each in tensors]

    def message(self, obj: object) -> None:
        """Send an object as a channel does."""
        header, refs = self.refs(obj)
        self.send(packets.pack_message(refs, len(refs), header))

    def is_released(self, ref: packets.Ref) -> bool:
        """Whether the reader has given a reference back."""
        return self.ledger.memory[FIRST_CELL + ref.cell] == ref.value

    def close(self) -> None:
        """Hang up, without a word."""
        self.socket.close()
        os.close(self.process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
