"""`RequestLifecycle`: passes what is right, reaches every fault, and finds each broken law."""

from typing import ClassVar

import attrs
import pytest
import torch
from hypothesis import Phase, settings
from hypothesis import strategies as hst
from hypothesis.stateful import run_state_machine_as_test

import omniwire as ow
from omniwire.testing import LiveRequest, RequestLifecycle

FINDING = settings(
    max_examples=200,
    stateful_step_count=25,
    phases=[Phase.generate],  # what is found need not be small
    derandomize=True,
    database=None,
    print_blob=False,
)
PASSING = settings(FINDING, max_examples=40)


def fault(machine, how=FINDING):
    """The message of the first broken law."""
    with pytest.raises(AssertionError) as caught:
        run_state_machine_as_test(machine, settings=how)
    return str(caught.value)


def lifecycle_of(processor):
    """A lifecycle of a processor of the given class."""

    class Machine(RequestLifecycle):
        def make_processor(self):
            return processor()

    return Machine


def test_the_built_in_processor_passes():
    run_state_machine_as_test(RequestLifecycle, settings=PASSING)


def test_everything_happens():
    """In a modest number of examples: else the laws would hold of nothing."""
    seen = set()

    class Watched(RequestLifecycle):
        output_type = "text+audio+image"

        def submit(self, request):
            self.num_submitted = getattr(self, "num_submitted", 0) + 1
            if self.num_submitted > len(self._used):
                seen.add("id used again")

        def cancel(self, request_id):
            seen.add("canceled")

        def feed(self, chunks):
            outputs = super().feed(chunks)
            if self.processor.num_late_chunks:
                seen.add("late")
            if len({chunk.request_id.split("/")[0] for chunk in chunks}) > 1:
                seen.add("several requests in a batch")
            return outputs

        def ended(self, request):
            assert isinstance(request, LiveRequest)
            last = request.outputs["delta"][-1]
            assert (last.finish_reason == "error") is request.is_broken
            seen.add("broken" if request.is_broken else "finished")
            if last.errors.keys() - {""}:
                assert last.errors.keys() - {""} <= request.spoiled
                seen.add("a modality failed")
            if len(request.chunks) > 2 and last.finish_reason == "stop":
                seen.add("several chunks")

    run_state_machine_as_test(Watched, settings=FINDING)
    assert seen == {
        "a modality failed",
        "broken",
        "canceled",
        "finished",
        "id used again",
        "late",
        "several chunks",
        "several requests in a batch",
    }


class Altering(ow.MultimodalOutputProcessor):
    """Changes what clients are sent."""

    def process_outputs(self, chunks):
        return [self.altered(output) for output in super().process_outputs(chunks)]


def test_an_end_that_is_missing():
    class Endless(Altering):
        def altered(self, output):
            return attrs.evolve(output, finished=False)

    assert "expected one finished output, the last" in fault(lifecycle_of(Endless))


def test_two_ends():
    class Double(ow.MultimodalOutputProcessor):
        def process_outputs(self, chunks):
            outputs = super().process_outputs(chunks)
            return outputs + [output for output in outputs if output.finished]

    assert "expected one finished output, the last" in fault(lifecycle_of(Double))


def test_another_reason():
    class Always(Altering):
        def altered(self, output):
            is_stopped = output.finish_reason == "stop"
            return attrs.evolve(output, finish_reason="length") if is_stopped else output

    assert "expected the finish reason 'stop', got 'length'" in fault(lifecycle_of(Always))


def test_an_output_of_a_request_that_does_not_run():
    class Chatty(ow.MultimodalOutputProcessor):
        def process_outputs(self, chunks):
            late = [chunk for chunk in chunks if chunk.request_id not in self._states]
            answers = [ow.RequestOutput(chunk.request_id) for chunk in late]
            return super().process_outputs(chunks) + answers

    assert "expected no output for what does not run" in fault(lifecycle_of(Chatty))


def test_a_fault_of_one_request_that_is_raised():
    class Strict(ow.MultimodalOutputProcessor):
        def process_outputs(self, chunks):
            outputs = super().process_outputs(chunks)
            for output in outputs:
                for error in output.errors.values():
                    raise error
            return outputs

    with pytest.raises(ow.AccumulationError):
        run_state_machine_as_test(lifecycle_of(Strict), settings=FINDING)


def test_errors_that_spread():
    class Panicking(Altering):
        def altered(self, output):
            if not output.errors or "" in output.errors:
                return output
            spread = dict.fromkeys(["audio", "image"], next(iter(output.errors.values())))
            return attrs.evolve(output, errors=spread)

    assert "expected no error of " in fault(lifecycle_of(Panicking))


