"""Invalid token ids, input records and chunk records."""

from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from omniwire.contracts import MultimodalInput, MultimodalRuntimeData, TokenIds
from omniwire.contracts.errors import Path
from omniwire.testing.strategies.inputs import hash_words
from omniwire.testing.strategies.invalid import (
    BAD_TEXTS,
    NEGATIVE,
    NONE,
    NOT_INTS,
    NOT_SEQUENCES,
    NOT_TEXTS,
    Defect,
    Invalid,
    broken,
    surplus_element,
    wrong,
    wrong_element,
)

_INT32_MAX: Final = 2**31 - 1
_BEYOND_INT32: Final = st.integers(min_value=2**31)
_BAD_IDS: Final = NEGATIVE | _BEYOND_INT32
_RUN_FIELDS: Final = (
    "multimodal_item_run_cu_offsets",
    "multimodal_run_positions",
    "multimodal_run_lengths",
)


def invalid_token_ids() -> SearchStrategy[Invalid]:
    """Ids out of range, of another type, or not in one dimension."""
    valid = st.fixed_dictionaries(
        {"ids": st.lists(st.integers(0, _INT32_MAX), min_size=1, max_size=6)}
    )
    return broken(
        TokenIds,
        valid,
        [
            _at_root(wrong_element("ids", NOT_INTS | NONE, "type")),
            _at_root(wrong_element("ids", _BAD_IDS, "range")),
            _at_root(wrong("ids", NONE | st.sampled_from([1, "12", b"12", {1, 2}]), "type")),
            _at_root(wrong("ids", st.sampled_from([torch.zeros(2), np.zeros(2)]), "type")),
            _at_root(
                wrong("ids", st.builds(torch.zeros, st.just((1, 2)), dtype=_INT_DTYPES), "shape")
            ),
            _at_root(wrong("ids", _NOT_ON_THE_CPU, "device")),
        ],
    )


def invalid_multimodal_inputs() -> SearchStrategy[Invalid]:
    """Records with bad hashes, spans, uuids or runs, and malformed digests."""
    return st.one_of(
        broken(MultimodalInput, _records_with_runs(), _COMMON_DEFECTS + _RUN_DEFECTS),
        broken(MultimodalInput, _records_with_runs().map(_without_runs), [_end_beyond_int32]),
        broken(MultimodalInput.from_hexdigests, _DIGESTS, _DIGEST_DEFECTS),
    )


def invalid_runtime_data() -> SearchStrategy[Invalid]:
    """Chunk records that no prompt can give, and sources that contradict themselves."""
    return st.one_of(
        broken(MultimodalRuntimeData, _CHUNKS, _CHUNK_DEFECTS),
        broken(MultimodalRuntimeData.for_chunk, _MASKED_CHUNKS, _SOURCE_DEFECTS),
    )


_INT_DTYPES: Final = st.sampled_from([torch.int64, torch.int32, torch.uint8])
_NOT_ON_THE_CPU: Final = st.builds(
    torch.zeros, st.just(8), dtype=_INT_DTYPES, device=st.just("meta")
)


def _at_root(defect: Defect) -> Defect:
    """The defect of an object that is all one argument: the path starts inside of it."""

    def put_in(draw: DrawFn, arguments: dict[str, Any]) -> tuple[Path, str]:
        path, code = defect(draw, arguments)
        return path[1:], code

    return put_in


@st.composite
def _records_with_runs(draw: DrawFn) -> dict[str, Any]:
    """Arguments of a record with everything in it: two or three items of two or three runs."""
    positions: list[int] = []
    lengths: list[int] = []
    offsets = [0]
    end = 1
    for _ in range(draw(st.integers(2, 3))):
        for _ in range(draw(st.integers(2, 3))):
            positions.append(end + draw(st.integers(0, 2)))
            lengths.append(draw(st.integers(1, 4)))
            end = positions[-1] + lengths[-1]
        offsets.append(len(positions))
    spans = list(pairwise(offsets))
    num_items = len(spans)
    return {
        "multimodal_hashes": draw(st.lists(hash_words(), min_size=num_items, max_size=num_items)),
        "multimodal_positions": [positions[first] for first, _ in spans],
        "multimodal_lengths": [sum(lengths[first:past]) for first, past in spans],
        "multimodal_uuids": ["uuid", *[None] * (num_items - 1)],
        "multimodal_item_run_cu_offsets": offsets,
        "multimodal_run_positions": positions,
        "multimodal_run_lengths": lengths,
    }


def _without_runs(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name not in _RUN_FIELDS}


def _bad_hash_word(values: SearchStrategy[object], code: str) -> Defect:
    def put_in(draw: DrawFn, arguments: dict[str, Any]) -> tuple[Path, str]:
        item = draw(st.integers(0, len(arguments["multimodal_hashes"]) - 1))
        word = draw(st.integers(0, 7))
        words = list(arguments["multimodal_hashes"][item])
        words[word] = draw(values)
        hashes = list(arguments["multimodal_hashes"])
        hashes[item] = words
        arguments["multimodal_hashes"] = hashes
        return ("multimodal_hashes", item, word), code

    return put_in


