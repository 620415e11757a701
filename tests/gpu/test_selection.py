"""Selection on a CUDA device: the same result as on the CPU, and nothing waits for the device."""

import itertools
from collections.abc import Iterator

import pytest
import torch

from omniwire.contracts import (
    ContractValueError,
    MultimodalItemMetadata,
    MultimodalItemPartition,
    MultimodalParams,
)
from omniwire.runtime import select

ITEM_LENGTHS = (3, 0, 5, 2)


@pytest.fixture
def params() -> MultimodalParams:
    """Four images: packed along both axes, batched, nested and shared fields, on the CPU."""
    packed = MultimodalItemPartition(item_lengths=ITEM_LENGTHS)
    record = MultimodalItemMetadata(
        [("image", index) for index in (2, 0, 3, 1)],
        input_partitions={
            "image": {
                "pixel_values": packed,
                "wide": MultimodalItemPartition(item_lengths=ITEM_LENGTHS, axis=1),
                "grid": MultimodalItemPartition(),
                "nested": packed,
            }
        },
    )
    rows = torch.arange(sum(ITEM_LENGTHS) * 4).reshape(-1, 4)
    return MultimodalParams(
        multimodal_data={
            "image": {
                "pixel_values": rows.to(torch.bfloat16),
                "wide": rows.t(),
                "grid": torch.arange(12).reshape(4, 3),
                "nested": {"mask": rows > 7, "scale": rows.to(torch.float8_e4m3fn)},
                "shared": torch.arange(6),
            },
            "item_metadata": record,
        }
    )


@pytest.fixture
def _no_synchronization() -> Iterator[None]:
    """Any operation that waits for the device raises."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def test_every_selection_equals_that_on_the_cpu(params: MultimodalParams) -> None:
    on_device = params.to_device("cuda")
    for size in (1, 2, 3):
        for indices in itertools.product(range(4), repeat=size):
            found = select(on_device, indices)
            assert found.multimodal_data["image"]["pixel_values"].device.type == "cuda"
            assert found.to_device("cpu") == select(params, indices)


@pytest.mark.parametrize("indices", [[1], [2, 0], [1, 1, 3]])
def test_nothing_waits_for_the_device(
    params: MultimodalParams, indices: list[int], request: pytest.FixtureRequest
) -> None:
    on_device = params.to_device("cuda")
    request.getfixturevalue("_no_synchronization")
    select(on_device, indices)


def test_consecutive_items_share_storage(params: MultimodalParams) -> None:
    on_device = params.to_device("cuda")
    for name in ("pixel_values", "wide", "grid"):
        whole = on_device.multimodal_data["image"][name]
        part = select(on_device, [0, 2]).multimodal_data["image"][name]
        assert part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()


@pytest.mark.usefixtures("_no_synchronization")
def test_a_grid_on_the_device_is_not_read_back() -> None:
    """The compatibility selector would have to wait for it: declare the partitions instead."""
    record = MultimodalItemMetadata([("image", 0), ("image", 1)])
    params = MultimodalParams(
        multimodal_data={
            "image": {
                "pixel_values": torch.empty(3, 4, device="cuda"),
                "image_grid_thw": torch.ones(2, 3, device="cuda", dtype=torch.int64),
            },
            "item_metadata": record,
        }
    )
    with pytest.raises(ContractValueError) as caught:
        select(params, [1])
    assert {problem.code for problem in caught.value.problems} == {"missing"}
