"""The built-in handlers, called as the protocol says."""

import pytest
import torch

from omniwire import contracts as c
from omniwire.runtime import (
    AudioHandler,
    ImageHandler,
    LatentHandler,
    TextHandler,
    TokenIdsHandler,
    VideoHandler,
)

KEYS = {
    ImageHandler: ("image", "images", "pixel_values", "pixels"),
    VideoHandler: ("video", "videos", "frames", "video_frames"),
    AudioHandler: ("audio", "audios", "wav", "waveform", "audio_pcm", "pcm"),
    LatentHandler: ("latent", "latents", "z", "posterior"),
    TokenIdsHandler: ("token_ids",),
}
EVERY_KEY = [(handler, key) for handler, keys in KEYS.items() for key in keys]


def output(payload):
    return c.OmniOutput(multimodal_outputs=payload)


@pytest.mark.parametrize(("handler", "key"), EVERY_KEY)
def test_each_key_is_extracted_flat_as_it_is(handler, key):
    chunk = torch.ones(1, 4)
    assert handler().extract(output({key: chunk, "fps": 24})) is chunk


@pytest.mark.parametrize(("handler", "key"), EVERY_KEY)
def test_each_key_is_extracted_nested_under_the_modality(handler, key):
    chunk = torch.ones(1, 4)
    found = handler().extract(output({handler.modality: {key: chunk, "fps": 24}}))
    assert dict(found) == {key: chunk, "fps": 24}


@pytest.mark.parametrize("handler", KEYS)
def test_nothing_of_the_modality_gives_none(handler):
    other = "image" if handler is not ImageHandler else "audio"
    assert (
        handler().extract(output({other: torch.ones(1, 4), "model_outputs": torch.ones(1)})) is None
    )
    assert handler().extract(output({})) is None


def test_a_tuple_of_chunks_is_extracted_as_it_is():
    chunks = (torch.ones(3), torch.ones(2))
    assert AudioHandler().extract(output({"audio": chunks})) == chunks


def test_two_keys_of_one_modality_are_ambiguous():
    with pytest.raises(c.AccumulationError) as caught:
        AudioHandler().extract(output({"wav": torch.ones(1), "pcm": torch.ones(1)}))
    assert "wav and pcm" in str(caught.value)


def test_a_nested_tensor_under_a_key_of_no_meaning_is_refused_by_name():
    with pytest.raises(c.AccumulationError) as caught:
        AudioHandler().extract(output({"audio": {"waveform": torch.ones(1), "mel": torch.ones(2)}}))
    assert (caught.value.modality, caught.value.key) == ("audio", "audio.mel")


@pytest.mark.parametrize(
    ("handler", "shapes", "expected"),
    [
        (ImageHandler, [(1, 3, 8, 8), (1, 3, 8, 8)], (2, 3, 8, 8)),
        (VideoHandler, [(16, 3, 4, 4), (8, 3, 4, 4)], (24, 3, 4, 4)),
        (LatentHandler, [(2, 5), (0, 5), (1, 5)], (3, 5)),
        (AudioHandler, [(1, 500), (1, 300)], (1, 800)),
        (AudioHandler, [(500,), (300,)], (800,)),
        (AudioHandler, [(4, 2, 10), (4, 2, 1)], (4, 2, 11)),
        (TokenIdsHandler, [(1, 7), (1, 2)], (1, 9)),
    ],
)
def test_chunks_of_any_rank_are_concatenated_along_the_handler_s_axis(handler, shapes, expected):
    chunks = [torch.randn(shape) for shape in shapes]
    accumulated = None
    for chunk in chunks:
        accumulated = handler().accumulate(accumulated, chunk)
    value = handler().consolidate(accumulated)
    assert value.shape == expected
    # An independent way to the same values: one chunk after the other, along the axis.
    axis = handler.dim % len(expected)
    start = 0
    for chunk in chunks:
        assert torch.equal(value.narrow(axis, start, chunk.shape[axis]), chunk)
        start += chunk.shape[axis]


def test_consolidating_changes_nothing_and_is_not_changed_by_later_chunks():
    handler = AudioHandler()
    accumulated = handler.accumulate(None, torch.ones(1, 2))
    accumulated = handler.accumulate(accumulated, torch.full((1, 2), 2.0))
    first = handler.consolidate(accumulated)
    assert torch.equal(handler.consolidate(accumulated), first)
    accumulated = handler.accumulate(accumulated, torch.full((1, 1), 3.0))
    assert first.tolist() == [[1, 1, 2, 2]]
    assert handler.consolidate(accumulated).tolist() == [[1, 1, 2, 2, 3]]


def test_a_handler_keeps_no_state_of_its_own():
    handler = AudioHandler()
    one = handler.accumulate(None, torch.ones(1, 2))
    other = handler.accumulate(None, torch.ones(2, 5))
    assert handler.consolidate(one).shape == (1, 2)
    assert handler.consolidate(other).shape == (2, 5)


@pytest.mark.parametrize(
    "second",
    [torch.ones(1, 50), torch.ones(2, 50, dtype=torch.float64), torch.ones(100), torch.ones(())],
    ids=["channels", "dtype", "rank", "scalar"],
)
def test_a_chunk_unlike_the_first_is_refused_and_changes_nothing(second):
    handler = AudioHandler()
    accumulated = handler.accumulate(None, torch.ones(2, 100))
    with pytest.raises(c.AccumulationError):
        handler.accumulate(accumulated, second)
    with pytest.raises(c.AccumulationError):
        handler.accumulate(accumulated, (torch.ones(2, 1), second))
    assert handler.consolidate(accumulated).shape == (2, 100)


def test_a_scalar_does_not_continue_a_vector():
    handler = AudioHandler()
    accumulated = handler.accumulate(None, torch.ones(5))
    with pytest.raises(c.AccumulationError):
        handler.accumulate(accumulated, torch.ones(()))


def test_a_refused_tuple_of_first_chunks_fixes_nothing():
    handler = AudioHandler()
    accumulated = handler.accumulate(None, ())
    with pytest.raises(c.AccumulationError):
        handler.accumulate(accumulated, (torch.ones(2, 100), torch.ones(1, 50)))
    assert handler.consolidate(handler.accumulate(accumulated, torch.ones(1, 3))).shape == (1, 3)


def test_a_tensor_without_dimensions_cannot_be_concatenated():
    with pytest.raises(c.AccumulationError):
        AudioHandler().accumulate(None, torch.ones(()))


@pytest.mark.parametrize(
    ("value", "valid"),
    [(torch.ones(1), True), ((torch.ones(1), torch.ones(2)), True), (None, False), ([1], False)],
)
def test_a_valid_value_is_a_tensor_or_a_tuple_of_them(value, valid):
    assert ImageHandler().validate(value) is valid


def test_text_exists_only_as_token_ids():
    handler = TextHandler()
    assert handler.modality == "text"
    assert handler.extract(output({"text": torch.ones(3)})) is None
    with pytest.raises(c.AccumulationError):
        handler.accumulate(None, torch.ones(3))
    with pytest.raises(c.AccumulationError):
        handler.consolidate(torch.ones(3))
    assert handler.validate(c.TokenIds([1, 2]))
    assert not handler.validate(torch.ones(3))
