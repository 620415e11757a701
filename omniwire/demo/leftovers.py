"""What a run leaves behind: processes, descriptors, shared memory and temporary files."""

import contextlib
import multiprocessing
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108  # looked at, never written to
_PROCESSES: Final = Path("/proc")

_PATIENCE_S: Final = 10.0


@dataclass(frozen=True)
class Snapshot:
    """What this process holds at one moment.

    Attributes:
        children: Ids of its child processes.
        descriptors: Its open descriptors and what each is open on.
        shared_memory: Names in the shared-memory folder.
    """

    children: frozenset[int]
    descriptors: frozenset[tuple[str, str]]
    shared_memory: frozenset[str]


def take_snapshot() -> Snapshot:
    """The state of this process now."""
    return Snapshot(
        frozenset(_children()), frozenset(_descriptors()), frozenset(_shared_memory_names())
    )


def left_behind(before: Snapshot, after: Snapshot, scratch: str) -> list[str]:
    """Everything that is there after a run and was not there before it, in words.

    Args:
        before: Taken before the run.
        after: Taken after it.
        scratch: The folder in which the run's processes put temporary files.
    """
    found = [f"child process {pid}" for pid in sorted(after.children - before.children)]
    found += [
        f"descriptor {number} on {target}"
        for number, target in sorted(after.descriptors - before.descriptors)
    ]
    # Other programs on the machine use the folder too. What one of them holds open is its own,
    # and what it is about to remove.
    found += [
        f"shared memory {name}"
        for name in sorted(after.shared_memory - before.shared_memory)
        if _is_abandoned(_SHARED_MEMORY / name)
    ]
    found += [f"process {pid} with open temporary files" for pid in users_of(scratch)]
    found += [f"temporary file {path.name}" for path in sorted(Path(scratch).iterdir())]
    return found


def _children() -> Iterator[int]:
    if not _PROCESSES.is_dir():
        for child in multiprocessing.active_children():
            if child.pid is not None:
                yield child.pid
        return
    own_pid = str(os.getpid())
    for folder in _PROCESSES.glob("[0-9]*"):
        try:
            status = (folder / "stat").read_text(errors="replace")
        except OSError:  # it ended while we looked
            continue
        # The second field is the program's name in brackets, and may hold anything.
        if status.rpartition(")")[2].split()[1] == own_pid:
            yield int(folder.name)


def _descriptors() -> Iterator[tuple[str, str]]:
    folder = Path("/proc/self/fd" if _PROCESSES.is_dir() else "/dev/fd")
    for descriptor in folder.iterdir():
        try:
            yield descriptor.name, str(descriptor.readlink())
        except OSError:  # the descriptor of the listing itself
            continue


def _shared_memory_names() -> Iterator[str]:
    if _SHARED_MEMORY.is_dir():
        for path in _SHARED_MEMORY.iterdir():
            try:
                if path.stat().st_uid == os.getuid():
                    yield path.name
            except OSError:  # removed while we looked
                continue


def _is_abandoned(path: Path) -> bool:
    """Whether a file stays for a second without a process that uses it."""
    deadline = time.monotonic() + 1
    while path.exists() and not users_of(str(path)):
        if time.monotonic() > deadline:
            return True
        time.sleep(0.05)
    return False


def users_of(path: str) -> list[int]:
    """Ids of the processes that have a file open, or map it, or one in that folder."""
    return [pid for pid in _processes() if _uses(pid, path)]


def wait_for_users(folder: str) -> list[int]:
    """Wait until no other process has a file in a folder open; those that do not stop."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        users = [pid for pid in users_of(folder) if pid != os.getpid()]
        if not users or time.monotonic() > deadline:
            return users
        time.sleep(0.05)


def _processes() -> Iterator[int]:
    for folder in _PROCESSES.glob("[0-9]*"):
        yield int(folder.name)


def _uses(pid: int, path: str) -> bool:
    folder = _PROCESSES / str(pid)
    try:
        if path in (folder / "maps").read_text(errors="replace"):
            return True
        descriptors = list((folder / "fd").iterdir())
    except OSError:  # it ended, or belongs to somebody else
        return False
    for descriptor in descriptors:
        with contextlib.suppress(OSError):  # it was closed while we looked
            target = str(descriptor.readlink())
            if target == path or target.startswith(f"{path}/"):
                return True
    return False
