"""What a test may leave behind: shared memory and file descriptors."""

import contextlib
import gc
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

_ARENA: Final = "/memfd:omniwire"
_SHARED: Final = Path("/dev/shm")  # noqa: S108  # looked at, not written to
_PATIENCE_S: Final = 2.0
_SERVERS: Final = {
    "multiprocessing.resource_tracker": ("_resource_tracker", ("_fd",)),
    "multiprocessing.forkserver": ("_forkserver", ("_forkserver_alive_fd",)),
}
"""By module of multiprocessing: its server, and the server's attributes with descriptors."""

Present = Mapping[tuple[str, int], str]
"""What is there: a description by name and number, which together nothing else has."""


def segments() -> Present:
    """Shared memory: this process's mappings of arenas, and this user's named files of it."""
    found = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        if _ARENA in line:
            addresses, _, _, _, inode = line.split()[:5]
            first, past = (int(end, 16) for end in addresses.split("-"))
            found[addresses, int(inode)] = f"a mapping of an arena ({past - first} bytes)"
    for path in _SHARED.iterdir():
        with contextlib.suppress(FileNotFoundError):  # it went just now
            status = path.stat()
            if status.st_uid == os.getuid():
                found[str(path), status.st_ino] = f"{path} ({status.st_size} bytes)"
    return found


def descriptors() -> Present:
    """The open file descriptors of this process, those of multiprocessing's servers apart."""
    expected: set[int | None] = set()
    for name, (singleton, attributes) in _SERVERS.items():
        server = getattr(sys.modules.get(name), singleton, None)
        expected.update(getattr(server, attribute, None) for attribute in attributes)
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            target = str(entry.readlink())
            if int(entry.name) not in expected:
                found[target, int(entry.name)] = f"descriptor {entry.name} of {target}"
    return found


def wait_until_gone(before: Present, look: Callable[[], Present]) -> list[str]:
    """What is there now and was not before, and stays when garbage is collected."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        now = look()
        left = [key for key in now if key not in before]
        if not left:
            return []
        if time.monotonic() > deadline:
            return sorted(now[key] for key in left if not _is_used_elsewhere(key[0]))
        gc.collect()
        time.sleep(0.01)


def _is_used_elsewhere(name: str) -> bool:
    """Whether a process that has nothing to do with this one maps a shared file or opened it."""
    if not name.startswith(f"{_SHARED}/"):
        return False
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            if not _is_ours(int(process.name)) and _uses(process, name):
                return True
    return False


def _uses(process: Path, path: str) -> bool:
    if path in (process / "maps").read_text():
        return True
    return any(str(entry.readlink()) == path for entry in (process / "fd").iterdir())


def _is_ours(pid: int) -> bool:
    """Whether a process is this one or was started by it, directly or not."""
    while pid > 1 and pid != os.getpid():
        # The name of its program is in parentheses and may have any characters in it.
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid == os.getpid()
