"""Tests of the processor and the encoder, most of them by the contract-testing kit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as hst
from smolvlm import SmolVLMEncoder, SmolVLMProcessor, Tokens

import omniwire as ow
from omniwire.testing import assert_equal, assert_processor_conforms
from omniwire.testing import strategies as st
from omniwire.testing.golden import GoldenMessages

TOKENS = Tokens(image=9, around=8, thumbnail=7, newline=6, first_tile=10, max_columns=4)
PROCESSOR = SmolVLMProcessor(tile_size=8, patch_size=2, shuffle=2, tokens=TOKENS)
ROWS = [9] * 4
SIDES = hst.integers(1, 40)


def image(height: int, width: int, seed: int = 0) -> torch.Tensor:
    """An image without two equal rows or columns."""
    numbers = torch.arange(3 * height * width) * 7 + seed
    return (numbers % 251).to(torch.uint8).view(3, height, width)


def test_the_processor_conforms() -> None:
    """Order, counts, sums and rows; each image alone is what it is among the others."""
    images = [image(8, 8), image(20, 9), image(3, 30)]
    prompt = [1, 9, 9, 2, 9]
    examples = [
        {
            "prompt_token_ids": prompt[: index + 2],
            "multimodal_data": PROCESSOR.payload(images[: index + 1]),
            "item_payloads": [PROCESSOR.payload([one]) for one in images[: index + 1]],
        }
        for index in range(len(images))
    ]
    assert_processor_conforms(PROCESSOR, examples)


def test_the_prompt_has_framing_tokens_around_every_tile() -> None:
    """Two tiles above each other and the thumbnail, then an image of one tile."""
    request = PROCESSOR.prepare("r1", [1, 9, 2, 9], [image(16, 8), image(8, 8)])
    two_tiles = [8, 10, *ROWS, 6, 8, 14, *ROWS, 6, 6, 8, 7, *ROWS, 8]
    one_tile = [8, 7, *ROWS, 8]
    assert request.prompt_token_ids == (1, *two_tiles, 2, *one_tile)
    params = request.multimodal_params
    assert params is not None
    assert params.multimodal_input is not None
    assert params.multimodal_input.multimodal_positions == (1, 24)
    assert params.multimodal_input.multimodal_lengths == (22, 7)


@pytest.mark.parametrize(("prompt", "word"), [([1, 9], "fewer"), ([9, 9, 9], "more")])
def test_there_is_one_image_token_for_each_image(prompt: list[int], word: str) -> None:
    """A prompt of other images is refused here, and not by the language model."""
    with pytest.raises(ValueError, match=f"expected 2 image tokens in the prompt, got {word}"):
        PROCESSOR.prepare("r1", prompt, [image(8, 8), image(8, 8)])


def test_tiles_are_cut_row_by_row_and_the_thumbnail_follows() -> None:
    """Where nothing is resized, the pixels are those of the image."""
    whole = image(16, 16)
    tiles = PROCESSOR.payload([whole])["image"]["pixel_values"]
    for index, (top, left) in enumerate([(0, 0), (0, 8), (8, 0), (8, 8)]):
        expected = whole[:, top : top + 8, left : left + 8].float() / 127.5 - 1
        assert_equal(tiles[index], expected)
    means = whole.float().view(3, 8, 2, 8, 2).mean((2, 4))
    torch.testing.assert_close(tiles[4], means / 127.5 - 1)


@settings(max_examples=30, deadline=None)
@given(
    images=hst.lists(
        st.tensors(dtypes=[torch.uint8], shapes=hst.tuples(hst.just(3), SIDES, SIDES)),
        min_size=1,
        max_size=3,
    )
)
def test_every_image_has_as_many_placeholders_as_rows(images: list[torch.Tensor]) -> None:
    """Whatever its size and its layout in memory; a change of the image changes its hash."""
    request = PROCESSOR.prepare("r1", [9] * len(images), images)
    params = request.multimodal_params
    assert params is not None
    record, given_input = params.item_metadata, params.multimodal_input
    assert record is not None
    assert given_input is not None
    assert record.output_embedding_lengths is not None
    spans = zip(given_input.multimodal_positions, given_input.multimodal_lengths, strict=True)
    for (start, length), rows in zip(spans, record.output_embedding_lengths, strict=True):
        assert list(request.prompt_token_ids[start : start + length]).count(9) == rows
    changed = PROCESSOR.prepare("r1", [9], [images[0] ^ 255]).multimodal_params
    assert changed is not None
    assert changed.multimodal_input is not None
    assert changed.multimodal_input.multimodal_hashes[0] != given_input.multimodal_hashes[0]


def test_images_are_encoded_one_by_one_as_they_are_together() -> None:
    """The scheduler picks what fits the budget; an image that was encoded is not encoded again."""
    encoder = SmolVLMEncoder(PROCESSOR, hidden_size=16)
    request = PROCESSOR.prepare("r1", [9, 9, 9], [image(16, 8), image(8, 8), image(16, 8)])
    budget = ow.EncoderBudget(max_encoder_tokens=48)
    ow.check_admission(request, budget=budget)
    assert request.multimodal_params is not None
    (whole,) = encoder.encode_multimodal_inputs([request.multimodal_params])

    state = ow.MultimodalEncoderRequestState.from_request(request)
    params = request.multimodal_params.with_encoder_state(state)
    live = ow.ProcessedRequest(request.request_id, request.prompt_token_ids, params)
    cache, scheduler = ow.TensorLRUCache(max_bytes=1 << 16), ow.ItemScheduler(budget)
    encoded = []
    while scheduled := scheduler.schedule([state]):
        encoded.append(scheduled["r1"])
        ow.encode_scheduled(
            encoder, [live], scheduled, cache=cache, dtype=torch.float32, settings="smolvlm@1"
        )
    assert encoded == [(0,), (1,), (2,)]
    assert len(cache) == 2
    leases = [state.reference(index) for index in range(3)]
    rows = torch.cat([lease.tensor for lease in leases if isinstance(lease, ow.CacheLease)])
    torch.testing.assert_close(rows, whole)
    state.release()


def test_a_chunk_of_the_prompt_needs_the_rows_of_its_image_tokens() -> None:
    """Chunked prefill: framing tokens have no row."""
    request = PROCESSOR.prepare("r1", [1, 9, 2], [image(8, 16)])
    mask = [token == 9 for token in request.prompt_token_ids]
    first = ow.MultimodalRuntimeData.for_chunk(
        past_seen_token_num=0, chunk_end_pos=6, embed_mask=mask
    )
    rest = ow.MultimodalRuntimeData.for_chunk(
        past_seen_token_num=6, chunk_end_pos=len(mask), embed_mask=mask
    )
    assert (first.row_range, rest.row_range) == ((0, 3), (3, 12))


@pytest.mark.usefixtures("no_leaked_segments", "no_leaked_descriptors")
def test_a_request_arrives_as_it_was_sent(channel_pair: tuple[ow.Channel, ow.Channel]) -> None:
    """Tiles that are written where they are sent from are not copied; nothing is left behind."""
    processor, executor = channel_pair
    large = SmolVLMProcessor(tile_size=64, patch_size=8, tokens=TOKENS)
    images = [image(100, 60), image(30, 200)]
    request = large.prepare("r1", [1, 9, 9, 2], images, empty=processor.empty)
    processor.send(request, timeout=30)
    received = executor.recv(timeout=30)
    assert_equal(received, large.prepare("r1", [1, 9, 9, 2], images))
    assert ow.check_producer(received) is received
    assert processor.stats()["copied_bytes"] == 2 * 2 * 8  # the grids


def test_the_message_is_what_it_was(golden_message: GoldenMessages) -> None:
    """A request of today equals one that was stored: nobody changes the layout by accident."""
    golden_message(PROCESSOR.prepare("r1", [1, 9, 2, 9], [image(16, 8), image(8, 8)]))
