"""`omniwire check` and `omniwire inspect` as their user meets them: input, exit codes, refusals."""

import errno
import os
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import click
import pytest
import torch
from click.testing import CliRunner, Result

import omniwire as ow
from omniwire.inspector import source
from omniwire.inspector.command import check_command, inspect_command


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


def request(positions: tuple[int, int, int] = (1, 20, 40)) -> ow.ProcessedRequest:
    """Fifty prompt tokens and three items of 18, 12 and 10, with a tensor of 131,072 bytes."""
    inputs = ow.MultimodalInput([[0] * 8] * 3, positions, [18, 12, 10])
    data = {"image": {"pixel_values": torch.zeros(128, 512, dtype=torch.bfloat16)}}
    return ow.ProcessedRequest("r1", [0] * 50, ow.MultimodalParams(inputs, data))


def test_check_of_a_valid_request(path: Path) -> None:
    ow.save(request(), path)
    result = check(path)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"one.omniwire: ok, ProcessedRequest, {path.stat().st_size} bytes\n"


def test_check_and_inspect_of_every_type(build_to_send: Callable[[], object], path: Path) -> None:
    obj = build_to_send()
    kind = type(obj).__name__
    ow.save(obj, path)
    result = check(path)
    assert result.exit_code == 0
    assert result.stdout == f"one.omniwire: ok, {kind}, {path.stat().st_size} bytes\n"
    result = inspect(path)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"one.omniwire: {kind}, wire format version 1, valid\n")
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_check_prints_a_line_with_path_and_code_for_each_broken_boundary_rule(path: Path) -> None:
    ow.save(request((1, 18, 45)), path)
    result = check(path)
    assert (result.exit_code, result.stderr) == (1, "")
    where = "$.multimodal_params.multimodal_input.multimodal_positions"
    first, second = result.stdout.splitlines()
    assert first == (
        "one.omniwire: ProcessedRequest: expected item 1 at or after position 19, where the item "
        f"before it ends, got 18 - at {where}[1] [order]"
    )
    assert second == (
        "one.omniwire: ProcessedRequest: expected item 2 inside the 50 prompt tokens, "
        f"got its end at 55 - at {where}[2] [range]"
    )


def test_check_prints_every_broken_rule_of_a_contract(path: Path) -> None:
    """Two token lengths of 0 in a message that is otherwise sound."""
    record = ow.MultimodalItemMetadata([("image", 0), ("image", 1)], [65, 66])
    header, *_ = ow.encode(record)
    assert isinstance(header, bytes)
    body = header[26:].replace(b"\x92\x41\x42", b"\x92\x00\x00")
    _save_body(path, body)
    result = check(path)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "one.omniwire: MultimodalItemMetadata: expected an int of at least 1, got 0 "
        f"- at $.encoder_token_lengths[{index}] [range]"
        for index in range(2)
    ]


def _save_body(path: Path, body: bytes) -> None:
    """Write a message with a header of its own making, as docs/reference/wire-format.md has it."""
    prefix = b"\x95\xa8omniwire\xcd\0\1\xcd\0\1\xce" + struct.pack(">I", zlib.crc32(body))
    header = prefix + b"\xc6" + struct.pack(">I", len(body)) + body
    table = struct.pack("<8sQQ", b"omniblob", 1, len(header))
    path.write_bytes(table.ljust(64, b"\0") + header)


def _empty(path: Path) -> None:
    path.touch()


def _random(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 10)


def _truncated(path: Path) -> None:
    ow.save(request(), path)
    os.truncate(path, 5000)


def _huge_number_of_frames(path: Path) -> None:
    path.write_bytes(struct.pack("<8sQ", b"omniblob", 2**60))


def _huge_frame(path: Path) -> None:
    path.write_bytes(struct.pack("<8sQQ", b"omniblob", 1, 2**63).ljust(200, b"\0"))


def _huge_sparse_file(path: Path) -> None:
    path.write_bytes(struct.pack("<8sQQ", b"omniblob", 1, 2**40 - 64))
    os.truncate(path, 2**40)


def _flipped_bit(path: Path) -> None:
    ow.save(request(), path)
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)


def _newer_version(path: Path) -> None:
    content = bytearray(ow.dumps(ow.TokenIds([1])))
    content[64 + 11 : 64 + 16] = b"\0\2\xcd\0\2"
    path.write_bytes(content)


def _deep_nesting(path: Path) -> None:
    _save_body(path, b"\x91" * 100_000)


def _pickle(path: Path) -> None:
    path.write_bytes(b"\x80\x04cos\nsystem\n(S'true'\ntR.")


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (_empty, "truncated"),
        (_random, "magic"),
        (_truncated, "truncated"),
        (_huge_number_of_frames, "limit"),
        (_huge_frame, "truncated"),
        (_huge_sparse_file, "limit"),
        (_flipped_bit, "checksum"),
        (_newer_version, "version"),
        (_deep_nesting, "limit"),
        (_pickle, "magic"),
    ],
)
def test_what_cannot_be_decoded_is_one_sentence_and_exit_code_1(
    make: Callable[[Path], None], code: str, path: Path
) -> None:
    make(path)
    result = check(path)
    assert (result.exit_code, result.stderr) == (1, "")
    assert re.fullmatch(rf"one\.omniwire: decode: expected .+ \[{code}\]\n", result.stdout)
    sentence = result.stdout.removeprefix("one.omniwire: ")
    result = inspect(path)
    assert (result.exit_code, result.stderr) == (1, "")
    assert result.stdout == f"one.omniwire: not valid\n\n1 problem\n{sentence}"


