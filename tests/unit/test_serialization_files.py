"""Files: written whole or not at all, mapped when read."""

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from omniwire.contracts import ContractTypeError, DecodeError, EncodeError, FrozenMapping, ItemRef
from omniwire.serialization import Limits, dumps, load, loads, save

OLD = FrozenMapping({"t": torch.zeros(30_000)})
NEW = FrozenMapping({"t": torch.ones(30_000), "small": torch.arange(200)})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "request.omniwire"


def test_a_file_has_the_bytes_of_dumps(path: Path) -> None:
    save(NEW, path)
    assert path.read_bytes() == dumps(NEW)
    assert loads(path.read_bytes()) == NEW


def test_round_trip(build_to_send: Callable[[], object], path: Path) -> None:
    save(build_to_send(), path)
    arrived = load(path)
    assert type(arrived) is type(build_to_send())
    assert arrived == build_to_send()
    assert load(str(path), copy=True) == arrived


def test_a_file_is_replaced(path: Path) -> None:
    save(OLD, path)
    save(NEW, path)
    assert load(path) == NEW
    assert list(path.parent.iterdir()) == [path]


def test_what_was_loaded_stays_when_its_file_is_replaced_or_removed(path: Path) -> None:
    save(OLD, path)
    arrived = load(path)
    save(NEW, path)
    assert arrived == OLD
    path.unlink()
    assert arrived == OLD


def test_a_write_to_a_loaded_tensor_stays_in_this_process(path: Path) -> None:
    save(OLD, path)
    arrived = load(path)
    arrived["t"].fill_(7)
    assert load(path) == OLD
    assert path.read_bytes() == dumps(OLD)


def test_a_file_keeps_the_permissions_of_the_user(path: Path) -> None:
    old = os.umask(0o027)
    try:
        save(OLD, path)
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o640


def _full_disk(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class _FullFile(io.FileIO):
    """A file on a disk that fills up after the first few writes."""

    def write(self, content: object) -> int:
        if self.tell() > 0:
            _full_disk()
        return super().write(content)  # type: ignore[arg-type]  # any buffer


@pytest.mark.parametrize("broken", ["fsync", "replace", "write"])
@pytest.mark.parametrize("exists", [True, False])
def test_a_failure_leaves_the_old_file_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, exists: bool
) -> None:
    if exists:
        save(OLD, path)
    with monkeypatch.context() as patch:
        if broken == "write":
            patch.setattr(Path, "open", lambda self, mode: _FullFile(self, mode.replace("b", "")))
        else:
            patch.setattr(os, broken, _full_disk)
        with pytest.raises(OSError, match="No space left") as caught:
            save(NEW, path)
    assert caught.value.errno == errno.ENOSPC
    assert list(path.parent.iterdir()) == ([path] if exists else [])
    if exists:
        assert load(path) == OLD


def test_an_interrupt_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save(NEW, path)
    assert list(path.parent.iterdir()) == []


def test_what_cannot_travel_touches_no_file(path: Path) -> None:
    save(OLD, path)
    with pytest.raises(EncodeError):
        save((1, 2), path)
    assert load(path) == OLD
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        save(OLD, tmp_path / "missing" / "file")
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "missing")


@pytest.mark.parametrize("content", [b"", b"x", b"omniblob", b"\x80\x04K\x01.", bytes(5000)])
def test_files_of_other_kinds(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(DecodeError):
        load(path)


def test_a_file_cut_short(path: Path) -> None:
    whole = dumps(OLD)
    for size in (1, 63, 64, 200, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(DecodeError) as caught:
            load(path)
        assert caught.value.code == "truncated"


def test_limits_hold(path: Path) -> None:
    save(OLD, path)
    with pytest.raises(DecodeError) as caught:
        load(path, Limits(max_total_bytes=119_999))
    assert caught.value.code == "limit"


def test_a_path_of_another_type() -> None:
    with pytest.raises(ContractTypeError) as caught:
        save(ItemRef("image", 0), 3)  # type: ignore[arg-type]  # what is tested
    assert caught.value.problems[0].path == ("path",)
