"""The chunks that a prompt may be prefilled in, and the embedding rows that each one needs."""

from typing import Final

import attrs

from omniwire.contracts import ContractError, MultimodalRuntimeData
from omniwire.inspector.items import Items, records_of

_MIN_SIZE: Final = 8
_MAX_CHUNKS: Final = 64
_MAX_SIZES: Final = 5


@attrs.frozen(eq=False)
class Chunks:
    """A prompt in chunks of one size.

    Attributes:
        size: Prompt tokens in each chunk but the last.
        row_ranges: Per chunk, the half-open range of the request's embedding rows it needs.
    """

    size: int
    row_ranges: tuple[tuple[int, int], ...]


@attrs.frozen(eq=False)
class Chunking:
    """The ways in which a prompt may be cut into chunks.

    Attributes:
        num_rows: Embedding rows of the request.
        by_size: A few powers of two, the smallest first.
        has_exact_rows: Whether the items' prompt tokens are as many as their embedding rows.
            Otherwise some are framing tokens, a message does not say which, and as all tokens
            of the items are counted, the numbers of rows are upper bounds.
    """

    num_rows: int
    by_size: tuple[Chunks, ...]
    has_exact_rows: bool


def chunking_of(obj: object, items: Items, num_tokens: int) -> Chunking | None:
    """Cut a prompt into chunks.

    The rows are computed here, by `MultimodalRuntimeData` as in an executor, and not in the
    page, where a second implementation might come to differ.

    Args:
        obj: What the items are of.
        items: The items.
        num_tokens: Length of the prompt, > 0.

    Returns:
        None if nothing says where the items are, or they overlap or are out of prompt order.
    """
    _, inputs = records_of(obj)
    if inputs is None:
        return None
    size = _MIN_SIZE
    while -(-num_tokens // size) > _MAX_CHUNKS:
        size *= 2
    try:
        records = [
            MultimodalRuntimeData.for_chunk(
                past_seen_token_num=start,
                chunk_end_pos=min(start + size, num_tokens),
                multimodal_input=inputs,
            )
            for start in range(0, num_tokens, size)
        ]
    except ContractError:
        return None
    ranges = [record.row_range for record in records]
    by_size = [Chunks(size, tuple(ranges))]
    while len(by_size) < _MAX_SIZES and size * 2 < num_tokens:
        # A chunk of twice the size needs the rows of two.
        size *= 2
        ranges = [(ranges[i][0], ranges[i : i + 2][-1][1]) for i in range(0, len(ranges), 2)]
        by_size.append(Chunks(size, tuple(ranges)))
    return Chunking(
        num_rows=records[0].total_embeds_in_request,
        by_size=tuple(by_size),
        has_exact_rows=all(
            item.num_embedding_rows in (None, item.num_prompt_tokens) for item in items.rows
        ),
    )
