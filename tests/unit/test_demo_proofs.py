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

from omniwire.demo.leftovers import left_behind, take_snapshot
from omniwire.demo.proofs import prove
from omniwire.demo.reports import ExecutorReport, IterationRow, Outcome, ProcessorReport

PROCESSOR = ProcessorReport(
    name="processor 0",
    pid=11,
    media=[],
    request_fields=[],
    request_hashes={"r": "aa" * 32},
    num_misplaced=0,
    output_fields=[],
    output_hashes={"r": "bb" * 32},
    num_chunks=3,
    output_errors=[],
    retained_bytes=0,
    saved_to="",
    transport={},
    timings=[],
)
EXECUTOR = ExecutorReport(
    name="executor 0",
    pid=12,
    request_hashes={"r": "aa" * 32},
    tensor_bytes=90,
    budget_encoder_tokens=64,
    iterations=[IterationRow("image 0", 1, 1, 16, 4, 0, 90)],
    num_distinct_items=1,
    max_item_difference=1e-7,
    max_fused_difference=1e-7,
    tolerance=1e-4,
    num_windows=2,
    num_window_views=1,
    kept_bytes=8,
    streamed_hashes={"r": "bb" * 32},
    timings=[],
)

OWN = "processors and executors are processes of their own"
ARRIVED = "every request arrived as it was sent, bit for bit"
PLACED = "the items found in each prompt are its media, in their order"
ONCE = "each executor encoded every distinct item once"
ITEMS = "item-by-item encoding equals full-request encoding"
FUSED = "prefill read the right embedding row at every token"
STREAMED = "every final output is what was streamed, bit for bit"
NOTHING = "nothing is left behind"


def failed_claims(
    processor: ProcessorReport = PROCESSOR,
    executor: ExecutorReport = EXECUTOR,
    own_pid: int = 10,
    left: tuple[str, ...] = (),
) -> list[str]:
    proofs = prove(Outcome([processor], [executor], list(left)), own_pid)
    assert [proof.claim for proof in proofs] == [
        OWN, ARRIVED, PLACED, ONCE, ITEMS, FUSED, STREAMED, NOTHING,
    ]  # fmt: skip
    return [proof.claim for proof in proofs if not proof.holds]


def test_all_proofs_hold_for_a_good_run() -> None:
    assert failed_claims() == []


@pytest.mark.parametrize(
    ("fields", "claim"),
    [
        ({"request_hashes": {"r": "cc" * 32}}, ARRIVED),
        ({"request_hashes": {"r": "aa" * 32, "s": "cc" * 32}}, ARRIVED),
        ({"num_misplaced": 1}, PLACED),
        ({"output_hashes": {"r": "cc" * 32}}, STREAMED),
        ({"output_hashes": {}}, STREAMED),
        ({"output_errors": ["audio: x"]}, STREAMED),
        ({"retained_bytes": 1}, NOTHING),
    ],
)
def test_what_a_processor_saw_fails_its_proof(fields: dict[str, object], claim: str) -> None:
    processor = dataclasses.replace(PROCESSOR, **fields)  # type: ignore[arg-type]
    assert failed_claims(processor) == [claim]


@pytest.mark.parametrize(
    ("fields", "claim"),
    [
        ({"request_hashes": {}}, ARRIVED),
        ({"num_distinct_items": 2}, ONCE),
        ({"iterations": [IterationRow("image 0, image 1", 2, 2, 32, 8, 0, 90)]}, ONCE),
        ({"max_item_difference": 2e-4}, ITEMS),
        ({"max_item_difference": math.nan}, ITEMS),
        ({"max_fused_difference": math.inf}, FUSED),
        ({"max_fused_difference": math.nan}, FUSED),
        ({"streamed_hashes": {"r": "cc" * 32}}, STREAMED),
    ],
)
def test_what_an_executor_saw_fails_its_proof(fields: dict[str, object], claim: str) -> None:
    executor = dataclasses.replace(EXECUTOR, **fields)  # type: ignore[arg-type]
    assert failed_claims(executor=executor) == [claim]


def test_every_executor_is_held_to_its_own_figures() -> None:
    other = dataclasses.replace(
        EXECUTOR, pid=13, request_hashes={}, streamed_hashes={}, max_item_difference=1.0
    )
    proofs = prove(Outcome([PROCESSOR], [EXECUTOR, other], []), 10)
    assert [proof.claim for proof in proofs if not proof.holds] == [ITEMS]


@pytest.mark.parametrize("own_pid", [11, 12])
def test_a_shared_process_fails_its_proof(own_pid: int) -> None:
    assert failed_claims(own_pid=own_pid) == [OWN]


def test_leftovers_fail_their_proof() -> None:
    assert failed_claims(left=("child process 5",)) == [NOTHING]


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
