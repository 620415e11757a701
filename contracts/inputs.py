"""`MultimodalInput`: where each item stands in the prompt, and what it is."""

import operator
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, Final

import attrs
import torch

from omniwire.contracts.base import Contract
from omniwire.contracts.checks import (
    INT32_MAX,
    INT32_MIN,
    as_ints,
    as_optional_ints,
    check_count,
    check_indices,
    check_ints,
    check_text,
    each,
    is_encodable,
    raise_problems,
    tupled,
)
from omniwire.contracts.describe import describe
from omniwire.contracts.errors import Path, Problem
from omniwire.contracts.guard import guarded
from omniwire.contracts.tensors import int_tensor_problem

HashWords = tuple[int, ...]
"""One content hash: 8 signed 32-bit words, the digest read as big-endian."""

WORDS_PER_HASH: Final = 8

_SUBJECT: Final = "MultimodalInput"
_HEX_DIGEST: Final = re.compile(r"[0-9a-fA-F]{64}")
_WORDS: Final = struct.Struct(">8i")
_RUN_FIELDS: Final = (
    "multimodal_item_run_cu_offsets",
    "multimodal_run_positions",
    "multimodal_run_lengths",
)
_REQUIRED_FIELDS: Final = ("multimodal_hashes", "multimodal_positions", "multimodal_lengths")


def as_hashes(value: Iterable[Sequence[int]]) -> tuple[HashWords, ...]:
    """A field converter: a list of lists as a tuple of tuples; the validator judges the rest."""
    if type(value) is list or type(value) is tuple:
        return tuple(map(tupled, value)) if list in map(type, value) else tuple(value)
    return value  # type: ignore[return-value]  # judged by the validator


def _as_optional_texts(value: Iterable[str | None] | None) -> tuple[str | None, ...] | None:
    return tupled(value)  # type: ignore[no-any-return]  # judged by the validator


