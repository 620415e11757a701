"""`guarded`: beartype on public functions, with omniwire's own errors."""

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin

from beartype.door import is_bearable

from omniwire.contracts.describe import describe
from omniwire.contracts.errors import Problem, contract_error

P = ParamSpec("P")
R = TypeVar("R")


def guarded(function: Callable[P, R]) -> Callable[P, R]:
    """Check a public function's arguments against its annotations.

    A wrong argument raises `ContractTypeError` with one problem of code `type` whose path is
    `(parameter,)`; the argument is described, never printed. Only the argument itself is
    looked at, not what a container holds: beartype would sample that, and a validator inside
    the function looks at every element.
    """
    parameters = inspect.signature(function).parameters
    names = tuple(parameters)
    hints = {
        name: _shallow(parameter.annotation)
        for name, parameter in parameters.items()
        if parameter.annotation not in (inspect.Parameter.empty, Any)
    }
    kinds = {name: _kinds(hint) for name, hint in hints.items()}

    # Asked rather than decorated: beartype's own errors print the argument before anyone can
    # stop them, which copies a tensor off its device and takes a `__repr__` at its word.
    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        given = zip(names, args, strict=False)
        for name, value in (*given, *kwargs.items()) if kwargs else given:
            if name in kinds and not isinstance(value, kinds[name]):
                _judge(function, hints, {**dict(zip(names, args, strict=False)), **kwargs})
                break
        return function(*args, **kwargs)

    return call


def _judge(
    function: Callable[..., object], hints: dict[str, Any], arguments: dict[str, object]
) -> None:
    problems = [
        Problem((name,), "type", _words(hints[name]), describe(value))
        for name, value in arguments.items()
        if name in hints and not is_bearable(value, hints[name])
    ]
    if problems:
        raise contract_error(function.__qualname__, problems)


def _kinds(hint: Any) -> Any:
    """What `isinstance` takes in place of the hint, to pass nearly every call in no time."""
    try:
        isinstance(None, hint)
    except TypeError:
        return ()
    return hint


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
