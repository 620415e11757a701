"""Selection: the worked numbers, every holder and axis, views and copies, refusals."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from omniwire.contracts import (
    ContractError,
    ContractTypeError,
    ContractValueError,
    FrozenMapping,
    ItemRef,
    MultimodalInput,
    MultimodalItemMetadata,
    MultimodalItemPartition,
    MultimodalParams,
    MultimodalRuntimeData,
    TensorHandle,
)
from omniwire.runtime import select, select_inputs

BATCHED = MultimodalItemPartition()


def packed(*item_lengths: int, axis: int = 0) -> MultimodalItemPartition:
    return MultimodalItemPartition(item_lengths=item_lengths, axis=axis)


def images(partition: MultimodalItemPartition, field: object, count: int = 2) -> MultimodalParams:
    """Params with `count` images and one partitioned field `x`."""
    record = MultimodalItemMetadata(
        [("image", index) for index in range(count)], input_partitions={"image": {"x": partition}}
    )
    return MultimodalParams(multimodal_data={"image": {"x": field}, "item_metadata": record})


def field_of(params: MultimodalParams, name: str = "x", modality: str = "image") -> object:
    return params.multimodal_data[modality][name]


def test_packed_rows_in_the_worked_example() -> None:
    rows = torch.arange(5)
    params = images(packed(2, 3), rows)
    for indices, expected, is_view in (
        ([0], [0, 1], True),
        ([1], [2, 3, 4], True),
        ([1, 0], [2, 3, 4, 0, 1], False),
        ([0, 1], [0, 1, 2, 3, 4], True),
        ([1, 1], [2, 3, 4, 2, 3, 4], False),
    ):
        selected = field_of(select(params, indices))
        assert isinstance(selected, torch.Tensor)
        assert selected.tolist() == expected
        shares = selected.untyped_storage().data_ptr() == rows.untyped_storage().data_ptr()
        assert shares is is_view


def test_consecutive_items_are_views_wherever_they_lie() -> None:
    rows = torch.arange(12).reshape(3, 4)
    for partition in (
        BATCHED,
        packed(1, 1, 1),
        packed(1, 1, 2, axis=1),
        packed(3, 0, 0),
    ):
        for indices in ([0], [1, 2], [0, 1], [2]):
            selected = field_of(select(images(partition, rows, count=3), indices))
            array = field_of(select(images(partition, rows.numpy(), count=3), indices))
            assert isinstance(selected, torch.Tensor)
            assert isinstance(array, np.ndarray)
            assert selected.untyped_storage().data_ptr() == rows.untyped_storage().data_ptr()
            assert array.size == 0 or np.shares_memory(array, rows.numpy())


def test_fields_of_one_layout_share_one_index(monkeypatch: pytest.MonkeyPatch) -> None:
    indices: list[torch.Tensor] = []
    gather = torch.Tensor.index_select

    def noted(field: torch.Tensor, axis: int, index: torch.Tensor) -> torch.Tensor:
        indices.append(index)
        return gather(field, axis, index)

    monkeypatch.setattr(torch.Tensor, "index_select", noted)
    record = MultimodalItemMetadata(
        [("image", 0), ("image", 1)],
        input_partitions={
            "image": {"a": packed(2, 3), "b": packed(2, 3, axis=1), "c": BATCHED, "d": BATCHED}
        },
    )
    fields = {"a": torch.zeros(5), "b": torch.zeros(1, 5), "c": torch.zeros(2), "d": torch.ones(2)}
    select(MultimodalParams(multimodal_data={"image": fields, "item_metadata": record}), [1, 0])
    assert len(indices) == len(fields)
    assert indices[0] is indices[1]
    assert indices[2] is indices[3]


VIEWS = (
    "aten.slice.Tensor",
    "aten.view.dtype",
    # What wrapping the index of a numpy array comes to.
    "aten.detach.default",
    "aten.lift_fresh.default",
)


class Operations(TorchDispatchMode):
    """Notes every operation on tensors that reaches a kernel, a copy or the host."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("indices", "num_gathers"), [([0], 0), ([1, 2], 0), ([0, 1, 2], 0), ([2, 0], 4)]
)
def test_views_cost_no_kernel_and_each_gathered_field_one(
    indices: list[int], num_gathers: int
) -> None:
    """The path is the GPU's too: nothing is copied or read back but by `index_select`."""
    record = MultimodalItemMetadata(
        [("image", index) for index in range(3)],
        input_partitions={
            "image": {
                "a": packed(2, 0, 3),
                "b": packed(2, 0, 3, axis=1),
                "c": BATCHED,
                "d": packed(2, 0, 3),
            }
        },
    )
    fields = {
        "a": torch.zeros(5),
        "b": torch.zeros(1, 5),
        "c": torch.zeros(3),
        "d": {"e": torch.zeros(5).to(torch.float8_e4m3fn)},
        "shared": torch.zeros(7),
    }
    params = MultimodalParams(multimodal_data={"image": fields, "item_metadata": record})
    with Operations() as seen:
        select(params, indices)
    kernels = [name for name in seen.names if name not in VIEWS]
    assert kernels == ["aten.index_select.default"] * num_gathers


