"""Checks that several contracts share: integers, strings, sequences and indices.

Each one appends a `Problem` per broken rule to a list. Every element is looked at; the fast
path over a well-formed sequence runs in C, the slow path runs only to name what is wrong.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

from omniwire.contracts.describe import describe
from omniwire.contracts.errors import Path, Problem, contract_error

INT32_MIN: Final = -(2**31)
INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1

MAX_PROBLEMS: Final = 10_000
"""Most problems that one error lists; the elements after them are not looked at."""

_MODALITY: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
MODALITY_FORMAT: Final = "a modality name ([a-z][a-z0-9_]{0,63})"

T = TypeVar("T")


def tupled(value: Any) -> Any:
    """A list as a tuple; anything else as it is, for the object's validator to judge."""
    return tuple(value) if type(value) is list else value


def as_ints(value: Iterable[int]) -> tuple[int, ...]:
    """A field converter: a list as a tuple; the validator judges anything else."""
    return tupled(value)  # type: ignore[no-any-return]  # judged by the validator


def as_optional_ints(value: Iterable[int] | None) -> tuple[int, ...] | None:
    """Like `as_ints`, for a field that may be None."""
    return tupled(value)  # type: ignore[no-any-return]  # judged by the validator


def each(values: Iterable[T], problems: list[Problem]) -> Iterator[tuple[int, T]]:
    """Enumerate values until there are `MAX_PROBLEMS`, which bounds what a huge object costs."""
    for index, value in enumerate(values):
        if len(problems) >= MAX_PROBLEMS:
            return
        yield index, value


def raise_problems(subject: str, problems: list[Problem]) -> None:
    """Raise the contract error for `problems`, if there are any."""
    if problems:
        raise contract_error(subject, problems)


def check_int(
    problems: list[Problem], path: Path, value: object, low: int, high: int = INT64_MAX
) -> bool:
    """Check one integer, `low <= value <= high`; a bool is not an integer."""
    if type(value) is not int:
        problems.append(Problem(path, "type", "an int", describe(value)))
        return False
    if not low <= value <= high:
        problems.append(Problem(path, "range", _range(low, high), describe(value)))
        return False
    return True


def check_ints(
    problems: list[Problem], path: Path, values: object, low: int, high: int = INT64_MAX
) -> bool:
    """Check a tuple of integers, each `low <= value <= high`."""
    if type(values) is not tuple:
        problems.append(Problem(path, "type", "a tuple or list of ints", describe(values)))
        return False
    if not values or (
        set(map(type, values)) == {int} and min(values) >= low and max(values) <= high
    ):
        return True
    for index, value in each(values, problems):
        check_int(problems, (*path, index), value, low, high)
    return False


def _range(low: int, high: int) -> str:
    if (low, high) == (INT32_MIN, INT32_MAX):
        return "a signed 32-bit int"
    if high == INT64_MAX:
        return f"an int of at least {low}"
    return f"an int of {low} to {high}"


def check_text(problems: list[Problem], path: Path, value: object, *, empty: bool = False) -> bool:
    """Check a string: exactly `str`, encodable as UTF-8, and not empty unless `empty`."""
    if type(value) is not str:
        problems.append(Problem(path, "type", "a str", describe(value)))
        return False
    if not value and not empty:
        problems.append(Problem(path, "format", "a non-empty str", "''"))
        return False
    if not is_encodable(value):
        problems.append(Problem(path, "format", "a str without lone surrogates", describe(value)))
        return False
    return True


def is_encodable(text: str) -> bool:
    """Whether a string can be written as UTF-8, which lone surrogates cannot."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_modality(value: object) -> bool:
    """Whether `value` is a well-formed modality name."""
    return type(value) is str and _MODALITY.fullmatch(value) is not None


def check_count(problems: list[Problem], path: Path, found: int, expected: int, unit: str) -> bool:
    """Check a number of elements against the number that another field gives."""
    if found == expected:
        return True
    problems.append(Problem(path, "count", f"{expected} {unit}", str(found)))
    return False


def check_instance(
    problems: list[Problem], path: Path, value: object, kind: type | tuple[type, ...], name: str
) -> bool:
    """Check that a value is exactly of one of the given types."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if type(value) in kinds:
        return True
    problems.append(Problem(path, "type", name, describe(value)))
    return False


def check_indices(
    indices: object, count: int, subject: str, parameter: str = "prompt_indices"
) -> tuple[int, ...]:
    """Check item indices before they select from `count` items.

    Args:
        indices: A list, tuple or range of ints; repeats are allowed.
        count: Number of items there are.
        subject: Name of the object that is selected from, for the error.
        parameter: Name of the argument, for the error's path.

    Returns:
        The indices as a tuple of ints, each in `[0, count)`, at least one.

    Raises:
        ContractTypeError: An index is not an int (a bool is none).
        ContractValueError: The selection is empty, or an index is out of range or negative.
    """
    if not isinstance(indices, Sequence) or isinstance(indices, str | bytes | bytearray):
        got = describe(indices)
        raise contract_error(subject, [Problem((parameter,), "type", "a sequence of ints", got)])
    chosen: tuple[object, ...] = tuple(indices)
    if not chosen:
        problem = Problem((parameter,), "index", "at least one index", "an empty selection")
        raise contract_error(subject, [problem])
    if set(map(type, chosen)) == {int}:
        ints: tuple[int, ...] = chosen  # type: ignore[assignment]  # every element is an int
        if min(ints) >= 0 and max(ints) < count:
            return ints
    problems: list[Problem] = []
    for position, index in each(chosen, problems):
        path = (parameter, position)
        if type(index) is not int:
            problems.append(Problem(path, "type", "an int", describe(index)))
        elif not 0 <= index < count:
            expected = f"an index in [0, {count})"
            problems.append(Problem(path, "index", expected, describe(index)))
    raise contract_error(subject, problems)