def _missing(path: Path) -> None:
    pass


def _folder(path: Path) -> None:
    path.mkdir()


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _loop(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (_missing, "no such file or directory"),
        (_folder, "expected a file, got a folder"),
        (_pipe, "expected a file, got a pipe"),
        (_device, "expected a file, got a device"),
        (_loop, "too many levels of symbolic links"),
    ],
)
def test_unusable_input_is_one_line_and_exit_code_2(
    make: Callable[[Path], None], text: str, path: Path
) -> None:
    make(path)
    for name, result in (("check", check(path)), ("inspect", inspect(path))):
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == f"omniwire {name}: one.omniwire: {text}\n"


def test_no_permission_is_exit_code_2(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is made up: root, as whom tests may run, has every permission."""

    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    ow.save(request(), path)
    monkeypatch.setattr(source.os, "open", refuse)
    result = check(path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "omniwire check: one.omniwire: permission denied\n"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (MemoryError(), "needs more memory than there is"),
        (OSError(errno.EIO, os.strerror(errno.EIO)), "input/output error"),
    ],
)
def test_a_machine_that_cannot_is_exit_code_2(
    error: Exception, text: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> object:
        raise error

    ow.save(request(), path)
    monkeypatch.setattr(source, "locate", fail)
    result = check(path)
    assert (result.exit_code, result.stderr) == (2, f"omniwire check: one.omniwire: {text}\n")


@pytest.mark.parametrize("size", [100, 10**6])
def test_a_file_that_changes_meanwhile_is_exit_code_2(
    size: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is neither valid nor invalid, whether or not what was read of it decodes."""
    locate = source.locate

    def change_and_locate(descriptor: int) -> object:
        os.truncate(path, size)
        return locate(descriptor)

    ow.save(request(), path)
    monkeypatch.setattr(source, "locate", change_and_locate)
    for name, result in (("check", check(path)), ("inspect", inspect(path))):
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == f"omniwire {name}: one.omniwire: changed while it was read\n"


def test_a_file_that_shrinks_after_it_was_read_does_no_harm(path: Path) -> None:
    """In a process of its own, which reading a page that is gone would end."""
    code = (
        "import os, sys\n"
        "from omniwire.inspector.source import inspect_file\n"
        "from omniwire.inspector.terminal import make_console, print_inspection\n"
        "inspection = inspect_file('one.omniwire')\n"
        "os.truncate('one.omniwire', 0)\n"
        "print_inspection(make_console(), inspection)\n"
    )
    ow.save(request(), path)
    result = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert "bf16[128, 512]" in result.stdout


@pytest.mark.usefixtures("path")
def test_hostile_file_names() -> None:
    for name in ("a\n[red]\x1b[5m", "caf\u00e9 \u65e5\u672c", os.fsdecode(b"\xff\xfe")):
        ow.save(ow.TokenIds([1]), name)
        for output in (check(name).stdout, inspect(name).stdout):
            assert output.replace("\n", "").isprintable()
    assert check("a\n[red]\x1b[5m").stdout.startswith(r"a\n[red]\x1b[5m: ok, TokenIds, ")
    assert check("caf\u00e9 \u65e5\u672c").stdout.startswith("caf\u00e9 \u65e5\u672c: ok, ")
    assert check("").stderr == "omniwire check: '': no such file or directory\n"


def test_output_that_cannot_be_written(path: Path) -> None:
    ow.save(request(), path)
    for command in ("check", "inspect"):
        with Path("/dev/full").open("w") as full:
            result = subprocess.run(
                [sys.executable, "-m", "omniwire", command, path],
                check=False,
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
            )
        assert result.returncode == 2
        assert result.stderr == f"omniwire {command}: cannot print: No space left on device\n"


def test_an_interruption_is_one_line_and_exit_code_130(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: str) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(source, "inspect_file", interrupt)
    result = check(path)
    assert (result.exit_code, result.stderr) == (130, "omniwire check: interrupted\n")


def test_without_rich_check_works_and_inspect_names_the_extra(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ow.save(ow.TokenIds([1]), path)
    monkeypatch.setitem(sys.modules, "rich", None)
    assert check(path).exit_code == 0
    result = inspect(path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "omniwire inspect: needs rich: pip install 'omniwire[cli]'\n"


@pytest.mark.parametrize("command", [check_command, inspect_command])
def test_wrong_use_is_exit_code_2(command: click.Command) -> None:
    assert run(command).exit_code == 2
    assert run(command, "one", "two").exit_code == 2
    assert run(command, "--no-such-option", "one").exit_code == 2
