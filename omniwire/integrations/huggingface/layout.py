"""What a layout is, and how layouts read the fields that describe items."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Protocol

import attrs
import numpy as np
import torch

from omniwire.contracts import MultimodalItemPartition, Problem
from omniwire.contracts.checks import check_int
from omniwire.contracts.describe import describe
from omniwire.contracts.errors import Path, contract_error
from omniwire.contracts.handles import TensorHandle

BATCHED: Final = MultimodalItemPartition()
"""One slice per item along axis 0."""


@attrs.frozen
class ItemLayout:
    """The items of one modality of one payload, in modality-local order.

    Attributes:
        encoder_token_lengths: Encoder tokens per item.
        output_embedding_lengths: Embedding rows per item.
        partitions: How the fields present divide into items; others are shared.
    """

    encoder_token_lengths: tuple[int, ...]
    output_embedding_lengths: tuple[int, ...]
    partitions: Mapping[str, MultimodalItemPartition]


class ModalityLayout(Protocol):
    """One modality of one model family; immutable, its `repr` states every setting.

    Attributes:
        field_names: The fields that the modality's payload may have.
    """

    field_names: ClassVar[tuple[str, ...]]

    def items(self, fields: Mapping[str, Any], path: Path) -> ItemLayout:
        """The items in a payload.

        Args:
            fields: The modality's payload.
            path: Where it is, for errors.

        Raises:
            ContractTypeError: A field that describes items cannot be read on the host.
            ContractValueError: Such a field is missing or has another shape or range.
        """
        ...

    def dummy(self, num_items: int) -> dict[str, Any]:
        """A payload of that many of the largest items, of zeros."""
        ...


def check_settings(layout: object, minimums: Mapping[str, int]) -> None:
    """Check settings that are ints.

    Raises:
        ContractError: One is no int, or smaller than its minimum.
    """
    problems: list[Problem] = []
    for name, minimum in minimums.items():
        check_int(problems, (name,), getattr(layout, name), minimum)
    if problems:
        raise contract_error(type(layout).__name__, problems)


def partitions_of(
    fields: Mapping[str, Any],
    names: Sequence[str],
    packed: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, MultimodalItemPartition]:
    """Partitions of those of the named fields that are present: packed as given, else batched."""
    lengths = {} if packed is None else packed
    return {
        name: MultimodalItemPartition(tuple(lengths[name])) if name in lengths else BATCHED
        for name in names
        if fields.get(name) is not None
    }


def num_slices(fields: Mapping[str, Any], name: str, path: Path) -> int:
    """Extent of a field's axis 0, also of a tuple.

    Raises:
        ContractError: The field is missing or has no such axis.
    """
    value = fields.get(name)
    if isinstance(value, tuple | list):
        return len(value)
    shape = shape_of(fields, name, path)
    if not shape:
        raise misfit((*path, name), "axis", "an axis 0 for the items", value)
    return shape[0]


def shape_of(fields: Mapping[str, Any], name: str, path: Path) -> tuple[int, ...]:
    """Shape of a tensor field.

    Raises:
        ContractError: The field is missing or no tensor.
    """
    value = fields.get(name)
    if value is None:
        raise misfit((*path, name), "missing", "this field of the processor's output", value)
    if not isinstance(value, torch.Tensor | np.ndarray | TensorHandle):
        raise misfit((*path, name), "type", "a tensor", value)
    return tuple(value.shape)


def host_rows(
    fields: Mapping[str, Any], name: str, path: Path, width: int
) -> list[tuple[int, ...]]:
    """Rows of a small integer field `[items, width]`, read on the host.

    Raises:
        ContractError: The field is missing, on a device, no integers, of another shape, or has
            a negative number.
    """
    array = _host_array(fields, name, path, f"ints of shape [items, {width}] on the host", width)
    return [tuple(row) for row in array.tolist()]


def host_ints(fields: Mapping[str, Any], name: str, path: Path) -> list[int]:
    """Elements of a small integer field `[items]`, read on the host.

    Raises:
        ContractError: As for `host_rows`.
    """
    elements: list[int] = _host_array(
        fields, name, path, "ints of shape [items] on the host", None
    ).tolist()
    return elements


def _host_array(
    fields: Mapping[str, Any], name: str, path: Path, expected: str, width: int | None
) -> np.ndarray[Any, Any]:
    value = fields.get(name)
    path = (*path, name)
    if value is None:
        raise misfit(path, "missing", expected, value)
    if isinstance(value, torch.Tensor) and value.device.type != "cpu":
        # Reading it would wait for everything queued on the device.
        raise misfit(path, "device", expected, value)
    if not isinstance(value, torch.Tensor | np.ndarray | tuple | list):
        raise misfit(path, "type", expected, value)
    try:
        array = np.asarray(value)
    except ValueError:  # rows of different lengths
        raise misfit(path, "shape", expected, value) from None
    if array.ndim != (1 if width is None else 2) or (width and array.shape[1] != width):
        raise misfit(path, "shape", expected, value)
    if array.dtype.kind not in "iu":
        raise misfit(path, "dtype", expected, value)
    if array.size and array.min() < 0:
        raise misfit(path, "range", "ints >= 0", int(array.min()))
    return array


def misfit(path: Path, code: str, expected: str, got: object) -> Exception:
    """The error of a payload that is not what a layout describes."""
    return contract_error("multimodal_data", [Problem(path, code, expected, describe(got))])
