"""`End`: what a channel does, apart from the object that its user holds."""

import contextlib
import functools
import multiprocessing
import multiprocessing.util
import os
import select
import socket
import threading
import weakref
from typing import Any, Final

from omniwire.contracts.errors import HandoffError, HandoffTimeout, PeerClosed, PeerDied
from omniwire.serialization.handoff.descriptors import (
    Descriptor,
    limit_named,
    new_event,
    signal_event,
)
from omniwire.serialization.handoff.inbox import Inbox
from omniwire.serialization.handoff.ledger import BOOKS, CLOSED, Ledger, has_ended
from omniwire.serialization.handoff.link import Gone, Link
from omniwire.serialization.handoff.outbox import Outbox
from omniwire.serialization.handoff.outgoing import Outgoing
from omniwire.serialization.handoff.packets import Hello
from omniwire.serialization.handoff.pool import Pool
from omniwire.serialization.handoff.recording import Recorder
from omniwire.serialization.handoff.waiting import POLL_AGAIN_S, HasDescriptor, Steps, Timeout, Wait

Sizes = tuple[int, int]

_DEATH_S: Final = 0.2
"""At most so long after a process has closed its sockets, its end can be seen."""


class End:
    """One end of a connection, as this process has it.

    A channel refers to it, but nothing here refers to a channel: so it outlives the channel by
    as much as closing takes, whatever the garbage collector finalizes first.

    Attributes:
        link: The socket.
        inbox: The receiving half.
        is_closed: Whether this process has dropped its copy.
        owner: The process that uses this end; None before it is used.
        peer_pid: The process at the other end; None as long as it is not known.
        twin: The other end of a pair, if it is in this process too.
        receiver: What multiprocessing starts with this end as an argument.

    Args:
        sock: A connected socket, owned from now on.
        sizes: Of an arena, and the bound of all arenas.
        recorder: Writes what is sent and received, if anything does.
    """

    def __init__(self, sock: socket.socket, sizes: Sizes, recorder: Recorder | None) -> None:
        sock.setblocking(False)
        self.link = Link(sock)
        self.sizes = sizes
        self.recorder = recorder
        self.is_closed = False
        self.owner: int | None = None
        self.peer_pid: int | None = None
        self.twin: weakref.ref[End] | None = None
        self.receiver: Any = None
        self.inbox = Inbox(self.link, self._greet)
        self._closing = new_event()
        self._maker = os.getpid()
        self._num_forks = _num_forks()
        self._starting = threading.Lock()
        self._receiving = threading.Lock()
        self._polling = threading.Lock()
        self._poll: select.poll | None = None
        self._peer: Descriptor | None = None
        self._outbox: Outbox | None = None
        self._ledgers: list[Ledger] = []  # the outbox's, until this end is closed

    def close(self) -> None:
        """Drop this process's copy of the end; again does nothing."""
        if self.is_closed:
            return
        self.is_closed = True
        if self.owner == os.getpid():  # what a forked child has of it is shared with the parent
            signal_event(self._closing.number)
            assert self._outbox is not None
            self._outbox.ledger.set_flag(CLOSED, on=True)
            self._outbox.ledger.is_retired = True
            with self._receiving:
                with contextlib.suppress(Gone):
                    self.inbox.make_room()
                self.inbox.discard()
        self.link.close()
        # What nothing else needs goes now, though somebody may keep the closed channel.
        self._ledgers.clear()
        self._outbox = self._peer = self._poll = None
        self.inbox = Inbox(self.link, self._greet)

    def started(self) -> Outbox:
        """The sending half; this process owns the end from now on.

        Raises:
            HandoffError: The end is closed, or another process's.
        """
        if self.owner == os.getpid() and not self.is_closed:
            assert self._outbox is not None
            return self._outbox
        if self.is_closed:
            raise HandoffError("expected an open channel, got a closed one")
        if self.owner is not None:
            expected = f"expected to be in process {self.owner}, which this end belongs to"
            raise HandoffError(f"{expected}, got a copy of it in {os.getpid()}")
        with self._starting, limit_named():
            if self.owner is None:
                try:
                    pool = Pool(*self.sizes)
                    self._outbox = Outbox(self.link, pool, self._closing)
                except Gone:
                    raise self.gone() from None
                self.owner = os.getpid()
                ledger = self._outbox.ledger
                ledger.reader = self._peer
                ledger.notice_reader = functools.partial(_notice_peer, weakref.ref(self))
                if self.owner != self._maker:
                    self._drop_twin()
                self._ledgers.append(ledger)
                weakref.finalize(self, _note_end, self._ledgers, self.owner)
                _note_end_of_child(self)
                # Forgotten when a process of multiprocessing begins, with what it was given.
                multiprocessing.util.register_after_fork(self, _note_end_of_child)
        assert self._outbox is not None
        return self._outbox

    def _greet(self, hello: Hello, process: Descriptor) -> None:
        """Get to know the peer. An end that was given away is dropped here."""
        self.peer_pid = hello.pid
        self._peer = process
        if self._outbox is not None:
            self._outbox.ledger.reader = process
        if hello.pid != os.getpid():
            self._drop_twin()

    def _drop_twin(self) -> None:
        """Drop this process's copy of the other end, which turned out to be another's."""
        twin = self.twin() if self.twin is not None else None
        if twin is not None and twin.owner != os.getpid():
            twin.close()

    def await_message(self, timeout: Timeout) -> None:
        """Wait for a message, the peer's end or this end being closed, in the common case.

        To make and fill a poll object takes longer than to poll: one serves all calls, but only
        one thread at a time. Who finds it taken, or the peer unknown, does not wait here.

        Args:
            timeout: Seconds to wait at most; more than a second are not.
        """
        peer = self._peer  # close() forgets it
        if peer is None or self.inbox.is_ready or not self._polling.acquire(blocking=False):
            return
        try:
            poll = self._poll
            if poll is None:
                poll = select.poll()
                for number in (self.link.fileno(), self._closing.fileno(), peer.fileno()):
                    if number >= 0:
                        poll.register(number, select.POLLIN)
                self._poll = poll
            seconds = POLL_AGAIN_S if timeout is None else min(timeout, POLL_AGAIN_S)
            poll.poll(seconds * 1000)
        finally:
            self._polling.release()
        self.started()

    def meeting(self) -> Steps[None]:
        """Wait for the peer's hello."""
        yield from self.guarded(self._meeting_steps())

    def _meeting_steps(self) -> Steps[None]:
        while not self.meet():
            yield self.wait_for_messages("expected a peer that accepts in time, got none")

    def meet(self) -> bool:
        """Whether the peer has said hello, once what has come was looked at.

        Raises:
            HandoffError: It said something else, or is gone.
        """
        if self._peer is None and self._receiving.acquire(blocking=False):
            try:
                failed = self.inbox.peek() and self._peer is None
            except Gone:
                raise self.gone() from None
            finally:
                self._receiving.release()
            if failed:
                self.next()
        return self._peer is not None

    def notice_peer(self) -> None:
        """Get to know the peer, so that its death is noticed; one may end before its hello.

        Raises:
            HandoffError: As `meet`.
        """
        if self._peer is None and not self.meet() and self._peer_has_ended() and not self.meet():
            raise self.gone()

    def record(self, message: Outgoing) -> None:
        """Record a message that was sent."""
        if self.recorder is not None:
            self.recorder.sent(message.frames())

    def send_now(self, outbox: Outbox, message: Outgoing) -> bool:
        """As the outbox, raising what this end knows of a peer that is gone."""
        self.notice_peer()
        try:
            return outbox.send_now(message)
        except Gone:
            raise self.gone() from None

    def guarded(self, steps: Steps[Any]) -> Steps[Any]:
        """The same steps, failing with what the channel knows of the peer, or its own closing."""
        try:
            while True:
                try:
                    wait = next(steps)
                except StopIteration as stop:
                    return stop.value
                if wait.writable:
                    self._make_room_in_twin()
                yield wait._replace(readable=[*wait.readable, *self.hello_waits()])
                self.started()
                self.notice_peer()
        except Gone:
            raise self.gone() from None
        finally:
            steps.close()

    def receiving(self) -> Steps[bytes | bytearray]:
        """Wait for a message."""
        while True:
            self.started()
            packed = self.next()
            if packed is None and self._peer_has_ended():
                packed = self.next()  # it may have come just before
                if packed is None:
                    raise self.gone()
            if packed is not None:
                return packed
            yield self.wait_for_messages("expected a message in time, got none")

    def is_ready(self) -> bool:
        """Whether `recv` returns or raises at once."""
        if self.is_closed or self.owner not in (None, os.getpid()):
            return True
        self.started()
        with self._receiving:
            try:
                return self.inbox.peek() or self._peer_has_ended()
            except Gone:
                return True

    def next(self) -> bytes | bytearray | None:
        """As the inbox, raising what this end knows of a peer that is gone.

        Who cannot read the peer's hello closes this end, so that both can try again.
        """
        try:
            with self._receiving:
                return self.inbox.next()
        except Gone:
            raise self.gone() from None
        except HandoffError:
            if self._peer is None:
                self.close()
            raise

    def wait_for_messages(self, text: str) -> Wait:
        """The wait for a message, the peer's end, or this end being closed."""
        peer = self._peer
        waits = [self.link] if peer is None else [self.link, peer]
        return Wait(lambda: HandoffTimeout(text), [self._closing, *waits, *self.hello_waits()])

    def hello_waits(self) -> list[int | HasDescriptor]:
        """What becomes readable when the peer says hello, or ends before that, if it has not."""
        if self._peer is not None:
            return []
        child = self._starting_child()
        return [self.link] if child is None else [self.link, child.sentinel]

    def _peer_has_ended(self) -> bool:
        """Whether the process at the other end has ended, even if another holds its socket."""
        peer = self._peer
        if peer is not None:
            return has_ended(peer)
        child = self._starting_child()
        return child is not None and child.poll() is not None

    def _starting_child(self) -> Any:
        """The process that the other end was given to, before its hello."""
        twin = self.twin() if self.twin is not None else None
        child = twin.receiver if twin is not None and twin.owner is None else None
        return child if getattr(child, "sentinel", None) is not None else None

    def gone(self) -> HandoffError:
        """The error of a peer that is gone: what it holds is given back, as far as it can be."""
        outbox, process = self._outbox, self._peer
        if outbox is not None:
            with BOOKS:
                outbox.ledger.collect_unreceived()
        ledger, peer = self.inbox.ledger, f"process {self.peer_pid or 'unknown'}"
        if ledger is not None and ledger.is_closed:
            return PeerClosed(f"expected an open channel, got one that {peer} has closed")
        if process is None:
            if self._peer_has_ended():
                return PeerDied("expected a live peer, got one that ended before it said hello")
        elif has_ended(process, _DEATH_S):
            if outbox is not None:
                with BOOKS:
                    outbox.ledger.collect_all()
            return PeerDied(f"expected a live peer, got {peer} ended without closing the channel")
        return PeerClosed(f"expected an open channel, got one whose other end {peer} has dropped")

    def is_here(self) -> bool | None:
        """Whether the peer is in this process; None if it is as yet, but may be given away."""
        if self.peer_pid is not None:
            return self.peer_pid == os.getpid()
        twin = self.twin() if self.twin is not None else None
        if twin is None or not twin._may_be_here(self._num_forks):
            return False
        return True if twin.owner is not None else None

    def opens(self, device: int) -> bool | None:
        """Whether the peer can open memory of a device; None if it was never tried."""
        return None if self._outbox is None else self._outbox.ledger.opens(device)

    def _may_be_here(self, num_forks: int) -> bool:
        """Whether this end is used in this process, or else nobody can have been given it.

        Args:
            num_forks: How often this process had forked when the pair was made.
        """
        if self.is_closed or self.owner is not None:
            return not self.is_closed and self.owner == os.getpid()
        return self.receiver is None and num_forks == _num_forks()

    def _make_room_in_twin(self) -> None:
        """Take what is in the socket, if the other end is here too: its thread may be this one."""
        twin = self.twin() if self.twin is not None else None
        if twin is None or not twin._may_be_here(self._num_forks):
            return
        if twin._receiving.acquire(blocking=False):
            try:
                twin.started()
                twin.inbox.make_room()
            except Gone:
                return
            finally:
                twin._receiving.release()


def _notice_peer(end: "weakref.ref[End]") -> None:
    this = end()
    if this is not None:
        with contextlib.suppress(HandoffError):  # for who uses that end
            this.notice_peer()


def _note_end(ledgers: list[Ledger], owner: int) -> None:
    """Have the peer see, when this process ends by itself, that the end was closed."""
    if os.getpid() == owner:
        for ledger in ledgers:
            ledger.set_flag(CLOSED, on=True)


def _note_end_of_child(end: End) -> None:
    """The same in a process of multiprocessing, which ends without finalizing what is left."""
    if multiprocessing.parent_process() is not None and end.owner is not None:
        arguments = (end._ledgers, end.owner)
        multiprocessing.util.Finalize(end, _note_end, arguments, exitpriority=0)


@functools.cache
def _forks() -> list[None]:
    """One entry for each time this process has forked since the first call."""
    forks: list[None] = []
    os.register_at_fork(after_in_parent=lambda: forks.append(None))
    # Else a child forked while another thread keeps books finds them locked for ever.
    os.register_at_fork(
        before=BOOKS.acquire, after_in_parent=BOOKS.release, after_in_child=BOOKS.release
    )
    return forks


def _num_forks() -> int:
    return len(_forks())
