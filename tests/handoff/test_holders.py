"""Who holds tensors for long copies them: the arena that they came in is free again."""

import pytest
import torch
from handoff_children import TIMEOUT_S

import omniwire as ow

NUM_SAMPLES = 2**17  # a slot of its own for each chunk, and a shared one for the small tensors


@pytest.fixture
def pair() -> tuple[ow.Channel, ow.Channel]:
    return ow.Channel.pair(arena_bytes=8 * 2**20)


def held(channel: ow.Channel) -> int:
    return channel.stats()["in_flight_bytes"]


def audio(step: int) -> torch.Tensor:
    return torch.full((1, NUM_SAMPLES), float(step))


def through(pair: tuple[ow.Channel, ow.Channel], obj: object) -> object:
    pair[0].send(obj, TIMEOUT_S)
    return pair[1].recv(TIMEOUT_S)


@pytest.mark.parametrize("kind", list(ow.OutputKind))
@pytest.mark.parametrize(
    "rule", [None, ow.Concat(-1), ow.Stack(0), ow.Append(), ow.Replace()], ids=str
)
def test_accumulated_outputs(
    pair: tuple[ow.Channel, ow.Channel], kind: ow.OutputKind, rule: object
) -> None:
    """What is kept, and what is emitted: neither is in the arena."""
    spec = None if rule is None else ow.OutputSpec({"audio": rule, "codes.small": rule})
    processor = ow.MultimodalOutputProcessor()
    processor.add_request("r", "audio", spec=spec, output_kind=kind)
    emitted: list[ow.RequestOutput] = []
    for step in range(4):
        data = {"audio": audio(step)}
        if spec is not None:
            data["codes"] = {"small": torch.full((1, 300), float(step))}
        chunk = ow.OutputChunk(
            "r", step, "audio", (), ow.OmniOutput(None, data), finish_reason=None
        )
        emitted += processor.process_outputs([through(pair, chunk)])
        del chunk
        assert held(pair[0]) == 0
    last = ow.OutputChunk("r", 4, "audio", finish_reason="stop")
    emitted += processor.process_outputs([through(pair, last)])
    assert emitted[-1].finished
    assert not emitted[-1].errors
    # What comes through the arena later does not show in what was emitted.
    before = [torch.stack([t.sum() for t in tensors(each)]) for each in emitted if tensors(each)]
    through(pair, ow.OutputChunk("r", 5, "audio", (), ow.OmniOutput(None, {"audio": audio(9)})))
    after = [torch.stack([t.sum() for t in tensors(each)]) for each in emitted if tensors(each)]
    assert before
    assert all(map(torch.equal, before, after))


def tensors(output: ow.RequestOutput) -> list[torch.Tensor]:
    """All tensors of an output."""
    values = [*output.multimodal_outputs.values(), *output.tensors.values()]
    return [t for value in values for t in (value if isinstance(value, tuple) else (value,))]


def test_a_state_of_one_request(pair: tuple[ow.Channel, ow.Channel]) -> None:
    state = ow.OmniRequestState("r", "audio", registry=ow.default_registry())
    for step in range(3):
        chunk = ow.OutputChunk("r", step, "audio", (), ow.OmniOutput(None, {"audio": audio(step)}))
        received = through(pair, chunk)
        state.add_output("audio", received.output.multimodal_outputs["audio"])
        del received, chunk
        assert held(pair[0]) == 0
    total = state.consolidate()["audio"]
    assert total.shape == (1, 3 * NUM_SAMPLES)
    assert total.sum() == 3 * NUM_SAMPLES


def test_the_encoder_cache(pair: tuple[ow.Channel, ow.Channel]) -> None:
    cache = ow.TensorLRUCache(2**20)
    assert cache.reserve("key", 4 * NUM_SAMPLES)
    received = through(pair, ow.MultimodalParams.from_embeddings(audio(3)))
    embedding = received.multimodal_data["multimodal_embedding"]
    [lease] = cache.commit({"key": embedding}).values()
    del received, embedding
    assert held(pair[0]) == 0
    through(pair, ow.MultimodalParams.from_embeddings(audio(4)))
    assert (lease.tensor == 3).all()
    lease.release()
