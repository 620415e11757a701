"""The receiving half of a channel's end."""

import gc
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import torch

from omniwire.contracts.errors import DecodeError, HandoffError
from omniwire.contracts.handles import TensorHandle
from omniwire.serialization.blob import frame_spans
from omniwire.serialization.codec import decode_frames
from omniwire.serialization.handoff.arena import Mapping, attach
from omniwire.serialization.handoff.borrowing import Borrower
from omniwire.serialization.handoff.descriptors import Descriptor, is_pidfd
from omniwire.serialization.handoff.lease import Lease, SlotBytes, slot_bytes
from omniwire.serialization.handoff.ledger import NUM_CELLS, ReaderLedger
from omniwire.serialization.handoff.lending import HANDLE_PAYLOAD, LENT_HANDLE, LENT_TENSOR
from omniwire.serialization.handoff.link import Link, Packet
from omniwire.serialization.handoff.packets import (
    ARENA,
    COLLECT,
    DROP,
    HELLO,
    MESSAGE,
    PART,
    PART_LAST,
    PART_STOPPED,
    Hello,
    Message,
    Ref,
    unpack_arena,
    unpack_drop,
    unpack_hello,
    unpack_message,
    unpack_part,
)
from omniwire.serialization.handoff.recording import Recorder
from omniwire.serialization.handoff.sources import SlotSource, as_tensor
from omniwire.serialization.limits import Limits
from omniwire.serialization.reading import Attach

_LIMITS: Final = Limits()


class Inbox:
    """Receives messages through a link. Not thread-safe, but for `open`.

    Args:
        link: The socket.
        greet: Called with the peer's hello and pidfd.
    """

    def __init__(self, link: Link, greet: Callable[[Hello, Descriptor], None]) -> None:
        self.ledger: ReaderLedger | None = None
        self._link = link
        self._greet = greet
        self._ready: deque[bytes | bytearray | HandoffError] = deque()
        self._arenas: dict[int, Mapping | str] = {}
        self._parts: dict[int, bytearray] = {}
        self._num_received = 0

    @property
    def is_ready(self) -> bool:
        """Whether `next` has something to return or to raise without looking at the socket."""
        return bool(self._ready)

    def next(self) -> bytes | bytearray | None:
        """The next message, still packed, or None if there is none yet.

        Raises:
            Gone: The peer is, and every message it sent has been taken.
            HandoffError: The peer sent what no peer should, or a version this end cannot talk to.
        """
        if not self.peek():
            return None
        ready = self._ready.popleft()
        if isinstance(ready, HandoffError):
            raise ready
        return ready

    def peek(self) -> bool:
        """Whether `next` has something to return or to raise; a peer's hello is taken anyway.

        Raises:
            Gone: As `next`.
        """
        while not self._ready:
            packet = self._link.receive()
            if packet is None:
                return False
            self._keep(packet)
        return True

    def make_room(self) -> None:
        """Take what is in the socket, to be received later.

        Raises:
            Gone: As `next`, but for what has been taken now.
        """
        while (packet := self._link.receive()) is not None:
            self._keep(packet)

    def open(self, packed: bytes | bytearray, recorder: Recorder | None = None) -> Any:
        """Decode a message, after recording it if anything does.

        Raises:
            DecodeError: It is malformed; what it refers to has been given back.
            HandoffError: It refers to what is not, or no more, in an arena.
        """
        if isinstance(packed, bytearray):
            return self._open_whole(packed, recorder)
        message = unpack_message(packed)
        if not message.refs:
            assert self.ledger is not None
            return _decode([message.header], recorder, _Attachment([], self.ledger))
        leases = _Leases(self)
        try:
            return leases.decode(message, recorder)
        except (DecodeError, HandoffError):
            leases.release()
            raise

    def discard(self) -> None:
        """Give back what the messages that nobody took refer to."""
        while self._ready:
            packed = self._ready.popleft()
            if isinstance(packed, bytes):
                leases = _Leases(self)
                try:
                    leases.take(unpack_message(packed))
                except HandoffError:
                    continue
                finally:
                    leases.release()

    def mapping(self, number: int) -> Mapping:
        """An arena of the peer.

        Raises:
            HandoffError: There is none of this number.
        """
        mapping = self._arenas.get(number, "never heard of")
        if isinstance(mapping, str):
            raise HandoffError(f"expected a reference to a known arena, got one to {mapping}")
        return mapping

    def _keep(self, packet: Packet) -> None:
        """Take a packet; what is wrong with it is for `next` to raise."""
        try:
            self._take(packet)
        except HandoffError as error:
            self._ready.append(error)

    def _take(self, packet: Packet) -> None:
        kind = packet.data[0]
        if self.ledger is None and kind != HELLO:
            raise HandoffError(f"expected a hello first, got a packet of kind {kind}")
        if kind == MESSAGE:
            self._num_received += 1
            assert self.ledger is not None
            self.ledger.count_received(self._num_received)
            self._ready.append(packet.data)
        elif kind == HELLO:
            self._take_hello(packet)
        elif kind == ARENA:
            self._take_arena(packet)
        elif kind == DROP:
            self._arenas.pop(unpack_drop(packet.data), None)
        elif kind == COLLECT:
            assert self.ledger is not None
            if self.ledger.is_awaited:  # still
                gc.collect()  # cycles may hold what it waits for
        elif kind == PART:
            self._take_part(packet)
        else:
            raise HandoffError(f"expected a packet of a known kind, got {kind}")

    def _take_hello(self, packet: Packet) -> None:
        hello = unpack_hello(packet.data)
        if self.ledger is not None:
            raise HandoffError("expected one hello, got another")
        if packet.is_cut or len(packet.descriptors) != 3:
            expected = "expected a hello with three descriptors"
            got = f"{len(packet.descriptors)}: is the limit of open files reached?"
            raise HandoffError(f"{expected}, got {got}")
        process, ledger, event = packet.descriptors
        if not is_pidfd(process.number):
            raise HandoffError("expected the descriptor of a process, got another")
        self.ledger = ReaderLedger(ledger, event)
        self._greet(hello, process)

    def _take_arena(self, packet: Packet) -> None:
        number, size = unpack_arena(packet.data)
        assert self.ledger is not None
        if packet.is_cut or len(packet.descriptors) != 1:
            self._arenas[number] = (
                "one whose descriptor got lost: is the limit of open files reached?"
            )
            self.ledger.count_lost()
            return
        try:
            self._arenas[number] = attach(packet.descriptors[0].number, size)
        except OSError as error:  # and so HandoffError
            self._arenas[number] = f"one that cannot be mapped ({error})"
            self.ledger.count_lost()

    def _take_part(self, packet: Packet) -> None:
        state, number, data = unpack_part(packet.data)
        if state == PART_STOPPED:
            self._parts.pop(number, None)
        elif state == PART_LAST:
            self._ready.append(self._parts.pop(number, bytearray()))
        else:
            self._parts.setdefault(number, bytearray()).extend(data)

    def _open_whole(self, content: bytearray, recorder: Recorder | None) -> Any:
        view = memoryview(content)

        def read(offset: int, size: int) -> memoryview:
            return view[offset : offset + size]

        start, *frames = [read(*span) for span in frame_spans(read, len(content), _LIMITS)]
        return _decode([unpack_message(start).header, *frames], recorder)


