"""The prompt: text, placeholder tokens for every item, and where exactly they lie.

Text is tokenized byte by byte, which needs no vocabulary file; the ids after the 256 bytes
are the special tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

IMAGE_START: Final = 256
IMAGE_PAD: Final = 257
IMAGE_END: Final = 258
AUDIO_START: Final = 259
AUDIO_PAD: Final = 260
AUDIO_END: Final = 261
VOCABULARY_SIZE: Final = 262

_QUESTION: Final = {"image": "A photograph: ", "audio": "A sound: "}
_TASK: Final = "Describe all of them in order."


@dataclass(frozen=True)
class PromptItem:
    """An item to place in the prompt: its modality, local index and embedding rows."""

    modality: str
    index: int
    num_embedding_rows: int


@dataclass(frozen=True)
class Prompt:
    """A tokenized prompt. All sequences but `token_ids` have one entry per item.

    An image's span includes its two framing tokens, which yield no embedding row; a sound's
    framing tokens are plain text around its span. Both conventions are in use.

    Attributes:
        token_ids: The prompt.
        item_order: `(modality, local index)` in prompt order.
        num_embedding_rows: Rows that the item's encoder yields.
        positions: First prompt token of the item's span.
        num_prompt_tokens: Prompt tokens of the span, framing included.
        special_token_offsets: Span-local offsets of the framing tokens.
    """

    token_ids: list[int]
    item_order: list[tuple[str, int]]
    num_embedding_rows: list[int]
    positions: list[int]
    num_prompt_tokens: list[int]
    special_token_offsets: list[tuple[int, ...]]


def build_prompt(items: Sequence[PromptItem]) -> Prompt:
    """Lay out `items`, in the order given, each behind a few words of text.

    >>> prompt = build_prompt([PromptItem("image", 0, 4)])
    >>> prompt.positions, prompt.num_prompt_tokens, prompt.special_token_offsets
    ([14], [6], [(0, 5)])
    """
    prompt = Prompt([], [], [], [], [], [])
    for item in items:
        rows = item.num_embedding_rows
        prompt.token_ids.extend(_QUESTION[item.modality].encode())
        if item.modality == "image":
            prompt.positions.append(len(prompt.token_ids))
            prompt.token_ids.extend([IMAGE_START, *[IMAGE_PAD] * rows, IMAGE_END])
            prompt.num_prompt_tokens.append(rows + 2)
            prompt.special_token_offsets.append((0, rows + 1))
        else:
            prompt.token_ids.append(AUDIO_START)
            prompt.positions.append(len(prompt.token_ids))
            prompt.token_ids.extend([*[AUDIO_PAD] * rows, AUDIO_END])
            prompt.num_prompt_tokens.append(rows)
            prompt.special_token_offsets.append(())
        prompt.item_order.append((item.modality, item.index))
        prompt.num_embedding_rows.append(rows)
    prompt.token_ids.extend(_TASK.encode())
    return prompt
