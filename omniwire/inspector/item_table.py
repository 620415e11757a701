"""The table of a request's items: its columns, its rows, and which of many rows are shown."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from omniwire.inspector.items import Item
from omniwire.inspector.source import Finding
from omniwire.inspector.text import shown_name

_NUM_HASH_DIGITS: Final = 8

_PER_ITEM: Final = frozenset(("multimodal_positions", "multimodal_embedding"))
"""Fields after which a problem's path has the index of the item at fault."""


class Column(NamedTuple):
    """A column of the table.

    Attributes:
        title: What it is called.
        is_number: Whether it holds numbers.
    """

    title: str
    is_number: bool


COLUMNS: Final = (
    Column("#", is_number=True),
    Column("item", is_number=False),
    Column("prompt position", is_number=True),
    Column("prompt tokens", is_number=True),
    Column("runs", is_number=True),
    Column("encoder tokens", is_number=True),
    Column("embedding rows", is_number=True),
    Column("hash", is_number=False),
    Column("uuid", is_number=False),
)


def cells(item: Item) -> tuple[str, ...]:
    """The text of each column; empty where nothing is known."""
    return (
        str(item.index),
        item_name(item),
        _number(item.prompt_position),
        _number(item.num_prompt_tokens),
        _number(len(item.runs)) if item.prompt_position is not None else "",
        _number(item.num_encoder_tokens),
        _number(item.num_embedding_rows),
        "" if item.hexdigest is None else item.hexdigest[:_NUM_HASH_DIGITS],
        "" if item.uuid is None else shown_name(item.uuid),
    )


def item_name(item: Item) -> str:
    """Its modality and its index there; empty where that is not known."""
    return "" if item.ref is None else f"{item.ref.modality} {item.ref.index}"


def filled_columns(rows: Sequence[tuple[str, ...]]) -> list[int]:
    """The columns in which any of the rows has something."""
    return [index for index in range(len(COLUMNS)) if any(row[index] for row in rows)]


def chosen_items(rows: tuple[Item, ...], faulty: set[int], max_rows: int) -> list[Item]:
    """All items if there are few; else the first, the last, and between them those at fault.

    Args:
        rows: Every item.
        faulty: Indices of items at fault.
        max_rows: The most to choose.
    """
    if len(rows) <= max_rows:
        return list(rows)
    fifth = max_rows // 5
    chosen = {*range(3 * fifth), *range(len(rows) - fifth, len(rows))}
    chosen.update(sorted(faulty.intersection(range(len(rows))) - chosen)[:fifth])
    return [rows[index] for index in sorted(chosen)]


def modality_numbers(rows: tuple[Item, ...]) -> list[int]:
    """Per item, the number of its modality, in order of first appearance."""
    numbers: dict[str, int] = {}
    return [
        numbers.setdefault("" if item.ref is None else item.ref.modality, len(numbers))
        for item in rows
    ]


def faulty_item(finding: Finding) -> int | None:
    """The prompt-global index of the item that a problem is about, if it is about one."""
    path = () if finding.problem is None else finding.problem.path
    if len(path) > 1 and path[-2] in _PER_ITEM and isinstance(path[-1], int):
        return path[-1]
    return None


def faulty_items(findings: Sequence[Finding]) -> set[int]:
    """The prompt-global indices of the items that problems are about."""
    return {index for index in map(faulty_item, findings) if index is not None}


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
