"""Encoder state of a request, and the scheduler that reads it."""

from collections.abc import Sequence

import pytest
import torch

from omniwire.contracts import (
    ContractError,
    ContractTypeError,
    ContractValueError,
    EncoderBudget,
    MultimodalItemMetadata,
    MultimodalParams,
    ProcessedRequest,
)
from omniwire.runtime import ItemScheduler, MultimodalEncoderRequestState


class Reference:
    """Counts its releases."""

    def __init__(self) -> None:
        self.num_releases = 0

    def release(self) -> None:
        self.num_releases += 1


class Broken(Reference):
    def release(self) -> None:
        super().release()
        raise OSError("gone")


def state_of(
    request_id: str, costs: Sequence[int] | None, rows: Sequence[int] | None = None
) -> MultimodalEncoderRequestState:
    count = len(costs or rows or ())
    record = MultimodalItemMetadata(
        [("image", index) for index in range(count)],
        costs,
        rows,
    )
    params = MultimodalParams(multimodal_data={"image": {}, "item_metadata": record})
    return MultimodalEncoderRequestState.from_request(ProcessedRequest(request_id, [1], params))


def test_items_become_ready_one_by_one() -> None:
    state = state_of("r1", [4, 5, 6])
    assert state.request_id == "r1"
    assert state.item_metadata.encoder_token_lengths == (4, 5, 6)
    assert (state.item_ready, state.pending_items) == ((False, False, False), (0, 1, 2))
    reference = Reference()
    state.complete(1, reference)
    assert (state.item_ready, state.pending_items) == ((False, True, False), (0, 2))
    assert state.reference(1) is reference
    assert state.reference(0) is None


def test_release_happens_exactly_once() -> None:
    state = state_of("r1", [4, 5])
    references = [Reference(), Reference()]
    for index, reference in enumerate(references):
        state.complete(index, reference)
    state.release()
    state.release()
    assert [reference.num_releases for reference in references] == [1, 1]
    assert state.is_released
    assert (state.item_ready, state.pending_items) == ((False, False), ())
    assert state.reference(0) is None


def test_a_reference_that_comes_after_release_is_released_at_once() -> None:
    state = state_of("r1", [4])
    state.release()
    late = Reference()
    state.complete(0, late)
    assert late.num_releases == 1
    assert state.item_ready == (False,)


def test_one_failing_release_keeps_none_of_the_others() -> None:
    state = state_of("r1", [4, 5, 6])
    references = [Reference(), Broken(), Reference()]
    for index, reference in enumerate(references):
        state.complete(index, reference)
    with pytest.raises(OSError, match="gone"):
        state.release()
    state.release()
    assert [reference.num_releases for reference in references] == [1, 1, 1]


def test_references_need_nothing_to_release() -> None:
    state = state_of("r1", [4, 5])
    state.complete(0, torch.zeros(1))
    state.complete(1, None)
    assert state.pending_items == ()
    state.release()


@pytest.mark.parametrize(
    ("index", "kind", "code"),
    [
        (0, ContractValueError, "duplicate"),
        (2, ContractValueError, "index"),
        (-1, ContractValueError, "range"),
        (True, ContractTypeError, "type"),
    ],
)
def test_bad_completions_leave_the_reference_to_the_caller(
    index: int, kind: type[ContractError], code: str
) -> None:
    state = state_of("r1", [4, 5])
    state.complete(0, Reference())
    refused = Reference()
    with pytest.raises(kind) as caught:
        state.complete(index, refused)
    problems = caught.value.problems
    assert [(p.path, p.code) for p in problems] == [(("index",), code)]
    state.release()
    assert refused.num_releases == 0


def test_attached_embeddings_leave_nothing_to_encode() -> None:
    record = MultimodalItemMetadata([("image", 0)], None, [2])
    params = MultimodalParams.from_embeddings(torch.zeros(2, 1), record)
    state = MultimodalEncoderRequestState.from_request(ProcessedRequest("r1", [1], params))
    assert (state.item_ready, state.pending_items) == ((True,), ())


@pytest.mark.parametrize(
    ("request_", "kind", "code"),
    [
        (ProcessedRequest("r1", [1]), ContractValueError, "missing"),
        (
            ProcessedRequest("r1", [1], MultimodalParams(multimodal_data={"image": {}})),
            ContractValueError,
            "missing",
        ),
        ("r1", ContractTypeError, "type"),
    ],
)
def test_requests_without_items_have_no_state(
    request_: ProcessedRequest, kind: type[ContractError], code: str
) -> None:
    with pytest.raises(kind) as caught:
        MultimodalEncoderRequestState.from_request(request_)
    assert caught.value.problems[0].code == code


