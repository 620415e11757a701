"""What every peer sends: five kinds of request, the same tensors and numbers for all."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch

import omniwire as ow

_MIB: Final = 1024 * 1024
_PATCH: Final = 1176
"""Values of one image patch, as Qwen2-VL has them."""

NUM_PROMPT_TOKENS: Final = 300


@dataclass(frozen=True)
class Case:
    """A kind of request.

    Attributes:
        name: What the tables call it.
        repeat: How many messages are measured by default.
        modality: The modality of all its items, if it has any.
        item_lengths: For each item, its rows in every packed field; also its encoder tokens.
        packed: Shapes of the float32 fields that are packed along dimension 0.
        batched: Shapes of the int64 fields with one row per item.
        shared: Shapes of the float32 fields that belong to all items.
    """

    name: str
    repeat: int
    modality: str
    item_lengths: tuple[int, ...]
    packed: Mapping[str, tuple[int, ...]]
    batched: Mapping[str, tuple[int, ...]]
    shared: Mapping[str, tuple[int, ...]]

    @property
    def floats(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all float32 fields."""
        return {**self.packed, **self.shared}


def _image_case(name: str, repeat: int, num_items: int, rows: int, width: int) -> Case:
    return Case(
        name=name,
        repeat=repeat,
        modality="image",
        item_lengths=(rows,) * num_items,
        packed={"pixel_values": (rows * num_items, width)},
        batched={"image_grid_thw": (num_items, 3)},
        shared={},
    )


CASES: Final = (
    Case("a text", 2000, "image", item_lengths=(), packed={}, batched={}, shared={}),
    _image_case("a small image", 2000, num_items=1, rows=16, width=48),
    _image_case("12 MiB of patches", 200, 3, 12 * _MIB // 4 // _PATCH // 3, _PATCH),
    _image_case("48 MiB of patches", 100, 3, 48 * _MIB // 4 // _PATCH // 3, _PATCH),
    Case(
        name="150 tensors of 4 KiB",
        repeat=300,
        modality="audio",
        item_lengths=(150,),
        packed={},
        batched={},
        shared={f"clip_{index}": (1024,) for index in range(150)},
    ),
)

Tensors: TypeAlias = dict[str, torch.Tensor]
"""The tensors of a request by field."""


def new_floats(case: Case) -> Tensors:
    """New float32 tensors for a request, in ordinary memory; their values are undefined."""
    return {name: torch.empty(shape) for name, shape in case.floats.items()}


def floats_in_one_block(case: Case, allocate: Callable[[int], torch.Tensor]) -> Tensors:
    """Float32 tensors for a request that are views of one block.

    Args:
        case: The kind of request.
        allocate: Called with a number of values, returns the one-dimensional block.
    """
    shapes = case.floats
    sizes = [torch.Size(shape).numel() for shape in shapes.values()]
    parts = torch.split(allocate(sum(sizes)), sizes)
    return {
        name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }


def fill(case: Case, floats: Tensors, value: int) -> Tensors:
    """Write a value everywhere, as preprocessing would write pixels, and add the small fields."""
    for tensor in floats.values():
        tensor.fill_(value)
    grids = {name: torch.full(shape, value) for name, shape in case.batched.items()}
    return {**floats, **grids}


def sum_of_first_values(tensors: Iterable[torch.Tensor]) -> int:
    """What a receiver does with its tensors: looks at one value in each."""
    return sum([int(tensor.numpy().item(0)) for tensor in tensors])


def as_plain(case: Case, tensors: Mapping[str, object]) -> dict[str, Any]:
    """A request as nested dicts and lists, as one would send it without omniwire.

    Args:
        case: The kind of request.
        tensors: Its tensors by field, or what stands for them.
    """
    num_items = len(case.item_lengths)
    return {
        "request_id": "request-1",
        "prompt_token_ids": list(range(NUM_PROMPT_TOKENS)),
        "items": {
            "refs": [(case.modality, index) for index in range(num_items)],
            "encoder_token_lengths": list(case.item_lengths),
            "output_embedding_lengths": list(_num_rows(case)),
            "packed": {name: list(case.item_lengths) for name in case.packed},
            "batched": list(case.batched),
            "hashes": _hashes(num_items),
            "positions": _positions(num_items),
            "lengths": [_SPAN] * num_items,
        },
        "tensors": dict(tensors),
    }


def as_request(case: Case, tensors: Tensors) -> ow.ProcessedRequest:
    """The same request as a contract, with all that admission to an executor asks for."""
    if not case.item_lengths:
        return ow.ProcessedRequest("request-1", range(NUM_PROMPT_TOKENS))
    num_items = len(case.item_lengths)
    partitions = {
        **{name: ow.MultimodalItemPartition(case.item_lengths) for name in case.packed},
        **{name: ow.MultimodalItemPartition() for name in case.batched},
    }
    record = ow.MultimodalItemMetadata(
        [(case.modality, index) for index in range(num_items)],
        case.item_lengths,
        _num_rows(case),
        {case.modality: partitions},
    )
    given = ow.MultimodalInput(_hashes(num_items), _positions(num_items), [_SPAN] * num_items)
    params = ow.MultimodalParams(given, {case.modality: tensors, "item_metadata": record})
    return ow.ProcessedRequest("request-1", range(NUM_PROMPT_TOKENS), params)


_SPAN: Final = 80
"""Prompt tokens of each item."""


def _num_rows(case: Case) -> tuple[int, ...]:
    return tuple(-(-length // 4) for length in case.item_lengths)


def _hashes(num_items: int) -> list[list[int]]:
    return [[index + 1] * 8 for index in range(num_items)]


def _positions(num_items: int) -> list[int]:
    return [100 * index for index in range(num_items)]
