"""What goes through the socket: packets that say where the bytes are.

One packet is one datagram of a SOCK_SEQPACKET socket, so it arrives whole or not at all. Its
first byte says its kind. Numbers are in native byte order: both ends run on one machine.
"""

import struct
from typing import Final, NamedTuple

from omniwire.contracts.errors import HandoffError

HANDOFF_VERSION: Final = 1
"""Version of these packets, of the ledger and of the arena, apart from the wire format's."""

OLDEST_PEER: Final = 1
"""The oldest version of a peer that this one can talk to."""

MAX_PACKET_BYTES: Final = 64 * 1024
MAX_DESCRIPTORS: Final = 3

HELLO: Final = 1  # with three descriptors: the process, its ledger, its event
MESSAGE: Final = 2
ARENA: Final = 3  # with the descriptor of an arena
DROP: Final = 4
COLLECT: Final = 5
PART: Final = 6

_MAGIC: Final = b"omnilink"
_HELLO: Final = struct.Struct("=B7x8sIII")
_MESSAGE: Final = struct.Struct("=BB2xII")
_ARENA: Final = struct.Struct("=B3xIQ")
_DROP: Final = struct.Struct("=B3xI")
_PART: Final = struct.Struct("=BBHI")
_REF: Final = struct.Struct("=IIIIQQB7x")

PART_LAST: Final = 1
PART_STOPPED: Final = 2
PART_HEADER_BYTES: Final = _PART.size


class Hello(NamedTuple):
    """Who an end is: the first packet that it sends."""

    version: int
    oldest_peer: int
    pid: int


class Ref(NamedTuple):
    """Bytes in a slot, and how to give the slot back."""

    arena: int
    slot: int
    generation: int
    cell: int
    offset: int
    size: int
    value: int


class Message(NamedTuple):
    """A message: its header frame, and a reference for each frame after that and each handle.

    Of one that `is_outside` the only reference is to a slot that has all this, since a packet
    has not enough room.
    """

    is_outside: bool
    num_frames: int
    refs: list[Ref]
    header: memoryview


class Part(NamedTuple):
    """A piece of a message that goes through the socket as a whole."""

    state: int
    number: int
    data: memoryview


class NewArena(NamedTuple):
    """An arena that later messages refer to."""

    number: int
    size: int


def pack_hello(pid: int) -> bytes:
    """A packet for `Hello`."""
    return _HELLO.pack(HELLO, _MAGIC, HANDOFF_VERSION, OLDEST_PEER, pid)


def unpack_hello(packet: bytes) -> Hello:
    """Read and check a `Hello`.

    Raises:
        HandoffError: The peer is something else, or too new or too old.
    """
    if len(packet) < _HELLO.size or packet[0] != HELLO or packet[8:16] != _MAGIC:
        raise HandoffError("expected the hello of a channel, got other bytes")
    hello = Hello(*_HELLO.unpack_from(packet)[2:])
    if hello.version < OLDEST_PEER or hello.oldest_peer > HANDOFF_VERSION:
        spoken = f"{OLDEST_PEER} to {HANDOFF_VERSION}"
        got = f"one that speaks {hello.oldest_peer} to {hello.version}"
        raise HandoffError(f"expected a peer that speaks handoff version {spoken}, got {got}")
    return hello


def pack_message(
    refs: list[Ref], num_frames: int, header: bytes | memoryview, *, outside: bool = False
) -> bytes:
    """A packet for `Message`, or the content of the slot of one that is outside."""
    start = _MESSAGE.pack(MESSAGE, outside, num_frames, len(refs))
    return b"".join((start, *[_REF.pack(*ref) for ref in refs], header))


def message_bytes(num_refs: int, header: bytes | memoryview) -> int:
    """The size of a packed message."""
    return _MESSAGE.size + _REF.size * num_refs + len(header)


def unpack_message(packet: bytes | memoryview) -> Message:
    """Read a `Message`.

    Raises:
        HandoffError: It has fewer references than it says.
    """
    size = len(packet)
    _, outside, num_frames, num_refs = (
        _MESSAGE.unpack_from(packet) if size >= _MESSAGE.size else (0, 0, 0, size)
    )
    end = _MESSAGE.size + _REF.size * num_refs
    if size < end or num_frames > num_refs:
        got = f"{size} bytes with {num_frames} frames and {num_refs} references"
        raise HandoffError(f"expected a whole message, got {got}")
    view = memoryview(packet)
    refs = [Ref(*values) for values in _REF.iter_unpack(view[_MESSAGE.size : end])]
    return Message(bool(outside), num_frames, refs, view[end:])


def pack_arena(arena: NewArena) -> bytes:
    """A packet for `NewArena`."""
    return _ARENA.pack(ARENA, *arena)


def unpack_arena(packet: bytes) -> NewArena:
    """Read a `NewArena`."""
    _check_size(packet, _ARENA)
    return NewArena(*_ARENA.unpack_from(packet)[1:])


def pack_drop(number: int) -> bytes:
    """A packet that says that no message will refer to an arena again."""
    return _DROP.pack(DROP, number)


def unpack_drop(packet: bytes) -> int:
    """The number of the arena."""
    _check_size(packet, _DROP)
    number: int = _DROP.unpack_from(packet)[1]
    return number


def pack_collect() -> bytes:
    """A packet that asks the reader to collect garbage: it may hold slots in cycles."""
    return bytes((COLLECT,))


def pack_part(state: int, number: int, data: bytes | memoryview) -> bytes:
    """A packet for `Part`."""
    return b"".join((_PART.pack(PART, state, 0, number), data))


def unpack_part(packet: bytes) -> Part:
    """Read a `Part`."""
    _check_size(packet, _PART)
    _, state, _, number = _PART.unpack_from(packet)
    return Part(state, number, memoryview(packet)[_PART.size :])


def _check_size(packet: bytes, layout: struct.Struct) -> None:
    if len(packet) < layout.size:
        raise HandoffError(f"expected a packet of {layout.size} bytes, got {len(packet)}")
