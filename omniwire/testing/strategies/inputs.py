"""Where the items stand in the prompt, and which rows a chunk needs."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from omniwire.contracts import MultimodalInput, MultimodalRuntimeData

ItemRuns = list[tuple[int, int]]
"""An item's runs as (prompt position, prompt tokens), in order; at least one."""

_INT32_MAX: Final = 2**31 - 1
_HASHES: Final = st.lists(st.integers(-(2**31), _INT32_MAX), min_size=8, max_size=8).map(tuple)
_RUN_LENGTHS: Final = st.just([0]) | st.lists(st.integers(1, 4), min_size=1, max_size=3)
_GAPS: Final = st.integers(0, 2)
_UUIDS: Final = st.none() | st.text(min_size=1, max_size=8)
_MAX_SPAN: Final = 64  # above what one item of `_layouts` can span


@st.composite
def multimodal_inputs(
    draw: DrawFn, *, min_items: int = 0, max_items: int = 4, in_prompt_order: bool = False
) -> MultimodalInput:
    """Input records, with and without exact runs and uuids; prompt positions up to int32.

    Args:
        draw: Supplied by Hypothesis.
        min_items: Fewest items.
        max_items: Most items.
        in_prompt_order: Leave out records with items out of order, which only a selected
            view may be, and positions beyond a small prompt.
    """
    layouts = draw(_layouts(min_items, max_items))
    if not in_prompt_order:
        layouts = draw(st.permutations(layouts))
        last = _INT32_MAX - _MAX_SPAN * max_items
        first = draw(st.just(0) | st.integers(0, last))
        layouts = [[(first + start, length) for start, length in runs] for runs in layouts]
    has_runs = draw(st.booleans())
    return MultimodalInput(**draw(_input_fields(layouts, has_runs=has_runs)))


@st.composite
def runtime_data(draw: DrawFn) -> MultimodalRuntimeData:
    """Chunk records: any that a prompt could give.

    >>> from hypothesis import find
    >>> find(runtime_data(), lambda data: data.num_mm_tokens_in_chunk > 1).row_range
    (0, 2)
    """
    large = draw(st.sampled_from([20, _INT32_MAX // 4]))
    past = draw(st.integers(0, large))
    num_tokens = draw(st.integers(0, large))
    cached = draw(st.integers(0, past))
    in_chunk = draw(st.integers(0, num_tokens))
    later = draw(st.integers(0, large))
    total = cached + in_chunk + later
    return MultimodalRuntimeData(past, past + num_tokens, cached, in_chunk, total)


def hash_words() -> SearchStrategy[tuple[int, ...]]:
    """One content hash: 8 signed int32 words."""
    return _HASHES


def num_prompt_tokens(record: MultimodalInput) -> int:
    """The length of the shortest prompt that holds the record's items."""
    if record.multimodal_run_positions is not None and record.multimodal_run_lengths is not None:
        runs = zip(record.multimodal_run_positions, record.multimodal_run_lengths, strict=True)
    else:
        runs = zip(record.multimodal_positions, record.multimodal_lengths, strict=True)
    starts = record.multimodal_positions
    return max((*starts, *(start + length for start, length in runs)), default=0)


@st.composite
def _layouts(draw: DrawFn, min_items: int, max_items: int) -> list[ItemRuns]:
    """The runs of items in prompt order; adjacent runs occur, and single runs of no token."""
    end = 0
    layouts = []
    for _ in range(draw(st.integers(min_items, max_items))):
        runs: ItemRuns = []
        for length in draw(_RUN_LENGTHS):
            start = end + draw(_GAPS)
            runs.append((start, length))
            end = start + length
        layouts.append(runs)
    return layouts


@st.composite
def _input_fields(draw: DrawFn, layouts: Sequence[ItemRuns], *, has_runs: bool) -> dict[str, Any]:
    """The fields of a record; without runs each item is one run from its start to its end."""
    num_items = len(layouts)
    fields: dict[str, Any] = {
        "multimodal_hashes": draw(st.lists(hash_words(), min_size=num_items, max_size=num_items)),
        "multimodal_positions": [runs[0][0] for runs in layouts],
        "multimodal_uuids": draw(
            st.none() | st.lists(_UUIDS, min_size=num_items, max_size=num_items)
        ),
    }
    if not has_runs:
        fields["multimodal_lengths"] = [sum(runs[-1]) - runs[0][0] for runs in layouts]
        return fields
    exact = [[run for run in runs if run[1]] for runs in layouts]
    fields["multimodal_lengths"] = [sum(length for _, length in runs) for runs in exact]
    fields["multimodal_item_run_cu_offsets"] = [0, *accumulate(map(len, exact))]
    fields["multimodal_run_positions"] = [start for runs in exact for start, _ in runs]
    fields["multimodal_run_lengths"] = [length for runs in exact for _, length in runs]
    return fields