def scheduler(**bounds: int) -> ItemScheduler:
    return ItemScheduler(EncoderBudget(**bounds))


def test_items_are_taken_in_order_while_they_fit() -> None:
    states = [state_of("a", [4, 4, 4]), state_of("b", [2, 2])]
    assert scheduler(max_encoder_tokens=10).schedule(states) == {"a": (0, 1), "b": (0,)}
    assert scheduler().schedule(states) == {"a": (0, 1, 2), "b": (0, 1)}
    assert [state.pending_items for state in states] == [(0, 1, 2), (0, 1)]


def test_output_bytes_are_bounded_too() -> None:
    states = [state_of("a", [1, 1, 1], [3, 3, 3])]
    bounded = scheduler(max_encoder_tokens=100, max_output_bytes=96, output_row_bytes=16)
    assert bounded.schedule(states) == {"a": (0, 1)}  # 3 x 16 bytes each


def test_an_iteration_over_and_over_encodes_everything_once() -> None:
    states = [state_of("a", [7, 3, 9]), state_of("b", [5, 5]), state_of("c", [10])]
    plan = scheduler(max_encoder_tokens=10)
    encoded: list[tuple[str, int]] = []
    while any(state.pending_items for state in states):
        scheduled = plan.schedule(states)
        costs = 0
        for state in states:
            for index in scheduled.get(state.request_id, ()):
                lengths = state.item_metadata.encoder_token_lengths
                assert lengths is not None
                costs += lengths[index]
                state.complete(index, None)
                encoded.append((state.request_id, index))
        assert 0 < costs <= 10
    assert sorted(encoded) == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("c", 0)]


def test_a_large_item_is_not_starved_by_small_newcomers() -> None:
    """Wherever the newcomers are put, the oldest pending item goes first."""
    plan = scheduler(max_encoder_tokens=10)
    old, large = state_of("old", [6]), state_of("large", [10])
    assert plan.schedule([old, large]) == {"old": (0,)}
    old.complete(0, None)
    newcomers = [state_of(f"new{number}", [1]) for number in range(5)]
    assert plan.schedule([*newcomers, old, large]) == {"large": (0,)}


def test_an_item_above_the_budget_runs_alone() -> None:
    """The effective budget covers the largest item, which is never split."""
    states = [state_of("a", [25, 1])]
    plan = scheduler(max_encoder_tokens=10)
    assert plan.schedule(states) == {"a": (0,)}
    states[0].complete(0, None)
    assert plan.schedule(states) == {"a": (1,)}


def test_the_same_states_give_the_same_schedule() -> None:
    states = [state_of("b", [4, 8]), state_of("a", [4])]
    plan = scheduler(max_encoder_tokens=8)
    assert plan.schedule(states) == plan.schedule(states) == {"b": (0,), "a": (0,)}


def test_released_and_finished_requests_are_left_out() -> None:
    done, gone = state_of("done", [1]), state_of("gone", [1])
    done.complete(0, None)
    gone.release()
    assert scheduler().schedule([done, gone]) == {}
    assert scheduler().schedule([]) == {}


@pytest.mark.parametrize(
    ("bounds", "name"),
    [
        ({"max_encoder_tokens": 8}, "encoder_token_lengths"),
        ({"max_output_bytes": 8, "output_row_bytes": 1}, "output_embedding_lengths"),
    ],
)
def test_unknown_costs_cannot_be_scheduled(bounds: dict[str, int], name: str) -> None:
    costs, rows = ([1], None) if name == "output_embedding_lengths" else (None, [1])
    states = [state_of("a", [1], [1]), state_of("b", costs, rows)]
    with pytest.raises(ContractValueError) as caught:
        scheduler(**bounds).schedule(states)
    problems = caught.value.problems
    assert [(p.path, p.code) for p in problems] == [
        (("states", 1, "item_metadata", name), "missing")
    ]


def test_a_request_twice_and_what_is_no_state_are_errors() -> None:
    with pytest.raises(ContractValueError) as caught:
        scheduler().schedule([state_of("a", [1]), state_of("a", [1])])
    assert [(p.path, p.code) for p in caught.value.problems] == [(("states", 1), "duplicate")]
    with pytest.raises(ContractTypeError):
        scheduler().schedule(["a"])  # type: ignore[list-item]  # what is tested
    with pytest.raises(ContractTypeError):
        ItemScheduler(8)  # type: ignore[arg-type]  # what is tested
