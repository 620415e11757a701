"""`assert_handler_conforms`: passes the built-in handlers, and finds each kind of fault."""

import pytest
import torch

from omniwire.contracts import OmniOutput
from omniwire.runtime import default_registry
from omniwire.runtime.handlers import TensorHandler
from omniwire.testing import assert_handler_conforms


class DepthHandler:
    """A correct handler that shares no code with the built-in ones."""

    modality = "depth"

    def extract(self, output):
        return output.multimodal_outputs.get("depth")

    def accumulate(self, existing, incoming):
        return (*(existing or ()), incoming)

    def consolidate(self, accumulated):
        return torch.cat(accumulated)

    def validate(self, value):
        return isinstance(value, torch.Tensor)


def fault(handler):
    with pytest.raises(AssertionError) as caught:
        assert_handler_conforms(handler)
    return str(caught.value)


@pytest.mark.parametrize("name", default_registry().list_modalities())
def test_the_built_in_handlers_conform(name):
    assert_handler_conforms(default_registry().get(name))


def test_a_correct_handler_conforms():
    assert_handler_conforms(DepthHandler())


def test_a_handler_may_want_one_rank_and_one_data_type():
    class Handler(DepthHandler):
        def accumulate(self, existing, incoming):
            if incoming.ndim != 5 or incoming.dtype != torch.int64:
                raise ValueError("expected [n, 3, t, h, w] ints")
            return super().accumulate(existing, incoming)

    assert_handler_conforms(Handler())


def test_a_handler_may_keep_its_chunks_apart():
    class Handler(DepthHandler):
        def consolidate(self, accumulated):
            return tuple(accumulated)

        def validate(self, value):
            return isinstance(value, tuple)

    assert_handler_conforms(Handler())


def test_a_missing_method_or_a_malformed_name():
    class Handler(DepthHandler):
        validate = None

    assert "$.handler.validate" in fault(Handler())

    class Named(DepthHandler):
        modality = "Depth"

    assert "$.handler.modality" in fault(Named())


def test_something_found_in_an_empty_output():
    class Handler(DepthHandler):
        def extract(self, output):
            return torch.zeros(1)

    assert "depth.extract" in fault(Handler())


def test_a_change_of_the_output():
    class Handler(DepthHandler):
        def extract(self, output):
            found = super().extract(output)
            return None if found is None else found.mul_(2)

    assert "depth.extract" in fault(Handler())


def test_text_found_in_an_output():
    class Handler(DepthHandler):
        modality = "text"

        def extract(self, output: OmniOutput):
            return output.multimodal_outputs.get("text")

    assert "text.extract" in fault(Handler())


def test_no_tensor_taken():
    class Handler(DepthHandler):
        def accumulate(self, existing, incoming):
            raise ValueError(f"{incoming.ndim} dimensions are not welcome")

    message = fault(Handler())
    assert "depth.accumulate" in message
    assert "f32[2, 3]: 2 dimensions are not welcome" in message


@pytest.mark.parametrize("key", ["xyz", 0.5])
def test_a_form_that_the_kit_cannot_guess(key):
    """Indexing a tensor with these raises an IndexError or a TypeError."""

    class Handler(DepthHandler):
        def extract(self, output):
            found = super().extract(output)
            return None if found is None else found[key]

    message = fault(Handler())
    assert message.startswith("depth.extract: expected to take a tensor under 'depth', got ")
    assert "outputs" in message


def test_an_error_that_is_no_refusal_is_not_swallowed():
    class Handler(DepthHandler):
        def accumulate(self, existing, incoming):
            return incoming.no_such_method()

    with pytest.raises(AttributeError):
        assert_handler_conforms(Handler())


def test_something_else_than_tensors_consolidated():
    class Handler(DepthHandler):
        def consolidate(self, accumulated):
            return list(accumulated)

    assert "depth.consolidate" in fault(Handler())