@attrs.frozen(eq=False, repr=False)
class MultimodalInput(Contract):
    """Hashes, prompt positions and exact runs of a request's items, in prompt order.

    All lengths here count **prompt tokens**, framing tokens included. Host metadata only;
    hashable. A selected view may hold items out of prompt order.

    Attributes:
        multimodal_hashes: Per item, 8 signed int32 words.
        multimodal_positions: Per item, the prompt position of its first token, >= 0.
        multimodal_lengths: Per item, its number of prompt tokens, >= 0.
        multimodal_uuids: Per item, a non-empty id or None; or None for all.
        multimodal_item_run_cu_offsets: n+1 offsets into the runs, from 0, non-decreasing: item
            i owns runs `[offsets[i], offsets[i+1])`.
        multimodal_run_positions: Per run, the prompt position of its first token, >= 0.
        multimodal_run_lengths: Per run, its number of prompt tokens, > 0.

    The three run fields are given together or not at all; without them each item is one run
    from its position. An item's runs are ordered and disjoint, start at the item's position
    and add up to its length. Everything fits int32, ends included.

    Raises:
        ContractTypeError: A part has the wrong type.
        ContractValueError: A part breaks a rule above.

    >>> digest = "ffffffff80000000" + "0" * 48
    >>> MultimodalInput.from_hexdigests([digest], [1], [5]).multimodal_hashes[0][:2]
    (-1, -2147483648)
    """

    multimodal_hashes: tuple[HashWords, ...] = attrs.field(converter=as_hashes)
    multimodal_positions: tuple[int, ...] = attrs.field(converter=as_ints)
    multimodal_lengths: tuple[int, ...] = attrs.field(converter=as_ints)
    multimodal_uuids: tuple[str | None, ...] | None = attrs.field(
        default=None, converter=_as_optional_texts
    )
    multimodal_item_run_cu_offsets: tuple[int, ...] | None = attrs.field(
        default=None, converter=as_optional_ints
    )
    multimodal_run_positions: tuple[int, ...] | None = attrs.field(
        default=None, converter=as_optional_ints
    )
    multimodal_run_lengths: tuple[int, ...] | None = attrs.field(
        default=None, converter=as_optional_ints
    )

    def __attrs_post_init__(self) -> None:
        problems: list[Problem] = []
        sound = check_hashes(self.multimodal_hashes, ("multimodal_hashes",), problems)
        count = len(self.multimodal_hashes) if sound else None
        spans_sound = all(
            [
                _check_lengths(self, "multimodal_positions", 0, count, problems),
                _check_lengths(self, "multimodal_lengths", 0, count, problems),
            ]
        )
        if spans_sound:
            positions, lengths = self.multimodal_positions, self.multimodal_lengths
            _check_ends("multimodal_lengths", positions, lengths, problems)
        if self.multimodal_uuids is not None:
            _check_uuids(self.multimodal_uuids, count, problems)
        self._check_runs(count, spans_sound, problems)
        raise_problems(_SUBJECT, problems)

    def _check_runs(self, count: int | None, spans_sound: bool, problems: list[Problem]) -> None:
        given = [name for name in _RUN_FIELDS if getattr(self, name) is not None]
        if not given:
            return
        if len(given) < len(_RUN_FIELDS):
            for name in _RUN_FIELDS:
                if name not in given:
                    expected = "all three run fields or none"
                    problems.append(Problem((name,), "missing", expected, "None"))
        offsets = self.multimodal_item_run_cu_offsets
        positions, lengths = self.multimodal_run_positions, self.multimodal_run_lengths
        offsets_sound = offsets is not None and _check_lengths(
            self,
            "multimodal_item_run_cu_offsets",
            0,
            None if count is None else count + 1,
            problems,
        )
        positions_sound = positions is not None and check_ints(
            problems, ("multimodal_run_positions",), positions, 0, INT32_MAX
        )
        lengths_sound = lengths is not None and check_ints(
            problems, ("multimodal_run_lengths",), lengths, 1, INT32_MAX
        )
        if not (positions_sound and lengths_sound):
            return
        assert positions is not None
        assert lengths is not None
        path = ("multimodal_run_lengths",)
        if not check_count(problems, path, len(lengths), len(positions), "run lengths"):
            return
        ends_sound = _check_ends("multimodal_run_lengths", positions, lengths, problems)
        if not offsets_sound:
            return
        assert offsets is not None
        offsets_sound = _check_offsets(offsets, len(positions), problems)
        comparable = offsets_sound and spans_sound and ends_sound and count is not None
        if comparable and not self._item_runs_agree(offsets, positions, lengths):
            self._report_item_runs(offsets, positions, lengths, problems)

    def _item_runs_agree(
        self, offsets: tuple[int, ...], positions: tuple[int, ...], lengths: tuple[int, ...]
    ) -> bool:
        """Whether the runs are in order throughout and agree with the items, without a loop.

        False also where the loop would find nothing: for items out of prompt order, and for
        one without runs.
        """
        firsts = offsets[:-1]
        if any(map(operator.ge, firsts, offsets[1:])):
            return False
        if any(map(operator.lt, positions[1:], map(operator.add, positions, lengths))):
            return False
        tokens_before = (0, *accumulate(lengths))
        before_items = [tokens_before[offset] for offset in offsets]
        num_tokens = tuple(map(operator.sub, before_items[1:], before_items))
        starts = tuple([positions[first] for first in firsts])
        return num_tokens == self.multimodal_lengths and starts == self.multimodal_positions

    def _report_item_runs(
        self,
        offsets: tuple[int, ...],
        positions: tuple[int, ...],
        lengths: tuple[int, ...],
        problems: list[Problem],
    ) -> None:
        first = 0
        for item, past in each(offsets[1:], problems):
            num_tokens = 0
            end = -1
            for run in range(first, past):
                position, length = positions[run], lengths[run]
                if position < end:
                    path: Path = ("multimodal_run_positions", run)
                    expected = f"a run of item {item} at or after position {end}"
                    problems.append(Problem(path, "order", expected, str(position)))
                end = position + length
                num_tokens += length
            if past > first and positions[first] != self.multimodal_positions[item]:
                expected = (
                    f"item {item}'s first run at its position {self.multimodal_positions[item]}"
                )
                path = ("multimodal_run_positions", first)
                problems.append(Problem(path, "conflict", expected, str(positions[first])))
            if num_tokens != self.multimodal_lengths[item]:
                expected = f"the {num_tokens} prompt tokens of the item's runs"
                got = str(self.multimodal_lengths[item])
                problems.append(Problem(("multimodal_lengths", item), "sum", expected, got))
            first = past

    @classmethod
    @guarded
    def from_hexdigests(
        cls,
        hexdigests: Sequence[str],
        positions: Sequence[int],
        lengths: Sequence[int],
        **optional: Any,
    ) -> "MultimodalInput":
        """Build from hexadecimal digests, such as `content_hash` returns.

        Args:
            hexdigests: Per item, 64 hex digits; read as 8 big-endian signed int32 words.
            positions: See `multimodal_positions`.
            lengths: See `multimodal_lengths`.
            **optional: The optional fields, under their own names.

        Raises:
            ContractTypeError: A part has the wrong type.
            ContractValueError: A digest is malformed, or a field breaks a rule of the class.
        """
        problems: list[Problem] = []
        hashes: list[HashWords] = []
        for index, digest in each(hexdigests, problems):
            path = ("hexdigests", index)
            if type(digest) is not str:
                problems.append(Problem(path, "type", "a str", describe(digest)))
            elif not _HEX_DIGEST.fullmatch(digest):
                problems.append(Problem(path, "format", "64 hex digits", describe(digest)))
            else:
                hashes.append(_WORDS.unpack(bytes.fromhex(digest)))
        raise_problems(_SUBJECT, problems)
        return cls(tuple(hashes), tuple(positions), tuple(lengths), **optional)

    def to_tensors(self) -> dict[str, torch.Tensor]:
        """The integer fields as new int32 tensors on the CPU, under the fields' names.

        Returns:
            `multimodal_hashes` of shape (n, 8), the other fields 1-D; fields that are None
            and the uuids, which are no integers, are left out.
        """
        tensors = {}
        for name in (*_REQUIRED_FIELDS, *_RUN_FIELDS):
            values = getattr(self, name)
            if values is not None:
                tensors[name] = torch.tensor(values, dtype=torch.int32)
        if not self.multimodal_hashes:
            tensors["multimodal_hashes"] = torch.empty((0, WORDS_PER_HASH), dtype=torch.int32)
        return tensors

    @classmethod
    @guarded
    def from_tensors(
        cls,
        tensors: Mapping[str, torch.Tensor],
        multimodal_uuids: Sequence[str | None] | None = None,
    ) -> "MultimodalInput":
        """Rebuild the record from what `to_tensors` gave, and the uuids.

        Args:
            tensors: Integer tensors on the CPU, by field name.
            multimodal_uuids: See the field of that name.

        Raises:
            ContractTypeError: A value is no integer tensor.
            ContractValueError: A name is missing or unknown, a tensor is not on the CPU, or a
                field breaks a rule.
        """
        problems: list[Problem] = []
        fields: dict[str, Any] = {}
        for name, tensor in tensors.items():
            if name not in (*_REQUIRED_FIELDS, *_RUN_FIELDS):
                problems.append(Problem((name,), "unknown", "a field of integers", describe(name)))
            elif not isinstance(tensor, torch.Tensor):
                problems.append(Problem((name,), "type", "a tensor", describe(tensor)))
            elif (problem := int_tensor_problem((name,), tensor)) is not None:
                problems.append(problem)
            else:
                fields[name] = tensor.tolist()
        problems.extend(
            Problem((name,), "missing", "a tensor", "nothing")
            for name in _REQUIRED_FIELDS
            if name not in tensors
        )
        raise_problems(_SUBJECT, problems)
        return cls(multimodal_uuids=multimodal_uuids, **fields)

    def select(self, prompt_indices: Sequence[int]) -> "MultimodalInput":
        """All fields of some items together, in the order given; positions stay the prompt's.

        Args:
            prompt_indices: Prompt-global item indices, at least one; repeats are allowed.

        Raises:
            ContractError: No index, or one that is out of range, negative or not an int.
        """
        chosen = check_indices(prompt_indices, len(self.multimodal_hashes), _SUBJECT)
        return self._select_trusted(chosen)

    def _select_trusted(self, chosen: tuple[int, ...]) -> "MultimodalInput":
        hashes, positions = self.multimodal_hashes, self.multimodal_positions
        lengths, uuids = self.multimodal_lengths, self.multimodal_uuids
        offsets = self.multimodal_item_run_cu_offsets
        run_positions = run_lengths = new_offsets = None
        if offsets is not None:
            assert self.multimodal_run_positions is not None
            assert self.multimodal_run_lengths is not None
            run_positions, run_lengths, new_offsets = _select_runs(
                offsets, self.multimodal_run_positions, self.multimodal_run_lengths, chosen
            )
        return MultimodalInput._trusted(
            multimodal_hashes=tuple([hashes[i] for i in chosen]),
            multimodal_positions=tuple([positions[i] for i in chosen]),
            multimodal_lengths=tuple([lengths[i] for i in chosen]),
            multimodal_uuids=None if uuids is None else tuple([uuids[i] for i in chosen]),
            multimodal_item_run_cu_offsets=new_offsets,
            multimodal_run_positions=run_positions,
            multimodal_run_lengths=run_lengths,
        )


