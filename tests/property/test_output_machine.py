"""Requests, chunks, failures and aborts in any order, against a model: lists of numpy arrays.

Every request runs four times in one processor: once per `OutputKind`, and once as a stream of
deltas whose client reads now and then. All four must tell the same story, and that of the model.
"""

import asyncio
from typing import ClassVar

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from omniwire import contracts as c
from omniwire.testing import RequestLifecycle
from omniwire.testing.live_request import check_run

DELTA, CUMULATIVE, FINAL_ONLY = c.OutputKind

# By key: the shape of a chunk, whose first dim of size None is drawn.
SHAPES = {
    "audio": (2, None),
    "image": (None, 3, 1),
    "latent": (None, 2),
    "video": (None, 1, 2),
    "token_ids": (1, None),
    "codes.audio": (None, 4),
    "codes.ref": (None,),
    "seen": (2, 2),
}
DEFAULT_RULES = {
    "audio": c.Concat(-1),
    "image": c.Concat(0),
    "latent": c.Concat(0),
    "video": c.Concat(0),
    "token_ids": c.Concat(-1),
}
DECLARED = {"codes.audio": c.Concat(0), "codes.ref": c.Replace(), "seen": c.Stack(1)}
OTHER_RULES = [
    {},
    {"latent": c.Append(), "video": c.Append()},
    {"latent": c.Replace(), "image": c.Append(), "token_ids": c.Replace()},
]


class Model:
    """What the executor has sent of one request so far.

    Attributes:
        rules: How each key accumulates.
        parts: By step, all of each key up to it, as a list of chunks.
    """

    def __init__(self, other_rules):
        self.other_rules = other_rules
        self.rules = {**DEFAULT_RULES, **DECLARED, **other_rules}
        self.parts = []

    def value(self, step, key):
        """All of a key up to a step, joined by numpy; a list under `Append`; None of nothing."""
        parts = self.parts[step][key]
        return join(self.rules[key], parts, whole=False) if parts else None


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
    value = (output.tensors if key in DECLARED else output.multimodal_outputs).get(key)
    if isinstance(value, tuple):
        return [part.numpy() for part in value]
    return None if value is None else value.numpy()


def assert_same(found, expected):
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
        return
    if expected is None:
        assert found is None
        return
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tobytes() == expected.tobytes()


