"""Contracts through Ray: `ray_cases.py`, and a look at what is left when it has ended.

In a process of its own, since Ray leaves threads, signal handlers and environment variables
behind in the one that starts it.
"""

import contextlib
import itertools
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray")

CASES = Path(__file__).parents[1] / "support" / "ray_cases.py"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path: Ray puts sockets into it, whose paths end at 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as path:
        yield Path(path)


def processes_in(folder: Path) -> list[int]:
    """Ids of the processes whose home is `folder`: all that a test has started."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            if f"HOME={folder}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def files_of_ray() -> set[Path]:
    """What Ray has in shared memory and where it keeps its files unless told otherwise."""
    shared = (Path("/dev/shm").glob(pattern) for pattern in ("*plasma*", "sem.hdr*", "sem.obj*"))
    return {*itertools.chain(*shared), *Path("/tmp/ray").glob("*")}


def test_contracts_through_a_cluster(folder: Path) -> None:
    """All of the cases pass, and no process and no file stays."""
    before = files_of_ray()
    output = folder / "output"
    environment = {
        **os.environ,
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "RAY_TMPDIR": str(folder),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(16),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(CASES)]
    with output.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        assert process.wait(timeout=300) == 0, output.read_text()
        deadline = time.monotonic() + 20
        while (left := processes_in(folder)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert left == []
    finally:
        for pid in processes_in(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
    assert files_of_ray() == before
