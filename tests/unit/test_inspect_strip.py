"""The items of an object and the prompt in cells, against cells worked out by hand."""

import random
from collections.abc import Sequence

import pytest
import torch

import omniwire as ow
from omniwire.inspector.items import Item, items_of
from omniwire.inspector.strip import Cell, strip_of

DIGESTS = ["1a2b3c4d" + "0" * 56, "ffffffff80000000" + "0" * 48, "00000001" + "0" * 56]


def item(index: int, *runs: tuple[int, int]) -> Item:
    return Item(index, None, None, None, runs, None, None, None, None)


def drawn(runs: Sequence[Sequence[tuple[int, int]]], size: int | None, max_cells: int) -> str:
    """The strip of items `a`, `b` ... as text, `2` for a cell with two of them."""
    items = tuple(item(index, *of_item) for index, of_item in enumerate(runs))
    strip = strip_of(items, size, max_cells)
    return "" if strip is None else "".join(map(symbol, strip.cells))


def symbol(cell: Cell) -> str:
    assert (cell.num_items == 1) == (cell.item is not None)
    if cell.overlaps:
        return "!"
    if cell.item is not None:
        return chr(ord("a") + cell.item)
    return "." if not cell.num_items else str(cell.num_items)


@pytest.mark.parametrize(
    ("runs", "size", "max_cells", "expected"),
    [
        ([[(1, 4)], [(6, 2), (9, 4)], [(13, 2)]], 16, 16, ".aaaa.bb.bbbbcc."),
        ([[(1, 4)], [(6, 2), (9, 4)], [(13, 2)]], None, 16, ".aaaa.bb.bbbbcc"),
        # Two tokens a cell: 01 23 45 67 89 ab cd ef.
        ([[(1, 4)], [(6, 2), (9, 4)], [(13, 2)]], 16, 8, "aaabbb2c"),
        # Eight a cell: tokens 0-7 are of a and b, 8-15 of b and c.
        ([[(1, 4)], [(6, 2), (9, 4)], [(13, 2)]], 16, 3, "22"),
        ([[(1, 4)], [(6, 2), (9, 4)], [(13, 2)]], 16, 1, "3"),
        # Several runs of an item in one cell are one item.
        ([[(0, 1), (2, 1), (4, 1), (7, 1)]], 8, 2, "aa"),
        ([[(0, 1), (3, 6)], [(12, 1)]], 13, 4, "aaab"),
        # The last cell is only a part.
        ([[(4, 1)]], 5, 4, "..a"),
        ([], 3, 4, "..."),
        ([[], []], 3, 4, "..."),
        ([[]], None, 4, ""),
        ([], 0, 4, ""),
        # Past the end of the prompt.
        ([[(1, 100)], [(200, 5)]], 4, 4, ".aaa"),
        # Claimed twice: 3 and 4; in the last case nested and at a distance.
        ([[(1, 4)], [(3, 4)]], 8, 8, ".aa!!bb."),
        ([[(1, 4)], [(3, 4)]], 8, 4, "a!!b"),
        ([[(0, 8)], [(2, 1)], [(5, 2)]], 8, 8, "aa!aa!!a"),
        # Out of prompt order, as in a selected view.
        ([[(4, 2)], [(0, 2)]], 6, 6, "bb..aa"),
    ],
)
def test_cells_worked_out_by_hand(
    runs: list[list[tuple[int, int]]], size: int | None, max_cells: int, expected: str
) -> None:
    assert drawn(runs, size, max_cells) == expected


