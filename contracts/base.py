"""What every contract type has in common: equality, hashing, pickling, trusted building."""

from typing import Any, ClassVar, Self, SupportsIndex

import attrs

from omniwire.contracts.describe import summarize
from omniwire.contracts.equality import structural_hash, structurally_equal


class Contract:
    """Base of the contract types: immutable, compared by structure, pickled by `encode`.

    A class that may hold tensors sets `__hash__ = None`; the others hash by structure.
    """

    __slots__ = ()

    _INCOMPARABLE: ClassVar[frozenset[str]] = frozenset()
    """Fields that `==` leaves out."""

    __array_ufunc__: ClassVar[None] = None
    """Keeps numpy from comparing element by element: `==` with an array is False."""

    @classmethod
    def _field_names(cls) -> list[str]:
        fields = attrs.fields(cls)  # type: ignore[arg-type]  # every subclass is an attrs class
        return [field.name for field in fields]

    @classmethod
    def _comparable_fields(cls) -> list[str]:
        """The fields that count for `==` and `content_hash`, in order."""
        return [name for name in cls._field_names() if name not in cls._INCOMPARABLE]

    def _comparable_parts(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self._comparable_fields())

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return False
        assert isinstance(other, Contract)
        return structurally_equal(self._comparable_parts(), other._comparable_parts())

    def __hash__(self) -> int:
        return hash((type(self), structural_hash(self._comparable_parts())))

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{name}={summarize(getattr(self, name))}" for name in self._field_names()
        )
        return f"{type(self).__name__}({shown})"

    def __copy__(self) -> Self:
        return self

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        # The one import from contracts to serialization: pickle is just another way to encode.
        from omniwire.serialization.pickling import reduce_contract  # noqa: PLC0415

        return reduce_contract(self, protocol)

    def _depth_on_wire(self) -> int:
        """Levels of nesting that this record adds to a payload that holds it."""
        return 1 + max(
            (_field_depth(getattr(self, name)) for name in self._field_names()), default=0
        )

    @classmethod
    def _trusted(cls, **fields: object) -> Self:
        """Build an instance from values that are known to be valid; no validator runs.

        Args:
            **fields: Every field of the class, already in its stored form.
        """
        self = cls.__new__(cls)
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        return self


def _field_depth(value: object) -> int:
    if isinstance(value, Contract):
        return value._depth_on_wire()
    if isinstance(value, tuple):  # of records of one type, of tuples of ints, or of ints
        first = value[0] if value else None
        return 1 + (first._depth_on_wire() if isinstance(first, Contract) else 1)
    return int(getattr(value, "_depth", 0))  # a FrozenMapping knows its own
