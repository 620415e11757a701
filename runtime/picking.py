"""Picking the slices of some items out of one payload field, whatever holds the field."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final, cast

import numpy as np
import torch

from omniwire.contracts.describe import describe
from omniwire.contracts.errors import Path, Problem, contract_error
from omniwire.contracts.frozen import FrozenMapping
from omniwire.contracts.handles import TensorHandle
from omniwire.contracts.items import MultimodalItemPartition
from omniwire.contracts.tensors import SAME_SIZE_INT

_GATHERED_AS_THEY_ARE: Final = frozenset(
    (
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.complex64, torch.complex128),
    )
)


class ItemPicker:
    """Picks the same items out of the fields of one modality; lives for one selection.

    Consecutive items become views that share storage. Any other choice becomes one gather a
    field, from an index that is built once per item layout and uploaded once per device.

    Args:
        subject: Name of the object that is selected from, for errors.
        chosen: Item indices in the order wanted, at least one, each in `[0, num_items)`.
        num_items: Items that the fields divide into.
    """

    __slots__ = ("_chosen", "_layouts", "_num_items", "_subject")

    def __init__(self, subject: str, chosen: Sequence[int], num_items: int) -> None:
        self._subject = subject
        self._chosen = chosen
        self._num_items = num_items
        self._layouts: dict[tuple[int, ...] | None, _Layout] = {}

    def pick(self, value: object, partition: MultimodalItemPartition, path: Path) -> object:
        """The chosen items' part of a field.

        Args:
            value: A tensor, array or handle with the partition's axis; a tuple, whose elements
                are its axis 0; or a mapping of such values, each divided alike.
            partition: How the field divides into items.
            path: Where the field is, for errors.

        Returns:
            A value of the same kind (a handle becomes the tensor it stands for).

        Raises:
            ContractTypeError: The value cannot have an item axis.
            ContractValueError: The field has no such axis, or its extent is not what the
                partition says.
        """
        lengths = partition.item_lengths
        layout = self._layouts.get(lengths)
        if layout is None:
            layout = self._layouts[lengths] = _Layout(self._chosen, self._num_items, lengths)
        return self._pick(value, layout, partition.axis, path)

    def _pick(self, value: object, layout: "_Layout", axis: int, path: Path) -> object:
        kind = type(value)
        if kind is TensorHandle:
            value = cast(TensorHandle, value).resolve()
            kind = torch.Tensor
        if kind is torch.Tensor:
            tensor = cast(torch.Tensor, value)
            if axis >= tensor.dim() or tensor.size(axis) != layout.extent:
                raise self._misfit(layout, value, tensor.shape, axis, path)
            return layout.take_tensor(tensor, axis)
        if kind is np.ndarray:
            array = cast("np.ndarray[Any, Any]", value)
            if axis >= array.ndim or array.shape[axis] != layout.extent:
                raise self._misfit(layout, value, array.shape, axis, path)
            return layout.take_array(array, axis)
        if kind is tuple:
            elements = cast(tuple[object, ...], value)
            if axis > 0 or len(elements) != layout.extent:
                raise self._misfit(layout, value, (len(elements),), axis, path)
            return layout.take_tuple(elements)
        if kind is FrozenMapping:
            mapping = cast("FrozenMapping[object]", value)
            picked = {k: self._pick(v, layout, axis, (*path, k)) for k, v in mapping.items()}
            return FrozenMapping._wrap(picked, mapping._depth)
        expected = "a tensor, array or tuple with an item axis"
        problem = Problem(path, "type", expected, describe(value))
        raise contract_error(self._subject, [problem])

    def _misfit(
        self, layout: "_Layout", value: object, shape: Sequence[int], axis: int, path: Path
    ) -> Exception:
        if axis >= len(shape):
            expected = f"an axis {axis} for the items"
            problem = Problem(path, "axis", expected, describe(value))
        elif layout.is_packed:
            expected = f"{layout.extent} along axis {axis}, the sum of the item lengths"
            problem = Problem(path, "sum", expected, str(shape[axis]))
        else:
            expected = f"{layout.extent} items along axis {axis}"
            problem = Problem(path, "count", expected, str(shape[axis]))
        return contract_error(self._subject, [problem])


class _Layout:
    """Where the chosen items lie along an axis: one window, or an order to gather in."""

    __slots__ = ("_order", "_uploaded", "extent", "is_packed", "size", "start")

    def __init__(
        self, chosen: Sequence[int], num_items: int, lengths: tuple[int, ...] | None
    ) -> None:
        self.is_packed = lengths is not None
        self._uploaded: dict[torch.device, torch.Tensor] = {}
        self._order: np.ndarray[Any, np.dtype[np.int64]] | None = None
        first, count = chosen[0], len(chosen)
        consecutive = count == 1 or (
            chosen[-1] - first == count - 1 and list(chosen) == list(range(first, first + count))
        )
        if lengths is None:
            self.extent = num_items
            self.start, self.size = first, count
            if not consecutive:
                self._order = np.array(chosen, dtype=np.int64)
            return
        self.extent = sum(lengths)
        self.start = sum(lengths[:first])
        self.size = sum(lengths[first : first + count])
        if not consecutive:
            self._order = _packed_order(chosen, lengths)

    def take_tensor(self, tensor: torch.Tensor, axis: int) -> torch.Tensor:
        if self._order is not None:
            return _gather(tensor, axis, self._index_on(tensor.device))
        if self.size == self.extent:
            return tensor
        return tensor.narrow(axis, self.start, self.size)

    def take_array(self, array: "np.ndarray[Any, Any]", axis: int) -> "np.ndarray[Any, Any]":
        if self._order is not None:
            return array.take(self._order, axis=axis)
        if self.size == self.extent:
            return array
        return array[(slice(None),) * axis + (slice(self.start, self.start + self.size),)]

    def take_tuple(self, elements: tuple[object, ...]) -> tuple[object, ...]:
        if self._order is not None:
            return tuple([elements[index] for index in self._order.tolist()])
        return elements[self.start : self.start + self.size]

    def _index_on(self, device: torch.device) -> torch.Tensor:
        index = self._uploaded.get(device)
        if index is None:
            assert self._order is not None
            index = torch.from_numpy(self._order)
            if device.type == "cuda":
                # Pinned and asynchronous: a pageable copy would wait for the device.
                index = index.pin_memory().to(device, non_blocking=True)
            elif device.type != "cpu":
                index = index.to(device)
            self._uploaded[device] = index
        return index


def _gather(tensor: torch.Tensor, axis: int, index: torch.Tensor) -> torch.Tensor:
    """`index_select` for every data type: torch has no kernel for some of the rarer ones."""
    as_int = SAME_SIZE_INT.get(tensor.dtype.itemsize)
    if tensor.dtype in _GATHERED_AS_THEY_ARE or as_int is None or tensor.is_conj():
        return tensor.index_select(axis, index)
    return tensor.view(as_int).index_select(axis, index).view(tensor.dtype)


def _packed_order(
    chosen: Sequence[int], lengths: tuple[int, ...]
) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """The entries of the chosen items' runs, run after run."""
    ends = list(accumulate(lengths))
    return np.concatenate(
        [np.arange(ends[item] - lengths[item], ends[item], dtype=np.int64) for item in chosen]
    )
