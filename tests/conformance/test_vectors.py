"""Golden messages: every version still reads them, and refuses what it refused."""

import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch

from omniwire import contracts
from omniwire.contracts import ChunkKind, DecodeError, FrozenMapping, TokenIds
from omniwire.contracts.errors import DECODE_CODES, WIRE_ERRORS
from omniwire.serialization import decode, dumps, loads
from omniwire.serialization.dtypes import NUMPY_CODES, TORCH_CODES

Vector = dict[str, Any]
Plain = Callable[[object], Any]

GENERATOR = Path(__file__).parent / "generator" / "make.py"

SEALED = (432, "0bc696f08306e83e6b6f5d4a23e81032487325c1c859fb559d465b654e737db6")
"""How many entries of the manifest can never change, and their digest.

Vectors are added at the end. Whoever adds some may seal them too: the message of the failing test
has the digest.
"""


class Builder:
    """Builds an object from the plain form: through the constructors, not by decoding.

    The same tensor again in one object is the same tensor.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, object] = {}

    def build(self, plain: Any) -> Any:
        if isinstance(plain, list):
            return tuple(map(self.build, plain))
        if not isinstance(plain, dict):
            return plain
        if "tensor" in plain or "array" in plain:
            key = json.dumps(plain)
            if key not in self.tensors:
                self.tensors[key] = self._tensor(plain)
            return self.tensors[key]
        if "record" in plain:
            return self._record(plain["record"], plain["fields"])
        if "error" in plain:
            return WIRE_ERRORS[plain["error"]](*map(_tupled, plain["arguments"]))
        ((kind, value),) = plain.items()
        if kind == "map":
            return {key: self.build(item) for key, item in value.items()}
        if kind == "float":
            return struct.unpack(">d", bytes.fromhex(value))[0]
        if kind == "bytes":
            return bytes.fromhex(value)
        if kind == "token_ids":
            return TokenIds(value)
        assert kind == "dtype"
        return getattr(torch, value)

    def _record(self, name: str, fields: dict[str, Any]) -> Any:
        values = {key: self.build(value) for key, value in fields.items()}
        if name == "OutputChunk":
            values["kind"] = ChunkKind(values["kind"])
        return getattr(contracts, name)(**values)

    @staticmethod
    def _tensor(plain: dict[str, Any]) -> object:
        flat = np.frombuffer(bytearray.fromhex(plain["bytes"]), np.uint8)
        if "array" in plain:
            return flat.view(plain["array"]).reshape(plain["shape"])
        dtype = getattr(torch, plain["tensor"])
        return torch.from_numpy(flat).view(dtype).view(plain["shape"])


def built(vector: Vector) -> Any:
    value = Builder().build(vector["content"])
    return FrozenMapping(value) if vector["type"] == "FrozenMapping" else value


def _tupled(value: Any) -> Any:
    return tuple(map(_tupled, value)) if isinstance(value, list) else value


def frames_of(blob: bytes) -> list[bytes]:
    """The frames of a sound one-buffer form."""
    (count,) = struct.unpack_from("<Q", blob, 8)
    frames = []
    end = 16 + 8 * count
    for size in struct.unpack_from(f"<{count}Q", blob, 16):
        start = -(-end // 64) * 64
        end = start + size
        frames.append(blob[start:end])
    return frames


class TestTheManifest:
    def test_names_each_file_once(self, manifest: list[Vector], vectors: Path) -> None:
        files = [path.relative_to(vectors).as_posix() for path in vectors.glob("*/*")]
        assert sorted(files) == sorted(vector["file"] for vector in manifest)

    def test_files_are_what_they_were(self, manifest: list[Vector], vectors: Path) -> None:
        for vector in manifest:
            content = (vectors / vector["file"]).read_bytes()
            assert hashlib.sha256(content).hexdigest() == vector["sha256"], vector["file"]

    def test_entries_are_what_they_were(self, vectors: Path) -> None:
        lines = (vectors / "manifest.json").read_bytes().splitlines()[1:-1]
        count, digest = SEALED
        found = hashlib.sha256(b"\n".join(line.rstrip(b",") for line in lines[:count])).hexdigest()
        sealed = hashlib.sha256(b"\n".join(line.rstrip(b",") for line in lines)).hexdigest()
        assert found == digest, f"all of them: SEALED = ({len(lines)}, {sealed!r})"


class TestValid:
    def test_is_read_as_what_it_was(self, valid: Vector, vectors: Path, plain: Plain) -> None:
        blob = (vectors / valid["file"]).read_bytes()
        obj = loads(blob)
        assert type(obj).__name__ == valid["type"]
        assert plain(obj) == valid["content"]
        assert obj == built(valid)
        assert plain(decode(frames_of(blob), copy=True)) == valid["content"]
        assert plain(loads(dumps(obj))) == valid["content"]

    def test_is_written_as_it_was(self, valid: Vector, vectors: Path) -> None:
        exact = dumps(built(valid)) == (vectors / valid["file"]).read_bytes()
        assert exact or not valid["exact"]


def test_refused(refused: Vector, vectors: Path) -> None:
    with pytest.raises(DecodeError) as caught:
        loads((vectors / refused["file"]).read_bytes())
    assert caught.value.code == refused["code"]


def parts(plain: Any) -> Iterator[tuple[str, Any]]:
    """What occurs in a plain form: ("record", "Concat"), ("tensor", "int8") ..."""
    if isinstance(plain, list):
        for item in plain:
            yield from parts(item)
    elif isinstance(plain, dict):
        keys = {"record", "error", "tensor", "array"}.intersection(plain)
        yield from ((key, plain[key]) for key in keys)
        for key, value in plain.items():
            yield from parts(list(value.values()) if key in ("map", "fields") else value)


class TestNothingIsLeftOut:
    def occurring(self, manifest: list[Vector], kind: str) -> set[str]:
        return {name for vector in manifest for key, name in parts(vector) if key == kind}

    def test_types(self, manifest: list[Vector]) -> None:
        kinds = {name for name, kind in vars(contracts).items() if attrs.has(kind)}
        assert {vector.get("type") for vector in manifest} >= {*kinds, "FrozenMapping", "ItemRef"}
        assert self.occurring(manifest, "record") >= kinds - {"TokenIds"} | {"ItemRef"}

    def test_data_types(self, manifest: list[Vector]) -> None:
        names = {str(dtype).removeprefix("torch.") for dtype in TORCH_CODES}
        assert self.occurring(manifest, "tensor") == names
        assert self.occurring(manifest, "array") == {dtype.name for dtype in NUMPY_CODES}

    def test_errors(self, manifest: list[Vector]) -> None:
        assert self.occurring(manifest, "error") == set(WIRE_ERRORS)

    def test_codes(self, manifest: list[Vector]) -> None:
        assert {vector["code"] for vector in manifest if "code" in vector} == set(DECODE_CODES)


class TestTheGenerator:
    def run(self, folder: Path) -> subprocess.CompletedProcess[str]:
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"}
        command = [sys.executable, str(GENERATOR), str(folder)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    def test_makes_these_vectors(self, vectors: Path, tmp_path: Path) -> None:
        """From nothing but the specification, so that they are no copy of what the code does."""
        made = self.run(tmp_path)
        assert made.returncode == 0, made.stderr
        manifest = (tmp_path / "manifest.json").read_text()
        assert manifest == (vectors / "manifest.json").read_text()

    def test_changes_nothing_that_is_there(self, vectors: Path, tmp_path: Path) -> None:
        folder = tmp_path / "vectors"
        shutil.copytree(vectors, folder)
        manifest = folder / "manifest.json"
        text = manifest.read_text().replace('"description": "a reference"', '"description": "old"')
        manifest.write_text(text)
        refusal = self.run(folder)
        assert (refusal.returncode, manifest.read_text()) == (1, text)
        assert "valid/item-ref.omni" in refusal.stderr

    def test_overwrites_no_file(self, tmp_path: Path) -> None:
        file = tmp_path / "valid" / "item-ref.omni"
        file.parent.mkdir()
        file.write_bytes(b"mine")
        assert self.run(tmp_path).returncode != 0
        assert file.read_bytes() == b"mine"
