"""`MultimodalRuntimeData`: which embedding rows one prefill chunk needs."""

import itertools
from collections.abc import Sequence
from typing import Any, Final

import attrs
import numpy as np
import torch

from omniwire.contracts.base import Contract
from omniwire.contracts.checks import (
    INT32_MAX,
    MAX_PROBLEMS,
    check_int,
    check_ints,
    each,
    raise_problems,
)
from omniwire.contracts.describe import describe
from omniwire.contracts.errors import Problem, contract_error
from omniwire.contracts.inputs import MultimodalInput
from omniwire.contracts.tensors import int_tensor_problem

_SUBJECT: Final = "MultimodalRuntimeData"

IntSequence = Sequence[int] | Sequence[bool] | np.ndarray | torch.Tensor


@attrs.frozen(eq=False, repr=False)
class MultimodalRuntimeData(Contract):
    """What one forward or prefill chunk needs of a request's embeddings. Host ints; hashable.

    Attributes:
        past_seen_token_num: Prompt tokens before the chunk, >= 0: where the chunk starts.
        chunk_end_pos: Prompt position after the chunk's last token.
        num_cached_mm_tokens: Embedding rows of the prompt before the chunk.
        num_mm_tokens_in_chunk: Embedding rows inside the chunk.
        total_embeds_in_request: Embedding rows of the whole prompt.

    Raises:
        ContractTypeError: A field is not an int.
        ContractValueError: A field is negative, the chunk ends before it starts, or it has
            more rows than tokens or than the request has left.
    """

    past_seen_token_num: int
    chunk_end_pos: int
    num_cached_mm_tokens: int
    num_mm_tokens_in_chunk: int
    total_embeds_in_request: int

    def __attrs_post_init__(self) -> None:
        problems: list[Problem] = []
        sound = [
            check_int(problems, (field.name,), getattr(self, field.name), 0, INT32_MAX)
            for field in attrs.fields(MultimodalRuntimeData)
        ]
        if all(sound):
            past, end = self.past_seen_token_num, self.chunk_end_pos
            cached, in_chunk = self.num_cached_mm_tokens, self.num_mm_tokens_in_chunk
            _at_most(problems, "num_cached_mm_tokens", cached, past, "the tokens before the chunk")
            if end < past:
                _at_least(problems, "chunk_end_pos", end, past, "the chunk's start")
            else:
                size = end - past
                _at_most(problems, "num_mm_tokens_in_chunk", in_chunk, size, "the chunk's tokens")
            _at_least(
                problems,
                "total_embeds_in_request",
                self.total_embeds_in_request,
                cached + in_chunk,
                "the rows up to the chunk's end",
            )
        raise_problems(_SUBJECT, problems)

    @property
    def row_range(self) -> tuple[int, int]:
        """The half-open range of the request's embedding rows that the chunk needs."""
        start = self.num_cached_mm_tokens
        return start, start + self.num_mm_tokens_in_chunk

    @classmethod
    def for_chunk(
        cls,
        *,
        past_seen_token_num: int,
        chunk_end_pos: int,
        embed_mask: IntSequence | None = None,
        embed_mask_cumsum: IntSequence | None = None,
        multimodal_input: MultimodalInput | None = None,
        special_token_offsets: Sequence[Sequence[int]] = (),
    ) -> "MultimodalRuntimeData":
        """Derive the record for the chunk `[past_seen_token_num, chunk_end_pos)`.

        Exactly one of `embed_mask`, `embed_mask_cumsum` and `multimodal_input` is given.

        Args:
            past_seen_token_num: Prompt tokens before the chunk.
            chunk_end_pos: Prompt position after the chunk; at most the mask's length.
            embed_mask: Per prompt token, whether it takes an embedding row: bools or 0/1 ints
                in host memory.
            embed_mask_cumsum: The mask's inclusive running count, in host memory.
            multimodal_input: Items in prompt order; their runs (or, without runs, their
                spans) give the prompt tokens of each item.
            special_token_offsets: With `multimodal_input`, per item the offsets, among the
                item's own tokens, of framing tokens, which take no row; `()` for none at all.

        Raises:
            ContractTypeError: An argument has the wrong type.
            ContractValueError: An argument is out of range, not in host memory, or the items
                are not in prompt order.

        >>> MultimodalRuntimeData.for_chunk(
        ...     past_seen_token_num=2, chunk_end_pos=7, embed_mask=[0, 1, 1, 0, 0, 1, 1, 1]
        ... ).row_range
        (1, 4)
        """
        sources = {
            "embed_mask": embed_mask,
            "embed_mask_cumsum": embed_mask_cumsum,
            "multimodal_input": multimodal_input,
        }
        given = [name for name, source in sources.items() if source is not None]
        problems: list[Problem] = []
        if len(given) != 1:
            expected = f"exactly one of {', '.join(sources)}"
            problems.append(Problem((), "conflict", expected, " and ".join(given) or "none"))
        if not isinstance(special_token_offsets, Sequence):
            expected = "a sequence of offsets per item"
            got = describe(special_token_offsets)
            problems.append(Problem(("special_token_offsets",), "type", expected, got))
        elif len(special_token_offsets) and multimodal_input is None:
            expected = "no offsets without multimodal_input"
            got = describe(special_token_offsets)
            problems.append(Problem(("special_token_offsets",), "conflict", expected, got))
        if check_int(problems, ("past_seen_token_num",), past_seen_token_num, 0, INT32_MAX):
            low = past_seen_token_num
            check_int(problems, ("chunk_end_pos",), chunk_end_pos, low, INT32_MAX)
        raise_problems(_SUBJECT, problems)
        if multimodal_input is not None:
            counter = _rows_of_items(multimodal_input, special_token_offsets)
            cached, through = counter.before(past_seen_token_num), counter.before(chunk_end_pos)
            total = counter.total
        else:
            counts = _running_count(embed_mask, embed_mask_cumsum)
            if chunk_end_pos > len(counts):
                expected = f"a position within the {len(counts)} prompt tokens"
                problem = Problem(("chunk_end_pos",), "range", expected, str(chunk_end_pos))
                raise contract_error(_SUBJECT, [problem])
            cached, through = (
                int(counts[end - 1]) if end else 0 for end in (past_seen_token_num, chunk_end_pos)
            )
            total = int(counts[-1]) if len(counts) else 0
        return cls(past_seen_token_num, chunk_end_pos, cached, through - cached, total)


