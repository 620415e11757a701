"""The prompt: text, and a placeholder token for every embedding row of every item.

Text is tokenized byte by byte, which needs no vocabulary file; the ids after the 256 bytes
are the special tokens.
"""

from collections.abc import Sequence
from typing import Final

_NUM_BYTES: Final = 256

PLACEHOLDERS: Final = {"image": 256, "audio": 259, "video": 262}
"""The token that stands for one embedding row; the next two ids frame its runs."""

VOCABULARY_SIZE: Final = _NUM_BYTES + 3 * len(PLACEHOLDERS)

_INTRODUCTIONS: Final = {"image": "A photograph: ", "audio": "A sound: ", "video": "A video: "}


def build_prompt(items: Sequence[tuple[str, Sequence[int]]], task: str) -> list[int]:
    """Lay out items in the order given, each behind a few words of text, the task at the end.

    Args:
        items: Per item its modality and the rows of each of its runs. The runs of a video, one
            for each step in time, have text between them, as in Qwen3-VL's prompts.
        task: What to do with them.

    >>> build_prompt([("image", [2])], "Describe it.")[14:18]
    [257, 256, 256, 258]
    """
    token_ids: list[int] = []
    for modality, runs in items:
        placeholder = PLACEHOLDERS[modality]
        token_ids += _INTRODUCTIONS[modality].encode()
        for number, num_rows in enumerate(runs):
            if len(runs) > 1:
                token_ids += f"part {number + 1}: ".encode()
            token_ids += [placeholder + 1, *[placeholder] * num_rows, placeholder + 2]
    token_ids += task.encode()
    return token_ids
