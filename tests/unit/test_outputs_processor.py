"""`MultimodalOutputProcessor`: chunks of many requests in, what the clients get out."""

import gc
import math
import pickle
import time
import tracemalloc
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from omniwire import contracts as c
from omniwire.runtime import (
    ModalityRegistry,
    MultimodalOutputProcessor,
    TensorHandler,
    default_registry,
)

DELTA, CUMULATIVE, FINAL_ONLY = c.OutputKind


def samples(*shape, start=0):
    count = math.prod(shape)
    return torch.arange(start, start + count, dtype=torch.float32).reshape(shape)


class Engine:
    """A processor with one request, fed step by step."""

    def __init__(self, output_type="audio", *, registry=None, request_id="r1", **options):
        self.processor = MultimodalOutputProcessor(registry)
        self.processor.add_request(request_id, output_type, **options)
        self.output_type = output_type
        self.request_id = request_id
        self.step = 0

    def chunk(self, payload=None, **fields):
        if payload is not None:
            fields["output"] = c.OmniOutput(multimodal_outputs=payload)
        fields = {"output_type": self.output_type, "step": self.step, **fields}
        self.step = fields["step"] + 1
        return c.OutputChunk(self.request_id, **fields)

    def send(self, payload=None, **fields):
        """The outputs that one chunk leads to."""
        return self.processor.process_outputs([self.chunk(payload, **fields)])

    def finish(self, payload=None, **fields):
        """The one output of a terminal chunk; nothing is left behind."""
        (last,) = self.send(payload, finish_reason="stop", **fields)
        assert last.finished
        assert self.processor.num_requests == self.processor.retained_bytes == 0
        return last


def shapes(outputs, modality="audio"):
    return [tuple(output.multimodal_outputs[modality].shape) for output in outputs]


class Copied(TorchDispatchMode):
    """Counts the bytes that torch copies."""

    nbytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function.overloadpacket in COPIES:
            self.nbytes += result.nbytes
        return result


COPIES = (torch.ops.aten.clone, torch.ops.aten.copy_, torch.ops.aten.cat)


class TestEmission:
    """Audio chunks of (1, 500) and (1, 300)."""

    def test_cumulative_emits_all_so_far(self):
        engine = Engine(output_kind=CUMULATIVE)
        sent = engine.send({"audio": samples(1, 500)})
        sent += engine.send({"audio": samples(1, 300, start=500)})
        assert shapes(sent) == [(1, 500), (1, 800)]
        last = engine.finish()
        assert torch.equal(last.multimodal_outputs["audio"], samples(1, 800))
        assert torch.equal(sent[0].multimodal_outputs["audio"], samples(1, 500))

    def test_delta_emits_what_is_new_and_keeps_nothing(self):
        engine = Engine(output_kind=DELTA)
        sent = engine.send({"audio": samples(1, 500)})
        assert engine.processor.retained_bytes == 0
        sent += engine.send({"audio": samples(1, 300, start=500)})
        assert engine.processor.retained_bytes == 0
        assert shapes(sent) == [(1, 500), (1, 300)]
        assert torch.equal(sent[1].multimodal_outputs["audio"], samples(1, 300, start=500))
        assert engine.finish().multimodal_outputs == {}

    def test_final_only_emits_nothing_before_the_end(self):
        engine = Engine(output_kind=FINAL_ONLY)
        assert engine.send({"audio": samples(1, 500)}) == []
        assert engine.processor.retained_bytes == 500 * 4
        last = engine.finish({"audio": samples(1, 300, start=500)})
        assert torch.equal(last.multimodal_outputs["audio"], samples(1, 800))
        assert last.finish_reason == "stop"

    @pytest.mark.parametrize("kind", c.OutputKind)
    def test_a_terminal_chunk_may_carry_data(self, kind):
        engine = Engine(output_kind=kind)
        last = engine.finish({"audio": samples(1, 5)})
        assert torch.equal(last.multimodal_outputs["audio"], samples(1, 5))

    @pytest.mark.parametrize("kind", c.OutputKind)
    def test_a_chunk_that_carries_nothing_emits_nothing(self, kind):
        engine = Engine("text+audio", output_kind=kind)
        assert engine.send() == []
        assert engine.send({}) == []
        last = engine.finish()
        assert (last.multimodal_outputs, last.new_token_ids, last.errors) == ({}, (), {})

    def test_new_token_ids_follow_the_output_kind(self):
        ids = [[5], [], [6, 7]]
        expected = {
            DELTA: [(5,), (), (6, 7), ()],
            CUMULATIVE: [(5,), (5,), (5, 6, 7), (5, 6, 7)],
            FINAL_ONLY: [(5, 6, 7)],
        }
        for kind, emitted in expected.items():
            engine = Engine("text+audio", output_kind=kind)
            sent = []
            for new in ids:
                sent += engine.send({"audio": samples(1, 2)}, new_token_ids=new)
            sent.append(engine.finish())
            assert [tuple(output.new_token_ids) for output in sent] == emitted

    @pytest.mark.parametrize("kind", c.OutputKind)
    def test_an_emitted_value_is_changed_by_neither_later_steps_nor_the_producer(self, kind):
        """vllm-omni#3164: the producer's next step writes into the same buffer."""
        engine = Engine(output_kind=kind)
        buffer = torch.zeros(1, 100)
        seen = []
        for step in range(20):
            buffer.fill_(step)
            for output in engine.send({"audio": buffer}):
                value = output.multimodal_outputs["audio"]
                seen.append((value, value.clone()))
        buffer.fill_(-1)
        last = engine.finish()
        if kind is not DELTA:
            expected = torch.arange(20.0).repeat_interleave(100).reshape(1, -1)
            assert torch.equal(last.multimodal_outputs["audio"], expected)
        assert all(torch.equal(value, copy) for value, copy in seen)
        assert len(seen) == (0 if kind is FINAL_ONLY else 20)

    def test_an_emission_owns_no_more_than_it_shows(self):
        engine = Engine(output_kind=DELTA)
        (output,) = engine.send({"audio": torch.zeros(1000, 64)[2:3]})
        assert output.multimodal_outputs["audio"].untyped_storage().nbytes() == 256

    def test_growing_views_share_a_buffer_that_doubles(self):
        """No quadratic work: 200 emissions, and the value is copied 9 times, not 200."""
        engine = Engine(output_kind=CUMULATIVE)
        buffers = {}
        for step in range(1, 201):
            (output,) = engine.send({"audio": samples(1, 10)})
            value = output.multimodal_outputs["audio"]
            assert value.shape == (1, 10 * step)
            storage = value.untyped_storage()
            assert storage.nbytes() == engine.processor.retained_bytes
            assert 40 * step <= storage.nbytes() <= 2 * 40 * step
            buffers[storage.data_ptr()] = value
        assert len(buffers) == 9

    @pytest.mark.parametrize(("kind", "most"), [(DELTA, 1), (CUMULATIVE, 4), (FINAL_ONLY, 2)])
    def test_two_thousand_chunks_are_copied_a_few_times(self, kind, most):
        """vllm-omni#467: once into memory of their own, once into the value, twice by doubling."""
        engine = Engine(output_kind=kind)
        with Copied() as copied:
            for _ in range(2000):
                engine.send({"audio": torch.ones(1, 4)})
            engine.finish()
        assert 2000 * 16 <= copied.nbytes <= most * 2000 * 16

    def test_growing_token_ids_share_a_buffer_that_doubles(self):
        """No quadratic work: 3,000 emissions, and the ids are copied 10 times, not 3,000."""
        engine = Engine("text", output_kind=CUMULATIVE)
        seen = [engine.send(new_token_ids=[step])[0].new_token_ids for step in range(3000)]
        buffers = {}
        for count, ids in enumerate(seen, 1):
            view = ids._packed
            assert len(ids) == count
            assert len(view.obj) <= 2 * view.nbytes
            buffers[id(view.obj)] = view.obj
        assert len(buffers) == 11  # of 2, 6, 14, ..., 4094 ids
        for count, ids in enumerate(seen, 1):
            assert ids == tuple(range(count))

    def test_all_emitted_token_ids_take_the_memory_of_a_few(self):
        """A copy in each of 2,000 emissions would be 8 MB."""
        engine = Engine("text", output_kind=CUMULATIVE)
        chunks = [c.OutputChunk("r1", step, "text", [step]) for step in range(2000)]
        gc.collect()
        tracemalloc.start()
        try:
            seen = [engine.processor.process_outputs([chunk]) for chunk in chunks]
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(seen) == 2000
        assert held < 2000 * 1000

    @pytest.mark.parametrize("kind", [DELTA, FINAL_ONLY])
    def test_other_token_ids_own_their_memory(self, kind):
        engine = Engine("text", output_kind=kind)
        sent = engine.send(new_token_ids=[1, 2]) + engine.send(new_token_ids=[3])
        sent.append(engine.finish())
        assert {type(output.new_token_ids._packed) for output in sent} == {bytes}

    def test_an_empty_chunk_is_emitted_as_it_is(self):
        engine = Engine(output_kind=DELTA)
        assert shapes(engine.send({"audio": samples(1, 0)})) == [(1, 0)]
        assert shapes(engine.send({"audio": samples(1, 3)})) == [(1, 3)]

    def test_an_empty_tuple_is_no_chunk(self):
        engine = Engine()
        engine.send({"audio": ()})
        assert engine.finish().multimodal_outputs == {}

    @pytest.mark.parametrize("kind", c.OutputKind)
    def test_outputs_are_what_their_contract_would_accept(self, kind):
        """They are built without its validators, which run here."""
        spec = c.OutputSpec({"codes": c.Append(), "image": c.Append()})
        engine = Engine("text+audio+image", output_kind=kind, spec=spec)
        payload = {"audio": {"wav": samples(1, 2), "sample_rate": 24000}, "image": samples(1, 2)}
        sent = engine.send({**payload, "codes": samples(3)}, new_token_ids=[1, 2])
        sent += engine.send({"audio": samples(2, 2)}, new_token_ids=[3])
        sent += engine.send({"hidden": samples(2, 2)}, new_token_ids=[4])
        assert set(sent[-1].errors) == {"audio", ""}
        for output in sent:
            fields = {name: getattr(output, name) for name in output.__slots__ if name[0] != "_"}
            fields["multimodal_outputs"] = dict(output.multimodal_outputs)
            fields["metadata"] = {key: dict(value) for key, value in output.metadata.items()}
            fields["tensors"] = dict(output.tensors)
            fields["errors"] = dict(output.errors)
            assert c.RequestOutput(**fields) == output
            assert pickle.loads(pickle.dumps(output)) == output


