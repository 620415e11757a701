"""The prompt as a strip of cells, each showing which item its tokens belong to."""

from typing import NamedTuple

import attrs
import numpy as np

from omniwire.inspector.items import Item


class Cell(NamedTuple):
    """Some consecutive prompt tokens.

    Attributes:
        num_items: How many items have tokens here.
        item: The index of the item, if it is one.
        overlaps: Whether several items claim the same token here.
    """

    num_items: int
    item: int | None
    overlaps: bool


@attrs.frozen(eq=False)
class Strip:
    """A prompt in cells.

    Attributes:
        num_tokens: Prompt tokens that the strip shows.
        tokens_per_cell: Prompt tokens in each cell but the last; a power of two.
        cells: The cells, from the start of the prompt.
    """

    num_tokens: int
    tokens_per_cell: int
    cells: tuple[Cell, ...]


def strip_of(
    items: tuple[Item, ...], num_prompt_tokens: int | None, max_cells: int
) -> Strip | None:
    """Lay out a prompt in at most `max_cells` cells.

    Takes time by the number of runs and cells, not by the length of the prompt.

    Args:
        items: The items with their runs; an item's runs are in order and disjoint.
        num_prompt_tokens: Length of the prompt; what reaches past it is not shown. None takes
            the end of the last run for it.
        max_cells: At least 1.

    Returns:
        None for an empty prompt.
    """
    runs = [(item.index, *run) for item in items for run in item.runs]
    owners, starts, ends = np.array(runs, np.int64).reshape(-1, 3).T.copy()
    ends += starts
    num_tokens = int(ends.max(initial=0)) if num_prompt_tokens is None else num_prompt_tokens
    if not num_tokens:
        return None
    inside = starts < num_tokens
    owners, starts, ends = owners[inside], starts[inside], np.minimum(ends[inside], num_tokens)
    tokens_per_cell = 1
    while -(-num_tokens // tokens_per_cell) > max_cells:
        tokens_per_cell *= 2
    num_cells = -(-num_tokens // tokens_per_cell)
    counts, sums = _items_in_cells(owners, starts, ends, tokens_per_cell, num_cells)
    overlaps = np.zeros(num_cells, np.bool_)
    for start, end in shared_ranges(starts, ends):
        overlaps[start // tokens_per_cell : -(-end // tokens_per_cell)] = True
    # Of one item, the sum of its index is its index.
    cells = (
        Cell(count, index if count == 1 else None, overlap)
        for count, index, overlap in zip(
            counts.tolist(), sums.tolist(), overlaps.tolist(), strict=True
        )
    )
    return Strip(num_tokens, tokens_per_cell, tuple(cells))


def _items_in_cells(
    owners: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    tokens_per_cell: int,
    num_cells: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Per cell, how many items have tokens in it, and the sum of their indices."""
    first, past = starts // tokens_per_cell, -(-ends // tokens_per_cell)
    # An item counts once in a cell: a run leaves out the cell that the item's run before ends in.
    again = np.concatenate(([False], owners[1:] == owners[:-1]))
    before = np.concatenate(([0], past[:-1]))
    first = np.where(again, np.maximum(first, before), first)
    drawn = first < past
    owners, first, past = owners[drawn], first[drawn], past[drawn]
    counts = np.zeros(num_cells + 1, np.int64)
    sums = np.zeros(num_cells + 1, np.int64)
    for ends_of_runs, sign in ((first, 1), (past, -1)):
        np.add.at(counts, ends_of_runs, sign)
        np.add.at(sums, ends_of_runs, sign * owners)
    return np.cumsum(counts)[:-1], np.cumsum(sums)[:-1]


def shared_ranges(starts: np.ndarray, ends: np.ndarray) -> list[tuple[int, int]]:
    """The ranges of tokens that a run shares with one that starts before it."""
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    reached = np.maximum.accumulate(ends)[:-1]
    shared = np.minimum(reached, ends[1:])
    found = starts[1:] < shared
    return list(zip(starts[1:][found].tolist(), shared[found].tolist(), strict=True))
