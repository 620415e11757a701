"""What both processes have to agree on: the shape of items and the form of the output."""

from collections.abc import Mapping, Sequence
from typing import Final

import omniwire as ow
from omniwire.demo.prompt import PLACEHOLDERS
from omniwire.integrations.huggingface import (
    HuggingFaceProcessor,
    ModalityLayout,
    QwenImages,
    QwenVideos,
    WhisperAudio,
)

OUTPUT_TYPE: Final = "text+audio+image"

NUM_REQUESTS: Final = 2
"""Requests that a processor makes of the same media: in the order given, then in reverse."""

SECONDS_PER_CLIP: Final = 4
"""A sound is cut into clips of this length; each is an item, the last one padded."""

NUM_MEL_BINS: Final = 80
FRAMES_PER_CLIP: Final = 100 * SECONDS_PER_CLIP
"""Whisper looks at windows 10 ms apart, and yields a row for every two of them."""

PATCH_SIZE: Final = 14
"""Side of a patch in pixels."""

MERGE_SIZE: Final = 2
"""Qwen2-VL merges 2 x 2 patches into one embedding row."""

MAX_ROWS_PER_IMAGE: Final = 384
"""A photograph is resized to at most so many rows."""

MAX_VIDEO_FRAMES: Final = 16
"""Most frames of a video that are used; two of them make a step."""

MAX_ROWS_PER_STEP: Final = 48
"""The frames of a video are resized to at most so many rows a step."""

PIXELS_PER_ROW: Final = (PATCH_SIZE * MERGE_SIZE) ** 2

MAX_ENCODER_TOKENS_PER_ITEM: Final = MAX_ROWS_PER_IMAGE * MERGE_SIZE**2
"""Most patches of a photograph, and of a video; a clip costs less."""

LAYOUTS: Final[dict[str, ModalityLayout]] = {
    "image": QwenImages(PATCH_SIZE, 2, MERGE_SIZE, max_pixels=MAX_ROWS_PER_IMAGE * PIXELS_PER_ROW),
    "audio": WhisperAudio(NUM_MEL_BINS, FRAMES_PER_CLIP),
    "video": QwenVideos(
        PATCH_SIZE,
        2,
        MERGE_SIZE,
        max_pixels=MAX_ROWS_PER_STEP * PIXELS_PER_ROW,
        max_frames=MAX_VIDEO_FRAMES,
    ),
}
"""What the Hugging Face processors emit, per modality."""


def make_processor() -> HuggingFaceProcessor:
    """The description of every payload, which finds the items in a prompt."""
    return HuggingFaceProcessor(LAYOUTS, PLACEHOLDERS)


def output_hash(token_ids: Sequence[int], modalities: Mapping[str, object]) -> str:
    """Content hash of everything that was generated, to compare across the processes.

    Args:
        token_ids: All new tokens.
        modalities: The whole value per modality.
    """
    return ow.content_hash({"token_ids": tuple(token_ids), **modalities})