class Outputs(RequestLifecycle):
    output_type = "text+audio+image+latent+video+token_ids"
    runs: ClassVar = {
        "delta": DELTA,
        "cumulative": CUMULATIVE,
        "final": FINAL_ONLY,
        "stream": DELTA,
    }

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.models = {}
        self.streams = {}
        self.counter = 0

    # ---- requests and their chunks ----------------------------------------------------

    def requests(self):
        """The rules of a request are those of its number, which its prompt has."""
        return st.integers(0, len(OTHER_RULES) - 1).map(lambda n: c.ProcessedRequest("r", [n]))

    def add(self, processor, request, run):
        name, kind = f"{request.request_id}/{run}", self.runs[run]
        (number,) = request.prompt_token_ids
        spec = c.OutputSpec({**DECLARED, **OTHER_RULES[number]})
        processor.add_request(name, self.output_type, spec, kind)
        if run == "stream" and processor is self.processor:
            self.streams[request.request_id] = processor.stream(name)

    def submit(self, request):
        (number,) = request.prompt_token_ids
        self.models[request.request_id] = Model(OTHER_RULES[number])

    def parts(self):
        """What fails a modality; values are made by `draw_chunk`."""
        return {
            name: st.just({name: torch.zeros([size or 1 for size in SHAPES[name]])})
            for name in ("audio", "image")
        }

    def draw_chunk(self, data, request_id):
        """A step of a request: deltas, or everything so far."""
        model, step = self.models[request_id], self.producing[request_id]
        kind = data.draw(st.sampled_from(c.ChunkKind))
        whole = kind is not c.ChunkKind.DELTA
        parts = dict(model.parts[-1]) if step else {key: [] for key in SHAPES}
        payload = {}
        for key in data.draw(st.sets(st.sampled_from(sorted(SHAPES)), max_size=4)):
            how = model.rules[key]
            count = 1 if isinstance(how, c.Replace) else data.draw(st.integers(0, 3))
            fresh = [self.part(key, data.draw(st.integers(0, 3))) for _ in range(count)]
            sent = parts[key] + fresh if whole and not isinstance(how, c.Replace) else fresh
            parts[key] = sent if whole else parts[key] + fresh
            if isinstance(how, c.Concat) and sent and data.draw(st.booleans()):
                sent = [join(how, sent, whole=False)]
            payload[key] = tuple(torch.from_numpy(part.copy()) for part in sent)
        tokens = data.draw(st.lists(st.integers(0, 9), max_size=2))
        model.parts.append(parts)
        codes = {key[6:]: payload.pop(key) for key in sorted(payload) if key.startswith("codes.")}
        nested = {**payload, "codes": codes} if codes else payload
        output = c.OmniOutput(multimodal_outputs=nested) if nested else None
        reason = data.draw(st.sampled_from([None, None, None, None, "stop"]))
        return c.OutputChunk(request_id, step, self.output_type, tokens, output, kind, reason)

    def part(self, key, size):
        """An array of numbers that occur nowhere else."""
        shape = [size if extent is None else extent for extent in SHAPES[key]]
        count = int(np.prod(shape))
        self.counter += count
        return np.arange(self.counter - count, self.counter, dtype=np.float32).reshape(shape)

    # ---- the client of a stream -------------------------------------------------------

    def feed(self, chunks):
        """A client that has slept reads the end of its stream."""
        outputs = list(super().feed(chunks))
        assert not any(output.request_id.endswith("/stream") for output in outputs)
        for name in sorted({chunk.request_id.split("/")[0] for chunk in chunks}):
            if name in self.streams and f"{name}/stream" not in self.processor._states:
                outputs += self.read(name)
                assert self.loop.run_until_complete(anext(self.streams.pop(name), None)) is None
        return outputs

    @precondition(lambda self: self.streams)
    @rule(data=st.data())
    def read_now(self, data):
        """The client of a stream reads, if there is something to read."""
        name = data.draw(st.sampled_from(sorted(self.streams)))
        if self.has_unread(name):
            for output in self.read(name):
                self.running[name].note("stream", output)

    def read(self, name):
        async def read_one():
            return await asyncio.wait_for(anext(self.streams[name]), 5)

        return [self.loop.run_until_complete(read_one())]

    def has_unread(self, name):
        """Whether the client of a running request has missed something: then `drain` waits."""

        async def drained():
            try:
                async with asyncio.timeout(0):
                    await self.processor.drain(f"{name}/stream")
            except TimeoutError:
                return False
            return True

        return not self.loop.run_until_complete(drained())

    def abort(self, request_id, run):
        """A request is aborted, or its client goes away."""
        if run != "stream":
            super().abort(request_id, run)
        elif request_id in self.streams:
            stream = self.streams.pop(request_id)
            if self.counter % 2:
                super().abort(request_id, run)
                assert self.loop.run_until_complete(anext(stream, None)) is None
            del stream  # and if it still runs, that aborts it

    # ---- what must hold ---------------------------------------------------------------

    def check_run(self, request, run):
        if run == "stream":  # alone, its client would read at other times
            check_run(request, run, DELTA)
        else:
            super().check_run(request, run)
        model, last = self.models[request.request_id], request.num_delivered - 1
        outputs = request.outputs[run]
        for key in SHAPES if last >= 0 and outputs else ():
            if key in request.spoiled:
                continue
            if self.runs[run] is CUMULATIVE:
                steps = [step for step in range(last + 1) if carries(request.chunks[step])]
                for output, step in zip(outputs, [*steps, last], strict=False):
                    assert_same(shown(output, key), model.value(step, key))
            if self.runs[run] is not DELTA:
                assert_same(shown(outputs[-1], key), model.value(last, key))
            elif request.finish_reason is not None:
                values = [shown(output, key) for output in outputs]
                values = [value for value in values if value is not None]
                found = join(model.rules[key], values, whole=True) if values else None
                assert_same(found, model.value(last, key))

    def ended(self, request):
        """What came before a failure stays; it is a failure if it does not fit what came before."""
        model = self.models[request.request_id]
        final = request.outputs["final"][0]
        for key in request.spoiled:
            if not isinstance(model.rules[key], c.Concat):
                continue
            good = 0
            while is_float32(request.chunks[good].output, key):
                good += 1
            before = model.value(good - 1, key) if good else None
            if before is not None:
                assert key in final.errors
                assert_same(shown(final, key), before)

    @invariant()
    def what_is_kept_is_what_was_not_sent(self):
        states = self.processor._states
        for name, request in self.running.items():
            assert states[f"{name}/delta"].retained_bytes == 0
            model, last = self.models[name], len(request.chunks) - 1
            if last < 0 or request.spoiled:
                continue
            kept = 0
            for key, parts in model.parts[last].items():
                count = 1 if isinstance(model.rules[key], c.Replace) else len(parts)
                kept += sum(part.nbytes for part in parts[-count:])
            assert states[f"{name}/final"].retained_bytes == kept

    def teardown(self):
        try:
            super().teardown()
        finally:
            self.streams.clear()
            self.loop.close()


def carries(chunk):
    """Whether a chunk has anything in it."""
    return bool(chunk.new_token_ids) or chunk.output is not None


def is_float32(output, key):
    """Whether what an output has of a key, if anything, is what the executor made."""
    value = () if output is None else output.multimodal_outputs.get(key, ())
    parts = value if isinstance(value, tuple) else [value]
    return all(part.dtype == torch.float32 for part in parts)


TestOutputs = Outputs.TestCase
TestOutputs.settings = settings(max_examples=60, stateful_step_count=30)