def test_against_a_count_token_by_token() -> None:
    numbers = random.Random(7)
    for _ in range(300):
        size = numbers.randrange(1, 60)
        runs: list[list[tuple[int, int]]] = []
        for _ in range(numbers.randrange(6)):
            of_item, position = [], numbers.randrange(40)
            for _ in range(numbers.randrange(4)):
                position += numbers.randrange(4)
                length = numbers.randrange(1, 6)
                of_item.append((position, length))
                position += length
            runs.append(of_item)
        max_cells = numbers.randrange(1, 30)
        claims: list[list[int]] = [[] for _ in range(size)]
        for index, of_item in enumerate(runs):
            for position, length in of_item:
                for token in range(position, min(position + length, size)):
                    claims[token].append(index)
        scale = 1
        while -(-size // scale) > max_cells:
            scale *= 2
        expected = ""
        for start in range(0, size, scale):
            tokens = claims[start : start + scale]
            there = {index for claim in tokens for index in claim}
            if any(len(claim) > 1 for claim in tokens):
                expected += "!"
            elif len(there) == 1:
                expected += chr(ord("a") + there.pop())
            else:
                expected += str(len(there)) if there else "."
        assert drawn(runs, size, max_cells) == expected


def test_a_position_at_the_end_of_int32_takes_no_memory() -> None:
    strip = strip_of((item(0, (2**31 - 9, 8)),), None, 100)
    assert strip is not None
    assert (strip.num_tokens, strip.tokens_per_cell) == (2**31 - 1, 2**25)
    assert [cell.num_items for cell in strip.cells] == [0] * 63 + [1]


def full_request() -> ow.ProcessedRequest:
    metadata = ow.MultimodalItemMetadata(
        [("image", 1), ("audio", 0), ("image", 0)], [64, 1500, 32], [16, 750, 8]
    )
    inputs = ow.MultimodalInput.from_hexdigests(
        DIGESTS,
        [1, 20, 40],
        [18, 12, 10],
        multimodal_uuids=["first", None, "third"],
        multimodal_item_run_cu_offsets=[0, 1, 3, 4],
        multimodal_run_positions=[1, 20, 33, 40],
        multimodal_run_lengths=[18, 10, 2, 10],
    )
    params = ow.MultimodalParams(inputs, {"item_metadata": metadata, "image": {}})
    return ow.ProcessedRequest("r", [0] * 50, params)


def test_the_items_of_a_request() -> None:
    items = items_of(full_request())
    assert items is not None
    assert (items.num_prompt_tokens, items.has_positions, items.has_exact_runs) == (50, True, True)
    fields = [
        (
            row.index,
            row.ref,
            row.prompt_position,
            row.num_prompt_tokens,
            row.runs,
            row.num_encoder_tokens,
            row.num_embedding_rows,
            row.hexdigest,
            row.uuid,
        )
        for row in items.rows
    ]
    assert fields == [
        (0, ("image", 1), 1, 18, ((1, 18),), 64, 16, DIGESTS[0], "first"),
        (1, ("audio", 0), 20, 12, ((20, 10), (33, 2)), 1500, 750, DIGESTS[1], None),
        (2, ("image", 0), 40, 10, ((40, 10),), 32, 8, DIGESTS[2], "third"),
    ]


def test_the_parts_of_a_request_have_the_same_items_as_far_as_they_know_them() -> None:
    params = full_request().multimodal_params
    assert params is not None
    of_params = items_of(params)
    assert of_params is not None
    assert of_params.num_prompt_tokens is None
    assert [row.uuid for row in of_params.rows] == ["first", None, "third"]
    of_input = items_of(params.multimodal_input)
    assert of_input is not None
    assert [(row.ref, row.num_encoder_tokens) for row in of_input.rows] == [(None, None)] * 3
    assert [row.runs for row in of_input.rows] == [row.runs for row in of_params.rows]
    of_record = items_of(params.item_metadata)
    assert of_record is not None
    assert not of_record.has_positions
    assert [(row.num_embedding_rows, row.runs) for row in of_record.rows] == [
        (16, ()),
        (750, ()),
        (8, ()),
    ]


def test_without_exact_runs_an_item_is_one_run() -> None:
    items = items_of(ow.MultimodalInput.from_hexdigests(DIGESTS[:2], [3, 9], [4, 0]))
    assert items is not None
    assert not items.has_exact_runs
    assert [row.runs for row in items.rows] == [((3, 4),), ()]


def test_records_that_disagree_about_the_number_of_items() -> None:
    metadata = ow.MultimodalItemMetadata([("image", 0)], [5], [5])
    inputs = ow.MultimodalInput.from_hexdigests(DIGESTS[:2], [3, 9], [4, 1])
    items = items_of(ow.MultimodalParams(inputs, {"item_metadata": metadata}))
    assert items is not None
    assert [(row.ref, row.prompt_position) for row in items.rows] == [
        (("image", 0), 3),
        (None, 9),
    ]


@pytest.mark.parametrize(
    "obj",
    [
        ow.ProcessedRequest("r", [1]),
        ow.ProcessedRequest("r", [1], ow.MultimodalParams()),
        ow.MultimodalItemMetadata([]),
        ow.TokenIds([1]),
        ow.OmniOutput(torch.zeros(1)),
    ],
)
def test_objects_without_items(obj: object) -> None:
    assert items_of(obj) is None
