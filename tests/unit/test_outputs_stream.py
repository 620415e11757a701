"""`MultimodalOutputProcessor.stream`: one client per request, as fast or as slow as it is."""

import asyncio
import contextlib
import gc

import pytest
import torch

from omniwire import contracts as c
from omniwire.runtime import ModalityRegistry, MultimodalOutputProcessor

DELTA, CUMULATIVE, FINAL_ONLY = c.OutputKind


def chunk(step, size=None, *, request_id="r", value=None, of=None, **fields):
    """A chunk of `size` audio samples, each of them the number of its step; or of other audio."""
    if size is not None:
        of = torch.full((1, size), float(step if value is None else value))
    if of is not None:
        fields["output"] = c.OmniOutput(multimodal_outputs={"audio": of})
    return c.OutputChunk(request_id, step, "text+audio", **fields)


def processor_with(*request_ids, **options):
    processor = MultimodalOutputProcessor()
    for request_id in request_ids:
        processor.add_request(request_id, "text+audio", **options)
    return processor


def sizes(outputs):
    return [
        output.multimodal_outputs["audio"].shape[-1]
        for output in outputs
        if "audio" in output.multimodal_outputs
    ]


async def feed(processor, chunks):
    """Process one chunk after the other; a client that waits gets its turn after each."""
    for one in chunks:
        assert processor.process_outputs([one]) == []
        await asyncio.sleep(0)
        await asyncio.sleep(0)


def three_chunks():
    return [
        chunk(0, 5, new_token_ids=[7]),
        chunk(1, 3, new_token_ids=[8, 9]),
        chunk(2, 2, finish_reason="stop"),
    ]


class TestFastClient:
    """A client that reads each output before the next chunk comes."""

    @pytest.mark.parametrize(
        ("kind", "expected"), [(DELTA, [5, 3, 2]), (CUMULATIVE, [5, 8, 10]), (FINAL_ONLY, [10])]
    )
    def test_it_gets_one_output_for_each_emitting_chunk(self, kind, expected):
        async def main():
            processor = processor_with("r", output_kind=kind)
            stream = processor.stream("r")
            outputs = []

            async def client():
                async for output in stream:
                    outputs.append(output)  # noqa: PERF401  # read one at a time

            task = asyncio.create_task(client())
            await asyncio.sleep(0)
            await feed(processor, three_chunks())
            await task
            assert processor.num_requests == processor.retained_bytes == 0
            return outputs

        outputs = asyncio.run(main())
        assert sizes(outputs) == expected
        assert [output.finished for output in outputs] == [False] * (len(expected) - 1) + [True]
        assert outputs[-1].finish_reason == "stop"

    def test_several_streams_do_not_mix(self):
        async def main():
            processor = processor_with("a", "b", output_kind=DELTA)

            async def client(request_id):
                return [output async for output in processor.stream(request_id)]

            tasks = [asyncio.create_task(client(name)) for name in ("a", "b")]
            await asyncio.sleep(0)
            await feed(processor, [chunk(0, 1, request_id="b"), chunk(0, 4, request_id="a")])
            ends = [chunk(1, request_id=name, finish_reason="stop") for name in ("a", "b")]
            await feed(processor, ends)
            return await asyncio.gather(*tasks)

        a, b = asyncio.run(main())
        assert (sizes(a), sizes(b)) == ([4], [1])
        assert {output.request_id for output in a} == {"a"}

    def test_requests_that_are_not_streamed_keep_their_outputs(self):
        async def main():
            processor = processor_with("a", "b", output_kind=DELTA)
            processor.stream("a")  # dropped at once
            stream = processor.stream("b")
            sent = processor.process_outputs([chunk(0, 2, request_id="b")])
            assert sent == []
            return processor.num_requests, (await anext(stream)).request_id

        assert asyncio.run(main()) == (1, "b")


