"""Laws of chunk windows: the three sources agree, and consecutive chunks divide the rows."""

import itertools

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as hst

from omniwire.contracts import MultimodalInput, MultimodalRuntimeData
from omniwire.runtime import chunk_embeddings
from omniwire.testing import strategies as st

MODEST = settings(max_examples=60)


@hst.composite
def prompts(draw):
    """Items with framing tokens, and the mask that they make, token by token.

    Returns the record, the framing offsets per item, and the mask.
    """
    record = draw(st.multimodal_inputs(in_prompt_order=True))
    positions = token_positions(record)
    framing = [
        sorted(draw(hst.sets(hst.integers(0, len(tokens) - 1), max_size=3))) if tokens else []
        for tokens in positions
    ]
    rows = {
        token
        for tokens, offsets in zip(positions, framing, strict=True)
        for offset, token in enumerate(tokens)
        if offset not in offsets
    }
    num_tokens = max((token + 1 for tokens in positions for token in tokens), default=0)
    num_tokens += draw(hst.integers(0, 3))
    return record, framing, [token in rows for token in range(num_tokens)]


def token_positions(record: MultimodalInput):
    """Per item, the prompt positions of its tokens."""
    offsets = record.multimodal_item_run_cu_offsets
    if offsets is None:
        spans = zip(record.multimodal_positions, record.multimodal_lengths, strict=True)
        return [list(range(start, start + length)) for start, length in spans]
    runs = list(zip(record.multimodal_run_positions, record.multimodal_run_lengths, strict=True))
    return [
        [token for start, length in runs[first:past] for token in range(start, start + length)]
        for first, past in itertools.pairwise(offsets)
    ]


def windows(num_tokens):
    """Consecutive windows over a whole prompt; some may be empty."""
    cuts = hst.lists(hst.integers(0, num_tokens), max_size=4)
    return cuts.map(lambda inner: list(itertools.pairwise(sorted([0, *inner, num_tokens]))))


def every_form(bools):
    """The same flags as each kind of sequence that a caller may have."""
    ints = list(map(int, bools))
    return [
        list(bools),
        tuple(ints),
        np.array(bools, dtype=bool),
        np.array(ints, dtype=np.int32),
        torch.tensor(bools, dtype=torch.bool),
        torch.tensor(ints, dtype=torch.uint8),
    ]


@MODEST
@given(data=hst.data(), prompt=prompts())
def test_the_three_sources_agree(data, prompt):
    record, framing, mask = prompt
    past, end = sorted(data.draw(hst.tuples(*[hst.integers(0, len(mask))] * 2)))
    window = {"past_seen_token_num": past, "chunk_end_pos": end}
    expected = MultimodalRuntimeData(past, end, sum(mask[:past]), sum(mask[past:end]), sum(mask))
    for flags in every_form(mask):
        assert MultimodalRuntimeData.for_chunk(**window, embed_mask=flags) == expected
    counts = list(itertools.accumulate(map(int, mask)))
    for cumsum in (
        counts,
        np.array(counts, dtype=np.int64),
        torch.tensor(counts, dtype=torch.int32),
    ):
        assert MultimodalRuntimeData.for_chunk(**window, embed_mask_cumsum=cumsum) == expected
    from_runs = MultimodalRuntimeData.for_chunk(
        **window, multimodal_input=record, special_token_offsets=framing
    )
    assert from_runs == expected


@MODEST
@given(data=hst.data(), prompt=prompts())
def test_consecutive_chunks_divide_the_rows(data, prompt):
    record, framing, mask = prompt
    reached = 0
    for past, end in data.draw(windows(len(mask))):
        chunk = MultimodalRuntimeData.for_chunk(
            past_seen_token_num=past,
            chunk_end_pos=end,
            multimodal_input=record,
            special_token_offsets=framing,
        )
        start, stop = chunk.row_range
        assert start == reached
        assert chunk.num_cached_mm_tokens == reached
        assert chunk.total_embeds_in_request == sum(mask)
        reached = stop
    assert reached == sum(mask)


@MODEST
@given(data=hst.data(), prompt=prompts())
def test_consecutive_chunks_get_all_embeddings_once(data, prompt):
    _, _, mask = prompt
    sizes = data.draw(hst.lists(hst.integers(1, 4), max_size=4))
    items = list(torch.arange(float(sum(mask))).reshape(-1, 1).split(split_sizes(sum(mask), sizes)))
    pieces = [
        chunk_embeddings(
            items,
            MultimodalRuntimeData.for_chunk(
                past_seen_token_num=past, chunk_end_pos=end, embed_mask=mask
            ),
        )
        for past, end in data.draw(windows(len(mask)))
    ]
    assert [row for piece in pieces for row in piece.flatten().tolist()] == list(range(sum(mask)))


def split_sizes(total, wanted):
    """The wanted sizes as far as they go, and the rest in one; together they make the total."""
    sizes = []
    for size in wanted:
        if sum(sizes) + size < total:
            sizes.append(size)
    return [*sizes, total - sum(sizes)]
