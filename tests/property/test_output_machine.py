"""Requests, chunks, failures and aborts in any order, against a model: lists of numpy arrays.

Every request runs four times in one processor: once per `OutputKind`, and once as a stream of
deltas whose client reads now and then. All four must tell the same story.
"""

import asyncio

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from omniwire import contracts as c
from omniwire.runtime import MultimodalOutputProcessor

DELTA, CUMULATIVE, FINAL_ONLY = c.OutputKind
RUNS = {"delta": DELTA, "cumulative": CUMULATIVE, "final": FINAL_ONLY, "stream": DELTA}
OUTPUT_TYPE = "text+audio+image+latent"

# By key: the shape of a chunk, whose first dim of size None is drawn.
SHAPES = {
    "audio": (2, None),
    "image": (None, 3, 1),
    "latent": (None, 2),
    "codes.audio": (None, 4),
    "codes.ref": (None,),
    "seen": (2, 2),
}
DEFAULT_RULES = {"audio": c.Concat(-1), "image": c.Concat(0), "latent": c.Concat(0)}
DECLARED = {"codes.audio": c.Concat(0), "codes.ref": c.Replace(), "seen": c.Stack(1)}
OTHER_RULES = [{}, {"latent": c.Append()}, {"latent": c.Replace(), "image": c.Append()}]


class Model:
    """What one request has sent so far."""

    def __init__(self, name, rules):
        self.name = name
        self.rules = {**DEFAULT_RULES, **DECLARED, **rules}
        self.parts = {key: [] for key in SHAPES}
        self.tokens = []
        self.step = 0
        self.failed = set()
        self.emitted = {run: [] for run in RUNS}

    def value(self, key):
        """All of a key, joined by numpy; a list of arrays under `Append`."""
        return join(self.rules[key], self.parts[key], whole=False)


def join(how, parts, *, whole):
    """One value out of parts; out of values that each have the form of one if they are whole."""
    if isinstance(how, c.Concat):
        return np.concatenate(parts, how.dim)
    if isinstance(how, c.Stack):
        return np.concatenate(parts, how.dim) if whole else np.stack(parts, how.dim)
    if isinstance(how, c.Replace):
        return parts[-1]
    return [part for group in parts for part in group] if whole else list(parts)


def shown(output, key):
    """What an output has of a key, as numpy arrays; None if nothing."""
    values = output.tensors if key in DECLARED else output.multimodal_outputs
    if key not in values:
        return None
    value = values[key]
    if isinstance(value, tuple):
        return [part.numpy().copy() for part in value]
    return value.numpy().copy()


def assert_same(found, expected):
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
        return
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tobytes() == expected.tobytes()


