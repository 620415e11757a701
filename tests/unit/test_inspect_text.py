"""What comes from a file reaches a terminal as plain characters only."""

import sys
import unicodedata
from collections.abc import Callable

import pytest
import torch

import omniwire as ow
from omniwire.inspector.fields import num_bytes, parts, summary
from omniwire.inspector.text import counted, escape, quoted, shorten, shown_name
from omniwire.inspector.tree import MAX_LEVELS, MAX_NODES, MAX_PARTS, Node, tree_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain [red]text[/red] :smile:", "plain [red]text[/red] :smile:"),
        ("caf\u00e9 \u65e5\u672c \u0416", "caf\u00e9 \u65e5\u672c \u0416"),
        ("\x1b[31m\x07\x00\x7f\t\r\n", r"\x1b[31m\x07\x00\x7f\t\r\n"),
        ("\x9b31m", r"\x9b31m"),  # the one-character form of ESC [
        ("a\u202eb\u2066c\u200f", r"a\u202eb\u2066c\u200f"),  # bidirectional controls
        ("\u05d0 \u0661", r"\u05d0 \u0661"),  # right-to-left letters, Arabic digits
        ("e\u0301\u20dd", r"e\u0301\u20dd"),  # marks that stack on what is before them
        ("\u200b\u2028\u00ad\ufeff", r"\u200b\u2028\xad\ufeff"),  # invisible
        ("\udcff", r"\udcff"),  # an undecodable byte of a file name
        ("\U000e0041", r"\U000e0041"),  # a tag
        ("", ""),
    ],
)
def test_escapes(text: str, expected: str) -> None:
    assert escape(text) == expected


def test_no_character_but_printable_ones_that_keep_their_place_survives() -> None:
    survivors = [c for c in map(chr, range(sys.maxunicode + 1)) if escape(c) == c]
    categories = set(map(unicodedata.category, survivors))
    assert not {category[0] for category in categories} & {"C", "M"}
    assert not categories & {"Zl", "Zp"}
    directions = set(map(unicodedata.bidirectional, survivors))
    assert not directions & {"R", "AL", "AN", "RLE", "LRE", "RLO", "LRO", "PDF", "RLI", "LRI"}
    assert set(map(chr, range(32, 127))) <= set(survivors)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mp3", "'mp3'"),
        ("it's", r"'it\'s'"),
        (r"\x1b", r"'\\x1b'"),  # four plain characters, not an escape
        ("", "''"),
        ("x" * 8, "'xxxxxxxx'"),
        ("x" * 1_000_000, "'xxxxxxxx...' (1,000,000 characters)"),
        ("\x1b" * 3, r"'\x1b\x1b...' (3 characters)"),
    ],
)
def test_quotes(text: str, expected: str) -> None:
    assert quoted(text, 8) == expected


def test_names() -> None:
    assert shown_name("codes.audio") == "codes.audio"
    assert shown_name("a" * 64) == "a" * 64
    assert shown_name("a" * 65) == f"'{'a' * 24}...' (65 characters)"
    assert shown_name("image\x1b[1m") == r"'image\x1b[1m'"
    assert shown_name("[0]") == "'[0]'"
    assert shown_name("") == "''"


def test_long_sentences_are_cut_and_say_how_long_they_were() -> None:
    assert shorten("x" * 20, 20) == "x" * 20
    assert shorten("x" * 21, 20) == "x" * 20 + " ... (21 characters)"
    assert shorten("\n" * 20, 20) == r"\n" * 10 + " ... (20 characters)"


def test_counts() -> None:
    assert [counted(n, "item") for n in (0, 1, 2)] == ["0 items", "1 item", "2 items"]
    assert counted(12_345, "tuple of 2 ints") == "12,345 tuples of 2 ints"