class TestChunkKinds:
    def test_a_final_chunk_replaces_the_deltas_before_it(self):
        """vllm-omni#3032: deltas A, B, C, then ABC."""
        parts = [samples(1, 3), samples(1, 2, start=3), samples(1, 4, start=5)]
        for kind in (FINAL_ONLY, CUMULATIVE):
            engine = Engine(output_kind=kind)
            for part in parts:
                engine.send({"audio": part})
            last = engine.finish({"audio": samples(1, 9)}, kind=c.ChunkKind.FINAL)
            assert torch.equal(last.multimodal_outputs["audio"], samples(1, 9))

    def test_a_delta_may_be_longer_than_all_before_it(self):
        """vllm-omni#1415: what a chunk is was said, and is not guessed from its size."""
        for kind, expected in {
            DELTA: [[1], [1] * 3, [1] * 9],
            CUMULATIVE: [[1], [1] * 4, [1] * 13],
            FINAL_ONLY: [[1] * 13],
        }.items():
            engine = Engine(output_kind=kind)
            sent = engine.send({"audio": torch.ones(1)}) + engine.send({"audio": torch.ones(3)})
            sent.append(engine.finish({"audio": torch.ones(9)}))
            assert [output.multimodal_outputs["audio"].tolist() for output in sent] == expected

    def test_a_step_may_bring_several_rows(self):
        """vllm-omni#4957: three rows where one is usual are three rows of the value."""
        engine = Engine("latent", spec=c.OutputSpec({"hidden.rows": c.Concat(0)}))
        for rows in (1, 3, 1):
            engine.send({"latent": samples(rows, 2), "hidden": {"rows": samples(rows, 4)}})
        last = engine.finish()
        assert last.multimodal_outputs["latent"].shape == (5, 2)
        assert last.tensors["hidden.rows"].shape == (5, 4)

    def test_of_a_whole_value_a_delta_client_gets_the_tail(self):
        engine = Engine(output_kind=DELTA)
        sent = engine.send({"audio": samples(1, 3)})
        sent += engine.send({"audio": samples(1, 5)}, kind=c.ChunkKind.CUMULATIVE)
        sent += engine.send({"audio": samples(1, 1, start=5)})
        last = engine.finish({"audio": samples(1, 9)}, kind=c.ChunkKind.FINAL)
        parts = [output.multimodal_outputs["audio"] for output in (*sent, last)]
        assert [part.tolist() for part in parts] == [[[0, 1, 2]], [[3, 4]], [[5]], [[6, 7, 8]]]
        assert all(p.untyped_storage().nbytes() == p.nbytes for p in parts)

    def test_a_whole_value_without_a_tail_has_nothing_new(self):
        engine = Engine(output_kind=DELTA)
        engine.send({"audio": samples(1, 3)})
        last = engine.finish({"audio": samples(1, 3)}, kind=c.ChunkKind.FINAL)
        assert last.multimodal_outputs == {}
        assert last.errors == {}

    def test_the_tail_of_a_tuple(self):
        engine = Engine(output_kind=DELTA)
        engine.send({"audio": samples(1, 4)})
        whole = (samples(1, 3), samples(1, 3, start=3), samples(1, 2, start=6))
        last = engine.finish({"audio": whole}, kind=c.ChunkKind.CUMULATIVE)
        assert last.multimodal_outputs["audio"].tolist() == [[4, 5, 6, 7]]

    def test_a_whole_value_shorter_than_what_was_emitted_is_an_error(self):
        engine = Engine(output_kind=DELTA)
        engine.send({"audio": samples(1, 5)})
        last = engine.finish({"audio": samples(1, 4)}, kind=c.ChunkKind.CUMULATIVE)
        error = last.errors["audio"]
        assert isinstance(error, c.AccumulationError)
        assert (error.request_id, error.modality, error.key) == ("r1", "audio", "audio")

    def test_a_whole_value_may_be_shorter_where_nothing_was_emitted(self):
        engine = Engine(output_kind=FINAL_ONLY)
        engine.send({"audio": samples(1, 5)})
        last = engine.finish({"audio": samples(1, 4)}, kind=c.ChunkKind.FINAL)
        assert torch.equal(last.multimodal_outputs["audio"], samples(1, 4))

    @pytest.mark.parametrize("kind", c.OutputKind)
    def test_a_whole_value_of_another_form_is_an_error(self, kind):
        engine = Engine(output_kind=kind)
        engine.send({"audio": samples(2, 5)})
        last = engine.finish({"audio": samples(1, 9)}, kind=c.ChunkKind.FINAL)
        assert "f32[2, 5]" in str(last.errors["audio"])
        assert "f32[1, 9]" in str(last.errors["audio"])

    @pytest.mark.parametrize("rule", [c.Concat(0), c.Stack(0), c.Replace(), c.Append()])
    @pytest.mark.parametrize("kind", [CUMULATIVE, FINAL_ONLY])
    def test_a_whole_value_of_no_tensors_replaces_what_was_there(self, kind, rule):
        engine = Engine(output_kind=kind, spec=c.OutputSpec({"audio": rule}))
        engine.send({"audio": samples(1, 5)})
        engine.send({"audio": ()}, kind=c.ChunkKind.CUMULATIVE)
        assert engine.processor.retained_bytes == 0
        last = engine.finish()
        assert (last.multimodal_outputs, last.errors) == ({}, {})

    @pytest.mark.parametrize("rule", [c.Concat(0), c.Stack(0), c.Replace(), c.Append()])
    def test_a_whole_value_of_no_tensors_takes_back_nothing_that_was_emitted(self, rule):
        engine = Engine(output_kind=DELTA, spec=c.OutputSpec({"audio": rule}))
        engine.send({"audio": samples(1, 5)})
        last = engine.finish({"audio": ()}, kind=c.ChunkKind.CUMULATIVE)
        assert list(last.errors) == ["audio"]

    def test_an_earlier_emission_survives_a_replacement(self):
        engine = Engine(output_kind=CUMULATIVE)
        (first,) = engine.send({"audio": samples(1, 4)})
        engine.send({"audio": torch.zeros(1, 4)}, kind=c.ChunkKind.CUMULATIVE)
        engine.send({"audio": torch.zeros(1, 4)})
        assert torch.equal(first.multimodal_outputs["audio"], samples(1, 4))

    @pytest.mark.parametrize("chunk_kind", c.ChunkKind)
    def test_new_token_ids_are_new_in_chunks_of_every_kind(self, chunk_kind):
        for kind, expected in {
            DELTA: [(1, 2), (3,), ()],
            CUMULATIVE: [(1, 2), (1, 2, 3), (1, 2, 3)],
            FINAL_ONLY: [(1, 2, 3)],
        }.items():
            engine = Engine("text+audio", output_kind=kind)
            sent = engine.send({"audio": samples(1, 2)}, new_token_ids=[1, 2])
            sent += engine.send({"audio": samples(1, 4)}, new_token_ids=[3], kind=chunk_kind)
            sent.append(engine.finish(kind=chunk_kind))
            assert [tuple(output.new_token_ids) for output in sent] == expected

    @pytest.mark.parametrize("kind", c.OutputKind)
    def test_a_whole_stack_has_the_form_of_the_value(self, kind):
        engine = Engine("image", output_kind=kind, spec=c.OutputSpec({"image": c.Stack(0)}))
        sent = engine.send({"image": samples(2, 2)})
        sent.append(engine.finish({"image": samples(3, 2, 2)}, kind=c.ChunkKind.FINAL))
        values = [output.multimodal_outputs["image"] for output in sent]
        whole = torch.cat(values) if kind is DELTA else values[-1]
        assert torch.equal(whole, samples(3, 2, 2))

    @pytest.mark.parametrize("rule", [c.Stack(0), c.Append()])
    def test_a_whole_tuple_is_all_chunks_so_far(self, rule):
        engine = Engine("image", output_kind=DELTA, spec=c.OutputSpec({"image": rule}))
        engine.send({"image": samples(2)})
        whole = (samples(2), samples(2, start=2), samples(2, start=4))
        last = engine.finish({"image": whole}, kind=c.ChunkKind.CUMULATIVE)
        rows = [part.tolist() for part in last.multimodal_outputs["image"]]
        assert rows == [[2, 3], [4, 5]]

    @pytest.mark.parametrize("rule", [c.Stack(0), c.Append()])
    def test_fewer_chunks_than_were_emitted_are_an_error(self, rule):
        engine = Engine("image", output_kind=DELTA, spec=c.OutputSpec({"image": rule}))
        engine.send({"image": (samples(2), samples(2))})
        last = engine.finish({"image": (samples(2),)}, kind=c.ChunkKind.CUMULATIVE)
        assert list(last.errors) == ["image"]


