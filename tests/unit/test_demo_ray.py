"""`omniwire demo --engine ray`: what it proves, how it fails, what it leaves."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import omniwire as ow
from omniwire.demo.command import demo_command
from omniwire.demo.leftovers import users_of
from omniwire.demo.problems import BadInput, DemoFailed


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path: Ray puts sockets into it, whose paths end at 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="ow-", dir="/tmp") as path:
        yield Path(path)


def start(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    """Start the command in a folder, which is also its home and its temporary folder."""
    pytest.importorskip("ray")
    inherited = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
    return subprocess.Popen(
        [sys.executable, "-m", "omniwire", "demo", "--engine", "ray", *arguments],
        cwd=folder,
        env={**inherited, "COLUMNS": "80", "TMPDIR": str(folder), "HOME": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def check_failure(process: "subprocess.Popen[str]", exit_code: int, *words: str) -> None:
    """The command ends with this code and one line on stderr, and prints no proof."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == exit_code, err
    assert "PASS" not in out
    assert re.fullmatch(r"omniwire demo: .+\n", err)
    for word in words:
        assert word in err


def wait_for_actor(folder: Path, name: str) -> int:
    """The process id of an actor, once it runs."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for pid in users_of(str(folder)):
            try:
                title = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if title.startswith(f"ray::{name}".encode()):
                return pid
        time.sleep(0.1)
    raise AssertionError(f"no actor {name} was started")


def listening_addresses(pids: list[int]) -> set[str]:
    """Where the processes wait for TCP connections, as the kernel writes it."""
    sockets = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    sockets.add(str(descriptor.readlink()))
    lines = [
        line.split()
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()[1:]
    ]
    listening = "0A"
    return {
        line[1].split(":")[0]
        for line in lines
        if line[3] == listening and f"socket:[{line[9]}]" in sockets
    }


def test_a_run_proves_itself_and_leaves_nothing(folder: Path) -> None:
    process = start(folder, "--save", "request.omniwire")
    out, err = process.communicate(timeout=300)
    assert re.findall("FAIL.*\n.*", out) == []
    assert (process.returncode, err) == (0, "")
    assert out.count("PASS") == 8
    # Two processors and two executors; every executor had requests of both processors.
    pids = re.search(r"pids (\d+), (\d+), (\d+), (\d+), started by (\d+)", out)
    assert pids is not None
    assert len(set(pids.groups())) == 5
    assert "6 + 6 distinct, 6 + 6 encoded" in out
    assert re.search(r"p0-0: .+p1-0: ", out, re.DOTALL)
    assert "100%" in out
    assert [path.name for path in folder.iterdir()] == ["request.omniwire"]
    assert users_of(str(folder)) == []
    assert isinstance(ow.load(folder / "request.omniwire"), ow.ProcessedRequest)


def test_a_killed_actor_is_one_line_and_exit_code_1(folder: Path) -> None:
    process = start(folder)
    executor = wait_for_actor(folder, "ExecutorActor")
    # 127.0.0.1, also as an IPv6 address
    loopback = {"0100007F", "0000000000000000FFFF00000100007F"}
    addresses = listening_addresses(users_of(str(folder)))
    os.kill(executor, signal.SIGKILL)
    check_failure(process, 1, "the Ray process: ActorDiedError")
    assert addresses
    assert addresses <= loopback
    assert users_of(str(folder)) == []
    assert list(folder.iterdir()) == []


def test_an_interrupted_run_ends_ray_and_cleans_up(folder: Path) -> None:
    process = start(folder)
    wait_for_actor(folder, "")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    check_failure(process, 130, "interrupted")
    assert users_of(str(folder)) == []
    assert list(folder.iterdir()) == []


def test_what_an_actor_met_is_told_in_its_own_words() -> None:
    exceptions = pytest.importorskip("ray.exceptions")
    from omniwire.demo.ray_engine import in_own_words

    def met(cause: Exception) -> Exception:
        return in_own_words(exceptions.RayTaskError("serve", "Traceback ...", cause))

    refusal = BadInput("one.omniwire: cannot save there")
    assert met(refusal) is refusal
    assert str(met(ZeroDivisionError("division by zero"))) == "ZeroDivisionError: division by zero"
    born = exceptions.RayTaskError(
        "__init__", "Traceback ...\nImportError: no x", ImportError("no x")
    )
    assert str(in_own_words(exceptions.ActorDiedError(born))) == "ImportError: no x"
    lost = in_own_words(exceptions.ObjectLostError("00" * 28, None, ""))
    assert isinstance(lost, DemoFailed)
    assert str(lost).startswith("ObjectLostError: ")


def test_bad_media_are_one_line_and_exit_code_2(folder: Path) -> None:
    check_failure(start(folder, "--video", "none.mp4"), 2, "none.mp4", "no such file")


def test_a_temporary_folder_with_a_long_name_is_refused_with_both_numbers(folder: Path) -> None:
    long = folder / ("x" * 40)
    long.mkdir()
    check_failure(start(long), 2, "xxx", "the limit", "43")


def test_a_missing_ray_is_one_line_and_exit_code_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    result = CliRunner().invoke(demo_command, ["--engine", "ray"])
    assert result.exit_code == 2
    assert result.stderr == "omniwire demo: needs ray: pip install 'omniwire[demo,ray]'\n"
