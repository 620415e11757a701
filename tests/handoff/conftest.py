"""Child processes from a forkserver that has imported torch, and a look at what a test leaves.

A child that is still there at the end of its test is killed.
"""

import contextlib
import gc
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from multiprocessing import forkserver, resource_tracker, util
from pathlib import Path
from typing import Any

import pytest
import torch
from handoff_children import TIMEOUT_S, run_function, run_puppet
from handoff_remote import CONTEXT, Remote

import omniwire as ow
from omniwire.serialization.handoff import end, outbox, waiting

MARK = ("OMNIWIRE_HANDOFF_TESTS", secrets.token_hex(8))
"""In the environment of every process that a test starts."""

SHARED_MEMORY = Path("/dev/shm")


@pytest.fixture(scope="session", autouse=True)
def _server_of_forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One forkserver for all tests here, with a folder for temporary files of its own."""
    tmp_path_factory.getbasetemp()  # made once, and so not in a test's folder; so is the next
    util.get_temp_dir()
    forkserver._forkserver._stop()
    resource_tracker.ensure_running()
    with tempfile.TemporaryDirectory(prefix="forks-") as folder:
        CONTEXT.set_forkserver_preload(["pytest", "omniwire.serialization"])
        with _environment(folder):
            forkserver.ensure_running()
        # What is imported by now stays: a look for garbage need not go through it again.
        gc.collect()
        gc.freeze()
        yield
        gc.unfreeze()
        forkserver._forkserver._stop()
        assert not list(Path(folder).iterdir())


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note a failure: its traceback keeps whatever the test held."""
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small tensors on busy cores: more threads would wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@contextlib.contextmanager
def _environment(folder: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setenv(*MARK)
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(autouse=True)
def _nothing_left(request: pytest.FixtureRequest, _server_of_forks: None) -> Iterator[None]:
    """Fail a test that leaves a descriptor, a mapping, a file, a thread or a process behind."""
    with tempfile.TemporaryDirectory(prefix="omniwire-") as folder, _environment(folder):
        before = _present(folder)
        yield
        request.node.funcargs.clear()  # by now only pytest still keeps what fixtures made
        if FAILED not in request.node.stash and _present(folder) - before:
            _look_again(folder, before)


def _look_again(folder: str, before: set[str]) -> None:
    """Collect garbage, and give processes that are about to end some time for it."""
    gc.collect()
    deadline = time.monotonic() + TIMEOUT_S / 4
    while left := _present(folder) - before:
        left -= _files_of_strangers()
        if not left:
            return
        if time.monotonic() > deadline:
            pytest.fail(f"left behind: {sorted(left)}")
        time.sleep(0.01)
        gc.collect()


@pytest.fixture
def no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits sleeps until it is woken: a wake-up that gets lost hangs the test."""
    for module, name in (
        (waiting, "POLL_AGAIN_S"),
        (outbox, "POLL_AGAIN_S"),
        (outbox, "_PATIENCE_S"),
        (end, "POLL_AGAIN_S"),
    ):
        monkeypatch.setattr(module, name, 3600.0)
    *others, _ = waiting.Wait.__new__.__defaults__
    monkeypatch.setattr(waiting.Wait.__new__, "__defaults__", (*others, 3600.0))


@pytest.fixture
def folder() -> Path:
    """The test's folder for temporary files, with a short path; what is left there is found."""
    return Path(tempfile.gettempdir())


def _present(folder: str) -> set[str]:
    found = {f"thread {thread.name}" for thread in threading.enumerate()}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(f"descriptor {entry.name} of {entry.readlink()}")
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "memfd:omniwire" in line:
            found.add(f"mapping {line.split()[0]}")
    found.update(str(path) for path in SHARED_MEMORY.iterdir())
    found.update(str(path) for path in Path(folder).rglob("*"))
    found.update(f"process {pid}" for pid in _children())
    return found


def _children() -> list[int]:
    """Processes that a test has started, in whichever way, and those that these have started."""
    own = {os.getpid(), forkserver._forkserver._forkserver_pid}
    return [pid for pid in _processes(marked=True) if pid not in own]


def _processes(*, marked: bool) -> Iterator[int]:
    mark = "=".join(MARK).encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            if (mark in (entry / "environ").read_bytes()) == marked:
                yield int(entry.name)


def _files_of_strangers() -> set[str]:
    """What other processes of this machine have in shared memory."""
    prefix = f"{SHARED_MEMORY}/"
    found = set()
    for pid in _processes(marked=False):
        if pid != os.getpid():
            with contextlib.suppress(OSError):
                maps = Path(f"/proc/{pid}/maps").read_text()
                found.update(word for word in maps.split() if word.startswith(prefix))
    return found


@pytest.fixture
def start() -> Iterator[Callable[..., Remote]]:
    """Start a puppet at an end of a channel, or at the path of a server."""
    remotes: list[Remote] = []

    def start_puppet(end: ow.Channel | str, method: str = "forkserver", **options: int) -> Remote:
        remote = Remote.start(method, run_puppet, end, options)
        remotes.append(remote)
        return remote

    yield start_puppet
    for remote in remotes:
        remote.close()


@pytest.fixture
def call() -> Iterator[Callable[..., Remote]]:
    """Start a child process that calls a function with a connection to the test."""
    remotes: list[Remote] = []

    def start_call(function: Callable[..., Any], *args: object) -> Remote:
        remote = Remote.start("forkserver", run_function, function, *args)
        remotes.append(remote)
        return remote

    yield start_call
    for remote in remotes:
        remote.close()
