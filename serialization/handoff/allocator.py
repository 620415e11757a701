"""Which ranges of an arena are free."""

from typing import Final

_UNIT: Final = 64  # every tensor starts at a multiple of this many bytes
_EXACT_TRIES: Final = 16


class FreeList:
    """The free ranges of one arena, in bins by size; takes and gives in constant time.

    A range that comes back is merged with its free neighbors at once, and a request is refused
    only if no single range can hold it. A bin spans a quarter of a power of two, and what is
    taken from a larger range is split off, so a slot is never more than 63 bytes too large.

    Not thread-safe.

    Args:
        size: Bytes of the arena, a multiple of 64.
    """

    def __init__(self, size: int) -> None:
        self.free_bytes = 0
        self._sizes: dict[int, int] = {}  # by start
        self._starts: dict[int, int] = {}  # by end
        self._bins: dict[int, dict[int, None]] = {}  # number of a bin -> starts, the oldest first
        self._filled = 0  # bit n is set if bin n has a range
        self.give(0, size)

    def take(self, size: int) -> int | None:
        """The offset of `size` bytes, a multiple of 64 and > 0, that are free no more; or None."""
        number = _bin(size)
        start = self._fitting(number, size, _EXACT_TRIES)
        if start is None:
            larger = self._filled >> (number + 1)
            if larger:
                lowest = number + (larger & -larger).bit_length()
                start = next(reversed(self._bins[lowest]))  # the last that came back is warm
            else:
                start = self._fitting(number, size, len(self._bins.get(number, ())))
                if start is None:
                    return None
        whole = self._remove(start)
        self.free_bytes -= whole
        if whole > size:
            self._add(start + size, whole - size)
        return start

    def give(self, start: int, size: int) -> None:
        """Take a range back."""
        end = start + size
        before = self._starts.get(start)
        if before is not None:
            self.free_bytes -= self._remove(before)
            start = before
        after = self._sizes.get(end)
        if after is not None:
            self.free_bytes -= self._remove(end)
            end += after
        self._add(start, end - start)

    def _fitting(self, number: int, size: int, tries: int) -> int | None:
        """A range of a bin that holds `size` bytes, of the last `tries` that came back."""
        for _, start in zip(range(tries), reversed(self._bins.get(number, {})), strict=False):
            if self._sizes[start] >= size:
                return start
        return None

    def _add(self, start: int, size: int) -> None:
        self._sizes[start] = size
        self._starts[start + size] = start
        number = _bin(size)
        self._bins.setdefault(number, {})[start] = None
        self._filled |= 1 << number
        self.free_bytes += size

    def _remove(self, start: int) -> int:
        size = self._sizes.pop(start)
        del self._starts[start + size]
        number = _bin(size)
        starts = self._bins[number]
        del starts[start]
        if not starts:
            self._filled &= ~(1 << number)
        return size


def _bin(size: int) -> int:
    """The number of a size's bin; larger sizes have larger numbers."""
    units = size // _UNIT
    shift = max(units.bit_length() - 3, 0)
    return (shift << 3) + (units >> shift)