def _plus_one(name: str, path_name: str, code: str) -> Defect:
    """An element one too large; the problem is reported at an element of `path_name`."""

    def put_in(draw: DrawFn, arguments: dict[str, Any]) -> tuple[Path, str]:
        values = list(arguments[name])
        item = draw(st.integers(0, len(values) - 1))
        values[item] += 1
        arguments[name] = values
        if path_name == "multimodal_run_positions":  # at the item's first run
            return (path_name, arguments["multimodal_item_run_cu_offsets"][item]), code
        return (path_name, item), code

    return put_in


def _missing_run_field(draw: DrawFn, arguments: dict[str, Any]) -> tuple[Path, str]:
    name = draw(st.sampled_from(_RUN_FIELDS))
    arguments[name] = None
    return (name,), "missing"


def _offsets_not_from_zero(_: DrawFn, arguments: dict[str, Any]) -> tuple[Path, str]:
    arguments[_RUN_FIELDS[0]] = [1, *arguments[_RUN_FIELDS[0]][1:]]
    return (_RUN_FIELDS[0], 0), "sequence"


def _offsets_falling(draw: DrawFn, arguments: dict[str, Any]) -> tuple[Path, str]:
    offsets = list(arguments[_RUN_FIELDS[0]])
    index = draw(st.integers(1, len(offsets) - 2))
    offsets[index] = offsets[-1] + 1
    arguments[_RUN_FIELDS[0]] = offsets
    return (_RUN_FIELDS[0], index + 1), "sequence"


def _offsets_not_to_the_end(draw: DrawFn, arguments: dict[str, Any]) -> tuple[Path, str]:
    offsets = list(arguments[_RUN_FIELDS[0]])
    offsets[-1] += draw(st.integers(1, 3))
    arguments[_RUN_FIELDS[0]] = offsets
    return (_RUN_FIELDS[0], len(offsets) - 1), "sum"


def _overlapping_runs(_: DrawFn, arguments: dict[str, Any]) -> tuple[Path, str]:
    positions = list(arguments["multimodal_run_positions"])
    positions[1] = positions[0] + arguments["multimodal_run_lengths"][0] - 1
    arguments["multimodal_run_positions"] = positions
    return ("multimodal_run_positions", 1), "order"


def _run_beyond_int32(draw: DrawFn, arguments: dict[str, Any]) -> tuple[Path, str]:
    lengths = list(arguments["multimodal_run_lengths"])
    run = draw(st.integers(0, len(lengths) - 1))
    lengths[run] = _INT32_MAX
    arguments["multimodal_run_lengths"] = lengths
    return ("multimodal_run_lengths", run), "range"


def _end_beyond_int32(draw: DrawFn, arguments: dict[str, Any]) -> tuple[Path, str]:
    lengths = list(arguments["multimodal_lengths"])
    item = draw(st.integers(0, len(lengths) - 1))
    lengths[item] = _INT32_MAX
    arguments["multimodal_lengths"] = lengths
    return ("multimodal_lengths", item), "range"


_COMMON_DEFECTS: Final[list[Defect]] = [
    wrong("multimodal_hashes", NOT_SEQUENCES | NONE, "type"),
    wrong_element("multimodal_hashes", st.sampled_from(["f" * 64, None, 1]), "type"),
    wrong_element("multimodal_hashes", st.sampled_from([(), (1,) * 7, (1,) * 9]), "count"),
    _bad_hash_word(NOT_INTS | NONE, "type"),
    _bad_hash_word(_BEYOND_INT32 | st.integers(max_value=-(2**31) - 1), "range"),
    *[
        defect
        for name in ("multimodal_positions", "multimodal_lengths")
        for defect in (
            wrong(name, NOT_SEQUENCES | NONE, "type"),
            wrong_element(name, NOT_INTS | NONE, "type"),
            wrong_element(name, _BAD_IDS, "range"),
            surplus_element(name),
        )
    ],
    wrong("multimodal_uuids", NOT_SEQUENCES, "type"),
    wrong_element("multimodal_uuids", NOT_TEXTS, "type"),
    wrong_element("multimodal_uuids", BAD_TEXTS, "format"),
    surplus_element("multimodal_uuids"),
]
_RUN_DEFECTS: Final[list[Defect]] = [
    _missing_run_field,
    wrong(_RUN_FIELDS[0], NOT_SEQUENCES, "type"),
    wrong_element(_RUN_FIELDS[0], NOT_INTS | NONE, "type"),
    wrong_element(_RUN_FIELDS[0], _BAD_IDS, "range"),
    surplus_element(_RUN_FIELDS[0]),
    _offsets_not_from_zero,
    _offsets_falling,
    _offsets_not_to_the_end,
    wrong("multimodal_run_positions", NOT_SEQUENCES, "type"),
    wrong_element("multimodal_run_positions", NOT_INTS | NONE, "type"),
    wrong_element("multimodal_run_positions", _BAD_IDS, "range"),
    wrong("multimodal_run_lengths", NOT_SEQUENCES, "type"),
    wrong_element("multimodal_run_lengths", NOT_INTS | NONE, "type"),
    wrong_element("multimodal_run_lengths", st.integers(max_value=0) | _BEYOND_INT32, "range"),
    surplus_element("multimodal_run_lengths"),
    _overlapping_runs,
    _run_beyond_int32,
    _plus_one("multimodal_positions", "multimodal_run_positions", "conflict"),
    _plus_one("multimodal_lengths", "multimodal_lengths", "sum"),
]

