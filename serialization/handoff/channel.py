"""`Channel`: a connection between two processes of one host, for contract objects."""

import contextlib
import functools
import multiprocessing.context
import multiprocessing.reduction
import os
import socket
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

import torch

from omniwire.contracts.checks import check_int, raise_problems
from omniwire.contracts.errors import HandoffError, HandoffTimeout, PeerClosed, PeerDied, Problem
from omniwire.contracts.guard import guarded
from omniwire.contracts.handles import TensorHandle
from omniwire.serialization.handoff import address
from omniwire.serialization.handoff.descriptors import (
    Descriptor,
    limit_named,
    new_event,
    signal_event,
)
from omniwire.serialization.handoff.empty import check_shape, check_shareable, new_tensor
from omniwire.serialization.handoff.inbox import Inbox
from omniwire.serialization.handoff.ledger import BOOKS, CLOSED, has_ended
from omniwire.serialization.handoff.link import Gone, Link, check_user
from omniwire.serialization.handoff.outbox import Outbox
from omniwire.serialization.handoff.outgoing import Outgoing
from omniwire.serialization.handoff.packets import Hello
from omniwire.serialization.handoff.pool import Pool
from omniwire.serialization.handoff.sources import SlotSource
from omniwire.serialization.handoff.waiting import (
    HasDescriptor,
    Steps,
    Timeout,
    Wait,
    check_timeout,
    run,
    run_async,
)

ARENA_BYTES: Final = 64 * 2**20
MAX_BYTES: Final = 2**30

_DEATH_S: Final = 0.2
"""At most so long after a process has closed its sockets, its end can be seen."""


