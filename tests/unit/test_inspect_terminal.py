"""What `omniwire inspect` prints, against bytes, offsets, rows and strips worked out by hand."""

import io
import os
import re
import struct
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
import torch
from click.testing import CliRunner, Result
from rich.console import Console

import omniwire as ow
from omniwire.inspector.command import check_command, inspect_command
from omniwire.inspector.source import inspect_file
from omniwire.inspector.terminal import print_inspection

DIGESTS = ["1a2b3c4d" + "0" * 56, "ffffffff80000000" + "0" * 48, "00000001" + "0" * 56]
HOSTILE = "\x1b[31mred\x07\r\n\u202ereversed [bold red]markup[/] :smile: \x9b5m"


def run(command: click.Command, *arguments: str | Path, columns: int = 80) -> Result:
    environment = {"COLUMNS": str(columns), "FORCE_COLOR": None, "NO_COLOR": None}
    return CliRunner(env=environment).invoke(command, list(map(str, arguments)))


def check(path: str | Path) -> Result:
    return run(check_command, path)


def inspect(path: str | Path, columns: int = 80) -> Result:
    result = run(inspect_command, path, columns=columns)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where to save a file, in the current folder."""
    monkeypatch.chdir(tmp_path)
    return Path("one.omniwire")


def full_request(positions: tuple[int, int, int] = (1, 20, 40)) -> ow.ProcessedRequest:
    """Three items; tensors of 48 bytes (inline), 8,000 (shared) and 131,072 (own)."""
    metadata = ow.MultimodalItemMetadata(
        [("image", 1), ("audio", 0), ("image", 0)],
        [64, 1500, 32],
        [16, 750, 8],
        {"image": {"grid": ow.MultimodalItemPartition()}},
    )
    inputs = ow.MultimodalInput.from_hexdigests(
        DIGESTS,
        positions,
        [18, 12, 10],
        multimodal_uuids=["first", None, "third one"],
        multimodal_item_run_cu_offsets=[0, 1, 3, 4],
        multimodal_run_positions=[positions[0], positions[1], positions[1] + 13, positions[2]],
        multimodal_run_lengths=[18, 10, 2, 10],
    )
    data = {
        "image": {
            "grid": torch.zeros(2, 3, dtype=torch.int64),
            "pixel_values": torch.zeros(128, 512, dtype=torch.bfloat16),
        },
        "audio": {"features": torch.zeros(20, 100)},
        "item_metadata": metadata,
    }
    return ow.ProcessedRequest("r1", [0] * 50, ow.MultimodalParams(inputs, data))


def rows_after(output: str, title: str) -> list[str]:
    """The words, one space apart, of the lines from the one after `title` to the next blank one."""
    lines = [line.strip() for line in output.splitlines()]
    start = next(index for index, line in enumerate(lines) if line.startswith(title)) + 1
    end = next((i for i in range(start, len(lines)) if not lines[i]), len(lines))
    return [" ".join(line.split()) for line in lines[start:end]]


def test_sizes_and_places_worked_out_by_hand(path: Path) -> None:
    ow.save(full_request(), path)
    content = path.read_bytes()
    (header,) = struct.unpack_from("<Q", content, 16)
    output = inspect(path).stdout
    # Frames come in the order of their first tensor: pixel_values, then the shared one.
    own = -(-(64 + header) // 64) * 64
    shared = own + 131_072
    assert len(content) == shared + 8_000
    lines = output.splitlines()
    assert lines[1].split() == ["file", f"{len(content):,}", "bytes"]
    assert lines[2].split()[:4] == ["header", f"{header:,}", "at", "64,"]
    assert lines[3].split()[:2] == ["tensors", f"{48 + 8_000 + 131_072:,}"]
    assert (
        lines[3].split("  ")[-1] == "1 inline in the header, 1 in a shared frame, 1 in own frames"
    )
    fields = {}
    for line in lines:
        words = line.replace("\u2502", " ").split()
        if words and words[0] in "\u251c\u2514":
            fields[words[1]] = " ".join(words[2:])
    assert fields["prompt_token_ids"] == "TokenIds, 50 ids 200 inline"
    assert fields["pixel_values"] == f"bf16[128, 512] cpu 131,072 own {own:,}"
    assert fields["features"] == f"f32[20, 100] cpu 8,000 shared {shared:,}"
    assert fields["multimodal_lengths"] == "3 ints: 18, 12, 10"
    assert fields["grid"] == "batched along axis 0"
    assert re.search(r"\u251c grid  i64\[2, 3\] cpu +48  inline\n", output)


def test_the_items_in_prompt_order_and_their_runs_on_the_prompt(path: Path) -> None:
    ow.save(full_request(), path)
    output = inspect(path).stdout
    assert rows_after(output, "#  item") == [
        "a 0 image 1 1 18 1 64 16 1a2b3c4d first",
        "b 1 audio 0 20 12 2 1,500 750 ffffffff",
        "c 2 image 0 40 10 1 32 8 00000001 'third one'",
    ]
    assert output.splitlines()[-3:] == [
        "prompt: 50 tokens, 1 token a cell, exact runs",
        "letter: that item of the table, . text",
        #    1                 19 20        30 33 35   40        50
        " 0  .aaaaaaaaaaaaaaaaaa.bbbbbbbbbb...bb.....cccccccccc",
    ]


def test_a_column_of_which_nothing_is_known_is_left_out(path: Path) -> None:
    ow.save(ow.MultimodalItemMetadata([("image", 0), ("video", 0)], None, [7, 9]), path)
    output = inspect(path).stdout
    assert rows_after(output, "#  item") == ["0 image 0 7", "1 video 0 9"]
    assert "prompt" not in output
    assert "encoder\n" not in output


def test_problems_are_printed_in_full_with_their_paths(path: Path) -> None:
    ow.save(full_request((1, 18, 45)), path)
    result = inspect(path)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[0] == (
        "one.omniwire: ProcessedRequest, wire format version 1, 2 problems"
    )
    expected = [line.partition(": ")[2] for line in check(path).stdout.splitlines()]
    assert result.stdout.splitlines()[-3:] == ["2 problems", *expected]
    # Token 18 is claimed twice.
    assert " 0  .aaaaaaaaaaaaaaaaa!bbbbbbbbb...bb............ccccc\n" in result.stdout


def colored(obj_path: Path) -> str:
    file = io.StringIO()
    console = Console(
        file=file, width=80, force_terminal=True, color_system="standard",
        markup=False, highlight=False, emoji=False,
    )  # fmt: skip
    print_inspection(console, inspect_file(str(obj_path)))
    return file.getvalue()


def test_problems_and_the_fields_and_items_at_fault_are_red(path: Path) -> None:
    ow.save(full_request((1, 18, 45)), path)
    red = re.findall(r"\x1b\[31m(.*?)\x1b\[0m", colored(path))
    assert [text.split()[0].rstrip(":") for text in red if text.strip()] == [
        ",",  # 2 problems, in the heading
        "multimodal_positions",
        "b",
        "audio",
        "c",
        "image",
        "ProcessedRequest",
        "ProcessedRequest",
    ]


@pytest.fixture
def hostile(path: Path) -> Path:
    """A request with hostile text wherever text may stand, and two problems that quote it."""
    metadata = ow.MultimodalItemMetadata(
        [("image", 0)], [1], [1],
        {"image": {HOSTILE: ow.MultimodalItemPartition([5]), "not" + HOSTILE: _batched()}},
    )  # fmt: skip
    inputs = ow.MultimodalInput.from_hexdigests(DIGESTS[:1], [1], [1], multimodal_uuids=[HOSTILE])
    data = {
        HOSTILE: torch.zeros(20_000),
        "text": HOSTILE,
        "texts": [HOSTILE, HOSTILE, 1],
        "long": "x" * 10**6,
        "y" * 10**5: HOSTILE.encode(),
        "image": {HOSTILE: torch.zeros(4)},
        "nested": {"errors": ow.RequestOutput("r", errors={"a": ow.PeerDied(HOSTILE * 99)})},
        "item_metadata": metadata,
    }
    ow.save(ow.ProcessedRequest(HOSTILE, [1, 2], ow.MultimodalParams(inputs, data)), path)
    return path


def _batched() -> ow.MultimodalItemPartition:
    return ow.MultimodalItemPartition()


def test_hostile_text_stays_text(hostile: Path) -> None:
    for result in (inspect(hostile), check(hostile)):
        assert result.exit_code == 1
        assert result.stdout.replace("\n", "").isprintable()
        assert "\u202e" not in result.stdout
        assert "[bold red]markup[/]" in result.stdout
        assert ":smile:" in result.stdout
        assert r"\x1b[31mred" in result.stdout
        assert len(result.stdout) < 10_000
        sentences = [line for line in result.stdout.splitlines() if "ProcessedRequest: " in line]
        assert len(sentences) == 2


def test_hostile_text_cannot_color_anything(hostile: Path) -> None:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", colored(hostile))
    assert plain == inspect(hostile).stdout


@pytest.mark.parametrize("columns", [1, 20, 60, 80, 120, 500])
def test_any_width_will_do(columns: int, hostile: Path) -> None:
    output = inspect(hostile, columns=columns).stdout
    beside_sentences = [line for line in output.splitlines() if " - at $" not in line]
    assert max(map(len, beside_sentences)) <= max(80, min(columns, 120))


def many_items(num_items: int, num_prompt_tokens: int) -> ow.ProcessedRequest:
    """Items in turns image, video; each of two runs that leave a third of its share to text."""
    share = num_prompt_tokens // num_items
    starts = range(0, share * num_items, share)
    third = share // 3
    half, rest = third, share - 2 * third
    inputs = ow.MultimodalInput.from_hexdigests(
        [f"{index:08x}" + "0" * 56 for index in range(num_items)],
        list(starts),
        [half + rest] * num_items,
        multimodal_item_run_cu_offsets=list(range(0, 2 * num_items + 1, 2)),
        multimodal_run_positions=[p for start in starts for p in (start, start + 2 * third)],
        multimodal_run_lengths=[half, rest] * num_items,
    )
    refs = [(("image", "video")[index % 2], index // 2) for index in range(num_items)]
    metadata = ow.MultimodalItemMetadata(refs, [4] * num_items, [2] * num_items)
    params = ow.MultimodalParams(inputs, {"item_metadata": metadata})
    return ow.ProcessedRequest("many", [0] * num_prompt_tokens, params)


@pytest.mark.parametrize("num_items", [1, 9, 500, 10_000])
def test_output_and_time_are_bounded(num_items: int, path: Path) -> None:
    ow.save(many_items(num_items, 131_072), path)
    start = time.monotonic()
    output = inspect(path).stdout
    assert time.monotonic() - start < 10  # a tenth of a second here
    lines = output.splitlines()
    assert len(lines) < 150
    assert max(map(len, lines)) <= 80
    rows = rows_after(output, "#  item")
    assert rows[0].startswith("a 0 image 0 0 ")
    assert rows[-1].split()[1] == str(num_items - 1)
    assert len(rows) == min(num_items, 81)
    if num_items > 100:
        assert f"... {num_items - 80:,} more" in rows
    # 131,072 tokens in at most 768 cells: 256 each.
    assert "prompt: 131,072 tokens, 256 tokens a cell, exact runs" in output
    assert [line.split()[0] for line in lines[-8:]] == [f"{16_384 * row:,}" for row in range(8)]


def test_of_many_items_those_at_fault_are_shown(path: Path) -> None:
    """Item 5,000 starts where the one before it starts."""
    request = many_items(10_000, 131_072)
    params = request.multimodal_params
    assert params is not None
    inputs = params.multimodal_input
    assert inputs is not None
    starts = list(inputs.multimodal_positions)
    lengths = list(inputs.multimodal_lengths)
    starts[5000] = starts[4999]
    faulty = ow.MultimodalInput(inputs.multimodal_hashes, starts, lengths)
    data = {"item_metadata": params.item_metadata}
    ow.save(ow.ProcessedRequest("many", [0] * 131_072, ow.MultimodalParams(faulty, data)), path)
    rows = rows_after(inspect(path).stdout, "#  item")
    assert len(rows) == 83
    assert rows[60] == "... 4,940 more"
    assert rows[61].startswith("i 5000 image 2500 ")  # 5,000 is 96 * 52 + 8
    assert rows[62] == "... 4,979 more"


def test_many_problems_are_cut_in_inspect_and_whole_in_check(path: Path) -> None:
    """All but the first of 200 items start at 0."""
    inputs = ow.MultimodalInput([[0] * 8] * 200, [0] * 200, [1] * 200)
    ow.save(ow.ProcessedRequest("r", [0] * 300, ow.MultimodalParams(inputs)), path)
    assert check(path).stdout.count("[order]\n") == 199
    output = inspect(path).stdout
    assert output.count("[order]\n") == 50
    assert output.endswith("\nand 149 more, all of which omniwire check prints\n")


def test_a_terminal_without_unicode(hostile: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "80"}
    for command in ("check", "inspect"):
        result = subprocess.run(
            [sys.executable, "-m", "omniwire", command, hostile],
            check=False,
            env=environment,
            capture_output=True,
        )
        assert (result.returncode, result.stderr) == (1, b"")
        assert result.stdout.decode("ascii").replace("\n", "").isprintable()
