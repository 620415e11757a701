"""Laws of accumulation, against a plain model: lists of numpy arrays."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from omniwire import contracts as c
from omniwire.runtime import MultimodalOutputProcessor, OmniRequestState, default_registry

DELTA, CUMULATIVE, FINAL_ONLY = c.OutputKind
DTYPES = (np.float32, np.int16, np.uint8, np.bool_, np.complex64)


class Model:
    """What a value should be: the list of its chunks, joined by numpy when asked."""

    def __init__(self, rule):
        self.rule = rule
        self.parts = []

    def value(self):
        """The whole value as an array, or a list of arrays under `Append`."""
        if isinstance(self.rule, c.Concat):
            return np.concatenate(self.parts, self.rule.dim)
        if isinstance(self.rule, c.Stack):
            return np.stack(self.parts, self.rule.dim)
        return self.parts[-1] if isinstance(self.rule, c.Replace) else list(self.parts)

    def join(self, emissions):
        """One value out of emitted deltas."""
        if isinstance(self.rule, c.Concat):
            return np.concatenate(emissions, self.rule.dim)
        if isinstance(self.rule, c.Stack):
            axis = self.rule.dim
            return np.concatenate(emissions, axis)
        if isinstance(self.rule, c.Replace):
            return emissions[-1]
        return [part for emission in emissions for part in emission]


def as_arrays(value):
    if isinstance(value, tuple):
        return [part.numpy() for part in value]
    return value.numpy()


def assert_same(found, expected):
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
        return
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


@st.composite
def streams(draw):
    """A rule, the shape of its chunks, and a way to draw one chunk of it."""
    rank = draw(st.integers(1, 3))
    kind = draw(st.sampled_from([c.Concat, c.Stack, c.Replace, c.Append]))
    if kind is c.Concat:
        rule = c.Concat(draw(st.integers(-rank, rank - 1)))
    elif kind is c.Stack:
        rule = c.Stack(draw(st.integers(-rank - 1, rank)))
    else:
        rule = kind()
    shape = draw(st.lists(st.integers(0, 3), min_size=rank, max_size=rank))
    return rule, tuple(shape), draw(st.sampled_from(DTYPES))


def draw_part(draw, rule, shape, dtype):
    shape = list(shape)
    if isinstance(rule, c.Concat):
        shape[rule.dim] = draw(st.integers(0, 4))
    elif not isinstance(rule, c.Stack):
        shape = draw(st.lists(st.integers(0, 3), min_size=0, max_size=3))
    seed = draw(st.integers(0, 2**16))
    return np.random.default_rng(seed).integers(0, 100, shape).astype(dtype)


@st.composite
def scripts(draw):
    """Named streams, and per step what each of them sends and as what kind of chunk."""
    names = draw(st.sets(st.sampled_from(["audio", "image", "codes.audio", "extra"]), min_size=1))
    named = {name: draw(streams()) for name in sorted(names)}
    models = {name: Model(stream[0]) for name, stream in named.items()}
    num_tokens = 0
    steps = []
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(c.ChunkKind))
        whole = kind is not c.ChunkKind.DELTA
        sent = {}
        for name in draw(st.sets(st.sampled_from(sorted(named)))):
            rule = named[name][0]
            several = 0 if isinstance(rule, c.Replace) else draw(st.integers(0, 3))
            parts = [draw_part(draw, *named[name]) for _ in range(max(1, several))]
            if whole and not isinstance(rule, c.Replace):
                parts = models[name].parts + parts  # what a producer of whole values has so far
                models[name].parts = []
            models[name].parts = models[name].parts + parts
            sent[name] = (parts, draw(st.booleans()))
        new = draw(st.integers(0, 3))
        tokens = list(range(num_tokens, num_tokens + new))
        num_tokens += new
        steps.append((kind, sent, tokens))
    return named, steps, num_tokens


def payload_of(sent, named, kind):
    """The payload of one step; parts as a tuple, or joined by numpy where that means the same."""
    payload = {}
    for name, (parts, joined) in sent.items():
        tensors = tuple(torch.from_numpy(part.copy()) for part in parts)
        rule = named[name][0]
        if len(parts) == 1 and (kind is c.ChunkKind.DELTA or not isinstance(rule, c.Stack)):
            value = tensors[0] if joined else tensors
        elif joined and isinstance(rule, c.Concat):
            value = torch.from_numpy(np.concatenate(parts, rule.dim))
        elif joined and isinstance(rule, c.Stack) and kind is not c.ChunkKind.DELTA:
            value = torch.from_numpy(np.stack(parts, rule.dim))
        else:
            value = tensors
        if name == "codes.audio":
            payload["codes"] = {"audio": value}
        else:
            payload[name] = value
    return payload


def run(script, output_kind):
    """The outputs of a script, each with a copy of what it showed when it was emitted."""
    named, steps, _ = script
    modalities = [name for name in named if name in ("audio", "image")]
    output_type = "+".join(["text", *modalities])
    spec = c.OutputSpec({name: stream[0] for name, stream in named.items()})
    processor = MultimodalOutputProcessor()
    processor.add_request("r", output_type, spec=spec, output_kind=output_kind)
    outputs = []
    for number, (kind, sent, tokens) in enumerate(steps):
        output = c.OmniOutput(multimodal_outputs=payload_of(sent, named, kind))
        chunk = c.OutputChunk("r", number, output_type, tokens, output, kind)
        outputs += processor.process_outputs([chunk])
    end = c.OutputChunk("r", len(steps), output_type, finish_reason="stop")
    outputs += processor.process_outputs([end])
    assert processor.num_requests == processor.retained_bytes == 0
    return outputs


def emitted(outputs, name):
    found = []
    for output in outputs:
        value = {**output.multimodal_outputs, **output.tensors}.get(name)
        if value is not None:
            found.append(as_arrays(value))
    return found


def expected_values(script):
    named, steps, _ = script
    models = {name: Model(stream[0]) for name, stream in named.items()}
    for kind, sent, _ in steps:
        for name, (parts, _) in sent.items():
            if kind is not c.ChunkKind.DELTA:
                models[name].parts = []
            models[name].parts = models[name].parts + parts
    return {name: model for name, model in models.items() if model.parts}


@given(scripts())
def test_deltas_joined_are_the_last_cumulative_are_the_final_value(script):
    models = expected_values(script)
    outputs = {kind: run(script, kind) for kind in c.OutputKind}
    for kind in c.OutputKind:
        assert all(output.errors == {} for output in outputs[kind])
        assert [output.finished for output in outputs[kind]].count(True) == 1
        names = {key for o in outputs[kind] for key in (*o.multimodal_outputs, *o.tensors)}
        assert names == set(models)
    assert len(outputs[FINAL_ONLY]) == 1
    for name, model in models.items():
        (final,) = emitted(outputs[FINAL_ONLY], name)
        assert_same(final, model.value())
        assert_same(emitted(outputs[CUMULATIVE], name)[-1], model.value())
        assert_same(model.join(emitted(outputs[DELTA], name)), model.value())
    ids = tuple(range(script[2]))
    assert outputs[FINAL_ONLY][0].new_token_ids == ids
    assert outputs[CUMULATIVE][-1].new_token_ids == ids
    assert tuple(i for o in outputs[DELTA] for i in o.new_token_ids) == ids


@given(scripts(), st.sampled_from([DELTA, CUMULATIVE]))
def test_an_emission_is_the_same_after_all_later_steps(script, output_kind):
    named, steps, _ = script
    output_type = "+".join(["text", *(name for name in named if name in ("audio", "image"))])
    state = OmniRequestState(
        "r",
        output_type,
        registry=default_registry(),
        spec=c.OutputSpec({name: stream[0] for name, stream in named.items()}),
        output_kind=output_kind,
    )
    shown = []
    for number, (kind, sent, tokens) in enumerate(steps):
        output = c.OmniOutput(multimodal_outputs=payload_of(sent, named, kind))
        result = state.advance(c.OutputChunk("r", number, output_type, tokens, output, kind))
        if result is not None:
            assert result.errors == {}
            for value in (*result.multimodal_outputs.values(), *result.tensors.values()):
                parts = value if isinstance(value, tuple) else (value,)
                shown += [(part, part.clone()) for part in parts]
    assert all(torch.equal(part, copy) for part, copy in shown)


@given(streams(), st.data())
def test_retained_bytes_are_exact_while_nothing_is_emitted(stream, data):
    rule, _, _ = stream
    spec = c.OutputSpec({"latent": rule})
    state = OmniRequestState("r", "latent", registry=default_registry(), spec=spec)
    model = Model(rule)
    for _ in range(data.draw(st.integers(0, 6))):
        part = draw_part(data.draw, *stream)
        state.add_output("latent", torch.from_numpy(part.copy()))
        model.parts.append(part)
        held = model.parts[-1:] if isinstance(rule, c.Replace) else model.parts
        assert state.retained_bytes == sum(part.nbytes for part in held)
    values = state.consolidate()
    if model.parts:
        assert_same(as_arrays(values["latent"]), model.value())
    else:
        assert values == {}


@given(st.data())
def test_interleaved_requests_do_not_know_of_each_other(data):
    """Every order of chunks that keeps each request's own order gives the same values."""
    counts = data.draw(st.lists(st.integers(1, 5), min_size=2, max_size=4))
    order = [name for name, count in enumerate(counts) for _ in range(count)]
    order = data.draw(st.permutations(order))
    processor = MultimodalOutputProcessor()
    for name in range(len(counts)):
        processor.add_request(f"r{name}", "audio")
    steps = [0] * len(counts)
    results = {}
    for batch in (order[: len(order) // 2], order[len(order) // 2 :]):
        chunks = []
        for name in batch:
            step = steps[name]
            steps[name] += 1
            tensor = torch.full((1, step + 1), 10.0 * name + step)
            reason = "stop" if steps[name] == counts[name] else None
            output = c.OmniOutput(multimodal_outputs={"audio": tensor})
            chunk = c.OutputChunk(f"r{name}", step, "audio", (), output, finish_reason=reason)
            chunks.append(chunk)
        for output in processor.process_outputs(chunks):
            results[output.request_id] = output.multimodal_outputs["audio"].numpy()
    assert processor.num_requests == processor.retained_bytes == processor.num_late_chunks == 0
    for name, count in enumerate(counts):
        expected = [np.full((1, step + 1), 10.0 * name + step, np.float32) for step in range(count)]
        assert_same(results[f"r{name}"], np.concatenate(expected, 1))


@pytest.mark.parametrize("output_kind", [CUMULATIVE, FINAL_ONLY])
@given(parts=st.lists(st.integers(0, 5), min_size=1, max_size=5), whole=st.integers(0, 9))
def test_a_whole_value_replaces_whatever_was_there(output_kind, parts, whole):
    processor = MultimodalOutputProcessor()
    processor.add_request("r", "audio", output_kind=output_kind)
    for step, size in enumerate(parts):
        output = c.OmniOutput(multimodal_outputs={"audio": torch.ones(1, size)})
        processor.process_outputs([c.OutputChunk("r", step, "audio", (), output)])
    value = torch.full((1, whole), 2.0)
    output = c.OmniOutput(multimodal_outputs={"audio": value})
    last = c.OutputChunk("r", len(parts), "audio", (), output, c.ChunkKind.FINAL, "stop")
    (result,) = processor.process_outputs([last])
    assert torch.equal(result.multimodal_outputs["audio"], value)
