"""Which tensors there are in what is drawn: the keyword arguments that most strategies share."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Self, TypedDict

import torch

from omniwire.contracts.handles import HANDLE_KINDS

TENSOR_LAYOUTS: Final = (
    "contiguous",
    "transposed",
    "sliced",
    "expanded",
    "stray_strides",
    "conjugated",
)
ARRAY_LAYOUTS: Final = ("contiguous", "transposed", "sliced", "expanded", "reversed")
MEMORY_LAYOUTS: Final = tuple(dict.fromkeys((*TENSOR_LAYOUTS, *ARRAY_LAYOUTS)))
PAYLOAD_LAYOUTS: Final = ("batched", "packed", "shared", "undeclared")
OUTPUT_LAYOUTS: Final = ("flat", "nested")


class TensorKnobs(TypedDict, total=False):
    """Keyword arguments about tensors; each is by default as wide as it can be."""

    handle_kinds: Sequence[str]
    """Kinds of `TensorHandle` in the place of some tensors; by default none, since only those
    that are not `"local"` can be encoded and only local ones can be resolved."""

    dtypes: Sequence[torch.dtype]
    """Data types of tensors, and of arrays where numpy has them; without, there are no arrays."""

    devices: Sequence[str]
    """Devices of tensors, such as `"cuda"`; by default the CPU. Arrays are host memory."""

    memory_layouts: Sequence[str]
    """How tensors and arrays lie in memory, out of `MEMORY_LAYOUTS`. `"stray_strides"` and
    `"conjugated"` (stored bits that are not the values) are for tensors only, `"reversed"` for
    arrays; `"expanded"` arrays are read-only."""


@dataclass(frozen=True)
class TensorKinds:
    """The same, checked; hashable, since strategies are cached by them."""

    handle_kinds: tuple[str, ...] = ()
    dtypes: tuple[torch.dtype, ...] | None = None
    devices: tuple[str, ...] = ("cpu",)
    memory_layouts: tuple[str, ...] = MEMORY_LAYOUTS

    @classmethod
    def of(cls, knobs: TensorKnobs) -> Self:
        """What the keyword arguments say.

        Raises:
            TypeError: There is no such argument.
            ValueError: A value is unknown, or none is left to draw.
        """
        values: dict[str, Any] = {name: _as_tuple(name, value) for name, value in knobs.items()}
        kinds = cls(**values)
        check_names("handle_kinds", kinds.handle_kinds, HANDLE_KINDS)
        check_names("memory_layouts", kinds.memory_layouts, MEMORY_LAYOUTS)
        for field in fields(cls):
            if field.name != "handle_kinds" and getattr(kinds, field.name) == ():
                raise ValueError(f"{field.name}: expected at least one, got none")
        if not kinds.layouts_in(TENSOR_LAYOUTS):
            expected = f"one of {', '.join(TENSOR_LAYOUTS)} for the tensors"
            raise ValueError(f"memory_layouts: expected {expected}, got {kinds.memory_layouts}")
        return kinds

    def layouts_in(self, known: Sequence[str]) -> tuple[str, ...]:
        """The memory layouts that are among those known."""
        return tuple(layout for layout in self.memory_layouts if layout in known)


ANY_TENSORS: Final = TensorKinds()


def check_names(knob: str, given: Sequence[str], known: Sequence[str]) -> None:
    """Check that every value of a knob is known.

    Raises:
        ValueError: One is not.
    """
    for value in given:
        if value not in known:
            raise ValueError(f"{knob}: expected any of {', '.join(known)}, got {value!r}")


def _as_tuple(name: str, value: object) -> tuple[object, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"{name}: expected a sequence, got {value!r}")
    return tuple(value)
