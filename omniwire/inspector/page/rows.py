"""The page's tables: problems, items and fields, linked to one another."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from omniwire.contracts.errors import Path
from omniwire.inspector.fields import summary
from omniwire.inspector.item_table import (
    COLUMNS,
    Column,
    cells,
    chosen_items,
    faulty_item,
    faulty_items,
    filled_columns,
    modality_numbers,
)
from omniwire.inspector.items import Items
from omniwire.inspector.sizes import figures
from omniwire.inspector.source import Finding
from omniwire.inspector.tree import Faults, Node
from omniwire.serialization.layout import LocatedMessage

_MAX_ITEMS: Final = 2000
_MAX_PROBLEMS: Final = 200


class Field(NamedTuple):
    """A row of the table of fields.

    Attributes:
        number: Of the row, to link to.
        path: Where the field is.
        name: What it is called; empty for the whole object.
        summary: What it is.
        figures: Bytes, placement and offset.
        is_faulty: Whether a problem is here.
        num_more: How many parts of it are left out.
    """

    number: int
    path: Path
    name: str
    summary: str
    figures: tuple[str, str, str]
    is_faulty: bool
    num_more: int


class ItemRow(NamedTuple):
    """A row of the table of items.

    Attributes:
        item: Prompt-global index.
        texts: One for each column.
        modality: The number of its modality.
        is_faulty: Whether a problem is about it.
        num_skipped: How many items before it are left out.
    """

    item: int
    texts: tuple[str, ...]
    modality: int
    is_faulty: bool
    num_skipped: int


class ItemTable(NamedTuple):
    """The table of items, without columns that have nothing in them."""

    columns: tuple[Column, ...]
    rows: tuple[ItemRow, ...]


class ProblemRow(NamedTuple):
    """A problem, and the rows of the other tables that it is about.

    Attributes:
        text: The sentence that says it.
        field: The number of a field, or of the nearest one that is shown and holds it.
        item: The index of an item.
    """

    text: str
    field: int | None
    item: int | None


def field_rows(message: LocatedMessage, root: Node, findings: Sequence[Finding]) -> list[Field]:
    """The rows of the table of fields, each field before its parts."""
    faults = Faults(findings)
    return [
        Field(
            number=number,
            path=node.path,
            name=node.name,
            summary=summary(node.value),
            figures=figures(message, node.value),
            is_faulty=faults.at(node),
            num_more=node.num_more,
        )
        for number, node in enumerate(_nodes(root))
    ]


def item_table(items: Items, findings: Sequence[Finding]) -> ItemTable:
    """The table of items; of very many, the first, the last and those at fault."""
    faulty = faulty_items(findings)
    chosen = chosen_items(items.rows, faulty, _MAX_ITEMS)
    texts = [cells(item) for item in chosen]
    columns = filled_columns(texts)
    modalities = modality_numbers(items.rows)
    rows: list[ItemRow] = []
    for item, row in zip(chosen, texts, strict=True):
        skipped = item.index - (rows[-1].item + 1 if rows else 0)
        shown = tuple(row[column] for column in columns)
        modality = modalities[item.index]
        rows.append(ItemRow(item.index, shown, modality, item.index in faulty, skipped))
    return ItemTable(tuple(COLUMNS[column] for column in columns), tuple(rows))


def problem_rows(
    findings: Sequence[Finding], fields: Sequence[Field], items: ItemTable | None
) -> list[ProblemRow]:
    """The first problems, linked to the fields and items that they are about."""
    numbers = {field.path: field.number for field in fields}
    indices = set() if items is None else {row.item for row in items.rows}
    rows = []
    for finding in findings[:_MAX_PROBLEMS]:
        item = faulty_item(finding)
        field = None if finding.problem is None else _nearest(finding.problem.path, numbers)
        rows.append(ProblemRow(finding.text, field, item if item in indices else None))
    return rows


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    for part in node.nodes:
        yield from _nodes(part)


def _nearest(path: Path, numbers: Mapping[Path, int]) -> int | None:
    """The number of the field at a path, or of the innermost around it."""
    starts = (path[:end] for end in range(len(path), -1, -1))
    return next((numbers[start] for start in starts if start in numbers), None)
