"""`available_memory`: what the system and its control groups leave."""

from collections.abc import Callable
from pathlib import Path

import pytest

from omniwire.serialization.handoff import memory
from omniwire.serialization.handoff.memory import available_memory

MIB = 2**20
MEMINFO = "MemTotal:  16384 kB\nMemFree:  1024 kB\nMemAvailable:  8192 kB\nBuffers:  7 kB\n"

Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write files of a made-up system, with 8 MiB available and no control groups."""

    def write_file(name: str, text: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(memory, "_GROUPS", tmp_path / "groups")
    write_file("meminfo", MEMINFO)
    return write_file


def group(write: Write, folder: str, limit: object, usage: int, cache: int = 0) -> None:
    """A control group of version 2."""
    write(f"groups/{folder}/memory.max", f"{limit}\n")
    write(f"groups/{folder}/memory.current", f"{usage}\n")
    write(f"groups/{folder}/memory.stat", f"anon 5\ninactive_file {cache}\nfile 9\n")


def old_group(write: Write, folder: str, limit: int, usage: int, cache: int = 0) -> None:
    """A control group of version 1."""
    write(f"groups/memory/{folder}/memory.limit_in_bytes", f"{limit}\n")
    write(f"groups/memory/{folder}/memory.usage_in_bytes", f"{usage}\n")
    text = f"inactive_file 1\ntotal_inactive_file {cache}\n"
    write(f"groups/memory/{folder}/memory.stat", text)


class TestWithoutGroups:
    def test_is_what_the_system_says(self, write: Write) -> None:
        assert available_memory() == 8 * MIB

    def test_of_a_system_that_does_not_say(self, write: Write) -> None:
        write("meminfo", "MemTotal:  16384 kB\n")
        write("own", "0::/a\n")
        group(write, "a", 5 * MIB, MIB)
        assert available_memory() == 4 * MIB

    def test_in_no_group(self, write: Write) -> None:
        write("own", "")
        assert available_memory() == 8 * MIB

    def test_in_a_group_without_files(self, write: Write) -> None:
        """As seen from inside some containers."""
        write("own", "0::/elsewhere\n4:memory:/elsewhere\n")
        assert available_memory() == 8 * MIB

    def test_of_this_very_machine(self) -> None:
        total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
        assert 0 < available_memory() < total


class TestVersion2:
    def test_a_limit(self, write: Write) -> None:
        write("own", "0::/a/b\n")
        group(write, "a/b", 5 * MIB, 2 * MIB)
        assert available_memory() == 3 * MIB

    def test_page_cache_can_be_given_back(self, write: Write) -> None:
        write("own", "0::/a/b\n")
        group(write, "a/b", 5 * MIB, 4 * MIB, cache=MIB)
        assert available_memory() == 2 * MIB

    def test_a_limit_further_up(self, write: Write) -> None:
        write("own", "0::/a/b/c\n")
        group(write, "a/b/c", "max", 0)
        group(write, "a/b", 7 * MIB, MIB)
        group(write, "a", 4 * MIB, MIB)
        assert available_memory() == 3 * MIB

    def test_a_limit_of_the_whole_container(self, write: Write) -> None:
        """Its own group is the top, as it sees it."""
        write("own", "0::/\n")
        group(write, "", 5 * MIB, MIB)
        assert available_memory() == 4 * MIB

    def test_a_limit_that_leaves_more_than_there_is(self, write: Write) -> None:
        write("own", "0::/a\n")
        group(write, "a", 100 * MIB, MIB)
        assert available_memory() == 8 * MIB

    def test_no_limit(self, write: Write) -> None:
        write("own", "0::/a\n")
        group(write, "a", "max", MIB)
        assert available_memory() == 8 * MIB

    def test_over_the_limit(self, write: Write) -> None:
        write("own", "0::/a\n")
        group(write, "a", MIB, 3 * MIB)
        assert available_memory() == 0

    def test_a_path_with_a_colon(self, write: Write) -> None:
        write("own", "0::/a:b\n")
        group(write, "a:b", 3 * MIB, MIB)
        assert available_memory() == 2 * MIB

    def test_nothing_above_the_top_is_read(self, write: Write, tmp_path: Path) -> None:
        write("own", "0::/a\n")
        for name, value in (("max", 1), ("current", 1), ("stat", 0)):
            write(f"memory.{name}", f"{value}")
        assert available_memory() == 8 * MIB


class TestVersion1:
    def test_a_limit(self, write: Write) -> None:
        write("own", "9:cpu,cpuacct:/x\n4:memory:/a\n1:name=systemd:/y\n")
        old_group(write, "a", 6 * MIB, 4 * MIB, cache=MIB)
        assert available_memory() == 3 * MIB

    def test_a_controller_among_others(self, write: Write) -> None:
        write("own", "4:cpuset,memory:/a\n")
        old_group(write, "a", 6 * MIB, 4 * MIB)
        assert available_memory() == 2 * MIB

    def test_no_limit_is_a_number_there(self, write: Write) -> None:
        write("own", "4:memory:/a\n")
        old_group(write, "a", 9223372036854771712, 4 * MIB)
        assert available_memory() == 8 * MIB

    def test_a_limit_further_up(self, write: Write) -> None:
        write("own", "4:memory:/a/b\n")
        old_group(write, "a/b", 9223372036854771712, 0)
        old_group(write, "", 3 * MIB, MIB)
        assert available_memory() == 2 * MIB

    def test_both_versions(self, write: Write) -> None:
        write("own", "4:memory:/a\n0::/b\n")
        old_group(write, "a", 6 * MIB, MIB)
        group(write, "b", 4 * MIB, MIB)
        assert available_memory() == 3 * MIB
