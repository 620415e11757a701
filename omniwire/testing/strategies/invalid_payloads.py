"""Payloads that no contract can carry, and invalid handles."""

import fractions
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from omniwire.contracts import FrozenMapping, TensorHandle
from omniwire.contracts.errors import Path
from omniwire.contracts.frozen import MAX_PAYLOAD_DEPTH
from omniwire.testing.strategies.invalid import (
    NEGATIVE,
    NONE,
    NOT_INTS,
    NOT_MAPPINGS,
    NOT_SEQUENCES,
    Defect,
    Invalid,
    broken,
    wrong,
    wrong_element,
)
from omniwire.testing.strategies.payloads import field_names, payload_values, payloads


class _Text(str):
    __slots__ = ()


class _Tensor(torch.Tensor):
    pass


def sparse_tensor() -> torch.Tensor:
    """A tensor that is not strided."""
    return torch.eye(2).to_sparse()


def _structured_array() -> np.ndarray:
    return np.zeros(2, dtype=[("a", "i4"), ("b", "f4")])


# Built when they are drawn: a tensor that every example shares could be changed by one of them.
_BAD_LEAVES: Final[SearchStrategy[tuple[object, str]]] = st.one_of(
    st.tuples(st.builds(object), st.just("type")),
    st.tuples(
        st.sampled_from([{1, 2}, 1j, fractions.Fraction(1, 2), torch.float32]), st.just("type")
    ),
    st.tuples(st.sampled_from([np.int64(1), np.float32(1), _Text("a")]), st.just("type")),
    st.tuples(st.builds(bytearray, st.just(b"abc")), st.just("type")),
    st.tuples(st.builds(lambda: torch.zeros(2).as_subclass(_Tensor)), st.just("type")),
    st.tuples(st.integers(min_value=2**64) | st.integers(max_value=-(2**63) - 1), st.just("range")),
    st.tuples(st.sampled_from(["\ud800", "a\udfffb"]), st.just("format")),
    st.tuples(st.builds(sparse_tensor), st.just("layout")),
    st.tuples(st.builds(torch.zeros, st.just(2), device=st.just("meta")), st.just("layout")),
    st.tuples(st.builds(_structured_array), st.just("dtype")),
    st.tuples(
        st.builds(np.zeros, st.just(2), st.sampled_from([">i4", ">f8", "O", "U3", "S3", "M8[s]"])),
        st.just("dtype"),
    ),
)


@st.composite
def bad_payloads(draw: DrawFn) -> tuple[dict[str, object], Path, str]:
    """A payload with one thing in it that cannot be carried, with its path and code."""
    value, path, code = draw(_bad_values())
    payload: dict[str, object] = dict(draw(payloads()))
    key = draw(field_names())
    payload[key] = value
    return payload, (key, *path), code


def invalid_payloads() -> SearchStrategy[Invalid]:
    """Payload mappings with something in them that cannot be carried.

    >>> from hypothesis import find
    >>> invalid = find(invalid_payloads(), lambda invalid: invalid.code == "layout")
    >>> invalid.path
    ('pixel_values',)
    """
    return broken(
        FrozenMapping,
        st.fixed_dictionaries({"values": payloads()}),
        [wrong_payload("values", at_root=True), _at_root_not_a_mapping],
    )


def wrong_payload(name: str, *, at_root: bool = False) -> Defect:
    """A payload that cannot be carried, in place of an argument."""

    def put_in(draw: DrawFn, arguments: dict[str, Any]) -> tuple[Path, str]:
        arguments[name], path, code = draw(bad_payloads())
        return (path if at_root else (name, *path)), code

    return put_in


def invalid_tensor_handles() -> SearchStrategy[Invalid]:
    """Handles of unknown kind, or with a payload other than they declare."""
    return broken(
        TensorHandle,
        _handle_arguments(),
        [
            wrong("kind", st.sampled_from([1, b"local"]) | NONE, "type"),
            wrong("kind", st.sampled_from(["", "Local", "cuda"]), "unknown"),
            wrong("dtype", st.sampled_from(["float32", np.dtype("f4"), float]) | NONE, "type"),
            wrong("shape", NOT_SEQUENCES | NONE, "type"),
            wrong_element("shape", NOT_INTS | NONE, "type"),
            wrong_element("shape", NEGATIVE, "range"),
            wrong("payload", st.sampled_from([b"", 0, (1.0, 2.0)]) | NONE, "type"),
            wrong("payload", st.builds(sparse_tensor), "layout"),
            wrong("payload", st.builds(torch.zeros, st.just((3, 1))), "shape"),
            wrong("payload", st.builds(torch.zeros, st.just((2, 1)), dtype=_OTHER_DTYPES), "shape"),
            _remote_kind,
        ],
    )


_OTHER_DTYPES: Final = st.sampled_from([torch.float16, torch.int32])


@st.composite
def _bad_values(draw: DrawFn) -> tuple[object, Path, str]:
    """A bad value at some depth, its path and code."""
    if draw(st.booleans()):
        return draw(_too_deep() | _bad_keys())
    value, code = draw(_BAD_LEAVES)
    path: list[str | int] = []
    for _ in range(draw(st.integers(0, 3))):
        if draw(st.booleans()):
            before = draw(st.lists(payload_values(), max_size=2))
            value = [*before, value]
            path.insert(0, len(before))
        else:
            key = draw(field_names())
            value = {**draw(payloads()), key: value}
            path.insert(0, key)
    return value, tuple(path), code


@st.composite
def _too_deep(draw: DrawFn) -> tuple[object, Path, str]:
    """A value that, inside of one mapping, is nested deeper than a payload may be."""
    value: object = None
    path: list[str | int] = []
    for _ in range(MAX_PAYLOAD_DEPTH):
        if draw(st.booleans()):
            value = [value]
            path.insert(0, 0)
        else:
            value = {"inner": value}
            path.insert(0, "inner")
    # The innermost container is the one too many: the problem is where that stands.
    return value, tuple(path[:-1]), "depth"


@st.composite
def _bad_keys(draw: DrawFn) -> tuple[object, Path, str]:
    """Mappings with a key that is no text, reported where the mapping is, or no legal text."""
    if draw(st.booleans()):
        return {draw(st.sampled_from([1, None, b"image", ("image", 0)])): 1}, (), "type"
    key = draw(st.sampled_from(["\ud800", "a\udfff"]))
    return {key: draw(payload_values())}, (key,), "format"


def _at_root_not_a_mapping(draw: DrawFn, arguments: dict[str, Any]) -> tuple[Path, str]:
    arguments["values"] = draw(NOT_MAPPINGS | NONE)
    return (), "type"


def _handle_arguments() -> SearchStrategy[Mapping[str, object]]:
    return st.builds(
        lambda payload: {
            "kind": "local",
            "dtype": torch.float32,
            "shape": (2, 1),
            "payload": payload,
        },
        st.builds(torch.zeros, st.just((2, 1))),
    )


def _remote_kind(draw: DrawFn, arguments: dict[str, Any]) -> tuple[Path, str]:
    """A tensor itself where only a reference to one can stand."""
    arguments["kind"] = draw(st.sampled_from(["arena", "cuda_ipc"]))
    return ("payload",), "type"
