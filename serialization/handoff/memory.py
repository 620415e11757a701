"""How much memory a new arena may take: asked before it is promised."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

_MEMINFO: Final = Path("/proc/meminfo")
_OWN_GROUPS: Final = Path("/proc/self/cgroup")
_GROUPS: Final = Path("/sys/fs/cgroup")
_UNLIMITED: Final = 2**60  # version 1 writes "no limit" as a number close to 2**63


def available_memory() -> int:
    """Bytes that can be allocated now without swapping or running into a limit.

    The least of `MemAvailable` and what the limits of this process's control groups, of either
    version, leave over; page cache that a group can give back counts as free.
    """
    return max(0, min([_available(), *_left_in_groups()]))


def _available() -> int:
    for line in _MEMINFO.read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return _UNLIMITED


def _left_in_groups() -> Iterator[int]:
    """What each memory limit above this process leaves, from its own group upwards."""
    try:
        lines = _OWN_GROUPS.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _left_above(_GROUPS, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            yield from _left_above(
                _GROUPS / "memory",
                path,
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "total_inactive_file",
            )


def _left_above(
    root: Path, path: str, limit_name: str, usage_name: str, cache_name: str
) -> Iterator[int]:
    group = root / path.lstrip("/")
    for folder in (group, *group.parents):
        if folder == root.parent:
            return
        try:
            limit = int((folder / limit_name).read_text())
            usage = int((folder / usage_name).read_text())
            statistics = (folder / "memory.stat").read_text()
        except (OSError, ValueError):  # no such file here, or "max"
            continue
        if limit < _UNLIMITED:
            yield limit - usage + _statistic(statistics, cache_name)


def _statistic(text: str, name: str) -> int:
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0
