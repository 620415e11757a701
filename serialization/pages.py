"""Whether a write to some memory would end the process."""

import ctypes
import functools
import mmap
from collections.abc import Callable
from typing import Final

_MADV_POPULATE_WRITE: Final = 23  # Linux 5.14, <linux/mman.h>; missing from mmap's constants


def is_writable(address: int, size: int) -> bool:
    """Whether the pages at both ends of some memory can be written to, without writing.

    Asks the kernel to make the pages ready for a write, which it refuses where they are mapped
    for reading only. False also where it cannot be asked.

    Args:
        address: Where the memory starts.
        size: Its bytes, > 0.
    """
    populate = _populate()
    if populate is None:
        return False
    first = address - address % mmap.PAGESIZE
    last = address + size - 1
    return all(
        populate(page, mmap.PAGESIZE, _MADV_POPULATE_WRITE) == 0
        for page in {first, last - last % mmap.PAGESIZE}
    )


@functools.cache
def _populate() -> Callable[[int, int, int], int] | None:
    """The C library's `madvise`, where there is one."""
    madvise = getattr(ctypes.CDLL(None), "madvise", None)
    if madvise is None:
        return None
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    madvise.restype = ctypes.c_int
    return madvise  # type: ignore[no-any-return]  # ctypes does not type its functions
