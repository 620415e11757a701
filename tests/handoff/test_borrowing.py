"""What a message says of memory on devices is checked before it is believed."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from device_fakes import MEMORY_BYTES, FakeDevices, installed, wait_for_keeper

import omniwire as ow
from omniwire.serialization.handoff.borrowing import Borrower
from omniwire.serialization.handoff.device import (
    COPIED,
    OBJECT,
    SHARED,
    Record,
    pack_record,
    unpack_record,
)
from omniwire.serialization.handoff.device_books import device_books
from omniwire.serialization.handoff.lease import Lease, SlotBytes

NUM_BYTES = 64


class Ledger:
    """What a reader reports."""

    def __init__(self) -> None:
        self.released: list[int] = []
        self.reports: list[tuple[int, bool]] = []

    def release(self, cell: int, value: int) -> None:
        self.released.append(cell)

    def report(self, device: int, *, opens: bool) -> None:
        self.reports.append((device, opens))


@pytest.fixture
def devices(folder: Path) -> Iterator[FakeDevices]:
    with installed(FakeDevices(str(folder))) as devices:
        yield devices
        devices.finish()
        wait_for_keeper()
    devices.remove_files()


@pytest.fixture
def record(devices: FakeDevices) -> Record:
    """A record of 16 floats on device 1, of another process as far as this one knows."""
    memory, offset = devices.export(devices.tensor(torch.arange(16.0), 1))
    event, handle = devices.new_event(1)
    devices.record(1, event)
    devices.log.clear()
    name = devices.name_of(1)
    return Record(SHARED, 3, b"x" * 16, 7, offset, NUM_BYTES, name, memory, handle, bytes(64))


Attach = Callable[..., Any]


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def attach(ledger: Ledger) -> Attach:
    """Attaches a handle in a message with some places."""

    def attach_handle(
        *places: bytes,
        payload: bytes = b"omniwire:leaf:0",
        dtype: torch.dtype = torch.float32,
        shape: tuple[int, ...] = (16,),
    ) -> Any:
        contents = []
        for cell, place in enumerate(places):
            content = np.frombuffer(bytearray(place), np.uint8).view(SlotBytes)
            content.hold = Lease(ledger, cell, 1)  # type: ignore[arg-type]  # has all that is needed
            contents.append(content)
        handle = ow.TensorHandle("cuda_ipc", dtype, shape, payload)
        return Borrower(contents, ledger).attach(handle, payload)  # type: ignore[arg-type]  # as above

    return attach_handle


def test_a_good_record_is_a_tensor(attach: Attach, record: Record) -> None:
    assert torch.equal(attach(pack_record(record)), torch.arange(16.0))


def test_a_record_is_what_was_packed(record: Record) -> None:
    padded = record._replace(
        memory=record.memory.ljust(64, b"\0"), event=record.event.ljust(64, b"\0")
    )
    assert unpack_record(pack_record(record)) == padded


@pytest.mark.parametrize("payload", [b"omniwire:leaf:", b"omniwire:leaf:1", b"omniwire:leaf:-1"])
def test_a_number_that_is_none(attach: Attach, record: Record, payload: bytes) -> None:
    with pytest.raises(ow.DecodeError) as caught:
        attach(pack_record(record), payload=payload)
    assert caught.value.code == "buffer"


@pytest.mark.parametrize("content", [b"x", bytes(4096)])
def test_a_record_of_another_size(attach: Attach, content: bytes) -> None:
    with pytest.raises(ow.DecodeError) as caught:
        attach(content)
    assert caught.value.code == "buffer"


@pytest.mark.parametrize("changes", [{"mode": 3}, {"device": 64}, {"nbytes": 60}])
def test_a_record_that_is_wrong(attach: Attach, record: Record, changes: dict[str, Any]) -> None:
    with pytest.raises(ow.DecodeError) as caught:
        attach(pack_record(record._replace(**changes)))
    assert caught.value.code == "buffer"


@pytest.mark.parametrize("offset", [MEMORY_BYTES - 60, MEMORY_BYTES, 2**63, 2])
def test_bytes_that_are_not_there_are_closed_and_given_back(
    attach: Attach, record: Record, devices: FakeDevices, ledger: Ledger, offset: int
) -> None:
    """Past the end of the allocation, or where no float can be."""
    with pytest.raises(ow.HandoffError) as caught:
        attach(pack_record(record._replace(offset=offset)))
    del caught
    assert devices.log == ["open", "close"]
    assert ledger.released == [0]


def test_a_device_that_is_not_here(attach: Attach, record: Record, ledger: Ledger) -> None:
    with pytest.raises(ow.HandoffError):
        attach(pack_record(record._replace(name=b"gpu-z")))
    assert ledger.reports == [(3, False)]


def test_an_event_that_is_no_more_gives_the_memory_back(
    attach: Attach, record: Record, devices: FakeDevices, ledger: Ledger
) -> None:
    with pytest.raises(ow.HandoffError) as caught:
        attach(pack_record(record._replace(event=b"0:/nowhere")))
    del caught
    devices.wait_for(lambda: ledger.released == [0])
    assert devices.num_open == 0


def test_a_tensor_of_another_process_only(attach: Attach, record: Record) -> None:
    with pytest.raises(ow.HandoffError):
        attach(pack_record(record._replace(mode=OBJECT)))


def test_a_loan_that_has_ended(attach: Attach, record: Record) -> None:
    with pytest.raises(ow.HandoffError):
        attach(pack_record(record._replace(process=device_books().token)))


def test_a_loan_of_another_type(attach: Attach, record: Record) -> None:
    loan = device_books().lend(torch.zeros(3), None)
    here = record._replace(process=device_books().token, number=loan.number)
    with pytest.raises(ow.DecodeError) as caught:
        attach(pack_record(here))
    assert caught.value.code == "buffer"
    with pytest.raises(ow.ContractError):
        attach(pack_record(here), payload=b"omniwire:lent:0")


def test_a_copy_that_is_missing(attach: Attach, record: Record) -> None:
    with pytest.raises(ow.DecodeError) as caught:
        attach(pack_record(record._replace(mode=COPIED)))
    assert caught.value.code == "buffer"


def test_a_copy_of_another_size(attach: Attach, record: Record) -> None:
    with pytest.raises(ow.HandoffError):
        attach(pack_record(record._replace(mode=COPIED)), bytes(60))


def test_a_copy_without_bytes(attach: Attach, record: Record, devices: FakeDevices) -> None:
    empty = record._replace(mode=COPIED, nbytes=0)
    tensor = attach(pack_record(empty), shape=(0, 4))
    assert tensor.shape == (0, 4)
    assert devices.log[0] == "to 1"


@pytest.mark.parametrize("offset", [0, MEMORY_BYTES - 60])
def test_a_trial_that_fails_is_reported_and_the_copy_arrives(
    attach: Attach, record: Record, ledger: Ledger, devices: FakeDevices, offset: int
) -> None:
    """Another pattern is there, or no memory at all."""
    trial = record._replace(mode=COPIED, pattern=b"p" * 64, offset=offset)
    content = torch.ones(16).numpy().tobytes()
    assert torch.equal(attach(pack_record(trial), content), torch.ones(16))
    assert ledger.reports == [(3, False)]
    assert devices.num_open == 0


def test_what_a_device_works_on_is_not_given_back_with_a_malformed_message(
    record: Record, ledger: Ledger, devices: FakeDevices
) -> None:
    """The rest of the message is malformed: all of its leases are given back, but this one."""
    content = np.frombuffer(bytearray(pack_record(record)), np.uint8).view(SlotBytes)
    lease = content.hold = Lease(ledger, 0, 1)  # type: ignore[arg-type]  # has all that is needed
    payload = b"omniwire:leaf:0"
    handle = ow.TensorHandle("cuda_ipc", torch.float32, (16,), payload)
    borrower = Borrower([content], ledger)  # type: ignore[arg-type]  # as above
    tensor = borrower.attach(handle, payload)
    devices.is_busy = True
    lease.release()
    assert ledger.released == []
    del tensor, borrower, content
    assert ledger.released == []
    devices.finish()
    devices.wait_for(lambda: ledger.released == [0])


def test_a_lease_that_was_given_back_opens_nothing(
    record: Record, ledger: Ledger, devices: FakeDevices
) -> None:
    """A handle that a malformed message had is resolved all the same."""
    content = np.frombuffer(bytearray(pack_record(record)), np.uint8).view(SlotBytes)
    lease = content.hold = Lease(ledger, 0, 1)  # type: ignore[arg-type]  # has all that is needed
    payload = b"omniwire:lent:0"
    handle = ow.TensorHandle("cuda_ipc", torch.float32, (16,), payload)
    attached = Borrower([content], ledger).attach(handle, payload)  # type: ignore[arg-type]  # as above
    lease.release()
    assert isinstance(attached, ow.TensorHandle)
    with pytest.raises(ow.HandoffError):
        attached.resolve()
    assert devices.num_open == 0
