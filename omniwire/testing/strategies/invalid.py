"""What the `invalid_...` strategies draw, and the defects that they are built from."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import attrs
import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from omniwire.contracts.errors import Path


@dataclass(frozen=True)
class Invalid:
    """A call that must raise a `ContractError` with exactly one problem.

    Attributes:
        build: What is called: a contract's class, one of its constructors or a check.
        arguments: The keyword arguments of the call.
        path: The path of the problem.
        code: The code of the problem, one of `PROBLEM_CODES`.

    >>> from omniwire.contracts import ContractError, ItemRef
    >>> invalid = Invalid(ItemRef, {"modality": "image", "index": -1}, ("index",), "range")
    >>> try:
    ...     invalid.construct()
    ... except ContractError as error:
    ...     [(problem.path, problem.code) for problem in error.problems]
    [(('index',), 'range')]
    """

    build: Callable[..., object]
    arguments: Mapping[str, object]
    path: Path
    code: str

    def construct(self) -> object:
        """Make the call."""
        return self.build(**self.arguments)


Defect = Callable[[DrawFn, dict[str, Any]], tuple[Path, str]]
"""Puts one defect into the arguments of a valid call; returns its path and code."""

NOT_INTS: Final = st.sampled_from([True, 1.0, "1", b"1", np.int64(1)])
NEGATIVE: Final = st.integers(-(2**63), -1)
NOT_TEXTS: Final = st.sampled_from([1, b"r1", ("r1",)])
BAD_TEXTS: Final = st.sampled_from(["", "\ud800", "r1\udfff"])
NOT_BOOLS: Final = st.sampled_from([0, 1, "yes", np.True_])
NOT_SEQUENCES: Final = st.sampled_from([1, "12", {1: 2}, {1, 2}])
NOT_MAPPINGS: Final = st.sampled_from([1, "image", (("image", 1),), {"image"}])
NONE: Final[SearchStrategy[object]] = st.none()


def broken(
    build: Callable[..., object], valid: SearchStrategy[Any], defects: Sequence[Defect]
) -> SearchStrategy[Invalid]:
    """Calls with one of the defects, each as likely as the others.

    Args:
        build: What is called.
        valid: The valid arguments: as a mapping, or as a contract that has them as its fields.
        defects: The defects; each must fit any of the valid arguments.
    """
    return st.one_of([_broken(build, valid, defect) for defect in defects])


@st.composite
def _broken(
    draw: DrawFn, build: Callable[..., object], valid: SearchStrategy[Any], defect: Defect
) -> Invalid:
    found = draw(valid)
    arguments = dict(found) if isinstance(found, Mapping) else fields_of(found)
    path, code = defect(draw, arguments)
    return Invalid(build, arguments, path, code)


def fields_of(contract: Any) -> dict[str, Any]:
    """A contract's fields by name."""
    return {field.name: getattr(contract, field.name) for field in attrs.fields(type(contract))}


def wrong(name: str, values: SearchStrategy[object], code: str) -> Defect:
    """One of the given values in place of an argument."""

    def put_in(draw: DrawFn, arguments: dict[str, Any]) -> tuple[Path, str]:
        arguments[name] = draw(values)
        return (name,), code

    return put_in


def wrong_element(name: str, values: SearchStrategy[object], code: str) -> Defect:
    """One of the given values in place of an element of a sequence."""

    def put_in(draw: DrawFn, arguments: dict[str, Any]) -> tuple[Path, str]:
        elements = list(arguments[name])
        index = draw(st.integers(0, len(elements) - 1))
        elements[index] = draw(values)
        arguments[name] = elements
        return (name, index), code

    return put_in


def surplus_element(name: str) -> Defect:
    """A sequence with its last element twice."""

    def put_in(_: DrawFn, arguments: dict[str, Any]) -> tuple[Path, str]:
        arguments[name] = [*arguments[name], arguments[name][-1]]
        return (name,), "count"

    return put_in
