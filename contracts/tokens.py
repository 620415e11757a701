"""`TokenIds`: a prompt's token ids in one packed, immutable buffer."""

from array import array
from collections.abc import Iterator, Sequence
from typing import Final, Self, overload

import attrs
import numpy as np
import torch

from omniwire.contracts.base import Contract
from omniwire.contracts.checks import INT32_MAX, MAX_PROBLEMS, each, raise_problems
from omniwire.contracts.describe import describe
from omniwire.contracts.errors import ContractError, Path, Problem
from omniwire.contracts.guard import guarded
from omniwire.contracts.tensors import int_tensor_problem

_FEW_BYTES: Final = 16 * 1024  # up to here, numpy takes longer to start than this to finish
_LITTLE_INT32: Final = np.dtype("<i4")
_EXPECTED_ID: Final = "a token id of 0 to 2147483647"
_SUBJECT: Final = "TokenIds"


IdsLike = Sequence[int] | np.ndarray | torch.Tensor


@attrs.frozen(eq=False, repr=False, init=False)
class TokenIds(Contract, Sequence[int]):
    """Token ids of one prompt or one output step: an immutable sequence of non-negative int32.

    Equals and hashes like the tuple of its ints. Owns its memory, four bytes an id; every
    constructor copies. The ids so far that a running request emits share one buffer that grows:
    each of them keeps at most twice its own bytes alive.

    Args:
        ids: A list, tuple, range or other sequence of ints, a 1-D integer numpy array, or a
            1-D integer tensor on the CPU.

    Raises:
        ContractTypeError: An element is not an int (a bool is none), an array holds no ints,
            or `ids` is of another type.
        ContractValueError: An id is negative or beyond int32; `ids` is not 1-D or not on the
            CPU.

    >>> ids = TokenIds([1, 15, 15, 2])
    >>> ids == (1, 15, 15, 2), ids[1], ids[1:3], len(ids)
    (True, 15, TokenIds(2 ids), 4)
    """

    _packed: bytes | memoryview = attrs.field()  # a view is read-only, of bytes that never change

    def __init__(self, ids: IdsLike = ()) -> None:
        problems: list[Problem] = []
        packed = _pack(ids, (), problems)
        raise_problems(_SUBJECT, problems)
        object.__setattr__(self, "_packed", packed)

    @classmethod
    @guarded
    def frombytes(cls, buffer: bytes | bytearray | memoryview) -> Self:
        """Build from packed little-endian int32, the inverse of `tobytes`.

        Raises:
            ContractTypeError: `buffer` is of another type.
            ContractValueError: The length is no multiple of four, or an id is negative.
        """
        return cls._from_packed(bytes(buffer))

    @classmethod
    def _from_packed(cls, packed: bytes) -> Self:
        problems: list[Problem] = []
        if len(packed) % 4:
            problems.append(Problem((), "count", "a multiple of 4 bytes", f"{len(packed)} bytes"))
        elif len(packed) > _FEW_BYTES or not packed[3::4].isascii():  # no byte with a sign
            _check_range(np.frombuffer(packed, _LITTLE_INT32), (), problems)
        raise_problems(_SUBJECT, problems)
        return cls._trusted(_packed=packed)

    def tobytes(self) -> bytes:
        """The ids as packed little-endian int32."""
        return bytes(self._packed)  # no copy of what is bytes already

    def to_tensor(self) -> torch.Tensor:
        """The ids as a new int32 tensor of shape (len,) on the CPU, the caller's to change."""
        return torch.from_numpy(np.frombuffer(self._packed, _LITTLE_INT32).astype(np.int32))

    def __len__(self) -> int:
        return len(self._packed) // 4

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> "TokenIds": ...
    def __getitem__(self, index: int | slice) -> "int | TokenIds":
        """One id, or the `TokenIds` of a slice."""
        chosen = np.frombuffer(self._packed, _LITTLE_INT32)[index]
        if isinstance(index, slice):
            return TokenIds._trusted(_packed=chosen.tobytes())
        return int(chosen)

    def __iter__(self) -> Iterator[int]:
        return iter(np.frombuffer(self._packed, _LITTLE_INT32).tolist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TokenIds):
            return _same_bytes(self._packed, other._packed)
        if isinstance(other, tuple):
            return len(self) == len(other) and tuple(self) == other
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"TokenIds({len(self)} ids)"

    def _depth_on_wire(self) -> int:
        return 0