class TestPayloads:
    def test_declared_keys_accumulate_by_their_own_rules(self):
        spec = c.OutputSpec({"codes.audio": c.Concat(0), "codes.ref": c.Replace()})
        engine = Engine(spec=spec)
        for size in (5, 1, 1, 1):
            engine.send({"codes": {"audio": torch.ones(size, 16), "ref": torch.ones(100, 16)}})
        last = engine.finish()
        assert last.errors == {}
        assert {key: tuple(t.shape) for key, t in last.tensors.items()} == {
            "codes.audio": (8, 16),
            "codes.ref": (100, 16),
        }
        assert last.multimodal_outputs == {}

    def test_a_declared_key_both_flat_and_nested_fails_the_request(self):
        engine = Engine(spec=c.OutputSpec({"codes.audio": c.Concat(0)}))
        payload = {"codes": {"audio": torch.ones(2, 4)}, "codes.audio": torch.ones(2, 4)}
        (last,) = engine.send(payload)
        assert last.errors[""].key == "codes.audio"

    def test_a_declared_key_may_be_flat(self):
        engine = Engine(spec=c.OutputSpec({"codes.audio": c.Concat(0)}))
        last = engine.finish({"codes.audio": torch.ones(2, 4)})
        assert last.tensors["codes.audio"].shape == (2, 4)

    def test_declared_keys_follow_the_output_kind(self):
        spec = c.OutputSpec({"codes.audio": c.Concat(0), "steps": c.Append()})
        engine = Engine(output_kind=DELTA, spec=spec)
        payload = {
            "codes": {"audio": torch.ones(2, 4)},
            "audio": samples(1, 3),
            "steps": samples(1),
        }
        for _ in range(2):
            (output,) = engine.send(payload)
            assert output.tensors["codes.audio"].shape == (2, 4)
            assert [tuple(t.shape) for t in output.tensors["steps"]] == [(1,)]
            assert output.multimodal_outputs["audio"].shape == (1, 3)

    def test_a_declared_key_is_taken_from_under_its_modality(self):
        engine = Engine(spec=c.OutputSpec({"audio.embedding": c.Replace()}))
        last = engine.finish({"audio": {"waveform": samples(1, 3), "embedding": samples(8)}})
        assert last.errors == {}
        assert last.multimodal_outputs["audio"].shape == (1, 3)
        assert last.tensors["audio.embedding"].shape == (8,)

    def test_a_failing_declared_key_fails_the_one_modality(self):
        engine = Engine("text+audio", spec=c.OutputSpec({"codes.audio": c.Concat(0)}))
        engine.send({"codes": {"audio": torch.ones(2, 16)}})
        engine.send({"codes": {"audio": torch.ones(2, 8)}}, new_token_ids=[4])
        last = engine.finish()
        error = last.errors["audio"]
        assert (error.modality, error.key) == ("audio", "codes.audio")
        assert last.tensors["codes.audio"].shape == (2, 16)
        assert last.new_token_ids == (4,)

    def test_a_failing_declared_key_fails_the_request_if_it_has_several_modalities(self):
        engine = Engine("audio+image", spec=c.OutputSpec({"codes": c.Concat(0)}))
        engine.send({"codes": torch.ones(2, 16)})
        (last,) = engine.send({"codes": torch.ones(2, 8)})
        assert last.finished
        assert (last.errors[""].key, last.finish_reason) == ("codes", "error")
        assert last.tensors["codes"].shape == (2, 16)

    def test_a_scalar_tensor_in_every_chunk_is_one_scalar(self):
        engine = Engine(output_kind=CUMULATIVE)
        for _ in range(3):
            payload = {"audio": samples(1, 2), "sample_rate": torch.tensor(24000)}
            (output,) = engine.send(payload)
        assert output.metadata == {"audio": {"sample_rate": 24000}}
        assert type(output.metadata["audio"]["sample_rate"]) is int
        assert output.multimodal_outputs["audio"].shape == (1, 6)

    @pytest.mark.parametrize("nested", [False, True])
    def test_another_sample_rate_is_an_error(self, nested):
        """vllm-omni#6552: 24 kHz samples under an 8 kHz header."""
        engine = Engine()
        for rate in (24000, 16000):
            payload = {"audio": samples(1, 2), "sample_rate": rate}
            engine.send({"audio": payload} if nested else payload)
        last = engine.finish()
        assert last.errors["audio"].key == ("audio.sample_rate" if nested else "sample_rate")
        assert last.metadata["audio"]["sample_rate"] == 24000
        assert last.multimodal_outputs["audio"].shape == (1, 2)

    def test_scalars_nested_under_their_modality(self):
        engine = Engine("audio+video")
        last = engine.finish(
            {
                "audio": {"waveform": samples(1, 2), "sample_rate": 24000, "info": {"lang": "en"}},
                "video": {"frames": samples(2, 3, 4, 4), "fps": 24.0},
            }
        )
        assert last.errors == {}
        assert last.metadata == {
            "audio": {"sample_rate": 24000, "info.lang": "en"},
            "video": {"fps": 24.0},
        }

    def test_metadata_comes_with_every_output_from_its_first_chunk_on(self):
        engine = Engine(output_kind=DELTA)
        sent = engine.send({"audio": samples(1, 2), "sample_rate": 24000})
        sent += engine.send({"audio": samples(1, 2), "codec": "pcm", "sample_rate": 24000.0})
        sent.append(engine.finish())
        assert type(sent[-1].metadata["audio"]["sample_rate"]) is int
        assert list(sent[-1].metadata["audio"]) == ["sample_rate", "codec"]
        assert [dict(output.metadata["audio"]) for output in sent] == [
            {"sample_rate": 24000},
            {"sample_rate": 24000, "codec": "pcm"},
            {"sample_rate": 24000, "codec": "pcm"},
        ]

    def test_scalars_that_come_late_are_pinned_too(self):
        engine = Engine(output_kind=DELTA)
        sent = engine.send({"audio": samples(1, 2), "sample_rate": 24000})
        sent += engine.send({"audio": samples(1, 2), "sample_rate": 24000, "speaker": "b"})
        sent += engine.send({"audio": samples(1, 2), "speaker": "b"})
        first, second, third = (output.metadata["audio"] for output in sent)
        assert first == {"sample_rate": 24000}
        assert second == third == {"sample_rate": 24000, "speaker": "b"}
        last = engine.finish({"audio": samples(1, 2), "speaker": "c"})
        assert last.errors["audio"].key == "speaker"

    def test_a_list_of_chunks_in_one_payload(self):
        engine = Engine()
        last = engine.finish({"audio": [samples(3), samples(2, start=3)]})
        assert last.multimodal_outputs["audio"].tolist() == [0, 1, 2, 3, 4]

    @pytest.mark.parametrize("key", ["model_outputs", "hidden"])
    def test_a_generic_key_belongs_to_the_single_non_text_modality(self, key):
        engine = Engine("text+audio")
        engine.send({key: samples(1, 3)})
        last = engine.finish({key: {"wav": samples(1, 2), "sample_rate": 24000}})
        assert last.errors == {}
        assert last.multimodal_outputs["audio"].shape == (1, 5)
        assert last.metadata["audio"]["sample_rate"] == 24000

    @pytest.mark.parametrize(
        "payload",
        [
            {"model_outputs": samples(1, 2), "hidden": samples(1, 2)},
            {"model_outputs": samples(1, 2), "audio": samples(1, 2)},
        ],
    )
    def test_two_values_for_one_modality_are_ambiguous(self, payload):
        engine = Engine("text+audio")
        engine.send({"audio": samples(1, 4)})
        engine.send(payload, new_token_ids=[1])
        last = engine.finish(new_token_ids=[2])
        assert last.errors["audio"].modality == "audio"
        assert all(key in str(last.errors["audio"]) for key in payload)
        assert last.multimodal_outputs["audio"].shape == (1, 4)
        assert last.new_token_ids == (1, 2)

    @pytest.mark.parametrize("key", ["model_outputs", "hidden", "sample_rate", "unknown"])
    def test_what_could_belong_to_several_modalities_or_none_fails_the_request(self, key):
        engine = Engine("text+audio+image")
        engine.send({"audio": samples(1, 4)}, new_token_ids=[1])
        (last,) = engine.send({key: 24000 if key == "sample_rate" else samples(1, 2)})
        assert last.finished
        assert list(last.errors) == [""]
        assert last.errors[""].key == key
        assert last.multimodal_outputs["audio"].shape == (1, 4)
        assert last.new_token_ids == (1,)
        assert engine.processor.num_requests == 0

    @pytest.mark.parametrize(
        ("output_type", "payload", "key"),
        [
            ("audio", {"audio": samples(1), "mel": samples(2)}, "mel"),
            ("audio", {"codes": {"audio": samples(2)}}, "codes.audio"),
            ("audio", {"a": {"b": {"c": (samples(2),)}}}, "a.b.c"),
            ("text", {"audio": samples(2)}, "audio"),
            ("text", {"hidden": samples(2)}, "hidden"),
            ("text", {"sample_rate": 24000}, "sample_rate"),
        ],
    )
    def test_what_belongs_to_nothing_is_an_error_that_names_it(self, output_type, payload, key):
        (last,) = Engine(output_type).send(payload)
        assert last.errors[""].key == key
        assert key in str(last.errors[""])

    def test_a_nested_tensor_that_no_key_extracts_fails_its_modality(self):
        engine = Engine("audio+image")
        engine.send({"audio": {"waveform": samples(1, 2), "mel": samples(2)}})
        last = engine.finish({"image": samples(1, 3)})
        assert last.errors["audio"].key == "audio.mel"
        assert last.multimodal_outputs["image"].shape == (1, 3)

    def test_inter_stage_outputs_and_hidden_states_never_reach_a_client(self):
        engine = Engine(output_kind=DELTA)
        output = c.OmniOutput(samples(3, 8), {}, {"audio": samples(1, 9), "note": "for the next"})
        assert engine.processor.process_outputs([engine.chunk(output=output)]) == []
        last = engine.finish({"audio": samples(1, 2)})
        assert shapes([last]) == [(1, 2)]
        assert engine.processor.retained_bytes == 0

    def test_handles_are_resolved(self):
        chunk = samples(1, 3)
        handle = c.TensorHandle("local", torch.float32, (1, 3), chunk)
        rate = c.TensorHandle("local", torch.int64, (), torch.tensor(24000))
        engine = Engine(output_kind=DELTA)
        (output,) = engine.send({"audio": handle, "sample_rate": rate})
        assert torch.equal(output.multimodal_outputs["audio"], chunk)
        assert output.metadata["audio"]["sample_rate"] == 24000
        last = engine.finish({"audio": (handle, handle)})
        assert last.multimodal_outputs["audio"].shape == (1, 6)

    def test_a_handle_that_does_not_resolve_fails_its_modality(self):
        engine = Engine("audio+image")
        handle = c.TensorHandle("arena", torch.float32, (1, 3), b"gone")
        engine.send({"audio": handle, "image": samples(1, 2)})
        last = engine.finish()
        assert isinstance(last.errors["audio"].__cause__, c.HandoffError)
        assert last.multimodal_outputs["image"].shape == (1, 2)

    def test_a_chunk_s_own_output_type_tells_what_a_generic_key_is(self):
        engine = Engine("text+audio+image")
        engine.send({"model_outputs": samples(1, 2)}, output_type="audio")
        engine.send({"model_outputs": samples(1, 3, 4)}, output_type="Image, text")
        last = engine.finish()
        assert last.errors == {}
        assert shapes([last]) == [(1, 2)]
        assert shapes([last], "image") == [(1, 3, 4)]

    @pytest.mark.parametrize(
        ("output_type", "kind"),
        [
            ("audio+image", c.AccumulationError),
            ("smell", c.HandlerNotFoundError),
            ("audio+", c.ContractValueError),
        ],
    )
    def test_an_output_type_beyond_the_request_s_fails_the_request(self, output_type, kind):
        (last,) = Engine("audio").send({"audio": samples(1)}, output_type=output_type)
        assert type(last.errors[""]) is kind


