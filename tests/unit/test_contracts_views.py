"""Views run no validator, and share what they do not change."""

import sys
import types
from collections.abc import Callable

import pytest
import torch

from omniwire.contracts import (
    FrozenMapping,
    MultimodalInput,
    MultimodalItemMetadata,
    MultimodalItemPartition,
    MultimodalParams,
    MultimodalRuntimeData,
    checks,
    frozen,
)
from omniwire.runtime import select

NO_VALIDATORS = {"check_indices", "raise_problems"}  # of an argument, of nothing
RUNTIME = MultimodalRuntimeData(0, 100, 0, 30, 30)


def validators_run_by(function: Callable[[], object]) -> list[str]:
    """Names of the validators among the Python functions that run: those that judge fields."""
    seen: list[str] = []

    def note(frame: types.FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call":
            return
        is_check = code.co_filename == checks.__file__ and code.co_name not in NO_VALIDATORS
        is_freeze = code is frozen.freeze.__code__ or "_Freezer" in code.co_qualname
        if is_check or is_freeze or code.co_name == "__attrs_post_init__":
            seen.append(code.co_qualname)

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return seen


@pytest.fixture(scope="module")
def params() -> MultimodalParams:
    """Ten items of three rows, packed and batched."""
    record = MultimodalItemMetadata(
        [("image", i) for i in range(10)],
        [16] * 10,
        [3] * 10,
        {"image": {"pixels": MultimodalItemPartition([4] * 10), "grid": MultimodalItemPartition()}},
    )
    positions = list(range(0, 100, 10))
    runs = (list(range(11)), positions, [5] * 10)
    return MultimodalParams(
        MultimodalInput([[0] * 8] * 10, positions, [5] * 10, None, *runs),
        {
            "item_metadata": record,
            "image": {"pixels": torch.zeros(40, 8), "grid": torch.ones(10, 3), "scale": 0.5},
        },
    )


def test_the_count_sees_validators(params: MultimodalParams) -> None:
    """Or counting none would prove nothing."""
    built = validators_run_by(lambda: MultimodalParams(None, dict(params.multimodal_data)))
    assert "MultimodalParams.__attrs_post_init__" in built
    assert "_Freezer.freeze" in built
    assert "check_instance" in built
    runs = validators_run_by(lambda: MultimodalItemMetadata([("image", 0)], [1], [1], {}))
    assert {"check_ints", "check_count"} <= set(runs)


VIEWS: dict[str, Callable[[MultimodalParams], object]] = {
    "with_embeddings": lambda p: p.with_embeddings(torch.zeros(30, 8)),
    "with_embeddings of each item": lambda p: p.with_embeddings([torch.zeros(3, 8)] * 10),
    "with_runtime": lambda p: p.with_runtime(RUNTIME),
    "strip_for_generation": lambda p: p.strip_for_generation(),
    "to_device": lambda p: p.to_device("cpu"),
    "record select": lambda p: p.item_metadata.select([7, 2, 2]),
    "input select": lambda p: p.multimodal_input.select([7, 2, 2]),
    "select": lambda p: select(p, [2, 3, 4]),
    "select in another order": lambda p: select(p, [7, 2, 2]),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_a_view_runs_no_validator(params: MultimodalParams, view) -> None:
    assert validators_run_by(lambda: view(params)) == []


def test_merging_trusts_the_fields_of_both(params: MultimodalParams) -> None:
    """It compares what both know, and judges no field anew."""
    record = params.item_metadata
    same = MultimodalItemMetadata(record.item_refs, None, record.output_embedding_lengths)
    assert validators_run_by(lambda: record.merge(same)) == []


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_a_view_leaves_its_source_as_it_was(params: MultimodalParams, view) -> None:
    before = MultimodalParams(
        params.multimodal_input, params.multimodal_data, params.multimodal_runtime
    )
    view(params)
    assert params == before


def test_every_view_is_a_valid_object(params: MultimodalParams) -> None:
    for name, view in VIEWS.items():
        made = view(params)
        fields = {name: getattr(made, name) for name in made._field_names()}
        assert type(made)(**fields) == made, name


def test_the_depth_of_a_view_s_payload_is_right() -> None:
    """A payload that a view built counts its levels like one that a constructor built."""
    deep = FrozenMapping({"a": {"b": [[torch.ones(1)]]}})
    params = MultimodalParams(multimodal_data={"image": deep, "mrope_config": deep})
    for made in (
        params.with_embeddings([torch.ones(1, 1)]),
        params.to_device("cpu"),
        params.to_device("cpu", ["image.a"]),
        MultimodalParams(
            multimodal_data={"mrope_config": {"mrope_position_deltas": deep}}
        ).strip_for_generation(),
    ):
        rebuilt = MultimodalParams(multimodal_data=dict(made.multimodal_data))
        assert made.multimodal_data._depth == rebuilt.multimodal_data._depth
