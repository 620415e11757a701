"""`TokenIds`: an immutable sequence of token ids that behaves like the tuple of its ints."""

import array
import collections
import copy
import itertools
import pickle
import sys

import numpy as np
import pytest
import torch

from omniwire.contracts import (
    ContractTypeError,
    ContractValueError,
    ProcessedRequest,
    TokenIds,
    content_hash,
)
from omniwire.serialization import dumps, loads

INT32_MAX = 2**31 - 1


class Numbers(collections.abc.Sequence):
    """A foreign sequence of ints."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return (1, 2, 3)[index]


SAME_IDS = {
    "list": [1, 2, 3],
    "tuple": (1, 2, 3),
    "range": range(1, 4),
    "deque": collections.deque([1, 2, 3]),
    "array": array.array("q", [1, 2, 3]),
    "sequence": Numbers(),
    "ids": TokenIds([1, 2, 3]),
    "big-endian array": np.array([1, 2, 3], dtype=">i8"),
    "strided array": np.array([1, 0, 2, 0, 3, 0], dtype=np.uint8)[::2],
    "uint64 array": np.array([1, 2, 3], dtype=np.uint64),
    "tensor": torch.tensor([1, 2, 3]),
    "int32 tensor": torch.tensor([1, 2, 3], dtype=torch.int32),
    "uint16 tensor": torch.tensor([1, 2, 3]).to(torch.uint16),
    "strided tensor": torch.tensor([1, 0, 2, 0, 3, 0])[::2],
}


class TestBuilding:
    @pytest.mark.parametrize("ids", SAME_IDS.values(), ids=SAME_IDS.keys())
    def test_from_any_sequence_array_or_tensor_of_ints(self, ids) -> None:
        assert TokenIds(ids) == (1, 2, 3)
        assert TokenIds(ids).tobytes() == b"\1\0\0\0\2\0\0\0\3\0\0\0"

    def test_from_nothing(self) -> None:
        assert TokenIds() == TokenIds([]) == TokenIds(np.array([], dtype=int)) == ()
        assert TokenIds(torch.tensor([], dtype=torch.int64)) == ()

    def test_the_extremes(self) -> None:
        for ids in ([0, INT32_MAX], np.array([0, INT32_MAX]), torch.tensor([0, INT32_MAX])):
            assert TokenIds(ids) == (0, 2147483647)

    @pytest.mark.parametrize("element", [True, 1.0, "1", None, b"1", np.int32(1), [1]])
    def test_the_last_of_a_thousand_is_no_int(self, refusal, element: object) -> None:
        assert refusal(TokenIds, [*range(999), element]) == (
            ContractTypeError,
            [((999,), "type")],
        )

    @pytest.mark.parametrize(
        "element", [-1, -(2**31), -(2**31) - 1, 2**31, 2**32, 2**63, 2**64, -(2**63)]
    )
    def test_the_last_of_a_thousand_is_out_of_range(self, refusal, element: int) -> None:
        assert refusal(TokenIds, [*range(999), element]) == (
            ContractValueError,
            [((999,), "range")],
        )

    def test_every_element_is_judged(self, refusal) -> None:
        assert refusal(TokenIds, [-1, 0, -5]) == (
            ContractValueError,
            [((0,), "range"), ((2,), "range")],
        )
        assert refusal(TokenIds, [2**40, 0, -5]) == (
            ContractValueError,
            [((0,), "range"), ((2,), "range")],
        )
        assert refusal(TokenIds, [2**40, INT32_MAX, 0]) == (
            ContractValueError,
            [((0,), "range")],
        )
        assert refusal(TokenIds, [-1, INT32_MAX, 0]) == (ContractValueError, [((0,), "range")])
        assert refusal(TokenIds, [True, 0, False]) == (
            ContractTypeError,
            [((0,), "type"), ((2,), "type")],
        )
        for build in (np.array, torch.tensor):
            assert refusal(TokenIds, build([-1, 0, 2**31, 5, -(2**40)])) == (
                ContractValueError,
                [((0,), "range"), ((2,), "range"), ((4,), "range")],
            )
        assert refusal(TokenIds, np.array([1, 2**64 - 1], dtype=np.uint64)) == (
            ContractValueError,
            [((1,), "range")],
        )

    @pytest.mark.parametrize(
        ("ids", "kind", "code"),
        [
            ("123", ContractTypeError, "type"),
            (b"123", ContractTypeError, "type"),
            (bytearray(4), ContractTypeError, "type"),
            (memoryview(b"123"), ContractTypeError, "type"),
            (5, ContractTypeError, "type"),
            (None, ContractTypeError, "type"),
            ({1: 2}, ContractTypeError, "type"),
            ({1, 2}, ContractTypeError, "type"),
            (iter([1]), ContractTypeError, "type"),
            (np.array([1.0]), ContractTypeError, "type"),
            (np.array([True]), ContractTypeError, "type"),
            (np.array(["1"]), ContractTypeError, "type"),
            (np.array([1], dtype=object), ContractTypeError, "type"),
            (torch.tensor([1.0]), ContractTypeError, "type"),
            (torch.tensor([1.0], dtype=torch.bfloat16), ContractTypeError, "type"),
            (torch.tensor([True]), ContractTypeError, "type"),
            (torch.tensor([1j]), ContractTypeError, "type"),
            (np.array(1), ContractValueError, "shape"),
            (np.array([[1]]), ContractValueError, "shape"),
            (torch.tensor(1), ContractValueError, "shape"),
            (torch.tensor([[1]]), ContractValueError, "shape"),
            (torch.zeros(2, dtype=torch.int64, device="meta"), ContractValueError, "device"),
            (torch.ones(2, dtype=torch.int64).to_sparse(), ContractValueError, "layout"),
            (torch.nn.Parameter(torch.tensor([1]), requires_grad=False), ContractTypeError, "type"),
        ],
    )
    def test_something_else(self, refusal, ids: object, kind: type, code: str) -> None:
        assert refusal(TokenIds, ids) == (kind, [((), code)])

    @pytest.mark.parametrize(
        "source",
        [
            [1, 2],
            array.array("i", [1, 2]),
            np.array([1, 2], np.int32),
            torch.tensor([1, 2], dtype=torch.int32),
        ],
    )
    def test_it_owns_its_memory(self, source) -> None:
        ids = TokenIds(source)
        source[0] = 9
        assert ids == (1, 2)


class TestBytes:
    def test_packed_little_endian_int32(self) -> None:
        packed = bytes([1, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0x7F])
        assert TokenIds([1, INT32_MAX]).tobytes() == packed
        assert TokenIds.frombytes(packed) == (1, INT32_MAX)
        assert TokenIds.frombytes(bytearray(packed)) == (1, INT32_MAX)
        assert TokenIds.frombytes(memoryview(packed)[4:]) == (INT32_MAX,)
        assert TokenIds.frombytes(b"") == ()

    def test_the_buffer_is_copied(self) -> None:
        buffer = bytearray(b"\1\0\0\0")
        ids = TokenIds.frombytes(buffer)
        buffer[0] = 9
        assert ids == (1,)

    @pytest.mark.parametrize("size", [1, 3, 5, 4003])
    def test_whole_ids_only(self, refusal, size: int) -> None:
        assert refusal(TokenIds.frombytes, bytes(size)) == (ContractValueError, [((), "count")])

    def test_every_id_is_judged(self, refusal) -> None:
        packed = np.array([*[-1], *[1] * 997, -(2**31)], dtype="<i4").tobytes()
        assert refusal(TokenIds.frombytes, packed) == (
            ContractValueError,
            [((0,), "range"), ((998,), "range")],
        )

    @pytest.mark.parametrize("buffer", [8, "12345678", None, [1, 0, 0, 0], np.array([1])])
    def test_only_a_buffer(self, refusal, buffer: object) -> None:
        """`bytes(8)` would be eight zeros, that is two ids."""
        assert refusal(TokenIds.frombytes, buffer) == (ContractTypeError, [(("buffer",), "type")])


class TestSequence:
    IDS = TokenIds([10, 11, 12, 11])

    def test_it_reads_like_the_tuple_of_its_ints(self) -> None:
        assert isinstance(self.IDS, collections.abc.Sequence)
        assert len(self.IDS) == 4
        assert list(self.IDS) == [10, 11, 12, 11]
        assert list(reversed(self.IDS)) == [11, 12, 11, 10]
        assert self.IDS.count(11) == 2
        assert self.IDS.index(12) == 2
        assert 12 in self.IDS
        assert 13 not in self.IDS
        assert {type(i) for i in self.IDS} == {int}
        assert not TokenIds()

    def test_indices(self) -> None:
        assert self.IDS[0] == 10
        assert self.IDS[-1] == 11
        assert type(self.IDS[0]) is int
        for index in (4, -5):
            with pytest.raises(IndexError):
                self.IDS[index]

    @pytest.mark.parametrize(
        ("part", "expected"),
        [
            (slice(1, 3), (11, 12)),
            (slice(None, None, -1), (11, 12, 11, 10)),
            (slice(None, None, 2), (10, 12)),
            (slice(9, 20), ()),
        ],
    )
    def test_a_slice_is_token_ids(self, part: slice, expected: tuple[int, ...]) -> None:
        assert type(self.IDS[part]) is TokenIds
        assert self.IDS[part] == expected
        assert self.IDS[part].tobytes() == TokenIds(expected).tobytes()

    def test_equal_to_the_tuple_both_ways(self) -> None:
        assert TokenIds([1, 2]) == (1, 2)
        assert (1, 2) == TokenIds([1, 2])  # noqa: SIM300  # both sides are asked
        assert TokenIds([1, 2]) == TokenIds((1, 2))
        for other in ((1,), (1, 2, 3), (2, 1), (1, "2"), TokenIds([1]), [1, 2], None):
            assert (TokenIds([1, 2]) == other) is False
            assert (other == TokenIds([1, 2])) is False
            assert TokenIds([1, 2]) != other

    def test_hashes_like_the_tuple(self) -> None:
        assert hash(TokenIds([1, 2, INT32_MAX])) == hash((1, 2, INT32_MAX))
        assert {TokenIds([1, 2]): "found"}[(1, 2)] == "found"
        assert hash(TokenIds()) == hash(())

    def test_as_a_new_int32_tensor(self) -> None:
        tensor = self.IDS.to_tensor()
        assert tensor.dtype == torch.int32
        assert tensor.tolist() == [10, 11, 12, 11]
        tensor.zero_()
        assert self.IDS == (10, 11, 12, 11)
        assert TokenIds().to_tensor().shape == (0,)


class TestView:
    """Ids that share a growing buffer with others, as an output processor emits them."""

    BUFFER = bytearray(TokenIds([10, 11, 12, 11, 99, 99]).tobytes())
    IDS = TokenIds._trusted(_packed=memoryview(BUFFER)[:16].toreadonly())
    SAME = TokenIds([10, 11, 12, 11])

    def test_it_reads_like_ids_of_its_own(self) -> None:
        assert (len(self.IDS), list(self.IDS), self.IDS[-1]) == (4, [10, 11, 12, 11], 11)
        assert (12 in self.IDS, 99 in self.IDS, bool(self.IDS)) == (True, False, True)
        assert self.IDS.to_tensor().tolist() == [10, 11, 12, 11]
        assert repr(self.IDS) == "TokenIds(4 ids)"

    def test_it_equals_and_hashes_like_ids_of_its_own(self) -> None:
        other = TokenIds._trusted(_packed=memoryview(bytearray(self.SAME.tobytes())).toreadonly())
        for same in (self.SAME, other, self.IDS, (10, 11, 12, 11)):
            assert self.IDS == same  # noqa: SIM300  # both sides are asked
            assert same == self.IDS
            assert hash(self.IDS) == hash(same)
        for different in (TokenIds([10, 11, 12, 99]), TokenIds([10, 11, 12]), TokenIds()):
            assert self.IDS != different  # noqa: SIM300  # both sides are asked
            assert different != self.IDS
        assert content_hash(self.IDS) == content_hash(self.SAME)

    def test_it_leaves_as_bytes_of_its_own(self) -> None:
        assert type(self.IDS.tobytes()) is bytes
        assert self.IDS.tobytes() == self.SAME.tobytes()
        assert dumps(self.IDS) == dumps(self.SAME)
        for copied in (
            loads(dumps(self.IDS)),
            pickle.loads(pickle.dumps(self.IDS)),
            copy.deepcopy(self.IDS),
            self.IDS[:],
            self.IDS[1:][:3],
        ):
            assert type(copied._packed) is bytes
        assert pickle.loads(pickle.dumps(self.IDS)) == self.SAME

    def test_it_cannot_be_written_to(self) -> None:
        with pytest.raises(TypeError):
            self.IDS._packed[0] = 1
        with pytest.raises(ValueError, match="read-only"):
            np.frombuffer(self.IDS._packed, np.int32)[0] = 1

    def test_it_is_a_prompt_like_any_other(self) -> None:
        request = ProcessedRequest("r1", self.IDS)
        assert request == ProcessedRequest("r1", [10, 11, 12, 11])
        assert TokenIds(self.IDS) == self.SAME


def test_a_hundred_thousand_ids_are_checked_without_a_python_loop() -> None:
    """Not one Python-level call per id."""
    ids = list(range(100_000))
    tensor = torch.arange(100_000)
    calls = itertools.count()
    sys.setprofile(lambda *_: next(calls))
    try:
        TokenIds(ids)
        TokenIds(tensor)
        TokenIds.frombytes(bytes(400_000))
    finally:
        sys.setprofile(None)
    assert next(calls) < 1000
