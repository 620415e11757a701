"""Every error omniwire raises, and the `Problem` records they carry.

All errors pickle, none of them keeps a payload alive: a value is described when the error
is made (`bf16[729, 1152]`, never its numbers) and only that text is stored.

An error's text is its sentences and nothing else. Where the documentation explains them is a
note (PEP 678) beside the text, which tracebacks and pytest print below it.
"""

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import ClassVar, Final, NamedTuple

Path = tuple[str | int, ...]
"""Where in an object something is: attribute names, mapping keys and sequence indices."""

PROBLEM_CODES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "type": "a value of the wrong Python type",
        "range": "a number outside its range",
        "format": "a string, digest or name not of the required form",
        "count": "a number of elements that disagrees with another",
        "sum": "lengths that do not add up to their total",
        "duplicate": "the same reference or name twice",
        "sequence": "numbers that must follow one another and do not",
        "order": "items or runs not in prompt order, or overlapping",
        "missing": "a required field or declaration is absent",
        "unknown": "a name that nothing declares",
        "conflict": "two values that exclude each other",
        "index": "an index outside the sequence it addresses, or an empty selection",
        "axis": "an axis that a field does not have",
        "shape": "a tensor of the wrong shape",
        "dtype": "a data type that cannot travel or does not match",
        "layout": "a tensor that is not a plain strided one with storage",
        "device": "a value on the wrong device",
        "depth": "nesting deeper than the limit",
        "state": "live executor state where it must not be",
        "budget": "an item that can never fit the encoder budget",
    }
)
"""The closed set of `Problem.code` values, each with its meaning."""

_PAGE = "docs/reference/errors.md"
_MAX_PROBLEMS_IN_TEXT = 20
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def format_path(path: Path) -> str:
    """Render a path: `("image", "grid", 0)` is `$.image.grid[0]`."""
    parts = ["$"]
    for part in path:
        if isinstance(part, int):
            parts.append(f"[{part}]")
        elif _IDENTIFIER.fullmatch(part):
            parts.append(f".{part}")
        else:
            parts.append(f"[{part!a}]")
    return "".join(parts)


class Problem(NamedTuple):
    """One broken rule.

    Attributes:
        path: Where, starting at the object that was checked.
        code: One of `PROBLEM_CODES`.
        expected: What the rule asks for, in words.
        got: A description of what was found, never the payload itself.
    """

    path: Path
    code: str
    expected: str
    got: str

    def sentence(self, subject: str) -> str:
        """The problem as one sentence about `subject`, the name of the checked object."""
        return f"{subject}: expected {self.expected}, got {self.got} - at {format_path(self.path)}"


def see(anchors: Iterable[str]) -> str:
    """Where the documentation explains something, as the last line of a message.

    >>> see(["problem-count", "problem-order", "problem-count"])
    'See docs/reference/errors.md#problem-count, #problem-order'
    """
    return f"See {_PAGE}{', '.join(f'#{anchor}' for anchor in dict.fromkeys(anchors))}"


def problem_anchors(problems: Iterable[Problem]) -> list[str]:
    """The anchors of the problems' codes; a code that came over the wire may have none."""
    return [f"problem-{p.code}" for p in problems if p.code in PROBLEM_CODES]


class OmniwireError(Exception):
    """Base of every error raised by omniwire."""


class ContractError(OmniwireError):
    """An object breaks the rules of its contract.

    Args:
        subject: Name of the object that was checked.
        problems: Every broken rule, in field order; at least one.
    """

    def __init__(self, subject: str, problems: Iterable[Problem]) -> None:
        self.subject = subject
        self.problems: tuple[Problem, ...] = tuple(Problem(*problem) for problem in problems)
        printed = self.problems[:_MAX_PROBLEMS_IN_TEXT]
        sentences = [problem.sentence(subject) for problem in printed]
        if len(self.problems) > _MAX_PROBLEMS_IN_TEXT:
            sentences.append(f"and {len(self.problems) - _MAX_PROBLEMS_IN_TEXT} more problems")
        super().__init__("\n".join(sentences))
        self.add_note(see(problem_anchors(printed) or ["contracterror"]))

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.subject, self.problems)


class ContractTypeError(ContractError, TypeError):
    """A contract is broken and at least one problem has code `type`."""


class ContractValueError(ContractError, ValueError):
    """A contract is broken and every value has the right type."""


class AdmissionError(ContractError):
    """A request is refused at the executor's admission boundary; other requests go on.

    Args:
        subject: Name of the object that was checked.
        problems: Every broken rule.
        request_id: The request that is refused.
    """

    def __init__(self, subject: str, problems: Iterable[Problem], request_id: str) -> None:
        super().__init__(subject, problems)
        self.request_id = request_id

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.subject, self.problems, self.request_id)


def contract_error(subject: str, problems: Iterable[Problem]) -> ContractError:
    """The `ContractTypeError` or `ContractValueError` that the problems call for."""
    found = tuple(problems)
    kind = ContractTypeError if any(p.code == "type" for p in found) else ContractValueError
    return kind(subject, found)


