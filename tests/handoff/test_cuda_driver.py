"""What is said to the CUDA driver, with one that is none: a library of the same functions."""

import ctypes
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import omniwire as ow
from omniwire.serialization.handoff.cuda import CudaBackend
from omniwire.serialization.handoff.cuda_driver import CudaDriver

SOURCE = Path(__file__).parents[1] / "support" / "fake_cuda.cpp"
BASE, SIZE = 0x7FAB00000000, 0x300000000


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cuda") / "libcuda.so"
    subprocess.run(
        ["c++", "-std=c++17", "-shared", "-fPIC", "-Wall", "-Werror", "-o", path, SOURCE],
        check=True,
    )
    return path


@pytest.fixture
def driver(library: Path) -> Iterator[CudaDriver]:
    """Leaves no context current and nothing open."""
    yield CudaDriver(str(library))
    inside = ctypes.CDLL(str(library))
    assert inside.current_depth() == 0
    assert inside.open_count() == 0


def test_memory_is_exported_by_its_allocation_and_offset(driver: CudaDriver) -> None:
    handle, offset = driver.export(0, BASE + 0x212345678)
    assert offset == 0x212345678
    assert handle == bytes(0 if i % 3 == 0 else i for i in range(64))


def test_memory_is_opened_whole_and_closed_as_often(driver: CudaDriver) -> None:
    handle, _ = driver.export(0, BASE)
    assert driver.open(1, handle) == (BASE, SIZE)
    assert driver.open(1, handle) == (BASE, SIZE)
    driver.close(1, BASE)
    driver.close(1, BASE)
    with pytest.raises(ow.HandoffError):
        driver.close(1, BASE)


def test_a_context_is_retained_once_for_each_device(library: Path, driver: CudaDriver) -> None:
    retained = ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "num_retained")
    before = retained.value
    for device in (0, 1, 0, 1):
        driver.export(device, BASE)
    assert retained.value == before + 2


@pytest.mark.parametrize("address", [0, BASE - 1, BASE + SIZE])
def test_memory_of_another_kind_is_an_error(driver: CudaDriver, address: int) -> None:
    with pytest.raises(ow.HandoffError):
        driver.export(0, address)


def test_a_forged_handle_is_an_error(driver: CudaDriver) -> None:
    with pytest.raises(ow.HandoffError):
        driver.open(0, bytes(64))


def test_a_device_that_is_not_there_is_an_error(driver: CudaDriver) -> None:
    with pytest.raises(ow.HandoffError):
        driver.export(2, BASE)


def test_captures_of_other_threads_are_no_concern_of_this_one(
    library: Path, driver: CudaDriver
) -> None:
    driver.relax_captures()
    assert ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "capture_mode").value == 2


@pytest.mark.parametrize("name", ["libnone-such.so", "libm.so.6"])
def test_no_driver_is_an_error(name: str) -> None:
    with pytest.raises(ow.HandoffError):
        CudaDriver(name)


def test_devices_are_known_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    uuids = ["aaaa", "bbbb"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(uuids))
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda n: SimpleNamespace(uuid=uuids[n])
    )
    backend = CudaBackend()
    assert backend.name_of(1) == b"bbbb"
    assert [backend.find(name) for name in (b"aaaa", b"bbbb", b"cccc")] == [0, 1, None]


def test_no_device_can_be_used_where_cuda_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a child that was forked after CUDA had started, say."""

    def init() -> None:
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "init", init)
    assert CudaBackend().find(b"aaaa") is None


def test_no_device_can_be_used_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert CudaBackend().find(b"aaaa") is None


def test_a_cpu_tensor_is_on_no_device() -> None:
    assert not CudaBackend().owns(torch.zeros(2))
