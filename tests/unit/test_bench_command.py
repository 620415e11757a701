"""`omniwire bench` as its user meets it: what it prints, what it draws, how it exits."""

import dataclasses
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from PIL import Image

from omniwire.bench import run
from omniwire.bench.command import bench_command
from omniwire.bench.content import CASES
from omniwire.bench.pairs import Pair, start_server
from omniwire.bench.peers import PEERS
from omniwire.bench.usage import descendants

KINDS = (
    "a text",
    "a small image",
    "12 MiB of patches",
    "48 MiB of patches",
    "150 tensors of 4 KiB",
)
NEEDED = {
    "omniwire, in place": (),
    "omniwire, one copy": (),
    "pyzmq + msgspec": ("zmq", "msgspec"),
    "torch Queue, in place": (),
    "torch Queue": (),
    "Pipe + pickle 5": (),
    "shared_memory": (),
    "Ray": ("ray",),
}
"""The packages that each peer is made with."""

WITHOUT_RAY = "import sys; sys.modules['ray'] = None; from omniwire.cli import main; main()"
"""The command where Ray is not installed: a cluster takes seconds to start, ten times."""


def start(folder: Path, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
    """Start the command with a temporary folder of its own, in a process group of its own."""
    inherited = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
    return subprocess.Popen(
        [sys.executable, "-c", WITHOUT_RAY, "bench", *arguments],
        cwd=folder,
        env={**inherited, "COLUMNS": "80", "TMPDIR": str(folder), **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_a_run_prints_and_draws_every_peer_with_every_kind_of_request(tmp_path: Path) -> None:
    can_draw = importlib.util.find_spec("matplotlib") is not None
    process = start(tmp_path, "--repeat", "2", *(["--plot", "times.png"] if can_draw else []))
    out, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (0, "")
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80
    *tables, legend = re.split(r"^(?=.*: 2 messages|Ray: not)", out, flags=re.MULTILINE)[1:]
    assert tuple(table.partition(": 2 messages")[0] for table in tables) == KINDS
    for table in tables:
        for name, packages in NEEDED.items():
            (row,) = re.findall(rf"^ *{re.escape(name)}  +(.+?) *$", table, re.MULTILINE)
            if name != "Ray" and all(map(importlib.util.find_spec, packages)):
                assert re.fullmatch(r"[\d,.]+( +-?[\d,.]+){4,5}", row)
            else:
                assert row.startswith("not")
    assert legend.startswith("Ray: not installed: ray\n")
    if can_draw:
        check_picture(tmp_path / "times.png")
    assert [path.name for path in tmp_path.iterdir()] == ["times.png"] * can_draw


def check_picture(path: Path) -> None:
    with Image.open(path) as picture:
        picture.load()
        assert picture.format == "PNG"
        assert min(picture.size) > 500
        colors = picture.convert("RGB").getcolors(1 << 20)
        assert colors is not None
        assert len(colors) > 10


def test_messages_through_ray_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # what is measured sets it, for good
    (ray,) = [peer for peer in PEERS if peer.name == "Ray"]
    with Pair(start_server(), ray, CASES[0]) as pair:
        exchanges, others = pair.exchange(3)
    assert len(exchanges.seconds) == 3
    assert exchanges.usage.cpu_s > 0
    assert others.cpu_s > 0


def test_what_breaks_is_a_row_and_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shape that no tensor has makes every sender fail."""
    broken = dataclasses.replace(CASES[1], packed={"pixel_values": (-1, 48)})
    monkeypatch.setattr(run, "CASES", (broken,))
    monkeypatch.setattr(run, "PEERS", [peer for peer in PEERS if peer.name == "Pipe + pickle 5"])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    result = CliRunner(env={"COLUMNS": "80"}).invoke(bench_command, ["--repeat", "1"])
    assert result.exit_code == 1
    assert result.stderr == "omniwire bench: not everything was measured\n"
    assert re.search(r"^ *Pipe \+ pickle 5 +failed *$", result.stdout, re.MULTILINE)
    assert re.search(r"^Pipe \+ pickle 5: failed: RuntimeError: .*-1", result.stdout, re.MULTILINE)


def test_a_picture_that_cannot_be_saved_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = CliRunner().invoke(bench_command, ["--plot", str(tmp_path / "no" / "times.png")])
    assert result.exit_code == 2
    assert re.fullmatch(r"omniwire bench: .+no such folder\n", result.stderr)


@pytest.mark.parametrize("name", ["rich", "matplotlib"])
def test_a_missing_extra_is_one_line_and_exit_code_2(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda other: other if other != name else None)
    result = CliRunner().invoke(bench_command, ["--plot", "times.png"])
    assert result.exit_code == 2
    assert result.stderr == f"omniwire bench: needs {name}: pip install 'omniwire[bench]'\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_ends_its_processes(number: signal.Signals, tmp_path: Path) -> None:
    process = start(tmp_path)
    deadline = time.monotonic() + 60
    while len(children := descendants(process.pid)) < 6 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(children) >= 6  # multiprocessing has two of its own
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    err = process.communicate(timeout=60)[1]
    if number == signal.SIGINT:
        assert (process.returncode, err) == (130, "omniwire bench: interrupted\n")
    elif number == signal.SIGTERM:
        assert (process.returncode, err) == (128 + signal.SIGTERM, "")
    while any(map(is_alive, children)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(is_alive, children))
    if number != signal.SIGKILL:
        assert list(tmp_path.iterdir()) == []


def is_alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
