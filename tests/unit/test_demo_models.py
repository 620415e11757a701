"""The demo's encoders: rows per item, and independence of items from one another."""

import numpy as np
import pytest
import torch
from PIL import Image

import omniwire as ow
from omniwire.demo.media import Photograph, Sound
from omniwire.demo.models import HIDDEN_SIZE, DemoLanguageModel, DemoModel
from omniwire.demo.preprocess import build_request, preprocess
from omniwire.demo.prompt import IMAGE_PAD


@pytest.fixture(scope="module")
def params() -> ow.MultimodalParams:
    generator = np.random.default_rng(0)
    photographs = [
        Photograph("photo", Image.fromarray(generator.integers(0, 255, size, dtype=np.uint8)))
        for size in ((84, 112, 3), (56, 56, 3))
    ]
    sound = Sound("sound", generator.normal(0, 0.1, 80_000).astype(np.float32), 16_000, 1)
    request = build_request("r", *preprocess(photographs, [sound]))
    assert request.multimodal_params is not None
    return request.multimodal_params


@torch.inference_mode()
def test_any_selection_encodes_to_the_rows_of_the_full_request(params: ow.MultimodalParams) -> None:
    model = DemoModel()
    full = model.encode_multimodal_inputs([params])[0]
    assert full.shape == (12 + 200 + 200 + 4, HIDDEN_SIZE)
    starts = {0: slice(0, 12), 1: slice(12, 212), 2: slice(212, 412), 3: slice(412, 416)}
    for chosen in ([0], [2], [3, 0], [1, 3], [3, 2, 1, 0]):
        rows = model.encode_multimodal_inputs([ow.select(params, chosen)])[0]
        expected = torch.cat([full[starts[index]] for index in chosen])
        torch.testing.assert_close(rows, expected, atol=1e-4, rtol=0)


@torch.inference_mode()
def test_several_requests_are_encoded_together(params: ow.MultimodalParams) -> None:
    model = DemoModel()
    views = [ow.select(params, [3]), ow.select(params, [1, 0])]
    together = model.encode_multimodal_inputs(views)
    for view, rows in zip(views, together, strict=True):
        alone = model.encode_multimodal_inputs([view])[0]
        torch.testing.assert_close(rows, alone, atol=1e-4, rtol=0)


@torch.inference_mode()
def test_models_are_seeded(params: ow.MultimodalParams) -> None:
    first, second = (DemoModel().encode_multimodal_inputs([params])[0] for _ in range(2))
    assert torch.equal(first, second)


@torch.inference_mode()
def test_prefill_in_windows_equals_prefill_at_once() -> None:
    model = DemoLanguageModel()
    token_ids = [65, IMAGE_PAD, IMAGE_PAD, 66, IMAGE_PAD, 67]
    rows = torch.randn(3, HIDDEN_SIZE, generator=torch.Generator().manual_seed(0))
    at_once = model.prefill(token_ids, rows, model.initial_state())
    state = model.prefill(token_ids[:2], rows[:1], model.initial_state())
    state = model.prefill(token_ids[2:], rows[1:], state)
    torch.testing.assert_close(state, at_once, atol=1e-5, rtol=0)
    step = model.step(state)
    assert (step.audio.shape, model.image(state).shape) == ((1, 1920), (1, 3, 32, 32))
