"""Records on the wire against their goals: encode, decode with every check, and sizes.

Run it with `OMP_NUM_THREADS=1 python benchmarks/records.py`. Everything is encoded, decoded and
thereby validated again; a figure is the best of many short rounds, so that a busy machine does
not count. Beside it stands `pickle` (protocol 5, out of band) of the same values as plain lists,
dicts and tensors, which checks nothing and would run whatever code a peer sends.
"""

import hashlib
import pickle
import timeit
from collections.abc import Callable

import torch

from omniwire.contracts import (
    MultimodalInput,
    MultimodalItemMetadata,
    MultimodalItemPartition,
    MultimodalParams,
    ProcessedRequest,
)
from omniwire.serialization import decode, encode

ROUNDS = 60
TOKENS_PER_ITEM = 120
PATCH = 1176  # values of a Qwen2-VL patch


def metadata(num_items: int) -> MultimodalItemMetadata:
    """Images with packed patches and a batched grid."""
    lengths = [400 + index % 50 for index in range(num_items)]
    partitions = {
        "image": {
            "pixel_values": MultimodalItemPartition(lengths),
            "image_grid_thw": MultimodalItemPartition(),
        }
    }
    refs = [("image", index) for index in range(num_items)]
    return MultimodalItemMetadata(refs, lengths, [length // 4 for length in lengths], partitions)


def request(num_items: int, width: int = PATCH) -> ProcessedRequest:
    """A whole request: patches, grid, hashes, positions, lengths, runs, uuids and metadata."""
    record = metadata(num_items)
    digests = [hashlib.sha256(b"%d" % index).hexdigest() for index in range(num_items)]
    positions = [TOKENS_PER_ITEM * index for index in range(num_items)]
    lengths = [TOKENS_PER_ITEM - 20] * num_items
    given = MultimodalInput.from_hexdigests(
        digests,
        positions,
        lengths,
        multimodal_uuids=[f"image-{index}" for index in range(num_items)],
        multimodal_item_run_cu_offsets=list(range(num_items + 1)),
        multimodal_run_positions=positions,
        multimodal_run_lengths=lengths,
    )
    costs = record.encoder_token_lengths
    assert costs is not None
    image = {
        "pixel_values": torch.zeros(sum(costs), width),
        "image_grid_thw": torch.ones(num_items, 3, dtype=torch.int64),
    }
    params = MultimodalParams(given, {"image": image, "item_metadata": record})
    return ProcessedRequest("request-1", range(TOKENS_PER_ITEM * num_items), params)


def long_prompt() -> ProcessedRequest:
    """128k prompt tokens and one item in 2,000 runs."""
    runs = 2000
    positions = list(range(0, 60 * runs, 60))
    given = MultimodalInput([[1] * 8], [0], [50 * runs], None, [0, runs], positions, [50] * runs)
    return ProcessedRequest("request-1", range(128 * 1024), MultimodalParams(given))


def small_tensors() -> MultimodalParams:
    """150 tensors of 4 KiB."""
    return MultimodalParams(None, {"audio": {f"{i}": torch.zeros(1024) for i in range(150)}})


def plain(value: object) -> object:
    """The values of a contract as what pickle knows, token ids as their bytes."""
    if hasattr(value, "tobytes"):
        return value.tobytes()
    if hasattr(value, "items"):
        return {key: plain(item) for key, item in value.items()}
    if hasattr(value, "__attrs_attrs__"):
        fields = (field.name for field in value.__attrs_attrs__)
        return {name: plain(getattr(value, name)) for name in fields}
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def best(work: Callable[[], object]) -> float:
    """Microseconds of one call, best of many rounds of some milliseconds."""
    number = max(1, int(2e-3 / max(timeit.timeit(work, number=1), 1e-6)))
    return min(timeit.repeat(work, number=number, repeat=ROUNDS)) / number * 1e6


def through_pickle(value: object) -> Callable[[], object]:
    """A round trip through pickle, its buffers out of band."""

    def work() -> object:
        buffers: list[pickle.PickleBuffer] = []
        return pickle.loads(pickle.dumps(value, 5, buffer_callback=buffers.append), buffers=buffers)

    return work


def line(what: str, value: object, goal: str = "-", *, per_item: int = 0) -> None:
    """Measure one value and print its line of the table."""
    frames = encode(value)
    writing, reading = best(lambda: encode(value)), best(lambda: decode(frames))
    pickled = best(through_pickle(plain(value)))
    both = writing + reading
    total = f"{both / per_item:9.2f} /item" if per_item else f"{both:9.1f}      "
    print(
        f"{what:<40}{len(frames[0]):>9}{len(frames) - 1:>7}"
        f"{writing:>10.1f}{reading:>10.1f}{total}{pickled:>10.1f}   {goal}"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(
        f"{'us of one call':<40}{'header B':>9}{'frames':>7}"
        f"{'encode':>10}{'decode':>10}{'both':>9}      {'pickle':>10}   goal for both"
    )
    line("metadata of 10 items", metadata(10), "40")
    line("request of 10 images", request(10), "150")
    line("128k prompt tokens and 2,000 runs", long_prompt(), "2000")
    line("150 tensors of 4 KiB", small_tensors())
    for count in (10, 100, 1000, 10_000):
        line(f"metadata of {count} items", metadata(count), "flat", per_item=count)
    for count in (10, 100, 1000, 10_000):
        line(f"request of {count} images", request(count, width=8), "flat", per_item=count)
