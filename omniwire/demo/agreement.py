"""What both processes have to agree on: the shape of items and the form of the output."""

from collections.abc import Mapping, Sequence
from typing import Final

import omniwire as ow

REQUEST_ID: Final = "demo-0"
OUTPUT_TYPE: Final = "text+audio+image"

SECONDS_PER_CLIP: Final = 4
"""A sound is cut into clips of this length; each is an item, the last one padded."""

ROWS_PER_CLIP: Final = 200
"""Whisper yields a row per two frames of 10 ms, whatever the clip contains."""

MAX_ROWS_PER_IMAGE: Final = 384
"""A photograph is resized to at most so many rows."""

MERGE_SIZE: Final = 2
"""Qwen2-VL merges 2 x 2 patches into one embedding row."""

MAX_ENCODER_TOKENS_PER_ITEM: Final = MAX_ROWS_PER_IMAGE * MERGE_SIZE**2
"""Most patches of a photograph; a clip costs `ROWS_PER_CLIP` encoder tokens, which is less."""


def output_hash(token_ids: Sequence[int], modalities: Mapping[str, object]) -> str:
    """Content hash of everything that was generated, to compare across the processes.

    Args:
        token_ids: All new tokens.
        modalities: The whole value per modality.
    """
    return ow.content_hash({"token_ids": tuple(token_ids), **modalities})
