"""`OmniRequestState`: what one running request has accumulated, and what it emits of it."""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import torch

from omniwire.contracts.checks import check_int, check_text, raise_problems
from omniwire.contracts.describe import describe
from omniwire.contracts.errors import AccumulationError, OmniwireError, Problem
from omniwire.contracts.frozen import FrozenMapping
from omniwire.contracts.guard import guarded
from omniwire.contracts.outputs import (
    ChunkKind,
    OmniOutput,
    OutputChunk,
    OutputKind,
    OutputSpec,
    RequestOutput,
    trusted_output,
)
from omniwire.runtime.accumulate import Rule, Value, parts_of
from omniwire.runtime.failures import name_failure, without_frames
from omniwire.runtime.host_copies import HostCopies
from omniwire.runtime.payloads import (
    Routed,
    Scalar,
    extracted_keys,
    plain_keys,
    read_output,
    read_plain,
    split_payload,
)
from omniwire.runtime.registry import ModalityRegistry
from omniwire.runtime.router import OutputRouter
from omniwire.runtime.streams import TensorStream, TokenStream

FAILED: Final = "error"
"""The `finish_reason` of a request that failed as a whole."""

_TEXT: Final = "text"
_EMPTY: Final[FrozenMapping[Any]] = FrozenMapping({})

V = TypeVar("V")
_Take = Callable[[torch.Tensor], torch.Tensor]
_Route = tuple[Routed, dict[str, str], str]
"""The handlers of an output type, its plain keys, and the modality of all of these if it is one."""


class _NoRoomError(AccumulationError):
    """A chunk is more than the request may hold: a failure of the request, not of a modality."""


