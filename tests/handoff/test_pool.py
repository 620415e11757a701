"""The pool of one end: whose turn it is, who is woken, and which ledgers and arenas it keeps."""

import select
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from omniwire.serialization.handoff import pool as pool_module
from omniwire.serialization.handoff.arena import Slot
from omniwire.serialization.handoff.ledger import WAITING, Ledger, ReaderLedger
from omniwire.serialization.handoff.pool import Pool

MIB = 2**20


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds that pools go by."""
    now = [1000.0]
    monkeypatch.setattr(pool_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


@pytest.fixture
def pool() -> Pool:
    return Pool(MIB, MIB)


@pytest.fixture
def ledger(pool: Pool) -> Ledger:
    ledger = Ledger(pool.event)
    pool.ledgers.append(ledger)
    return ledger


def taken(pool: Pool, sizes: Sequence[int], ticket: object = None) -> list[Slot]:
    slots = pool.allocate(sizes, ticket)
    assert slots is not None
    return slots


def drop(pool: Pool, slots: list[Slot]) -> None:
    for slot in slots:
        pool.drop(slot)


def is_signaled(pool: Pool) -> bool:
    poll = select.poll()
    poll.register(pool.event, select.POLLIN)
    return bool(poll.poll(0))


class TestTurns:
    def test_memory_becomes_free_for_who_has_waited_for_longest(
        self, pool: Pool, now: list[float]
    ) -> None:
        """Small requests do not overtake a large one for ever."""
        slots = taken(pool, [MIB // 2])
        ticket = pool.begin_waiting()
        assert pool.allocate([MIB], ticket) is None
        later = pool.begin_waiting()
        for other in (None, later):
            assert pool.allocate([64], other) is None
        drop(pool, slots)
        for other in (None, later):
            assert pool.allocate([64], other) is None
        assert taken(pool, [MIB], ticket)[0].size == MIB

    def test_but_others_go_on_if_it_takes_long(self, pool: Pool, now: list[float]) -> None:
        """It may need what is not going to be free: else all would wait for ever."""
        slots = taken(pool, [MIB // 2])
        ticket = pool.begin_waiting()
        for _ in range(3):
            assert pool.allocate([64]) is None
            now[0] += 1.0
            for _ in range(9):
                assert pool.allocate([MIB], ticket) is None
                drop(pool, taken(pool, [64]))
                now[0] += 1.0
        drop(pool, slots)
        assert taken(pool, [MIB], ticket)

    def test_the_next_one_has_a_turn_of_its_own(self, pool: Pool, now: list[float]) -> None:
        slots = taken(pool, [MIB])
        first, second = pool.begin_waiting(), pool.begin_waiting()
        now[0] += 5.0
        drop(pool, slots)
        taken(pool, [64], first)
        pool.end_waiting(first)
        assert pool.allocate([64]) is None
        taken(pool, [64], second)
        pool.end_waiting(second)
        taken(pool, [64])


class TestSignals:
    def test_readers_are_asked_for_them_while_anybody_waits(
        self, pool: Pool, ledger: Ledger
    ) -> None:
        assert not ledger.memory[WAITING]
        first, second = pool.begin_waiting(), pool.begin_waiting()
        for ticket in (first, second):
            assert ledger.memory[WAITING]
            pool.end_waiting(ticket)
        assert not ledger.memory[WAITING]

    def test_who_leaves_the_queue_wakes_the_next(self, pool: Pool) -> None:
        """The signal that there is memory may have been taken by who has it now."""
        first, second = pool.begin_waiting(), pool.begin_waiting()
        pool.clear_event(first)
        assert not is_signaled(pool)
        pool.end_waiting(first)
        assert is_signaled(pool)
        pool.clear_event(second)
        pool.end_waiting(second)
        assert not is_signaled(pool)

    def test_only_the_first_forgets_them(self, pool: Pool, ledger: Ledger) -> None:
        first, second = pool.begin_waiting(), pool.begin_waiting()
        reader = ReaderLedger(ledger.descriptor, pool.event)
        [slot] = taken(pool, [64], first)
        reader.release(*ledger.hold(slot, 0))
        pool.clear_event(second)
        assert is_signaled(pool)
        pool.clear_event(first)
        assert not is_signaled(pool)

    def test_old_ones_wake_nobody(self, pool: Pool) -> None:
        first, second = pool.begin_waiting(), pool.begin_waiting()
        pool.end_waiting(first)
        pool.end_waiting(second)
        assert is_signaled(pool)
        pool.begin_waiting()
        assert not is_signaled(pool)


class TestShrinking:
    def test_an_arena_of_the_usual_size_stays(self, now: list[float]) -> None:
        """Making one again would take longer than many messages."""
        pool = Pool(MIB, 4 * MIB)
        drop(pool, [taken(pool, [MIB])[0] for _ in range(4)])
        assert len(pool.arenas) == 4
        for _ in range(3):
            assert pool.occupancy()[1] == 0
            now[0] += 2.0
        assert [arena.size for arena in pool.arenas.values()] == [MIB]


class TestLedgers:
    def test_those_of_ends_that_are_closed_are_forgotten_with_their_last_slot(
        self, pool: Pool, ledger: Ledger
    ) -> None:
        """Of readers that come and go, as those of broadcasts may."""
        other = Ledger(pool.event)
        pool.ledgers.append(other)
        [slot] = taken(pool, [64])
        cell = other.hold(slot, 0)
        other.is_retired = True
        assert pool.occupancy() == (MIB, 64)
        assert pool.ledgers == [ledger, other]
        ReaderLedger(other.descriptor, pool.event).release(*cell)
        assert pool.occupancy() == (MIB, 0)
        assert pool.ledgers == [ledger]
