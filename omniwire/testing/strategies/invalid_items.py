"""Invalid references, partitions and records."""

from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from omniwire.contracts import ItemRef, MultimodalItemMetadata, MultimodalItemPartition
from omniwire.contracts.errors import Path
from omniwire.testing.strategies.invalid import (
    NEGATIVE,
    NONE,
    NOT_INTS,
    NOT_MAPPINGS,
    NOT_SEQUENCES,
    NOT_TEXTS,
    Defect,
    Invalid,
    broken,
    surplus_element,
    wrong,
    wrong_element,
)
from omniwire.testing.strategies.items import item_refs

_BAD_MODALITIES: Final = st.sampled_from(
    ["", "Image", "1image", "_image", "im-age", "image ", "image\n", "bild\u00e4", "a" * 65]
)


def invalid_item_refs() -> SearchStrategy[Invalid]:
    """References with a malformed modality or a bad index."""
    valid = item_refs().map(ItemRef._asdict)
    return broken(
        ItemRef,
        valid,
        [
            wrong("modality", NOT_TEXTS | NONE, "type"),
            wrong("modality", _BAD_MODALITIES, "format"),
            wrong("index", NOT_INTS | NONE, "type"),
            wrong("index", NEGATIVE, "range"),
        ],
    )


def invalid_item_partitions() -> SearchStrategy[Invalid]:
    """Partitions with a bad length or axis."""
    lengths = st.lists(st.integers(0, 4), min_size=1, max_size=4)
    valid = st.fixed_dictionaries({"item_lengths": lengths, "axis": st.integers(0, 3)})
    return broken(
        MultimodalItemPartition,
        valid,
        [
            wrong("item_lengths", NOT_SEQUENCES, "type"),
            wrong_element("item_lengths", NOT_INTS | NONE, "type"),
            wrong_element("item_lengths", NEGATIVE, "range"),
            wrong("axis", NOT_INTS | NONE, "type"),
            wrong("axis", NEGATIVE, "range"),
        ],
    )


def invalid_item_metadata() -> SearchStrategy[Invalid]:
    """Records with bad references, lengths or partitions."""
    return broken(MultimodalItemMetadata, _complete_records(), _RECORD_DEFECTS)


@st.composite
def _complete_records(draw: DrawFn) -> dict[str, Any]:
    """Arguments of a record with everything in it: at least two images and one other item."""
    num_images = draw(st.integers(2, 3))
    refs = [("image", index) for index in range(num_images)] + [("audio", 0)]
    num_items = len(refs)
    lengths = st.lists(st.integers(1, 8), min_size=num_items, max_size=num_items)
    packed = st.lists(st.integers(0, 4), min_size=num_images, max_size=num_images)
    return {
        "item_refs": draw(st.permutations(refs)),
        "encoder_token_lengths": draw(lengths),
        "output_embedding_lengths": draw(lengths),
        "input_partitions": {
            "image": {
                "image_grid_thw": MultimodalItemPartition(),
                "pixel_values": MultimodalItemPartition(draw(packed)),
            },
            "audio": {},
        },
    }


def _wrong_ref_part(part: int, values: SearchStrategy[object], code: str) -> Defect:
    def put_in(draw: DrawFn, arguments: dict[str, Any]) -> tuple[Path, str]:
        refs = list(arguments["item_refs"])
        position = draw(st.integers(0, len(refs) - 1))
        modality, index = refs[position]
        bad = draw(values)
        refs[position] = (modality, bad) if part else (bad, index)
        arguments["item_refs"] = refs
        return ("item_refs", position, ("modality", "index")[part]), code

    return put_in


def _repeated_ref(draw: DrawFn, arguments: dict[str, Any]) -> tuple[Path, str]:
    refs = list(arguments["item_refs"])
    first, second, *_ = [i for i, ref in enumerate(refs) if ref[0] == "image"]
    if draw(st.booleans()):
        refs[first] = refs[second]
    else:
        refs[second] = refs[first]
    arguments["item_refs"] = refs
    return ("item_refs", second), "duplicate"


def _index_out_of_sequence(draw: DrawFn, arguments: dict[str, Any]) -> tuple[Path, str]:
    refs = list(arguments["item_refs"])
    position = draw(st.integers(0, len(refs) - 1))
    modality, _ = refs[position]
    count = sum(ref[0] == modality for ref in refs)
    refs[position] = (modality, draw(st.integers(count, 2**63 - 1)))
    arguments["item_refs"] = refs
    return ("item_refs", position), "sequence"


def _undeclarable_modality(draw: DrawFn, arguments: dict[str, Any]) -> tuple[Path, str]:
    modality = draw(st.sampled_from(["video", "images"]))
    arguments["input_partitions"] = {**arguments["input_partitions"], modality: {}}
    return ("input_partitions", modality), "unknown"


def _malformed_modality(draw: DrawFn, arguments: dict[str, Any]) -> tuple[Path, str]:
    modality = draw(_BAD_MODALITIES)
    arguments["input_partitions"] = {**arguments["input_partitions"], modality: {}}
    return ("input_partitions", modality), "format"


def _bad_fields(draw: DrawFn, arguments: dict[str, Any]) -> tuple[Path, str]:
    modality = draw(st.sampled_from(["image", "audio"]))
    bad = draw(st.sampled_from([None, 1, "pixel_values", MultimodalItemPartition()]))
    arguments["input_partitions"] = {**arguments["input_partitions"], modality: bad}
    return ("input_partitions", modality), "type"


def _bad_partition(draw: DrawFn, arguments: dict[str, Any]) -> tuple[Path, str]:
    modality = draw(st.sampled_from(["image", "audio"]))
    bad = draw(st.sampled_from([None, 0, (2, 1), {"axis": 0}]))
    arguments["input_partitions"] = {modality: {"pixel_values": bad}}
    return ("input_partitions", modality, "pixel_values"), "type"


def _miscounted_lengths(draw: DrawFn, arguments: dict[str, Any]) -> tuple[Path, str]:
    modality = draw(st.sampled_from(["image", "audio"]))
    count = sum(ref[0] == modality for ref in arguments["item_refs"])
    lengths = draw(st.lists(st.integers(0, 4), max_size=5).filter(lambda one: len(one) != count))
    arguments["input_partitions"] = {modality: {"rows": MultimodalItemPartition(lengths)}}
    return ("input_partitions", modality, "rows", "item_lengths"), "count"


_RECORD_DEFECTS: Final = [
    wrong("item_refs", NOT_SEQUENCES | NONE, "type"),
    wrong_element("item_refs", st.sampled_from(["image", 0, None, ("image",)]), "type"),
    _wrong_ref_part(0, NOT_TEXTS | NONE, "type"),
    _wrong_ref_part(0, _BAD_MODALITIES, "format"),
    _wrong_ref_part(1, NOT_INTS | NONE, "type"),
    _wrong_ref_part(1, NEGATIVE, "range"),
    _repeated_ref,
    _index_out_of_sequence,
    *[
        defect
        for name in ("encoder_token_lengths", "output_embedding_lengths")
        for defect in (
            wrong(name, NOT_SEQUENCES, "type"),
            wrong_element(name, NOT_INTS | NONE, "type"),
            wrong_element(name, st.integers(max_value=0), "range"),
            surplus_element(name),
        )
    ],
    wrong("input_partitions", NOT_MAPPINGS, "type"),
    _undeclarable_modality,
    _malformed_modality,
    _bad_fields,
    _bad_partition,
    _miscounted_lengths,
]
