"""The golden vectors, and what a decoded object is in the plain form of their manifest."""

import ctypes
import functools
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch

from omniwire.contracts import (
    ChunkKind,
    FrozenMapping,
    ItemRef,
    OmniwireError,
    TokenIds,
)

Vector = dict[str, Any]
FOLDER = Path(__file__).parent / "vectors"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test of a `valid` or a `refused` vector runs once for each of them."""
    for name, mark in (("valid", "content"), ("refused", "code")):
        if name in metafunc.fixturenames:
            vectors = [vector for vector in _manifest() if mark in vector]
            files = [Path(vector["file"]).stem for vector in vectors]
            metafunc.parametrize(name, vectors, ids=files)


@functools.cache
def _manifest() -> list[Vector]:
    """The entries of the manifest, repeated bytes written out."""
    text = (FOLDER / "manifest.json").read_text(encoding="utf-8")
    vectors: list[Vector] = json.loads(text, object_hook=_written_out)
    return vectors


def _written_out(value: dict[str, Any]) -> dict[str, Any]:
    content = value.get("bytes")
    if type(content) is str and "*" in content:
        unit, size = content.split("*")
        digits = 2 * int(size)
        value["bytes"] = (unit * (digits // len(unit) + 1))[:digits]
    return value


@pytest.fixture(scope="session")
def manifest() -> list[Vector]:
    return _manifest()


@pytest.fixture(scope="session")
def vectors() -> Path:
    """The folder of the vectors."""
    return FOLDER


@pytest.fixture(scope="session")
def plain() -> Callable[[object], Any]:
    """Turns an object into the plain form of the manifest."""
    return _plain


def _plain(value: object) -> Any:
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return {"float": struct.pack(">d", value).hex()}
    if type(value) is bytes:
        return {"bytes": value.hex()}
    if type(value) is tuple:
        return [_plain(item) for item in value]
    if type(value) is FrozenMapping:
        return {"map": {key: _plain(item) for key, item in value.items()}}
    if type(value) is TokenIds:
        return {"token_ids": list(value)}
    if type(value) is torch.Tensor:
        assert value.is_contiguous()
        content = ctypes.string_at(value.data_ptr(), value.nbytes) if value.nbytes else b""
        return {"tensor": _name(value.dtype), "shape": list(value.shape), "bytes": content.hex()}
    if type(value) is np.ndarray:
        name, content = value.dtype.name, value.tobytes()
        return {"array": name, "shape": list(value.shape), "bytes": content.hex()}
    if type(value) is torch.dtype:
        return {"dtype": _name(value)}
    if type(value) is ChunkKind:
        return value.value
    if isinstance(value, OmniwireError):
        _, arguments = value.__reduce__()[:2]
        return {"error": type(value).__name__, "arguments": _listed(arguments)}
    return {"record": type(value).__name__, "fields": _fields(value)}


def _fields(record: Any) -> dict[str, Any]:
    if type(record) is ItemRef:
        return {"modality": record.modality, "index": record.index}
    names = [field.name for field in attrs.fields(type(record)) if field.name != "encoder_state"]
    fields = {name: getattr(record, name) for name in names}
    refs = fields.pop("item_refs", None)
    return {
        **({} if refs is None else {"item_refs": [list(ref) for ref in refs]}),
        **{name: _plain(value) for name, value in fields.items()},
    }


def _listed(value: object) -> object:
    return list(map(_listed, value)) if isinstance(value, tuple) else value


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
