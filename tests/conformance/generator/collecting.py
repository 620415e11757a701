"""What a vector is, and the records that many of them hold."""

import hashlib
import struct
from typing import Any, Final

from wire_by_hand import (
    Both,
    both,
    digests,
    dtype,
    inline,
    joined,
    message,
    named,
    packed,
    record,
    refs,
    sealed,
)

LATER: Final = 2**16 - 1
"""A version of the format that will never come, so that these messages stay what they are."""

Entry = dict[str, Any]
entries: list[tuple[Entry, bytes]] = []


def _add(folder: str, name: str, blob: bytes, **about: Any) -> None:
    sha256 = hashlib.sha256(blob).hexdigest()
    entries.append(({"file": f"{folder}/{name}.omni", "sha256": sha256, **about}, blob))


def valid(
    name: str,
    description: str,
    kind: str,
    value: Both,
    buffers: tuple[bytes, ...] = (),
    *,
    exact: bool = True,
    frames: list[bytes] | None = None,
) -> None:
    """A message that every reader reads; `exact` if the writer of its version writes it so."""
    frames = message(kind, value, buffers) if frames is None else frames
    (version,) = struct.unpack(">H", frames[0][11:13])
    _add(
        "valid",
        name,
        joined(frames),
        version=version,
        type=kind,
        description=description,
        exact=exact,
        content=value.plain,
    )


def payload(
    name: str,
    description: str,
    buffers: tuple[bytes, ...] = (),
    *,
    exact: bool = True,
    **values: Any,
) -> None:
    valid(name, description, "FrozenMapping", both(values), buffers, exact=exact)


def refused(name: str, code: str, description: str, what: bytes | list[bytes]) -> None:
    """A message that every reader refuses with `code`."""
    blob = what if isinstance(what, bytes) else joined(what)
    _add("refused", name, blob, description=description, code=code)


def refused_value(name: str, code: str, description: str, value: Any, *buffers: bytes) -> None:
    wire = value.wire if isinstance(value, Both) else value
    refused(name, code, description, message("FrozenMapping", {"v": wire}, buffers))


def raw_body(value: bytes, kind: str = "FrozenMapping") -> list[bytes]:
    """A message whose value is given as bytes of msgpack."""
    return [sealed(b"\x93" + packed(kind) + value + b"\x90")]


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


HASH_A: Final = (0, 1, -1, 2**31 - 1, -(2**31), 42, -42, 7)
HASH_B: Final = (8, 7, 6, 5, 4, 3, 2, 1)
ONE: Final = inline("float32", [1], floats(1.0))
HANDLE: Final = record(
    "TensorHandle",
    kind="arena",
    dtype=dtype("bfloat16"),
    shape=[729, 1152],
    payload=b"\0slot 7\xff",
)
CUDA_HANDLE: Final = record(
    "TensorHandle", kind="cuda_ipc", dtype=dtype("float8_e4m3fn"), shape=[], payload=b""
)
METADATA: Final = record(
    "MultimodalItemMetadata",
    item_refs=refs(("video", 0), ("image", 1), ("image", 0)),
    encoder_token_lengths=[64, 16, 2**63 - 1],
    output_embedding_lengths=[16, 4, 1],
    input_partitions={
        "image": {
            "pixel_values": record("MultimodalItemPartition", item_lengths=[16, 0], axis=1),
            "image_grid_thw": record("MultimodalItemPartition"),
        },
        "video": {},
    },
)
INPUT: Final = record(
    "MultimodalInput",
    multimodal_hashes=digests(HASH_A, HASH_B),
    multimodal_positions=[1, 2**31 - 6],
    multimodal_lengths=[4, 5],
    multimodal_uuids=["first", None],
    multimodal_item_run_cu_offsets=[0, 2, 3],
    multimodal_run_positions=[1, 4, 2**31 - 6],
    multimodal_run_lengths=[1, 3, 5],
)
RUNTIME: Final = record(
    "MultimodalRuntimeData",
    past_seen_token_num=8,
    chunk_end_pos=2**31 - 1,
    num_cached_mm_tokens=8,
    num_mm_tokens_in_chunk=3,
    total_embeds_in_request=11,
)
OUTPUT: Final = record(
    "OmniOutput",
    text_hidden_states=inline("bfloat16", [1, 2], b"\xc0\x3f\0\xc0"),
    multimodal_outputs={
        "audio": [ONE, named(HANDLE)],
        "sample_rate": 24000,
        "video": {"fps": 29.97, "codec": "none", "alpha": False, "frames": ONE},
        "none": [],
    },
    inter_stage_outputs={"hidden": named(HANDLE)},
)
PROBLEM: Final = [["image", 0, 2**63], "count", "3 items", "2"]
