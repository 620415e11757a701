"""An inspection as an HTML page."""

import base64
import functools
import hashlib
from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

import jinja2

from omniwire.contracts.errors import Path, format_path
from omniwire.inspector.fields import summary
from omniwire.inspector.item_table import item_name, modality_numbers
from omniwire.inspector.items import Items, items_of
from omniwire.inspector.page.bars import BAR_WIDTH, partitions_of
from omniwire.inspector.page.chunks import Chunking, chunking_of
from omniwire.inspector.page.lines import LINE_WIDTH, Lines, lines_of
from omniwire.inspector.page.media import drawings_of
from omniwire.inspector.page.rows import field_rows, item_table, problem_rows
from omniwire.inspector.page.sounds import TRACK_HEIGHT, TRACK_WIDTH
from omniwire.inspector.sizes import size_rows
from omniwire.inspector.source import Finding, Inspection, shown_path
from omniwire.inspector.text import counted, shorten
from omniwire.inspector.tree import tree_of

_MAX_PATH: Final = 200
_MAX_LEGEND: Final = 12


def render_page(inspection: Inspection) -> str:
    """Show what is in a file.

    Reads those tensors that look like images or sounds; the file must not be shortened
    meanwhile.

    Args:
        inspection: What to show.

    Returns:
        A whole HTML page. It loads nothing, and the same file gives the same page.
    """
    message, findings = inspection.message, inspection.findings
    obj = message.obj
    fields = field_rows(message, tree_of(obj), findings)
    items = items_of(obj)
    table = None if items is None else item_table(items, findings)
    lines = None if items is None else lines_of(items)
    chunking = None
    if items is not None and lines is not None:
        chunking = chunking_of(obj, items, lines.num_tokens)
    legend = {} if items is None else _legend(items)
    partitions, num_bars_left_out = partitions_of(obj)
    drawings, num_drawings_left_out = drawings_of(obj)
    return _fill(
        name=shown_path(inspection.path),
        kind=type(obj).__name__,
        version=message.version,
        sizes=size_rows(message),
        num_problems=len(findings),
        problems=problem_rows(findings, fields, table),
        faulty={finding.problem.path for finding in findings if finding.problem is not None},
        items=items,
        legend=dict(islice(legend.items(), _MAX_LEGEND)),
        num_modalities=len(legend),
        item_table=table,
        lines=lines,
        chunking=chunking,
        strip_data=None if items is None or lines is None else _strip_data(items, lines, chunking),
        partitions=partitions,
        num_bars_left_out=num_bars_left_out,
        drawings=drawings,
        num_drawings_left_out=num_drawings_left_out,
        fields=fields,
    )


def render_refusal(path: str, findings: Sequence[Finding]) -> str:
    """Show why a file is no valid message.

    Args:
        path: The file, as it was named.
        findings: What is wrong with it.

    Returns:
        A whole HTML page, as `render_page` does.
    """
    return _fill(
        name=shown_path(path),
        kind="",
        num_problems=len(findings),
        problems=problem_rows(findings, (), None),
    )


def _legend(items: Items) -> dict[str, int]:
    """The modalities of the items, each with its number."""
    numbers = modality_numbers(items.rows)
    names = ["items" if item.ref is None else item.ref.modality for item in items.rows]
    return dict(zip(names, numbers, strict=True))


def _strip_data(items: Items, lines: Lines, chunking: Chunking | None) -> object:
    """What `page.js` needs to tell what is at a position of the prompt."""
    return {
        "tokens": lines.num_tokens,
        "tokensPerLine": lines.tokens_per_line,
        "runs": lines.runs,
        "items": {
            run.item: [item_name(items.rows[run.item]), len(items.rows[run.item].runs)]
            for run in lines.runs
        },
        "rows": None if chunking is None else chunking.num_rows,
        "exact": chunking is not None and chunking.has_exact_rows,
        "chunks": [] if chunking is None else [one.row_ranges for one in chunking.by_size],
    }


def _fill(**values: Any) -> str:
    return _environment().get_template("page.html").render(values)


@functools.cache
def _environment() -> jinja2.Environment:
    """The template and what it may use; whatever it prints is escaped."""
    loader = jinja2.PackageLoader("omniwire.inspector.page", "templates")
    environment = jinja2.Environment(
        loader=loader,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in ("css", "js"):
        source, _, _ = loader.get_source(environment, f"page.{name}")
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        environment.globals |= {name: source, f"{name}_hash": digest}
    environment.filters["number"] = _number
    environment.filters["path"] = _shown
    environment.filters["summary"] = summary
    environment.filters["units"] = _units
    environment.globals |= {
        "counted": counted,
        "line_width": LINE_WIDTH,
        "bar_width": BAR_WIDTH,
        "track_width": TRACK_WIDTH,
        "track_height": TRACK_HEIGHT,
    }
    return environment


def _number(value: int) -> str:
    return f"{value:,}"


def _shown(path: Path) -> str:
    return shorten(format_path(path), _MAX_PATH)


def _units(value: float) -> str:
    return f"{value:.6g}"