def check_hashes(hashes: object, path: Path, problems: list[Problem]) -> bool:
    """Check a tuple of content hashes, each 8 signed int32 words."""
    if type(hashes) is not tuple:
        problems.append(Problem(path, "type", "a tuple of hashes", describe(hashes)))
        return False
    if not hashes:
        return True
    if set(map(type, hashes)) == {tuple} and set(map(len, hashes)) == {WORDS_PER_HASH}:
        words = tuple(chain.from_iterable(hashes))
        if set(map(type, words)) == {int} and min(words) >= INT32_MIN and max(words) <= INT32_MAX:
            return True
    for index, one in each(hashes, problems):
        where = (*path, index)
        if check_ints(problems, where, one, INT32_MIN, INT32_MAX):
            check_count(problems, where, len(one), WORDS_PER_HASH, "hash words")
    return False


def _check_lengths(
    record: MultimodalInput, name: str, low: int, count: int | None, problems: list[Problem]
) -> bool:
    values = getattr(record, name)
    if not check_ints(problems, (name,), values, low, INT32_MAX):
        return False
    return count is None or check_count(problems, (name,), len(values), count, "ints")


def _check_ends(
    name: str, positions: tuple[int, ...], lengths: tuple[int, ...], problems: list[Problem]
) -> bool:
    if len(positions) != len(lengths):
        return False  # already reported against the number of hashes
    if max(map(operator.add, positions, lengths), default=0) <= INT32_MAX:
        return True
    for index, (position, length) in each(zip(positions, lengths, strict=True), problems):
        if position + length > INT32_MAX:
            expected = f"an end of at most {INT32_MAX}"
            got = str(position + length)
            problems.append(Problem((name, index), "range", expected, got))
    return False


