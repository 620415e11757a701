"""`FrozenMapping`: the immutable mapping that carries payload trees."""

from collections.abc import ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from typing import Any, ClassVar, Final, NoReturn, Self, SupportsIndex, TypeVar

import numpy as np
import torch

from omniwire.contracts.base import Contract
from omniwire.contracts.checks import MAX_PROBLEMS, is_encodable, raise_problems
from omniwire.contracts.describe import describe, summarize
from omniwire.contracts.equality import structural_hash, structurally_equal
from omniwire.contracts.errors import Path, Problem
from omniwire.contracts.tensors import array_problem, tensor_problem

V_co = TypeVar("V_co", covariant=True)

MAX_PAYLOAD_DEPTH: Final = 32
"""Deepest nesting of mappings, tuples and records in a payload, its own mapping included.

It is the default of `Limits.max_depth`, which counts the same levels.
"""

MAX_PAYLOAD_ELEMENTS: Final = 2**22
"""Most elements of mappings and tuples in one payload; bounds the walk over endless values."""

_INT_LOW: Final = -(2**63)
_INT_HIGH: Final = 2**64 - 1
_PLAIN_LEAVES: Final = frozenset((bool, float, bytes, type(None)))
_LEGAL: Final = (
    "a tensor, numpy array, contract record, str, int, float, bool, None, bytes, "
    "or a tuple or mapping of those"
)


class FrozenMapping(Mapping[str, V_co]):
    """An immutable mapping from strings to payload values, frozen all the way down.

    Lists become tuples, mappings become `FrozenMapping`; tensors and arrays are held, not
    copied, and are read-only by contract. Two of them are equal when their keys and values
    are, tensors by bits; key order does not count but is kept. It hashes if it holds no
    tensor.

    Args:
        values: Any mapping with string keys.

    Raises:
        ContractError: A key is not a string, or a value cannot be part of a payload.

    >>> frozen = FrozenMapping({"image": {"sizes": [[480, 640]]}})
    >>> frozen["image"]["sizes"]
    ((480, 640),)
    """

    __slots__ = ("__weakref__", "_depth", "_values")
    _values: dict[str, V_co]
    _depth: int
    __array_ufunc__: ClassVar[None] = None  # as for a Contract

    def __init__(self, values: Mapping[str, V_co]) -> None:
        if not isinstance(values, Mapping):
            problem = Problem((), "type", "a mapping", describe(values))
            raise_problems("FrozenMapping", [problem])
        problems: list[Problem] = []
        frozen = freeze(values, (), problems)
        raise_problems("FrozenMapping", problems)
        assert isinstance(frozen, FrozenMapping)
        object.__setattr__(self, "_values", frozen._values)
        object.__setattr__(self, "_depth", frozen._depth)

    @classmethod
    def _wrap(cls, values: dict[str, Any], depth: int = 0) -> Self:
        """Own `values`, which are known to be frozen and at most `depth` levels deep."""
        self = cls.__new__(cls)
        object.__setattr__(self, "_values", values)
        object.__setattr__(
            self, "_depth", depth or 1 + max(map(depth_of, values.values()), default=0)
        )
        return self

    def __getitem__(self, key: str) -> V_co:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def keys(self) -> KeysView[str]:
        """The keys, in the order they were given."""
        return self._values.keys()

    def values(self) -> ValuesView[V_co]:
        """The values, in key order."""
        return self._values.values()

    def items(self) -> ItemsView[str, V_co]:
        """Pairs of key and value."""
        return self._values.items()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        return structurally_equal(self, other)

    def __hash__(self) -> int:
        return structural_hash(self)

    def __repr__(self) -> str:
        return f"FrozenMapping({summarize(self)})"

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"FrozenMapping is immutable: cannot set {name!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"FrozenMapping is immutable: cannot delete {name!r}")

    def __copy__(self) -> Self:
        return self

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return Contract.__reduce_ex__(self, protocol)  # type: ignore[arg-type]  # needs no field


def depth_of(value: object) -> int:
    """How many levels of mappings, tuples and records a frozen value spans."""
    kind = type(value)
    if kind is FrozenMapping:
        return value._depth  # type: ignore[attr-defined, no-any-return]  # narrowed by its type
    if kind is tuple:
        assert isinstance(value, tuple)
        return 1 + max(map(depth_of, value), default=0)
    if isinstance(value, Contract):
        return value._depth_on_wire()
    return 0


def freeze(value: object, path: Path, problems: list[Problem]) -> object:
    """Deep-freeze a payload value and check every part of it.

    Args:
        value: Anything; lists become tuples and mappings `FrozenMapping`.
        path: Where the value stands in the object that is checked.
        problems: Receives a problem for each part that a payload cannot hold.

    Returns:
        The frozen value; meaningless if a problem was added.
    """
    if type(value) is FrozenMapping and value._depth <= MAX_PAYLOAD_DEPTH:
        return value
    freezer = _Freezer(path, problems)
    try:
        return freezer.freeze(value, MAX_PAYLOAD_DEPTH)
    except _Overgrown:
        return None


