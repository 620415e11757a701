"""Processor time, page faults and memory of processes, as Linux tells them."""

import resource
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_PROCESSES = Path("/proc")


@dataclass(frozen=True)
class Usage:
    """What has been used so far.

    Attributes:
        cpu_s: Seconds of processor time, all threads.
        faults: Minor page faults.
    """

    cpu_s: float = 0.0
    faults: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(self.cpu_s + other.cpu_s, self.faults + other.faults)

    def __sub__(self, other: "Usage") -> "Usage":
        return Usage(self.cpu_s - other.cpu_s, self.faults - other.faults)


def own_usage() -> Usage:
    """What this process has used."""
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    return Usage(time.process_time(), faults)


def usage_of(pids: Iterable[int]) -> dict[int, Usage]:
    """What other processes have used; one that has ended is left out."""
    usages = {}
    for pid in pids:
        try:
            # The number of another process's clock, as clock_getcpuclockid of glibc makes it.
            cpu_s = time.clock_gettime((~pid << 3) | 2)
            # The second field is the program's name in brackets, and may hold anything.
            fields = (_PROCESSES / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        usages[pid] = Usage(cpu_s, int(fields[7]))
    return usages


def memory_of(pids: Iterable[int]) -> int:
    """Bytes that processes hold in memory; a page that several hold counts in parts."""
    total = 0
    for pid in pids:
        try:
            text = (_PROCESSES / str(pid) / "smaps_rollup").read_text()
        except OSError:  # it has ended
            continue
        total += int(text.partition("\nPss:")[2].split(maxsplit=1)[0]) * 1024
    return total


def descendants(pid: int) -> list[int]:
    """Ids of the processes that a process has started, and of those that they have."""
    found = []
    for task in _PROCESSES.glob(f"{pid}/task/*/children"):
        try:
            children = [int(child) for child in task.read_text().split()]
        except OSError:  # the thread has ended
            continue
        for child in children:
            found += [child, *descendants(child)]
    return found
