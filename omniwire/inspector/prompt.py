"""The items of a request and where in the prompt they are, as a table and a strip."""

from collections.abc import Sequence
from itertools import groupby
from string import ascii_letters, digits
from typing import Final

from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from omniwire.inspector.items import Item, Items
from omniwire.inspector.source import Finding
from omniwire.inspector.strip import Cell, Strip, strip_of
from omniwire.inspector.text import counted, shown_name

_MAX_ROWS: Final = 100
_NUM_FIRST_ROWS: Final = 60
_NUM_LAST_ROWS: Final = 20
_MAX_FAULTY_ROWS: Final = 20

_MAX_LINES: Final = 12
_MAX_CELLS_PER_LINE: Final = 64

_NUM_HASHdigits: Final = 8

_TEXT: Final = "."
_MANY: Final = "+"
_OVERLAP: Final = "!"
_MEANINGS: Final = (
    (_TEXT, "text"),
    (_MANY, "ten items or more"),
    (_OVERLAP, "tokens that two items claim"),
)
_MODALITY_STYLES: Final = ("cyan", "yellow", "green", "blue", "magenta")

_PER_ITEM: Final = frozenset(("multimodal_positions", "multimodal_embedding"))
"""Fields after which a problem's path has the index of the item at fault."""

_MARK: Final = 0
_ITEM: Final = 2
_COLUMNS: Final[tuple[tuple[str, JustifyMethod], ...]] = (
    ("", "left"),
    ("\n#", "right"),
    ("\nitem", "left"),
    ("prompt\nposition", "right"),
    ("prompt\ntokens", "right"),
    ("\nruns", "right"),
    ("encoder\ntokens", "right"),
    ("embedding\nrows", "right"),
    ("\nhash", "left"),
    ("\nuuid", "left"),
)


def items_table(items: Items, findings: Sequence[Finding]) -> Table:
    """A row for each item in prompt order; of many, the first, the last and those at fault.

    Args:
        items: The items.
        findings: What is wrong; items at fault are red.
    """
    styles = _item_styles(items.rows)
    faulty = _faulty_items(findings)
    cells = {item.index: _cells(item) for item in _shown_items(items.rows, faulty)}
    # A column without anything in it is left out.
    columns = [index for index in range(len(_COLUMNS)) if any(row[index] for row in cells.values())]
    gap_column = _ITEM if _ITEM in columns else 1
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in columns:
        title, justify = _COLUMNS[column]
        table.add_column(title, justify=justify, overflow="fold")
    past = 0
    for index, row in cells.items():
        if index > past:
            gap = Text(f"... {index - past:,} more", "dim")
            table.add_row(*(gap if column == gap_column else "" for column in columns))
        style = "red" if index in faulty else styles[index]
        for_item = {_MARK: style, _ITEM: style}
        table.add_row(*(Text(row[column], for_item.get(column, "")) for column in columns))
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


def _shown_items(rows: tuple[Item, ...], faulty: set[int]) -> list[Item]:
    if len(rows) <= _MAX_ROWS:
        return list(rows)
    chosen = {*range(_NUM_FIRST_ROWS), *range(len(rows) - _NUM_LAST_ROWS, len(rows))}
    chosen.update(sorted(faulty.intersection(range(len(rows))) - chosen)[:_MAX_FAULTY_ROWS])
    return [rows[index] for index in sorted(chosen)]


def _cells(item: Item) -> tuple[str, ...]:
    """The text of each column; empty where nothing is known."""
    known = item.prompt_position is not None
    return (
        _mark(item.index) if known else "",
        str(item.index),
        "" if item.ref is None else f"{item.ref.modality} {item.ref.index}",
        _number(item.prompt_position),
        _number(item.num_prompt_tokens),
        _number(len(item.runs)) if known else "",
        _number(item.num_encoder_tokens),
        _number(item.num_embedding_rows),
        "" if item.hexdigest is None else item.hexdigest[:_NUM_HASHdigits],
        "" if item.uuid is None else shown_name(item.uuid),
    )


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _item_styles(rows: tuple[Item, ...]) -> list[str]:
    """A style per item, the same for all of one modality."""
    by_modality: dict[str, str] = {}
    styles = []
    for item in rows:
        modality = "" if item.ref is None else item.ref.modality
        style = _MODALITY_STYLES[len(by_modality) % len(_MODALITY_STYLES)]
        styles.append(by_modality.setdefault(modality, style))
    return styles


def _faulty_items(findings: Sequence[Finding]) -> set[int]:
    """The prompt-global indices of the items that a problem is about."""
    paths = [finding.problem.path for finding in findings if finding.problem is not None]
    return {
        path[-1]
        for path in paths
        if len(path) > 1 and path[-2] in _PER_ITEM and isinstance(path[-1], int)
    }
