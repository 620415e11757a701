"""The click command `omniwire replay`."""

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

import click

_FAILED: Final = 1
_UNUSABLE: Final = 2


@click.command("replay")
@click.argument(
    "directory", type=click.Path(exists=True, file_okay=False, readable=True, path_type=Path)
)
@click.option(
    "--connect",
    metavar="PATH",
    help="Send the messages to the `ChannelServer` at this path, and print what comes back.",
)
@click.option(
    "--call",
    metavar="MODULE:FUNCTION",
    help="Call this function with each message, and print what it returns.",
)
@click.option(
    "--quiet-after",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    help="With --connect: how long to wait for another answer before ending.",
)
def replay_command(
    directory: Path, connect: str | None, call: str | None, quiet_after: float
) -> None:
    """Feed the messages that a channel recorded in DIRECTORY to an executor.

    They were recorded with the `record` argument of `Channel.pair`, `Channel.connect` or
    `ChannelServer`. Outputs are left out: the executor makes them anew.

    Exits with 0 if every message was taken, 1 if one could not be read or the executor failed
    at one, 2 if there is no executor.
    """
    if (connect is None) == (call is None):
        _stop("expected --connect PATH or --call MODULE:FUNCTION, one of the two")
    inputs = _Inputs(directory)
    if call is not None:
        has_failed = _feed(inputs, _function(call))
    else:
        assert connect is not None
        has_failed = _send(inputs, connect, quiet_after)
    if not inputs.num_read:
        _stop(f"expected recorded inputs in {directory}, got none")
    sys.exit(_FAILED if has_failed or inputs.has_failed else 0)


class _Inputs:
    """The recorded messages that are no outputs, in order; says what cannot be read."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.num_read = 0
        self.has_failed = False

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        import omniwire as ow  # noqa: PLC0415  # torch takes a second

        for message in ow.recorded(self._directory):
            self.num_read += 1
            try:
                obj = message.load()
            except ow.DecodeError as error:
                self.has_failed = True
                click.echo(f"{message.path.name}: cannot be read: {error}")
                continue
            if not isinstance(obj, ow.OmniOutput | ow.OutputChunk | ow.RequestOutput):
                yield message.path.name, obj


def _feed(inputs: _Inputs, function: Callable[[Any], Any]) -> bool:
    """Call a function with each message; whether it failed at one."""
    has_failed = False
    for name, obj in inputs:
        try:
            result = function(obj)
        except Exception as error:  # noqa: BLE001  # that is what a replay is to find
            has_failed = True
            click.echo(f"{name}: failed: {type(error).__name__}: {error}")
        else:
            click.echo(f"{name}: {result!r}")
    return has_failed


def _send(inputs: _Inputs, path: str, quiet_after: float) -> bool:
    """Send each message to a server; whether it went away."""
    import omniwire as ow  # noqa: PLC0415  # torch takes a second

    name = "before the first message"
    try:
        with ow.Channel.connect(path, timeout=quiet_after) as channel:
            for name, obj in inputs:  # noqa: B007  # the last one sent, for the report
                channel.send(obj)
                while ow.wait([channel], 0):
                    click.echo(f"answer: {channel.recv()!r}")
            with contextlib.suppress(ow.PeerClosed):  # it may hang up after its last answer
                while ow.wait([channel], quiet_after):
                    click.echo(f"answer: {channel.recv()!r}")
    except ow.HandoffError as error:
        click.echo(f"{name}: the executor is gone: {error}")
        return True
    return False


def _function(name: str) -> Callable[[Any], Any]:
    """The function of a name like `package.module:function`, looked for from here as well."""
    module, _, attribute = name.partition(":")
    sys.path.insert(0, "")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        _stop(f"--call {name}: {error}")
    if not callable(function):
        _stop(f"--call {name}: expected a function, got {type(function).__name__}")
    found: Callable[[Any], Any] = function
    return found


def _stop(message: str) -> NoReturn:
    click.echo(f"omniwire replay: {message}", err=True)
    sys.exit(_UNUSABLE)
