"""The items of a request and where in the prompt they are, as a table and a strip."""

from collections.abc import Sequence
from itertools import groupby
from string import ascii_letters, digits
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from omniwire.inspector.item_table import (
    COLUMNS,
    cells,
    chosen_items,
    faulty_items,
    filled_columns,
    modality_numbers,
)
from omniwire.inspector.items import Item, Items
from omniwire.inspector.source import Finding
from omniwire.inspector.strip import Cell, Strip, strip_of
from omniwire.inspector.text import counted

_MAX_ROWS: Final = 100
_NUMBER: Final = 0
_ITEM: Final = 1
_POSITION: Final = 2

_MAX_LINES: Final = 12
_MAX_CELLS_PER_LINE: Final = 64

_TEXT: Final = "."
_MANY: Final = "+"
_OVERLAP: Final = "!"
_MEANINGS: Final = (
    (_TEXT, "text"),
    (_MANY, "ten items or more"),
    (_OVERLAP, "tokens that two items claim"),
)
_MODALITY_STYLES: Final = ("cyan", "yellow", "green", "blue", "magenta")


def items_table(items: Items, findings: Sequence[Finding]) -> Table:
    """A row for each item in prompt order; of many, the first, the last and those at fault.

    Args:
        items: The items.
        findings: What is wrong; items at fault are red.
    """
    styles = _item_styles(items.rows)
    faulty = faulty_items(findings)
    rows = {item.index: cells(item) for item in chosen_items(items.rows, faulty, _MAX_ROWS)}
    columns = filled_columns(list(rows.values()))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    if items.has_positions:
        table.add_column("")
    for column in columns:
        title, is_number = COLUMNS[column]
        lines = title.replace(" ", "\n") if " " in title else f"\n{title}"
        table.add_column(lines, justify="right" if is_number else "left", overflow="fold")
    gap_column = _ITEM if _ITEM in columns else _NUMBER
    past = 0
    for index, row in rows.items():
        if index > past:
            gap = Text(f"... {index - past:,} more", "dim")
            gaps = [gap if column == gap_column else "" for column in columns]
            table.add_row(*([""] if items.has_positions else []), *gaps)
        style = "red" if index in faulty else styles[index]
        mark = Text(_mark(index) if row[_POSITION] else "", style)
        texts = [Text(row[column], style if column == _ITEM else "") for column in columns]
        table.add_row(*([mark] if items.has_positions else []), *texts)
        past = index + 1
    return table


def print_strip(console: Console, items: Items, width: int) -> None:
    """Print where in the prompt the items are; nothing if that is not known.

    Args:
        console: Where to.
        items: The items.
        width: Columns to print in.
    """
    if not items.has_positions:
        return
    num_columns = min(_MAX_CELLS_PER_LINE, (width - 14) // 16 * 16)
    strip = strip_of(items.rows, items.num_prompt_tokens, _MAX_LINES * num_columns)
    if strip is None:
        return
    styles = _item_styles(items.rows)
    console.print()
    console.print(Text(_caption(strip, items), "bold"), width=width)
    console.print(Text(_legend(strip), "dim"), width=width)
    label_width = len(f"{strip.num_tokens:,}")
    for first in range(0, len(strip.cells), num_columns):
        label = f"{first * strip.tokens_per_cell:>{label_width},}  "
        line = Text().append(label, "dim")
        for cell, group in groupby(strip.cells[first : first + num_columns]):
            line.append(_symbol(cell) * sum(1 for _ in group), _style(cell, styles))
        console.print(line, no_wrap=True, overflow="ignore", crop=False)


def _caption(strip: Strip, items: Items) -> str:
    what = "prompt" if items.num_prompt_tokens is not None else "prompt up to its last item"
    scale = counted(strip.tokens_per_cell, "token")
    runs = "exact runs" if items.has_exact_runs else "one run an item"
    return f"{what}: {counted(strip.num_tokens, 'token')}, {scale} a cell, {runs}"


def _legend(strip: Strip) -> str:
    """What the symbols mean that stand in the strip."""
    symbols = set(map(_symbol, strip.cells))
    meanings = ["letter: that item of the table"] if symbols.intersection(ascii_letters) else []
    meanings += ["digit: so many items"] if symbols.intersection(digits) else []
    meanings += [f"{symbol} {meaning}" for symbol, meaning in _MEANINGS if symbol in symbols]
    return ", ".join(meanings)


def _symbol(cell: Cell) -> str:
    if cell.overlaps:
        return _OVERLAP
    if cell.item is not None:
        return _mark(cell.item)
    if not cell.num_items:
        return _TEXT
    return str(cell.num_items) if cell.num_items < 10 else _MANY


def _style(cell: Cell, item_styles: list[str]) -> str:
    if cell.overlaps:
        return "bold red"
    if cell.item is not None:
        return item_styles[cell.item]
    return "bold" if cell.num_items else "dim"


def _mark(index: int) -> str:
    """The letter of an item; items that are 52 apart share one."""
    return ascii_letters[index % len(ascii_letters)]


def _item_styles(rows: tuple[Item, ...]) -> list[str]:
    """A style per item, the same for all of one modality."""
    numbers = modality_numbers(rows)
    return [_MODALITY_STYLES[number % len(_MODALITY_STYLES)] for number in numbers]
