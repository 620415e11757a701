"""How a request's tensors divide into its items: a bar over each partitioned axis."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import attrs
import numpy as np
import torch

from omniwire.contracts import (
    MultimodalItemPartition,
    MultimodalParams,
    ProcessedRequest,
    TensorHandle,
)
from omniwire.contracts.errors import Path
from omniwire.inspector.fields import summary
from omniwire.inspector.items import records_of
from omniwire.inspector.text import counted, shown_name

BAR_WIDTH: Final = 1000
"""Of a whole bar, in the units that it is drawn in."""

_MAX_MODALITIES: Final = 24
_MAX_BARS: Final = 24
_NUM_LENGTHS: Final = 12
_MAX_LENGTHS: Final = 1000
_MAX_SHARED: Final = 24
_DIGIT_WIDTH: Final = 7.5
_LABEL_PADDING: Final = 4


class Segment(NamedTuple):
    """One item's share of an axis, or that of several too narrow to be told apart.

    Attributes:
        x: Where it begins, in units.
        width: In units.
        is_odd: Whether it is drawn in the second shade.
        label: What is written on it, if there is room.
        title: Which items, and which part of the axis.
    """

    x: float
    width: float
    is_odd: bool
    label: str
    title: str


@attrs.frozen(eq=False)
class Bar:
    """A declared field of a modality.

    Attributes:
        field: Its name, safe to print.
        path: Where it is in the object.
        value: What is there.
        rule: How it divides, in words.
        lengths: What each item gets, in words; the first few.
        all_lengths: The same of many more; empty if those are all.
        segments: The items' shares.
        rest: Where the axis is claimed by no item, as x and width; None if it is whole.
        end: Where the axis ends, if the items claim more than there is.
        misfit: What is wrong, in words; empty if nothing is.
    """

    field: str
    path: Path
    value: str
    rule: str
    lengths: str
    all_lengths: str
    segments: tuple[Segment, ...]
    rest: tuple[float, float] | None
    end: float | None
    misfit: str


@attrs.frozen(eq=False)
class Partitions:
    """How the fields of one modality divide.

    Attributes:
        modality: Its name.
        number: Its number, in order of first appearance.
        bars: The fields that a partition names.
        shared: The names of the others, which all items share.
        is_declared: Whether the record declares the modality at all.
    """

    modality: str
    number: int
    bars: tuple[Bar, ...]
    shared: tuple[str, ...]
    is_declared: bool


def partitions_of(obj: object) -> tuple[list[Partitions], int]:
    """How the tensors of a request, its params or a record divide into items.

    Returns:
        Per modality of the record, in order of first appearance; and how many declared fields
        are left out.
    """
    record, _ = records_of(obj)
    if record is None:
        return [], 0
    path: Path = ("multimodal_data",)
    params = obj
    if isinstance(obj, ProcessedRequest):
        path, params = ("multimodal_params", *path), obj.multimodal_params
    data = params.multimodal_data if isinstance(params, MultimodalParams) else {}
    declared: Mapping[str, Mapping[str, MultimodalItemPartition]] = record.input_partitions or {}
    modalities = list(dict.fromkeys(ref.modality for ref in record.item_refs))
    room = _MAX_BARS
    found = []
    for number, modality in enumerate(modalities[:_MAX_MODALITIES]):
        fields = declared.get(modality, {})
        payload = data.get(modality)
        values: Mapping[str, Any] = payload if isinstance(payload, Mapping) else {}
        items = record.local_indices(modality), record.prompt_indices(modality)
        bars = tuple(
            _bar(name, fields[name], values.get(name), (*path, modality), *items)
            for name in islice(fields, room)
        )
        room -= len(bars)
        shared = [shown_name(name) for name in values if name not in fields][:_MAX_SHARED]
        found.append(Partitions(modality, number, bars, tuple(shared), modality in declared))
    num_fields = sum(len(declared.get(modality, {})) for modality in modalities)
    return found, num_fields - (_MAX_BARS - room)


def _bar(
    name: str,
    partition: MultimodalItemPartition,
    value: object,
    path: Path,
    local_indices: Sequence[int],
    prompt_indices: Sequence[int],
) -> Bar:
    """Draw a field.

    Args:
        name: Of the field.
        partition: How it divides.
        value: What is there; None if nothing is.
        path: Of the modality's payload.
        local_indices: Of the modality's items, in prompt order.
        prompt_indices: Of the same items.
    """
    num_items = len(local_indices)
    lengths = (1,) * num_items if partition.item_lengths is None else partition.item_lengths
    extent = _extent(value, partition.axis)
    claimed = sum(lengths)
    total = max(claimed, extent or 0)
    misfit = ""
    if extent is not None and extent != claimed:
        misfit = f"the items take {claimed:,} of {extent:,} along axis {partition.axis}"
    is_packed = partition.item_lengths is not None
    many = len(lengths) > _NUM_LENGTHS
    in_prompt = dict(zip(local_indices, prompt_indices, strict=True))
    return Bar(
        field=shown_name(name),
        path=(*path, name),
        value="not in the message" if value is None else summary(value),
        rule=f"{'packed' if is_packed else 'batched'} along axis {partition.axis}",
        lengths=_in_words(lengths, _NUM_LENGTHS) if is_packed else counted(num_items, "slice"),
        all_lengths=_in_words(lengths, _MAX_LENGTHS) if is_packed and many else "",
        segments=tuple(_segments(path[-1], lengths, total, in_prompt)),
        rest=_between(claimed, extent, total),
        end=None if extent is None or extent >= claimed else extent / total * BAR_WIDTH,
        misfit=misfit,
    )


def _extent(value: object, axis: int) -> int | None:
    """How long the divided axis is; of a tuple, how many elements there are."""
    if isinstance(value, torch.Tensor | np.ndarray | TensorHandle):
        return value.shape[axis] if axis < len(value.shape) else None
    return len(value) if type(value) is tuple and axis == 0 else None


def _in_words(lengths: Sequence[int], most: int) -> str:
    shown = ", ".join(f"{length:,}" for length in lengths[:most])
    return shown + (", ..." if len(lengths) > most else "")


def _between(claimed: int, extent: int | None, total: int) -> tuple[float, float] | None:
    """Where the axis is no item's."""
    if extent is None or extent <= claimed:
        return None
    start = claimed / total * BAR_WIDTH
    return start, BAR_WIDTH - start