def as_token_ids(value: IdsLike) -> TokenIds:
    """A field converter: ids as `TokenIds`; what is wrong with them stays for `take_token_ids`."""
    if type(value) is TokenIds:
        return value
    try:
        return TokenIds(value)
    except ContractError as error:
        return error  # type: ignore[return-value]  # reported by the object's validator


def take_token_ids(value: object, name: str, problems: list[Problem]) -> None:
    """Report what `as_token_ids` found wrong, under the field's name."""
    if isinstance(value, ContractError):
        problems.extend(p._replace(path=(name, *p.path)) for p in value.problems)


def _same_bytes(left: bytes | memoryview, right: bytes | memoryview) -> bool:
    if len(left) != len(right) or (type(left) is bytes and type(right) is bytes):
        return left == right
    # Views compare byte by byte, fifty times slower than this.
    return np.array_equal(np.frombuffer(left, _LITTLE_INT32), np.frombuffer(right, _LITTLE_INT32))


def _pack(ids: object, path: Path, problems: list[Problem]) -> bytes | memoryview:
    """The ids as packed little-endian int32; meaningless if a problem was added."""
    if type(ids) is TokenIds:
        return ids._packed
    if isinstance(ids, torch.Tensor):
        return _pack_tensor(ids, path, problems)
    if isinstance(ids, np.ndarray):
        return _pack_array(ids, path, problems)
    if not isinstance(ids, Sequence) or isinstance(ids, str | bytes | bytearray | memoryview):
        expected = "a sequence of ints, a 1-D integer array or tensor"
        problems.append(Problem(path, "type", expected, describe(ids)))
        return b""
    values = list(ids)
    if values and set(map(type, values)) != {int}:
        for index, value in each(values, problems):
            if type(value) is not int:
                problems.append(Problem((*path, index), "type", "an int", describe(value)))
        return b""
    try:
        packed = array("i", values)
    except OverflowError:
        for index, value in each(values, problems):
            if not 0 <= value <= INT32_MAX:
                problems.append(Problem((*path, index), "range", _EXPECTED_ID, describe(value)))
        return b""
    return _pack_array(np.frombuffer(packed, np.int32), path, problems)


def _pack_tensor(ids: torch.Tensor, path: Path, problems: list[Problem]) -> bytes:
    problem = int_tensor_problem(path, ids)
    if problem is not None:
        problems.append(problem)
        return b""
    return _pack_array(ids.detach().numpy(), path, problems)


def _pack_array(ids: np.ndarray, path: Path, problems: list[Problem]) -> bytes:
    if ids.ndim != 1:
        problems.append(Problem(path, "shape", "a 1-D integer array", describe(ids)))
        return b""
    if ids.dtype.kind not in "iu":
        problems.append(Problem(path, "type", "a 1-D integer array", describe(ids)))
        return b""
    if not _check_range(ids, path, problems):
        return b""
    return ids.astype(_LITTLE_INT32).tobytes()


def _check_range(ids: np.ndarray, path: Path, problems: list[Problem]) -> bool:
    if not ids.size:
        return True
    # As unsigned, a negative int32 is beyond int32 too: one pass for the common case.
    largest = ids.view(np.uint32).max() if ids.dtype == np.int32 else ids.max()
    if largest <= INT32_MAX and (ids.dtype == np.int32 or ids.min() >= 0):
        return True
    for index in np.flatnonzero((ids < 0) | (ids > INT32_MAX))[:MAX_PROBLEMS].tolist():
        got = describe(int(ids[index]))
        problems.append(Problem((*path, index), "range", _EXPECTED_ID, got))
    return False
