"""The how-to page shows what the two commands really print."""

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from omniwire.inspector.command import check_command, inspect_command

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "inspect-a-message.md"
COMMANDS: dict[str, click.Command] = {"check": check_command, "inspect": inspect_command}


def test_every_output_on_the_page_is_what_the_command_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runner = CliRunner(env={"COLUMNS": "80", "FORCE_COLOR": None})
    namespace: dict[str, object] = {}
    compared = 0
    for language, block in re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL):
        if language == "python":
            exec(block, namespace)
            continue
        command, *shown = block.splitlines()
        name, *arguments = command.removeprefix("$ omniwire ").split()
        printed = runner.invoke(COMMANDS[name], arguments).stdout
        assert list(map(_comparable, printed.splitlines())) == list(map(_comparable, shown))
        compared += 1
    assert compared == 6


def _comparable(line: str) -> str:
    """A line without what depends on how well pictures are compressed."""
    return re.sub(r"written, [0-9,]+ bytes", "written, ... bytes", line.rstrip())
