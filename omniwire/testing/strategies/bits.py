"""The bits of numbers: arbitrary ones, and those that go wrong most often."""

import functools
import random
from collections.abc import Sequence
from typing import Final

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

# Little-endian ends of floats that go wrong most often: -0.0, infinities and NaNs (quiet,
# negative) of half, bfloat, single and double precision. Cut to the size of a data type.
_TOPS: Final = (
    b"\x80",
    b"\x80\x3f",
    b"\x00\x7c",
    b"\x80\x7f",
    b"\xf0\x7f",
    b"\x00\xfe",
    b"\xc0\xff",
)


_MAX_DRAWN_BYTES: Final = 512
_SEEDS: Final = st.integers(0, 2**32 - 1)


def contents(draw: DrawFn, item_bytes: int, count: int, kind: str) -> bytes:
    """The bytes of `count` numbers, either arbitrary or picked from the awkward ones.

    Of many numbers only the first ones are drawn; the others are of a seed, which shrinks to
    zeros.

    Args:
        draw: Supplied by Hypothesis.
        item_bytes: Bytes of a number.
        count: How many.
        kind: `"b"` for booleans, `"c"` for complex numbers, else anything.
    """
    if kind == "c":
        item_bytes, count = item_bytes // 2, count * 2
    drawn = min(count, _MAX_DRAWN_BYTES // item_bytes)
    seed = draw(_SEEDS) if drawn < count else 0
    size = drawn * item_bytes
    rest = (count - drawn) * item_bytes
    others = random.Random(seed).randbytes(rest) if seed else bytes(rest)  # noqa: S311
    if kind == "b":
        return draw(_joined((b"\x00", b"\x01"), drawn)) + bytes(byte & 1 for byte in others)
    first = _joined(_awkward(item_bytes), drawn) | st.binary(min_size=size, max_size=size)
    return draw(first) + others


@functools.cache
def _joined(patterns: Sequence[bytes], count: int) -> SearchStrategy[bytes]:
    return st.lists(st.sampled_from(patterns), min_size=count, max_size=count).map(b"".join)


@functools.cache
def _awkward(size: int) -> tuple[bytes, ...]:
    """Bit patterns of `size` bytes: 0, 1 and -1 as integers, then ends of floats."""
    patterns = [bytes(size), b"\x01".ljust(size, b"\x00"), b"\xff" * size]
    patterns += [
        (low * (size - len(top)) + top)[-size:] for top in _TOPS for low in (b"\x00", b"\x01")
    ]
    return tuple(dict.fromkeys(patterns))