class TestSlowClient:
    """A client that reads when all chunks are there already."""

    def test_under_delta_it_finds_all_that_is_new_in_one_output(self):
        async def main():
            processor = processor_with("r", output_kind=DELTA)
            stream = processor.stream("r")
            await feed(processor, three_chunks()[:2])
            assert processor.retained_bytes == 8 * 4
            first = await anext(stream)
            assert processor.retained_bytes == 0
            await feed(processor, three_chunks()[2:])
            return [first, *[output async for output in stream]]

        first, last = asyncio.run(main())
        assert first.multimodal_outputs["audio"].tolist() == [[0.0] * 5 + [1.0] * 3]
        assert first.new_token_ids == (7, 8, 9)
        assert last.multimodal_outputs["audio"].tolist() == [[2.0] * 2]
        assert (last.finished, last.new_token_ids) == (True, ())

    @pytest.mark.parametrize("kind", [CUMULATIVE, FINAL_ONLY])
    def test_otherwise_it_finds_the_newest_value(self, kind):
        async def main():
            processor = processor_with("r", output_kind=kind)
            stream = processor.stream("r")
            await feed(processor, three_chunks())
            return [output async for output in stream]

        (last,) = asyncio.run(main())
        assert last.multimodal_outputs["audio"].tolist() == [[0.0] * 5 + [1.0] * 3 + [2.0] * 2]
        assert last.new_token_ids == (7, 8, 9)

    @pytest.mark.parametrize(("whole", "expected"), [(9, [9.0] * 9), (4, [9.0] * 4), (0, [])])
    def test_a_whole_value_replaces_what_was_not_read(self, whole, expected):
        async def main():
            processor = processor_with("r", output_kind=DELTA)
            stream = processor.stream("r")
            await feed(processor, [chunk(0, 5)])
            await feed(processor, [chunk(1, whole, value=9, kind=c.ChunkKind.CUMULATIVE)])
            return await anext(stream)

        output = asyncio.run(main())
        assert output.multimodal_outputs["audio"].tolist() == [expected]

    @pytest.mark.parametrize("kind", c.ChunkKind)
    @pytest.mark.parametrize("unread", [0, 1, 2])
    @pytest.mark.parametrize("rule", [c.Concat(0), c.Stack(0), c.Replace(), c.Append()])
    def test_a_value_without_elements_is_a_value(self, rule, unread, kind):
        """However many chunks without elements the client has missed, it finds their value."""
        empty = (torch.zeros(0, 2),)

        async def main():
            spec = c.OutputSpec({"audio": rule})
            processor = processor_with("r", output_kind=DELTA, spec=spec)
            stream = processor.stream("r")
            for step in range(unread):
                await feed(processor, [chunk(step, of=empty)])
            await feed(processor, [chunk(unread, of=empty, kind=kind, finish_reason="stop")])
            return await anext(stream)

        output = asyncio.run(main())
        assert output.errors == {}
        found = output.multimodal_outputs["audio"]
        parts = found if isinstance(found, tuple) else (found,)
        count = unread + 1 if kind is c.ChunkKind.DELTA else 1
        shapes = {c.Stack: [(count, 0, 2)], c.Append: [(0, 2)] * count}.get(type(rule), [(0, 2)])
        assert [tuple(part.shape) for part in parts] == shapes

    def test_after_a_value_without_elements_there_is_nothing_new_in_another(self):
        async def main():
            processor = processor_with("r", output_kind=DELTA)
            stream = processor.stream("r")
            await feed(processor, [chunk(0, 0)])
            outputs = [await anext(stream)]
            last = chunk(2, 0, kind=c.ChunkKind.FINAL, finish_reason="stop")
            await feed(processor, [chunk(1, 0), last])
            return outputs + [output async for output in stream]

        assert sizes(asyncio.run(main())) == [0]

    @pytest.mark.parametrize("rule", [c.Concat(0), c.Stack(0), c.Replace(), c.Append()])
    def test_a_whole_value_of_no_tensors_replaces_what_was_not_read(self, rule):
        async def main():
            spec = c.OutputSpec({"audio": rule})
            processor = processor_with("r", output_kind=DELTA, spec=spec)
            stream = processor.stream("r")
            await feed(processor, [chunk(0, 2), chunk(1, of=(), kind=c.ChunkKind.CUMULATIVE)])
            assert processor.retained_bytes == 0
            await feed(processor, [chunk(2, finish_reason="stop")])
            return await anext(stream)

        output = asyncio.run(main())
        assert (output.multimodal_outputs, output.errors) == ({}, {})

    def test_of_a_whole_value_it_gets_what_it_has_not_read(self):
        async def main():
            processor = processor_with("r", output_kind=DELTA)
            stream = processor.stream("r")
            await feed(processor, [chunk(0, 5)])
            outputs = [await anext(stream)]
            await feed(processor, [chunk(1, 2), chunk(2, 9, kind=c.ChunkKind.CUMULATIVE)])
            outputs.append(await anext(stream))
            await feed(processor, [chunk(3, 9, kind=c.ChunkKind.FINAL, finish_reason="stop")])
            return outputs + [output async for output in stream]

        first, second, last = asyncio.run(main())
        assert sizes([first, second]) == [5, 4]
        assert second.multimodal_outputs["audio"].tolist() == [[2.0] * 4]
        assert last.multimodal_outputs == {}

    def test_what_it_has_not_read_is_bounded(self):
        """Nothing but `max_retained_bytes` stands between a stuck client and the memory."""

        async def main():
            processor = processor_with("r", output_kind=DELTA, max_retained_bytes=8 * 4)
            stream = processor.stream("r")
            await feed(processor, three_chunks()[:2])
            assert processor.retained_bytes == 8 * 4
            await feed(processor, three_chunks()[2:])
            assert processor.num_requests == processor.retained_bytes == 0
            return [output async for output in stream]

        (last,) = asyncio.run(main())
        assert (last.finished, last.finish_reason) == (True, "error")
        assert isinstance(last.errors[""], c.AccumulationError)
        assert sizes([last]) == [8]

    def test_one_that_keeps_up_is_not_bounded(self):
        async def main():
            processor = processor_with("r", output_kind=DELTA, max_retained_bytes=5 * 4)
            stream = processor.stream("r")
            outputs = []
            for one in three_chunks():
                await feed(processor, [one])
                outputs.append(await anext(stream))
            return outputs

        outputs = asyncio.run(main())
        assert sizes(outputs) == [5, 3, 2]
        assert outputs[-1].errors == {}

    def test_an_engine_may_wait_for_it(self):
        async def main():
            processor = processor_with("r", output_kind=DELTA)
            stream = processor.stream("r")
            await processor.drain("r")  # nothing to read yet
            held = []

            async def engine():
                for one in three_chunks():
                    processor.process_outputs([one])
                    held.append(processor.retained_bytes)
                    await processor.drain("r")

            task = asyncio.create_task(engine())
            outputs = []
            async for output in stream:
                outputs.append(output)
                await asyncio.sleep(0.001)
            await task
            return outputs, held

        outputs, held = asyncio.run(main())
        assert sizes(outputs) == [5, 3, 2]
        assert held == [5 * 4, 3 * 4, 0]

    @pytest.mark.parametrize("end", ["abort", "drop", "unknown"])
    def test_an_engine_does_not_wait_for_a_client_that_has_gone(self, end):
        async def main():
            processor = processor_with("r", output_kind=DELTA)
            stream = processor.stream("r")
            processor.process_outputs([chunk(0, 5)])
            waiting = asyncio.create_task(processor.drain("r" if end != "unknown" else "s"))
            await asyncio.sleep(0)
            assert waiting.done() is (end == "unknown")
            if end == "abort":
                processor.abort("r")
            elif end == "drop":
                del stream
            await asyncio.wait_for(waiting, 1)

        asyncio.run(main())