_DIGESTS: Final = st.just(
    {"hexdigests": ["0" * 64, "F" * 64], "positions": [1, 4], "lengths": [2, 2]}
)
_DIGEST_DEFECTS: Final = [
    wrong("hexdigests", NONE | st.sampled_from([1, {"0" * 64}]), "type"),
    wrong_element("hexdigests", NOT_TEXTS | NONE, "type"),
    wrong_element(
        "hexdigests", st.sampled_from(["", "0" * 63, "0" * 65, "g" * 64, " " + "0" * 63]), "format"
    ),
]

# Five tokens with two rows before the chunk, four tokens with three rows in it.
_CHUNKS: Final = st.just(
    {
        "past_seen_token_num": 5,
        "chunk_end_pos": 9,
        "num_cached_mm_tokens": 2,
        "num_mm_tokens_in_chunk": 3,
        "total_embeds_in_request": 9,
    }
)


def _empty_chunk_backwards(draw: DrawFn, arguments: dict[str, Any]) -> tuple[Path, str]:
    arguments["num_mm_tokens_in_chunk"] = 0
    arguments["chunk_end_pos"] = draw(st.integers(0, 4))
    return ("chunk_end_pos",), "range"


_CHUNK_DEFECTS: Final[list[Defect]] = [
    *[
        defect
        for name in (
            "past_seen_token_num",
            "chunk_end_pos",
            "num_cached_mm_tokens",
            "num_mm_tokens_in_chunk",
            "total_embeds_in_request",
        )
        for defect in (
            wrong(name, NOT_INTS | NONE, "type"),
            wrong(name, NEGATIVE | _BEYOND_INT32, "range"),
        )
    ],
    _empty_chunk_backwards,
    wrong("num_cached_mm_tokens", st.just(6), "range"),
    wrong("num_mm_tokens_in_chunk", st.just(5), "range"),
    wrong("total_embeds_in_request", st.integers(0, 4), "range"),
]

_MASKED_CHUNKS: Final = st.just(
    {"past_seen_token_num": 2, "chunk_end_pos": 7, "embed_mask": [0, 1, 1, 0, 0, 1, 1, 1]}
)


def _no_source(_: DrawFn, arguments: dict[str, Any]) -> tuple[Path, str]:
    del arguments["embed_mask"]
    return (), "conflict"


def _two_sources(_: DrawFn, arguments: dict[str, Any]) -> tuple[Path, str]:
    arguments["embed_mask_cumsum"] = [0, 1, 2, 2, 2, 3, 4, 5]
    return (), "conflict"


def _jumping_cumsum(draw: DrawFn, arguments: dict[str, Any]) -> tuple[Path, str]:
    del arguments["embed_mask"]
    position = draw(st.integers(0, 7))
    counts = list(range(1, 9))
    arguments["embed_mask_cumsum"] = [
        count + (index >= position) for index, count in enumerate(counts)
    ]
    return ("embed_mask_cumsum", position), "range"


def _offsets_without_items(_: DrawFn, arguments: dict[str, Any]) -> tuple[Path, str]:
    arguments["special_token_offsets"] = ((0,),)
    return ("special_token_offsets",), "conflict"


_SOURCE_DEFECTS: Final[list[Defect]] = [
    _no_source,
    _two_sources,
    _jumping_cumsum,
    _offsets_without_items,
    wrong("past_seen_token_num", NOT_INTS | NONE, "type"),
    wrong("past_seen_token_num", NEGATIVE | _BEYOND_INT32, "range"),
    wrong("chunk_end_pos", NOT_INTS | NONE, "type"),
    wrong("chunk_end_pos", st.just(1) | st.integers(min_value=9), "range"),
    wrong("embed_mask", st.sampled_from(["0110", 1, {0, 1}, torch.zeros(8)]), "type"),
    wrong("embed_mask", _NOT_ON_THE_CPU, "device"),
    wrong("embed_mask", st.builds(torch.ones, st.just((1, 8)), dtype=_INT_DTYPES), "shape"),
    wrong_element("embed_mask", st.sampled_from([1.0, "1", None]), "type"),
    wrong_element("embed_mask", st.sampled_from([-1, 2]), "range"),
]
