"""The prompt in a few lines, and where on them each run of each item is drawn."""

from collections.abc import Iterator
from typing import Final, NamedTuple

import attrs
import numpy as np

from omniwire.inspector.item_table import item_name, modality_numbers
from omniwire.inspector.items import Items
from omniwire.inspector.strip import shared_ranges

LINE_WIDTH: Final = 1000
"""Of a whole line, in the units that everything is drawn in."""

_MAX_LINES: Final = 16
_MIN_TOKENS: Final = 256  # of a prompt that takes more than one line
_MAX_PIECES: Final = 10_000
_DIGIT_WIDTH: Final = 7.5
_LABEL_PADDING: Final = 6


class Place(NamedTuple):
    """A part of a line: its number, and where on it, in units."""

    line: int
    x: float
    width: float


class Piece(NamedTuple):
    """What is drawn of a run on one line.

    Attributes:
        place: Where.
        modality: The number of its modality.
        label: The item, as much of its name as there is room for.
    """

    place: Place
    modality: int
    label: str


class Run(NamedTuple):
    """The prompt tokens `[start, end)` of an item; its `number`-th run, from 0."""

    start: int
    end: int
    item: int
    number: int


@attrs.frozen(eq=False)
class Lines:
    """A prompt, drawn.

    Attributes:
        num_tokens: Prompt tokens that are drawn.
        tokens_per_line: Prompt tokens on each line but the last.
        starts: The prompt position at which each line starts.
        pieces: The runs.
        clashes: Where several items claim a token.
        num_clashing: How many tokens that are.
        runs: The runs that are drawn, by their start.
        num_runs_left_out: How many are not drawn.
    """

    num_tokens: int
    tokens_per_line: int
    starts: tuple[int, ...]
    pieces: tuple[Piece, ...]
    clashes: tuple[Place, ...]
    num_clashing: int
    runs: tuple[Run, ...]
    num_runs_left_out: int

    def length_of(self, line: int) -> float:
        """How long a line is, in units: the last one may be shorter."""
        tokens = min(self.tokens_per_line, self.num_tokens - self.starts[line])
        return tokens / self.tokens_per_line * LINE_WIDTH


def lines_of(items: Items) -> Lines | None:
    """Draw a prompt.

    Returns:
        None if it is not known where the items are, or if the prompt is empty.
    """
    if not items.has_positions:
        return None
    every = [
        Run(start, start + length, item.index, number)
        for item in items.rows
        for number, (start, length) in enumerate(item.runs)
    ]
    num_tokens = items.num_prompt_tokens
    if num_tokens is None:
        num_tokens = max((run.end for run in every), default=0)
    if not num_tokens:
        return None
    # What reaches past the prompt's end is a problem, and told of there.
    inside = [run._replace(end=min(run.end, num_tokens)) for run in every if run.start < num_tokens]
    inside.sort()
    tokens_per_line = _tokens_per_line(num_tokens)
    runs, pieces = _draw(inside, items, tokens_per_line)
    starts = np.array([run.start for run in runs], np.int64)
    ends = np.array([run.end for run in runs], np.int64)
    clashes = list(_joined(shared_ranges(starts, ends)))
    return Lines(
        num_tokens=num_tokens,
        tokens_per_line=tokens_per_line,
        starts=tuple(range(0, num_tokens, tokens_per_line)),
        pieces=tuple(pieces),
        clashes=tuple(
            place for start, end in clashes for place in _places(start, end, tokens_per_line)
        ),
        num_clashing=sum(end - start for start, end in clashes),
        runs=tuple(runs),
        num_runs_left_out=len(inside) - len(runs),
    )


def _joined(ranges: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Ranges that are ordered by their starts, those that touch as one."""
    current: tuple[int, int] | None = None
    for start, end in ranges:
        if current is None:
            current = start, end
        elif start <= current[1]:
            current = current[0], max(current[1], end)
        else:
            yield current
            current = start, end
    if current is not None:
        yield current


def _tokens_per_line(num_tokens: int) -> int:
    """All, if they are few; else a round number that makes no more than `_MAX_LINES` lines."""
    if num_tokens <= _MIN_TOKENS:
        return num_tokens
    least = max(_MIN_TOKENS, -(-num_tokens // _MAX_LINES))
    step = max(1, 1 << (least.bit_length() - 3))
    return -(-least // step) * step


def _draw(inside: list[Run], items: Items, tokens_per_line: int) -> tuple[list[Run], list[Piece]]:
    """The runs on their lines, as many as the page has room for.

    Of runs too narrow to be told apart, only the first is drawn.

    Returns:
        The runs that are there, and their pieces.
    """
    modalities = modality_numbers(items.rows)
    runs: list[Run] = []
    pieces: list[Piece] = []
    drawn: set[tuple[int, int]] = set()
    for run in inside:
        if max(len(runs), len(pieces)) >= _MAX_PIECES:
            break
        runs.append(run)
        for place in _places(run.start, run.end, tokens_per_line):
            if place.width < 1:
                unit = (place.line, int(place.x))
                if unit in drawn:
                    continue
                drawn.add(unit)
            label = _label(run, item_name(items.rows[run.item]), place.width)
            pieces.append(Piece(place, modalities[run.item], label))
    return runs, pieces


def _label(run: Run, name: str, width: float) -> str:
    """What is written on a piece: the item's number and name, the number, or nothing."""
    room = (width - _LABEL_PADDING) / _DIGIT_WIDTH
    labels = [f"{run.item}: {name}"] * bool(name) + [str(run.item)]
    return next((label for label in labels if len(label) <= room), "")


def _places(start: int, end: int, tokens_per_line: int) -> Iterator[Place]:
    """The places of the tokens `[start, end)`."""
    scale = LINE_WIDTH / tokens_per_line
    while start < end:
        line, offset = divmod(start, tokens_per_line)
        past = min(end, (line + 1) * tokens_per_line)
        yield Place(line, offset * scale, (past - start) * scale)
        start = past
