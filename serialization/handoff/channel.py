"""`Channel`: a connection between two processes of one host, for contract objects."""

import contextlib
import multiprocessing.context
import multiprocessing.reduction
import os
import socket
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

import torch

from omniwire.contracts.checks import check_int, raise_problems
from omniwire.contracts.errors import HandoffError, Problem
from omniwire.contracts.guard import guarded
from omniwire.contracts.handles import TensorHandle
from omniwire.serialization.handoff import address
from omniwire.serialization.handoff.descriptors import limit_named
from omniwire.serialization.handoff.device_books import device_books
from omniwire.serialization.handoff.device_sources import share_on_device
from omniwire.serialization.handoff.empty import check_shape, check_shareable, new_tensor
from omniwire.serialization.handoff.end import End, Sizes
from omniwire.serialization.handoff.link import Gone, check_user
from omniwire.serialization.handoff.outgoing import Outgoing
from omniwire.serialization.handoff.recording import Recording, as_recorder
from omniwire.serialization.handoff.sources import SlotSource
from omniwire.serialization.handoff.waiting import (
    Timeout,
    check_timeout,
    deadline_of,
    run,
    run_async,
)

ARENA_BYTES: Final = 64 * 2**20
MAX_BYTES: Final = 2**30


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

    def __init__(self, end: End) -> None:
        self._end = end
        # Keeps the end until then, so that it is whole when it is closed.
        weakref.finalize(self, end.close).atexit = False

    @classmethod
    @guarded
    def pair(
        cls,
        *,
        arena_bytes: int = ARENA_BYTES,
        max_bytes: int = MAX_BYTES,
        record: str | os.PathLike[str] | Recording | None = None,
    ) -> "tuple[Channel, Channel]":
        """Two connected ends, one of which may be given to a child process.

        Args:
            arena_bytes: Size of an arena, per direction. The first is made when it is first
                needed; more follow on demand.
            max_bytes: Bound of all arenas of a direction, and so of what is in flight; with 0
                there are none, and every tensor goes through the socket.
            record: A directory, or `Recording`, for every message that the first of the two
                ends sends and receives; None records nothing. See `recorded`.

        Raises:
            HandoffError: The limit of open files is reached.
        """
        check_sizes(arena_bytes, max_bytes)
        with limit_named(), contextlib.ExitStack() as undo:
            socks = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            for sock in socks:
                undo.callback(sock.close)
            recorders = (as_recorder(record), None)
            first, second = (
                End(sock, (arena_bytes, max_bytes), recorder)
                for sock, recorder in zip(socks, recorders, strict=True)
            )
            undo.pop_all()
        first.twin, second.twin = weakref.ref(second), weakref.ref(first)
        return cls(first), cls(second)

    @classmethod
    @guarded
    def connect(
        cls,
        path: str | os.PathLike[str],
        timeout: Timeout = None,
        *,
        arena_bytes: int = ARENA_BYTES,
        max_bytes: int = MAX_BYTES,
        record: str | os.PathLike[str] | Recording | None = None,
    ) -> "Channel":
        """Connect to the `ChannelServer` at a path, which need not be there yet.

        Args:
            path: Of the server's socket.
            timeout: Seconds to wait for the server to be there and to accept; None for as long
                as it takes. A server in this very process may accept later.
            arena_bytes: As for `pair`, for what this end sends.
            max_bytes: As for `pair`.
            record: As for `pair`, for this end.

        Raises:
            HandoffTimeout: Nobody accepted in time.
            HandoffError: The server is of another user or version, or the path is no socket.
        """
        check_sizes(arena_bytes, max_bytes)
        check_timeout(timeout)
        deadline = deadline_of(timeout)
        with limit_named(), contextlib.ExitStack() as undo:
            sock = address.connect(os.fspath(path), deadline)
            undo.callback(sock.close)
            pid = check_user(sock)
            end = End(sock, (arena_bytes, max_bytes), as_recorder(record))
            end.started()
            if pid == os.getpid():
                end.peer_pid = pid
            else:
                left = None if deadline is None else max(deadline - time.monotonic(), 0)
                run(end.meeting(), left)
            undo.pop_all()
        return cls(end)

    def send(self, obj: object, timeout: Timeout = None) -> None:
        """Send a contract object; it is the peer's to take, whatever happens here.

        Does not wait for the peer to receive, but for room: for memory in the arena if too much
        is in flight, or for the peer to take some of many small messages. What is larger than
        the bound of the arena goes through the socket.

        Args:
            obj: Any contract object. Tensors from `empty`, handles from `share` and CUDA
                tensors are not copied, once the peer has shown that it can open the latter;
                until it has dropped them, a write to one changes what it sees. Handles of
                kind `"local"` can only go to a peer in this process.
            timeout: Seconds to wait; None for as long as it takes.

        Raises:
            EncodeError: It cannot be encoded. Nothing was sent.
            ArenaFull: No memory became free in time. Nothing was sent.
            HandoffTimeout: The peer took no messages in time. Nothing was sent.
            PeerClosed: No process holds the other end any more.
            PeerDied: The process at the other end ended without closing it.
        """
        check_timeout(timeout)
        end = self._end
        message = Outgoing(obj, (end,))
        outbox = end.started()
        try:
            if not end.send_now(outbox, message):
                run(end.guarded(outbox.sending(message)), timeout)
            end.record(message)
        finally:
            message.release()

    async def asend(self, obj: object) -> None:
        """As `send`, without blocking the event loop while it waits. May be canceled."""
        end = self._end
        message = Outgoing(obj, (end,))
        outbox = end.started()
        try:
            if not end.send_now(outbox, message):
                await run_async(end.guarded(outbox.sending(message)))
            end.record(message)
        finally:
            message.release()

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
        end = self._end
        end.started()
        inbox = end.inbox  # another thread may close the end when the message was taken
        deadline = deadline_of(timeout)
        end.await_message(timeout)
        packed = end.next()
        if packed is None:
            left = None if deadline is None else max(deadline - time.monotonic(), 0)
            packed = run(end.receiving(), left)
        return inbox.open(packed, end.recorder)

    async def arecv(self) -> Any:
        """As `recv`, without blocking the event loop while it waits. May be canceled."""
        inbox = self._end.inbox
        packed = await run_async(self._end.receiving())
        return inbox.open(packed, self._end.recorder)

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
        outbox = self._end.started()
        tensor: torch.Tensor = run(self._end.guarded(new_tensor(outbox, dims, dtype)), timeout)
        return tensor

    @guarded
    def share(self, tensor: torch.Tensor, timeout: Timeout = None) -> TensorHandle:
        """A handle for a tensor, to send where it need not be resolved.

        Args:
            tensor: A CPU tensor, copied into the arena unless it is there already, or a CUDA
                tensor, which stays where it is.
            timeout: Seconds to wait for memory; None for as long as it takes.

        Returns:
            The handle, of kind `"arena"` or `"cuda_ipc"`, which keeps the memory. Both here
            and at the peer it resolves any number of times, always to the same memory;
            dropping it unresolved frees that too.

        Raises:
            ArenaFull: As `empty`.
            ContractError: The tensor cannot travel.
        """
        check_shareable(tensor)
        pool = self._end.started().pool
        if device_books().backend.owns(tensor):
            return share_on_device(tensor)
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
        outbox = self._end.started()
        try:
            outbox.check_reader()
        except Gone:
            self._end.gone()
        arena_bytes, held = outbox.pool.occupancy()
        with contextlib.suppress(Gone):
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
        self._end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        end = self._end
        state = "closed" if end.is_closed else f"open, peer {end.peer_pid or 'unknown'}"
        return f"<{type(self).__name__} {state}>"

    def __reduce__(self) -> tuple[Any, ...]:
        end = self._end
        if end.is_closed or end.twin is None or end.owner is not None:
            expected = "expected an end of a pair that nobody has used, to give to a process"
            raise HandoffError(f"{expected}, got {self!r}")
        end.receiver = multiprocessing.context.get_spawning_popen()
        if end.receiver is None:
            expected = "expected an end to be pickled as an argument of a process that starts"
            raise HandoffError(f"{expected}, got it pickled for something else")
        copy = multiprocessing.reduction.DupFd(end.link.fileno())
        recording = None if end.recorder is None else end.recorder.recording
        return _unpickled, (copy, end.sizes, recording)


def _unpickled(copy: Any, sizes: Sizes, recording: Recording | None) -> Channel:
    """An end that was given to this process, which says hello at once."""
    end = End(socket.socket(fileno=copy.detach()), sizes, as_recorder(recording))
    end.started()
    return Channel(end)


def check_sizes(arena_bytes: int, max_bytes: int) -> None:
    """Check the sizes of a channel's arenas.

    Raises:
        ContractError: One is not an int, or too small.
    """
    problems: list[Problem] = []
    check_int(problems, ("arena_bytes",), arena_bytes, 1)
    check_int(problems, ("max_bytes",), max_bytes, 0)
    raise_problems("Channel", problems)
