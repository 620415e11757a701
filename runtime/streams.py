"""One value of one request while it streams: a modality's, a declared key's, or the text tokens."""

from collections.abc import Callable
from typing import Any, Final

import torch

from omniwire.contracts.describe import describe
from omniwire.contracts.errors import AccumulationError
from omniwire.contracts.outputs import Concat, OutputKind, Replace
from omniwire.contracts.tensors import tensor_problem
from omniwire.contracts.tokens import TokenIds
from omniwire.runtime.accumulate import Accumulator, Rule, Value, make_accumulator, parts_of
from omniwire.runtime.handlers import ModalityHandler, TensorHandler, inherits
from omniwire.runtime.holdings import Estimate, held_bytes

NO_TOKEN_IDS: Final = TokenIds()


class TensorStream:
    """The value of one modality or declared key; lives as long as its request.

    Args:
        modality: Whose failure it is when this stream fails; `""` for the request's.
        name: The modality or dotted key.
        rule: How chunks accumulate; None leaves it to the handler.
        handler: The modality's handler; None for a declared key, which has a rule.
    """

    __slots__ = (
        "_accumulator",
        "_consolidates",
        "_emitted",
        "_estimate",
        "_foreign",
        "_handler",
        "_is_plain",
        "_rule",
        "_validate",
        "_waiting",
        "has_rule",
        "modality",
        "name",
    )

    has_rule: bool
    """Whether a rule accumulates, which reads no values before they are asked for."""

    def __init__(
        self, modality: str, name: str, rule: Rule | None, handler: ModalityHandler | None
    ) -> None:
        self.modality = modality
        self.name = name
        self._handler = handler
        # A method that a handler has from `TensorHandler` is not called, only what it stands for.
        self._consolidates = rule is None and not inherits(handler, "consolidate")
        self._validate: Callable[[Value], bool] | None = None
        if handler is not None and not inherits(handler, "validate"):
            self._validate = handler.validate
        if rule is None and isinstance(handler, TensorHandler) and inherits(handler, "accumulate"):
            rule = Concat(handler.dim)
        self._rule = rule
        self.has_rule = rule is not None
        self._is_plain = self.has_rule and not self._consolidates and self._validate is None
        self._accumulator: Accumulator | None = None
        self._foreign: Any = None  # what a handler makes that does not use an `Accumulator`
        self._waiting: list[tuple[Value, bool]] = []  # what the handler may not read yet
        self._estimate = Estimate()  # used without a rule
        self._emitted = False

    def add(self, chunk: Value, *, whole: bool = False, arrived: bool = True) -> None:
        """Add a chunk that the stream may keep; all of it or, when it does not fit, nothing.

        Args:
            chunk: A tensor, or a tuple of tensors: chunks in order.
            whole: Whether the chunk is what follows what was emitted, and so replaces what was
                not; a single tensor then has the form of the value, not of one chunk.
            arrived: Whether the chunk's values may be read; a custom handler gets one whose
                values are on their way only when the value is asked for.
        """
        if self._rule is None:
            if whole:
                self._estimate = Estimate()
            self._estimate.add(chunk)
            self._waiting.append((chunk, whole))
            if arrived:
                self._hand_over_waiting()
            return
        accumulator = self._accumulator
        if accumulator is None:
            accumulator = make_accumulator(self._rule)
        elif whole:
            accumulator = accumulator.restart()
        accumulator.add(chunk, whole=whole)
        self._accumulator = accumulator

    def _hand_over_waiting(self) -> None:
        waiting = self._waiting
        self._waiting = []
        for chunk, whole in waiting:
            self._hand_over(chunk, whole=whole)

    def _hand_over(self, chunk: Value, *, whole: bool) -> None:
        """Let the handler accumulate, one tensor at a time."""
        assert self._handler is not None
        existing: Any = None
        if not whole:
            existing = self._foreign if self._accumulator is None else self._accumulator
        elif self._accumulator is not None:
            existing = self._accumulator.restart()
        for part in parts_of(chunk):
            existing = self._handler.accumulate(existing, part)
        known = isinstance(existing, Accumulator)
        self._accumulator, self._foreign = (existing, None) if known else (None, existing)

    def beyond(self, whole: Value) -> Value:
        """The part of a whole value that lies beyond what was emitted: views of it, or `()`.

        It is all of the value as long as nothing was emitted. So the client also gets a value
        without extent, which is a value nonetheless.

        Raises:
            AccumulationError: The value is shorter than what was emitted, or nothing is known
                about how a custom handler's value would be cut.
        """
        if not self._emitted:
            return whole
        if self._accumulator is None:
            expected = "a delta chunk, or a rule in the OutputSpec to cut a whole value by"
            raise AccumulationError(f"expected {expected}, got a whole value", "")
        return self._accumulator.beyond(whole)

    def value(self) -> Value | None:
        """All that the stream holds, as the handler allows it to be emitted; None if nothing.

        Every chunk's values must have arrived.
        """
        if self._waiting:
            self._hand_over_waiting()
        handler, accumulator = self._handler, self._accumulator
        if self._foreign is None and (accumulator is None or accumulator.empty):
            return None
        value: Value
        if self._rule is None or self._consolidates:
            assert handler is not None
            value = handler.consolidate(self._foreign if accumulator is None else accumulator)
            _check_consolidated(handler, value)
        else:
            assert accumulator is not None
            value = accumulator.value()
        if self._validate is not None and not self._validate(value):
            expected = f"a value that {type(handler).__name__}.validate accepts"
            raise AccumulationError(f"expected {expected}, got {_describe_value(value)}", "")
        return value

    def take(self) -> Value | None:
        """`value`, of which only the extent is kept then: what a client of deltas is sent."""
        accumulator = self._accumulator
        if self._is_plain:
            value = None if accumulator is None else accumulator.take()
        else:
            value = self.value()
            self._foreign = None
            self._estimate = Estimate()
            if self._accumulator is not None:
                self._accumulator.drop()
        if value is not None:
            self._emitted = True
        return value

    def restart(self) -> None:
        """Forget what was not emitted."""
        if self._accumulator is not None:
            self._accumulator = self._accumulator.restart()
        self._foreign = None
        self._waiting = []
        self._estimate = Estimate()

    def discard(self) -> None:
        """Forget everything."""
        self._accumulator = self._foreign = None
        self._waiting = []
        self._estimate = Estimate()

    @property
    def nbytes(self) -> int:
        """Bytes of tensor memory that the stream holds."""
        held = 0 if self._accumulator is None else self._accumulator.nbytes
        if self._foreign is not None or self._waiting:
            held += held_bytes((self._foreign, self._waiting))
        return held

    def estimate(self) -> int:
        """About `nbytes` without `spare`, in a time that does not grow with the chunks."""
        if self.has_rule:
            return self.nbytes - self.spare
        return self._estimate.nbytes(lambda: self.nbytes - self.spare)

    @property
    def replaces(self) -> bool:
        """Whether each chunk replaces the one before."""
        return isinstance(self._rule, Replace)

    @property
    def spare(self) -> int:
        """The part of `nbytes` that is allocated for chunks to come."""
        return 0 if self._accumulator is None else self._accumulator.spare

    def limit_spare(self, max_spare: int) -> None:
        """Bound what the next growth of a buffer may allocate for chunks to come."""
        if self._accumulator is not None:
            self._accumulator.max_spare = max_spare

    def compact(self) -> None:
        """Give spare memory back."""
        if self._accumulator is not None:
            self._accumulator.compact()