class Channel:
    """One end of a bidirectional connection that carries contract objects, whole and in order.

    Tensors travel through an arena, memory that both processes map: `send` copies them in
    once, or not at all if they come from `empty`; `recv` gives tensors that alias it. Such a
    tensor keeps its memory from being used again until the last view of it is gone. It stays
    readable after the channel is closed and after the peer is dead. It is read-only by
    contract: a write changes what other readers see. Who holds tensors for long should clone
    them, since what is held counts against the sender's bound.

    The end belongs to the process that uses it first. Before that it may be given to a child
    process, by fork or as an argument of a `multiprocessing` process; after that a forked child
    can only close its copy. Any number of threads and asyncio tasks may use an end.

    Closed by `close`, at the end of a `with` block, or when it is garbage-collected.

    >>> import omniwire as ow
    >>> a, b = ow.Channel.pair()
    >>> a.send(ow.ProcessedRequest("r1", [1, 5, 2]))
    >>> b.recv().request_id
    'r1'
    >>> a.close(), b.close()
    (None, None)
    """

    def __init__(self, sock: socket.socket, arena_bytes: int, max_bytes: int) -> None:
        self._closed = True  # until everything that closing needs is there
        sock.setblocking(False)
        self._link = Link(sock)
        self._arena_bytes = arena_bytes
        self._max_bytes = max_bytes
        self._closing = new_event()
        self._maker = os.getpid()
        self._owner: int | None = None
        self._starting = threading.Lock()
        self._receiving = threading.Lock()
        self._peer_pid: int | None = None
        self._peer: Descriptor | None = None
        self._twin: weakref.ref[Channel] | None = None
        self._num_forks = _num_forks()
        self._receiver: Any = None  # what multiprocessing is starting with this end
        self._inbox = Inbox(self._link, self._greet)
        self._outbox: Outbox | None = None
        self._closed = False

    @classmethod
    @guarded
    def pair(
        cls, *, arena_bytes: int = ARENA_BYTES, max_bytes: int = MAX_BYTES
    ) -> "tuple[Channel, Channel]":
        """Two connected ends, one of which may be given to a child process.

        Args:
            arena_bytes: Size of an arena, per direction. The first is made when it is first
                needed; more follow on demand.
            max_bytes: Bound of all arenas of a direction, and so of what is in flight.

        Raises:
            HandoffError: The limit of open files is reached.
        """
        check_sizes(arena_bytes, max_bytes)
        with limit_named():
            socks = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            a, b = (cls(sock, arena_bytes, max_bytes) for sock in socks)
        a._twin, b._twin = weakref.ref(b), weakref.ref(a)
        return a, b

    @classmethod
    @guarded
    def connect(
        cls,
        path: str | os.PathLike[str],
        timeout: Timeout = None,
        *,
        arena_bytes: int = ARENA_BYTES,
        max_bytes: int = MAX_BYTES,
    ) -> "Channel":
        """Connect to the `ChannelServer` at a path, which need not be there yet.

        Args:
            path: Of the server's socket.
            timeout: Seconds to wait for the server to be there and to accept; None for as long
                as it takes. A server in this very process may accept later.
            arena_bytes: As for `pair`, for what this end sends.
            max_bytes: As for `pair`.

        Raises:
            HandoffTimeout: Nobody accepted in time.
            HandoffError: The server is of another user or version, or the path is no socket.
        """
        check_sizes(arena_bytes, max_bytes)
        check_timeout(timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        with limit_named():
            sock = address.connect(os.fspath(path), deadline)
            pid = check_user(sock)
            channel = cls(sock, arena_bytes, max_bytes)
        try:
            channel._started()
            if pid != os.getpid():
                left = None if deadline is None else max(deadline - time.monotonic(), 0)
                run(channel._meeting(), left)
        except BaseException:
            channel.close()
            raise
        return channel

    def send(self, obj: object, timeout: Timeout = None) -> None:
        """Send a contract object; it is the peer's to take, whatever happens here.

        Does not wait for the peer to receive, but for room: for memory in the arena if too much
        is in flight, or for the peer to take some of many small messages. What is larger than
        the bound of the arena goes through the socket.

        Args:
            obj: Any contract object. Tensors from `empty` and handles from `share` are not
                copied; until the peer has dropped them, a write to one changes what it sees.
            timeout: Seconds to wait; None for as long as it takes.

        Raises:
            EncodeError: It cannot be encoded. Nothing was sent.
            ArenaFull: No memory became free in time. Nothing was sent.
            HandoffTimeout: The peer took no messages in time. Nothing was sent.
            PeerClosed: No process holds the other end any more.
            PeerDied: The process at the other end ended without closing it.
        """
        check_timeout(timeout)
        outbox, message = self._started(), Outgoing(obj)
        try:
            if not self._send_now(outbox, message):
                run(self._guarded_steps(outbox.sending(message)), timeout)
        finally:
            message.release(outbox.pool)

    async def asend(self, obj: object) -> None:
        """As `send`, without blocking the event loop while it waits. May be canceled."""
        outbox, message = self._started(), Outgoing(obj)
        try:
            if not self._send_now(outbox, message):
                await run_async(self._guarded_steps(outbox.sending(message)))
        finally:
            message.release(outbox.pool)

    def recv(self, timeout: Timeout = None) -> Any:
        """Receive the next object.

        Args:
            timeout: Seconds to wait; None for as long as it takes.

        Returns:
            An object equal to the one that was sent; its tensors alias the arena.

        Raises:
            HandoffTimeout: Nothing came in time.
            DecodeError: A message came that is malformed or breaks a contract. It is gone; the
                channel goes on.
            HandoffError: A message came whose tensors are not where it says. It is gone; the
                channel goes on.
            PeerClosed: No process holds the other end any more, and all it sent was received.
            PeerDied: The process at the other end ended without closing it, and all it sent
                was received.
        """
        check_timeout(timeout)
        self._started()
        packed = self._next()
        if packed is None:
            packed = run(self._receiving_one(), timeout)
        return self._inbox.open(packed)

    async def arecv(self) -> Any:
        """As `recv`, without blocking the event loop while it waits. May be canceled."""
        return self._inbox.open(await run_async(self._receiving_one()))

    @guarded
    def empty(
        self, shape: Sequence[int], dtype: torch.dtype, timeout: Timeout = None
    ) -> torch.Tensor:
        """A new tensor in the arena: what is written to it need not be copied to be sent.

        Args:
            shape: Its shape.
            dtype: Its data type.
            timeout: Seconds to wait for memory; None for as long as it takes.

        Returns:
            The tensor, contiguous. Its content is that of new memory or zero. Its memory is
            free again when no view of it is left, here or with whoever received it.

        Raises:
            ArenaFull: There is not so much memory, or it did not become free in time.
            ContractError: The shape has something else than ints >= 0, or is too large.
        """
        dims = check_shape(shape, dtype)
        outbox = self._started()
        tensor: torch.Tensor = run(self._guarded_steps(new_tensor(outbox, dims, dtype)), timeout)
        return tensor

    @guarded
    def share(self, tensor: torch.Tensor, timeout: Timeout = None) -> TensorHandle:
        """A handle of kind `"arena"` for a tensor, to send where it need not be resolved.

        Args:
            tensor: A CPU tensor; copied into the arena unless it is there already.
            timeout: Seconds to wait for memory; None for as long as it takes.

        Returns:
            The handle, which keeps the memory. Both here and at the peer it resolves any number
            of times, always to the same memory; dropping it unresolved frees that too.

        Raises:
            ArenaFull: As `empty`.
            ContractError: The tensor cannot travel.
        """
        check_shareable(tensor)
        pool = self._started().pool
        located = pool.locate(tensor.data_ptr(), tensor.nbytes) if tensor.is_contiguous() else None
        if located is None:
            copy = self.empty(tuple(tensor.shape), tensor.dtype, timeout)
            tensor = copy.copy_(tensor.detach())
        else:
            pool.drop(located[0])
        shape = tuple(tensor.shape)
        return TensorHandle("arena", tensor.dtype, shape, SlotSource(tensor))

    def stats(self) -> Mapping[str, int]:
        """What this end holds and has done as sender, in bytes.

        Returns:
            `arena_bytes`: size of its arenas, the first one counted before it is needed;
            `in_flight_bytes`: those in slots that messages not yet received, readers, or this
            process's own tensors from `empty` hold, in steps of 64; `free_bytes`: the others;
            `copied_bytes` and `zero_copy_bytes`: running totals of tensor bytes that were
            copied to be sent, and that were sent in place.
        """
        outbox = self._started()
        try:
            outbox.check_reader()
        except Gone:
            self._gone()
        arena_bytes, held = outbox.pool.occupancy()
        outbox.let_go()
        return {
            "arena_bytes": arena_bytes,
            "in_flight_bytes": held,
            "free_bytes": arena_bytes - held,
            "copied_bytes": outbox.copied_bytes,
            "zero_copy_bytes": outbox.zero_copy_bytes,
        }

    def close(self) -> None:
        """Drop this process's copy of the end; again does nothing.

        The peer receives what was sent and then sees `PeerClosed`, once no other process holds
        a copy. Messages that nobody received here are gone. Tensors stay readable.
        """
        if self._closed:
            return
        self._closed = True
        if self._owner == os.getpid():  # what a forked child has of it is shared with the parent
            signal_event(self._closing.number)
            assert self._outbox is not None
            self._outbox.ledger.set_flag(CLOSED, on=True)
            self._outbox.ledger.is_retired = True
            with self._receiving:
                with contextlib.suppress(Gone, HandoffError):
                    self._inbox.make_room()
                self._inbox.discard()
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._closed and not sys.is_finalizing():
            self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"open, peer {self._peer_pid or 'unknown'}"
        return f"<{type(self).__name__} {state}>"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._closed or self._twin is None or self._owner is not None:
            expected = "expected an end of a pair that nobody has used, to give to a process"
            raise HandoffError(f"{expected}, got {self!r}")
        self._receiver = multiprocessing.context.get_spawning_popen()
        copy = multiprocessing.reduction.DupFd(self._link.fileno())
        return _unpickled, (copy, self._arena_bytes, self._max_bytes)

    def fileno(self) -> int:
        """The descriptor of the socket, for `os.set_inheritable` and the like; see `wait`."""
        return self._link.fileno()

    def _started(self) -> Outbox:
        """The sending half; this process owns the end from now on.

        Raises:
            HandoffError: The end is closed, or another process's.
        """
        if self._owner == os.getpid() and not self._closed:
            assert self._outbox is not None
            return self._outbox
        if self._closed:
            raise HandoffError("expected an open channel, got a closed one")
        if self._owner is not None:
            expected = f"expected to be in process {self._owner}, which this end belongs to"
            raise HandoffError(f"{expected}, got a copy of it in {os.getpid()}")
        with self._starting, limit_named():
            if self._owner is None:
                try:
                    pool = Pool(self._arena_bytes, self._max_bytes)
                    self._outbox = Outbox(self._link, pool, self._closing)
                except Gone:
                    raise self._gone() from None
                self._owner = os.getpid()
                self._outbox.ledger.reader = self._peer
                if self._owner != self._maker:
                    self._drop_twin()
        assert self._outbox is not None
        return self._outbox

    def _greet(self, hello: Hello, process: Descriptor) -> None:
        """Get to know the peer. An end that was given away is dropped here."""
        self._peer_pid = hello.pid
        self._peer = process
        if self._outbox is not None:
            self._outbox.ledger.reader = process
        if hello.pid != os.getpid():
            self._drop_twin()

    def _drop_twin(self) -> None:
        """Drop this process's copy of the other end, which turned out to be another's."""
        twin = self._twin() if self._twin is not None else None
        if twin is not None and twin._owner != os.getpid():
            twin.close()

    def _meeting(self) -> Steps[None]:
        """Wait for the peer's hello."""
        yield from self._guarded_steps(self._meeting_steps())

    def _meeting_steps(self) -> Steps[None]:
        while not self._meet():
            yield self._wait_for_messages("expected a peer that accepts in time, got none")

    def _meet(self) -> bool:
        """Whether the peer has said hello."""
        with self._receiving:
            if self._peer is None:
                try:
                    self._inbox.peek()
                except Gone:
                    raise self._gone() from None
        return self._peer is not None

    def _send_now(self, outbox: Outbox, message: Outgoing) -> bool:
        try:
            return outbox.send_now(message)
        except Gone:
            raise self._gone() from None

    def _guarded_steps(self, steps: Steps[Any]) -> Steps[Any]:
        """The same steps, failing with what the channel knows of the peer, or its own closing."""
        try:
            while True:
                try:
                    wait = next(steps)
                except StopIteration as stop:
                    return stop.value
                self._make_room_in_twin()
                yield wait
                self._started()
        except Gone:
            raise self._gone() from None
        finally:
            steps.close()

    def _receiving_one(self) -> Steps[bytes | bytearray]:
        """Wait for a message."""
        while True:
            self._started()
            packed = self._next()
            if packed is None and self._peer_has_ended():
                packed = self._next()  # it may have come just before
                if packed is None:
                    raise self._gone()
            if packed is not None:
                return packed
            yield self._wait_for_messages("expected a message in time, got none")

    def _is_ready(self) -> bool:
        """Whether `recv` returns or raises at once."""
        if self._closed or self._owner not in (None, os.getpid()):
            return True
        self._started()
        with self._receiving:
            try:
                return self._inbox.peek() or self._peer_has_ended()
            except (Gone, HandoffError):
                return True

    def _next(self) -> bytes | bytearray | None:
        with self._receiving:
            try:
                return self._inbox.next()
            except Gone:
                raise self._gone() from None

    def _wait_for_messages(self, text: str) -> Wait:
        readable: list[int | HasDescriptor] = [self._link, self._closing]
        if self._peer is not None:
            readable.append(self._peer)
        elif (child := self._starting_child()) is not None:
            readable.append(child.sentinel)
        return Wait(lambda: HandoffTimeout(text), readable)

    def _peer_has_ended(self) -> bool:
        """Whether the process at the other end has ended, even if another holds its socket."""
        if self._peer is not None:
            return has_ended(self._peer)
        child = self._starting_child()
        return child is not None and child.poll() is not None

    def _starting_child(self) -> Any:
        """The process that the other end was given to, before its hello."""
        twin = self._twin() if self._twin is not None else None
        child = twin._receiver if twin is not None and twin._owner is None else None
        return child if getattr(child, "sentinel", None) is not None else None

    def _gone(self) -> HandoffError:
        """The error of a peer that is gone: what it holds is given back, as far as it can be."""
        outbox = self._outbox
        if outbox is not None:
            with BOOKS:
                outbox.ledger.collect_unreceived()
        ledger, peer = self._inbox.ledger, f"process {self._peer_pid or 'unknown'}"
        if ledger is not None and ledger.is_closed:
            return PeerClosed(f"expected an open channel, got one that {peer} has closed")
        if self._peer is None:
            if self._peer_has_ended():
                return PeerDied("expected a live peer, got one that ended before it said hello")
        elif has_ended(self._peer, _DEATH_S):
            if outbox is not None:
                with BOOKS:
                    outbox.ledger.collect_all()
            return PeerDied(f"expected a live peer, got {peer} ended without closing the channel")
        return PeerClosed(f"expected an open channel, got one whose other end {peer} has dropped")

    def _make_room_in_twin(self) -> None:
        """Take what is in the socket, if the other end is here too: its thread may be this one."""
        twin = self._twin() if self._twin is not None else None
        if twin is None or twin._closed:
            return
        is_here = twin._owner == os.getpid() or (
            twin._owner is None and twin._receiver is None and self._num_forks == _num_forks()
        )
        if is_here and twin._receiving.acquire(blocking=False):
            try:
                twin._started()
                twin._inbox.make_room()
            except Gone:
                return
            finally:
                twin._receiving.release()


def _unpickled(copy: Any, arena_bytes: int, max_bytes: int) -> Channel:
    """An end that was given to this process, which says hello at once."""
    channel = Channel(socket.socket(fileno=copy.detach()), arena_bytes, max_bytes)
    channel._started()
    return channel


def check_sizes(arena_bytes: int, max_bytes: int) -> None:
    """Check the sizes of a channel's arenas.

    Raises:
        ContractError: One is not an int > 0.
    """
    problems: list[Problem] = []
    check_int(problems, ("arena_bytes",), arena_bytes, 1)
    check_int(problems, ("max_bytes",), max_bytes, 1)
    raise_problems("Channel", problems)


@functools.cache
def _forks() -> list[None]:
    """One entry for each time this process has forked since the first call."""
    forks: list[None] = []
    os.register_at_fork(after_in_parent=lambda: forks.append(None))
    return forks


def _num_forks() -> int:
    return len(_forks())