class OmniRequestState:
    """The accumulated output of one request; lives from its start to its end.

    Args:
        request_id: Non-empty.
        output_type: The request's modalities, such as `"text+audio"`.
        registry: The engine's handlers; the state keeps those that it finds now.
        spec: How values accumulate where the handlers' own rules do not apply.
        output_kind: What the client is sent; it decides what has to be kept.
        max_retained_bytes: The most bytes of tensor memory that it may hold; None for no bound.

    Raises:
        ContractTypeError: An argument has the wrong type.
        ContractValueError: The id is empty, the output type malformed, the bound negative, or
            the spec has a rule for text, which is no tensor.
        HandlerNotFoundError: A part of the output type is not registered.

    >>> from omniwire.runtime.registry import default_registry
    >>> state = OmniRequestState("r1", "text+audio", registry=default_registry())
    >>> state.add_output("audio", torch.zeros(1, 500))
    >>> state.add_output("audio", {"waveform": torch.zeros(1, 300), "sample_rate": 24000})
    >>> state.consolidate()["audio"].shape, state.retained_bytes
    (torch.Size([1, 800]), 3200)
    """

    @guarded
    def __init__(
        self,
        request_id: str,
        output_type: str,
        registry: ModalityRegistry,
        spec: OutputSpec | None = None,
        output_kind: OutputKind = OutputKind.FINAL_ONLY,
        max_retained_bytes: int | None = None,
    ) -> None:
        problems: list[Problem] = []
        check_text(problems, ("request_id",), request_id)
        if max_retained_bytes is not None:
            check_int(problems, ("max_retained_bytes",), max_retained_bytes, 0)
        rules: dict[str, Rule] = dict(spec.entries) if spec is not None else {}
        if _TEXT in rules:
            path = ("spec", "entries", _TEXT)
            problems.append(Problem(path, "conflict", "a key of tensors", "text, which has none"))
        raise_problems("OmniRequestState", problems)
        self.request_id = request_id
        self.output_kind = output_kind
        self.finish_reason: str | None = None  # why the request has ended, None while it runs
        self.emits_later = False  # whether what is new may wait, for a client that reads it
        self._due = False
        self._incremental = output_kind is OutputKind.DELTA
        self._emits_steps = output_kind is not OutputKind.FINAL_ONLY
        self._max_retained_bytes = max_retained_bytes
        self._copies = HostCopies()
        self._registry = registry
        self._router = OutputRouter(registry)
        self._routed: Routed = [
            (modality, handler, extracted_keys(handler))
            for modality, handler in self._router.route(None, output_type)
            if modality != _TEXT
        ]
        self._streams = {
            modality: TensorStream(modality, modality, rules.pop(modality, None), handler)
            for modality, handler, _ in self._routed
        }
        # A declared key is part of the one non-text modality; with several, of the request.
        owner = self._routed[0][0] if len(self._routed) == 1 else ""
        self._declared = rules.keys()
        self._all_streams = dict(self._streams)
        for key, rule in rules.items():
            self._all_streams[key] = TensorStream(owner, key, rule, None)
        self._routes = {output_type: self._plan(self._routed)}
        self._tokens = TokenStream(output_kind)
        self._metadata: dict[str, dict[str, Scalar]] = {}
        self._emitted_metadata: FrozenMapping[FrozenMapping[Scalar]] = _EMPTY
        self._has_new_metadata = False
        self._errors: dict[str, OmniwireError] = {}
        self._next_step = 0

    # ---- one modality at a time -------------------------------------------------------

    def add_output(self, modality: str, payload: object) -> None:
        """Add one chunk of one modality, as its handler's `extract` would yield it.

        A tensor that owns its memory is held as it is and must not be written to afterwards.
        A view of a larger tensor is copied, and so is memory that torch did not allocate, such
        as a slot of a shared-memory arena. What is on a device is copied to the host.

        Args:
            modality: A modality of the request, or an alias of one.
            payload: A tensor, a tuple or list of tensors (chunks in order), or a mapping with
                one of those and its scalars and strings.

        Raises:
            AccumulationError: The request has no such modality, the chunk does not fit what
                was added before, or there is no room for it; nothing changed.
        """
        stream = self._streams.get(modality)
        if stream is None:
            stream = self._find_stream(modality)
        try:
            if type(payload) is torch.Tensor:
                self._add_chunk(stream, payload, self._owned)
            else:
                self._add_payload(stream, payload, self._owned)
        except _NoRoomError as error:
            raise name_failure(error, self.request_id, stream.modality, "") from None
        except Exception as error:  # noqa: BLE001  # a handler may raise anything
            named = name_failure(error, self.request_id, stream.modality, stream.name)
            raise named from named.__cause__

    def _find_stream(self, modality: str) -> TensorStream:
        handler = self._registry.get(modality)
        name = modality if handler is None else handler.modality
        if name in self._streams:
            return self._streams[name]
        expected = f"one of the request's modalities ({self._spelled()})"
        got = describe(modality)
        raise AccumulationError(f"expected {expected}, got {got}", self.request_id)

    def consolidate(self) -> dict[str, Value]:
        """The value of every modality that has one; the state stays as it is.

        Returns:
            By modality, all that it holds: a tensor, or a tuple of tensors under `Append`;
            read-only, and not changed by later chunks.

        Raises:
            AccumulationError: A handler failed, or calls its own value invalid.
        """
        self._copies.wait()
        values: dict[str, Value] = {}
        for modality, stream in self._streams.items():
            try:
                value = stream.value()
            except Exception as error:  # noqa: BLE001  # a handler may raise anything
                named = name_failure(error, self.request_id, modality, "")
                raise named from named.__cause__
            if value is not None:
                values[modality] = value
        return values

    @property
    def retained_bytes(self) -> int:
        """Bytes of tensor memory that the state holds."""
        return sum(stream.nbytes for stream in self._all_streams.values())

    def _spelled(self) -> str:
        return ", ".join(self._streams) or "text alone"

    # ---- one step at a time -----------------------------------------------------------

    def advance(self, chunk: OutputChunk) -> RequestOutput | None:
        """Take in the request's next chunk; what the client is sent now, if anything."""
        return self.emit() if self.take_in(chunk) else None

    def take_in(self, chunk: OutputChunk) -> bool:
        """Take in the request's next chunk; whether there is something to emit.

        Every tensor is copied; the chunk may be gone afterwards. What is wrong with a chunk is
        in the `errors` of what is emitted next, never raised.
        """
        try:
            carries = self._take_in(chunk)
        except OmniwireError as error:
            self.fail(error)
            return True
        if "" in self._errors:
            self.finish_reason = FAILED
        elif chunk.finish_reason is not None:
            self.finish_reason = chunk.finish_reason
        if carries and self._emits_steps:
            self._due = True
        return self._due or self.finish_reason is not None

    def fail(self, error: OmniwireError) -> None:
        """End the request with an error of its own; `emit` gives it, and what there is."""
        self._record("", error)
        self.finish_reason = FAILED

    def release(self) -> None:
        """Let go of all that was accumulated."""
        for stream in self._all_streams.values():
            stream.discard()
        self._tokens = TokenStream(self.output_kind)

    @property
    def copies(self) -> HostCopies:
        """The copies of chunks, which `emit` waits for."""
        return self._copies

    def _take_in(self, chunk: OutputChunk) -> bool:
        """Add what a chunk carries; whether it carries anything.

        Raises:
            OmniwireError: The request fails as a whole; nothing was added.
        """
        if chunk.step != self._next_step:
            fault = "a step is missing" if chunk.step > self._next_step else "a repeated step"
            message = f"expected step {self._next_step}, got {chunk.step}: {fault}"
            raise AccumulationError(message, self.request_id)
        self._next_step += 1
        known = self._routes.get(chunk.output_type)
        route = self._route(chunk.output_type) if known is None else known
        token_ids, output = chunk.new_token_ids, chunk.output
        carries = False
        if token_ids._packed:
            carries = True
            self._tokens.add(token_ids)
        if output is not None and output.multimodal_outputs._values:
            carries = True
            self._take_in_output(output, route, whole=chunk.kind is not ChunkKind.DELTA)
        return carries

    def _plan(self, routed: Routed) -> _Route:
        """How to read an output of some of the request's modalities."""
        plain = {} if self._declared else plain_keys(routed)
        return routed, plain, routed[0][0] if plain and len(routed) == 1 else ""

    def _route(self, output_type: str) -> _Route:
        """The handlers of a chunk whose output type is not spelled as the request's is."""
        modalities = [name for name, _ in self._router.route(None, output_type)]
        if not self._streams.keys() >= set(modalities) - {_TEXT}:
            message = f"expected modalities of {self._spelled()}, got {describe(output_type)}"
            raise AccumulationError(message, self.request_id)
        routed = [known for known in self._routed if known[0] in modalities]
        route = self._routes[output_type] = self._plan(routed)
        return route

    def _take_in_output(self, output: OmniOutput, route: _Route, *, whole: bool) -> None:
        routed, plain, single = route
        parts = read_plain(output.multimodal_outputs._values, plain, single)
        if parts is None:
            parts, failures = read_output(output, routed, self._declared)
            for modality, key, failure in failures:
                self._record(modality, failure, key)
        for name, key, part in parts:
            stream = self._all_streams[name]
            if stream.modality in self._errors:
                continue  # what comes after a failure would leave a hole in the value
            try:
                if type(part) is torch.Tensor:
                    self._add_chunk(stream, part, self._copies.copy, whole=whole)
                elif not key and type(part) is dict:  # flat scalars
                    self._pin_scalars(stream.modality, self._fresh_scalars(stream.modality, part))
                else:
                    self._add_payload(stream, part, self._copies.copy, whole=whole)
            except _NoRoomError as error:
                self._record("", error)
                return
            except Exception as error:  # noqa: BLE001  # a handler may raise anything
                modality = stream.modality
                self._record(modality, name_failure(error, self.request_id, modality, key))

    def _record(self, modality: str, error: Exception, key: str = "") -> None:
        """Keep a modality's first error; it stays until the request ends."""
        if modality not in self._errors:
            named = isinstance(error, OmniwireError) and not modality
            if not named or isinstance(error, AccumulationError):
                error = name_failure(error, self.request_id, modality, key)
            assert isinstance(error, OmniwireError)
            without_frames(error)
            self._errors[modality] = error

    # ---- one payload ------------------------------------------------------------------

    def _add_payload(
        self, stream: TensorStream, payload: object, take: _Take, *, whole: bool = False
    ) -> None:
        """Add a payload to a stream, all of it or nothing.

        Args:
            stream: A modality's or a declared key's.
            payload: Several chunks, or a mapping of chunks and scalars.
            take: Makes a tensor the state's own.
            whole: Whether the chunk is the whole value so far.

        Raises:
            AccumulationError: It does not fit what was added before, or there is no room for it.
                Its key is one inside the payload.
            Exception: Whatever a handler raises.
        """
        nested, chunk, scalars = split_payload(payload)
        fresh = self._fresh_scalars(stream.modality, scalars)
        if chunk is not None:
            try:
                self._add_chunk(stream, chunk, take, whole=whole)
            except _NoRoomError:
                raise
            except Exception as error:  # noqa: BLE001  # a handler may raise anything
                named = name_failure(error, self.request_id, stream.modality, nested)
                raise named from named.__cause__
        self._pin_scalars(stream.modality, fresh)

    def _add_chunk(
        self, stream: TensorStream, chunk: Value, take: _Take, *, whole: bool = False
    ) -> None:
        if whole and self._incremental:
            chunk = stream.beyond(chunk)
        if self._max_retained_bytes is not None and (self.emits_later or not self._incremental):
            self._check_room(stream, chunk, restart=whole)
        if not isinstance(chunk, tuple):
            chunk = take(chunk)
        elif chunk:
            chunk = tuple(map(take, chunk))
        else:
            if whole:
                stream.restart()
            return
        stream.add(chunk, whole=whole, arrived=stream.has_rule or not self._copies.unfinished)

    def _owned(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor itself if it has host memory of its own, and else a copy."""
        storage = tensor.untyped_storage()
        if (
            not tensor.is_cpu
            or tensor.requires_grad
            or storage.nbytes() != tensor.nbytes
            or not storage.resizable()
        ):
            return self._copies.copy(tensor)
        return tensor

    def _check_room(self, stream: TensorStream, chunk: Value, *, restart: bool) -> None:
        """Refuse a chunk with which the request would hold too much, before it is copied."""
        assert self._max_retained_bytes is not None
        new = sum(part.nbytes for part in parts_of(chunk))
        kept = [
            other
            for other in self._all_streams.values()
            if other is not stream or not (restart or stream.replaces)
        ]
        if new + sum(other.estimate() for other in kept) <= self._max_retained_bytes:
            return
        needed = new + sum(other.nbytes - other.spare for other in kept)
        if needed > self._max_retained_bytes:
            message = f"expected at most {self._max_retained_bytes} retained bytes, got {needed}"
            raise _NoRoomError(message, self.request_id, stream.modality, stream.name)

    def _fresh_scalars(self, modality: str, scalars: Mapping[str, Scalar]) -> Mapping[str, Scalar]:
        """The scalars that no chunk has pinned before; the others must be the same as then."""
        pinned = self._metadata.get(modality, {})
        fresh: dict[str, Scalar] = {}
        for key, value in scalars.items():
            if key not in pinned:
                fresh[key] = value
            elif not _agree(pinned[key], value):
                message = f"expected {describe(pinned[key])} as before, got {describe(value)}"
                raise AccumulationError(message, self.request_id, modality, key)
        return FrozenMapping(fresh) if fresh else fresh

    def _pin_scalars(self, modality: str, fresh: Mapping[str, Scalar]) -> None:
        if fresh:
            self._metadata.setdefault(modality, {}).update(fresh)
            self._has_new_metadata = True

    # ---- emission ---------------------------------------------------------------------

    def emit(self) -> RequestOutput:
        """What the client is sent: what is new if it wants deltas, and else all so far."""
        self._due = False
        self._copies.wait()
        values: dict[str, Value] = {}
        tensors: dict[str, Value] = {}
        bounded = self._max_retained_bytes is not None
        for stream in self._all_streams.values():
            if bounded:
                self._limit_spare(stream)
            try:
                value = stream.take() if self._incremental else stream.value()
            except Exception as error:  # noqa: BLE001  # any fault of a handler fails its modality
                stream.discard()
                self._record(stream.modality, error)
                continue
            if value is not None:
                name = stream.name
                (tensors if name in self._declared else values)[name] = value
        if bounded and self.retained_bytes > self._max_retained_bytes:  # type: ignore[operator]  # there is one
            for stream in self._all_streams.values():
                stream.compact()
        if "" in self._errors:
            self.finish_reason = FAILED
        if self._has_new_metadata:
            self._has_new_metadata = False
            each = {key: _frozen(dict(scalars)) for key, scalars in self._metadata.items()}
            self._emitted_metadata = _frozen(each)
        return trusted_output(
            self.request_id,
            self._tokens.take(),
            _frozen(values) if values else _EMPTY,
            self._emitted_metadata,
            _frozen(tensors) if tensors else _EMPTY,
            self.finish_reason is not None,
            self.finish_reason,
            _frozen(dict(self._errors)) if self._errors else _EMPTY,
        )

    def _limit_spare(self, stream: TensorStream) -> None:
        """Let a buffer grow by half of the room that is left.

        So the bound is never passed for memory that is not needed yet, and the number of times
        that a buffer grows on the way to the bound is still a logarithm.
        """
        assert self._max_retained_bytes is not None
        others = sum(other.nbytes for other in self._all_streams.values() if other is not stream)
        needed = stream.nbytes - stream.spare
        stream.limit_spare(max(0, self._max_retained_bytes - others - needed) // 2)


def _frozen(values: dict[str, V]) -> FrozenMapping[V]:
    """A field of a `RequestOutput`: at most tuples in one mapping, so two levels deep."""
    return FrozenMapping._wrap(values, 2)


def _agree(pinned: Scalar, value: Scalar) -> bool:
    """Whether two scalars are the same: 24000 is 24000.0, but 1 is not True; NaN is NaN."""
    if isinstance(pinned, bool) is not isinstance(value, bool):
        return False
    return pinned == value or (pinned != pinned and value != value)  # noqa: PLR0124  # NaN