class TestEnds:
    def test_abort_ends_the_iteration_and_frees_what_was_not_read(self):
        async def main():
            processor = processor_with("r", output_kind=DELTA)
            stream = processor.stream("r")
            waiting = asyncio.create_task(anext(stream, None))
            await asyncio.sleep(0)
            processor.abort("r")
            assert await waiting is None
            processor.add_request("r", "text+audio", output_kind=DELTA)
            stream = processor.stream("r")
            processor.process_outputs([chunk(0, 5)])
            processor.abort("r")
            assert processor.num_requests == processor.retained_bytes == 0
            return [output async for output in stream]

        assert asyncio.run(main()) == []

    def test_an_error_of_the_engine_ends_the_iteration_with_what_was_not_read(self):
        async def main():
            processor = processor_with("r", "other", output_kind=DELTA)
            stream = processor.stream("r")
            processor.process_outputs([chunk(0, 5, new_token_ids=[7]), chunk(1, 3)])
            error = c.PeerDied("expected a live peer, got none")
            assert processor.fail("r", error) is None
            outputs = [output async for output in stream]
            assert processor.fail("r", error) is None
            return outputs, error, processor.num_requests, processor.retained_bytes

        (output,), error, num_requests, retained_bytes = asyncio.run(main())
        assert output.errors[""] is error
        assert output.finished
        assert output.finish_reason == "error"
        assert output.new_token_ids == (7,)
        assert sizes([output]) == [8]
        assert (num_requests, retained_bytes) == (1, 0)

    def test_an_error_of_the_engine_wakes_a_client_that_waits(self):
        async def main():
            processor = processor_with("r", output_kind=FINAL_ONLY)
            waiting = asyncio.create_task(anext(processor.stream("r")))
            await asyncio.sleep(0)
            processor.fail("r", c.PeerClosed("expected an open channel, got a closed one"))
            return await asyncio.wait_for(waiting, 30)

        output = asyncio.run(main())
        assert type(output.errors[""]) is c.PeerClosed
        assert output.multimodal_outputs == {}

    def test_cancelling_the_client_aborts_the_request(self):
        async def main():
            processor = processor_with("r", "other", output_kind=DELTA)
            task = asyncio.create_task(anext(processor.stream("r")))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            late = processor.process_outputs([chunk(0, 5)])
            return processor.num_requests, late, processor.num_late_chunks

        assert asyncio.run(main()) == (1, [], 1)

    def test_leaving_the_loop_aborts_the_request(self):
        async def main():
            processor = processor_with("r", output_kind=DELTA)
            processor.process_outputs([])

            async def client():
                async for _ in processor.stream("r"):
                    break

            task = asyncio.create_task(client())
            await asyncio.sleep(0)
            processor.process_outputs([chunk(0, 5)])
            await task
            return processor.num_requests, processor.retained_bytes

        gc.disable()  # it takes no collection
        try:
            assert asyncio.run(main()) == (0, 0)
        finally:
            gc.enable()

    def test_closing_the_iterator_aborts_the_request(self):
        async def main():
            processor = processor_with("r", output_kind=DELTA)
            async with contextlib.aclosing(processor.stream("r")) as stream:
                pass
            assert [output async for output in stream] == []
            await stream.aclose()
            return processor.num_requests

        assert asyncio.run(main()) == 0

    def test_the_end_of_an_old_stream_leaves_a_new_request_of_the_same_id_alone(self):
        async def main():
            processor = processor_with("r", output_kind=DELTA)
            old = processor.stream("r")
            processor.process_outputs([chunk(0, 5, finish_reason="stop")])
            processor.add_request("r", "text+audio", output_kind=DELTA)
            new = processor.stream("r")
            processor.process_outputs([chunk(0, 2)])
            outputs = [output async for output in old]
            await old.aclose()
            del old
            assert processor.num_requests == 1
            return sizes(outputs), sizes([await anext(new)])

        assert asyncio.run(main()) == ([5], [2])

    def test_a_deadline_comes_without_a_chunk(self):
        async def main():
            processor = processor_with("r", output_kind=DELTA, deadline_s=0.02)
            stream = processor.stream("r")
            processor.process_outputs([chunk(0, 5)])
            outputs = [output async for output in stream]
            assert processor.num_requests == processor.retained_bytes == 0
            return outputs

        first, last = asyncio.run(main())
        assert sizes([first]) == [5]
        assert (last.finished, last.finish_reason) == (True, "error")
        assert "0.02 seconds" in str(last.errors[""])

    def test_a_request_that_ended_in_time_has_no_deadline(self):
        async def main():
            processor = processor_with("r", output_kind=DELTA, deadline_s=0.02)
            stream = processor.stream("r")
            task = asyncio.create_task(anext(stream))
            await asyncio.sleep(0)
            processor.process_outputs([chunk(0, 5, finish_reason="stop")])
            output = await task
            processor.add_request("r", "text+audio")
            await asyncio.sleep(0.04)
            return output.finish_reason, processor.num_requests

        assert asyncio.run(main()) == ("stop", 1)

    def test_a_deadline_also_passes_when_chunks_are_processed(self):
        async def main():
            processor = processor_with("r", output_kind=DELTA, deadline_s=0)
            stream = processor.stream("r")
            assert processor.process_outputs([chunk(0, 5)]) == []
            return [output async for output in stream], processor.num_late_chunks

        (last,), late = asyncio.run(main())
        assert "" in last.errors
        assert late == 1

    def test_failures_are_outputs(self):
        async def main():
            processor = processor_with("r", output_kind=DELTA)
            stream = processor.stream("r")
            processor.process_outputs([chunk(0, 5), chunk(2, 5), chunk(3, 5)])
            return [output async for output in stream], processor.num_late_chunks

        (last,), late = asyncio.run(main())
        assert last.finished
        assert "expected step 1, got 2" in str(last.errors[""])
        assert sizes([last]) == [5]
        assert late == 1

    def test_the_next_deadline_is_known(self):
        processor = MultimodalOutputProcessor()
        assert processor.seconds_to_deadline() is None
        processor.add_request("late", "audio", deadline_s=1000)
        processor.add_request("soon", "audio", deadline_s=100)
        seconds = processor.seconds_to_deadline()
        assert seconds is not None
        assert 90 < seconds <= 100
        processor.add_request("over", "audio", deadline_s=0)
        assert processor.seconds_to_deadline() == 0.0


