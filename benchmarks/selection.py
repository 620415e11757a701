"""Selection against its goals: one view, contiguous selections of any size, one gather.

Run it with `OMP_NUM_THREADS=1 python benchmarks/selection.py`. All figures of a line come from
one run; a ratio means more than the times it is made of.
"""

import statistics
import timeit
from collections.abc import Callable

import torch

from omniwire.contracts import (
    MultimodalInput,
    MultimodalItemMetadata,
    MultimodalItemPartition,
    MultimodalParams,
    MultimodalRuntimeData,
)
from omniwire.runtime import select

NUM_ITEMS = 10
WIDTH = 1176  # values of a patch


def request_of(num_items: int, patches_per_item: int, width: int = WIDTH) -> MultimodalParams:
    """Qwen2-VL-like images: packed patches, a batched grid, hashes and exact runs."""
    lengths = tuple(patches_per_item + index % 10 for index in range(num_items))
    record = MultimodalItemMetadata(
        [("image", index) for index in range(num_items)],
        lengths,
        lengths,
        {
            "image": {
                "pixel_values": MultimodalItemPartition(item_lengths=lengths),
                "image_grid_thw": MultimodalItemPartition(),
            }
        },
    )
    positions = [8 * index for index in range(num_items)]
    given = MultimodalInput(
        [[1] * 8] * num_items,
        positions,
        [5] * num_items,
        None,
        list(range(num_items + 1)),
        positions,
        [5] * num_items,
    )
    payload = {
        "pixel_values": torch.ones(sum(lengths), width),
        "image_grid_thw": torch.ones(num_items, 3, dtype=torch.int64),
    }
    return MultimodalParams(given, {"image": payload, "item_metadata": record})


def best(work: Callable[[], object], number: int = 2000, repeat: int = 7) -> float:
    """Microseconds of one call, the best of several rounds."""
    return min(timeit.repeat(work, number=number, repeat=repeat)) / number * 1e6


def alternating(
    left: Callable[[], object], right: Callable[[], object], rounds: int = 100
) -> tuple[float, float]:
    """Microseconds of one call of each, medians of calls that take turns."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for work, taken in zip((left, right), times, strict=True):
            taken.append(timeit.timeit(work, number=1) * 1e6)
    return statistics.median(times[0]), statistics.median(times[1])


def show(what: str, figure: str, goal: str) -> None:
    """One line of the table."""
    print(f"{what:<58} {figure:>22}   goal {goal}")


def views() -> None:
    """What one forward makes of a 10-item request."""
    params = request_of(NUM_ITEMS, 20)
    chunk = MultimodalRuntimeData(0, 8, 0, 5, 245)
    time = best(lambda: select(params, [2, 3, 4]))
    show("select 3 of 10 items", f"{time:.1f} us", "25 us")
    time = best(lambda: select(params, [4, 2, 3]))
    show("select 3 of 10 items, reordered", f"{time:.1f} us", "-")
    time = best(lambda: params.with_runtime(chunk))
    show("with_runtime", f"{time:.1f} us", "5 us")


def contiguous() -> None:
    """A contiguous selection of ever larger tensors."""
    times = []
    for patches_per_item in (2, 200, 4000):
        params = request_of(NUM_ITEMS, patches_per_item)
        time = best(lambda params=params: select(params, [2, 3, 4]))  # type: ignore[misc]  # bound now
        times.append(time)
        nbytes = params.multimodal_data["image"]["pixel_values"].nbytes
        show(f"contiguous, of {nbytes / 2**20:.1f} MiB", f"{time:.1f} us", "independent of size")
    show("slowest / fastest", f"{max(times) / min(times):.2f}", "1.0")


def reordered() -> None:
    """A reordered packed selection against one `index_select` of the same rows.

    Small ones show what a view costs; the goal is about the bytes.
    """
    order = [7, 1, 4, 0]
    for patches_per_item in (64, 512, 2048):
        params = request_of(NUM_ITEMS, patches_per_item)
        rows = params.multimodal_data["image"]["pixel_values"]
        lengths = [patches_per_item + index for index in range(NUM_ITEMS)]
        starts = [sum(lengths[:item]) for item in range(NUM_ITEMS)]
        index = torch.cat([torch.arange(starts[i], starts[i] + lengths[i]) for i in order])

        def gather(rows: torch.Tensor = rows, index: torch.Tensor = index) -> torch.Tensor:
            return rows.index_select(0, index)

        def chosen(params: MultimodalParams = params) -> MultimodalParams:
            return select(params, order)

        assert torch.equal(chosen().multimodal_data["image"]["pixel_values"], gather())
        own, baseline = alternating(chosen, gather)
        nbytes = index.numel() * WIDTH * rows.element_size()
        show(
            f"reordered, {nbytes / 2**20:.1f} MiB: select / index_select",
            f"{own:.0f} / {baseline:.0f} us = {own / baseline:.2f}",
            "1.2",
        )


def growth() -> None:
    """The cost per item of long records."""
    for num_items in (10, 100, 1000, 10_000):
        params = request_of(num_items, 1, width=1)
        half = list(range(num_items // 2))
        time = best(lambda params=params, half=half: select(params, half), 10_000 // num_items, 5)  # type: ignore[misc]  # bound now
        show(
            f"select the first half of {num_items} items, per item of the record",
            f"{time / num_items:.2f} us",
            "flat",
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    views()
    contiguous()
    reordered()
    growth()