class Outputs(RuleBasedStateMachine):
    @initialize()
    def start(self):
        self.loop = asyncio.new_event_loop()
        self.processor = MultimodalOutputProcessor()
        self.models = {}
        self.streams = {}
        self.num_started = 0
        self.num_late = 0
        self.counter = 0

    # ---- what happens -----------------------------------------------------------------

    @precondition(lambda self: len(self.models) < 3)
    @rule(rules=st.sampled_from(OTHER_RULES), again=st.booleans())
    def add(self, rules, again):
        """A request starts, under a new id or one that was in use before."""
        self.num_started += not again
        name = f"r{self.num_started}"
        if name in self.models:
            return
        self.models[name] = Model(name, rules)
        for run, kind in RUNS.items():
            spec = c.OutputSpec({**DECLARED, **rules})
            self.processor.add_request(f"{name}/{run}", OUTPUT_TYPE, spec, kind)
        self.streams[name] = self.processor.stream(f"{name}/stream")

    @precondition(lambda self: self.models)
    @rule(data=st.data())
    def send(self, data):
        """A step of every request, or of some of them, in one batch."""
        names = data.draw(st.lists(st.sampled_from(sorted(self.models)), min_size=1, unique=True))
        chunks = []
        for name in names:
            chunks += self.draw_chunks(data.draw, self.models[name])
        self.process(chunks)

    @precondition(lambda self: self.models)
    @rule(data=st.data())
    def finish(self, data):
        """A request ends, with data in its last chunk or without."""
        model = self.pick(data)
        if data.draw(st.booleans()):
            chunks = self.draw_chunks(data.draw, model, finish_reason="stop")
        else:
            chunks = self.chunks_of(model, finish_reason="stop")
        self.process(chunks)
        self.end(model, "stop")

    @precondition(lambda self: any(len(m.failed) < 2 for m in self.models.values()))
    @rule(data=st.data(), modality=st.sampled_from(["audio", "image"]))
    def fail_modality(self, data, modality):
        """A chunk of another dtype fails its modality, and nothing else in its chunk."""
        model = self.pick(data)
        fixed = isinstance(model.rules[modality], c.Concat) and model.parts[modality]
        if not fixed or modality in model.failed:
            return
        shape = [1 if size is None else size for size in SHAPES[modality]]
        wrong = {modality: torch.zeros(shape, dtype=torch.int16)}
        model.failed.add(modality)
        self.process(self.draw_chunks(data.draw, model, wrong))

    @precondition(lambda self: self.models)
    @rule(data=st.data(), offset=st.sampled_from([-1, 1, 5]))
    def break_order(self, data, offset):
        """A gap or a repeat ends its request."""
        model = self.pick(data)
        if model.step + offset < 0:
            return
        chunks = [
            c.OutputChunk(f"{model.name}/{run}", model.step + offset, OUTPUT_TYPE, [1])
            for run in RUNS
        ]
        self.process(chunks)
        self.end(model, "error")

    @precondition(lambda self: self.models)
    @rule(data=st.data())
    def abort(self, data):
        """A request is aborted, or its client goes away; its late chunks touch nothing."""
        model = self.pick(data)
        for run in ("delta", "cumulative", "final"):
            self.processor.abort(f"{model.name}/{run}")
        stream = self.streams.pop(model.name)
        if data.draw(st.booleans()):
            self.processor.abort(f"{model.name}/stream")
            assert self.loop.run_until_complete(anext(stream, None)) is None
        del stream  # and if it still runs, that aborts it
        del self.models[model.name]
        late = self.chunks_of(model)
        self.num_late += len(late)
        assert self.processor.process_outputs(late) == []

    @precondition(lambda self: self.models)
    @rule(data=st.data())
    def read(self, data):
        """The client of a stream reads, if there is something to read."""
        self.read_one(self.pick(data))

    # ---- how --------------------------------------------------------------------------

    def pick(self, data):
        return self.models[data.draw(st.sampled_from(sorted(self.models)))]

    def draw_chunks(self, draw, model, payload=(), **fields):
        """One step of a request, added to its model; the same chunk for each of its runs."""
        kind = draw(st.sampled_from(c.ChunkKind))
        whole = kind is not c.ChunkKind.DELTA
        payload = dict(payload)
        for key in draw(st.sets(st.sampled_from(sorted(SHAPES)), max_size=4)):
            if key in payload:
                continue
            how = model.rules[key]
            count = 1 if isinstance(how, c.Replace) else draw(st.integers(1, 3))
            fresh = [self.part(key, draw(st.integers(0, 3))) for _ in range(count)]
            parts = fresh
            if whole and not isinstance(how, c.Replace):
                parts = model.parts[key] + fresh
            joined = isinstance(how, c.Concat) and draw(st.booleans())
            tensors = [join(how, parts, whole=False)] if joined else parts
            payload[key] = tuple(torch.from_numpy(part.copy()) for part in tensors)
            if key not in model.failed:
                model.parts[key] = parts if whole else model.parts[key] + fresh
        tokens = draw(st.lists(st.integers(0, 9), max_size=2))
        model.tokens += tokens
        nested = {"codes": {}}
        for key, value in payload.items():
            if key.startswith("codes."):
                nested["codes"][key.removeprefix("codes.")] = value
            else:
                nested[key] = value
        output = c.OmniOutput(multimodal_outputs=nested) if payload else None
        return self.chunks_of(model, new_token_ids=tokens, output=output, kind=kind, **fields)

    def part(self, key, size):
        """An array of numbers that occur nowhere else."""
        shape = [size if extent is None else extent for extent in SHAPES[key]]
        count = int(np.prod(shape))
        self.counter += count
        return np.arange(self.counter - count, self.counter, dtype=np.float32).reshape(shape)

    def chunks_of(self, model, **fields):
        step = model.step
        model.step += 1
        return [c.OutputChunk(f"{model.name}/{run}", step, OUTPUT_TYPE, **fields) for run in RUNS]

    def process(self, chunks):
        for output in self.processor.process_outputs(chunks):
            name, run = output.request_id.split("/")
            assert run != "stream"
            self.note(self.models[name], run, output)
        for name in {chunk.request_id.split("/")[0] for chunk in chunks}:
            self.check_cumulative(self.models[name])

    def note(self, model, run, output):
        # What is shown is copied, so that a later change of an emitted tensor would be noticed.
        model.emitted[run].append((output, {key: shown(output, key) for key in SHAPES}))

    def check_cumulative(self, model):
        """The last emission of everything so far is everything so far."""
        if not model.emitted["cumulative"]:
            return
        output, values = model.emitted["cumulative"][-1]
        assert output.new_token_ids == tuple(model.tokens)
        for key in SHAPES:
            if model.parts[key]:
                assert_same(values[key], model.value(key))

    def read_one(self, model):
        async def read():
            return await asyncio.wait_for(anext(self.streams[model.name]), 5)

        if self.processor._states.get(f"{model.name}/stream") is None or self.unread(model):
            self.note(model, "stream", self.loop.run_until_complete(read()))

    def unread(self, model):
        """Whether the client of a running request has missed something: then `drain` waits."""

        async def drained():
            try:
                async with asyncio.timeout(0):
                    await self.processor.drain(f"{model.name}/stream")
            except TimeoutError:
                return False
            return True

        return not self.loop.run_until_complete(drained())

    def end(self, model, finish_reason):
        """The request has ended: compare what its runs emitted, and let it go."""
        self.read_one(model)
        del self.streams[model.name]
        del self.models[model.name]
        for run, emitted in model.emitted.items():
            last, _ = emitted[-1]
            assert [output.finished for output, _ in emitted[:-1]] == [False] * (len(emitted) - 1)
            assert (last.finished, last.finish_reason) == (True, finish_reason)
            request_errors = {""} if finish_reason == "error" else set()
            assert set(last.errors) == model.failed | request_errors
            for output, copies in emitted:
                for key, copy in copies.items():
                    if copy is not None:
                        assert_same(shown(output, key), copy)
            if RUNS[run] is DELTA:
                tokens = [token for output, _ in emitted for token in output.new_token_ids]
            else:
                tokens = list(last.new_token_ids)
            assert tokens == model.tokens
            for key in SHAPES:
                values = [copies[key] for _, copies in emitted if copies[key] is not None]
                if not model.parts[key]:
                    assert values == []
                elif RUNS[run] is DELTA:
                    assert_same(join(model.rules[key], values, whole=True), model.value(key))
                else:
                    assert_same(values[-1], model.value(key))

    # ---- what always holds ------------------------------------------------------------

    @invariant()
    def only_running_requests_are_known(self):
        assert self.processor.num_requests == len(RUNS) * len(self.models)
        assert self.processor.num_late_chunks == self.num_late
        if not self.models:
            assert self.processor.retained_bytes == 0

    @invariant()
    def what_is_kept_is_what_was_not_sent(self):
        final = delta = 0
        for model in self.models.values():
            for key, parts in model.parts.items():
                kept = parts[-1:] if isinstance(model.rules[key], c.Replace) else parts
                final += sum(part.nbytes for part in kept)
        states = self.processor._states
        for name, state in states.items():
            if name.endswith("/final"):
                final -= state.retained_bytes
            elif name.endswith("/delta"):
                delta += state.retained_bytes
        assert (final, delta) == (0, 0)

    def teardown(self):
        for name in list(self.models):
            for run in RUNS:
                self.processor.abort(f"{name}/{run}")
        assert self.processor.num_requests == self.processor.retained_bytes == 0
        self.loop.close()


TestOutputs = Outputs.TestCase
TestOutputs.settings = settings(max_examples=60, stateful_step_count=30)
