"""Ledgers: how a reader gives slots back without a message."""

import os
import select

import pytest
from hypothesis import given
from hypothesis import strategies as hst

from omniwire.contracts import HandoffError
from omniwire.serialization.handoff.arena import new_shared_file
from omniwire.serialization.handoff.descriptors import Descriptor, new_event
from omniwire.serialization.handoff.ledger import (
    CLOSED,
    LEDGER_BYTES,
    NUM_CELLS,
    WAITING,
    Ledger,
    ReaderLedger,
)


class Hold:
    """Something to keep; says whether it was released, and how often."""

    def __init__(self) -> None:
        self.num_released = 0

    def release(self) -> None:
        self.num_released += 1


@pytest.fixture
def event() -> Descriptor:
    return new_event()


@pytest.fixture
def ledger(event: Descriptor) -> Ledger:
    return Ledger(event)


@pytest.fixture
def reader(ledger: Ledger, event: Descriptor) -> ReaderLedger:
    return ReaderLedger(ledger.descriptor, event)


def is_signaled(event: Descriptor) -> bool:
    poll = select.poll()
    poll.register(event, select.POLLIN)
    return bool(poll.poll(0))


class TestCells:
    @pytest.mark.parametrize("count", [1, 8, 9, 100])
    def test_what_the_reader_released_is_released_once(
        self, ledger: Ledger, reader: ReaderLedger, count: int
    ) -> None:
        holds = [Hold() for _ in range(count)]
        cells = [ledger.hold(hold, 0) for hold in holds]
        ledger.collect()
        assert [hold.num_released for hold in holds] == [0] * count
        reader.release(*cells[count // 2])
        ledger.collect()
        ledger.collect()
        released = [number for number, hold in enumerate(holds) if hold.num_released]
        assert released == [count // 2]
        for number, cell in enumerate(cells):
            if number != count // 2:
                reader.release(*cell)
        ledger.collect()
        assert [hold.num_released for hold in holds] == [1] * count
        assert len(ledger) == 0
        assert ledger.num_free_cells == NUM_CELLS

    def test_a_cell_that_is_used_again_waits_for_another_value(
        self, ledger: Ledger, reader: ReaderLedger
    ) -> None:
        """What it has from last time does not count."""
        for _ in range(4):
            hold = Hold()
            cell = ledger.hold(hold, 0)
            ledger.collect()
            assert not hold.num_released
            reader.release(*cell)
            ledger.collect()
            assert hold.num_released == 1

    def test_a_message_that_was_not_sent_takes_its_cells_back(
        self, ledger: Ledger, reader: ReaderLedger
    ) -> None:
        hold = Hold()
        first = ledger.hold(hold, 0)
        ledger.take_back(first[0])
        assert hold.num_released == 1
        assert ledger.num_free_cells == NUM_CELLS
        other = Hold()
        second = ledger.hold(other, 0)
        ledger.collect()
        assert not other.num_released
        reader.release(*second)
        ledger.collect()
        assert other.num_released == 1

    def test_there_are_so_many(self, ledger: Ledger) -> None:
        cells = {ledger.hold(Hold(), 0)[0] for _ in range(NUM_CELLS)}
        assert cells == set(range(NUM_CELLS))
        assert ledger.num_free_cells == 0

    @given(hst.lists(hst.integers(-30, 30), max_size=60))
    def test_agrees_with_a_dict(self, steps: list[int]) -> None:
        """A step < 0 releases one of what is held, one > 0 holds so many more."""
        event = new_event()
        ledger = Ledger(event)
        reader = ReaderLedger(ledger.descriptor, event)
        held: dict[tuple[int, int], Hold] = {}
        for step in steps:
            if step > 0:
                for hold in [Hold() for _ in range(step)]:
                    held[ledger.hold(hold, 0)] = hold
            elif held:
                cell = sorted(held)[step % len(held)]
                hold = held.pop(cell)
                reader.release(*cell)
                ledger.collect()
                assert hold.num_released == 1
            ledger.collect()
            assert not any(hold.num_released for hold in held.values())
            assert len(ledger) == len(held)


class TestReaderThatIsGone:
    def test_closed_after_some_messages(self, ledger: Ledger, reader: ReaderLedger) -> None:
        """What it received it still holds; what it did not is free."""
        holds = [Hold() for _ in range(4)]
        for message, hold in enumerate(holds):
            ledger.hold(hold, message)
        reader.count_received(2)
        ledger.collect_unreceived()
        assert [hold.num_released for hold in holds] == [0, 0, 1, 1]

    def test_dead(self, ledger: Ledger) -> None:
        holds = [Hold() for _ in range(3)]
        for hold in holds:
            ledger.hold(hold, 0)
        pid = os.posix_spawn("/bin/sleep", ["sleep", "1000"], {})
        ledger.reader = Descriptor(os.pidfd_open(pid))
        assert not ledger.has_lost_reader()
        assert not holds[0].num_released
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        assert ledger.has_lost_reader()
        assert [hold.num_released for hold in holds] == [1, 1, 1]

    def test_unknown_is_not_dead(self, ledger: Ledger) -> None:
        ledger.hold(Hold(), 0)
        assert not ledger.has_lost_reader()
        assert len(ledger) == 1


class TestSignals:
    def test_only_a_sender_that_waits_is_woken(
        self, ledger: Ledger, reader: ReaderLedger, event: Descriptor
    ) -> None:
        first, second = ledger.hold(Hold(), 0), ledger.hold(Hold(), 0)
        reader.release(*first)
        assert not is_signaled(event)
        ledger.set_flag(WAITING, on=True)
        assert reader.is_awaited
        reader.release(*second)
        assert is_signaled(event)
        ledger.set_flag(WAITING, on=False)
        assert not reader.is_awaited

    def test_many_signals_never_block(
        self, ledger: Ledger, reader: ReaderLedger, event: Descriptor
    ) -> None:
        ledger.set_flag(WAITING, on=True)
        os.eventfd_write(event.number, 2**64 - 2)  # as full as it gets
        reader.release(*ledger.hold(Hold(), 0))
        assert is_signaled(event)

    def test_a_closed_end_is_told_from_a_lost_one(
        self, ledger: Ledger, reader: ReaderLedger
    ) -> None:
        assert not reader.is_closed
        ledger.set_flag(CLOSED, on=True)
        assert reader.is_closed

    def test_lost_descriptors_are_counted(self, ledger: Ledger, reader: ReaderLedger) -> None:
        for number in range(1, 300):
            reader.count_lost()
            assert ledger.num_lost() == number % 256


class TestMemory:
    @pytest.mark.parametrize("size", [1, 4096, LEDGER_BYTES - 1])
    def test_too_little(self, event: Descriptor, size: int) -> None:
        with pytest.raises(HandoffError):
            ReaderLedger(new_shared_file(size), event)

    def test_none(self, event: Descriptor) -> None:
        with pytest.raises(HandoffError):
            ReaderLedger(new_event(), event)
