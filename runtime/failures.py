"""Errors of the output side: naming where they belong, and letting go of the payload."""

import traceback

from omniwire.contracts.errors import AccumulationError

_MAX_FOREIGN_TEXT = 200


def name_failure(error: Exception, request_id: str, modality: str, key: str) -> AccumulationError:
    """The error that names the request, the modality and the key of a failure.

    Args:
        error: What was raised; anything but an `AccumulationError` becomes the cause.
        request_id: The request.
        modality: The modality, `""` for the request itself.
        key: Dotted key of the payload that was looked at; the error's own key is inside it.
    """
    if isinstance(error, AccumulationError):
        named = AccumulationError(error._message, request_id, modality, join_keys(key, error.key))
        named.__cause__ = error.__cause__
        return named
    text = f"{type(error).__name__}: {str(error)[:_MAX_FOREIGN_TEXT]}"
    frames = traceback.extract_tb(error.__traceback__)
    if frames:
        text += f" (raised in {frames[-1].name}, line {frames[-1].lineno})"
    named = AccumulationError(text, request_id, modality, key)
    named.__cause__ = error
    return named


def join_keys(outer: str, inner: str) -> str:
    """The dotted key of `inner` inside of `outer`; either may be empty."""
    if not outer or not inner:
        return outer or inner
    return outer + inner if inner.startswith("[") else f"{outer}.{inner}"


def without_frames(error: BaseException) -> None:
    """Clear the tracebacks of an error and of what caused it.

    A traceback keeps the local variables of every frame alive, and with them the payload.
    """
    found: list[BaseException | None] = [error]
    seen: set[int] = set()
    while found:
        link = found.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            link.__traceback__ = None
            found += (link.__cause__, link.__context__)