class Depth:
    """A handler of its own kind: it halves its chunks and keeps them in a list."""

    modality = "depth"

    def extract(self, output):
        return output.multimodal_outputs.get("depth_map")

    def accumulate(self, existing, incoming):
        return [*(existing or []), incoming / 2]

    def consolidate(self, accumulated):
        return torch.cat(accumulated)

    def validate(self, value):
        return bool((value >= 0).all())


def with_handler(handler):
    registry = default_registry()
    registry.register(handler)
    return registry


class TestCustomHandlers:
    def test_one_class_and_one_register_call_make_a_modality(self):
        engine = Engine("text+depth+audio", registry=with_handler(Depth()))
        engine.send({"depth_map": torch.tensor([2.0, 4.0])})
        engine.send({"depth_map": (torch.tensor([6.0]), torch.tensor([8.0])), "audio": samples(2)})
        assert engine.processor.retained_bytes == (4 + 2) * 4
        last = engine.finish()
        assert last.errors == {}
        assert last.multimodal_outputs["depth"].tolist() == [1, 2, 3, 4]

    def test_its_values_follow_the_output_kind(self):
        for kind, expected in {DELTA: [[1], [2]], CUMULATIVE: [[1], [1, 2]]}.items():
            engine = Engine("depth", registry=with_handler(Depth()), output_kind=kind)
            sent = engine.send({"depth_map": torch.tensor([2.0])})
            sent += engine.send({"depth_map": torch.tensor([4.0])})
            assert [out.multimodal_outputs["depth"].tolist() for out in sent] == expected

    def test_a_whole_value_starts_anew(self):
        engine = Engine("depth", registry=with_handler(Depth()))
        engine.send({"depth_map": torch.tensor([2.0])})
        last = engine.finish({"depth_map": torch.tensor([4.0, 6.0])}, kind=c.ChunkKind.FINAL)
        assert last.multimodal_outputs["depth"].tolist() == [2, 3]

    def test_a_whole_value_after_deltas_needs_a_rule_for_a_delta_client(self):
        engine = Engine("depth", registry=with_handler(Depth()), output_kind=DELTA)
        engine.send({"depth_map": torch.tensor([2.0])})
        last = engine.finish({"depth_map": torch.tensor([2.0, 4.0])}, kind=c.ChunkKind.FINAL)
        assert list(last.errors) == ["depth"]

        engine = Engine(
            "depth",
            registry=with_handler(Depth()),
            output_kind=DELTA,
            spec=c.OutputSpec({"depth": c.Concat(0)}),
        )
        engine.send({"depth_map": torch.tensor([2.0])})
        last = engine.finish({"depth_map": torch.tensor([2.0, 4.0])}, kind=c.ChunkKind.FINAL)
        assert last.multimodal_outputs["depth"].tolist() == [4]

    def test_it_gets_tensors_of_its_own(self):
        kept = []

        class Keeping(Depth):
            def accumulate(self, existing, incoming):
                kept.append(incoming)
                return super().accumulate(existing, incoming)

        chunk = torch.ones(2)
        Engine("depth", registry=with_handler(Keeping())).send({"depth_map": chunk})
        chunk.zero_()
        assert kept[0].tolist() == [1, 1]

    def test_a_subclass_of_a_built_in_handler_is_called_too(self):
        class Quieter(type(default_registry().get("audio"))):
            def accumulate(self, existing, incoming):
                return super().accumulate(existing, incoming / 2)

            def consolidate(self, accumulated):
                return super().consolidate(accumulated) + 1

        registry = default_registry()
        registry.register(Quieter(), replace=True)
        engine = Engine("audio", registry=registry, output_kind=DELTA)
        (output,) = engine.send({"audio": (torch.tensor([2.0]), torch.tensor([4.0]))})
        assert output.multimodal_outputs["audio"].tolist() == [2, 3]
        last = engine.finish({"audio": torch.tensor([2.0, 4.0, 8.0])}, kind=c.ChunkKind.FINAL)
        assert last.multimodal_outputs["audio"].tolist() == [5]

    def test_a_subclass_may_change_only_how_the_value_ends(self):
        class Louder(type(default_registry().get("audio"))):
            def consolidate(self, accumulated):
                return super().consolidate(accumulated) * 2

        registry = default_registry()
        registry.register(Louder(), replace=True)
        engine = Engine("audio", registry=registry)
        engine.send({"audio": torch.tensor([1.0])})
        last = engine.finish({"audio": torch.tensor([2.0])})
        assert last.multimodal_outputs["audio"].tolist() == [2, 4]

    def test_what_a_handler_makes_of_what_it_reads_counts_as_extracted(self):
        class Merging(Depth):
            def extract(self, output):
                payload = output.multimodal_outputs
                return payload["left"] + payload["right"]

        engine = Engine("depth", registry=with_handler(Merging()))
        last = engine.finish({"left": torch.ones(2), "right": torch.ones(2), "unit": "m"})
        assert last.errors == {}
        assert last.multimodal_outputs["depth"].tolist() == [1, 1]
        assert last.metadata["depth"]["unit"] == "m"

    @pytest.mark.parametrize("own", [True, False])
    def test_handlers_that_read_the_same_key_both_get_it(self, own):
        """Whether one of them reads the payload itself or both say which keys they extract."""

        class Depths(TensorHandler):
            modality = "depth"
            keys = ("audio",)
            dim = -1

        class Peeking(Depths):
            def extract(self, output):
                return output.multimodal_outputs.get("audio")

        registry = default_registry()
        registry.register(Peeking() if own else Depths())
        for output_type in ("audio+depth", "depth+audio"):
            engine = Engine(output_type, registry=registry)
            engine.send({"audio": samples(1, 2)})
            last = engine.finish({"audio": samples(1, 3)})
            assert last.errors == {}
            assert {key: value.shape for key, value in last.multimodal_outputs.items()} == {
                "audio": (1, 5),
                "depth": (1, 5),
            }

    def test_what_a_handler_only_looks_at_is_not_extracted(self):
        class Looking(Depth):
            def extract(self, output):
                return dict(output.multimodal_outputs.items()).get("depth")

        engine = Engine("depth", registry=with_handler(Looking()))
        (last,) = engine.send({"depth": torch.ones(2), "other": torch.ones(2)})
        assert last.errors[""].key == "other"

    @pytest.mark.parametrize("method", ["extract", "accumulate", "consolidate", "validate"])
    def test_whatever_a_handler_raises_fails_its_modality_only(self, method):
        def broken(*_arguments):
            raise KeyError("no such thing")

        handler = Depth()
        setattr(handler, method, broken)
        engine = Engine("text+depth+audio", registry=with_handler(handler))
        engine.send({"depth_map": torch.ones(2), "audio": samples(1, 3)}, new_token_ids=[7])
        last = engine.finish({"audio": samples(1, 2)})
        error = last.errors["depth"]
        assert list(last.errors) == ["depth"]
        assert isinstance(error, c.AccumulationError)
        assert (error.request_id, error.modality) == ("r1", "depth")
        assert isinstance(error.__cause__, KeyError)
        assert error.__traceback__ is error.__cause__.__traceback__ is None
        assert "KeyError" in str(error)
        assert "no such thing" in str(error)
        assert shapes([last]) == [(1, 5)]
        assert last.new_token_ids == (7,)
        assert pickle.loads(pickle.dumps(error)).args == error.args

    def test_a_value_that_its_handler_calls_invalid_is_not_sent(self):
        engine = Engine("depth", registry=with_handler(Depth()))
        last = engine.finish({"depth_map": torch.tensor([-1.0])})
        assert last.multimodal_outputs == {}
        assert "validate" in str(last.errors["depth"])

    def test_a_modality_that_turned_invalid_is_dropped(self):
        engine = Engine("depth", registry=with_handler(Depth()), output_kind=CUMULATIVE)
        sent = engine.send({"depth_map": torch.tensor([2.0])})
        sent += engine.send({"depth_map": torch.tensor([-2.0])})
        assert engine.processor.retained_bytes == 0
        sent += engine.send({"depth_map": torch.tensor([2.0])})
        assert [len(output.multimodal_outputs) for output in sent] == [1, 0, 0]
        assert [list(output.errors) for output in sent] == [[], ["depth"], ["depth"]]

    def test_the_first_error_stays(self):
        calls = []

        def broken(_output):
            calls.append(1)
            raise ValueError(f"failure {len(calls)}")

        handler = Depth()
        handler.extract = broken
        engine = Engine("depth", registry=with_handler(handler), output_kind=DELTA)
        sent = [*engine.send({"depth_map": samples(1)}), engine.finish({"depth_map": samples(1)})]
        assert len(calls) == 2
        assert all("failure 1" in str(output.errors["depth"]) for output in sent)

    @pytest.mark.parametrize(
        "value", [{"a": 1}, None, [torch.ones(1), 3], torch.nn.Parameter(samples(1))]
    )
    def test_a_consolidated_value_must_be_tensors(self, value):
        handler = Depth()
        handler.consolidate = lambda _accumulated: value
        handler.validate = lambda _value: True
        engine = Engine("depth", registry=with_handler(handler))
        assert list(engine.finish({"depth_map": torch.ones(1)}).errors) == ["depth"]

    def test_running_requests_keep_their_handler(self):
        engine = Engine("audio")
        engine.send({"audio": samples(1, 2)})
        engine.processor.registry.register(Depth())
        broken = Depth()
        broken.modality = "audio"
        engine.processor.registry.register(broken, replace=True)
        assert shapes([engine.finish({"audio": samples(1, 3)})]) == [(1, 5)]


