"""The demo's proofs: each fails when what it claims is not so."""

import contextlib
import dataclasses
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from omniwire.demo.events import ExecutorReport, IterationRow, ProcessorReport
from omniwire.demo.leftovers import left_behind, take_snapshot
from omniwire.demo.proofs import prove

PROCESSOR = ProcessorReport(
    pid=11,
    media=[],
    sent_fields=[],
    sent_bytes=100,
    sent_hash="aa" * 32,
    echo_equal=True,
    output_fields=[],
    output_hash="bb" * 32,
    num_chunks=3,
    chunk_bytes=300,
    output_errors=[],
    retained_bytes=0,
    saved_to="",
    timings=[],
)
EXECUTOR = ExecutorReport(
    pid=12,
    received_hash="aa" * 32,
    tensor_bytes=90,
    aliased_bytes=90,
    budget_encoder_tokens=64,
    iterations=[IterationRow(["image 0"], 16, 4, 0, 90)],
    max_difference=1e-7,
    tolerance=1e-4,
    num_windows=2,
    num_window_views=1,
    windows_equal=True,
    kept_bytes=8,
    streamed_hash="bb" * 32,
    timings=[],
)


def failed_claims(
    processor: ProcessorReport = PROCESSOR,
    executor: ExecutorReport = EXECUTOR,
    own_pid: int = 10,
    left: tuple[str, ...] = (),
) -> list[str]:
    proofs = prove(processor, executor, own_pid, list(left))
    return [proof.claim for proof in proofs if not proof.holds]


def test_all_proofs_hold_for_a_good_run() -> None:
    assert failed_claims() == []


@pytest.mark.parametrize(
    "fields",
    [{"sent_hash": "cc" * 32}, {"echo_equal": False}],
)
def test_a_changed_request_fails_its_proof(fields: dict[str, object]) -> None:
    processor = dataclasses.replace(PROCESSOR, **fields)  # type: ignore[arg-type]
    assert failed_claims(processor) == ["what arrived equals what was sent, bit for bit"]


@pytest.mark.parametrize("difference", [2e-4, math.inf, math.nan])
def test_a_difference_beyond_the_tolerance_fails_its_proof(difference: float) -> None:
    executor = dataclasses.replace(EXECUTOR, max_difference=difference)
    assert failed_claims(executor=executor) == [
        "item-by-item encoding equals full-request encoding"
    ]


def test_windows_that_miss_a_row_fail_their_proof() -> None:
    executor = dataclasses.replace(EXECUTOR, windows_equal=False)
    assert failed_claims(executor=executor) == [
        "chunked prefill saw every embedding row once, in order"
    ]


@pytest.mark.parametrize("fields", [{"output_hash": "cc" * 32}, {"output_errors": ["audio: x"]}])
def test_a_changed_output_fails_its_proof(fields: dict[str, object]) -> None:
    processor = dataclasses.replace(PROCESSOR, **fields)  # type: ignore[arg-type]
    assert failed_claims(processor) == ["the final output is what was streamed, bit for bit"]


@pytest.mark.parametrize("own_pid", [11, 12])
def test_a_shared_process_fails_its_proof(own_pid: int) -> None:
    assert failed_claims(own_pid=own_pid) == [
        "the processor and the executor are processes of their own"
    ]


def test_leftovers_and_retained_bytes_fail_their_proof() -> None:
    assert failed_claims(left=("child process 5",)) == ["nothing is left behind"]
    processor = dataclasses.replace(PROCESSOR, retained_bytes=1)
    assert failed_claims(processor) == ["nothing is left behind"]


@contextlib.contextmanager
def _child() -> Iterator[str]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        yield f"child process {process.pid}"
    finally:
        process.communicate()


@contextlib.contextmanager
def _descriptor() -> Iterator[str]:
    number = os.open("/", os.O_RDONLY)
    try:
        yield f"descriptor {number} on /"
    finally:
        os.close(number)


@contextlib.contextmanager
def _orphaned_shared_memory() -> Iterator[str]:
    memory = Path("/dev/shm") / f"omniwire-test-{os.getpid()}"
    memory.touch()
    try:
        yield f"shared memory {memory.name}"
    finally:
        memory.unlink()


@pytest.mark.parametrize("leftover", [_child, _descriptor, _orphaned_shared_memory])
def test_a_leftover_is_found_and_named(
    leftover: "type[contextlib.AbstractContextManager[str]]", tmp_path: Path
) -> None:
    before = take_snapshot()
    with leftover() as expected:
        assert expected in left_behind(before, take_snapshot(), str(tmp_path))
    assert left_behind(before, take_snapshot(), str(tmp_path)) == []


def test_shared_memory_that_a_living_program_has_open_is_its_own(tmp_path: Path) -> None:
    before = take_snapshot()
    with _orphaned_shared_memory() as expected, (Path("/dev/shm") / expected.split()[-1]).open():
        found = left_behind(before, take_snapshot(), str(tmp_path))
    assert not any(name.startswith("shared memory") for name in found)


def test_a_temporary_file_is_found_and_named(tmp_path: Path) -> None:
    snapshot = take_snapshot()
    (tmp_path / "forgotten").touch()
    assert left_behind(snapshot, snapshot, str(tmp_path)) == ["temporary file forgotten"]