def test_a_modality_that_shares_everything_need_not_be_a_mapping() -> None:
    record = MultimodalItemMetadata([("image", 0), ("image", 1)], input_partitions={"image": {}})
    whole = torch.zeros(3)
    params = MultimodalParams(multimodal_data={"image": whole, "item_metadata": record})
    assert select(params, [1]).multimodal_data["image"] is whole
    undeclared = MultimodalItemMetadata([("image", 0), ("image", 1)])
    params = MultimodalParams(multimodal_data={"image": whole, "item_metadata": undeclared})
    with pytest.raises(ContractTypeError) as caught:
        select(params, [1])
    assert caught.value.problems[0].path == ("multimodal_data", "image")


def test_a_batched_grid_reorders() -> None:
    params = images(BATCHED, torch.tensor([[1, 1, 2], [1, 1, 3]]))
    selected = field_of(select(params, [1, 0]))
    assert isinstance(selected, torch.Tensor)
    assert selected.tolist() == [[1, 1, 3], [1, 1, 2]]


def test_an_image_after_a_video_is_local_0_and_prompt_1() -> None:
    """TensorRT-LLM#15852: payload indices are modality-local, record indices prompt-global."""
    record = MultimodalItemMetadata(
        [("video", 0), ("image", 0)],
        [64, 16],
        [16, 4],
        {"image": {"x": BATCHED}, "video": {"x": BATCHED}},
    )
    params = MultimodalParams(
        multimodal_data={
            "image": {"x": torch.tensor([[7]])},
            "video": {"x": torch.tensor([[9]])},
            "item_metadata": record,
        }
    )
    view = select(params, [1])
    assert torch.equal(view.multimodal_data["image"]["x"], torch.tensor([[7]]))
    assert "video" not in view.multimodal_data
    assert view.item_metadata == MultimodalItemMetadata(
        [("image", 0)], [16], [4], {"image": {"x": BATCHED}}
    )


def test_two_audio_items_with_two_and_one_clips() -> None:
    record = MultimodalItemMetadata(
        [("audio", 0), ("audio", 1)],
        input_partitions={
            "audio": {
                "input_audio_features": packed(2, 1),
                "feature_attention_mask": packed(2, 1),
                "audio_num_clips": BATCHED,
            }
        },
    )
    params = MultimodalParams(
        multimodal_data={
            "audio": {
                "input_audio_features": torch.tensor([[0.0], [1.0], [2.0]]),
                "feature_attention_mask": torch.tensor([[10], [11], [12]]),
                "audio_num_clips": torch.tensor([2, 1]),
            },
            "item_metadata": record,
        }
    )
    expected = MultimodalParams(
        multimodal_data={
            "audio": {
                "input_audio_features": torch.tensor([[2.0]]),
                "feature_attention_mask": torch.tensor([[12]]),
                "audio_num_clips": torch.tensor([1]),
            },
            "item_metadata": MultimodalItemMetadata(
                [("audio", 0)],
                input_partitions={
                    "audio": {
                        "input_audio_features": packed(1),
                        "feature_attention_mask": packed(1),
                        "audio_num_clips": BATCHED,
                    }
                },
            ),
        }
    )
    assert select(params, [1]) == expected


