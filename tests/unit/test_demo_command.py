"""`omniwire demo` as its user meets it: what it prints, how it exits, what it leaves."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from click.testing import CliRunner
from PIL import Image

import omniwire as ow
from omniwire.demo.command import demo_command

COMMAND = [sys.executable, "-m", "omniwire", "demo"]


def start(folder: Path, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
    """Start the command with a temporary folder of its own, in a process group of its own."""
    inherited = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
    return subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=folder,
        env={**inherited, "COLUMNS": "80", "TMPDIR": str(folder), **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def check_refusal(process: "subprocess.Popen[str]", exit_code: int, *words: str) -> None:
    """The command ends with this code and one line on stderr, and nothing on stdout."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == exit_code, err
    assert out == ""
    assert re.fullmatch(r"omniwire demo: .+\n", err)
    for word in words:
        assert word in err


def spawned_children(pid: int, number: int) -> list[int]:
    """Ids of the spawned processes of `pid`, in the order in which they were started."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = []
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(status.read_text().rpartition(")")[2].split()[1])
                if parent == pid and b"spawn_main" in (status.parent / "cmdline").read_bytes():
                    found.append(int(status.parent.name))
            except OSError:
                continue
        if len(found) == number:
            return sorted(found)
        time.sleep(0.02)
    raise AssertionError(f"{pid} did not start {number} processes")


def is_alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def test_a_run_on_the_default_media_proves_itself(tmp_path: Path) -> None:
    process = start(tmp_path, "--save", "request.omniwire")
    out, err = process.communicate(timeout=300)
    assert re.findall("FAIL.*\n.*", out) == []
    assert (process.returncode, err) == (0, "")
    assert out.count("PASS") == 8
    assert "\x1b" not in out
    assert "\r" not in out
    assert max(map(len, out.splitlines())) <= 80
    for name in ("china.jpg", "secosmic_lo.wav", "cityCC0.mpg", "video.video_grid_thw", "100%"):
        assert name in out
    assert [path.name for path in tmp_path.iterdir()] == ["request.omniwire"]
    saved = ow.load(tmp_path / "request.omniwire")
    assert isinstance(saved, ow.ProcessedRequest)
    assert ow.check_producer(saved) is saved
    assert saved.multimodal_params is not None
    record = saved.multimodal_params.item_metadata
    assert record is not None
    modalities = [modality for modality, _ in record.item_refs]
    assert modalities == ["image", "audio", "audio", "video", "image", "audio"]


def test_a_run_on_given_media_uses_only_those(tmp_path: Path) -> None:
    Image.new("RGB", (60, 40), "red").save(tmp_path / "[bold] red.png")
    process = start(tmp_path, "--image", "[bold] red.png")
    out, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (0, "")
    assert "[bold] red.png" in out
    assert "china.jpg" not in out
    assert "audio.input_features" not in out


def _corrupt_photograph(folder: Path) -> list[str]:
    path = folder / "one.jpg"
    Image.effect_noise((200, 100), 50).save(path)
    path.write_bytes(path.read_bytes()[:1000])
    return ["--image", "one.jpg"]


def _huge_photograph(folder: Path) -> list[str]:
    Image.new("1", (20_000, 10_000)).save(folder / "huge.png")
    return ["--image", "huge.png"]


def _sound_as_photograph(folder: Path) -> list[str]:
    soundfile.write(folder / "one.wav", np.zeros(100), 16_000)
    return ["--image", "one.wav"]


def _corrupt_sound(folder: Path) -> list[str]:
    (folder / "one.wav").write_bytes(b"RIFF" + bytes(100))
    return ["--audio", "one.wav"]


def _sound_without_samples(folder: Path) -> list[str]:
    soundfile.write(folder / "none.wav", np.zeros(0), 16_000)
    return ["--audio", "none.wav"]


def _corrupt_video(folder: Path) -> list[str]:
    (folder / "one.mp4").write_bytes(bytes(100))
    return ["--video", "one.mp4"]


def _empty_file(folder: Path) -> list[str]:
    (folder / "empty").touch()
    return ["--audio", "empty"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda _: ["--image", "none.jpg"], ["none.jpg", "no such file"]),
        (lambda _: ["--audio", "."], ["a folder"]),
        (_corrupt_photograph, ["one.jpg", "corrupt"]),
        (_huge_photograph, ["huge.png", "200000000", "89478485"]),
        (_sound_as_photograph, ["one.wav", "not a photograph"]),
        (_corrupt_sound, ["one.wav", "not a sound"]),
        (_sound_without_samples, ["none.wav", "no samples"]),
        (_corrupt_video, ["one.mp4", "not a video"]),
        (_empty_file, ["empty"]),
        (lambda _: ["--save", "no/such/folder"], ["no/such/folder", "cannot save"]),
        (lambda _: ["--save", "."], ["cannot save", "folder"]),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    make: Callable[[Path], list[str]], words: list[str], tmp_path: Path
) -> None:
    check_refusal(start(tmp_path, *make(tmp_path)), 2, *words)
    assert not list(tmp_path.glob("omniwire-*"))


def test_no_media_at_all_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    """Packages without their data files stand in for packages that are not installed."""
    for name in ("sklearn", "pygame"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "kivy_examples-1.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: kivy-examples\nVersion: 1\n"
    (tmp_path / "kivy_examples-1.dist-info" / "METADATA").write_text(metadata)
    search_path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    check_refusal(start(tmp_path, PYTHONPATH=search_path), 2, "no media at all")


@pytest.mark.parametrize("name", ["rich", "transformers", "PIL", "soundfile", "scipy", "av"])
def test_a_missing_extra_is_one_line_and_exit_code_2(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    result = CliRunner().invoke(demo_command)
    assert result.exit_code == 2
    assert result.stderr == f"omniwire demo: needs {name}: pip install 'omniwire[demo]'\n"


@pytest.mark.parametrize(("number", "name"), [(0, "processor"), (1, "executor")])
def test_a_killed_process_is_one_line_and_exit_code_1(
    number: int, name: str, tmp_path: Path
) -> None:
    process = start(tmp_path)
    children = spawned_children(process.pid, 2)
    os.kill(children[number], signal.SIGKILL)
    check_refusal(process, 1, f"the {name} process was killed by SIGKILL")
    assert not any(map(is_alive, children))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_its_processes_and_cleans_up(
    number: signal.Signals, tmp_path: Path
) -> None:
    process = start(tmp_path)
    children = spawned_children(process.pid, 2)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
        check_refusal(process, 130, "interrupted")
    else:
        process.send_signal(number)
        assert process.communicate(timeout=60) == ("", "")
        assert process.returncode == 128 + signal.SIGTERM
    assert not any(map(is_alive, children))
    assert list(tmp_path.iterdir()) == []


def test_a_killed_run_leaves_no_processes(tmp_path: Path) -> None:
    process = start(tmp_path)
    children = spawned_children(process.pid, 2)
    process.kill()
    # A child that was still starting reports on stderr that its parent is gone.
    assert process.communicate(timeout=120)[0] == ""
    deadline = time.monotonic() + 120
    while any(map(is_alive, children)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(is_alive, children))
