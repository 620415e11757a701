"""The demo's encoders: rows per item, and independence of items from one another."""

import numpy as np
import pytest
import torch
from PIL import Image

import omniwire as ow
from omniwire.demo.media import Media
from omniwire.demo.models import HIDDEN_SIZE, DemoLanguageModel, DemoModel
from omniwire.demo.photographs import Photograph
from omniwire.demo.preprocess import build_request
from omniwire.demo.prompt import PLACEHOLDERS
from omniwire.demo.sounds import Sound
from omniwire.demo.videos import Video


@pytest.fixture(scope="module")
def params() -> ow.MultimodalParams:
    generator = np.random.default_rng(0)

    def picture(*size: int) -> Image.Image:
        return Image.fromarray(generator.integers(0, 255, (*size, 3), dtype=np.uint8))

    samples = generator.normal(0, 0.1, 80_000).astype(np.float32)
    media = Media(
        (Photograph("one", picture(84, 112)), Photograph("two", picture(56, 56))),
        (Sound("sound", samples, 16_000, 1),),
        (Video("video", [picture(28, 56), picture(28, 56), picture(28, 56)], (56, 28), 3),),
    )
    request = build_request("r", media, "")
    assert request.multimodal_params is not None
    return request.multimodal_params


@torch.inference_mode()
def test_any_selection_encodes_to_the_rows_of_the_full_request(params: ow.MultimodalParams) -> None:
    model = DemoModel()
    full = model.encode_multimodal_inputs([params])[0]
    assert full.shape == (12 + 200 + 200 + 4 + 4, HIDDEN_SIZE)
    pieces = torch.split(full, [12, 200, 200, 4, 4])
    for chosen in ([0], [2], [3], [4, 0], [1, 3], [4, 3, 2, 1, 0]):
        rows = model.encode_multimodal_inputs([ow.select(params, chosen)])[0]
        expected = torch.cat([pieces[index] for index in chosen])
        torch.testing.assert_close(rows, expected, atol=1e-4, rtol=0)


@torch.inference_mode()
def test_several_requests_are_encoded_together(params: ow.MultimodalParams) -> None:
    model = DemoModel()
    views = [ow.select(params, [4, 3]), ow.select(params, [1, 0])]
    together = model.encode_multimodal_inputs(views)
    for view, rows in zip(views, together, strict=True):
        alone = model.encode_multimodal_inputs([view])[0]
        torch.testing.assert_close(rows, alone, atol=1e-4, rtol=0)


@torch.inference_mode()
def test_encoding_directly_gives_each_modality_in_local_order(params: ow.MultimodalParams) -> None:
    model = DemoModel()
    pieces = torch.split(model.encode_multimodal_inputs([params])[0], [12, 200, 200, 4, 4])
    direct = model.encode_directly(params.multimodal_data)
    expected = {
        "image": torch.cat([pieces[0], pieces[4]]),
        "audio": torch.cat([pieces[1], pieces[2]]),
        "video": pieces[3],
    }
    torch.testing.assert_close(direct, expected, atol=1e-4, rtol=0)


@torch.inference_mode()
def test_models_are_seeded(params: ow.MultimodalParams) -> None:
    first, second = (DemoModel().encode_multimodal_inputs([params])[0] for _ in range(2))
    assert torch.equal(first, second)


@torch.inference_mode()
def test_fusing_by_modality_equals_fusing_rows_in_prompt_order() -> None:
    model = DemoLanguageModel()
    image, audio, video = PLACEHOLDERS.values()
    token_ids = [65, video, image, 66, audio, image, video, 67]
    rows = torch.randn(5, HIDDEN_SIZE, generator=torch.Generator().manual_seed(0))
    by_modality = {"image": rows[[1, 3]], "audio": rows[[2]], "video": rows[[0, 4]]}
    fused = model.fuse(token_ids, rows)
    assert torch.equal(fused, model.fuse_by_modality(token_ids, by_modality))
    assert torch.equal(fused[[1, 2, 4, 5, 6]], rows)
    assert not torch.equal(fused, model.fuse(token_ids, rows.flip(0)))


@torch.inference_mode()
def test_prefill_in_windows_equals_prefill_at_once() -> None:
    model = DemoLanguageModel()
    inputs = torch.randn(6, HIDDEN_SIZE, generator=torch.Generator().manual_seed(0))
    at_once = model.prefill(inputs, model.initial_state())
    state = model.prefill(inputs[:2], model.initial_state())
    state = model.prefill(inputs[2:], state)
    torch.testing.assert_close(state, at_once, atol=1e-5, rtol=0)
    step = model.step(state)
    assert (step.audio.shape, model.image(state).shape) == ((1, 1920), (1, 3, 32, 32))
