"""Keys of encoder outputs, and encoding what is scheduled with and without a cache."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch

from omniwire.contracts import (
    ContractError,
    ContractTypeError,
    ContractValueError,
    EncoderBudget,
    MultimodalInput,
    MultimodalItemMetadata,
    MultimodalItemPartition,
    MultimodalParams,
    ProcessedRequest,
)
from omniwire.runtime import (
    CacheLease,
    EncoderCacheKey,
    ItemScheduler,
    MultimodalEncoderMixin,
    MultimodalEncoderRequestState,
    TensorLRUCache,
    encode_scheduled,
    encoder_cache_key,
)

REFS = [("video", 0), ("image", 0)]
F32 = torch.float32


def params_of(
    hashes: Sequence[Sequence[int]] | None = ((1,) * 8, (2,) * 8),
    rows: Sequence[int] | None = (2, 3),
    uuids: Sequence[str] | None = None,
) -> MultimodalParams:
    """A video and an image whose payload is the number of each row."""
    record = MultimodalItemMetadata(
        REFS,
        [8, 16],
        rows,
        {"image": {}, "video": {"x": MultimodalItemPartition()}},
    )
    given = None if hashes is None else MultimodalInput(hashes, [0, 4], [2, 3], uuids)
    data = {"image": {}, "video": {"x": torch.tensor([7])}, "item_metadata": record}
    return MultimodalParams(given, data)


def key(params: MultimodalParams, index: int = 0, **changes: Any) -> EncoderCacheKey | None:
    return encoder_cache_key(params, index, **{"dtype": F32, "settings": "m@1", **changes})


def test_a_key_is_all_that_the_rows_depend_on() -> None:
    assert key(params_of(), 1) == EncoderCacheKey("image", (2,) * 8, 3, F32, "m@1")


def test_any_difference_is_another_key() -> None:
    """LMCache#4086, #3301, #4783: all bits of the hash; sglang#32404: the rows too."""
    last_bit = ((1,) * 7 + (0,), (2,) * 8)
    keys = [
        key(params_of()),
        key(params_of(last_bit)),
        key(params_of(rows=(4, 3))),
        key(params_of(((2,) * 8, (2,) * 8), (3, 3))),
        key(params_of(), 1),
        key(params_of(), dtype=torch.bfloat16),
        key(params_of(), settings="m@2"),
    ]
    assert None not in keys
    assert len(set(keys)) == len(keys)
    assert key(params_of()) == key(params_of())


def test_the_same_content_as_image_and_as_video_is_not_the_same_rows() -> None:
    same = params_of(((1,) * 8, (1,) * 8), (3, 3))
    assert key(same, 0) != key(same, 1)


@pytest.mark.parametrize(
    ("params", "changes"),
    [
        (params_of(None), {}),
        (params_of(rows=None), {}),
        (params_of(), {"settings": None}),
        (params_of(), {"settings": ""}),
        (params_of(), {"dtype": None}),
    ],
)
def test_an_incomplete_identity_is_not_cacheable(
    params: MultimodalParams, changes: dict[str, Any]
) -> None:
    """LMCache#5055: an id without content."""
    assert key(params, **changes) is None


def test_a_uuid_is_no_identity() -> None:
    assert key(params_of(uuids=["a", "b"])) == key(params_of(uuids=["c", "d"]))


def test_keys_of_bad_arguments() -> None:
    for index, kind in ((2, ContractValueError), (True, ContractTypeError)):
        with pytest.raises(kind) as caught:
            key(params_of(), index)
        assert caught.value.problems[0].path[0] == "index"
    record = MultimodalItemMetadata([("image", 0)], None, [2])
    data = {"image": {}, "item_metadata": record}
    with pytest.raises(ContractValueError) as short:
        key(MultimodalParams(params_of().multimodal_input, data))
    assert [(p.path, p.code) for p in short.value.problems] == [
        (("multimodal_input", "multimodal_hashes"), "count")
    ]


