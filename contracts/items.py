"""The items of a request: references, input partitions and the metadata record."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import attrs

from omniwire.contracts.base import Contract
from omniwire.contracts.checks import (
    MODALITY_FORMAT,
    as_optional_ints,
    check_count,
    check_indices,
    check_int,
    check_ints,
    each,
    is_modality,
    raise_problems,
)
from omniwire.contracts.describe import describe
from omniwire.contracts.errors import Path, Problem
from omniwire.contracts.frozen import FrozenMapping, as_frozen, take_frozen


class _ItemRef(NamedTuple):
    modality: str
    index: int  # type: ignore[assignment]  # the field hides the tuple's method, as the API names it


class ItemRef(_ItemRef, Contract):
    """A processed item: its modality and its modality-local index. Equals a plain 2-tuple.

    Args:
        modality: A name of the form `[a-z][a-z0-9_]{0,63}`.
        index: Index among the items of its modality, from 0.

    Raises:
        ContractTypeError: `modality` is not a string or `index` not an int.
        ContractValueError: The name is malformed or the index negative.

    >>> ItemRef("image", 0) == ("image", 0)
    True
    """

    __slots__ = ()

    def __new__(cls, modality: str, index: int) -> Self:
        """Check both parts and pair them."""
        problems: list[Problem] = []
        _check_ref((), modality, index, problems)
        raise_problems("ItemRef", problems)
        return tuple.__new__(cls, (modality, index))

    @classmethod
    def _make(cls, iterable: object) -> Self:  # type: ignore[override]  # validates, like __new__
        return cls(*iterable)  # type: ignore[misc]  # arity is checked by the call

    def _depth_on_wire(self) -> int:
        return 1


def _check_ref(path: Path, modality: object, index: object, problems: list[Problem]) -> None:
    if type(modality) is not str:
        problems.append(Problem((*path, "modality"), "type", "a str", describe(modality)))
    elif not is_modality(modality):
        got = describe(modality)
        problems.append(Problem((*path, "modality"), "format", MODALITY_FORMAT, got))
    check_int(problems, (*path, "index"), index, 0)


@attrs.frozen(eq=False, repr=False)
class MultimodalItemPartition(Contract):
    """How one payload field divides into the items of its modality.

    Attributes:
        item_lengths: None for a **batched** field: one slice per item along `axis`. A tuple
            for a **packed** field: consecutive runs of these lengths along `axis`, each >= 0,
            in modality-local index order.
        axis: The item axis, counted from the front, >= 0.

    A field that no partition names is **shared** by all items.

    Raises:
        ContractTypeError: A length or the axis is not an int.
        ContractValueError: A length or the axis is negative.
    """

    item_lengths: tuple[int, ...] | None = attrs.field(default=None, converter=as_optional_ints)
    axis: int = 0

    def __attrs_post_init__(self) -> None:
        problems: list[Problem] = []
        if self.item_lengths is not None:
            check_ints(problems, ("item_lengths",), self.item_lengths, 0)
        check_int(problems, ("axis",), self.axis, 0)
        raise_problems("MultimodalItemPartition", problems)


Partitions = FrozenMapping[FrozenMapping[MultimodalItemPartition]]


def _as_refs(value: Iterable[tuple[str, int]]) -> tuple[ItemRef, ...]:
    """Pairs as `ItemRef`, unchecked: the record checks them all."""
    if type(value) is list or type(value) is tuple:
        return tuple(map(_as_ref, value))
    return value  # type: ignore[return-value]  # judged by the validator


def _as_ref(value: Any) -> ItemRef:
    if type(value) in (tuple, list) and len(value) == 2:
        return tuple.__new__(ItemRef, value)
    return value  # type: ignore[no-any-return]  # judged by the validator


def _as_partitions(
    value: Mapping[str, Mapping[str, MultimodalItemPartition]] | None,
) -> Partitions | None:
    return as_frozen(value)  # type: ignore[no-any-return]  # judged by the validator


@attrs.frozen(eq=False, repr=False)
class MultimodalItemMetadata(Contract):
    """The single record of a request's items, in prompt order. Host metadata only; hashable.

    Attributes:
        item_refs: One reference per item, in prompt order, unique. Per modality the local
            indices are exactly 0..n-1, in any order.
        encoder_token_lengths: Physical encoder tokens (cost) per item in prompt order, each
            > 0, or None when unknown.
        output_embedding_lengths: Embedding rows per item in prompt order, each > 0, or None
            when unknown.
        input_partitions: Per modality, how each payload field divides into items, or None.
            A modality with an empty mapping shares every field; a modality that is absent is
            undeclared. A packed field's lengths are in modality-local index order.

    Raises:
        ContractTypeError: A part has the wrong type.
        ContractValueError: A count, length, reference or partition breaks a rule above.

    >>> record = MultimodalItemMetadata([("video", 0), ("image", 0)], [64, 16], [16, 4])
    >>> record.local_indices("image"), record.prompt_indices("image")
    ((0,), (1,))
    >>> record.select([1])
    MultimodalItemMetadata(item_refs=(ItemRef(modality='image', index=0),), \
encoder_token_lengths=(16,), output_embedding_lengths=(4,), input_partitions=None)
    """

    item_refs: tuple[ItemRef, ...] = attrs.field(converter=_as_refs)
    encoder_token_lengths: tuple[int, ...] | None = attrs.field(
        default=None, converter=as_optional_ints
    )
    output_embedding_lengths: tuple[int, ...] | None = attrs.field(
        default=None, converter=as_optional_ints
    )
    input_partitions: Partitions | None = attrs.field(default=None, converter=_as_partitions)

    def __attrs_post_init__(self) -> None:
        problems: list[Problem] = []
        counts = _check_refs(self.item_refs, problems)
        for name in ("encoder_token_lengths", "output_embedding_lengths"):
            lengths = getattr(self, name)
            if lengths is None or not check_ints(problems, (name,), lengths, 1):
                continue
            if counts is not None:
                check_count(problems, (name,), len(lengths), len(self.item_refs), "lengths")
        if self.input_partitions is not None:
            _check_partitions(self.input_partitions, counts, problems)
        raise_problems("MultimodalItemMetadata", problems)

    def local_indices(self, modality: str) -> tuple[int, ...]:
        """The modality-local indices of a modality's items, in prompt order."""
        return tuple([ref[1] for ref in self.item_refs if ref[0] == modality])

    def prompt_indices(self, modality: str) -> tuple[int, ...]:
        """The prompt-global indices of a modality's items, ascending."""
        return tuple([i for i, ref in enumerate(self.item_refs) if ref[0] == modality])

    def select(self, prompt_indices: Sequence[int]) -> "MultimodalItemMetadata":
        """The record of some items, in the order given; repeats are allowed.

        Args:
            prompt_indices: Prompt-global indices, at least one.

        Returns:
            A valid record whose references are renumbered 0..k-1 per modality in selection
            order, with packed lengths in that new order.

        Raises:
            ContractError: No index, or one that is out of range, negative or not an int.
        """
        chosen = check_indices(prompt_indices, len(self.item_refs), "MultimodalItemMetadata")
        return self._select_trusted(chosen)

    def _select_trusted(self, chosen: tuple[int, ...]) -> "MultimodalItemMetadata":
        old_refs = self.item_refs
        locals_by_modality: dict[str, list[int]] = {}
        refs = []
        for index in chosen:
            modality, local = old_refs[index]
            chosen_locals = locals_by_modality.setdefault(modality, [])
            refs.append(tuple.__new__(ItemRef, (modality, len(chosen_locals))))
            chosen_locals.append(local)
        costs, rows = self.encoder_token_lengths, self.output_embedding_lengths
        partitions = self.input_partitions
        return MultimodalItemMetadata._trusted(
            item_refs=tuple(refs),
            encoder_token_lengths=None if costs is None else tuple([costs[i] for i in chosen]),
            output_embedding_lengths=None if rows is None else tuple([rows[i] for i in chosen]),
            input_partitions=None
            if partitions is None
            else _select_partitions(partitions, locals_by_modality),
        )

    def merge(self, other: "MultimodalItemMetadata") -> "MultimodalItemMetadata":
        """Both records' knowledge in one; None never erases what the other knows.

        Args:
            other: A record of the same items in the same order.

        Returns:
            A new record with every field that either of the two has. A modality's partitions
            are one declaration: both records may carry it only if it is the same.

        Raises:
            ContractTypeError: `other` is not a record.
            ContractValueError: The two disagree; the path names the element.
        """
        problems: list[Problem] = []
        if type(other) is not MultimodalItemMetadata:
            got = describe(other)
            problems.append(Problem(("other",), "type", "a MultimodalItemMetadata", got))
            raise_problems("MultimodalItemMetadata", problems)
        _check_agreement("item_refs", self.item_refs, other.item_refs, problems)
        merged: dict[str, tuple[int, ...] | None] = {}
        for name in ("encoder_token_lengths", "output_embedding_lengths"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine is not None and theirs is not None:
                _check_agreement(name, mine, theirs, problems)
            merged[name] = theirs if mine is None else mine
        partitions = _merge_partitions(self.input_partitions, other.input_partitions, problems)
        raise_problems("MultimodalItemMetadata", problems)
        return MultimodalItemMetadata._trusted(
            item_refs=self.item_refs, input_partitions=partitions, **merged
        )


def _check_refs(refs: object, problems: list[Problem]) -> dict[str, int] | None:
    """Check all references; returns the number of items per modality, None if any is wrong."""
    if type(refs) is not tuple:
        expected = "a tuple or list of (modality, index) pairs"
        problems.append(Problem(("item_refs",), "type", expected, describe(refs)))
        return None
    by_modality: dict[str, list[int]] = {}
    found = len(problems)
    for position, ref in each(refs, problems):
        if type(ref) is not ItemRef:
            path = ("item_refs", position)
            problems.append(Problem(path, "type", "a (modality, index) pair", describe(ref)))
            continue
        modality, index = ref
        indices = by_modality.get(modality) if type(modality) is str else None
        if indices is None or type(index) is not int or index < 0:
            _check_ref(("item_refs", position), modality, index, problems)
            if not is_modality(modality):
                continue
            indices = by_modality.setdefault(modality, [])
        indices.append(index)
    if len(problems) > found:
        return None
    for modality, indices in by_modality.items():
        if set(indices) != set(range(len(indices))):
            _report_bad_numbering(refs, modality, len(indices), problems)
    if len(problems) > found:
        return None
    return {modality: len(indices) for modality, indices in by_modality.items()}


def _report_bad_numbering(
    refs: tuple[ItemRef, ...], modality: str, count: int, problems: list[Problem]
) -> None:
    seen: set[int] = set()
    for position, ref in each(refs, problems):
        if ref.modality != modality:
            continue
        path = ("item_refs", position)
        got = f"({modality}, {ref.index})"
        if ref.index in seen:
            problems.append(Problem(path, "duplicate", "each item once", f"{got} again"))
        elif ref.index >= count:
            expected = f"{modality} indices 0 to {count - 1}, one for each of its items"
            problems.append(Problem(path, "sequence", expected, got))
        seen.add(ref.index)


def _check_partitions(
    partitions: object, counts: dict[str, int] | None, problems: list[Problem]
) -> None:
    """Check partitions against the items; without counts, those are faulty."""
    root = ("input_partitions",)
    if not take_frozen(partitions, root, problems):
        return
    assert isinstance(partitions, FrozenMapping)
    for modality, fields in partitions.items():
        path = (*root, modality)
        if not is_modality(modality):
            problems.append(Problem(path, "format", MODALITY_FORMAT, describe(modality)))
        elif counts is not None and modality not in counts:
            expected = f"a modality among the items ({', '.join(counts) or 'there are none'})"
            problems.append(Problem(path, "unknown", expected, describe(modality)))
        if type(fields) is not FrozenMapping:
            expected = "a mapping of field to MultimodalItemPartition"
            problems.append(Problem(path, "type", expected, describe(fields)))
            continue
        for field, partition in fields.items():
            if type(partition) is not MultimodalItemPartition:
                got = describe(partition)
                expected = "a MultimodalItemPartition"
                problems.append(Problem((*path, field), "type", expected, got))
            elif partition.item_lengths is not None and counts and modality in counts:
                lengths_path = (*path, field, "item_lengths")
                num_lengths = len(partition.item_lengths)
                check_count(problems, lengths_path, num_lengths, counts[modality], "lengths")


def _select_partitions(partitions: Partitions, chosen: dict[str, list[int]]) -> Partitions:
    selected: dict[str, object] = {}
    for modality, fields in partitions.items():
        if modality not in chosen:
            continue
        local_indices = chosen[modality]
        kept: dict[str, MultimodalItemPartition] = {}
        for field, partition in fields.items():
            lengths = partition.item_lengths
            kept[field] = (
                partition
                if lengths is None
                else MultimodalItemPartition._trusted(
                    item_lengths=tuple([lengths[i] for i in local_indices]), axis=partition.axis
                )
            )
        selected[modality] = FrozenMapping._wrap(kept, fields._depth)
    return FrozenMapping._wrap(selected, partitions._depth)


def _check_agreement(
    name: str, mine: tuple[object, ...], theirs: tuple[object, ...], problems: list[Problem]
) -> None:
    if mine == theirs:
        return
    if check_count(problems, (name,), len(theirs), len(mine), "elements as in the other record"):
        for index, (one, other) in each(zip(mine, theirs, strict=True), problems):
            if one != other:
                problems.append(_conflict((name, index), _words(one), _words(other)))


def _merge_partitions(
    mine: Partitions | None, theirs: Partitions | None, problems: list[Problem]
) -> Partitions | None:
    if mine is None or theirs is None:
        return theirs if mine is None else mine
    merged = dict(mine)
    for modality, fields in theirs.items():
        known = merged.setdefault(modality, fields)
        if known != fields:
            for field in dict.fromkeys((*known, *fields)):
                one, other = known.get(field), fields.get(field)
                if one != other:
                    path = ("input_partitions", modality, field)
                    problems.append(_conflict(path, _words(one), _words(other)))
    return FrozenMapping._wrap(merged)


def _conflict(path: Path, known: str, got: str) -> Problem:
    return Problem(path, "conflict", f"{known} as in the other record", got)


def _words(value: object) -> str:
    if value is None:
        return "a shared field"
    if type(value) is ItemRef:
        return f"({value.modality}, {value.index})"
    if type(value) is MultimodalItemPartition:
        kind = "batched" if value.item_lengths is None else f"packed {value.item_lengths[:8]}"
        return f"{kind} along axis {value.axis}"
    return describe(value)
