"""The models: real transformers encoders with small, seeded random weights, on the CPU.

Everything is built from a configuration, so nothing is downloaded. All encoders yield rows
of `HIDDEN_SIZE`; a small recurrent network with output heads stands in for the language
model, since what matters here is which rows reach it and what it streams back.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple, cast

import torch
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel
from transformers.models.whisper.configuration_whisper import WhisperConfig
from transformers.models.whisper.modeling_whisper import WhisperEncoder

import omniwire as ow
from omniwire.demo.agreement import FRAMES_PER_CLIP, NUM_MEL_BINS
from omniwire.demo.prompt import PLACEHOLDERS, VOCABULARY_SIZE

HIDDEN_SIZE: Final = 128
"""Width of an embedding row, float32."""

OUTPUT_SAMPLE_RATE: Final = 24_000
SAMPLES_PER_STEP: Final = 1_920
"""Audio samples of one generation step: 80 ms."""

IMAGE_SIDE: Final = 32
"""Side in pixels of the image that generation makes."""

_SEED: Final = 20_240_607


class DemoModel(ow.MultimodalEncoderMixin):
    """The encoders behind one group, able to encode any subset of a request's items.

    Photographs and videos share the vision encoder.
    """

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
                num_mel_bins=NUM_MEL_BINS,
                encoder_layers=2,
                encoder_attention_heads=4,
                encoder_ffn_dim=2 * HIDDEN_SIZE,
                max_source_positions=FRAMES_PER_CLIP // 2,
            )
        ).train(mode=False)
        self._fields: dict[str, tuple[str, ...]] = {
            "image": ("pixel_values", "image_grid_thw"),
            "audio": ("input_features",),
            "video": ("pixel_values_videos", "video_grid_thw"),
        }
        self._encoders: dict[str, Callable[..., torch.Tensor]] = {
            "image": self._encode_patches,
            "audio": self._encode_clips,
            "video": self._encode_patches,
        }
        self._group = ow.EncoderGroup(
            {modality: partial(self._encode, modality) for modality in self._encoders}
        )

    def encode_multimodal_inputs(self, params: list[ow.MultimodalParams]) -> list[torch.Tensor]:
        """Embedding rows float32[num_embedding_rows, HIDDEN_SIZE] per params, in prompt order."""
        return self._group.encode(params)

    def encode_directly(self, payload: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """The rows of each modality's items in local order, with nothing of omniwire between."""
        return {
            modality: encoder(*[payload[modality][name] for name in self._fields[modality]])
            for modality, encoder in self._encoders.items()
            if modality in payload
        }

    def _encode(self, modality: str, params: list[ow.MultimodalParams]) -> torch.Tensor:
        payloads: list[Mapping[str, Any]] = [one.multimodal_data[modality] for one in params]
        names = self._fields[modality]
        fields = [_joined([payload[name] for payload in payloads]) for name in names]
        return self._encoders[modality](*fields)

    def _encode_patches(self, patches: torch.Tensor, grid_thw: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, self._vision(patches, grid_thw=grid_thw).pooler_output)

    def _encode_clips(self, features: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, self._audio(features).last_hidden_state).flatten(0, 1)


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

    def fuse(self, token_ids: Sequence[int], rows: torch.Tensor) -> torch.Tensor:
        """The inputs of some prompt tokens: embedding rows at all placeholders, text elsewhere.

        Args:
            token_ids: The tokens.
            rows: float32[num_rows, HIDDEN_SIZE], one per placeholder among them.

        Returns:
            float32[num_tokens, HIDDEN_SIZE].
        """
        ids = torch.tensor(token_ids)
        inputs = cast(torch.Tensor, self._tokens(ids))
        inputs[torch.isin(ids, torch.tensor(list(PLACEHOLDERS.values())))] = rows
        return inputs

    def fuse_by_modality(
        self, token_ids: Sequence[int], rows: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        """As `fuse`, from the rows of each modality, as transformers' own models do it."""
        ids = torch.tensor(token_ids)
        inputs = cast(torch.Tensor, self._tokens(ids))
        for modality, own in rows.items():
            mask = (ids == PLACEHOLDERS[modality]).unsqueeze(1).expand_as(inputs)
            inputs = inputs.masked_scatter(mask, own)
        return inputs

    def prefill(self, inputs: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Read one window of the prompt: the state after it.

        Args:
            inputs: What `fuse` gives for the window.
            state: The state before the window.
        """
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
