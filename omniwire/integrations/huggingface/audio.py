"""Audio encoders of the Whisper kind: a spectrogram per clip, convolutions that halve it."""

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
import numpy as np
import torch

from omniwire.contracts.errors import Path
from omniwire.integrations.huggingface.layout import (
    ItemLayout,
    check_settings,
    host_ints,
    misfit,
    partitions_of,
    shape_of,
)


@attrs.frozen
class WhisperAudio:
    """Clips padded to one length, all of which is encoded.

    `input_features` is `[clips, mel bins, frames]`. The second convolution of the encoder
    halves the frames; a projector may stack consecutive encoder rows into one (Voxtral: 4).

    Attributes:
        num_mel_bins: Bins of the spectrogram (`feature_size` there).
        max_frames: Frames of a clip, for `dummy` (3000 are 30 s).
        num_stacked_rows: Encoder rows per embedding row.
    """

    field_names: ClassVar[tuple[str, ...]] = ("input_features",)

    num_mel_bins: int = 80
    max_frames: int = 3000
    num_stacked_rows: int = 1

    def __attrs_post_init__(self) -> None:
        check_settings(self, {"num_mel_bins": 1, "max_frames": 1, "num_stacked_rows": 1})

    def items(self, fields: Mapping[str, Any], path: Path) -> ItemLayout:
        """The items in a payload; see `ModalityLayout.items`."""
        num_clips, num_frames = _clips(fields, path)
        num_tokens = _halved(num_frames)
        return ItemLayout(
            encoder_token_lengths=(num_tokens,) * num_clips,
            output_embedding_lengths=(num_tokens // self.num_stacked_rows,) * num_clips,
            partitions=partitions_of(fields, self.field_names),
        )

    def dummy(self, num_items: int) -> dict[str, Any]:
        """A payload of that many of the largest items, of zeros."""
        return {"input_features": torch.zeros(num_items, self.num_mel_bins, self.max_frames)}


@attrs.frozen
class QwenOmniAudio:
    """Clips padded to one length, of which a mask says what is encoded (Qwen2.5-Omni).

    `input_features` is `[clips, mel bins, frames]`, `feature_attention_mask`
    `int[clips, frames]`, and newer processors add `num_audio_tokens` `int[clips]`. The
    encoder's second convolution and its pooling each halve the frames that the mask keeps.

    Attributes:
        num_mel_bins: Bins of the spectrogram (`feature_size` there).
        max_frames: Frames of a clip, for `dummy` (30000 are 300 s).
    """

    field_names: ClassVar[tuple[str, ...]] = (
        "input_features",
        "feature_attention_mask",
        "num_audio_tokens",
    )

    num_mel_bins: int = 128
    max_frames: int = 30000

    def __attrs_post_init__(self) -> None:
        check_settings(self, {"num_mel_bins": 1, "max_frames": 4})

    def items(self, fields: Mapping[str, Any], path: Path) -> ItemLayout:
        """The items in a payload; see `ModalityLayout.items`."""
        num_clips, num_frames = _clips(fields, path)
        name = "feature_attention_mask"
        if shape_of(fields, name, path) != (num_clips, num_frames):
            expected = f"a mask of shape [{num_clips}, {num_frames}]"
            raise misfit((*path, name), "shape", expected, fields[name])
        mask = fields[name]
        if not isinstance(mask, torch.Tensor | np.ndarray):
            raise misfit((*path, name), "type", "a mask on the host", mask)
        if isinstance(mask, torch.Tensor) and mask.device.type != "cpu":
            # Reading it would wait for everything queued on the device.
            raise misfit((*path, name), "device", "a mask on the host", mask)
        tokens = [_halved(frames) for frames in host_ints({name: mask.sum(-1)}, name, path)]
        return ItemLayout(
            encoder_token_lengths=tuple(tokens),
            output_embedding_lengths=tuple([(count - 2) // 2 + 1 for count in tokens]),
            partitions=partitions_of(fields, self.field_names),
        )

    def dummy(self, num_items: int) -> dict[str, Any]:
        """A payload of that many of the largest items, of zeros."""
        return {
            "input_features": torch.zeros(num_items, self.num_mel_bins, self.max_frames),
            "feature_attention_mask": torch.ones(num_items, self.max_frames, dtype=torch.int32),
        }


def _clips(fields: Mapping[str, Any], path: Path) -> tuple[int, int]:
    """Clips and padded frames of `input_features`."""
    shape = shape_of(fields, "input_features", path)
    if len(shape) != 3:
        expected = "features of shape [clips, mel bins, frames]"
        raise misfit((*path, "input_features"), "shape", expected, fields["input_features"])
    return shape[0], shape[2]


def _halved(num_frames: int) -> int:
    """Frames after a convolution of kernel 3, stride 2 and padding 1."""
    return (num_frames - 1) // 2 + 1
