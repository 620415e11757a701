"""The fixtures for pytest: what they give, what they find, and what they cost who needs none."""

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import omniwire as ow
from omniwire.testing import golden, leftovers

pytest_plugins = ["pytester"]
PLUGIN = "omniwire.testing.plugin"


# What a run in this process would import first is forgotten when it ends: not so these.
assert golden.__name__ in sys.modules
assert ow.__all__


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch):
    monkeypatch.setattr(leftovers, "_PATIENCE_S", 0.1)


@pytest.fixture
def run(pytester):
    """Run a test module in this process; the outcomes, and the text of the terminal."""

    def run_module(source, *arguments, **outcomes):
        pytester.makepyfile(test_it=source)
        options = ("-p", PLUGIN, "-p", "no:cacheprovider", "-W", "error", "--strict-config")
        result = pytester.runpytest_inprocess(*options, *arguments)
        result.assert_outcomes(**outcomes)
        return result.stdout.str()

    return run_module


# ---- a suite that uses nothing of it -------------------------------------------------------


def test_the_installed_package_names_the_plugin():
    (found,) = entry_points(group="pytest11", name=PLUGIN)
    assert found.value == PLUGIN


def run_apart(pytester, *arguments):
    """Run in a process of its own, which has imported nothing; the lines without the time."""
    result = pytester.runpytest_subprocess(*arguments, "-p", "no:cacheprovider", "-q")
    assert result.ret == 0
    return [line.partition(" in ")[0] for line in result.outlines]


def test_nothing_is_imported_for_a_suite_that_uses_none_of_it(pytester):
    pytester.makepyfile(
        test_it=f"""
        import sys
        def test_nothing():
            assert "{PLUGIN}" in sys.modules
            assert not {{"torch", "numpy", "omniwire.contracts"}} & sys.modules.keys()
        """
    )
    run_apart(pytester, "-p", PLUGIN)


def test_nothing_is_printed_for_a_suite_that_uses_none_of_it(pytester):
    pytester.makepyfile(test_it="def test_nothing(): pass")
    with_it = run_apart(pytester, "-p", PLUGIN)
    assert with_it[-1] == "1 passed"
    assert with_it == run_apart(pytester, "-p", f"no:{PLUGIN}")


def test_the_flag_is_explained(pytester):
    result = pytester.runpytest_inprocess("-p", PLUGIN, "--help")
    assert "--update-golden" in result.stdout.str()


# ---- a pair of channels ---------------------------------------------------------------------


def test_a_channel_pair_is_connected_and_closed_afterwards(run):
    run(
        """
        import omniwire as ow
        import pytest
        ends = []
        def test_open(channel_pair):
            a, b = channel_pair
            a.send(ow.ProcessedRequest("r1", [1, 2]))
            assert b.recv(timeout=5).request_id == "r1"
            ends.extend(channel_pair)
        def test_closed():
            for end in ends:
                with pytest.raises(ow.HandoffError, match="got a closed one"):
                    end.recv(timeout=5)
        """,
        passed=2,
    )


SEND = """
import omniwire as ow, pytest, torch
kept = []
def send(pair, size=1 << 18):
    a, b = pair
    rows = torch.ones(size)
    a.send(ow.ProcessedRequest("r", [1], ow.MultimodalParams.from_embeddings([rows[:, None]])))
    return b.recv(timeout=5)
"""


@pytest.mark.parametrize(
    "fixtures",
    [
        "channel_pair, no_leaked_segments, no_leaked_descriptors",
        "no_leaked_descriptors, no_leaked_segments, channel_pair",
        "no_leaked_segments, channel_pair, no_leaked_descriptors",
    ],
)
def test_a_pair_leaves_nothing_behind_in_whichever_order_the_fixtures_are(run, fixtures):
    run(
        SEND
        + f"""
def test_it({fixtures}):
    received = send(channel_pair)
    assert received.multimodal_params.embeddings
""",
        passed=1,
    )


