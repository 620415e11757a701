"""The click commands `omniwire check` and `omniwire inspect`."""

import importlib.util
import io
import os
import sys
from collections.abc import Callable
from typing import Final, NoReturn

import click

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
def inspect_command(path: str) -> None:
    """Show what is in FILE and what is wrong with it.

    Prints a tree of fields with types, shapes, devices, bytes and where they sit, the items in
    prompt order, a strip of the prompt with the runs of each item, and every problem with its
    path. Tensors are not read.

    Exits with 0 if FILE is valid, 1 if it is not, 2 if there is no such file or it cannot be
    read.
    """
    if importlib.util.find_spec("rich") is None:
        _stop("inspect", "needs rich: pip install 'omniwire[cli]'", _UNUSABLE)
    _run("inspect", path, _inspect)


def _check(path: str) -> int:
    from omniwire.inspector.source import InvalidMessage, inspect_file, shown_path  # noqa: PLC0415

    name = shown_path(path)
    try:
        inspection = inspect_file(path)
    except InvalidMessage as error:
        findings = error.findings
    else:
        findings = list(inspection.findings)
        if not findings:
            message = inspection.message
            click.echo(f"{name}: ok, {type(message.obj).__name__}, {message.num_file_bytes} bytes")
            return 0
    for finding in findings:
        click.echo(f"{name}: {finding.text}")
    return _INVALID


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
