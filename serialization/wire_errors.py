"""Errors on the wire: a class name from a closed table and the plain values it is built from.

Notes, causes and tracebacks stay behind.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from omniwire.contracts.checks import is_encodable
from omniwire.contracts.describe import describe
from omniwire.contracts.errors import (
    WIRE_ERRORS,
    DecodeError,
    OmniwireError,
    Problem,
    error_arguments,
)
from omniwire.serialization.refusal import Refused

_Check = Callable[[object], bool]


def _is_text(value: object) -> bool:
    return type(value) is str and is_encodable(value)


def _is_int(value: object) -> bool:
    return type(value) is int and -(2**63) <= value < 2**64


def _is_optional_int(value: object) -> bool:
    return value is None or _is_int(value)


def _is_names(value: object) -> bool:
    return type(value) is tuple and all(map(_is_text, value))


def _is_problem(value: object) -> bool:
    if not isinstance(value, tuple) or len(value) != len(Problem._fields):
        return False
    path, *texts = value
    return (
        type(path) is tuple
        and all(_is_text(part) or _is_int(part) for part in path)
        and all(map(_is_text, texts))
    )


def _is_problems(value: object) -> bool:
    return type(value) is tuple and all(map(_is_problem, value))


ARGUMENTS: Final[Mapping[str, tuple[_Check, ...]]] = MappingProxyType(
    {
        "OmniwireError": (_is_text,),
        "ContractTypeError": (_is_text, _is_problems),
        "ContractValueError": (_is_text, _is_problems),
        "AdmissionError": (_is_text, _is_problems, _is_text),
        "EncodeError": (_is_text, _is_problem),
        "DecodeError": (_is_text, _is_text, _is_optional_int),
        "UnsupportedVersionError": (_is_int, _is_int),
        "HandoffError": (_is_text,),
        "PeerClosed": (_is_text,),
        "PeerDied": (_is_text,),
        "HandoffTimeout": (_is_text,),
        "ArenaFull": (_is_text,),
        "HandlerNotFoundError": (_is_text, _is_names),
        "AccumulationError": (_is_text, _is_text, _is_text, _is_text),
    }
)
"""What each error in `WIRE_ERRORS` is built from."""


def error_to_wire(error: OmniwireError) -> list[Any]:
    """An error as its class name and arguments.

    Raises:
        Refused: Its class is not in the table, or it was built from other values.
    """
    name = type(error).__name__
    if WIRE_ERRORS.get(name) is not type(error):
        raise Refused(error, "type", "an error of a class that can travel", describe(error))
    arguments = error_arguments(error)
    if not _fits(name, arguments):
        expected = f"a {name} made from plain values"
        raise Refused(error, "type", expected, "one made from others")
    return [name, *map(_plain, arguments)]


def error_from_wire(raw: object) -> OmniwireError:
    """Build an error from its unpacked class name and arguments.

    Raises:
        DecodeError: The class is unknown or an argument of the wrong type.
    """
    if type(raw) is not tuple or not raw or type(raw[0]) is not str:
        raise DecodeError("expected an error's class name and arguments", "type")
    name, *arguments = raw
    if name not in WIRE_ERRORS:
        raise DecodeError(f"expected a known error, got {ascii(name)[:80]}", "unknown")
    if not _fits(name, tuple(arguments)):
        raise DecodeError(f"expected the arguments of {name}", "type")
    return WIRE_ERRORS[name](*arguments)


def _fits(name: str, arguments: tuple[object, ...]) -> bool:
    checks = ARGUMENTS[name]
    return len(arguments) == len(checks) and all(
        check(argument) for check, argument in zip(checks, arguments, strict=True)
    )


def _plain(value: object) -> object:
    """Tuples, `Problem` among them, as lists."""
    return list(map(_plain, value)) if isinstance(value, tuple) else value
