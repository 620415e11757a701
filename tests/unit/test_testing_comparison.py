"""`assert_equal`: passes exactly where `==` is true, and says what differs and where."""

import math
import struct

import numpy as np
import pytest
import torch

from omniwire import contracts as c
from omniwire.testing import assert_equal


def report(actual, expected):
    """The lines of the report, without its heading and margins."""
    with pytest.raises(AssertionError) as caught:
        assert_equal(actual, expected)
    heading, *lines = str(caught.value).splitlines()
    assert f"{len(lines)} difference" in heading
    return [line.removeprefix("  ") for line in lines]


def double(bits):
    return struct.unpack(">d", bits.to_bytes(8, "big"))[0]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1),
        ((1, (2.0, "a")), (1, (2.0, "a"))),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (math.nan, math.nan),
        (torch.tensor([math.nan, -0.0]), torch.tensor([math.nan, -0.0])),
        (torch.arange(6).view(2, 3).t(), torch.arange(6).view(2, 3).t().contiguous()),
        (np.arange(6)[::2], np.array([0, 2, 4])),
        ([torch.zeros(2)], [torch.zeros(2)]),
        ({"a": ([torch.zeros(2)], 1)}, {"a": ([torch.zeros(2)], 1)}),
        (c.ItemRef("image", 0), ("image", 0)),
        (("image", 0), c.ItemRef("image", 0)),
        (c.TokenIds([1, 2]), (1, 2)),
        (c.MultimodalParams(encoder_state=object()), c.MultimodalParams()),
        (c.DecodeError("no", "magic", 3), c.DecodeError("no", "magic", 3)),
    ],
)
def test_equal_values_pass(one, other):
    assert_equal(one, other)
    assert_equal(other, one)


@pytest.mark.parametrize(
    ("actual", "expected", "line"),
    [
        (2, 1, "$: expected 1, got 2"),
        (True, 1, "$: expected 1, got True"),
        (1.0, 1, "$: expected 1, got 1.0"),
        (-0.0, 0.0, "$: expected 0.0, got -0.0"),
        ([1], (1,), "$: expected tuple of 1, got list of 1"),
        ((1, 3), (1, 2), "$[1]: expected 2, got 3"),
        ({"a": {"b": 2}}, {"a": {"b": 1}}, "$.a.b: expected 1, got 2"),
        ({}, {"a": None}, "$.a: expected None, got nothing"),
        (
            ([torch.zeros(2)], 1),
            ([torch.ones(2)], 1),
            "$[0][0]: expected 1.0 at [0], got 0.0 (2 of 2 elements of f32[2])",
        ),
        ({"a": 1}, {}, "$.a: expected nothing, got 1"),
        ("abd", "abc", "$: expected 'abc', got 'abd' (first at index 2)"),
        (b"ab", b"abc", "$: expected bytes of 3, got bytes of 2 (first at index 2)"),
        (c.ChunkKind.FINAL, c.ChunkKind.DELTA, "$: expected ChunkKind.DELTA, got ChunkKind.FINAL"),
        (
            torch.float32,
            torch.bfloat16,
            "$: expected torch.bfloat16, got torch.float32",
        ),
        (
            c.ItemRef("audio", 1),
            c.ItemRef("audio", 0),
            "$[1]: expected 0, got 1",
        ),
        (c.Concat(0), c.Stack(0), "$: expected Stack(dim=0), got Concat(dim=0)"),
        (c.Concat(1), c.Concat(0), "$.dim: expected 0, got 1"),
        (c.TokenIds([1, 7]), c.TokenIds([1, 8]), "$[1]: expected 8, got 7"),
        (
            c.PeerDied("gone"),
            c.PeerDied("dead"),
            "$.args[0][0]: expected 'dead', got 'gone' (first at index 0)",
        ),
    ],
)
def test_the_report_names_path_and_both_values(actual, expected, line):
    assert report(actual, expected) == [line]


def test_the_lengths_of_sequences_and_every_common_element_are_reported():
    assert report((1, 5), (1, 2, 3)) == ["$: expected 3 elements, got 2", "$[1]: expected 2, got 5"]


