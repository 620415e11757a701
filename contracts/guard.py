"""`guarded`: beartype on public functions, with omniwire's own errors."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeVar, cast

from beartype import BeartypeConf, beartype
from beartype.door import is_bearable

from omniwire.contracts.describe import describe
from omniwire.contracts.errors import Problem, contract_error

P = ParamSpec("P")
R = TypeVar("R")


class _Violation(Exception):  # noqa: N818  # never leaves this module
    """What beartype raises inside a guarded call; its text may show values, so it is dropped."""


_CONFIGURATION: Final = BeartypeConf(violation_param_type=_Violation)


def guarded(function: Callable[P, R]) -> Callable[P, R]:
    """Check a public function's arguments against its annotations.

    A wrong argument raises `ContractTypeError` with one problem of code `type` whose path is
    `(parameter,)`; the argument is described, never printed. Elements of containers are only
    sampled, so a validator inside the function must still look at every one.
    """
    checked = cast(Callable[P, R], beartype(conf=_CONFIGURATION)(cast(Any, function)))

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return checked(*args, **kwargs)
        except _Violation:
            problem = _violated_parameter(function, args, kwargs)
        raise contract_error(function.__name__, [problem])

    return call


def _violated_parameter(
    function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
) -> Problem:
    signature = inspect.signature(function)
    for name, value in signature.bind(*args, **kwargs).arguments.items():
        hint = signature.parameters[name].annotation
        if not is_bearable(value, hint):
            return Problem((name,), "type", inspect.formatannotation(hint), describe(value))
    return Problem((), "type", "arguments as annotated", "an element of the wrong type")