@pytest.mark.parametrize("verdict", [False, None, 1, "yes"])
def test_a_verdict_that_is_not_true(verdict):
    class Handler(DepthHandler):
        def validate(self, value):
            return verdict

    assert "depth.validate" in fault(Handler())


def test_state_that_requests_share():
    class Handler(DepthHandler):
        chunks = ()

        def accumulate(self, existing, incoming):
            self.chunks = (*(self.chunks if existing else ()), incoming)
            return self.chunks

    assert "interleaved requests" in fault(Handler())


def test_a_value_that_later_chunks_change():
    class Handler(DepthHandler):
        def accumulate(self, existing, incoming):
            return incoming if existing is None else existing.add_(incoming)

        def consolidate(self, accumulated):
            return accumulated

    assert "given out before" in fault(Handler())


def test_an_incoming_tensor_that_is_changed():
    class Handler(DepthHandler):
        def accumulate(self, existing, incoming):
            if existing is not None:
                incoming.add_(existing.sum())
            return incoming.clone() if existing is None else existing + incoming

        def consolidate(self, accumulated):
            return accumulated

    assert "incoming tensor" in fault(Handler())


def test_a_consolidation_that_uses_up_what_it_consolidates():
    class Handler(TensorHandler):
        modality = "depth"
        keys = ("depth",)
        dim = 0

        def accumulate(self, existing, incoming):
            return [*(existing or ()), incoming]

        def consolidate(self, accumulated):
            value = torch.cat(accumulated)
            accumulated.clear()
            return value

    assert "depth.consolidate" in fault(Handler())


def test_a_list_that_is_appended_to_is_fine():
    class Handler(DepthHandler):
        def accumulate(self, existing, incoming):
            existing = [] if existing is None else existing
            existing.append(incoming)
            return existing

    assert_handler_conforms(Handler())


def test_a_refused_chunk_that_stays():
    class Handler(DepthHandler):
        def accumulate(self, existing, incoming):
            existing = [] if existing is None else existing
            existing.append(incoming)
            if incoming.ndim != existing[0].ndim:
                raise ValueError("another rank")
            return existing

    assert "after a refused" in fault(Handler())


def test_something_else_than_a_payload_extracted():
    class Handler(DepthHandler):
        def extract(self, output):
            return 5 if output.multimodal_outputs else None

    assert "depth.extract" in fault(Handler())


def test_deltas_that_do_not_make_the_whole_value():
    class Handler(TensorHandler):
        modality = "depth"
        keys = ("depth",)
        dim = 0

        def consolidate(self, accumulated):
            return accumulated.value().flip(0)

    assert "all of DELTA" in fault(Handler())


class Reversed(DepthHandler):
    """Deltas that are each turned around do not make what turning around all of them makes."""

    def consolidate(self, accumulated):
        return torch.cat(accumulated).flatten().flip(0)


def test_deltas_are_checked_of_handlers_that_share_no_code_with_the_built_in_ones():
    message = fault(Reversed())
    assert "depth: all of DELTA: expected values that can be joined to f32[144]" in message
    assert "got f32[48], f32[48], f32[48]" in message
    assert "pass it as join" in message


class Stacked(DepthHandler):
    def consolidate(self, accumulated):
        return torch.stack(accumulated, 1)


class Loudest(DepthHandler):
    """The largest number of each row: a client takes the larger of each."""

    def accumulate(self, existing, incoming):
        peaks = incoming.amax(-1)
        return peaks if existing is None else torch.maximum(existing, peaks)

    def consolidate(self, accumulated):
        return accumulated


class Summed(DepthHandler):
    def accumulate(self, existing, incoming):
        return incoming if existing is None else existing + incoming

    def consolidate(self, accumulated):
        return accumulated


def test_values_may_be_joined_along_any_axis_or_by_the_handler_itself():
    assert_handler_conforms(Stacked())
    assert_handler_conforms(Summed())