def test_a_gap_that_nobody_minds():
    class Tolerant(ow.MultimodalOutputProcessor):
        def process_outputs(self, chunks):
            outputs = super().process_outputs(chunks)
            return [attrs.evolve(output, errors={}) for output in outputs]

    assert "expected an error of the request" in fault(lifecycle_of(Tolerant))


def test_tokens_that_are_lost():
    class Forgetful(Altering):
        def altered(self, output):
            return attrs.evolve(output, new_token_ids=output.new_token_ids[:1])

    assert "expected the tokens [" in fault(lifecycle_of(Forgetful))


def test_values_that_are_changed_afterwards():
    class Reusing(Altering):
        """Sends a request's client the same memory again and again."""

        def __init__(self):
            super().__init__()
            self.memory = {}

        def altered(self, output):
            if not output.request_id.endswith("/delta"):
                return output
            number = self.memory.setdefault(output.request_id, torch.zeros(1)).add_(1)
            if output.finished:
                self.abort(output.request_id)
            return attrs.evolve(output, multimodal_outputs={"audio": number})

        def abort(self, request_id):
            super().abort(request_id)
            self.memory.pop(request_id, None)

    assert "as it was when it was sent, got it changed" in fault(lifecycle_of(Reusing))


def test_what_one_request_leaves_to_the_next():
    class Mixing(ow.MultimodalOutputProcessor):
        """Numbers its outputs across requests."""

        count = 0

        def process_outputs(self, chunks):
            outputs = []
            for output in super().process_outputs(chunks):
                self.count += 1
                outputs.append(attrs.evolve(output, metadata={"audio": {"number": self.count}}))
            return outputs

    assert "unlike those of the request alone" in fault(lifecycle_of(Mixing))


def test_runs_that_disagree():
    class Partial(Altering):
        """Clients that wait for the end are not told of metadata."""

        def altered(self, output):
            if output.request_id.endswith("/final_only"):
                return output
            return attrs.evolve(output, metadata={"audio": {"sample_rate": 8}})

    assert "final_only unlike cumulative: metadata" in fault(lifecycle_of(Partial))


def test_late_chunks_that_are_not_counted():
    class Uncounted(ow.MultimodalOutputProcessor):
        num_late_chunks = 0

    assert "late chunks, got 0" in fault(lifecycle_of(Uncounted))


def test_aborted_requests_that_stay():
    class Hoarding(ow.MultimodalOutputProcessor):
        def abort(self, request_id):
            pass

    assert "requests" in fault(lifecycle_of(Hoarding))


def test_bytes_that_stay():
    class Hoarding(ow.MultimodalOutputProcessor):
        """Never takes back what it has counted."""

        most = 0

        @property
        def retained_bytes(self):
            self.most = max(self.most, super().retained_bytes)
            return self.most

    class Machine(lifecycle_of(Hoarding)):
        def retained(self):
            return super().retained()

        def feed(self, chunks):
            outputs = super().feed(chunks)
            assert self.processor.retained_bytes >= 0
            return outputs

    assert "expected nothing retained, got {'bytes': " in fault(Machine)


def test_an_id_that_is_accepted_twice():
    class Lenient(ow.MultimodalOutputProcessor):
        def add_request(self, request_id, *arguments, **options):
            self.abort(request_id)
            super().add_request(request_id, *arguments, **options)

    assert "expected to be refused while it runs, got accepted" in fault(lifecycle_of(Lenient))


def test_an_id_that_cannot_be_used_again():
    class Once(ow.MultimodalOutputProcessor):
        def __init__(self):
            super().__init__()
            self.used = set()

        def add_request(self, request_id, *arguments, **options):
            if request_id in self.used - self._states.keys():
                raise KeyError(request_id)
            self.used.add(request_id)
            super().add_request(request_id, *arguments, **options)

    with pytest.raises(KeyError):
        run_state_machine_as_test(lifecycle_of(Once), settings=FINDING)


class Engine:
    """An executor: counts up to its prompt's length, a token and a sound a step."""

    def __init__(self):
        self.left = {}
        self.steps = {}

    def submit(self, request):
        self.left[request.request_id] = len(request.prompt_token_ids)
        self.steps[request.request_id] = 0

    def step(self):
        chunks = []
        for name in list(self.left):
            self.left[name] -= 1
            reason = None if self.left[name] else "length"
            audio = torch.full((1, 2), float(self.left[name]))
            output = ow.OmniOutput(multimodal_outputs={"audio": audio})
            step = self.steps[name]
            chunks.append(
                ow.OutputChunk(name, step, "text+audio", [step], output, finish_reason=reason)
            )
            self.steps[name] += 1
            if reason:
                self.forget(name)
        return chunks

    def forget(self, name):
        self.left.pop(name, None)
        self.steps.pop(name, None)


