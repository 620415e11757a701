"""How the chunks of one value become that value: one accumulator per `OutputSpec` rule.

An accumulator serves every `OutputKind` with linear work. `value()` gives all that it holds:
the first call concatenates once, later calls append to a buffer that doubles when it is full
and return growing views of it; only the tuple that `Append` gives is made anew, of eight bytes a
chunk. `drop()` forgets what it holds and keeps only its extent, so a client that is sent deltas
costs no memory.
"""

from abc import ABC, abstractmethod
from typing import Self

import torch

from omniwire.contracts.describe import describe, describe_tensor
from omniwire.contracts.errors import AccumulationError
from omniwire.contracts.outputs import Append, Concat, Replace, Stack
from omniwire.contracts.tensors import tensor_problem

Value = torch.Tensor | tuple[torch.Tensor, ...]
"""A tensor, or a tuple of tensors that are chunks in order."""

Rule = Concat | Stack | Replace | Append
"""How the chunks of one key accumulate."""


class Accumulator(ABC):
    """The chunks of one value so far; lives as long as its request.

    A tensor that is added is handed over: it is held, not copied, and must not be written to
    afterwards. A value that was given out is never changed by what is added later.

    A chunk that does not fit raises `AccumulationError` and changes nothing.
    """

    __slots__ = ("max_spare", "nbytes")

    nbytes: int
    """Bytes of tensor memory that this accumulator holds, spare ones included."""

    max_spare: int | None
    """The most bytes that a buffer may allocate beyond what it needs; None for no bound."""

    def __init__(self) -> None:
        self.nbytes = 0
        self.max_spare = None

    @abstractmethod
    def add(self, chunk: Value, *, whole: bool = False) -> None:
        """Add a chunk, or the chunks of a tuple in order: all of them or none.

        Args:
            chunk: What is new.
            whole: Whether a single tensor has the form of the value rather than of one chunk;
                the two differ under `Stack` alone.
        """

    @abstractmethod
    def value(self) -> Value:
        """All that was added since the last `drop`, read-only; there must be something."""

    @abstractmethod
    def drop(self) -> None:
        """Forget what was added, but not how far it reached or what a chunk looks like."""

    def take(self) -> Value | None:
        """`value`, and then `drop`: what a client of deltas is sent. None if there is nothing."""
        if self.empty:
            return None
        value = self.value()
        self.drop()
        return value

    @abstractmethod
    def beyond(self, whole: Value) -> Value:
        """The part of a whole value that lies beyond what was dropped: views of it, or `()`."""

    @abstractmethod
    def restart(self) -> Self:
        """An empty accumulator that accepts what this one does and goes on where it was dropped."""

    @property
    @abstractmethod
    def empty(self) -> bool:
        """Whether nothing was added since the last `drop`."""

    @property
    def spare(self) -> int:
        """Bytes that are allocated for chunks to come."""
        return 0

    def compact(self) -> None:  # noqa: B027  # most have nothing spare
        """Give spare memory back."""


def make_accumulator(rule: Rule) -> Accumulator:
    """A new, empty accumulator for a rule.

    >>> audio = make_accumulator(Concat(-1))
    >>> audio.add(torch.zeros(1, 500))
    >>> audio.add(torch.zeros(1, 300))
    >>> audio.value().shape
    torch.Size([1, 800])
    """
    if isinstance(rule, Concat):
        return _Concatenation(rule.dim)
    if isinstance(rule, Stack):
        return _Stacking(rule.dim)
    return _Replacement() if isinstance(rule, Replace) else _Sequence()


def parts_of(chunk: Value) -> tuple[torch.Tensor, ...]:
    """The tensors of a chunk, in order."""
    return chunk if isinstance(chunk, tuple) else (chunk,)