def test_a_client_may_join_in_a_way_of_its_own():
    def largest(values):
        return torch.stack(values).amax(0)

    assert "pass it as join" in fault(Loudest())
    assert_handler_conforms(Loudest(), join=largest)
    with pytest.raises(AssertionError, match="all of DELTA, joined"):
        assert_handler_conforms(Loudest(), join=lambda values: values[0])
    assert_handler_conforms(Reversed(), join=lambda values: torch.cat(values[::-1]))


class Pairs:
    """Takes pairs of tensors of one form, under a key that is not its name."""

    modality = "cloud"

    def extract(self, output):
        points = output.multimodal_outputs.get("points")
        return None if points is None else torch.cat([points["xyz"], points["rgb"]], -1)

    def accumulate(self, existing, incoming):
        if incoming.ndim != 2 or incoming.shape[1] != 6:
            raise ValueError("expected [n, 6]")
        return (*(existing or ()), incoming)

    def consolidate(self, accumulated):
        return torch.cat(accumulated)

    def validate(self, value):
        return True


def points(*counts):
    return [
        OmniOutput(
            multimodal_outputs={"points": {"xyz": torch.rand(n, 3), "rgb": torch.rand(n, 3)}}
        )
        for n in counts
    ]


def test_a_handler_may_be_given_outputs_of_its_own():
    assert "cloud.accumulate: expected to take one of" in fault(Pairs())
    assert_handler_conforms(Pairs(), points(2, 1, 0))


@pytest.mark.parametrize("counts", [(2, 1), (0, 3), (2, 0, 1), (1, 2, 0)])
def test_outputs_of_a_built_in_handler_may_hold_nothing(counts):
    audio = [OmniOutput(multimodal_outputs={"wav": torch.rand(1, n)}) for n in counts]
    assert_handler_conforms(default_registry().get("audio"), audio)


def test_outputs_may_hold_several_chunks_and_scalars():
    audio = [
        OmniOutput(
            multimodal_outputs={"audio": {"pcm": (torch.rand(1, 3), torch.rand(1, 2)), "rate": 8}}
        )
        for _ in range(2)
    ]
    assert_handler_conforms(default_registry().get("audio"), audio)


def test_a_whole_value_that_is_not_what_it_is_at_the_beginning():
    class Handler(TensorHandler):
        """Puts a blank frame before the first chunk, but not before one that replaces it."""

        modality = "depth"
        keys = ("depth",)
        dim = 0

        def accumulate(self, existing, incoming):
            if existing is None:
                existing = super().accumulate(None, torch.zeros_like(incoming[:1]))
            return super().accumulate(existing, incoming)

    assert "a chunk that carries the whole value" in fault(Handler())


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (points(2), "cloud.extract: expected at least two outputs, got 1"),
        ([*points(2), OmniOutput()], r"cloud.extract: expected a tensor in outputs\[1\], got none"),
    ],
)
def test_outputs_without_enough_in_them(outputs, message):
    with pytest.raises(AssertionError, match=message):
        assert_handler_conforms(Pairs(), outputs)


def test_an_output_given_that_the_handler_changes():
    class Handler(Pairs):
        def extract(self, output):
            found = super().extract(output)
            if found is not None:
                output.multimodal_outputs["points"]["xyz"].zero_()
            return found

    with pytest.raises(AssertionError, match=r"cloud.extract: expected the output unchanged"):
        assert_handler_conforms(Handler(), points(2, 1))


def test_the_processor_finds_what_the_handler_extracts():
    """A part of the payload that the handler leaves alone is ambiguous in a whole request."""

    class Handler(Pairs):
        def extract(self, output):
            points = output.multimodal_outputs.get("points")
            return None if points is None else points["xyz"].repeat(1, 2)

    outputs = [
        OmniOutput(multimodal_outputs={"points": {"xyz": torch.rand(2, 3)}, "rgb": torch.rand(2)})
        for _ in range(2)
    ]
    with pytest.raises(AssertionError, match=r"cloud: a request of \w+ failed: .*rgb"):
        assert_handler_conforms(Handler(), outputs)
