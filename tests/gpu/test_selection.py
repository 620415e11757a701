"""Selection on a CUDA device: the same result as on the CPU, and nothing waits for the device."""

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

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


def work_on_the_device(work: Callable[[], object]) -> list[str]:
    """Names of the kernels and copies that some work puts on the device."""
    work()  # whatever is loaded or allocated once
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        work()
        torch.cuda.synchronize()
    return [e.name for e in recorded.events() if e.device_type.name == "CUDA"]


def test_a_gathered_field_is_one_kernel_and_its_index_goes_up_pinned(
    params: MultimodalParams,
) -> None:
    """Three packed fields share an index, the wide and the batched one have one of their own."""
    on_device = params.to_device("cuda")
    names = work_on_the_device(lambda: select(on_device, [2, 0]))
    copies = [name for name in names if "memcpy" in name.lower()]
    kernels = [name for name in names if "memcpy" not in name.lower()]
    assert len(kernels) == 5  # pixel_values, wide, grid, nested.mask, nested.scale
    assert len(copies) == 2  # the packed order and the batched one
    assert all("Pinned -> Device" in name for name in copies)


def test_a_view_puts_no_work_on_the_device(params: MultimodalParams) -> None:
    on_device = params.to_device("cuda")
    assert work_on_the_device(lambda: select(on_device, [0, 2])) == []


def test_a_pinned_index_outlives_its_upload(params: MultimodalParams) -> None:
    """Uploads that overlap: the memory of one index is not written by the next too soon."""
    on_device = params.to_device("cuda")
    orders = list(itertools.permutations(range(4))) * 8
    expected = [select(params, order) for order in orders]
    torch.cuda._sleep(100_000_000)  # type: ignore[no-untyped-call]  # torch's own has none
    found = [select(on_device, order) for order in orders]
    assert [view.to_device("cpu") for view in found] == expected


def test_a_gather_is_about_as_fast_as_one_index_select() -> None:
    """The goal is 1.2 times; the bound here leaves room for a busy device."""
    num_items, rows_per_item, width = 64, 1024, 1176
    lengths = (rows_per_item,) * num_items
    record = MultimodalItemMetadata(
        [("image", index) for index in range(num_items)],
        input_partitions={"image": {"pixel_values": MultimodalItemPartition(lengths)}},
    )
    rows = torch.empty(sum(lengths), width, dtype=torch.bfloat16, device="cuda")
    params = MultimodalParams(
        multimodal_data={"image": {"pixel_values": rows}, "item_metadata": record}
    )
    order = list(range(num_items))[::-1]
    index = torch.arange(rows.size(0)).view(num_items, -1).flip(0).flatten().to("cuda")
    mine = median_ms(lambda: select(params, order))
    plain = median_ms(lambda: rows.index_select(0, index))
    assert mine < 1.5 * plain, f"{mine:.3f} ms, one index_select {plain:.3f} ms"


def median_ms(work: Callable[[], object]) -> float:
    """Time on the device, the host's part of it included where it is the longer one."""
    times: list[float] = []
    for _ in range(25):
        start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # as above
        stop = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # as above
        start.record()
        work()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    return sorted(times[5:])[10]