class _Concatenation(Accumulator):
    """Chunks along one axis; the first one fixes dtype, device, rank and all other sizes."""

    __slots__ = (
        "_axis",
        "_buffer",
        "_device",
        "_dim",
        "_dropped",
        "_dtype",
        "_filled",
        "_fitting",
        "_frame",
        "_pending",
    )

    def __init__(self, dim: int) -> None:
        super().__init__()
        self._dim = dim
        self._axis = dim  # the same, counted from the front, once the rank is known
        self._frame: torch.Size | None = None  # shape of the first chunk
        self._fitting: torch.Size | None = None  # shape last found to fit
        self._dtype: torch.dtype | None = None
        self._device: torch.device | None = None
        self._dropped = 0
        self._pending: list[torch.Tensor] = []
        self._buffer: torch.Tensor | None = None  # follows `_pending` in time: absorbed chunks
        self._filled = 0

    def add(self, chunk: Value, *, whole: bool = False) -> None:
        if isinstance(chunk, tuple):
            mark = self._frame, self._fitting, self._dtype, self._device, self._axis
            try:
                for part in chunk:
                    self._check(part)
            except AccumulationError:
                self._frame, self._fitting, self._dtype, self._device, self._axis = mark
                raise
            self._pending.extend(chunk)
            self.nbytes += sum(part.nbytes for part in chunk)
            return
        if (
            chunk.shape != self._fitting
            or chunk.dtype is not self._dtype
            or chunk.device != self._device
        ):
            self._check(chunk)
        self._pending.append(chunk)
        self.nbytes += chunk.nbytes

    def _check(self, chunk: torch.Tensor, *, copied: bool = True) -> None:
        """Refuse a chunk unlike the first one; its device counts only once it was copied."""
        problem = tensor_problem((), chunk)
        if problem is not None:
            raise _refusal(problem.expected, problem.got)
        frame = self._frame
        if frame is None:
            self._fix_frame(chunk)
            self._device = chunk.device if copied else None
            return
        if self._device is None and copied:
            self._device = chunk.device
        axis, shape = self._axis, chunk.shape
        if (
            len(shape) != len(frame)
            or shape[:axis] != frame[:axis]
            or shape[axis + 1 :] != frame[axis + 1 :]
            or chunk.dtype is not self._dtype
            or (copied and chunk.device != self._device)
        ):
            assert self._dtype is not None
            like = f"{describe_tensor(self._dtype, frame)} on {self._device}"
            expected = f"a chunk like {like}, of any size along dim {axis}"
            raise _refusal(expected, f"{describe(chunk)} on {chunk.device}")
        self._fitting = shape

    def _fix_frame(self, chunk: torch.Tensor) -> None:
        rank = chunk.ndim
        axis = self._dim + rank if self._dim < 0 else self._dim
        if not 0 <= axis < rank:
            raise _refusal(f"a tensor with a dim {self._dim} to concatenate along", describe(chunk))
        self._axis = axis
        self._frame = self._fitting = chunk.shape
        self._dtype = chunk.dtype

    def value(self) -> torch.Tensor:
        buffer, pending = self._buffer, self._pending
        if buffer is None and len(pending) == 1:
            self._buffer = only = pending.pop()
            self._filled = only.shape[self._axis]
            return only
        if pending:
            self._absorb()
            buffer = self._buffer
        assert buffer is not None
        if self._filled == buffer.shape[self._axis]:
            return buffer
        return buffer.narrow(self._axis, 0, self._filled)

    def take(self) -> Value | None:
        pending = self._pending
        if self._buffer is not None or len(pending) != 1:
            return super().take()
        only = pending.pop()  # as at every step of a client that keeps up
        self._dropped += only.shape[self._axis]
        self.nbytes = 0
        return only

    def _absorb(self) -> None:
        """Move the pending chunks into the buffer, without touching what it holds already."""
        axis, pending, buffer = self._axis, self._pending, self._buffer
        if buffer is None:
            self._buffer = torch.cat(pending, axis)
            self._filled = self._buffer.shape[axis]
        else:
            filled = self._filled
            needed = filled + sum(chunk.shape[axis] for chunk in pending)
            if needed > buffer.shape[axis]:
                shape = list(buffer.shape)
                shape[axis] = needed + self._growth(buffer, filled, needed)
                grown = buffer.new_empty(shape)
                grown.narrow(axis, 0, filled).copy_(buffer.narrow(axis, 0, filled))
                self._buffer = buffer = grown
            for chunk in pending:
                size = chunk.shape[axis]
                buffer.narrow(axis, filled, size).copy_(chunk)
                filled += size
            self._filled = filled
        pending.clear()
        self.nbytes = self._buffer.nbytes if self._buffer is not None else 0

    def _growth(self, buffer: torch.Tensor, filled: int, needed: int) -> int:
        """How far beyond `needed` a full buffer grows: to twice its size, if it may."""
        spare = max(0, 2 * filled - needed)
        if spare and self.max_spare is not None:
            slice_bytes = buffer.nbytes // buffer.shape[self._axis]
            spare = min(spare, self.max_spare // max(1, slice_bytes))
        return spare

    @property
    def spare(self) -> int:
        buffer = self._buffer
        if buffer is None or self._filled == buffer.shape[self._axis]:
            return 0
        size = buffer.shape[self._axis]
        return buffer.nbytes // size * (size - self._filled)

    def compact(self) -> None:
        if self._buffer is not None and self.spare:
            spare = self.spare
            self._buffer = self._buffer.narrow(self._axis, 0, self._filled).clone()
            self.nbytes -= spare

    def drop(self) -> None:
        self._dropped += self._filled
        if self._pending:
            self._dropped += sum(chunk.shape[self._axis] for chunk in self._pending)
            self._pending.clear()
        self._buffer = None
        self._filled = self.nbytes = 0

    def beyond(self, whole: Value) -> Value:
        parts = parts_of(whole)
        for part in parts:
            self._check(part, copied=False)
        axis, skip = self._axis, self._dropped
        extent = sum(part.shape[axis] for part in parts)
        if extent < skip:
            raise _shrinking(skip, extent, f"along dim {axis}")
        rest: list[torch.Tensor] = []
        for part in parts:
            size = part.shape[axis]
            if skip < size:
                rest.append(part.narrow(axis, skip, size - skip) if skip else part)
            skip = max(0, skip - size)
        return rest[0] if len(rest) == 1 and not isinstance(whole, tuple) else tuple(rest)

    def restart(self) -> Self:
        fresh = type(self)(self._dim)
        fresh._axis, fresh._frame, fresh._fitting = self._axis, self._frame, self._fitting
        fresh._dtype, fresh._device = self._dtype, self._device
        fresh._dropped = self._dropped
        return fresh

    @property
    def empty(self) -> bool:
        return self._buffer is None and not self._pending


class _Stacking(_Concatenation):
    """Chunks of one shape along a new axis: a concatenation of slices of size one."""

    __slots__ = ()

    def add(self, chunk: Value, *, whole: bool = False) -> None:
        if isinstance(chunk, tuple):
            super().add(tuple(map(self._as_slice, chunk)))
        else:
            super().add(chunk if whole else self._as_slice(chunk))

    def beyond(self, whole: Value) -> Value:
        if not isinstance(whole, tuple):
            return super().beyond(whole)
        if len(whole) < self._dropped:
            raise _shrinking(self._dropped, len(whole), "chunks")
        return whole[self._dropped :]

    def _as_slice(self, chunk: torch.Tensor) -> torch.Tensor:
        if not -chunk.ndim - 1 <= self._dim <= chunk.ndim:
            raise _refusal(f"a tensor that can be stacked along dim {self._dim}", describe(chunk))
        return chunk.unsqueeze(self._dim)


class _Replacement(Accumulator):
    """The last chunk, whatever its shape."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        super().__init__()
        self._last: torch.Tensor | None = None

    def add(self, chunk: Value, *, whole: bool = False) -> None:
        self._last = _only(chunk)
        self.nbytes = self._last.nbytes

    def value(self) -> torch.Tensor:
        assert self._last is not None
        return self._last

    def drop(self) -> None:
        self._last = None
        self.nbytes = 0

    def beyond(self, whole: Value) -> Value:
        return _only(whole)  # of none at all, nothing would tell the client

    def restart(self) -> Self:
        return type(self)()

    @property
    def empty(self) -> bool:
        return self._last is None


class _Sequence(Accumulator):
    """Chunks of any shapes, kept apart."""

    __slots__ = ("_dropped", "_parts")

    def __init__(self) -> None:
        super().__init__()
        self._dropped = 0
        self._parts: list[torch.Tensor] = []

    def add(self, chunk: Value, *, whole: bool = False) -> None:
        parts = parts_of(chunk)
        self._parts.extend(parts)
        self.nbytes += sum(part.nbytes for part in parts)

    def value(self) -> tuple[torch.Tensor, ...]:
        return tuple(self._parts)

    def drop(self) -> None:
        self._dropped += len(self._parts)
        self._parts.clear()
        self.nbytes = 0

    def beyond(self, whole: Value) -> Value:
        parts = parts_of(whole)
        if len(parts) < self._dropped:
            raise _shrinking(self._dropped, len(parts), "chunks")
        return parts[self._dropped :]

    def restart(self) -> Self:
        fresh = type(self)()
        fresh._dropped = self._dropped
        return fresh

    @property
    def empty(self) -> bool:
        return not self._parts


def _only(chunk: Value) -> torch.Tensor:
    parts = parts_of(chunk)
    if len(parts) != 1:
        raise _refusal("one tensor, which replaces the one before", f"a tuple of {len(parts)}")
    return parts[0]


def _refusal(expected: str, got: str) -> AccumulationError:
    # The request, the modality and the key are added by the request's state, which knows them.
    return AccumulationError(f"expected {expected}, got {got}", "")


def _shrinking(emitted: int, extent: int, unit: str) -> AccumulationError:
    return _refusal(f"a whole value of at least the {emitted} {unit} that were sent", str(extent))