@pytest.mark.parametrize(
    ("actual", "expected", "line"),
    [
        (
            torch.zeros(2, 3),
            torch.zeros(2, 3, dtype=torch.bfloat16),
            "$: expected bf16[2, 3], got f32[2, 3]",
        ),
        (torch.zeros(3, 2), torch.zeros(2, 3), "$: expected f32[2, 3], got f32[3, 2]"),
        (
            torch.tensor([[0, 0], [7, 8]]),
            torch.tensor([[0, 0], [7, 9]]),
            "$: expected 9 at [1, 1], got 8 (1 of 4 elements of i64[2, 2])",
        ),
        (
            torch.tensor([0.0, -0.0]),
            torch.tensor([0.0, 0.0]),
            "$: expected 0.0 at [1], got -0.0 (1 of 2 elements of f32[2])",
        ),
        (
            torch.tensor(2.0),
            torch.tensor(1.0),
            "$: expected 1.0 at [], got 2.0 (1 of 1 elements of f32[])",
        ),
        (
            torch.tensor([1 + 2j]).conj(),
            torch.tensor([1 + 2j]),
            "$: expected (1+2j) at [0], got (1-2j) (1 of 1 elements of c64[1])",
        ),
        (
            torch.tensor([True, False]),
            torch.tensor([True, True]),
            "$: expected True at [1], got False (1 of 2 elements of bool[2])",
        ),
        (
            np.zeros(2, np.int16),
            torch.zeros(2, dtype=torch.int16),
            "$: expected i16[2], got numpy i16[2]",
        ),
        (
            np.array([[1, 2], [3, 4]]).T,
            np.array([[1, 2], [3, 4]]),
            "$: expected 2 at [0, 1], got 3 (2 of 4 elements of numpy i64[2, 2])",
        ),
    ],
)
def test_tensors_are_reported_by_type_shape_and_first_difference(actual, expected, line):
    assert report(actual, expected) == [line]


def test_numbers_that_print_alike_are_told_apart_by_their_bits():
    quiet, with_payload = double(0x7FF8000000000000), double(0x7FF8000000000001)
    assert report(with_payload, quiet) == [
        "$: expected nan with bits 7ff8000000000000, got nan with bits 7ff8000000000001"
    ]
    bits = torch.tensor([0x7FC00001, 0x7FC00000], dtype=torch.int32)
    assert report(bits[:1].view(torch.float32), bits[1:].view(torch.float32)) == [
        "$: expected bytes 00 00 c0 7f at [0], got bytes 01 00 c0 7f (1 of 1 elements of f32[1])"
    ]


def test_types_without_numbers_are_told_apart_by_their_bytes():
    words = torch.tensor([1, 2], dtype=torch.uint8)
    assert report(words.view(torch.bits8), words.flip(0).view(torch.bits8)) == [
        "$: expected bytes 02 at [0], got bytes 01 (2 of 2 elements of bits8[2])"
    ]


def test_types_of_one_name_are_told_apart_by_their_modules():
    class Concat:
        """Not the contract."""

        def __repr__(self):
            return "Concat(dim=0)"

    (line,) = report(Concat(), Concat())
    assert line.count("Concat") >= 2


def test_differences_deep_in_a_request_are_named():
    def request(rows, pixels):
        record = c.MultimodalItemMetadata([("image", 0)], output_embedding_lengths=[rows])
        data = {"image": {"pixel_values": torch.tensor(pixels)}, "item_metadata": record}
        return c.ProcessedRequest("r1", [1, 2], c.MultimodalParams(multimodal_data=data))

    data = "$.multimodal_params.multimodal_data"
    assert report(request(4, [1.0, 2.0]), request(5, [1.0, 3.0])) == [
        f"{data}.image.pixel_values: expected 3.0 at [1], got 2.0 (1 of 2 elements of f32[2])",
        f"{data}.item_metadata.output_embedding_lengths[0]: expected 5, got 4",
    ]


def test_a_long_report_is_cut():
    with pytest.raises(AssertionError) as caught:
        assert_equal(tuple(range(30)), tuple(range(1, 31)))
    lines = str(caught.value).splitlines()
    assert lines[0] == "tuple: 30 differences"
    assert len(lines) == 22
    assert lines[-1] == "  and 10 more"