@pytest.mark.parametrize(("code", "request_id"), [("missing", "s"), ("duplicate", "r")])
def test_only_a_running_request_is_streamed_and_once(refusal, code, request_id):
    processor = processor_with("r")
    stream = processor.stream("r")
    refused = refusal(processor.stream, request_id)
    assert refused == (c.ContractValueError, [(("request_id",), code)])
    del stream


class TestBound:
    """`max_retained_bytes`, without a stream."""

    @pytest.mark.parametrize("kind", [CUMULATIVE, FINAL_ONLY])
    def test_it_is_exact(self, kind):
        processor = processor_with("r", "other", output_kind=kind, max_retained_bytes=40)
        processor.process_outputs([chunk(0, 4), chunk(1, 6), chunk(0, 1, request_id="other")])
        held = processor.retained_bytes
        assert held == 44
        (last,) = processor.process_outputs([chunk(2, 1), chunk(3, 1)])[:1]
        assert (last.finished, last.finish_reason) == (True, "error")
        error = last.errors[""]
        assert isinstance(error, c.AccumulationError)
        assert (error.request_id, error.modality, error.key) == ("r", "", "audio")
        assert "at most 40 retained bytes, got 44" in str(error)
        assert sizes([last]) == [10]
        assert processor.num_requests == 1
        assert processor.retained_bytes == 4
        assert processor.num_late_chunks == 1

    def test_a_delta_client_that_is_sent_each_chunk_holds_nothing(self):
        processor = processor_with("r", output_kind=DELTA, max_retained_bytes=0)
        outputs = processor.process_outputs(three_chunks())
        assert sizes(outputs) == [5, 3, 2]
        assert outputs[-1].errors == {}

    def test_what_is_replaced_does_not_count(self):
        spec = c.OutputSpec({"audio": c.Replace()})
        processor = processor_with("r", spec=spec, max_retained_bytes=40)
        assert processor.process_outputs([chunk(0, 10), chunk(1, 10)]) == []
        processor = processor_with("r", max_retained_bytes=40)
        whole = chunk(1, 10, kind=c.ChunkKind.CUMULATIVE)
        assert processor.process_outputs([chunk(0, 10), whole]) == []
        assert processor.retained_bytes == 40

    def test_all_keys_count_together(self):
        spec = c.OutputSpec({"extra": c.Append()})
        processor = processor_with("r", spec=spec, max_retained_bytes=40)
        output = c.OmniOutput(
            multimodal_outputs={"audio": torch.ones(1, 6), "extra": torch.ones(5)}
        )
        (last,) = processor.process_outputs([c.OutputChunk("r", 0, "text+audio", (), output)])
        assert "at most 40 retained bytes, got 44" in str(last.errors[""])

    @pytest.mark.parametrize("keys", [["audio"], ["audio", "extra"]])
    def test_spare_memory_of_growing_buffers_stays_within_it(self, keys):
        """Not a value that fits is refused for the sake of memory that is not needed yet."""
        steps, bound = 500, 500 * 12 * len(keys)
        spec = c.OutputSpec({"extra": c.Concat(-1)})
        processor = processor_with("r", output_kind=CUMULATIVE, spec=spec, max_retained_bytes=bound)
        addresses = set()
        for step in range(steps):
            payload = {key: torch.ones(1, 3) for key in keys}
            output = c.OmniOutput(multimodal_outputs=payload)
            (sent,) = processor.process_outputs(
                [c.OutputChunk("r", step, "text+audio", (), output)]
            )
            assert sent.errors == {}
            assert (step + 1) * 12 * len(keys) <= processor.retained_bytes <= bound
            addresses.add(sent.multimodal_outputs["audio"].data_ptr())
        assert processor.retained_bytes == bound
        assert len(addresses) < 40  # not one buffer a step

    def test_a_handler_s_own_accumulation_counts(self):
        class Box:
            nbytes = 100

        class Pairs:
            modality = "audio"

            def extract(self, output):
                return output.multimodal_outputs.get("audio")

            def accumulate(self, existing, incoming):
                return {"parts": [*(existing or {}).get("parts", []), incoming], "box": Box()}

            def consolidate(self, accumulated):
                return torch.cat(accumulated["parts"], -1)

            def validate(self, value):
                return True

        registry = ModalityRegistry()
        registry.register(Pairs())
        processor = MultimodalOutputProcessor(registry)
        processor.add_request("r", "audio", max_retained_bytes=150)
        chunks = [
            c.OutputChunk("r", step, "audio", (), c.OmniOutput(None, {"audio": torch.ones(1, 10)}))
            for step in range(3)
        ]
        assert processor.process_outputs(chunks[:1]) == []
        assert processor.retained_bytes == 140
        (last,) = processor.process_outputs(chunks[1:2])
        assert "at most 150 retained bytes, got 180" in str(last.errors[""])

    @pytest.mark.parametrize("factor", [1, 3])
    def test_what_a_handler_holds_is_not_counted_at_every_chunk(self, factor):
        """No quadratic work. A handler that holds more than it got is found out soon."""
        looks = 0

        class Held(list):
            def __iter__(self):
                nonlocal looks
                looks += 1
                return super().__iter__()

        class Lists:
            modality = "audio"

            def extract(self, output):
                return output.multimodal_outputs.get("audio")

            def accumulate(self, existing, incoming):
                held = Held() if existing is None else existing
                held.append(incoming.repeat(1, factor))
                return held

            def consolidate(self, accumulated):
                return torch.cat(list(accumulated), -1)

            def validate(self, value):
                return True

        registry = ModalityRegistry()
        registry.register(Lists())
        processor = MultimodalOutputProcessor(registry)
        processor.add_request("r", "audio", max_retained_bytes=1000 * 4)
        output = c.OmniOutput(None, {"audio": torch.ones(1, 1)})
        for step in range(1001):
            outputs = processor.process_outputs([c.OutputChunk("r", step, "audio", (), output)])
            if outputs:
                break
        assert "at most 4000 retained bytes" in str(outputs[0].errors[""])
        held = outputs[0].multimodal_outputs["audio"].shape[-1]
        assert held == 1000 if factor == 1 else 1000 < held < 1000 * 9 / 8
        assert looks < 60  # not one a step

    @pytest.mark.parametrize(("bound", "code"), [(-1, "range"), (True, "type")])
    def test_it_is_checked(self, refusal, bound, code):
        add_request = MultimodalOutputProcessor().add_request
        _, problems = refusal(add_request, "r", "audio", max_retained_bytes=bound)
        assert problems == [(("max_retained_bytes",), code)]