def empty_mapping() -> FrozenMapping[Any]:
    """The default of a payload field."""
    return FrozenMapping._wrap({})


class Rejected(tuple[Problem, ...]):
    """What a converter found wrong, kept until the object's own validator reports it."""

    __slots__ = ()


def as_frozen(value: Any) -> Any:
    """A field converter: a mapping frozen, or what is wrong with it as `Rejected`."""
    if type(value) is FrozenMapping or not isinstance(value, Mapping):
        return value
    problems: list[Problem] = []
    frozen = freeze(value, (), problems)
    return Rejected(problems) if problems else frozen


def as_payload(value: Mapping[str, Any]) -> FrozenMapping[Any]:
    """A field converter for a payload tree, which is the one place for `Any` in a contract."""
    return as_frozen(value)  # type: ignore[no-any-return]  # judged by the validator


def take_frozen(value: object, path: Path, problems: list[Problem]) -> bool:
    """Whether `as_frozen` could freeze the field at `path`; reports what it found wrong."""
    if type(value) is FrozenMapping:
        return True
    if type(value) is Rejected:
        problems.extend(p._replace(path=(*path, *p.path)) for p in value)
    else:
        problems.append(Problem(path, "type", "a mapping with string keys", describe(value)))
    return False


class _Overgrown(Exception):  # never leaves this module
    """The walk stopped: the value is too deep, too large, perhaps endless, or wrong all over."""


class _Freezer:
    """One walk over a payload; `path` follows it, so that only problems pay for a path."""

    __slots__ = ("path", "problems", "visited")

    def __init__(self, path: Path, problems: list[Problem]) -> None:
        self.path: list[str | int] = list(path)
        self.problems = problems
        self.visited = 0

    def report(self, code: str, expected: str, got: str) -> None:
        self.add(Problem(tuple(self.path), code, expected, got))

    def add(self, problem: Problem) -> None:
        self.problems.append(problem)
        if len(self.problems) >= MAX_PROBLEMS:
            raise _Overgrown

    def freeze(self, value: object, room: int) -> object:
        """Freeze `value`, which may span `room` levels."""
        kind = type(value)
        if kind in _PLAIN_LEAVES:
            return value
        if kind is torch.Tensor or kind is np.ndarray:
            self.check_array(value)
            return value
        if kind is str:
            if not is_encodable(value):  # type: ignore[arg-type]  # a str
                self.report("format", "a str without lone surrogates", describe(value))
            return value
        if kind is int:
            if not _INT_LOW <= value <= _INT_HIGH:  # type: ignore[operator]  # an int
                self.report("range", "an int of at most 64 bits", describe(value))
            return value
        if kind is tuple or kind is list:
            return self.freeze_sequence(value, room)  # type: ignore[arg-type]  # a sequence
        if kind is FrozenMapping or isinstance(value, Contract):
            if depth_of(value) > room:
                self.stop_too_deep()
            return value
        if isinstance(value, Mapping):
            return self.freeze_mapping(value, room)
        if isinstance(value, torch.Tensor | np.ndarray):
            self.check_array(value)
        else:
            self.report("type", _LEGAL, describe(value))
        return value

    def check_array(self, value: object) -> None:
        path = tuple(self.path)
        if isinstance(value, torch.Tensor):
            problem = tensor_problem(path, value)
        else:
            assert isinstance(value, np.ndarray)
            problem = array_problem(path, value)
        if problem is not None:
            self.add(problem)

    def freeze_sequence(self, values: Sequence[object], room: int) -> tuple[object, ...]:
        self.enter(len(values), room)
        frozen = []
        for index, value in enumerate(values):
            self.path.append(index)
            frozen.append(self.freeze(value, room - 1))
            self.path.pop()
        return tuple(frozen)

    def freeze_mapping(self, values: Mapping[object, object], room: int) -> FrozenMapping[object]:
        self.enter(len(values), room)
        frozen: dict[str, object] = {}
        depth = 0
        for key, value in values.items():
            if type(key) is not str:
                self.report("type", "string keys", f"the key {describe(key)}")
                continue
            self.path.append(key)
            if not is_encodable(key):
                self.report("format", "a key without lone surrogates", describe(key))
            item = self.freeze(value, room - 1)
            frozen[key] = item
            depth = max(depth, depth_of(item))
            self.path.pop()
        return FrozenMapping._wrap(frozen, 1 + depth)

    def enter(self, size: int, room: int) -> None:
        """Count a container's elements before walking them."""
        if room <= 0:
            self.stop_too_deep()
        self.visited += size
        if self.visited > MAX_PAYLOAD_ELEMENTS:
            self.report(
                "count", f"at most {MAX_PAYLOAD_ELEMENTS} elements", f"{self.visited} or more"
            )
            raise _Overgrown

    def stop_too_deep(self) -> NoReturn:
        self.report("depth", f"at most {MAX_PAYLOAD_DEPTH} levels of nesting", "a deeper value")
        raise _Overgrown