def test_a_tensor_that_is_kept_is_a_segment_that_is_left(run):
    text = run(
        SEND
        + """
def test_it(channel_pair, no_leaked_segments):
    kept.append(send(channel_pair))
def test_that_it_does_not_bother_the_next(channel_pair, no_leaked_segments):
    send(channel_pair)
def test_end():
    kept.clear()
""",
        passed=3,
        errors=1,
    )
    assert "left behind: a mapping of an arena (" in text


def test_a_named_segment_that_is_left(run):
    text = run(
        """
        from multiprocessing import shared_memory
        import pytest
        @pytest.fixture(scope="module")
        def kept():
            kept = []
            yield kept
            for memory in kept:
                memory.close()
                memory.unlink()
        def test_it(kept, no_leaked_segments):
            kept.append(shared_memory.SharedMemory(create=True, size=5000))
        def test_that_is_tidy(no_leaked_segments, no_leaked_descriptors):
            memory = shared_memory.SharedMemory(create=True, size=5000)
            memory.close()
            memory.unlink()
        """,
        passed=2,
        errors=1,
    )
    assert "left behind: /dev/shm/psm_" in text
    assert "(5000 bytes)" in text


def test_a_segment_of_another_program_is_not_ours():
    program = """
import os, sys, subprocess
code = '''
import sys
from multiprocessing import resource_tracker, shared_memory
memory = shared_memory.SharedMemory(create=True, size=100)
print(memory._name, flush=True)
sys.stdin.readline()
memory.close()
memory.unlink()
'''
child = subprocess.Popen([sys.executable, "-c", code], stdin=sys.stdin, start_new_session=True)
os._exit(0)  # nobody's child any more
"""
    before = leftovers.segments()
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with parent:
        name = parent.stdout.readline().strip()
        now = leftovers.segments()
        assert [key for key in now if key[0] == f"/dev/shm{name}"]
        assert leftovers.wait_until_gone(before, leftovers.segments) == []
        parent.stdin.write("\n")


def test_a_descriptor_that_is_left(run, tmp_path):
    text = run(
        f"""
        import os
        kept = []
        def test_it(no_leaked_descriptors):
            kept.append(open({str(tmp_path / "a file")!r}, "w"))
        def test_end(no_leaked_descriptors):
            kept.pop().close()
        """,
        passed=2,
        errors=1,
    )
    assert "left behind: descriptor " in text
    assert f" of {tmp_path / 'a file'}" in text


def test_garbage_is_not_left_behind(run):
    run(
        SEND
        + """
class Cycle:
    pass
def test_it(channel_pair, no_leaked_segments, no_leaked_descriptors):
    cycle = Cycle()
    cycle.itself, cycle.received = cycle, send(channel_pair)
""",
        passed=1,
    )


def test_what_multiprocessing_keeps_open_is_not_left_behind(run):
    """Its servers start with the first child, and stay."""
    run(
        """
        import multiprocessing
        def test_it(no_leaked_descriptors):
            for method in ("spawn", "forkserver"):
                context = multiprocessing.get_context(method)
                child = context.Process(target=print)
                child.start()
                child.join()
                child.close()
            from multiprocessing import forkserver
        def test_end():
            from multiprocessing import forkserver
            forkserver._forkserver._stop()
        """,
        passed=2,
    )


def test_a_test_that_has_failed_is_not_looked_at(run):
    text = run(
        SEND
        + """
def test_failed(channel_pair, no_leaked_segments, no_leaked_descriptors):
    received = send(channel_pair)
    assert received is None
@pytest.mark.xfail(strict=True)
def test_expected(channel_pair, no_leaked_segments):
    received = send(channel_pair)
    assert received is None
def test_skipped(channel_pair, no_leaked_segments):
    received = send(channel_pair)
    pytest.skip("no device")
""",
        failed=1,
        xfailed=1,
        skipped=1,
    )
    assert "left behind" not in text


# ---- golden messages ------------------------------------------------------------------------

