"""Copies that are still on their way, as they are from a device: played on the CPU."""

import pytest
import torch

from omniwire import contracts as c
from omniwire.runtime import (
    AudioHandler,
    OmniRequestState,
    accumulate,
    default_registry,
)
from omniwire.runtime.accumulate import make_accumulator
from omniwire.runtime.host_copies import HostCopies

DELTA, CUMULATIVE, FINAL_ONLY = c.OutputKind


class SlowCopies(HostCopies):
    """Copies whose values arrive when they are waited for, and not before."""

    def __init__(self):
        super().__init__()
        self.sources = []
        self.num_waits = 0

    def copy(self, tensor):
        copied = torch.full_like(tensor, -1)
        self.sources.append((copied, tensor.clone()))
        return copied

    @property
    def unfinished(self):
        return bool(self.sources)

    def wait(self):
        self.num_waits += 1
        for copied, source in self.sources:
            copied.copy_(source)
        self.sources.clear()


class Ordinary:
    """A handler with an accumulation of its own, which looks at the values."""

    modality = "audio"

    def __init__(self):
        self.seen = []

    def extract(self, output):
        return output.multimodal_outputs.get("audio")

    def accumulate(self, existing, incoming):
        self.seen.append(incoming.tolist())
        return [*(existing or []), incoming]

    def consolidate(self, accumulated):
        return torch.cat(accumulated, -1)

    def validate(self, value):
        return True


def slow_state(output_kind, handler=None):
    registry = default_registry()
    registry.register(handler or AudioHandler(), replace=True)
    state = OmniRequestState("r", "audio", registry, output_kind=output_kind)
    state._copies = SlowCopies()
    return state


def chunk(step, *values, **fields):
    output = c.OmniOutput(multimodal_outputs={"audio": torch.tensor(values)}) if values else None
    return c.OutputChunk("r", step, "audio", (), output, **fields)


def values_of(output):
    return output.multimodal_outputs["audio"].tolist()


def test_a_final_only_request_waits_once_at_its_end():
    state = slow_state(FINAL_ONLY)
    for step in range(5):
        assert state.advance(chunk(step, step, step)) is None
    assert state.copies.num_waits == 0
    last = state.advance(chunk(5, finish_reason="stop"))
    assert values_of(last) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert state.copies.num_waits == 1


def test_what_is_emitted_has_arrived():
    for kind, expected in ((DELTA, [[1], [2]]), (CUMULATIVE, [[1], [1, 2]])):
        state = slow_state(kind)
        assert [values_of(state.advance(chunk(step, step + 1))) for step in (0, 1)] == expected


def test_consolidate_waits_too():
    state = slow_state(FINAL_ONLY)
    state.advance(chunk(0, 1, 2))
    assert state.consolidate()["audio"].tolist() == [1, 2]


def test_a_custom_handler_is_given_only_what_has_arrived():
    handler = Ordinary()
    state = slow_state(FINAL_ONLY, handler)
    assert state.advance(chunk(0, 1, 2)) is None
    assert state.advance(chunk(1, 7, kind=c.ChunkKind.CUMULATIVE)) is None
    assert state.advance(chunk(2, 8)) is None
    assert handler.seen == []
    assert state.retained_bytes == 4 * 8
    last = state.advance(chunk(3, finish_reason="stop"))
    assert handler.seen == [[1, 2], [7], [8]]
    assert values_of(last) == [7, 8]


def test_what_was_waiting_is_freed_by_an_abort():
    state = slow_state(FINAL_ONLY, Ordinary())
    state.advance(chunk(0, 1, 2))
    state.release()
    assert state.retained_bytes == 0


def test_a_handler_that_fails_late_fails_its_modality():
    class Failing(Ordinary):
        def accumulate(self, existing, incoming):
            raise ValueError("no")

    state = slow_state(FINAL_ONLY, Failing())
    assert state.advance(chunk(0, 1)) is None
    last = state.advance(chunk(1, finish_reason="stop"))
    assert isinstance(last.errors["audio"], c.AccumulationError)
    assert last.multimodal_outputs == {}
    assert state.retained_bytes == 0


def test_a_copy_on_the_cpu_is_complete_at_once():
    copies = HostCopies()
    source = torch.ones(3, requires_grad=True)
    copied = copies.copy(source)
    assert not copies.unfinished
    copies.wait()
    assert not copied.requires_grad
    assert copied.data_ptr() != source.data_ptr()
    assert copied.tolist() == [1, 1, 1]


def test_the_device_that_a_whole_value_comes_from_does_not_matter(monkeypatch):
    """What lies beyond the emitted part is cut before it is copied to the host."""
    monkeypatch.setattr(accumulate, "tensor_problem", lambda *_: None)  # it refuses meta tensors
    accumulator = make_accumulator(c.Concat(-1))
    assert accumulator.beyond(torch.ones(1, 5, device="meta")).shape == (1, 5)
    accumulator.add(torch.ones(1, 5), whole=True)
    accumulator.drop()
    assert accumulator.beyond(torch.ones(1, 8, device="meta")).shape == (1, 3)
    accumulator.add(torch.ones(1, 3), whole=True)
    assert accumulator.value().tolist() == [[1, 1, 1]]
    with pytest.raises(c.AccumulationError):
        accumulator.add(torch.ones(1, 3, device="meta"), whole=True)