class TestFailures:
    def test_a_modality_that_failed_stays_failed_and_the_rest_goes_on(self):
        engine = Engine("text+audio+image", output_kind=FINAL_ONLY)
        engine.send({"audio": samples(2, 100), "image": samples(1, 3)}, new_token_ids=[1])
        engine.send({"audio": samples(1, 50), "image": samples(1, 3)}, new_token_ids=[2])
        engine.send({"audio": samples(2, 100), "image": samples(1, 3)}, new_token_ids=[3])
        last = engine.finish()
        error = last.errors["audio"]
        assert list(last.errors) == ["audio"]
        assert (error.request_id, error.modality, error.key) == ("r1", "audio", "audio")
        assert "f32[2, 100]" in str(error)
        assert "f32[1, 50]" in str(error)
        assert torch.equal(last.multimodal_outputs["audio"], samples(2, 100))
        assert last.multimodal_outputs["image"].shape == (3, 3)
        assert last.new_token_ids == (1, 2, 3)
        assert last.finish_reason == "stop"

    def test_the_error_is_on_the_output_of_its_chunk_and_on_the_later_ones(self):
        engine = Engine("text+audio", output_kind=DELTA)
        sent = engine.send({"audio": samples(2, 10)})
        sent += engine.send({"audio": samples(1, 5)})
        sent += engine.send({"audio": samples(2, 10)}, new_token_ids=[3])
        sent.append(engine.finish())
        assert [list(output.errors) for output in sent] == [[], ["audio"], ["audio"], ["audio"]]
        assert [len(output.multimodal_outputs) for output in sent] == [1, 0, 0, 0]

    def test_a_refused_tuple_is_refused_as_a_whole(self):
        for kind in c.OutputKind:
            engine = Engine("audio", output_kind=kind)
            sent = engine.send({"audio": samples(1, 2)})
            last = engine.finish({"audio": (samples(1, 3), samples(2, 3))})
            values = [out.multimodal_outputs.get("audio") for out in (*sent, last)]
            assert [v.shape for v in values if v is not None][-1] == (1, 2)
            assert list(last.errors) == ["audio"]

    @pytest.mark.parametrize("kind", c.OutputKind)
    @pytest.mark.parametrize("step", [0, 1, 3, 9])
    def test_a_gap_or_a_repeat_ends_the_request(self, kind, step):
        """vllm-omni#3833: chunk 2 never arrives."""
        engine = Engine("text+audio", output_kind=kind)
        engine.send({"audio": samples(1, 2)}, new_token_ids=[1])
        engine.send({"audio": samples(1, 2)}, new_token_ids=[2])
        (last,) = engine.send({"audio": samples(1, 2)}, new_token_ids=[3], step=step)
        assert last.finished
        assert last.finish_reason == "error"
        assert list(last.errors) == [""]
        assert isinstance(last.errors[""], c.AccumulationError)
        assert last.errors[""].request_id == "r1"
        assert "step 2" in str(last.errors[""])
        if kind is DELTA:
            assert (last.multimodal_outputs, last.new_token_ids) == ({}, ())
        else:
            assert shapes([last]) == [(1, 4)]
            assert last.new_token_ids == (1, 2)
        assert engine.processor.num_requests == engine.processor.retained_bytes == 0

    def test_the_first_step_is_0(self):
        (last,) = Engine().send({"audio": samples(1)}, step=1)
        assert list(last.errors) == [""]

    def test_a_failing_request_touches_no_other_of_its_batch(self):
        processor = MultimodalOutputProcessor()
        for name in ("a", "b", "c"):
            processor.add_request(name, "audio", output_kind=DELTA)
        payload = c.OmniOutput(multimodal_outputs={"audio": samples(1, 2)})
        chunks = [
            c.OutputChunk("a", 0, "audio", output=payload),
            c.OutputChunk("b", 4, "audio", output=payload),
            c.OutputChunk("c", 0, "audio", output=payload),
            c.OutputChunk("b", 0, "audio", output=payload),
            c.OutputChunk("a", 1, "audio", output=payload),
        ]
        outputs = processor.process_outputs(chunks)
        assert [(o.request_id, o.finished) for o in outputs] == [
            ("a", False),
            ("b", True),
            ("c", False),
            ("a", False),
        ]
        assert processor.num_requests == 2
        assert processor.num_late_chunks == 1

    def test_an_error_keeps_no_tensor_alive(self):
        engine = Engine("audio+depth", registry=with_handler(Depth()))
        engine.send({"audio": samples(2, 100), "depth_map": torch.ones(1)})
        chunk, wrong = samples(1, 50), torch.ones(1, 5)
        alive = weakref.ref(chunk), weakref.ref(wrong)
        engine.send({"audio": chunk, "depth_map": wrong})
        last = engine.finish()
        assert set(last.errors) == {"audio", "depth"}
        del chunk, wrong
        gc.collect()
        assert [ref() for ref in alive] == [None, None]


