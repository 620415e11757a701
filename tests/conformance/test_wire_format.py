"""The specification and the code say the same: tables, codes and the worked example."""

import re
from pathlib import Path

import attrs
import pytest
import torch

from omniwire import contracts
from omniwire.contracts import OmniOutput
from omniwire.contracts.errors import DECODE_CODES, WIRE_ERRORS
from omniwire.serialization import WIRE_VERSION, decode, encode, extensions
from omniwire.serialization.buffer_writer import MAX_INLINE_BYTES, MIN_OWN_FRAME_BYTES
from omniwire.serialization.codec import MIN_PACKED_INTS
from omniwire.serialization.converter import codecs
from omniwire.serialization.dtypes import NUMPY_DTYPES, TORCH_CODES

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "wire-format.md"
TEXT = PAGE.read_text(encoding="utf-8")


def section(title: str) -> str:
    """The text under a heading, up to the next of its level or above."""
    after = TEXT.split(f"\n{title}\n", maxsplit=1)[1]
    depth = title.index(" ")
    return re.split(rf"^#{{1,{depth}}} ", after, maxsplit=1, flags=re.MULTILINE)[0]


def rows(title: str) -> list[list[str]]:
    """The cells of the last table under a heading."""
    lines = section(title).strip().splitlines()
    found = [line.strip("|").split("|") for line in lines if line.startswith("|")]
    return [[cell.strip(" `") for cell in row] for row in found if "---" not in row[0]][1:]


def test_version() -> None:
    assert TEXT.startswith(f"# Wire format, version {WIRE_VERSION}\n")


def test_data_types() -> None:
    table = {
        code: (name, size, numpy)
        for code, name, size, numpy in (row for row in rows("## Tensors") if len(row) == 4)
        if code.isdigit()
    }
    assert table == {
        str(code): (
            str(dtype).removeprefix("torch."),
            str(dtype.itemsize),
            "yes" if code in NUMPY_DTYPES else "no",
        )
        for dtype, code in TORCH_CODES.items()
    }


def test_extension_types() -> None:
    codes = {name: code for name, code in vars(extensions).items() if name.startswith("EXT_")}
    names = {"record name": "RECORD", "token ids": "TOKEN_IDS"}
    assert {
        f"EXT_{names.get(name, name.upper())}": int(code)
        for code, name, _ in rows("## Extension types")
    } == codes


def test_decode_codes() -> None:
    assert {row[0] for row in rows("## What a reader refuses")} == set(DECODE_CODES)


def test_errors() -> None:
    assert [row[0] for row in rows("## Errors")] == list(WIRE_ERRORS)


@pytest.mark.parametrize("name", [n for n, c in vars(contracts).items() if attrs.has(c)])
def test_fields(name: str) -> None:
    """Every field of every record, in order, with its default."""
    if name == "TokenIds":
        return
    kind = getattr(contracts, name)
    assert name in codecs().from_wire
    expected = [
        (field.name, field.default is attrs.NOTHING)
        for field in attrs.fields(kind)
        if field.name != "encoder_state"
    ]
    table = rows(f"### `{name}`") if expected else []
    assert [(row[0], row[2] == "required") for row in table] == expected
    assert section(f"### `{name}`")


def test_thresholds() -> None:
    assert f"up to {MAX_INLINE_BYTES} bytes inline" in TEXT
    assert f"smaller than {MIN_OWN_FRAME_BYTES // 1024} KiB" in TEXT
    assert f"sequences of {MIN_PACKED_INTS} integers" in TEXT


def test_the_worked_example() -> None:
    listing = section("## An example").split("```text\n")[1].split("```")[0]
    header = b"".join(
        bytes.fromhex(re.match(r"[0-9a-f ]+?(?= {2}|$)", line).group())  # type: ignore[union-attr]  # each line has bytes
        for line in listing.splitlines()
    )
    output = OmniOutput(
        torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16),
        {"audio": torch.zeros(150, dtype=torch.int32), "rate": 24000},
    )
    assert decode([header, bytes(600)]) == output
    assert list(map(bytes, encode(output))) == [header, bytes(600)]