def _check_consolidated(handler: ModalityHandler, value: object) -> None:
    for part in value if isinstance(value, tuple) else (value,):
        if not isinstance(part, torch.Tensor) or tensor_problem((), part) is not None:
            expected = f"a tensor or a tuple of tensors from {type(handler).__name__}.consolidate"
            raise AccumulationError(f"expected {expected}, got {describe(value)}", "")


def _describe_value(value: Value) -> str:
    return describe(value) if isinstance(value, torch.Tensor) else ", ".join(map(describe, value))


class TokenStream:
    """The text tokens of one request; lives as long as the request.

    A chunk brings its step's new tokens, whatever its kind says of its model output.

    Args:
        kind: What the client is sent. Under `DELTA` nothing that was sent is kept.
    """

    __slots__ = ("_end", "_held", "_kind")

    def __init__(self, kind: OutputKind) -> None:
        self._kind = kind
        self._held = bytearray()  # packed little-endian int32, as in `TokenIds`
        self._end = 0  # under `CUMULATIVE`, how much of it is filled

    def add(self, token_ids: TokenIds) -> None:
        """Add a step's new token ids."""
        packed = token_ids._packed
        if self._kind is not OutputKind.CUMULATIVE:
            self._held += packed
            return
        # What was emitted are views of the buffer: only what lies beyond them is written to,
        # and a full buffer is left to them.
        start, end = self._end, self._end + len(packed)
        if end > len(self._held):
            grown = bytearray(2 * end)
            grown[:start] = memoryview(self._held)[:start]
            self._held = grown
        self._held[start:end] = packed
        self._end = end

    def take(self) -> TokenIds:
        """What to emit now, never changed by what is added later.

        Under `CUMULATIVE` it is a view of a buffer of at most twice its size, else a copy.
        """
        if not self._held:
            return NO_TOKEN_IDS
        if self._kind is OutputKind.CUMULATIVE:
            shown = memoryview(self._held)[: self._end].toreadonly()
            return TokenIds._trusted(_packed=shown)
        token_ids = TokenIds._trusted(_packed=bytes(self._held))
        if self._kind is OutputKind.DELTA:
            self._held.clear()
        return token_ids
