"""The commands of the `omniwire` command line, each loaded when it is asked for."""

from importlib import import_module
from typing import Final

import click

_SUBCOMMANDS: Final = {
    "bench": ("omniwire.bench.command", "bench_command"),
    "check": ("omniwire.inspector.command", "check_command"),
    "demo": ("omniwire.demo.command", "demo_command"),
    "inspect": ("omniwire.inspector.command", "inspect_command"),
    "replay": ("omniwire.replay", "replay_command"),
}
"""Where each subcommand is defined: its module and its name there."""


class _LazyGroup(click.Group):
    """A group that imports a subcommand's module only to run it or to show its help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _SUBCOMMANDS:
            return None
        module, name = _SUBCOMMANDS[cmd_name]
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=_LazyGroup)
@click.version_option(package_name="omniwire", message="%(prog)s %(version)s")
def omniwire() -> None:
    """Contracts, wire format and runtime for multimodal LLM serving."""