class EngineLifecycle(RequestLifecycle):
    make_engine = Engine

    def __init__(self):
        super().__init__()
        self.engine = self.make_engine()

    def requests(self):
        prompts = hst.lists(hst.integers(0, 9), min_size=1, max_size=4)
        return prompts.map(lambda prompt: ow.ProcessedRequest("r", prompt))

    def submit(self, request):
        self.engine.submit(request)

    def produce(self, data):
        return self.engine.step()

    def cancel(self, request_id):
        self.engine.forget(request_id)

    def retained(self):
        return {**super().retained(), "engine": len(self.engine.steps)}


def test_an_executor_of_ones_own_passes():
    class Machine(EngineLifecycle):
        def ended(self, request):
            if not request.is_broken:
                assert len(request.chunks) == len(request.request.prompt_token_ids)

    run_state_machine_as_test(Machine, settings=PASSING)


def test_an_executor_that_counts_wrongly():
    class Gapped(Engine):
        def step(self):
            return [attrs.evolve(chunk, step=chunk.step + 1) for chunk in super().step()]

    class Machine(EngineLifecycle):
        make_engine = Gapped

    assert "expected chunks numbered from 0: 0, got step 1" in fault(Machine)


def test_an_executor_that_goes_on_after_the_end():
    class Endless(Engine):
        def step(self):
            chunks = super().step()
            return chunks + [chunk for chunk in chunks if chunk.finish_reason]

    class Machine(EngineLifecycle):
        make_engine = Endless

    assert "expected no chunk after its last" in fault(Machine)


def test_an_executor_that_does_not_hear_of_an_abort():
    class Machine(EngineLifecycle):
        def cancel(self, request_id):
            pass

    message = fault(Machine)
    assert "expected no chunk after its last" in message or "'engine': " in message


def test_an_executor_that_keeps_what_is_done():
    class Hoarding(Engine):
        def step(self):
            before = dict(self.steps)
            chunks = super().step()
            self.steps = {**before, **self.steps}
            return chunks

    class Machine(EngineLifecycle):
        make_engine = Hoarding

    assert "expected nothing retained, got {'engine': " in fault(Machine)


class Depth(ow.TensorHandler):
    modality = "depth"
    keys = ("depth", "disparity")
    dim = 0


def test_a_handler_with_state_of_its_own():
    class Shared(Depth):
        chunks = ()

        def accumulate(self, existing, incoming):
            self.chunks = (*(() if existing is None else self.chunks), incoming)
            return self.chunks

        def consolidate(self, accumulated):
            return torch.cat(accumulated)

    class Machine(RequestLifecycle):
        output_type = "depth"

        def make_processor(self):
            registry = ow.default_registry()
            registry.register(Shared())
            return ow.MultimodalOutputProcessor(registry)

    assert "depth" in fault(Machine)


def test_a_machine_may_say_what_a_chunk_is_made_of():
    keys = set()

    class Machine(RequestLifecycle):
        output_type = "text+depth"
        spec = ow.OutputSpec({"depth": ow.Append()})
        runs: ClassVar = {"now": ow.OutputKind.DELTA, "later": ow.OutputKind.FINAL_ONLY}
        max_requests = 2

        def make_processor(self):
            registry = ow.default_registry()
            registry.register(Depth())
            return ow.MultimodalOutputProcessor(registry)

        def parts(self):
            maps = hst.integers(1, 3).map(lambda n: torch.full((n, 2), float(n)))
            return {"depth": hst.fixed_dictionaries({"disparity": maps})}

        def ended(self, request):
            assert request.outputs.keys() <= {"now", "later"}
            outputs = [chunk.output for chunk in request.chunks if chunk.output is not None]
            keys.update(key for output in outputs for key in output.multimodal_outputs)
            if request.is_broken:
                return
            value = request.outputs["later"][0].multimodal_outputs.get("depth", ())
            assert len(value) == len(outputs)  # appended, whatever they are

    run_state_machine_as_test(Machine, settings=PASSING)
    assert keys == {"disparity"}


def test_what_is_left_does_not_hide_what_has_failed():
    class Machine(EngineLifecycle):
        def retained(self):
            return {"everything": 1} if self.producing is None else super().retained()

        def produce(self, data):
            self.producing = None
            raise RuntimeError("the device fell off the bus")

    with pytest.raises(RuntimeError, match="fell off the bus"):
        run_state_machine_as_test(Machine, settings=FINDING)