def _check_uuids(uuids: object, count: int | None, problems: list[Problem]) -> None:
    path = ("multimodal_uuids",)
    if type(uuids) is not tuple:
        expected = "a tuple of a str or None per item"
        problems.append(Problem(path, "type", expected, describe(uuids)))
        return
    texts = [uuid for uuid in uuids if uuid is not None]
    sound = set(map(type, texts)) <= {str} and all(texts) and is_encodable("".join(texts))
    for index, uuid in each(uuids, problems) if not sound else ():
        if uuid is not None:
            check_text(problems, (*path, index), uuid)
    if count is not None:
        check_count(problems, path, len(uuids), count, "uuids")


def _check_offsets(offsets: tuple[int, ...], num_runs: int, problems: list[Problem]) -> bool:
    name = "multimodal_item_run_cu_offsets"
    found = len(problems)
    if not offsets:  # the hashes are faulty, or their number would have told
        problems.append(Problem((name,), "count", "at least one offset", "none"))
        return False
    if offsets[0] != 0:
        problems.append(Problem((name, 0), "sequence", "offsets from 0", str(offsets[0])))
    disordered = any(map(operator.lt, offsets[1:], offsets))
    for index, (before, after) in each(pairwise(offsets), problems) if disordered else ():
        if after < before:
            expected = f"an offset of at least {before}"
            problems.append(Problem((name, index + 1), "sequence", expected, str(after)))
    if offsets[-1] != num_runs:
        path = (name, len(offsets) - 1)
        problems.append(Problem(path, "sum", f"the {num_runs} runs", str(offsets[-1])))
    return len(problems) == found


def _select_runs(
    offsets: tuple[int, ...],
    positions: tuple[int, ...],
    lengths: tuple[int, ...],
    chosen: tuple[int, ...],
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    run_positions: list[int] = []
    run_lengths: list[int] = []
    counts = [0]
    for item in chosen:
        first, past = offsets[item], offsets[item + 1]
        run_positions += positions[first:past]
        run_lengths += lengths[first:past]
        counts.append(past - first)
    return tuple(run_positions), tuple(run_lengths), tuple(accumulate(counts))
