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