class TestLifetime:
    @pytest.mark.parametrize("kind", c.OutputKind)
    def test_a_chunk_s_tensors_are_not_kept_alive(self, kind):
        engine = Engine(output_kind=kind)
        chunk = samples(1, 500)
        alive = weakref.ref(chunk)
        engine.send({"audio": chunk})
        del chunk
        assert alive() is None

    def test_abort_frees_everything_and_emits_nothing(self):
        """vllm-omni#3311: 100 chunks, then an abort and no finish event."""
        engine = Engine(output_kind=CUMULATIVE)
        for _ in range(100):
            engine.send({"audio": samples(1, 10)})
        engine.processor.abort("r1")
        assert engine.processor.num_requests == engine.processor.retained_bytes == 0
        assert engine.send({"audio": samples(1, 10)}) == []
        assert engine.processor.num_late_chunks == 1

    def test_abort_of_an_unknown_request_is_ignored(self):
        processor = MultimodalOutputProcessor()
        processor.abort("never")
        processor.abort("never")

    @pytest.mark.parametrize(
        ("kind", "expected"), [(DELTA, set()), (CUMULATIVE, {"audio"}), (FINAL_ONLY, {"audio"})]
    )
    def test_an_error_of_the_engine_is_in_the_last_output(self, kind, expected):
        engine = Engine(output_kind=kind)
        engine.processor.add_request("r2", "audio")
        for _ in range(2):
            engine.send({"audio": samples(1, 5)})
        error = c.AdmissionError(
            "ProcessedRequest", [c.Problem((), "budget", "less", "more")], "r1"
        )
        last = engine.processor.fail("r1", error)
        assert last.multimodal_outputs.keys() == expected
        assert all(value.shape == (1, 10) for value in last.multimodal_outputs.values())
        assert last.errors.keys() == {""}
        assert last.errors[""] is error
        assert (last.finished, last.finish_reason) == (True, "error")
        assert engine.processor.fail("r1", error) is None
        assert engine.processor.num_requests == 1
        assert engine.processor.retained_bytes == 0

    def test_an_error_has_to_be_one_that_can_be_sent(self):
        engine = Engine()
        with pytest.raises(c.ContractTypeError):
            engine.processor.fail("r1", ValueError("of another kind"))
        assert engine.processor.num_requests == 1

    def test_chunks_that_come_after_the_end_are_ignored_and_counted(self):
        engine = Engine()
        engine.finish({"audio": samples(1, 2)})
        assert engine.send({"audio": samples(1, 2)}) == []
        assert engine.send(finish_reason="stop") == []
        other = c.OutputChunk("never", 0, "audio")
        assert engine.processor.process_outputs([other, other]) == []
        assert engine.processor.num_late_chunks == 4

    def test_an_id_that_ended_may_start_anew(self):
        engine = Engine()
        engine.send({"audio": samples(2, 2), "sample_rate": 24000})
        engine.finish()
        engine.processor.add_request("r1", "audio")
        engine.step = 0
        last = engine.finish({"audio": samples(1, 3), "sample_rate": 16000})
        assert last.errors == {}
        assert shapes([last]) == [(1, 3)]

    def test_an_id_in_use_is_refused(self, refusal):
        engine = Engine()
        found = refusal(engine.processor.add_request, "r1", "audio")
        assert found == (c.ContractValueError, [(("request_id",), "duplicate")])

    def test_retained_bytes_are_those_of_all_requests(self):
        processor = MultimodalOutputProcessor()
        for name, size in (("a", 10), ("b", 20)):
            processor.add_request(name, "audio")
            output = c.OmniOutput(multimodal_outputs={"audio": samples(1, size)})
            processor.process_outputs([c.OutputChunk(name, 0, "audio", output=output)])
        assert processor.retained_bytes == 120
        processor.abort("a")
        assert processor.retained_bytes == 80

    def test_a_deadline_ends_the_request_with_what_there_is(self, monkeypatch):
        now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: now)
        engine = Engine(deadline_s=2.5)
        engine.processor.add_request("r2", "audio")
        engine.send({"audio": samples(1, 4)})
        now = 102.4
        assert engine.processor.process_outputs([]) == []
        now = 102.5
        (last,) = engine.processor.process_outputs([])
        assert (last.request_id, last.finished, last.finish_reason) == ("r1", True, "error")
        assert isinstance(last.errors[""], c.AccumulationError)
        assert "2.5" in str(last.errors[""])
        assert shapes([last]) == [(1, 4)]
        assert engine.processor.num_requests == 1
        assert engine.processor.retained_bytes == 0

    def test_a_chunk_that_comes_with_the_deadline_is_too_late(self, monkeypatch):
        engine = Engine(deadline_s=0)
        outputs = engine.send({"audio": samples(1, 4)})
        assert [list(output.errors) for output in outputs] == [[""]]
        assert engine.processor.num_late_chunks == 1

    def test_a_request_that_ended_has_no_deadline(self, monkeypatch):
        now = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: now)
        engine = Engine(deadline_s=5)
        engine.finish({"audio": samples(1, 4)})
        engine.processor.add_request("r1", "audio")
        now = 9.0
        assert engine.processor.process_outputs([]) == []
        assert engine.processor.num_requests == 1