class Model(MultimodalEncoderMixin):
    """Rows of an item are its prompt content; notes the refs of every view."""

    def __init__(self) -> None:
        self.calls: list[list[tuple[tuple[str, int], ...]]] = []
        self.change: Callable[[list[torch.Tensor]], Any] = lambda outputs: outputs

    def encode_multimodal_inputs(self, params: list[MultimodalParams]) -> list[torch.Tensor]:
        outputs: list[torch.Tensor] = []
        self.calls.append([])
        for one in params:
            record, given = one.item_metadata, one.multimodal_input
            assert record is not None
            assert record.output_embedding_lengths is not None
            self.calls[-1].append(record.item_refs)
            numbers = [1] * 2 if given is None else [h[0] for h in given.multimodal_hashes]
            rows = zip(numbers, record.output_embedding_lengths, strict=False)
            outputs.append(torch.cat([torch.full((n, 4), float(value)) for value, n in rows]))
        changed: list[torch.Tensor] = self.change(outputs)
        return changed


def request_of(name: str, params: MultimodalParams) -> ProcessedRequest:
    state = MultimodalEncoderRequestState.from_request(ProcessedRequest(name, range(9), params))
    return ProcessedRequest(name, range(9), params.with_encoder_state(state))


def state_of(request: ProcessedRequest) -> MultimodalEncoderRequestState:
    assert request.multimodal_params is not None
    state = request.multimodal_params.encoder_state
    assert isinstance(state, MultimodalEncoderRequestState)
    return state


def encode(
    model: Model,
    requests: list[ProcessedRequest],
    scheduled: Mapping[str, Sequence[int]],
    cache: TensorLRUCache | None = None,
    settings: str | None = "m@1",
) -> None:
    encode_scheduled(model, requests, scheduled, cache=cache, dtype=F32, settings=settings)


def test_a_partial_hit_encodes_the_misses_alone() -> None:
    model, cache = Model(), TensorLRUCache(256)
    first = request_of("a", params_of())
    encode(model, [first], {"a": [0]}, cache)
    second = request_of("b", params_of())
    encode(model, [first, second], {"b": [0, 1]}, cache)
    assert model.calls == [[(("video", 0),)], [(("image", 0),)]]
    assert state_of(second).item_ready == (True, True)
    hit, mine = state_of(second).reference(0), state_of(first).reference(0)
    assert isinstance(hit, CacheLease)
    assert isinstance(mine, CacheLease)
    assert hit.tensor is mine.tensor


def test_identical_items_of_one_iteration_are_encoded_once() -> None:
    for cache in (TensorLRUCache(256), TensorLRUCache(0), None):
        model = Model()
        twins = [request_of(name, params_of()) for name in "ab"]
        encode(model, twins, {"a": [1], "b": [1]}, cache)
        assert model.calls == [[(("image", 0),)]]
        for twin in twins:
            reference = state_of(twin).reference(1)
            rows = reference.tensor if isinstance(reference, CacheLease) else reference
            assert isinstance(rows, torch.Tensor)
            assert torch.equal(rows, torch.full((3, 4), 2.0))


def test_without_identity_nothing_is_cached() -> None:
    model, cache = Model(), TensorLRUCache(256)
    encode(model, [request_of("a", params_of())], {"a": [0, 1]}, cache, None)
    encode(model, [request_of("b", params_of(None))], {"b": [0]}, cache)
    assert (len(cache), cache.used_bytes) == (0, 0)


def test_a_hit_of_other_rows_is_a_miss() -> None:
    """sglang#32404, #36595: 275 placeholders, 256 cached rows."""
    cache, held = TensorLRUCache(256), key(params_of())
    assert held is not None
    assert cache.reserve(held, 48)
    wrong = cache.commit({held: torch.zeros(3, 4)})[held]
    model, request = Model(), request_of("a", params_of())
    encode(model, [request], {"a": [0]}, cache)
    assert model.calls == [[(("video", 0),)]]
    lease = state_of(request).reference(0)
    assert isinstance(lease, CacheLease)
    assert lease.tensor.shape == (2, 4)
    assert cache.used_bytes == 48 + 32  # whoever holds the wrong one still does
    wrong.release()
    assert cache.used_bytes == 32


