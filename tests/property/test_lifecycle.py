"""The lifecycle of the kit, on engines made of our own parts."""

from typing import ClassVar

import attrs
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

import omniwire as ow
from omniwire.testing import RequestLifecycle, assert_equal
from omniwire.testing import strategies as ow_st

HIDDEN = 4
SQUARES = ow_st.tensors(dtypes=[torch.float32], shapes=st.just((2, 2)))
DECLARED = st.fixed_dictionaries({"codes.audio": SQUARES, "codes.ref": SQUARES, "seen": SQUARES})
BUDGET = ow.EncoderBudget(max_encoder_tokens=6)


class BuiltIn(RequestLifecycle):
    """Every built-in handler but text's, in one request."""

    output_type = "text+image+video+audio+latent+token_ids"


class Declared(RequestLifecycle):
    """Every rule of an `OutputSpec`, for modalities and for keys beside them."""

    output_type = "audio+latent"
    spec = ow.OutputSpec(
        {
            "latent": ow.Append(),
            "codes.audio": ow.Concat(0),
            "codes.ref": ow.Replace(),
            "seen": ow.Stack(1),
        }
    )

    def draw_chunk(self, data, request_id):
        chunk = super().draw_chunk(data, request_id)
        before = {} if chunk.output is None else chunk.output.multimodal_outputs
        output = ow.OmniOutput(multimodal_outputs={**before, **data.draw(DECLARED)})
        return attrs.evolve(chunk, output=output)


class Encoder(ow.MultimodalEncoderMixin):
    """An item of content c has c + 1 rows of c; the device fails when it is told to."""

    supports_mm_encoder_item_scheduling: ClassVar[bool] = True

    def __init__(self):
        self.fails = False

    def encode_multimodal_inputs(self, params):
        if self.fails:
            raise OSError("the device fell off the bus")
        return [
            torch.cat([rows_of(c) for c in one.multimodal_data["image"]["content"].tolist()])
            for one in params
        ]


def rows_of(content):
    return torch.full((content + 1, HIDDEN), float(content))


class Engine:
    """Encodes what the budget allows, then sends a request's rows, one item a step."""

    def __init__(self):
        self.encoder = Encoder()
        self.cache = ow.TensorLRUCache(8 * HIDDEN * 4)
        self.scheduler = ow.ItemScheduler(BUDGET)
        self.requests = {}
        self.steps = {}

    def submit(self, request):
        ow.check_admission(request, budget=BUDGET)
        state = ow.MultimodalEncoderRequestState.from_request(request)
        params = request.multimodal_params.with_encoder_state(state)
        name = request.request_id
        self.requests[name] = ow.ProcessedRequest(name, request.prompt_token_ids, params)
        self.steps[name] = 0

    def state(self, name):
        return self.requests[name].multimodal_params.encoder_state

    def step(self):
        requests = list(self.requests.values())
        states = [self.state(request.request_id) for request in requests]
        scheduled = self.scheduler.schedule(states)
        try:
            ow.encode_scheduled(
                self.encoder,
                requests,
                scheduled,
                cache=self.cache,
                dtype=torch.float32,
                settings="encoder@1",
            )
        except OSError:
            return []
        return [self.send(name) for name in list(self.requests) if not self.is_waiting(name)]

    def is_waiting(self, name):
        return bool(self.state(name).pending_items)

    def send(self, name):
        state, step = self.state(name), self.steps[name]
        rows = state.reference(step)
        rows = rows.tensor if isinstance(rows, ow.CacheLease) else rows
        output = ow.OmniOutput(multimodal_outputs={"latent": rows})
        self.steps[name] += 1
        is_last = self.steps[name] == len(state.item_ready)
        if is_last:
            self.forget(name)
        reason = "stop" if is_last else None
        return ow.OutputChunk(name, step, "text+latent", [step], output, finish_reason=reason)

    def forget(self, name):
        self.state(name).release()
        del self.requests[name], self.steps[name]


class Encoding(RequestLifecycle):
    """Scheduler, encoder cache and encoder states under the executor."""

    output_type = "text+latent"

    def __init__(self):
        super().__init__()
        self.engine = Engine()

    def requests(self):
        return st.lists(st.integers(0, 2), min_size=1, max_size=3).map(self.request_of)

    @staticmethod
    def request_of(contents):
        rows = [content + 1 for content in contents]
        record = ow.MultimodalItemMetadata(
            [("image", index) for index in range(len(contents))],
            encoder_token_lengths=rows,
            output_embedding_lengths=rows,
            input_partitions={"image": {"content": ow.MultimodalItemPartition()}},
        )
        starts = [10 * index for index in range(len(contents))]
        given = ow.MultimodalInput([[content] * 8 for content in contents], starts, rows)
        data = {"image": {"content": torch.tensor(contents)}, "item_metadata": record}
        return ow.ProcessedRequest("r", range(40), ow.MultimodalParams(given, data))

    def submit(self, request):
        self.engine.submit(request)

    def produce(self, data):
        return self.engine.step()

    def cancel(self, request_id):
        self.engine.forget(request_id)

    def retained(self):
        leases = sum(entry.num_leases for entry in self.engine.cache._entries.values())
        held = {"leases": leases, "engine": len(self.engine.requests)}
        return {**super().retained(), **held}

    @rule(fails=st.booleans())
    def break_or_mend(self, fails):
        self.engine.encoder.fails = fails

    def ended(self, request):
        """The client has the rows of every item, whoever encoded them."""
        if not request.is_broken and not request.spoiled:
            params = request.request.multimodal_params
            contents = params.multimodal_data["image"]["content"].tolist()
            (output,) = request.outputs["final_only"]
            expected = torch.cat([rows_of(content) for content in contents])
            assert_equal(output.multimodal_outputs["latent"], expected)


@pytest.mark.parametrize("machine", [BuiltIn, Declared, Encoding])
def test_the_lifecycle_holds(machine):
    run_state_machine_as_test(machine, settings=settings(max_examples=40, stateful_step_count=25))