class TestArguments:
    @pytest.mark.parametrize(
        ("options", "path", "code"),
        [
            ({"request_id": ""}, ("request_id",), "format"),
            ({"request_id": 3}, ("request_id",), "type"),
            ({"output_type": "audio+"}, ("output_type",), "format"),
            ({"output_type": None}, ("output_type",), "type"),
            ({"output_kind": "delta"}, ("output_kind",), "type"),
            ({"spec": {"audio": c.Append()}}, ("spec",), "type"),
            ({"deadline_s": -1.0}, ("deadline_s",), "range"),
            ({"deadline_s": math.nan}, ("deadline_s",), "range"),
            ({"deadline_s": "1"}, ("deadline_s",), "type"),
            ({"deadline_s": True}, ("deadline_s",), "type"),
        ],
    )
    def test_add_request_checks_them(self, refusal, options, path, code):
        processor = MultimodalOutputProcessor()
        arguments = {"request_id": "r1", "output_type": "audio", **options}
        assert refusal(processor.add_request, **arguments)[1] == [(path, code)]
        assert processor.num_requests == 0

    def test_an_unknown_modality_is_refused_at_the_start(self):
        with pytest.raises(c.HandlerNotFoundError):
            MultimodalOutputProcessor(ModalityRegistry()).add_request("r1", "audio")

    @pytest.mark.parametrize("chunks", [None, 5, {}, iter([]), {1: 2}])
    def test_chunks_come_in_a_sequence(self, refusal, chunks):
        found = refusal(MultimodalOutputProcessor().process_outputs, chunks)
        assert found == (c.ContractTypeError, [(("chunks",), "type")])

    def test_chunks_must_be_chunks_before_any_is_processed(self, refusal):
        engine = Engine(output_kind=DELTA)
        found = refusal(engine.processor.process_outputs, [engine.chunk({}), "chunk", None])
        assert found == (
            c.ContractTypeError,
            [(("chunks", 1), "type"), (("chunks", 2), "type")],
        )
        assert engine.processor.process_outputs([engine.chunk(step=0)]) == []
