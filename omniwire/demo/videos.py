"""Videos: checking them, and decoding frames evenly spread over each."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import av
from av.error import FFmpegError
from PIL import Image

from omniwire.demo.agreement import MAX_VIDEO_FRAMES
from omniwire.demo.files import check_regular_file, check_sides, quiet_codecs
from omniwire.demo.problems import BadInput, first_line, printable

MAX_ASPECT_RATIO: Final = 40
"""Longer side over shorter side of a frame: a longer one would need more rows than it may have."""

MAX_SOURCE_FRAMES: Final = 7_200
"""Most frames in a file; four minutes at 30 a second."""

MAX_FRAME_PIXELS: Final = 4096 * 2304
"""Most pixels of a frame in the file."""

_KEPT_SIDE: Final = 512
"""Frames are kept no larger than that; the image processor makes them smaller still."""

_FORMATS: Final = "mov,matroska,avi,mpeg,mpegts,mpegvideo,ogg,flv,asf"
"""Containers that hold their data themselves; playlists, for one, would open other files."""


@dataclass(frozen=True)
class Video:
    """Some frames of one decoded video.

    Attributes:
        name: File name without its folder, safe to print.
        frames: 1 to `MAX_VIDEO_FRAMES` frames, evenly spread, mode RGB, all of one size.
        source_size: Width and height in the file.
        num_source_frames: Frames in the file.
    """

    name: str
    frames: list[Image.Image]
    source_size: tuple[int, int]
    num_source_frames: int

    @property
    def decoded(self) -> str:
        """What it is, in words."""
        width, height = self.source_size
        return f"{width} x {height} pixels, {len(self.frames)} of {self.num_source_frames} frames"


def load_video(path: str) -> Video:
    """Decode one video; of its frames, only those that are used are kept.

    Raises:
        BadInput: The file is missing, empty, corrupt, no video, has no frames, or lies outside
            the limits of this module.
    """
    name = printable(path)
    check_regular_file(path, name)
    try:
        with (
            quiet_codecs(),
            Path(path).open("rb") as file,
            av.open(file, "r", options={"format_whitelist": _FORMATS}) as container,
        ):
            if not container.streams.video:
                raise BadInput(f"{name}: there is no video in it")
            stream = container.streams.video[0]
            _check_size((stream.width, stream.height), name)
            return _sampled(container.decode(stream), name)
    except FFmpegError as error:
        raise BadInput(f"{name}: not a video that can be read: {first_line(error)}") from error


def _sampled(decoded: Iterable[av.VideoFrame], name: str) -> Video:
    """Every n-th frame, where n doubles whenever there are too many of them."""
    frames: list[Image.Image] = []
    num_source_frames, step = 0, 1
    source_size = kept_size = (0, 0)
    for frame in decoded:
        if num_source_frames == MAX_SOURCE_FRAMES:
            raise BadInput(f"{name}: more frames than {MAX_SOURCE_FRAMES}, which is the limit")
        if num_source_frames % step == 0:
            _check_size((frame.width, frame.height), name)
            image: Image.Image = frame.to_image()  # type: ignore[no-untyped-call]  # unannotated
            if not frames:
                source_size = image.size
                image.thumbnail((_KEPT_SIDE, _KEPT_SIDE))
                kept_size = image.size
            # A video may change its size on the way.
            frames.append(image if image.size == kept_size else image.resize(kept_size))
            if len(frames) > MAX_VIDEO_FRAMES:
                frames, step = frames[::2], 2 * step
        num_source_frames += 1
    if not frames:
        raise BadInput(f"{name}: the video has no frames")
    return Video(printable(Path(name).name), frames, source_size, num_source_frames)


def _check_size(size: tuple[int, int], name: str) -> None:
    check_sides(size, MAX_ASPECT_RATIO, name)
    if size[0] * size[1] > MAX_FRAME_PIXELS:
        raise BadInput(
            f"{name}: {size[0] * size[1]} pixels in a frame, the limit is {MAX_FRAME_PIXELS}"
        )
