"""What takes bytes in a message, and where they are in its file."""

from typing import Final

import numpy as np
import torch

from omniwire.inspector.fields import num_bytes, tensors
from omniwire.inspector.text import counted
from omniwire.serialization.layout import LocatedMessage, Placement

_WHERE: Final = {
    Placement.INLINE: "inline in the header",
    Placement.SHARED: "in a shared frame",
    Placement.OWN: "in own frames",
}


def size_rows(message: LocatedMessage) -> tuple[tuple[str, str, str], ...]:
    """What there is in a file: its name, its bytes, and what more there is to say of it."""
    counts = dict.fromkeys(Placement, 0)
    inline_bytes = 0
    framed: dict[int, int] = {}  # by offset, so that what stands twice counts once
    for tensor in tensors(message.obj):
        place = message.place(tensor)
        counts[place.placement] += 1
        if place.offset is None:
            inline_bytes += tensor.nbytes
        else:
            framed[place.offset] = tensor.nbytes
    header = message.frames[0]
    frames = counted(len(message.frames) - 1, "frame")
    shares = [f"{count:,} {_WHERE[placement]}" for placement, count in counts.items() if count]
    size = inline_bytes + sum(framed.values())
    return (
        ("file", f"{message.num_file_bytes:,}", "bytes"),
        ("header", f"{header.size:,}", f"at {header.offset:,}, {frames} after it"),
        ("tensors", f"{size:,}", ", ".join(shares) or "there are none"),
    )


def figures(message: LocatedMessage, value: object) -> tuple[str, str, str]:
    """Bytes, placement and offset in the file of a value; empty where there is none to tell."""
    size = num_bytes(value)
    if size is None:
        return "", "", ""
    if not isinstance(value, torch.Tensor | np.ndarray):
        return f"{size:,}", Placement.INLINE.value, ""
    placement, offset = message.place(value)
    return f"{size:,}", placement.value, "" if offset is None else f"{offset:,}"
