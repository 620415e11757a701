"""What media the demo accepts, and how it refuses the rest."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from omniwire.demo import media, problems


def refusal(load: Callable[[str], object], path: Path | str) -> str:
    with pytest.raises(problems.BadInput) as caught:
        load(str(path))
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    return text


def save_photograph(path: Path, size: tuple[int, int] = (64, 48), mode: str = "RGB") -> Path:
    Image.new(mode, size).save(path)
    return path


def save_sound(path: Path, frames: np.ndarray, rate: int = 16_000, **options: str) -> Path:
    soundfile.write(path, frames, rate, **options)
    return path


def test_the_default_media_are_two_photographs_and_two_sounds() -> None:
    photographs, sounds = media.load_media([], [])
    assert [photo.image.size for photo in photographs] == [(640, 427), (640, 427)]
    # 78331 samples at 11025 Hz are 7.105 s, 36000 are 3.265 s
    assert [round(sound.seconds, 3) for sound in sounds] == [7.105, 3.265]


def test_given_media_replace_the_default_media(tmp_path: Path) -> None:
    path = save_photograph(tmp_path / "one.png")
    photographs, sounds = media.load_media([str(path)], [])
    assert [photo.name for photo in photographs] == ["one.png"]
    assert sounds == []


def test_no_media_at_all_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "default_media", lambda: ([], []))
    with pytest.raises(problems.BadInput, match="no media at all"):
        media.load_media([], [])


def test_default_media_are_empty_when_their_packages_are_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(media.importlib.util, "find_spec", lambda _name: None)
    assert media.default_media() == ([], [])


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGBA", "CMYK", "I;16", "F"])
def test_a_photograph_of_any_mode_becomes_rgb(mode: str, tmp_path: Path) -> None:
    photo = media.load_photograph(str(save_photograph(tmp_path / "one.tiff", mode=mode)))
    assert photo.image.mode == "RGB"


def test_a_photograph_is_turned_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held on its side
    Image.new("RGB", (64, 48)).save(tmp_path / "one.jpg", exif=exif)
    assert media.load_photograph(str(tmp_path / "one.jpg")).image.size == (48, 64)


def test_a_sound_is_mixed_down_and_resampled(tmp_path: Path) -> None:
    time = np.arange(44_100) / 44_100
    left = 0.5 * np.sin(2 * np.pi * 440 * time)
    path = save_sound(tmp_path / "one.wav", np.stack([left, np.zeros_like(left)], axis=1), 44_100)
    sound = media.load_sound(str(path))
    assert (sound.source_rate, sound.source_channels, sound.seconds) == (44_100, 2, 1.0)
    assert sound.samples.dtype == np.float32
    expected = 0.25 * np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000)
    # the filter has no neighbors to look at close to the ends
    np.testing.assert_allclose(sound.samples[200:-200], expected[200:-200], atol=2e-3)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert refusal(media.load_photograph, tmp_path / "none.jpg").endswith("no such file")
    assert refusal(media.load_sound, "") == "the name of a file is empty"


@pytest.mark.parametrize("load", [media.load_photograph, media.load_sound])
def test_what_is_no_regular_file_is_refused(load: Callable[[str], object], tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "a folder" in refusal(load, tmp_path)
    assert "not a regular file" in refusal(load, pipe)
    assert "cannot be opened" in refusal(load, "a\0b")
    assert "cannot be opened" in refusal(load, "a" * 5000)


@pytest.mark.parametrize("load", [media.load_photograph, media.load_sound])
def test_an_empty_file_is_refused(load: Callable[[str], object], tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert refusal(load, tmp_path / "empty").endswith("the file is empty")


def test_a_sound_given_as_a_photograph_is_refused_and_the_other_way_round(tmp_path: Path) -> None:
    photograph = save_photograph(tmp_path / "one.png")
    sound = save_sound(tmp_path / "one.wav", np.zeros(100))
    assert "not a photograph" in refusal(media.load_photograph, sound)
    assert "not a sound" in refusal(media.load_sound, photograph)


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "gif", "bmp", "tiff", "ppm"])
def test_a_truncated_photograph_is_refused(suffix: str, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (48, 64, 3), dtype=np.uint8)
    path = tmp_path / f"one.{suffix}"
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert "photograph" in refusal(media.load_photograph, path)


@pytest.mark.parametrize("size", [(10_000, 10_000), (20_000, 20_000)])
def test_a_huge_photograph_is_refused_undecoded_with_both_numbers(
    size: tuple[int, int], tmp_path: Path
) -> None:
    path = tmp_path / "huge.png"
    Image.new("1", size).save(path)
    text = refusal(media.load_photograph, path)
    assert f"{size[0] * size[1]} pixels" in text
    assert "89478485" in text


def test_a_photograph_with_extreme_sides_is_refused_with_both_numbers(tmp_path: Path) -> None:
    assert media.load_photograph(str(save_photograph(tmp_path / "ok.png", (200, 1))))
    text = refusal(media.load_photograph, save_photograph(tmp_path / "flat.png", (2010, 10)))
    assert "2010 x 10" in text
    assert "201, the limit is 200" in text


def test_a_sound_without_samples_is_refused(tmp_path: Path) -> None:
    path = save_sound(tmp_path / "none.wav", np.zeros(0))
    assert refusal(media.load_sound, path).endswith("no samples")


def test_a_sound_with_a_sample_that_is_no_finite_number_is_refused(tmp_path: Path) -> None:
    path = save_sound(tmp_path / "nan.wav", np.array([0.0, np.nan]), subtype="FLOAT")
    assert "not finite" in refusal(media.load_sound, path)


def test_a_sound_outside_the_limits_is_refused_with_both_numbers(tmp_path: Path) -> None:
    long = save_sound(tmp_path / "long.wav", np.zeros(301_000), 1_000)
    assert "301.0 seconds long, the limit is 300" in refusal(media.load_sound, long)
    slow = save_sound(tmp_path / "slow.wav", np.zeros(10), 999)
    assert "sample rate 999 Hz" in refusal(media.load_sound, slow)
    wide = save_sound(tmp_path / "wide.wav", np.zeros((10, 33)))
    assert "33 channels, the limit is 32" in refusal(media.load_sound, wide)


def test_what_codecs_print_is_not_shown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    frames = np.random.default_rng(0).normal(0, 0.1, 8_000)
    path = save_sound(tmp_path / "one.mp3", frames, format="MP3")
    content = bytearray(path.read_bytes())
    content[600:1200] = bytes(600)
    path.write_bytes(content)
    media.load_sound(str(path))
    assert capfd.readouterr().err == ""


def test_a_file_name_cannot_break_the_line_it_is_printed_on() -> None:
    assert problems.printable("caf\u00e9.jpg") == "caf\u00e9.jpg"
    assert problems.printable("a\nb\x1b[31m.jpg") == r"'a\nb\x1b[31m.jpg'"
    assert "\\udcff" in problems.printable(os.fsdecode(b"\xff.jpg"))
