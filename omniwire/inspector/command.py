"""The click commands `omniwire check` and `omniwire inspect`."""

import functools
import importlib.util
import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import click

if TYPE_CHECKING:
    from omniwire.inspector.source import Finding  # brings torch, which --help does without

_INVALID: Final = 1
_UNUSABLE: Final = 2
_INTERRUPTED: Final = 130


@click.command("check")
@click.argument("path", metavar="FILE")
def check_command(path: str) -> None:
    """Check that FILE is a valid message, as `save` writes it.

    It is decoded strictly, and what it holds is held to its contract; a ProcessedRequest also
    to what is checked when a processor hands it over. Tensors are not read.

    Prints one line that says "ok", or a line for each problem. Exits with 0 if FILE is valid, 1
    if it is not, 2 if there is no such file or it cannot be read.
    """
    _run("check", path, _check)


@click.command("inspect")
@click.argument("path", metavar="FILE")
@click.option("--html", metavar="OUT", help="Write a page for a browser to OUT instead.")
def inspect_command(path: str, html: str | None) -> None:
    """Show what is in FILE and what is wrong with it.

    Prints a tree of fields with types, shapes, devices, bytes and where they sit, the items in
    prompt order, a strip of the prompt with the runs of each item, and every problem with its
    path. Tensors are not read.

    With --html, writes all that as one page that needs nothing else, not even a network. Of
    tensors that look like images or sounds it has thumbnails and waveforms; only those are
    read. Prints where the page is, and the problems.

    Exits with 0 if FILE is valid, 1 if it is not, 2 if there is no such file, it cannot be
    read, or OUT cannot be written.
    """
    needed = ("rich",) if html is None else ("jinja2", "PIL")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        _stop("inspect", f"needs {', '.join(missing)}: pip install 'omniwire[cli]'", _UNUSABLE)
    if html is None:
        _run("inspect", path, _inspect)
    _run("inspect", path, functools.partial(_write_page, out=html))


def _check(path: str) -> int:
    from omniwire.inspector.source import InvalidMessage, inspect_file, shown_path  # noqa: PLC0415

    try:
        inspection = inspect_file(path)
    except InvalidMessage as error:
        return _print_findings(path, error.findings)
    message = inspection.message
    if not inspection.findings:
        what = f"{type(message.obj).__name__}, {message.num_file_bytes} bytes"
        click.echo(f"{shown_path(path)}: ok, {what}")
    return _print_findings(path, inspection.findings)


def _inspect(path: str) -> int:
    from omniwire.inspector.source import InvalidMessage, inspect_file, shown_path  # noqa: PLC0415
    from omniwire.inspector.terminal import (  # noqa: PLC0415
        make_console,
        print_findings,
        print_inspection,
    )

    console = make_console()
    try:
        inspection = inspect_file(path)
    except InvalidMessage as error:
        console.print(f"{shown_path(path)}: not valid", soft_wrap=True)
        print_findings(console, error.findings)
        return _INVALID
    print_inspection(console, inspection)
    return _INVALID if inspection.findings else 0


def _write_page(path: str, out: str) -> int:
    from omniwire.inspector.page.render import render_page, render_refusal  # noqa: PLC0415
    from omniwire.inspector.source import InvalidMessage, inspect_file, shown_path  # noqa: PLC0415

    findings: Sequence[Finding]
    try:
        inspection = inspect_file(path)
    except InvalidMessage as error:
        findings = error.findings
        page = render_refusal(path, findings)
    else:
        findings = inspection.findings
        page = render_page(inspection)
    content = page.encode("utf-8")
    try:
        if Path(out).exists() and Path(out).samefile(path):
            _stop("inspect", f"{shown_path(out)}: is the file to inspect", _UNUSABLE)
        Path(out).write_bytes(content)
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        _stop("inspect", f"{shown_path(out)}: cannot write there: {reason}", _UNUSABLE)
    click.echo(f"{shown_path(out)}: written, {len(content):,} bytes")
    return _print_findings(path, findings)


def _print_findings(path: str, findings: "Sequence[Finding]") -> int:
    """Print a line for each problem; the exit code."""
    from omniwire.inspector.source import shown_path  # noqa: PLC0415

    for finding in findings:
        click.echo(f"{shown_path(path)}: {finding.text}")
    return _INVALID if findings else 0


def _run(command: str, path: str, judge: Callable[[str], int]) -> NoReturn:
    """Judge a file, and exit with what comes of it; no way to fail leaves a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A letter that the terminal lacks is printed as an escape.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        exit_code = _judge(command, path, judge)
        sys.stdout.flush()
    except KeyboardInterrupt:
        _stop(command, "interrupted", _INTERRUPTED)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise  # click ends quietly
        _discard_output()
        _stop(command, f"cannot print: {error.strerror}", _UNUSABLE)
    sys.exit(exit_code)


def _judge(command: str, path: str, judge: Callable[[str], int]) -> int:
    from omniwire.inspector.source import UnusableInput, shown_path  # noqa: PLC0415  # torch

    try:
        return judge(path)
    except UnusableInput as error:
        _stop(command, f"{shown_path(path)}: {error}", _UNUSABLE)


def _discard_output() -> None:
    """Keep the interpreter from failing again, at its end, to write what is still buffered."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _stop(command: str, message: str, exit_code: int) -> NoReturn:
    click.echo(f"omniwire {command}: {message}", err=True)
    sys.exit(exit_code)
