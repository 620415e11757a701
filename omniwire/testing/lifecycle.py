"""`RequestLifecycle`: requests that start, stream, fail, end and come back, in any order."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final, Protocol

import attrs
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.strategies import DataObject, SearchStrategy

from omniwire.contracts import (
    ContractValueError,
    OmniOutput,
    OutputChunk,
    OutputKind,
    OutputSpec,
    ProcessedRequest,
    RequestOutput,
)
from omniwire.runtime import MultimodalOutputProcessor
from omniwire.testing.live_request import (
    LiveRequest,
    check_alone,
    check_run,
    check_same_story,
    fail,
)
from omniwire.testing.strategies import tensors

_TEXT: Final = "text"
_SHAPES: Final = st.just((2, 2))  # the same along every axis, whichever a handler joins along
_TOKENS: Final = st.lists(st.integers(0, 99), max_size=2)
_NUM_STEPS: Final = st.integers(1, 4)
_REASONS: Final = st.sampled_from([*[None] * 5, "stop"])


class OutputProcessor(Protocol):
    """What a lifecycle asks of an output processor; `MultimodalOutputProcessor` has it all."""

    def add_request(
        self,
        request_id: str,
        output_type: str,
        spec: OutputSpec | None = None,
        output_kind: OutputKind = OutputKind.FINAL_ONLY,
    ) -> None:
        """Start a request; a `ContractValueError` if it runs already."""
        ...

    def process_outputs(self, chunks: Sequence[OutputChunk]) -> list[RequestOutput]:
        """Take in chunks; what clients are sent now."""
        ...

    def abort(self, request_id: str) -> None:
        """End a request without output; an unknown id is ignored."""
        ...

    @property
    def num_requests(self) -> int:
        """Running requests."""
        ...

    @property
    def retained_bytes(self) -> int:
        """Bytes held for running requests."""
        ...

    @property
    def num_late_chunks(self) -> int:
        """Chunks that came for no running request so far."""
        ...


@dataclass
class _Sent:
    """A chunk on its way from the executor to the processor."""

    chunk: OutputChunk
    spoiled: frozenset[str] = frozenset()


class RequestLifecycle(RuleBasedStateMachine):
    """A Hypothesis state machine that puts requests through all that can happen to them.

    Requests are submitted, under new ids and ones used before; an executor makes chunks of
    several of them at a time; chunks are on their way for a while, and get lost, come twice
    or carry something that a modality cannot take; requests are aborted while chunks are on
    their way. Each request runs once for every `OutputKind` (`runs`), in one processor.

    Whatever the order:

    - a request ends exactly once: with one finished output, the last, or without any by an
      abort; the reason is that of its last chunk;
    - a missing or repeated chunk ends its request with an error under `""`, and a part that a
      modality cannot take fails that modality; nothing else has errors, and `process_outputs`
      raises none;
    - chunks that come after the end are ignored and counted;
    - what a client is sent is what it would be sent if nothing else had ever run, whatever
      used the id before, and is not changed afterwards;
    - the runs of a request tell the same story: the same tokens, reason and errors (unless
      chunks carry whole values), and the last values of `CUMULATIVE` are those of `FINAL_ONLY`;
    - an executor numbers the chunks of a request from 0 and sends none after its last;
    - when nothing runs, nothing is retained.

    Subclass it and say what is under test; every method up to `ended` has a default, which
    tests `MultimodalOutputProcessor` with a stand-in for the executor:

    >>> from hypothesis import settings
    >>> import omniwire as ow
    >>> class DepthHandler(ow.TensorHandler):
    ...     modality, keys, dim = "depth", ("depth",), 0
    >>> class DepthLifecycle(RequestLifecycle):
    ...     output_type = "text+depth"
    ...     def make_processor(self):
    ...         registry = ow.default_registry()
    ...         registry.register(DepthHandler())
    ...         return ow.MultimodalOutputProcessor(registry)
    >>> TestDepth = DepthLifecycle.TestCase  # which pytest and unittest collect
    >>> TestDepth.settings = settings(max_examples=5, database=None, deadline=None)
    >>> TestDepth("runTest").runTest()
    """

    output_type: ClassVar[str] = "text+audio"
    """Of every request."""

    spec: ClassVar[OutputSpec | None] = None
    """Of every request."""

    runs: ClassVar[Mapping[str, OutputKind]] = {kind.name.lower(): kind for kind in OutputKind}
    """The runs of each request: the processor knows it as `id/name`."""

    max_requests: ClassVar[int] = 3
    """Most requests at a time."""

    processor: OutputProcessor
    """The processor under test."""

    running: dict[str, LiveRequest]
    """Requests that have not ended, by id."""

    producing: dict[str, int]
    """Requests that the executor is at work on, and the steps of their next chunks."""

    def __init__(self) -> None:
        super().__init__()
        self._error_before = sys.exc_info()[1]
        self.processor = self.make_processor()
        self.running = {}
        self.producing = {}
        self._in_flight: list[_Sent] = []
        self._used: list[str] = []
        self._num_late = 0

    # ---- what is under test ---------------------------------------------------------------

    def make_processor(self) -> OutputProcessor:
        """A new output processor; called for the one under test, and to run requests alone."""
        return MultimodalOutputProcessor()

    def requests(self) -> SearchStrategy[ProcessedRequest]:
        """Requests to submit; their ids are replaced."""
        return st.just(ProcessedRequest("r", [1, 2, 3]))

    def submit(self, request: ProcessedRequest) -> None:
        """Give a request to the executor; the stand-in needs nothing of it."""

    def produce(self, data: DataObject) -> Sequence[OutputChunk]:
        """Let the executor make a step; the chunks of it, in the order in which they are sent.

        The stand-in makes a chunk for some of the requests in `producing`.
        """
        names = st.lists(st.sampled_from(sorted(self.producing)), min_size=1, unique=True)
        return [self.draw_chunk(data, name) for name in data.draw(names)]

    def cancel(self, request_id: str) -> None:
        """Tell the executor that a request was aborted or has failed, before its last chunk."""

    def parts(self) -> Mapping[str, SearchStrategy[Mapping[str, object]]]:
        """By modality, what the stand-in adds to the payload of a chunk, as top-level keys.

        By default a small tensor under the modality's name, for each modality of `output_type`
        but text. The faults that are injected are made of these, too.
        """
        plain = tensors(dtypes=[torch.float32], shapes=_SHAPES, memory_layouts=["contiguous"])
        names = [name for name in self.output_type.split("+") if name != _TEXT]
        return {name: st.fixed_dictionaries({name: plain}) for name in names}

    def draw_chunk(self, data: DataObject, request_id: str) -> OutputChunk:
        """The stand-in's next chunk of a request."""
        payload: dict[str, object] = {}
        for part in self._parts.values():
            if data.draw(st.booleans()):
                payload.update(data.draw(part))
        return OutputChunk(
            request_id,
            self.producing[request_id],
            self.output_type,
            data.draw(_TOKENS),
            OmniOutput(multimodal_outputs=payload) if payload else None,
            finish_reason=data.draw(_REASONS),
        )

    def add(self, processor: OutputProcessor, request: ProcessedRequest, run: str) -> None:
        """Start a run of a request in a processor: the one under test, or one of its own."""
        name, kind = f"{request.request_id}/{run}", self.runs[run]
        processor.add_request(name, self.output_type, self.spec, kind)

    def feed(self, chunks: Sequence[OutputChunk]) -> Sequence[RequestOutput]:
        """Give chunks to the processor; what clients are sent."""
        return self.processor.process_outputs(chunks)

    def abort(self, request_id: str, run: str) -> None:
        """End a run of a request in the processor under test."""
        self.processor.abort(f"{request_id}/{run}")

    def retained(self) -> Mapping[str, int]:
        """By name, what is held; all must be 0 when nothing runs. Add what the executor holds."""
        return {
            "requests": self.processor.num_requests,
            "bytes": self.processor.retained_bytes,
        }

    def ended(self, request: LiveRequest) -> None:
        """A request has ended by itself: compare its outputs with its chunks, if you like."""

    # ---- what happens ---------------------------------------------------------------------

    @precondition(lambda self: len(self.running) < self.max_requests)
    @rule(data=st.data())
    def submit_request(self, data: DataObject) -> None:
        """A request starts, under a new id or under one of a request that has ended."""
        on_their_way = {sent.chunk.request_id for sent in self._in_flight}
        taken = on_their_way.union(self.running, self.producing)
        free = [name for name in self._used if name not in taken]
        fresh = f"r{len(self._used)}"
        name = data.draw(st.sampled_from([fresh, *free]))
        if name == fresh:
            self._used.append(name)
        request = attrs.evolve(data.draw(self._requests), request_id=name)
        self.running[name] = LiveRequest(request)
        self.producing[name] = 0
        for run in self.runs:
            self.add(self.processor, request, run)
        self.submit(request)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def submit_again(self, data: DataObject) -> None:
        """A request that runs is submitted again: refused, and nothing changes."""
        name = data.draw(st.sampled_from(sorted(self.running)))
        try:
            self.add(self.processor, self.running[name].request, next(iter(self.runs)))
        except ContractValueError:
            return
        raise AssertionError(f"{name}: expected to be refused while it runs, got accepted")

    @precondition(lambda self: self.producing)
    @rule(data=st.data())
    def run(self, data: DataObject) -> None:
        """The executor makes some steps, whose chunks arrive one by one."""
        for _ in range(data.draw(_NUM_STEPS)):
            if self.producing:
                self._step(data)
                self._deliver(self._in_flight)

    @precondition(lambda self: self.producing)
    @rule(data=st.data())
    def step(self, data: DataObject) -> None:
        """The executor makes a step, whose chunks are on their way."""
        self._step(data)

    @precondition(lambda self: self._in_flight)
    @rule(data=st.data())
    def deliver(self, data: DataObject) -> None:
        """Some of the chunks on their way arrive, in order."""
        count = data.draw(st.integers(1, len(self._in_flight)))
        self._deliver(self._in_flight[:count])

    @precondition(lambda self: self._in_flight)
    @rule(data=st.data())
    def lose_chunk(self, data: DataObject) -> None:
        """A chunk gets lost: the next one of its request leaves a gap."""
        del self._in_flight[data.draw(st.integers(0, len(self._in_flight) - 1))]

    @precondition(lambda self: self._in_flight)
    @rule(data=st.data())
    def repeat_chunk(self, data: DataObject) -> None:
        """A chunk is sent twice."""
        index = data.draw(st.integers(0, len(self._in_flight) - 1))
        place = data.draw(st.sampled_from([index + 1, len(self._in_flight)]))
        self._in_flight.insert(place, self._in_flight[index])

    @precondition(lambda self: self._parts and any(self.producing.values()))
    @rule(data=st.data())
    def step_badly(self, data: DataObject) -> None:
        """A step in which a chunk has tensors of another rank and data type than those before."""
        first = len(self._in_flight)
        self._step(data)
        numbers = range(first, len(self._in_flight))
        later = [number for number in numbers if self._in_flight[number].chunk.step]
        if later:
            number = data.draw(st.sampled_from(later))
            modality = data.draw(st.sampled_from(sorted(self._parts)))
            self._in_flight[number] = self._spoiled(data, self._in_flight[number], modality)

    # Not of one that is alone and quiet, or few would come to their end; `teardown` does that.
    @precondition(lambda self: self.running and (self._in_flight or len(self.running) > 1))
    @rule(data=st.data())
    def abort_request(self, data: DataObject) -> None:
        """A request is aborted; chunks of it that are on their way will come too late."""
        self._abort(data.draw(st.sampled_from(sorted(self.running))))

    # ---- what always holds ----------------------------------------------------------------

    @invariant()
    def only_what_runs_is_known(self) -> None:
        """The processor knows the running requests and no others, and counts what came late."""
        expected = len(self.running) * len(self.runs)
        if self.processor.num_requests != expected:
            fail("processor", f"{expected} requests", f"{self.processor.num_requests}")
        if self.processor.num_late_chunks != self._num_late:
            late = self.processor.num_late_chunks
            fail("processor", f"{self._num_late} late chunks", f"{late}")

    @invariant()
    def nothing_is_retained_when_nothing_runs(self) -> None:
        """See `retained`."""
        if not self.running and not self.producing:
            held = {name: count for name, count in self.retained().items() if count}
            if held:
                fail("nothing runs", "nothing retained", f"{held}")

    def check_run(self, request: LiveRequest, run: str) -> None:
        """Check what the client of one run was sent, of a request that has ended."""
        check_run(request, run, self.runs[run])
        check_alone(request, run, self._outputs_alone(request, run))

    def teardown(self) -> None:
        """Abort what still runs; nothing may be left then."""
        if sys.exc_info()[1] is not self._error_before:
            return  # a rule has failed, and says more than what is left could
        for name in list(self.running):
            self._abort(name)
        for name in list(self.producing):
            self._cancel(name)
        self._deliver(self._in_flight)
        self.only_what_runs_is_known()
        self.nothing_is_retained_when_nothing_runs()

    # ---- how ------------------------------------------------------------------------------

    @cached_property
    def _requests(self) -> SearchStrategy[ProcessedRequest]:
        return self.requests()

    @cached_property
    def _parts(self) -> Mapping[str, SearchStrategy[Mapping[str, object]]]:
        return self.parts()

    def _abort(self, name: str) -> None:
        request = self.running.pop(name)
        self._cancel(name)
        for run in self.runs:
            self.abort(name, run)
            self.abort(name, run)  # again does nothing
            self.check_run(request, run)

    def _cancel(self, name: str) -> None:
        if self.producing.pop(name, None) is not None:
            self.cancel(name)

    def _step(self, data: DataObject) -> None:
        for chunk in self.produce(data):
            name, expected = chunk.request_id, self.producing.get(chunk.request_id)
            if expected is None:
                fail(name, "no chunk after its last", f"step {chunk.step}")
            if chunk.step != expected:
                fail(name, f"chunks numbered from 0: {expected}", f"step {chunk.step}")
            self._in_flight.append(_Sent(chunk))
            self.producing[name] += 1
            if chunk.finish_reason is not None:
                del self.producing[name]

    def _spoiled(self, data: DataObject, sent: _Sent, modality: str) -> _Sent:
        part = _unlike(data.draw(self._parts[modality]))
        before = sent.chunk.output.multimodal_outputs if sent.chunk.output is not None else {}
        output = OmniOutput(multimodal_outputs={**before, **part})
        return _Sent(attrs.evolve(sent.chunk, output=output), frozenset({modality}))

    def _deliver(self, batch: Sequence[_Sent]) -> None:
        """Give the first chunks that are on their way to the processor, and check what it does."""
        self._in_flight = self._in_flight[len(batch) :]
        receivers = dict(self.running)
        ended: list[LiveRequest] = []
        for sent in batch:
            request = self.running.get(sent.chunk.request_id)
            if request is None:
                self._num_late += len(self.runs)
            elif request.take_in(sent.chunk, sent.spoiled):
                ended.append(self.running.pop(request.request_id))
        chunks = [self._of_run(sent.chunk, run) for sent in batch for run in self.runs]
        for output in self.feed(chunks):
            name, _, run = output.request_id.rpartition("/")
            if name not in receivers or run not in self.runs:
                fail(output.request_id, "no output for what does not run", "one")
            receivers[name].note(run, output)
        for request in ended:
            self._cancel(request.request_id)
            for run in self.runs:
                self.check_run(request, run)
            check_same_story(request, self.runs)
            self.ended(request)

    def _of_run(self, chunk: OutputChunk, run: str) -> OutputChunk:
        return attrs.evolve(chunk, request_id=f"{chunk.request_id}/{run}")

    def _outputs_alone(self, request: LiveRequest, run: str) -> list[RequestOutput]:
        """What the client is sent if the request is the only one there ever was."""
        alone = self.make_processor()
        self.add(alone, request.request, run)
        return [
            output
            for chunk in request.chunks
            for output in alone.process_outputs([self._of_run(chunk, run)])
        ]


def _unlike(value: Any) -> Any:
    """The same value with every tensor of another rank and data type."""
    if isinstance(value, torch.Tensor):
        other = torch.int16 if value.is_floating_point() else torch.float16
        return value.unsqueeze(0).to(other)
    if isinstance(value, Mapping):
        return {key: _unlike(part) for key, part in value.items()}
    return tuple(map(_unlike, value)) if isinstance(value, tuple) else value
