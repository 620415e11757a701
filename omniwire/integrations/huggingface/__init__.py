"""Layouts of what transformers' processors emit, and a `MultimodalProcessor` made of them.

A layout knows one modality of one model family: its payload fields, how they divide into
items, and what each item costs and yields. Nothing here imports transformers: its outputs
are plain tensors, and every setting is given by its name there.
"""

from omniwire.integrations.huggingface.audio import QwenOmniAudio, WhisperAudio
from omniwire.integrations.huggingface.layout import ItemLayout, ModalityLayout
from omniwire.integrations.huggingface.pixtral import PixtralImages
from omniwire.integrations.huggingface.processor import HuggingFaceProcessor
from omniwire.integrations.huggingface.qwen import QwenImages, QwenVideos
from omniwire.integrations.huggingface.tiles import (
    Gemma3Images,
    InternVLImages,
    InternVLVideos,
    LlavaNextImages,
)

__all__ = [
    "Gemma3Images",
    "HuggingFaceProcessor",
    "InternVLImages",
    "InternVLVideos",
    "ItemLayout",
    "LlavaNextImages",
    "ModalityLayout",
    "PixtralImages",
    "QwenImages",
    "QwenOmniAudio",
    "QwenVideos",
    "WhisperAudio",
]