def test_a_field_of_either_resolution_goes_in_a_tuple_of_one_per_item() -> None:
    """vllm#39681, vllm#38305, sglang#35895: items of unlike shapes are not stacked."""
    small, large = torch.zeros(3, 8, 8), torch.zeros(3, 16, 12)
    params = images(BATCHED, [small, large, small], count=3)
    assert field_of(select(params, [1])) == (large,)
    swapped = field_of(select(params, [2, 0, 1]))
    assert isinstance(swapped, tuple)
    assert [tensor is large for tensor in swapped] == [False, False, True]


def test_the_partition_and_not_the_rank_says_what_an_item_is() -> None:
    """sglang-omni#326, vllm#9518: a batched field keeps its rank, an item of it is 1 x ..."""
    params = images(BATCHED, torch.zeros(2, 300, 128))
    selected = field_of(select(params, [1]))
    assert isinstance(selected, torch.Tensor)
    assert selected.shape == (1, 300, 128)


def test_the_last_video_need_not_be_the_one_with_audio() -> None:
    """TensorRT-LLM#12921: refs interleave, and the audio belongs to the first of two videos."""
    record = MultimodalItemMetadata(
        [("video", 0), ("audio", 0), ("video", 1)],
        input_partitions={"video": {"x": BATCHED}, "audio": {"x": BATCHED}},
    )
    params = MultimodalParams(
        multimodal_data={
            "video": {"x": ("first", "second")},
            "audio": {"x": ("sound",)},
            "item_metadata": record,
        }
    )
    view = select(params, [2, 1])
    assert field_of(view, modality="video") == ("second",)
    assert field_of(view, modality="audio") == ("sound",)
    assert view.item_metadata is not None
    assert view.item_metadata.item_refs == (("video", 0), ("audio", 0))


def test_local_order_may_differ_from_prompt_order() -> None:
    """The refs' local indices decide: image 1 stands first in the prompt."""
    record = MultimodalItemMetadata(
        [("image", 1), ("image", 0)], input_partitions={"image": {"x": packed(2, 3)}}
    )
    params = MultimodalParams(
        multimodal_data={"image": {"x": torch.arange(5)}, "item_metadata": record}
    )
    first = select(params, [0])
    assert torch.equal(first.multimodal_data["image"]["x"], torch.tensor([2, 3, 4]))
    both = select(params, [0, 1])
    assert torch.equal(both.multimodal_data["image"]["x"], torch.tensor([2, 3, 4, 0, 1]))
    assert both.item_metadata == MultimodalItemMetadata(
        [("image", 0), ("image", 1)], input_partitions={"image": {"x": packed(3, 2)}}
    )


def test_hashes_positions_uuids_and_runs_are_selected_together() -> None:
    """sglang#14970: each item keeps its own runs. The numbers are those of two items with runs
    (1, 2) and (4, 1), (6, 2)."""
    given = MultimodalInput(
        [[1] * 8, [2] * 8], [1, 4], [2, 3], ["a", None], [0, 1, 3], [1, 4, 6], [2, 1, 2]
    )
    record = MultimodalItemMetadata([("image", 0), ("image", 1)], input_partitions={"image": {}})
    params = MultimodalParams(given, {"image": {}, "item_metadata": record})
    assert select(params, [1]).multimodal_input == MultimodalInput(
        [[2] * 8], [4], [3], [None], [0, 2], [4, 6], [1, 2]
    )
    assert select(params, [1, 0]).multimodal_input == MultimodalInput(
        [[2] * 8, [1] * 8], [4, 1], [3, 2], [None, "a"], [0, 2, 3], [4, 6, 1], [1, 2, 2]
    )


SOURCE = np.arange(2 * 6 * 3).reshape(2, 6, 3)