class EncodeError(OmniwireError, ValueError):
    """An object cannot be put on the wire exactly as it is.

    Args:
        subject: Name of the object that was encoded.
        problem: The field that cannot travel; its `code` is one of `PROBLEM_CODES`.
    """

    def __init__(self, subject: str, problem: Problem) -> None:
        self.subject = subject
        self.problem = Problem(*problem)
        super().__init__(self.problem.sentence(subject))
        self.add_note(see(problem_anchors([self.problem]) or ["encodeerror"]))

    @property
    def path(self) -> Path:
        """Where in the object the field is."""
        return self.problem.path

    @property
    def code(self) -> str:
        """One of `PROBLEM_CODES`."""
        return self.problem.code

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.subject, self.problem)


DECODE_CODES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "truncated": "the message ends before what it announces",
        "magic": "the message does not start as an omniwire message does",
        "version": "the message needs a newer reader",
        "checksum": "the header does not match its checksum",
        "syntax": "the header is not well-formed msgpack of the required shape",
        "limit": "the message exceeds one of the reader's `Limits`",
        "type": "a field has a value of the wrong type",
        "range": "a number lies outside its range",
        "unknown": "an unknown type, field, data type or extension",
        "missing": "a required field is absent",
        "duplicate": "the same key or field twice",
        "frames": "buffers are missing, surplus or of the wrong size",
        "buffer": "a tensor lies outside its buffer, is misaligned or overlaps another",
        "contract": "the message decodes but breaks its contract; see `__cause__`",
    }
)
"""The closed set of `DecodeError.code` values, each with its meaning."""


class DecodeError(OmniwireError, ValueError):
    """A message cannot be decoded.

    Args:
        message: What is wrong with the message, in words.
        code: One of `DECODE_CODES`.
        offset: Byte offset in the header where it was noticed, when known.
    """

    def __init__(self, message: str, code: str, offset: int | None = None) -> None:
        self.code = code
        self.offset = offset
        where = "" if offset is None else f" - at header byte {offset}"
        super().__init__(f"decode: {message}{where} [{code}]")
        self._message = message
        self.add_note(see([f"decode-{code}" if code in DECODE_CODES else "decodeerror"]))

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self._message, self.code, self.offset)


class UnsupportedVersionError(DecodeError):
    """The message was written by a version that this reader cannot read.

    Args:
        found: The oldest reader version that the message asks for.
        supported: The newest version that this reader knows.
    """

    def __init__(self, found: int, supported: int) -> None:
        self.found = found
        self.supported = supported
        super().__init__(
            f"expected a message readable by version {supported}, got one that needs {found}",
            "version",
        )

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.found, self.supported)


class HandoffError(OmniwireError, ConnectionError):
    """A hand-over between processes failed.

    Args:
        message: What happened, in words.
    """

    _anchor: ClassVar[str] = "handofferror"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self._message = message
        self.add_note(see([self._anchor]))

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self._message,)


class PeerClosed(HandoffError):
    """The peer closed its end in good order."""

    _anchor = "peerclosed"


class PeerDied(HandoffError):
    """The peer's process ended without closing its end."""

    _anchor = "peerdied"


class HandoffTimeout(HandoffError, TimeoutError):
    """The hand-over did not happen within the time given."""

    _anchor = "handofftimeout"


class ArenaFull(HandoffError):
    """The shared-memory arena has no room and none came free within the time given."""

    _anchor = "arenafull"


class HandlerNotFoundError(OmniwireError, LookupError):
    """No handler is registered for a modality.

    Args:
        modality: The name that was looked up.
        registered: The names that are registered.
    """

    def __init__(self, modality: str, registered: Iterable[str]) -> None:
        self.modality = modality
        self.registered: tuple[str, ...] = tuple(registered)
        super().__init__(
            f"expected a registered modality ({', '.join(self.registered) or 'none is'}), "
            f"got {modality!a}"
        )
        self.add_note(see(["handlernotfounderror"]))

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.modality, self.registered)


class AccumulationError(OmniwireError, RuntimeError):
    """A streamed output cannot be added to what its request has so far.

    Args:
        message: What disagrees, in words.
        request_id: The request.
        modality: The modality, `""` for the request itself.
        key: The payload key, `""` when no single key is at fault.
    """

    def __init__(self, message: str, request_id: str, modality: str = "", key: str = "") -> None:
        self.request_id = request_id
        self.modality = modality
        self.key = key
        where = f"request {request_id!a}"
        if modality:
            where += f", modality {modality}"
        if key:
            where += f", key {key}"
        super().__init__(f"{where}: {message}")
        self._message = message
        self.add_note(see(["accumulationerror"]))

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self._message, self.request_id, self.modality, self.key)


def error_arguments(error: OmniwireError) -> tuple[object, ...]:
    """The plain values from which `type(error)(*values)` builds an equal error."""
    reduced = error.__reduce__()
    assert isinstance(reduced, tuple)
    arguments = reduced[1]
    assert isinstance(arguments, tuple)
    return arguments


WIRE_ERRORS: Final[Mapping[str, type[OmniwireError]]] = MappingProxyType(
    {
        kind.__name__: kind
        for kind in (
            OmniwireError,
            ContractTypeError,
            ContractValueError,
            AdmissionError,
            EncodeError,
            DecodeError,
            UnsupportedVersionError,
            HandoffError,
            PeerClosed,
            PeerDied,
            HandoffTimeout,
            ArenaFull,
            HandlerNotFoundError,
            AccumulationError,
        )
    }
)
"""The closed table of errors that may cross a process boundary inside a `RequestOutput`."""
