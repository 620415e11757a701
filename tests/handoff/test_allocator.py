"""`FreeList`: which ranges of an arena are free."""

from hypothesis import given
from hypothesis import strategies as hst

from omniwire.serialization.handoff.allocator import FreeList

UNIT = 64
SIZE = 4096 * UNIT

takes = hst.integers(1, 600) | hst.sampled_from([1, 1024, 2048, 4095, 4096])
gives = hst.integers(-1000, -1)


def gaps(taken: dict[int, int]) -> list[int]:
    """The sizes of the ranges between what is taken."""
    edges = [0, *[edge for start in sorted(taken) for edge in (start, start + taken[start])], SIZE]
    return [end - start for start, end in zip(edges[::2], edges[1::2], strict=True)]


@given(hst.lists(takes | gives, max_size=200))
def test_agrees_with_a_list_of_ranges(steps: list[int]) -> None:
    """No overlap, no lost byte; refused only what no single free range holds."""
    ranges = FreeList(SIZE)
    taken: dict[int, int] = {}
    for step in steps:
        if step < 0:
            if taken:
                start = sorted(taken)[step % len(taken)]
                ranges.give(start, taken.pop(start))
        else:
            size = step * UNIT
            fits = size <= max(gaps(taken))
            start = ranges.take(size)
            assert (start is not None) == fits
            if start is not None:
                assert start % UNIT == 0
                assert 0 <= start <= SIZE - size
                assert all(
                    start + size <= other or other + taken[other] <= start for other in taken
                )
                taken[start] = size
        assert ranges.free_bytes == SIZE - sum(taken.values())
    for start, size in taken.items():
        ranges.give(start, size)
    assert ranges.take(SIZE) == 0


def test_neighbors_are_merged_whatever_the_order() -> None:
    ranges = FreeList(3 * UNIT)
    first, second, third = (ranges.take(UNIT) for _ in range(3))
    assert (first, second, third) == (0, 64, 128)
    assert ranges.take(UNIT) is None
    for start in (0, 128, 64):
        ranges.give(start, UNIT)
    assert ranges.take(3 * UNIT) == 0


def test_a_range_with_free_space_in_pieces_only_is_refused() -> None:
    ranges = FreeList(4 * UNIT)
    for _ in range(4):
        ranges.take(UNIT)
    ranges.give(0, UNIT)
    ranges.give(2 * UNIT, UNIT)
    assert ranges.free_bytes == 2 * UNIT
    assert ranges.take(2 * UNIT) is None
    assert ranges.take(UNIT) is not None


def test_the_last_range_of_a_full_bin_is_found() -> None:
    """One range that fits among many of about its size that do not."""
    ranges = FreeList(2**20)
    starts = []
    for number in range(100):
        starts.append(ranges.take(1088 if number == 0 else 1024))
        assert ranges.take(UNIT) is not None  # keeps the ranges apart
    rest = ranges.take(ranges.free_bytes)
    assert rest is not None
    for number, start in enumerate(starts):
        assert start is not None
        ranges.give(start, 1088 if number == 0 else 1024)
    assert ranges.take(1088) == starts[0]
    assert ranges.take(1088) is None


def test_a_slot_that_came_back_is_taken_again() -> None:
    """Its memory is warm."""
    ranges = FreeList(SIZE)
    start = ranges.take(64 * UNIT)
    assert start is not None
    ranges.give(start, 64 * UNIT)
    assert ranges.take(64 * UNIT) == start
