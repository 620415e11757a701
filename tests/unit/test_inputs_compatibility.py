"""Modalities without declared partitions: the two known layouts, and nothing else."""

from collections.abc import Mapping

import numpy as np
import pytest
import torch

from omniwire.contracts import ContractValueError, MultimodalItemMetadata, MultimodalParams
from omniwire.runtime import select

GRID = torch.tensor([[1, 2, 2], [2, 2, 3]])  # 4 and 12 patches
PATCHES = torch.arange(16).reshape(16, 1)


def undeclared(modality: str, fields: Mapping[str, object], count: int = 2) -> MultimodalParams:
    record = MultimodalItemMetadata([(modality, index) for index in range(count)])
    return MultimodalParams(multimodal_data={modality: fields, "item_metadata": record})


@pytest.mark.parametrize("grid", [GRID, GRID.to(torch.int32), GRID.numpy()])
def test_patches_are_packed_by_the_products_of_the_grid(grid: object) -> None:
    params = undeclared("image", {"pixel_values": PATCHES, "image_grid_thw": grid})
    second = select(params, [1]).multimodal_data["image"]
    assert second["pixel_values"].flatten().tolist() == list(range(4, 16))
    assert second["image_grid_thw"].tolist() == [[2, 2, 3]]
    swapped = select(params, [1, 0]).multimodal_data["image"]
    assert swapped["pixel_values"].flatten().tolist() == [*range(4, 16), *range(4)]


def test_video_patches_too() -> None:
    params = undeclared("video", {"pixel_values_videos": PATCHES, "video_grid_thw": GRID})
    first = select(params, [0]).multimodal_data["video"]
    assert first["pixel_values_videos"].flatten().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("count", [2, 3])
def test_stacked_features_have_one_slice_per_item(count: int) -> None:
    features = np.arange(count * 4).reshape(count, 2, 2)
    for modality, field in (("image", "pixel_values"), ("audio", "input_features")):
        params = undeclared(modality, {field: torch.from_numpy(features)}, count)
        selected = select(params, [1]).multimodal_data[modality][field]
        assert selected.tolist() == [features[1].tolist()]


def test_values_without_an_axis_are_shared() -> None:
    fields = {"fps": 24.0, "name": "x", "scale": torch.tensor(2), "off": None}
    params = undeclared("image", {"pixel_values": torch.zeros(2, 1), **fields})
    view = select(params, [1]).multimodal_data["image"]
    assert (view["fps"], view["name"], view["scale"].item(), view["off"]) == (24.0, "x", 2, None)


def test_all_items_in_order_need_no_layout() -> None:
    fields = {"odd": torch.zeros(7), "nested": {"x": (1, 2, 3)}}
    params = undeclared("image", fields)
    assert select(params, [0, 1]) == params
    assert select(undeclared("image", fields, 1), [0]) == undeclared("image", fields, 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"odd": torch.zeros(2, 3)},  # the leading dimension is no evidence
        {"pixel_values": torch.zeros(5, 3)},
        {"pixel_values": torch.zeros(3, 3), "image_grid_thw": GRID},
        {"pixel_values": torch.zeros(16, 3), "image_grid_thw": GRID.float()},
        {"pixel_values": torch.zeros(16, 3), "image_grid_thw": GRID[:1]},
        {
            "pixel_values": torch.zeros(16, 3),
            "image_grid_thw": GRID * torch.tensor([1, -1, -1]),
        },
        {"pixel_values": torch.zeros(16, 3), "a_grid_thw": GRID, "b_grid_thw": GRID},
        {"pixel_values": [torch.zeros(3), torch.zeros(4)]},
        {"sizes": {"height": torch.zeros(2)}},
    ],
)
def test_anything_else_names_the_missing_declaration(fields: dict[str, object]) -> None:
    with pytest.raises(ContractValueError) as caught:
        select(undeclared("image", fields), [1])
    problem = caught.value.problems[0]
    assert problem.code == "missing"
    assert problem.path == ("multimodal_data", "image", next(iter(fields)))
    assert "input_partitions['image']" in problem.expected


def test_every_field_that_needs_a_declaration_is_reported() -> None:
    params = undeclared(
        "image", {"pixel_values": torch.zeros(2, 1), "a": torch.zeros(2), "b": torch.zeros(2)}
    )
    with pytest.raises(ContractValueError) as caught:
        select(params, [1])
    assert [problem.path[-1] for problem in caught.value.problems] == ["a", "b"]


def test_one_modality_may_be_declared_and_another_not() -> None:
    record = MultimodalItemMetadata(
        [("image", 0), ("image", 1), ("audio", 0), ("audio", 1)],
        input_partitions={"audio": {}},
    )
    params = MultimodalParams(
        multimodal_data={
            "image": {"pixel_values": torch.arange(2)},
            "audio": {"odd": torch.zeros(3)},
            "item_metadata": record,
        }
    )
    view = select(params, [1, 3])
    assert view.multimodal_data["image"]["pixel_values"].tolist() == [1]
    assert view.multimodal_data["audio"]["odd"].shape == (3,)
