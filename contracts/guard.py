"""`guarded`: beartype on public functions, with omniwire's own errors."""

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeVar, Union, cast, get_args, get_origin

from beartype import BeartypeConf, beartype
from beartype.door import is_bearable

from omniwire.contracts.describe import describe
from omniwire.contracts.errors import Problem, contract_error

P = ParamSpec("P")
R = TypeVar("R")


class _Violation(Exception):  # never leaves this module
    """What beartype raises inside a guarded call; its text may show values, so it is dropped."""


_CONFIGURATION: Final = BeartypeConf(violation_param_type=_Violation)


def guarded(function: Callable[P, R]) -> Callable[P, R]:
    """Check a public function's arguments against its annotations.

    A wrong argument raises `ContractTypeError` with one problem of code `type` whose path is
    `(parameter,)`; the argument is described, never printed. Only the argument itself is
    looked at, not what a container holds: beartype would sample that, and a validator inside
    the function looks at every element.
    """
    hints = {
        name: _shallow(parameter.annotation)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.annotation is not inspect.Parameter.empty
    }
    plain = cast(types.FunctionType, function)
    shallow = types.FunctionType(
        plain.__code__, plain.__globals__, plain.__name__, plain.__defaults__, plain.__closure__
    )
    shallow.__kwdefaults__ = plain.__kwdefaults__
    shallow.__annotations__ = dict(hints)
    checked = cast(Callable[P, R], beartype(conf=_CONFIGURATION)(cast(Any, shallow)))

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return checked(*args, **kwargs)
        except _Violation:
            arguments = inspect.signature(function).bind(*args, **kwargs).arguments
        problems = [
            Problem((name,), "type", _words(hints[name]), describe(value))
            for name, value in arguments.items()
            if name in hints and not is_bearable(value, hints[name])
        ]
        raise contract_error(plain.__qualname__, problems)

    return call


def _words(hint: Any) -> str:
    """The hint in words: `Tensor or TensorHandle`."""
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(map(_words, get_args(hint)))
    return "None" if hint is type(None) else str(getattr(hint, "__name__", hint))


def _shallow(hint: Any) -> Any:
    """The hint without what it says about elements: `Sequence[int]` is `Sequence`."""
    origin = get_origin(hint)
    if origin is Union or origin is types.UnionType:
        return Union[tuple(map(_shallow, get_args(hint)))]  # noqa: UP007  # built at run time
    return origin if isinstance(origin, type) else hint