@pytest.mark.parametrize("hold", [torch.from_numpy, np.asarray], ids=["tensor", "array"])
@pytest.mark.parametrize(
    ("partition", "rows_of_item"),
    [
        (MultimodalItemPartition(axis=2), ([0], [1], [2])),
        (packed(1, 3, 2, axis=1), ([0], [1, 2, 3], [4, 5])),
        (packed(0, 6, 0, axis=1), ([], [0, 1, 2, 3, 4, 5], [])),
        (packed(2, 0, 0), ([0, 1], [], [])),
    ],
    ids=["batched-2", "packed-1", "empty-items", "packed-0"],
)
def test_every_selection_along_every_axis(
    hold: Callable[[np.ndarray], object],
    partition: MultimodalItemPartition,
    rows_of_item: tuple[list[int], ...],
) -> None:
    """Against numpy's own indexing, for all selections of up to three of three items."""
    params = images(partition, hold(SOURCE), count=3)
    for size in (1, 2, 3):
        for indices in itertools.product(range(3), repeat=size):
            rows = [row for index in indices for row in rows_of_item[index]]
            expected = np.take(SOURCE, np.array(rows, dtype=np.int64), axis=partition.axis)
            selected = field_of(select(params, indices))
            assert type(selected) is type(hold(SOURCE))
            np.testing.assert_array_equal(np.asarray(selected), expected)


def test_nested_mappings_divide_alike() -> None:
    field = {"a": torch.arange(5), "b": {"c": np.arange(5), "d": list("abcde")}}
    selected = field_of(select(images(packed(2, 3), field), [1]))
    assert selected == FrozenMapping(
        {"a": torch.tensor([2, 3, 4]), "b": {"c": np.array([2, 3, 4]), "d": tuple("cde")}}
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.uint16])
def test_data_types_survive_a_gather(dtype: torch.dtype) -> None:
    field = torch.tensor([[0, 1], [1, 0], [1, 1]]).to(dtype)
    selected = field_of(select(images(packed(1, 2), field), [1, 0]))
    assert isinstance(selected, torch.Tensor)
    assert selected.dtype == dtype
    assert selected.to(torch.int64).tolist() == [[1, 0], [1, 1], [0, 1]]


def test_handles_resolve_when_they_are_divided_and_pass_when_shared() -> None:
    handle = TensorHandle("local", torch.int64, (5,), torch.arange(5))
    assert torch.equal(
        select(images(packed(2, 3), handle), [1]).multimodal_data["image"]["x"],
        torch.tensor([2, 3, 4]),
    )
    record = MultimodalItemMetadata([("image", 0), ("image", 1)], input_partitions={"image": {}})
    params = MultimodalParams(multimodal_data={"image": {"x": handle}, "item_metadata": record})
    assert field_of(select(params, [1])) is handle


def test_shared_fields_and_auxiliary_keys_pass_through_untouched() -> None:
    shared, auxiliary = torch.arange(7), torch.arange(3)
    record = MultimodalItemMetadata(
        [("image", 0), ("image", 1), ("audio", 0)],
        input_partitions={"image": {"x": BATCHED}, "audio": {}},
    )
    params = MultimodalParams(
        multimodal_data={
            "image": {"x": torch.arange(2), "sizes": shared},
            "audio": {"whole": shared},
            "mrope_config": {"deltas": auxiliary},
            "note": "kept",
            "item_metadata": record,
        }
    )
    view = select(params, [1])
    assert field_of(view, "sizes") is shared
    assert view.multimodal_data["mrope_config"]["deltas"] is auxiliary
    assert view.multimodal_data["note"] == "kept"
    assert "audio" not in view.multimodal_data
    assert field_of(select(params, [2]), "whole", "audio") is shared


def test_attached_embeddings_are_selected_by_item_or_by_rows() -> None:
    record = MultimodalItemMetadata([("image", 1), ("image", 0)], None, [2, 3])
    rows = torch.arange(5.0).reshape(5, 1)
    whole = MultimodalParams.from_embeddings(rows, record)
    one = MultimodalItemMetadata([("image", 0)], None, [3])
    assert select(whole, [1]) == MultimodalParams.from_embeddings(rows[2:], one)
    swapped = MultimodalItemMetadata([("image", 0), ("image", 1)], None, [3, 2])
    assert select(whole, [1, 0]) == MultimodalParams.from_embeddings(rows.roll(-2, 0), swapped)
    per_item = MultimodalParams.from_embeddings([rows[:2], rows[2:]], record)
    assert select(per_item, [1]) == MultimodalParams.from_embeddings([rows[2:]], one)


