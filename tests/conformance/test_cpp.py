"""A second reader and writer, in C++, made from docs/reference/wire-format.md alone.

Skipped where it cannot be built: it needs a C++ compiler and msgpack's headers (Debian:
libmsgpack-cxx-dev). Built with CMake if that is there; under the sanitizers if CI is set.
"""

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as hypothesis_strategies

from omniwire.serialization import dumps, loads
from omniwire.testing import strategies as st

Vector = dict[str, Any]
Plain = Callable[[object], Any]

SOURCES = Path(__file__).parent / "cpp"
BUILD = Path(__file__).parents[2] / "build" / "conformance"
SANITIZE = bool(os.environ.get("CI"))
HANDLES = ("arena", "cuda_ipc")


class Program:
    """The program: what it prints, a line of JSON for each file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, command: str, *files: Path) -> list[Any]:
        done = subprocess.run(
            [self.path, command, *files], capture_output=True, text=True, check=False
        )
        assert done.returncode in (0, 1), done.stderr
        shown = [json.loads(line) for line in done.stdout.split("\n") if line]
        assert done.returncode == any("refused" in line for line in shown)
        return shown


@pytest.fixture(scope="module")
def program() -> Program:
    compiler = next(filter(shutil.which, [os.environ.get("CXX", "c++"), "g++", "clang++"]), None)
    if compiler is None:
        pytest.skip("no C++ compiler: the reader in C++ is not built")
    probe = [compiler, "-std=c++17", "-DMSGPACK_NO_BOOST", "-fsyntax-only", "-x", "c++", "-"]
    tried = subprocess.run(
        probe, input=b"#include <msgpack.hpp>\n", capture_output=True, check=False
    )
    if tried.returncode:
        pytest.skip("no msgpack-cxx headers (libmsgpack-cxx-dev): the reader in C++ is not built")
    parts = [path.read_bytes() for path in sorted(SOURCES.iterdir())]
    key = hashlib.sha256(b"\0".join([*parts, compiler.encode(), bytes([SANITIZE])])).hexdigest()
    built = BUILD / key[:16] / "conformance"
    if not built.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILD) as folder:
            _build(compiler, Path(folder))
            built.parent.mkdir(exist_ok=True)
            (Path(folder) / "conformance").replace(built)
    return Program(built)


def _build(compiler: str, folder: Path) -> None:
    if shutil.which("cmake"):
        options = [f"-DCMAKE_CXX_COMPILER={compiler}", f"-DSANITIZE={'ON' if SANITIZE else 'OFF'}"]
        commands = [
            ["cmake", "-S", str(SOURCES), "-B", str(folder), *options],
            ["cmake", "--build", str(folder), "--parallel", "2"],
        ]
    else:
        warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
        files = map(str, sorted(SOURCES.glob("*.cpp")))
        start = [compiler, "-std=c++17", "-O1", *warnings, "-DMSGPACK_NO_BOOST"]
        commands = [[*start, "-o", str(folder / "conformance"), *files]]
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def copies(program: Program, files: Sequence[Path], folder: Path) -> list[Path]:
    """The same messages, decoded and encoded by the program."""
    written = [folder / f"{index}.omni" for index in range(len(files))]
    pairs = zip(files, written, strict=True)
    program("copy", *(path for pair in pairs for path in pair))
    return written


def valid(manifest: list[Vector], vectors: Path) -> tuple[list[Vector], list[Path]]:
    found = [vector for vector in manifest if "content" in vector]
    return found, [vectors / vector["file"] for vector in found]


def test_reads_every_valid_vector(program: Program, manifest: list[Vector], vectors: Path) -> None:
    found, files = valid(manifest, vectors)
    for vector, shown in zip(found, program("read", *files), strict=True):
        assert shown == vector["content"], vector["file"]


def test_what_it_writes_is_read_back_equal(
    program: Program, manifest: list[Vector], vectors: Path, plain: Plain, tmp_path: Path
) -> None:
    found, files = valid(manifest, vectors)
    written = copies(program, files, tmp_path)
    for vector, file, shown in zip(found, written, program("read", *written), strict=True):
        assert plain(loads(file.read_bytes())) == vector["content"], vector["file"]
        assert shown == vector["content"], vector["file"]


def test_refuses_every_other_vector_with_its_code(
    program: Program, manifest: list[Vector], vectors: Path
) -> None:
    found = [vector for vector in manifest if "code" in vector]
    files = [vectors / vector["file"] for vector in found]
    for vector, shown in zip(found, program("read", *files), strict=True):
        assert shown == {"refused": vector["code"]}, vector["file"]


def test_what_it_makes_of_any_object_is_read_back_equal(
    program: Program, plain: Plain, tmp_path: Path
) -> None:
    objects: list[object] = []

    @given(
        hypothesis_strategies.one_of(
            st.payloads(handle_kinds=HANDLES),
            st.processed_requests(handle_kinds=HANDLES),
            st.multimodal_params(handle_kinds=HANDLES),
            st.disaggregated_params(handle_kinds=HANDLES),
            st.output_chunks(handle_kinds=HANDLES),
            st.request_outputs(handle_kinds=HANDLES),
            st.output_specs(),
        )
    )
    @settings(
        max_examples=150,
        phases=[Phase.generate],
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def collect(obj: object) -> None:
        objects.append(obj)

    collect()
    files = [tmp_path / f"object-{index}.omni" for index in range(len(objects))]
    for file, obj in zip(files, objects, strict=True):
        file.write_bytes(dumps(obj))
    written = copies(program, files, tmp_path)
    for obj, file, shown in zip(objects, written, program("read", *files), strict=True):
        decoded = loads(file.read_bytes())
        assert decoded == obj
        assert shown == plain(decoded)