def test_a_failed_encode_changes_nothing_and_is_repeated() -> None:
    model, cache = Model(), TensorLRUCache(256)
    requests = [request_of("a", params_of()), request_of("b", params_of(rows=(3, 3)))]

    def fail(_outputs: list[torch.Tensor]) -> None:
        raise MemoryError("no room on the device")

    model.change = fail
    with pytest.raises(MemoryError):
        encode(model, requests, {"a": [0, 1], "b": [0]}, cache)
    assert (len(cache), cache.used_bytes) == (0, 0)
    assert [state_of(request).pending_items for request in requests] == [(0, 1), (0, 1)]
    model.change = lambda outputs: outputs
    encode(model, requests, {"a": [0, 1], "b": [0]}, cache)
    assert [state_of(request).pending_items for request in requests] == [(), (1,)]


@pytest.mark.parametrize(
    ("change", "path", "code"),
    [
        (lambda outputs: outputs[:1], (), "count"),
        (lambda outputs: outputs[0], (), "type"),
        (lambda outputs: [outputs[0], outputs[1][1:]], (1,), "count"),
        (lambda outputs: [outputs[0], outputs[1][None]], (1,), "shape"),
        (lambda outputs: [outputs[0], outputs[1][:, 1:]], (1,), "shape"),
        (lambda outputs: [outputs[0], None], (1,), "type"),
        (lambda outputs: [out.double() for out in outputs[:1]] + outputs[1:], (0,), "dtype"),
    ],
)
def test_one_unsound_output_commits_none(
    change: Callable[[list[torch.Tensor]], Any], path: tuple[int, ...], code: str
) -> None:
    """vllm#34862, #52926: an output that is short of rows."""
    model, cache = Model(), TensorLRUCache(256)
    model.change = change
    requests = [request_of("a", params_of()), request_of("b", params_of())]
    with pytest.raises(ContractError) as caught:
        encode(model, requests, {"a": [0], "b": [1]}, cache)
    found = [(p.path, p.code) for p in caught.value.problems]
    assert (("encode_multimodal_inputs", *path), code) in found
    assert (len(cache), cache.used_bytes) == (0, 0)
    assert all(state_of(request).pending_items == (0, 1) for request in requests)


def test_what_cannot_be_scheduled_is_named() -> None:
    request = request_of("a", params_of())
    state_of(request).complete(0, None)
    bare = ProcessedRequest("bare", [1], params_of())
    open_rows = request_of("open", params_of(rows=None))
    with pytest.raises(ContractTypeError) as caught:
        encode(
            Model(),
            [request, bare, open_rows],
            {"a": [0, 1, 1, 5], "bare": [0], "open": [0], "gone": [0]},
        )
    assert [(p.path, p.code) for p in caught.value.problems] == [
        (("scheduled", "a", 0), "index"),
        (("scheduled", "a", 2), "index"),
        (("scheduled", "a", 3), "index"),
        (("requests", 1, "multimodal_params", "encoder_state"), "type"),
        (("requests", 2, "multimodal_params", "output_embedding_lengths"), "missing"),
        (("scheduled", "gone"), "unknown"),
    ]


def test_a_request_that_is_aborted_while_it_is_encoded_keeps_nothing() -> None:
    model, cache = Model(), TensorLRUCache(256)
    request = request_of("a", params_of())

    def abort(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
        state_of(request).release()
        return outputs

    model.change = abort
    encode(model, [request], {"a": [0, 1]}, cache)
    assert state_of(request).item_ready == (False, False)
    assert cache.reserve("everything", 256)


def test_the_scheduler_drives_it_until_all_is_encoded() -> None:
    model, cache = Model(), TensorLRUCache(256)
    requests = [request_of(name, params_of()) for name in "abc"]
    scheduler = ItemScheduler(EncoderBudget(max_encoder_tokens=16))
    while scheduled := scheduler.schedule([state_of(request) for request in requests]):
        encode(model, requests, scheduled, cache)
    assert all(state_of(request).item_ready == (True, True) for request in requests)
    assert sum(len(refs) for call in model.calls for refs in call) == 2
    for request in requests:
        state_of(request).release()
    assert cache.reserve("everything", 256)


def test_a_shared_lease_is_released_on_its_own() -> None:
    cache = TensorLRUCache(16)
    cache.reserve("a", 16)
    first = cache.commit({"a": torch.zeros(1, 4)})["a"]
    second = first.share()
    first.release()
    assert not cache.reserve("b", 16)
    with pytest.raises(ContractValueError) as caught:
        first.share()
    assert [(p.path, p.code) for p in caught.value.problems] == [(("lease",), "state")]
    second.release()
    assert cache.reserve("b", 16)
