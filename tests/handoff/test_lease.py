"""Leases: when a reader gives a slot back, and when it must not."""

import os

import pytest

from omniwire.contracts import HandoffError
from omniwire.serialization.handoff import ledger as ledger_module
from omniwire.serialization.handoff.descriptors import new_event
from omniwire.serialization.handoff.lease import Lease, OwnHold
from omniwire.serialization.handoff.ledger import FIRST_CELL, WAITING, Ledger, ReaderLedger
from omniwire.serialization.handoff.pool import Pool

CELL = 5


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(new_event())


@pytest.fixture
def reader(ledger: Ledger) -> ReaderLedger:
    return ReaderLedger(ledger.descriptor, ledger.event)


def is_released(ledger: Ledger) -> bool:
    return ledger.memory[FIRST_CELL + CELL] == 1


class TestLease:
    def test_ends_with_the_object(self, ledger: Ledger, reader: ReaderLedger) -> None:
        lease = Lease(reader, CELL, 1)
        assert not is_released(ledger)
        del lease
        assert is_released(ledger)

    def test_is_given_back_once(self, ledger: Ledger, reader: ReaderLedger) -> None:
        """The cell may be another message's by then."""
        lease = Lease(reader, CELL, 1)
        lease.release()
        assert is_released(ledger)
        ledger.memory[FIRST_CELL + CELL] = 0
        lease.release()
        del lease
        assert not is_released(ledger)

    def test_moves_to_another_object(self, ledger: Ledger, reader: ReaderLedger) -> None:
        lease = Lease(reader, CELL, 1)
        other = lease.moved()
        del lease
        assert not is_released(ledger)
        del other
        assert is_released(ledger)

    def test_that_was_given_back_cannot_move(self, reader: ReaderLedger) -> None:
        lease = Lease(reader, CELL, 1)
        lease.release()
        with pytest.raises(HandoffError):
            lease.moved()

    def test_does_not_end_while_the_interpreter_exits(
        self, ledger: Ledger, reader: ReaderLedger
    ) -> None:
        """The memory may still be seen then; the peer notices the end of the process."""
        lease = Lease(reader, CELL, 1)
        lease.__del__(lambda: True)
        assert not is_released(ledger)
        lease.__del__(lambda: False)
        assert is_released(ledger)

    def test_does_not_end_in_a_forked_child(
        self, ledger: Ledger, reader: ReaderLedger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lease = Lease(reader, CELL, 1)
        pid = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: pid + 1)
        lease.release()
        assert not is_released(ledger)


class TestOwnHold:
    def test_does_not_end_while_the_interpreter_exits(self) -> None:
        pool = Pool(4096, 4096)
        slots = pool.allocate([64])
        assert slots is not None
        hold = OwnHold(pool, slots[0])
        hold.__del__(lambda: True)
        assert pool.occupancy() == (4096, 64)
        del hold
        assert pool.occupancy() == (4096, 0)


class TestOrder:
    def test_a_slot_is_given_back_before_looking_for_who_waits(
        self, reader: ReaderLedger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With a fence between: the sender sets its flag first, and looks at the cells then."""
        steps: list[str] = []

        class Memory(bytearray):
            def __setitem__(self, place: object, value: object) -> None:
                steps.append(f"store {place}")

            def __getitem__(self, place: object) -> int:
                steps.append(f"load {place}")
                return 0

        reader.memory = Memory()
        monkeypatch.setattr(ledger_module, "_fence", lambda: steps.append("fence"))
        reader.release(CELL, 1)
        assert steps == [f"store {FIRST_CELL + CELL}", "fence", f"load {WAITING}"]
