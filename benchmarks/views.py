"""Views of a 10-item request against their goals, beside building the same with all checks.

Run it with `OMP_NUM_THREADS=1 python benchmarks/views.py`. A view runs no validator (a test
counts), so what a constructor takes for the same fields is what a view saves.
"""

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
ROWS = 4  # embedding rows of an item
HIDDEN = 64
SIZES = (10, 100, 1000, 10_000)


def request_of(num_items: int) -> MultimodalParams:
    """Images with packed patches, a batched grid, hashes and exact runs."""
    lengths = (4 * ROWS,) * num_items
    positions = [2 * ROWS * index for index in range(num_items)]
    fields = {
        "pixel_values": MultimodalItemPartition(lengths),
        "image_grid_thw": MultimodalItemPartition(),
    }
    record = MultimodalItemMetadata(
        [("image", index) for index in range(num_items)],
        lengths,
        (ROWS,) * num_items,
        {"image": fields},
    )
    runs = (list(range(num_items + 1)), positions, [ROWS] * num_items)
    given = MultimodalInput(
        [[1] * 8] * num_items, positions, [ROWS] * num_items, [None] * num_items, *runs
    )
    image = {
        "pixel_values": torch.ones(sum(lengths), 8),
        "image_grid_thw": torch.ones(num_items, 3, dtype=torch.int64),
    }
    return MultimodalParams(given, {"image": image, "item_metadata": record})


def microseconds(work: Callable[[], object], number: int = 2000) -> float:
    """One call, the best of several rounds."""
    return min(timeit.repeat(work, number=number, repeat=7)) / number * 1e6


def rebuilt(params: MultimodalParams) -> MultimodalParams:
    """The same params from plain parts, all checks on."""
    given, record = params.multimodal_input, params.item_metadata
    assert given is not None
    assert record is not None
    data = {key: dict(value) for key, value in params.multimodal_data.items() if key == "image"}
    return MultimodalParams(
        MultimodalInput(*(getattr(given, name) for name in given._field_names())),
        {
            **data,
            "item_metadata": MultimodalItemMetadata(
                record.item_refs,
                record.encoder_token_lengths,
                record.output_embedding_lengths,
                record.input_partitions,
            ),
        },
    )


def show(what: str, taken: float, goal: str = "") -> None:
    """One line of the table."""
    print(f"{what:<62} {taken:9.2f} us   {goal}".rstrip())


def of_ten_items() -> None:
    """What one forward or prefill chunk makes of a request, and the goals for it."""
    params = request_of(NUM_ITEMS)
    given, record = params.multimodal_input, params.item_metadata
    assert given is not None
    assert record is not None
    rows = torch.zeros(NUM_ITEMS * ROWS, HIDDEN)
    per_item = list(rows.split(ROWS))
    window = {"past_seen_token_num": 10, "chunk_end_pos": 60}
    chunk = MultimodalRuntimeData.for_chunk(**window, multimodal_input=given)
    chosen = [2, 3, 4]

    show("select: 3 of 10 items", microseconds(lambda: select(params, chosen)), "goal 25 us")
    show("with_runtime", microseconds(lambda: params.with_runtime(chunk)), "goal 5 us")
    show("with_embeddings: one tensor", microseconds(lambda: params.with_embeddings(rows)))
    show("with_embeddings: one per item", microseconds(lambda: params.with_embeddings(per_item)))
    show("strip_for_generation", microseconds(params.strip_for_generation))
    show("the record's select", microseconds(lambda: record.select(chosen)))
    show("the input's select", microseconds(lambda: given.select(chosen)))
    show(
        "MultimodalRuntimeData.for_chunk from runs, checked",
        microseconds(
            lambda: MultimodalRuntimeData.for_chunk(**window, multimodal_input=given), 500
        ),
    )
    show("the same params from plain parts, all checks", microseconds(lambda: rebuilt(params), 500))


def of_many_items() -> None:
    """Per item of the request: a view shares, a selection walks what it selects."""
    for num_items in SIZES:
        params = request_of(num_items)
        chunk = MultimodalRuntimeData(0, 0, 0, 0, num_items * ROWS)
        half = range(num_items // 2)
        number = max(20_000 // num_items, 3)
        show(
            f"with_runtime: {num_items} items, in all",
            microseconds(lambda params=params, chunk=chunk: params.with_runtime(chunk)),  # type: ignore[misc]  # binds the loop's values
            "flat",
        )
        taken = microseconds(lambda params=params, half=half: select(params, half), number)  # type: ignore[misc]  # as above
        show(f"select: half of {num_items} items, per item", taken / num_items, "flat")
        taken = microseconds(lambda params=params: rebuilt(params), number)  # type: ignore[misc]  # as above
        show(f"from plain parts: {num_items} items, per item", taken / num_items, "flat")


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    of_ten_items()
    print()
    of_many_items()


if __name__ == "__main__":
    main()
