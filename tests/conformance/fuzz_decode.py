"""Coverage-guided fuzzing of the decoder: `make fuzz`, or longer by hand with SECONDS=3600.

Whatever the bytes, the decoder returns a valid object or raises `DecodeError`. What it returns
encodes again, to an equal object. The first byte of an input says what the rest is: one buffer
as it is, or a body that gets an envelope with the right checksum, so that the fuzzer does not
have to find one, and two buffers of zeros.
"""

import sys
import zlib
from pathlib import Path

import atheris
import torch

with atheris.instrument_imports(include=["omniwire"]):
    import omniwire.contracts
    import omniwire.serialization  # noqa: F401  # imported here to be instrumented

from omniwire.contracts import (
    ChunkKind,
    Concat,
    DecodeError,
    FrozenMapping,
    MultimodalInput,
    MultimodalItemMetadata,
    MultimodalItemPartition,
    MultimodalParams,
    OmniOutput,
    OutputChunk,
    OutputSpec,
    ProcessedRequest,
    RequestOutput,
)
from omniwire.serialization import Limits, decode, dumps, encode, loads

BUFFERS = [bytes(1024), bytes(128 * 1024)]
LIMITS = Limits(max_header_bytes=1 << 16, max_elements=1 << 14, max_total_bytes=1 << 24)
ENVELOPE_BYTES = 26


def seal(body: bytes) -> bytes:
    """A header with a body, written from the format's specification."""
    return b"".join(
        (
            b"\x95\xa8omniwire\xcd\x00\x01\xcd\x00\x01\xce",
            zlib.crc32(body).to_bytes(4, "big"),
            b"\xc6",
            len(body).to_bytes(4, "big"),
            body,
        )
    )


def test_one_input(data: bytes) -> None:
    """The property that no input may break."""
    if not data:
        return
    try:
        if data[0] % 2:
            obj = loads(data[1:], LIMITS)
        else:
            obj = decode([seal(data[1:]), *BUFFERS[: data[0] // 2 % 3]], LIMITS)
    except DecodeError:
        return
    if decode(encode(obj)) != obj:
        raise AssertionError("what was decoded does not survive the wire")


def seeds() -> list[bytes]:
    """Valid inputs of both kinds, to start from."""
    record = MultimodalItemMetadata(
        [("image", 0), ("audio", 0)],
        [16, 4],
        [4, 2],
        {"image": {"pixel_values": MultimodalItemPartition((16,))}, "audio": {}},
    )
    located = MultimodalInput(
        [[1] * 8, [-2] * 8], [1, 7], [4, 2], ["a", None], [0, 1, 2], [1, 7], [4, 2]
    )
    payload = {
        "image": {"pixel_values": torch.zeros(16, 3), "flags": (True, None, 1.5, b"x", "y", 2**63)},
        "item_metadata": record,
    }
    params = MultimodalParams(located, payload)
    output = OmniOutput(torch.zeros(1, 2), {"audio": torch.zeros(1, 8), "rate": 24000})
    objects = [
        record,
        located,
        ProcessedRequest("r", range(100), params),
        OutputChunk("r", 0, "audio", [1], output, ChunkKind.FINAL, "stop"),
        OutputSpec({"codes.audio": Concat(0)}),
        RequestOutput("r", errors={"": DecodeError("x", "magic")}),
        FrozenMapping({"ids": tuple(range(100)), "large": torch.zeros(256)}),
    ]
    inputs = []
    for obj in objects:
        header, *frames = encode(obj)
        inputs.append(bytes([2 * len(frames)]) + bytes(header[ENVELOPE_BYTES:]))
        inputs.append(b"\x01" + dumps(obj))
    return inputs


def main() -> None:
    """Fuzz from the seeds: libFuzzer's options, then the folder that the corpus grows in."""
    corpus = Path(sys.argv[-1])
    for number, seed in enumerate(seeds()):
        (corpus / f"seed-{number}").write_bytes(seed)
    atheris.Setup(sys.argv, test_one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
