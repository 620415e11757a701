"""The models: real transformers encoders with small, seeded random weights, on the CPU.

Everything is built from a configuration, so nothing is downloaded. Both encoders yield rows
of `HIDDEN_SIZE`; a small recurrent network with output heads stands in for the language
model, since what matters here is which rows reach it and what it streams back.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, NamedTuple, cast

import torch
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel
from transformers.models.whisper.configuration_whisper import WhisperConfig
from transformers.models.whisper.modeling_whisper import WhisperEncoder

import omniwire as ow
from omniwire.demo.agreement import ROWS_PER_CLIP
from omniwire.demo.prompt import AUDIO_PAD, IMAGE_PAD, VOCABULARY_SIZE

HIDDEN_SIZE: Final = 128
"""Width of an embedding row, float32."""

OUTPUT_SAMPLE_RATE: Final = 24_000
SAMPLES_PER_STEP: Final = 1_920
"""Audio samples of one generation step: 80 ms."""

IMAGE_SIDE: Final = 32
"""Side in pixels of the image that generation makes."""

_SEED: Final = 20_240_607


class DemoModel(ow.MultimodalEncoderMixin):
    """The two encoders behind one group, able to encode any subset of a request's items."""

    supports_mm_encoder_item_scheduling: ClassVar[bool] = True

    def __init__(self) -> None:
        torch.manual_seed(_SEED)
        self._vision = Qwen2VisionTransformerPretrainedModel(
            Qwen2VLVisionConfig(
                depth=2, embed_dim=64, num_heads=4, mlp_ratio=2, hidden_size=HIDDEN_SIZE
            )
        ).train(mode=False)
        self._audio = WhisperEncoder(
            WhisperConfig(
                d_model=HIDDEN_SIZE,
                encoder_layers=2,
                encoder_attention_heads=4,
                encoder_ffn_dim=2 * HIDDEN_SIZE,
                max_source_positions=ROWS_PER_CLIP,
            )
        ).train(mode=False)
        self._group = ow.EncoderGroup({"image": self._encode_images, "audio": self._encode_audio})

    def encode_multimodal_inputs(self, params: list[ow.MultimodalParams]) -> list[torch.Tensor]:
        """Embedding rows float32[num_embedding_rows, HIDDEN_SIZE] per params, in prompt order."""
        return self._group.encode(params)

    def _encode_images(self, params: list[ow.MultimodalParams]) -> torch.Tensor:
        pixel_values = [payload_tensor(p, "image", "pixel_values") for p in params]
        grids = [payload_tensor(p, "image", "image_grid_thw") for p in params]
        encoded = self._vision(_joined(pixel_values), grid_thw=_joined(grids))
        return cast(torch.Tensor, encoded.pooler_output)

    def _encode_audio(self, params: list[ow.MultimodalParams]) -> torch.Tensor:
        features = [payload_tensor(p, "audio", "input_features") for p in params]
        encoded = self._audio(_joined(features))
        return cast(torch.Tensor, encoded.last_hidden_state).flatten(0, 1)


class Step(NamedTuple):
    """What one generation step yields: a token id, audio float32[1, SAMPLES_PER_STEP], state."""

    token_id: int
    audio: torch.Tensor
    state: torch.Tensor


class DemoLanguageModel(torch.nn.Module):
    """A recurrent stand-in for the language model; its state float32[1, 1, hidden] is its cache."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(_SEED + 1)
        self._tokens = torch.nn.Embedding(VOCABULARY_SIZE, HIDDEN_SIZE)
        self._recurrent = torch.nn.GRU(HIDDEN_SIZE, HIDDEN_SIZE, batch_first=True)
        self._token_head = torch.nn.Linear(HIDDEN_SIZE, VOCABULARY_SIZE)
        self._audio_head = torch.nn.Linear(HIDDEN_SIZE, SAMPLES_PER_STEP)
        self._image_head = torch.nn.Linear(HIDDEN_SIZE, 3 * IMAGE_SIDE * IMAGE_SIDE)

    def initial_state(self) -> torch.Tensor:
        """The state before the first prompt token."""
        return torch.zeros(1, 1, HIDDEN_SIZE)

    def prefill(
        self, token_ids: Sequence[int], embeddings: torch.Tensor, state: torch.Tensor
    ) -> torch.Tensor:
        """Read one window of the prompt.

        Args:
            token_ids: The window's tokens.
            embeddings: float32[num_rows, HIDDEN_SIZE], one row per placeholder in the window.
            state: The state before the window.

        Returns:
            The state after it.
        """
        ids = torch.tensor(token_ids)
        inputs = self._tokens(ids)
        inputs[(ids == IMAGE_PAD) | (ids == AUDIO_PAD)] = embeddings
        return cast(torch.Tensor, self._recurrent(inputs.unsqueeze(0), state)[1])

    def step(self, state: torch.Tensor) -> Step:
        """Generate one token and its piece of audio, float32 in -1 to 1."""
        hidden = state[0]
        token_id = int(self._token_head(hidden).argmax())
        audio = torch.tanh(self._audio_head(hidden))
        inputs = self._tokens(torch.tensor([[token_id]]))
        return Step(token_id, audio, self._recurrent(inputs, state)[1])

    def image(self, state: torch.Tensor) -> torch.Tensor:
        """Generate an image, float32[1, 3, IMAGE_SIDE, IMAGE_SIDE] in 0 to 1."""
        return torch.sigmoid(self._image_head(state[0])).view(1, 3, IMAGE_SIDE, IMAGE_SIDE)


def _joined(tensors: list[torch.Tensor]) -> torch.Tensor:
    """All rows in one tensor: what a single request brings is not copied."""
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def payload_tensor(params: ow.MultimodalParams, modality: str, field: str) -> torch.Tensor:
    """One field of a modality's payload, which the demo's processor made a tensor."""
    fields = cast(Mapping[str, object], params.multimodal_data[modality])
    return cast(torch.Tensor, fields[field])