def _at_least(problems: list[Problem], name: str, value: int, low: int, what: str) -> None:
    if value < low:
        problems.append(Problem((name,), "range", f"at least {low} ({what})", str(value)))


def _at_most(problems: list[Problem], name: str, value: int, high: int, what: str) -> None:
    if value > high:
        problems.append(Problem((name,), "range", f"at most {high} ({what})", str(value)))


def _running_count(mask: IntSequence | None, cumsum: IntSequence | None) -> np.ndarray:
    """The inclusive running count of embedding rows, checked."""
    name = "embed_mask" if cumsum is None else "embed_mask_cumsum"
    values = _host_ints(name, mask if cumsum is None else cumsum, allow_bool=cumsum is None)
    steps = values if cumsum is None else np.diff(values, prepend=0)
    wrong = np.flatnonzero((steps != 0) & (steps != 1))
    if wrong.size:
        expected = "0 or 1" if cumsum is None else "a count that grows by 0 or 1 a token"
        problems = [
            Problem((name, int(i)), "range", expected, str(values[i])) for i in wrong[:MAX_PROBLEMS]
        ]
        raise contract_error(_SUBJECT, problems)
    return np.cumsum(values) if cumsum is None else values


def _host_ints(name: str, values: object, *, allow_bool: bool) -> np.ndarray:
    """A 1-D int64 array of a sequence, array or tensor of ints."""
    kinds = "biu" if allow_bool else "iu"
    if isinstance(values, torch.Tensor):
        unreadable = int_tensor_problem((name,), values, or_bool=allow_bool)
        if unreadable is not None:
            raise contract_error(_SUBJECT, [unreadable])
        given = values.numpy()
    elif isinstance(values, np.ndarray):
        given = values
    elif isinstance(values, Sequence) and not isinstance(values, str | bytes | bytearray):
        legal = (int, bool) if allow_bool else (int,)
        if not set(map(type, values)) <= set(legal):
            problems: list[Problem] = []
            for index, value in each(values, problems):
                if type(value) not in legal:
                    problems.append(Problem((name, index), "type", "an int", describe(value)))
            raise contract_error(_SUBJECT, problems)
        problems = []
        check_ints(problems, (name,), tuple(map(int, values)), -INT32_MAX, INT32_MAX)
        raise_problems(_SUBJECT, problems)
        given = np.array(values, dtype=np.int64)
    else:
        problem = Problem((name,), "type", "a sequence of ints", describe(values))
        raise contract_error(_SUBJECT, [problem])
    if given.ndim != 1 or given.dtype.kind not in kinds:
        code = "shape" if given.ndim != 1 else "type"
        problem = Problem((name,), code, "a 1-D sequence of ints", describe(values))
        raise contract_error(_SUBJECT, [problem])
    return given.astype(np.int64)


