"""Finding the items of a prompt by its placeholders."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
import numpy as np

from omniwire.contracts import Problem, TokenIds
from omniwire.contracts.errors import contract_error

_SUBJECT: Final = "HuggingFaceProcessor"

Positions = np.ndarray[Any, np.dtype[np.int64]]


@attrs.frozen
class Placeholders:
    """Where the items of a prompt are, in prompt order; only placeholders count as theirs.

    Attributes:
        item_order: The items, by modality and local index.
        positions: Prompt position of each item's first placeholder.
        num_prompt_tokens: Placeholders per item, as many as embedding rows.
        run_cu_offsets: Per item, where its runs start among all runs; one more at the end.
        run_positions: Prompt position of each run.
        run_lengths: Placeholders of each run.
    """

    item_order: list[tuple[str, int]]
    positions: list[int]
    num_prompt_tokens: list[int]
    run_cu_offsets: list[int]
    run_positions: list[int]
    run_lengths: list[int]


def find_items(
    prompt_token_ids: TokenIds,
    placeholder_ids: Mapping[str, int],
    rows: Mapping[str, Sequence[int]],
    mm_item_order: Sequence[tuple[str, int]] | None,
) -> Placeholders:
    """Give each item, in local order, the next placeholders of its modality.

    Args:
        prompt_token_ids: The whole prompt.
        placeholder_ids: The placeholder of each modality.
        rows: Embedding rows of each modality's items in local order, all > 0.
        mm_item_order: What the order must be. Items then take placeholders in this order, so
            that modalities may share one.

    Raises:
        ContractValueError: Two modalities share a placeholder and no order is given; the
            prompt has more or fewer placeholders than the items have rows; the prompt has
            another order than the one given.
    """
    tokens = np.frombuffer(prompt_token_ids.tobytes(), dtype="<i4")
    order = mm_item_order
    problems: list[Problem] = []
    sharers: dict[int, list[str]] = {}
    for modality in rows:
        sharers.setdefault(placeholder_ids[modality], []).append(modality)
    if order is None:
        for token_id, modalities in sharers.items():
            if len(modalities) > 1:
                expected = f"the order of {' and '.join(modalities)}, which share a placeholder"
                problems.append(Problem(("mm_item_order",), "missing", expected, str(token_id)))
        order = [(name, index) for name in rows for index in range(len(rows[name]))]
    if problems:
        raise contract_error(_SUBJECT, problems)
    found: dict[tuple[str, int], Positions] = {}
    for token_id, modalities in sharers.items():
        positions = np.flatnonzero(tokens == token_id)
        wanted = [ref for ref in order if ref[0] in modalities]
        counts = [rows[modality][index] for modality, index in wanted]
        if sum(counts) != len(positions):
            expected = f"{sum(counts)} placeholders {token_id}, one per {modalities[0]} row"
            problem = Problem(("prompt_token_ids",), "count", expected, str(len(positions)))
            problems.append(problem)
            continue
        pieces = np.split(positions, np.cumsum(counts)[:-1]) if counts else []
        found |= dict(zip(wanted, pieces, strict=True))
    if problems:
        raise contract_error(_SUBJECT, problems)
    in_prompt = sorted(found, key=lambda ref: int(found[ref][0]))
    if mm_item_order is not None and in_prompt != [tuple(ref) for ref in mm_item_order]:
        at = next(i for i, ref in enumerate(in_prompt) if ref != tuple(mm_item_order[i]))
        expected, got = f"{in_prompt[at]} as in the prompt", f"{tuple(mm_item_order[at])}"
        raise contract_error(_SUBJECT, [Problem(("mm_item_order", at), "conflict", expected, got)])
    return _placeholders(in_prompt, [found[ref] for ref in in_prompt])


def _placeholders(order: list[tuple[str, int]], pieces: list[Positions]) -> Placeholders:
    run_positions: list[int] = []
    run_lengths: list[int] = []
    run_cu_offsets = [0]
    for piece in pieces:
        starts = np.flatnonzero(np.diff(piece, prepend=-2) != 1)
        run_positions += piece[starts].tolist()
        run_lengths += np.diff(starts, append=len(piece)).tolist()
        run_cu_offsets.append(len(run_positions))
    return Placeholders(
        item_order=order,
        positions=[int(piece[0]) for piece in pieces],
        num_prompt_tokens=[len(piece) for piece in pieces],
        run_cu_offsets=run_cu_offsets,
        run_positions=run_positions,
        run_lengths=run_lengths,
    )