HASH = (1, -2, 3, -4, 5, -6, 7, -8)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "None"),
        (True, "True"),
        (-7, "-7"),
        (0.25, "0.25"),
        ("a\nb", r"'a\nb'"),
        (b"abc", "bytes"),
        ((), "empty tuple"),
        ((5,), "1 int: 5"),
        (tuple(range(7)), "7 ints: 0, 1, 2, 3, 4, 5, ..."),
        ((True, 1, "a", None), "4 values: True, 1, 'a', None"),
        (((480, 640), (336, 336)), "2 tuples of 2 ints: (480, 640), (336, 336)"),
        ((HASH, HASH), "2 tuples of 8 ints"),
        (((1, 2), (3,)), "tuple of 2"),
        ((torch.zeros(1), 1), "tuple of 2"),
        (torch.zeros(3, 4, dtype=torch.bfloat16), "bf16[3, 4] cpu"),
        (torch.zeros(()), "f32[] cpu"),
        (torch.zeros(2).numpy(), "numpy f32[2] cpu"),
        (ow.FrozenMapping({"a": 1}), "mapping of 1"),
        (ow.ItemRef("image", 3), "image 3"),
        ((ow.ItemRef("image", 3), ow.ItemRef("audio", 0)), "2 items: image 3, audio 0"),
        (ow.MultimodalItemPartition(None, 2), "batched along axis 2"),
        (ow.MultimodalItemPartition([4, 5]), "packed along axis 0, 2 ints: 4, 5"),
        (ow.TensorHandle("cuda_ipc", torch.int64, (5,), b"x"), "cuda ipc handle of i64[5]"),
        (ow.TokenIds([1, 2, 3]), "TokenIds, 3 ids"),
        (ow.Concat(-1), "Concat(dim=-1)"),
        (ow.Append(), "Append()"),
        (ow.ChunkKind.FINAL, "final"),
        (torch.float8_e4m3fn, "f8_e4m3fn"),
        (ow.PeerDied("it\ndied"), r"PeerDied: it\ndied"),
        (ow.EncoderBudget(), "EncoderBudget"),
        (ow.MultimodalItemMetadata([("image", 0)]), "MultimodalItemMetadata, 1 item"),
    ],
)
def test_summaries(value: object, expected: str) -> None:
    assert summary(value) == expected


def test_bytes() -> None:
    assert num_bytes(torch.zeros(3, 4, dtype=torch.bfloat16)) == 24
    assert num_bytes(torch.zeros(1).expand(1000)) == 4000
    assert num_bytes(ow.TokenIds([1, 2, 3])) == 12
    assert num_bytes(b"abc") == 3
    assert num_bytes("abc") is None


def test_every_contract_has_a_summary_and_parts(build: Callable[[], object]) -> None:
    pending = [build()]
    while pending:
        value = pending.pop()
        text = summary(value)
        assert text
        assert text.isprintable()
        pending.extend(part.value for part in parts(value))


def test_the_parts_of_a_record_are_its_fields_on_a_problems_path() -> None:
    output = ow.OmniOutput(None, {"a b": (torch.zeros(1),), "rate": 5})
    assert [(part.step, part.name) for part in parts(output)] == [
        ("text_hidden_states", "text_hidden_states"),
        ("multimodal_outputs", "multimodal_outputs"),
        ("inter_stage_outputs", "inter_stage_outputs"),
    ]
    (values, rate) = parts(output.multimodal_outputs)
    assert (values.step, values.name) == ("a b", "'a b'")
    assert (rate.step, rate.name, rate.value) == ("rate", "rate", 5)
    assert [(part.step, part.name) for part in parts(values.value)] == [(0, "[0]")]


def _nodes(node: Node) -> list[Node]:
    return [node, *(below for part in node.nodes for below in _nodes(part))]


def test_a_small_tree_is_whole() -> None:
    root = tree_of(ow.FrozenMapping({"a": {"b": [torch.zeros(1), 2]}, "c": None}))
    assert [(node.path, node.num_more) for node in _nodes(root)] == [
        ((), 0),
        (("a",), 0),
        (("a", "b"), 0),
        (("a", "b", 0), 0),
        (("a", "b", 1), 0),
        (("c",), 0),
    ]


def test_a_wide_tree_is_cut_and_says_by_how_much() -> None:
    root = tree_of(ow.FrozenMapping({f"k{index}": index for index in range(1000)}))
    assert (len(root.nodes), root.num_more) == (MAX_PARTS, 1000 - MAX_PARTS)


def test_a_large_tree_keeps_what_is_nearest_to_the_root() -> None:
    tree = {
        f"a{i}": {f"b{j}": {f"c{k}": 0 for k in range(20)} for j in range(20)} for i in range(20)
    }
    root = tree_of(ow.FrozenMapping(tree))
    nodes = _nodes(root)
    assert len(nodes) == 1 + MAX_NODES
    assert sum(len(node.path) == 1 for node in nodes) == 20
    # 380 are left for the second level: 19 of the 20 have all of theirs, the last has none.
    assert [len(node.nodes) for node in root.nodes] == [20] * 19 + [0]
    assert [node.num_more for node in root.nodes] == [0] * 19 + [20]


def test_a_deep_tree_is_cut() -> None:
    tree: dict[str, object] = {"end": 1}
    for _ in range(25):
        tree = {"k": tree}
    deepest = _nodes(tree_of(ow.FrozenMapping(tree)))[-1]
    assert (len(deepest.path), deepest.num_more) == (MAX_LEVELS, 1)
