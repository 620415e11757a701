"""Opening a file and judging what it holds."""

import os
import stat
from typing import Final, NamedTuple

import attrs

from omniwire.contracts import ContractError, DecodeError, Problem, ProcessedRequest, check_producer
from omniwire.inspector.text import escape, shorten
from omniwire.serialization.layout import LocatedMessage, locate

_MAX_SENTENCE: Final = 1000

_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class UnusableInput(Exception):
    """There is no file to judge; its text is one printable line. Exit code 2."""


class InvalidMessage(Exception):
    """The file is no valid message. Exit code 1.

    Args:
        findings: What is wrong with it, at least one thing.
    """

    def __init__(self, findings: "list[Finding]") -> None:
        super().__init__(f"{len(findings)} findings")
        self.findings = findings


class Finding(NamedTuple):
    """One thing that is wrong with a file.

    Attributes:
        what: The broken rule, or why nothing could be decoded.
        subject: Name of the object that was checked; empty if nothing could be decoded.
    """

    what: Problem | DecodeError
    subject: str = ""

    @property
    def problem(self) -> Problem | None:
        """The broken rule, if something could be decoded."""
        return self.what if isinstance(self.what, Problem) else None

    @property
    def text(self) -> str:
        """The sentence that says it, with its code, safe to print."""
        if isinstance(self.what, DecodeError):
            return shorten(str(self.what), _MAX_SENTENCE)
        sentence = self.what.sentence(self.subject)
        return f"{shorten(sentence, _MAX_SENTENCE)} [{self.what.code}]"


@attrs.frozen(eq=False)
class Inspection:
    """What a file holds, and what is wrong with it.

    Attributes:
        path: The file, as it was named.
        message: The message and where its parts are.
        findings: What `check_producer` says of a `ProcessedRequest`; none for other objects,
            which are valid if they decode.
    """

    path: str
    message: LocatedMessage
    findings: tuple[Finding, ...]


def shown_path(path: str) -> str:
    """A path on one printable line."""
    return escape(path) or "''"


def inspect_file(path: str) -> Inspection:
    """Read a file and judge what it holds; tensors are not touched.

    Args:
        path: The file.

    Raises:
        UnusableInput: There is no such regular file, it cannot be read, or it changed.
        InvalidMessage: It cannot be decoded, or breaks the contract of what it holds.
    """
    try:
        # A pipe without a writer would block.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            message = _read(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise UnusableInput((error.strerror or type(error).__name__).lower()) from error
    except MemoryError as error:
        raise UnusableInput("needs more memory than there is") from error
    obj = message.obj
    findings: list[Finding] = []
    if isinstance(obj, ProcessedRequest):
        try:
            check_producer(obj)
        except ContractError as error:
            findings = _findings(error)
    return Inspection(path, message, tuple(findings))


def _read(descriptor: int) -> LocatedMessage:
    before = os.fstat(descriptor)
    if not stat.S_ISREG(before.st_mode):
        kind = next((name for matches, name in _KINDS if matches(before.st_mode)), "no file")
        raise UnusableInput(f"expected a file, got {kind}")
    try:
        message = locate(descriptor)
    except DecodeError as error:
        _check_unchanged(descriptor, before)
        raise InvalidMessage(_decode_findings(error)) from error
    _check_unchanged(descriptor, before)
    return message


def _check_unchanged(descriptor: int, before: os.stat_result) -> None:
    after = os.fstat(descriptor)
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise UnusableInput("changed while it was read")


def _decode_findings(error: DecodeError) -> list[Finding]:
    cause = error.__cause__
    if error.code == "contract" and isinstance(cause, ContractError):
        return _findings(cause)
    return [Finding(error)]


def _findings(error: ContractError) -> list[Finding]:
    return [Finding(problem, error.subject) for problem in error.problems]
