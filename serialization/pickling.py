"""Pickling contracts: `encode` on the way out, the strict decoder on the way in."""

import pickle
from collections.abc import Callable
from typing import Any, SupportsIndex

import numpy as np

from omniwire.serialization.blob import dumps, loads
from omniwire.serialization.codec import decode, encode

_OUT_OF_BAND_PROTOCOL = 5


def reduce_contract(
    obj: object, protocol: SupportsIndex
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """What `__reduce_ex__` of every contract returns.

    From protocol 5 on, the frames are `pickle.PickleBuffer`s: out of band, and so without a
    copy, when the pickler has a buffer callback. Below, one buffer travels inside the pickle.

    Args:
        obj: A contract object.
        protocol: The pickle protocol.

    Raises:
        EncodeError: As `encode`.
    """
    if protocol.__index__() >= _OUT_OF_BAND_PROTOCOL:
        header, *frames = encode(obj)
        # As arrays: CPython crashes when the garbage collector meets a cycle that holds a
        # PickleBuffer of a memoryview and another view of it (3.11 does).
        arrays: list[Any] = [np.frombuffer(frame, np.uint8) for frame in frames]
        return restore_frames, (header, *map(pickle.PickleBuffer, arrays))
    return restore_blob, (dumps(obj),)


def restore_frames(*frames: Any) -> Any:
    """Unpickle a contract from its frames. Pickles name this function; it must stay."""
    return decode(frames)


def restore_blob(blob: Any) -> Any:
    """Unpickle a contract from one buffer. Pickles name this function; it must stay."""
    return loads(blob)