GOLDEN = """
import omniwire as ow, pytest, torch
def request(*tokens, pixels=1.0):
    data = {"image": {"pixels": torch.tensor([0.0, pixels])}}
    return ow.ProcessedRequest("r1", tokens, ow.MultimodalParams(multimodal_data=data))
"""
ONE = (
    GOLDEN
    + """
def test_one(golden_message):
    golden_message(request(1, 2))
"""
)
STORED = Path("golden", "test_it", "test_one.omniwire")


def test_a_missing_message_says_how_to_store_it(run):
    text = run(ONE, failed=1)
    assert f"{STORED}: expected a stored message, found none" in text
    assert "run pytest with --update-golden" in text
    assert not STORED.exists()


def test_a_message_is_stored_once_and_compared_from_then_on(run):
    run(ONE, "--update-golden", passed=1)
    assert ow.load(STORED).prompt_token_ids == (1, 2)
    assert [path.name for path in STORED.parent.iterdir()] == [STORED.name]
    run(ONE, passed=1)
    text = run(ONE.replace("1, 2", "1, 2, pixels=3.0"), failed=1)
    assert f"{STORED}: the object is not what is stored: ProcessedRequest: 1 difference" in text
    assert "$.multimodal_params.multimodal_data.image.pixels: expected 1.0 at [1], got 3.0" in text
    assert "run pytest with --update-golden" in text
    assert ow.load(STORED).prompt_token_ids == (1, 2)


def test_a_message_that_differs_is_replaced_and_one_that_does_not_stays(run):
    run(ONE, "--update-golden", passed=1)
    before = STORED.stat()
    run(ONE, "--update-golden", passed=1)
    assert (STORED.stat().st_ino, STORED.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    run(ONE.replace("1, 2", "3"), "--update-golden", passed=1)
    assert ow.load(STORED).prompt_token_ids == (3,)


def test_a_message_that_cannot_be_decoded(run):
    run(ONE, "--update-golden", passed=1)
    STORED.write_bytes(STORED.read_bytes()[:-1])
    text = run(ONE, failed=1)
    assert f"{STORED}: expected a message that can be decoded, got one that cannot: " in text
    run(ONE, "--update-golden", passed=1)
    assert ow.load(STORED).prompt_token_ids == (1, 2)


def test_names(run):
    source = (
        GOLDEN
        + """
@pytest.mark.parametrize("size", [1, 2], ids=["a/b", "c d"])
def test_sizes(golden_message, size):
    golden_message(request(size))
    golden_message(request(size, size), f"twice.{size}")
class TestOthers:
    def test_one(self, golden_message):
        golden_message(request(1))
"""
    )
    run(source, "--update-golden", passed=3)
    run(source, passed=3)
    assert sorted(path.name for path in STORED.parent.iterdir()) == [
        "TestOthers.test_one.omniwire",
        "test_sizes-a-b.omniwire",
        "test_sizes-c-d.omniwire",
        "twice.1.omniwire",
        "twice.2.omniwire",
    ]


@pytest.mark.parametrize("name", ["", ".hidden", "../up", "a/b", "a b", "\u03c0"])
def test_a_name_that_is_no_file_name(run, name):
    source = GOLDEN + f"def test_it(golden_message): golden_message(request(1), {name!r})"
    assert "ValueError: expected letters, digits" in run(source, "--update-golden", failed=1)
    assert not Path("golden").exists()


def test_two_objects_of_one_name(run):
    source = (
        GOLDEN
        + """
def test_it(golden_message):
    golden_message(request(1), "same")
    golden_message(request(2), "same")
"""
    )
    text = run(source, "--update-golden", failed=1)
    assert "same.omniwire: expected one object of a name (`name=`" in text


def test_an_object_that_cannot_be_encoded_is_not_stored(run):
    source = (
        GOLDEN
        + """
def test_it(golden_message):
    golden_message(ow.TensorHandle("local", torch.float32, (1,), torch.zeros(1)))
"""
    )
    assert "EncodeError" in run(source, "--update-golden", failed=1)
    assert not Path("golden").exists()
