"""An inspection as text: sizes, the tree of fields, the items, the prompt, the problems."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from omniwire.inspector.fields import summary
from omniwire.inspector.items import items_of
from omniwire.inspector.prompt import items_table, print_strip
from omniwire.inspector.sizes import figures, size_rows
from omniwire.inspector.source import Finding, Inspection, shown_path
from omniwire.inspector.text import counted
from omniwire.inspector.tree import Faults, Node, tree_of
from omniwire.serialization.layout import LocatedMessage

_MIN_WIDTH: Final = 40
_MAX_WIDTH: Final = 120
_MIN_SUMMARY_WIDTH: Final = 16
_MAX_FINDINGS: Final = 50

_GUIDES: Final = ("│ ", "├ ", "└ ")
_ASCII_GUIDES: Final = ("| ", "|-", "`-")


def make_console() -> Console:
    """A console that prints text as it is: nothing from a file is markup."""
    return Console(markup=False, highlight=False, emoji=False)


def print_inspection(console: Console, inspection: Inspection) -> None:
    """Print all that there is to see, as wide as the console but at most `_MAX_WIDTH` columns.

    Args:
        console: Where to; without a terminal behind it, no control codes are written.
        inspection: What to print.
    """
    width = max(_MIN_WIDTH, min(console.width, _MAX_WIDTH))
    findings, message = inspection.findings, inspection.message
    console.print(_heading(inspection), soft_wrap=True)
    console.print(_sizes_table(message), width=width)
    console.print()
    _print_fields(console, message, findings, width)
    items = items_of(message.obj)
    if items is not None:
        console.print()
        console.print(items_table(items, findings), width=width)
        print_strip(console, items, width)
    print_findings(console, findings)


def print_findings(console: Console, findings: Sequence[Finding]) -> None:
    """Print what is wrong, in red; nothing if nothing is."""
    if not findings:
        return
    console.print()
    console.print(Text(counted(len(findings), "problem"), "bold red"))
    for finding in findings[:_MAX_FINDINGS]:
        console.print(Text(finding.text, "red"), soft_wrap=True)
    if len(findings) > _MAX_FINDINGS:
        num_more = len(findings) - _MAX_FINDINGS
        console.print(Text(f"and {num_more:,} more, all of which omniwire check prints", "red"))


def _heading(inspection: Inspection) -> Text:
    message, findings = inspection.message, inspection.findings
    text = Text().append(shown_path(inspection.path), "bold")
    text.append(f": {type(message.obj).__name__}, wire format version {message.version}")
    if findings:
        return text.append(f", {counted(len(findings), 'problem')}", "red")
    return text.append(", valid", "green")


def _sizes_table(message: LocatedMessage) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    for row in size_rows(message):
        table.add_row(*row)
    return table


class _Row(NamedTuple):
    """A node, before it is known how much fits on a line."""

    lead: str  # guides before the name
    hang: str  # guides before what does not fit beside the name
    name: Text
    summary: str
    figures: tuple[str, str, str]  # bytes, placement, offset


def _print_fields(
    console: Console, message: LocatedMessage, findings: Sequence[Finding], width: int
) -> None:
    """Print the tree of fields, and beside it what takes bytes and where those are."""
    guides = _ASCII_GUIDES if console.options.ascii_only else _GUIDES
    rows = [_Row("", "", Text("field", "bold"), "", ("bytes", "where", "at"))]
    rows += _Rows(message, Faults(findings), guides).of(tree_of(message.obj))
    widths = [max(len(row.figures[column]) for row in rows) for column in range(3)]
    tree_width = width - sum(widths) - 2 * len(widths)
    for row in rows:
        size, where, offset = row.figures
        lines = _tree_lines(console, row, tree_width if size else width)
        if size:
            beside = lines[0] if lines[0].cell_len <= tree_width else lines[-1]
            beside.pad_right(max(0, tree_width - beside.cell_len))
            figures = f"  {size:>{widths[0]}}  {where:<{widths[1]}}  {offset:>{widths[2]}}"
            beside.append(figures, "bold" if row is rows[0] else "")
        for line in lines:
            line.rstrip()
            console.print(line, soft_wrap=True)


class _Rows:
    """Turns the nodes of a tree into lines.

    Args:
        message: What the tree is of.
        faults: Where problems are.
        guides: What leads past a later part, to a part, and to the last part.
    """

    def __init__(self, message: LocatedMessage, faults: Faults, guides: tuple[str, ...]) -> None:
        self._message = message
        self._faults = faults
        self._past, self._to_part, self._to_last = guides

    def of(self, node: Node, lead: str = "", below: str = "") -> Iterator[_Row]:
        """The lines of a node and of what is under it.

        Args:
            node: The node.
            lead: The guides before its name.
            below: The guides before everything under it.
        """
        has_parts = bool(node.nodes) or node.num_more > 0
        name = Text(node.name, "red" if self._faults.at(node) else "")
        hang = below + (self._past if has_parts else "  ")
        yield _Row(lead, hang, name, summary(node.value), figures(self._message, node.value))
        for part in node.nodes:
            is_last = part is node.nodes[-1] and not node.num_more
            guide = self._to_last if is_last else self._to_part
            yield from self.of(part, below + guide, below + ("  " if is_last else self._past))
        if node.num_more:
            name = Text(f"... {node.num_more:,} more", "dim")
            yield _Row(below + self._to_last, below, name, "", ("", "", ""))


def _tree_lines(console: Console, row: _Row, width: int) -> list[Text]:
    """Guides, name and summary; on further lines what does not fit on the first."""
    first = Text().append(row.lead, "dim").append_text(row.name)
    gap = "  " if row.name and row.summary else ""
    if first.cell_len + len(gap) + cell_len(row.summary) <= width:
        return [first.append(gap + row.summary, "cyan" if row.name else "bold")]
    room = max(_MIN_SUMMARY_WIDTH, width - len(row.hang) - 2)
    rest = Text(row.summary, "cyan").wrap(console, room, overflow="fold")
    return [first, *(Text().append(f"{row.hang}  ", "dim").append_text(line) for line in rest)]