class _RowCounter:
    """Counts embedding rows before a prompt position, from runs in prompt order."""

    def __init__(self, starts: list[int], lengths: list[int], framing: list[int]) -> None:
        self._starts = np.array(starts, dtype=np.int64)
        self._ends = self._starts + np.array(lengths, dtype=np.int64)
        self._framing = np.array(framing, dtype=np.int64)
        self.total = sum(lengths) - len(framing)

    def before(self, position: int) -> int:
        """Rows of tokens at positions below `position`."""
        tokens = int((np.minimum(self._ends, position) - np.minimum(self._starts, position)).sum())
        return tokens - int((self._framing < position).sum())


def _rows_of_items(record: object, special_token_offsets: Sequence[Sequence[int]]) -> _RowCounter:
    if type(record) is not MultimodalInput:
        problem = Problem(("multimodal_input",), "type", "a MultimodalInput", describe(record))
        raise contract_error(_SUBJECT, [problem])
    num_items = len(record.multimodal_hashes)
    problems: list[Problem] = []
    if len(special_token_offsets) not in (0, num_items):
        expected = f"offsets for {num_items} items"
        got = str(len(special_token_offsets))
        problems.append(Problem(("special_token_offsets",), "count", expected, got))
        raise_problems(_SUBJECT, problems)
    starts: list[int] = []
    lengths: list[int] = []
    framing: list[int] = []
    end = 0
    for item, runs in enumerate(item_runs(record)):
        for start, length in runs:
            if start < end:
                path = ("multimodal_input", "multimodal_positions", item)
                problems.append(Problem(path, "order", f"a run at or after {end}", str(start)))
            end = start + length
            starts.append(start)
            lengths.append(length)
        if special_token_offsets:
            framing += _framing_positions(item, runs, special_token_offsets[item], problems)
    raise_problems(_SUBJECT, problems)
    return _RowCounter(starts, lengths, framing)


def item_runs(record: MultimodalInput) -> list[list[tuple[int, int]]]:
    """Per item, its runs as (prompt position, prompt tokens); without runs, its span."""
    offsets = record.multimodal_item_run_cu_offsets
    if offsets is None:
        spans = zip(record.multimodal_positions, record.multimodal_lengths, strict=True)
        return [[span] if span[1] else [] for span in spans]
    assert record.multimodal_run_positions is not None
    assert record.multimodal_run_lengths is not None
    pairs = list(zip(record.multimodal_run_positions, record.multimodal_run_lengths, strict=True))
    return [pairs[first:past] for first, past in itertools.pairwise(offsets)]


def _framing_positions(
    item: int, runs: list[tuple[int, int]], offsets: object, problems: list[Problem]
) -> list[int]:
    """The prompt positions of an item's framing tokens, from their offsets in the item."""
    path = ("special_token_offsets", item)
    chosen: Any = tuple(offsets) if isinstance(offsets, Sequence) else offsets
    num_tokens = sum(length for _, length in runs)
    if not check_ints(problems, path, chosen, 0, num_tokens - 1):
        return []
    positions = []
    previous = -1
    for index, offset in enumerate(chosen):
        if offset <= previous:
            expected = f"an offset above {previous}"
            problems.append(Problem((*path, index), "order", expected, str(offset)))
            return []
        previous = offset
        remaining = offset
        for start, length in runs:
            if remaining < length:
                positions.append(start + remaining)
                break
            remaining -= length
    return positions