def test_embeddings_of_unknown_rows_cannot_be_divided() -> None:
    record = MultimodalItemMetadata([("image", 0), ("image", 1)])
    params = MultimodalParams.from_embeddings(torch.zeros(5, 1), record)
    assert select(params, [0, 1]).embeddings is params.embeddings
    with pytest.raises(ContractValueError) as caught:
        select(params, [1])
    assert caught.value.problems[0].path == ("multimodal_data", "multimodal_embedding")
    assert caught.value.problems[0].code == "missing"


def test_selecting_twice_is_selecting_once() -> None:
    record = MultimodalItemMetadata(
        [("image", 1), ("video", 0), ("image", 0), ("image", 2)],
        [4, 5, 6, 7],
        [1, 2, 3, 4],
        {"image": {"x": packed(1, 0, 2), "y": BATCHED}, "video": {"x": packed(4, axis=1)}},
    )
    params = MultimodalParams(
        multimodal_data={
            "image": {"x": torch.arange(3), "y": ("a", "b", "c")},
            "video": {"x": torch.arange(8).reshape(2, 4)},
            "item_metadata": record,
        }
    )
    for outer in itertools.product(range(4), repeat=3):
        view = select(params, outer)
        for inner in itertools.product(range(3), repeat=2):
            assert select(view, inner) == select(params, [outer[index] for index in inner])


def test_a_view_equals_the_validated_construction_of_the_same() -> None:
    params = images(packed(2, 3), torch.arange(5))
    view = select(params, [1, 0])
    rebuilt = MultimodalParams(
        view.multimodal_input, dict(view.multimodal_data), view.multimodal_runtime
    )
    assert rebuilt == view


def test_a_view_leaves_runtime_and_executor_state_unset() -> None:
    params = images(BATCHED, ("a", "b"))
    chunk = MultimodalRuntimeData(0, 4, 0, 2, 2)
    assert select(params.with_runtime(chunk), [0]).multimodal_runtime is None
    assert select(params.with_encoder_state(object()), [0]).encoder_state is None