def _decode(
    frames: list[memoryview],
    recorder: Recorder | None,
    attach_handle: Attach | None = None,
) -> Any:
    if recorder is not None:
        recorder.received(frames)
    return decode_frames(frames, _LIMITS, attach=attach_handle)


class _Leases:
    """What one message refers to."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._by_cell: dict[int, Lease] = {}

    def take(self, message: Message) -> Message:
        """Lease every slot that a message refers to; of one that is outside, get the rest.

        Raises:
            HandoffError: A reference is forged or stale.
        """
        ledger = self._inbox.ledger
        assert ledger is not None
        for ref in message.refs:
            if ref.cell >= NUM_CELLS or ref.value > 1:
                raise HandoffError(f"expected a cell of the ledger, got {ref.cell}")
            if ref.cell not in self._by_cell:
                self._by_cell[ref.cell] = Lease(ledger, ref.cell, ref.value)
        if not message.is_outside:
            return message
        if len(message.refs) == 1:
            inner = unpack_message(bytes(self.content(message.refs[0])))
            if not inner.is_outside:
                return self.take(inner)
        raise HandoffError("expected one reference to the rest of a message, got others")

    def content(self, ref: Ref) -> SlotBytes:
        """The bytes that a reference stands for.

        Raises:
            HandoffError: It is forged or stale.
        """
        mapping = self._inbox.mapping(ref.arena)
        if ref.slot >= mapping.num_slots or not 0 < ref.size <= mapping.size - ref.offset:
            expected = f"expected bytes inside an arena of {mapping.size}"
            raise HandoffError(f"{expected}, got {ref.size} at {ref.offset} in slot {ref.slot}")
        generation = mapping.generation(ref.slot)
        if generation != ref.generation:
            expected = f"expected slot {ref.slot} as it is now, of generation {generation}"
            raise HandoffError(f"{expected}, got a stale reference to generation {ref.generation}")
        return slot_bytes(mapping, ref.offset, ref.size, self._by_cell[ref.cell])

    def decode(self, message: Message, recorder: Recorder | None) -> Any:
        """The object of a message, whose tensors keep the leases."""
        message = self.take(message)
        contents = list(map(self.content, message.refs))
        ledger = self._inbox.ledger
        assert ledger is not None
        attach_handle = _Attachment(contents[message.num_frames :], ledger)
        frames = [content.data for content in contents[: message.num_frames]]
        return _decode([message.header, *frames], recorder, attach_handle)

    def release(self) -> None:
        """Give everything back: no view of it is left."""
        for lease in self._by_cell.values():
            lease.release()


class _Attachment:
    """Makes the handles of one message such that they can be resolved.

    Args:
        places: What the message carries after its frames.
        ledger: The sender's.
    """

    __slots__ = ("_borrower", "_ledger", "_places")

    def __init__(self, places: list[SlotBytes], ledger: ReaderLedger) -> None:
        self._places = places
        self._ledger = ledger
        self._borrower: Borrower | None = None

    def __call__(self, handle: TensorHandle) -> TensorHandle | torch.Tensor:
        payload = handle.payload
        if not isinstance(payload, bytes):
            return handle
        if payload.startswith((LENT_TENSOR, LENT_HANDLE)):
            if self._borrower is None:
                self._borrower = Borrower(self._places, self._ledger)
            return self._borrower.attach(handle, payload)
        if not payload.startswith(HANDLE_PAYLOAD):
            return handle
        number = payload[len(HANDLE_PAYLOAD) :]
        content = None
        if number:
            if not number.isdigit() or int(number) >= len(self._places):
                raise DecodeError("expected a handle of the message, got another", "buffer")
            content = self._places[int(number)]
        source = SlotSource(as_tensor(content, handle.dtype, handle.shape))
        return TensorHandle(handle.kind, handle.dtype, handle.shape, source)