def _segments(
    modality: str | int, lengths: Sequence[int], total: int, in_prompt: Mapping[int, int]
) -> Iterator[Segment]:
    """The shares, in modality-local order.

    Args:
        modality: The items' modality.
        lengths: What each item gets.
        total: What the whole bar stands for.
        in_prompt: Per item, its prompt-global index; there may be more lengths than items.
    """
    scale = BAR_WIDTH / max(total, 1)
    first, start, end = 0, 0, 0
    num_drawn = 0
    room = len(str(len(lengths))) * _DIGIT_WIDTH + _LABEL_PADDING
    for index, length in enumerate(lengths):
        end += length
        width = (end - start) * scale
        # Narrower than a unit: drawn together with the next ones.
        if width >= 1 or (width and index == len(lengths) - 1):
            alone = first == index
            names = [_name(modality, one, in_prompt) for one in (first, index)]
            title = f"{names[0] if alone else ' to '.join(names)}: [{start:,}, {end:,})"
            label = str(index) if alone and width >= room else ""
            yield Segment(start * scale, width, num_drawn % 2 == 1, label, title)
            num_drawn += 1
            first, start = index + 1, end


def _name(modality: str | int, index: int, in_prompt: Mapping[int, int]) -> str:
    where = f" (item {in_prompt[index]})" if index in in_prompt else ""
    return f"{modality} {index}{where}"