def count_validators(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The list that from now on gets the name of each contract type whose validators run."""
    runs: list[str] = []
    kinds = (MultimodalInput, MultimodalItemMetadata, MultimodalItemPartition, MultimodalParams)
    for kind in kinds:
        name = kind.__name__
        monkeypatch.setattr(kind, "__attrs_post_init__", lambda _, name=name: runs.append(name))
    monkeypatch.setattr(FrozenMapping, "__init__", lambda *_: runs.append("FrozenMapping"))
    monkeypatch.setattr(ItemRef, "__new__", lambda *_: runs.append("ItemRef"))
    return runs


def test_a_view_runs_no_validator(monkeypatch: pytest.MonkeyPatch) -> None:
    given = MultimodalInput([[1] * 8, [2] * 8], [1, 4], [2, 3])
    params = images(packed(2, 3), torch.arange(5))
    params = MultimodalParams(given, dict(params.multimodal_data))
    runs = count_validators(monkeypatch)
    select(params, [1])
    select(params, [1, 0])
    assert runs == []
    MultimodalItemPartition()
    assert runs == ["MultimodalItemPartition"]


@pytest.mark.parametrize(
    ("indices", "kind", "code", "path"),
    [
        ([], ContractValueError, "index", ("prompt_indices",)),
        ([2], ContractValueError, "index", ("prompt_indices", 0)),
        ([0, -1], ContractValueError, "index", ("prompt_indices", 1)),
        ([0, True], ContractTypeError, "type", ("prompt_indices", 1)),
        ([0.0], ContractTypeError, "type", ("prompt_indices", 0)),
        (1, ContractTypeError, "type", ("prompt_indices",)),
    ],
)
def test_bad_indices(
    indices: object, kind: type[ContractError], code: str, path: tuple[str | int, ...]
) -> None:
    params = images(BATCHED, ("a", "b"))
    with pytest.raises(kind) as caught:
        select(params, indices)  # type: ignore[arg-type]  # what is tested
    assert [(p.code, p.path) for p in caught.value.problems] == [(code, path)]


@pytest.mark.parametrize(
    ("partition", "field", "code"),
    [
        (BATCHED, torch.zeros(3), "count"),
        (BATCHED, ("a",), "count"),
        (packed(2, 3), torch.zeros(4), "sum"),
        (packed(2, 3), np.zeros(6), "sum"),
        (packed(2, 3, axis=1), torch.zeros(5), "axis"),
        (packed(2, 3, axis=1), ("a",) * 5, "axis"),
        (BATCHED, "ab", "type"),
        (BATCHED, None, "type"),
    ],
)
def test_a_field_that_does_not_divide_is_an_error(
    partition: MultimodalItemPartition, field: object, code: str
) -> None:
    """Also where check_producer was left out: never rows of a neighbor."""
    with pytest.raises((ContractValueError, ContractTypeError)) as caught:
        select(images(partition, field), [0])
    problems = caught.value.problems
    assert [(p.code, p.path) for p in problems] == [(code, ("multimodal_data", "image", "x"))]


def test_params_without_a_record_cannot_be_selected_from() -> None:
    with pytest.raises(ContractValueError) as caught:
        select(MultimodalParams(multimodal_data={"image": {}}), [0])
    problem = caught.value.problems[0]
    assert (problem.code, problem.path) == ("missing", ("multimodal_data", "item_metadata"))


def test_hashes_of_another_number_of_items_are_an_error() -> None:
    params = images(BATCHED, ("a", "b"))
    params = MultimodalParams(MultimodalInput([[1] * 8], [0], [1]), dict(params.multimodal_data))
    with pytest.raises(ContractValueError) as caught:
        select(params, [0])
    problem = caught.value.problems[0]
    assert (problem.code, problem.path) == ("count", ("multimodal_input", "multimodal_hashes"))


def test_select_inputs_takes_a_plain_payload_and_a_record() -> None:
    record = MultimodalItemMetadata(
        [("image", 0), ("image", 1)], input_partitions={"image": {"x": packed(2, 3)}}
    )
    selected = select_inputs({"image": {"x": torch.arange(5)}, "extra": 1}, record, [1])
    assert selected == FrozenMapping(
        {
            "image": {"x": torch.tensor([2, 3, 4])},
            "extra": 1,
            "item_metadata": MultimodalItemMetadata(
                [("image", 0)], input_partitions={"image": {"x": packed(3)}}
            ),
        }
    )
    assert MultimodalParams(multimodal_data=selected).item_metadata is not None


def test_select_inputs_names_its_own_argument() -> None:
    record = MultimodalItemMetadata(
        [("image", 0), ("image", 1)], input_partitions={"image": {"x": BATCHED}}
    )
    with pytest.raises(ContractValueError) as caught:
        select_inputs({"image": {"x": torch.zeros(3)}}, record, [1])
    assert caught.value.problems[0].path == ("data", "image", "x")


RARE_DTYPES = [
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.complex32,
    torch.float8_e4m3fn,
    torch.float8_e8m0fnu,
    torch.float4_e2m1fn_x2,
    torch.uint4,
    torch.bits8,
]


@pytest.mark.parametrize("dtype", RARE_DTYPES, ids=str)
def test_rare_dtypes_are_gathered_too(dtype: torch.dtype) -> None:
    """torch has no `index_select` kernel for some of them."""
    size = dtype.itemsize
    content = torch.arange(3 * size, dtype=torch.uint8)
    record = MultimodalItemMetadata(
        [("image", i) for i in range(3)],
        input_partitions={"image": {"x": MultimodalItemPartition()}},
    )
    payload = {"image": {"x": content.view(dtype)}, "item_metadata": record}
    chosen = select(MultimodalParams(multimodal_data=payload), [2, 0]).multimodal_data["image"]["x"]
    assert chosen.dtype == dtype
    expected = [*range(2 * size, 3 * size), *range(size)]
    assert chosen.view(torch.uint8).tolist() == expected
