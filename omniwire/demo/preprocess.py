"""The processor's model knowledge: Hugging Face processors, item costs, rows and partitions."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Final, cast

import numpy as np
import numpy.typing as npt
import torch
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.whisper.feature_extraction_whisper import WhisperFeatureExtractor

import omniwire as ow
from omniwire.demo.agreement import (
    MAX_ENCODER_TOKENS_PER_ITEM,
    MAX_ROWS_PER_IMAGE,
    MERGE_SIZE,
    ROWS_PER_CLIP,
    SECONDS_PER_CLIP,
)
from omniwire.demo.media import SAMPLE_RATE, Photograph, Sound
from omniwire.demo.prompt import PromptItem, build_prompt

PATCH_SIZE: Final = 14
"""Side of a patch in pixels."""

PATCH_WIDTH: Final = 3 * 2 * PATCH_SIZE * PATCH_SIZE
"""Numbers in a patch: colors x frames x pixels."""

NUM_MEL_BINS: Final = 80
FRAMES_PER_CLIP: Final = 2 * ROWS_PER_CLIP


class DemoProcessor:
    """A `MultimodalProcessor`: costs and partitions of both modalities' payloads."""

    def get_mm_item_metadata(
        self,
        prompt_token_ids: Sequence[int],
        multimodal_data: Mapping[str, object],
        mm_item_order: Sequence[tuple[str, int]] | None = None,
    ) -> ow.MultimodalItemMetadata | None:
        """Encoder tokens per item and the partition of every field; rows stay unknown here."""
        patches = _num_patches(multimodal_data)
        clips = _num_clips(multimodal_data)
        order = mm_item_order
        if order is None:
            modality, count = ("image", len(patches)) if patches else ("audio", clips)
            order = [(modality, index) for index in range(count)]
        if not order:
            return None
        return ow.MultimodalItemMetadata(
            item_refs=list(order),
            encoder_token_lengths=[
                patches[index] if modality == "image" else ROWS_PER_CLIP
                for modality, index in order
            ],
            input_partitions=_partitions(patches, clips),
        )

    def get_dummy_mm_data(self, max_items: Mapping[str, int]) -> Mapping[str, object]:
        """The largest payload of `max_items` items per modality, with exact rows."""
        data: dict[str, object] = {}
        num_images, num_clips = max_items.get("image", 0), max_items.get("audio", 0)
        height, width = MAX_ENCODER_TOKENS_PER_ITEM // 32, 32
        if num_images:
            data["image"] = {
                "pixel_values": torch.zeros(num_images * height * width, PATCH_WIDTH),
                "image_grid_thw": torch.tensor([[1, height, width]] * num_images),
            }
        if num_clips:
            data["audio"] = {
                "input_features": torch.zeros(num_clips, NUM_MEL_BINS, FRAMES_PER_CLIP)
            }
        order = [("image", index) for index in range(num_images)]
        order += [("audio", index) for index in range(num_clips)]
        if order:
            known = self.get_mm_item_metadata((), data, order)
            rows = ow.MultimodalItemMetadata(
                order, output_embedding_lengths=_num_embedding_rows(data, order)
            )
            data["item_metadata"] = rows if known is None else known.merge(rows)
        return data


def preprocess(
    photographs: Sequence[Photograph], sounds: Sequence[Sound]
) -> tuple[dict[str, object], list[tuple[str, int]]]:
    """Run the Hugging Face processors.

    Args:
        photographs: Decoded photographs.
        sounds: Decoded sounds.

    Returns:
        The payload per modality, and the items in prompt order: photographs and sounds take
        turns, the clips of a sound stay together.
    """
    data: dict[str, object] = {}
    if photographs:
        limits = {
            "shortest_edge": (PATCH_SIZE * MERGE_SIZE) ** 2,
            "longest_edge": MAX_ROWS_PER_IMAGE * (PATCH_SIZE * MERGE_SIZE) ** 2,
        }
        image_processor = Qwen2VLImageProcessorPil(
            size=limits, patch_size=PATCH_SIZE, merge_size=MERGE_SIZE
        )
        images = image_processor([photo.image for photo in photographs], return_tensors="pt")
        data["image"] = {
            "pixel_values": images["pixel_values"],
            "image_grid_thw": images["image_grid_thw"],
        }
    clips_per_sound = [_clips(sound) for sound in sounds]
    if sounds:
        extractor = WhisperFeatureExtractor(  # type: ignore[no-untyped-call]  # unannotated
            feature_size=NUM_MEL_BINS, sampling_rate=SAMPLE_RATE, chunk_length=SECONDS_PER_CLIP
        )
        clips = [clip for clips in clips_per_sound for clip in clips]
        features = extractor(clips, sampling_rate=SAMPLE_RATE, return_tensors="pt")
        data["audio"] = {"input_features": features["input_features"]}
    order = list(_take_turns(len(photographs), [len(clips) for clips in clips_per_sound]))
    return data, order


def build_request(
    request_id: str, data: Mapping[str, object], order: Sequence[tuple[str, int]]
) -> ow.ProcessedRequest:
    """Place the items in a prompt and prepare the request, without checking it yet.

    Args:
        request_id: The request.
        data: The payload per modality.
        order: The items in prompt order.
    """
    rows = _num_embedding_rows(data, order)
    prompt = build_prompt(
        [PromptItem(*ref, num_rows) for ref, num_rows in zip(order, rows, strict=True)]
    )
    digests = [ow.content_hash(_item_payload(data, *ref)) for ref in order]
    located = ow.MultimodalInput.from_hexdigests(
        digests,
        prompt.positions,
        prompt.num_prompt_tokens,
        # Placeholders are never interrupted by text, so each item is a single run.
        multimodal_item_run_cu_offsets=list(range(len(order) + 1)),
        multimodal_run_positions=prompt.positions,
        multimodal_run_lengths=prompt.num_prompt_tokens,
    )
    auxiliary = {
        "layout": {"special_token_offsets": tuple(prompt.special_token_offsets)},
        "mrope_config": {"mrope_position_deltas": _mrope_position_deltas(data)},
    }
    return ow.prepare_request(
        DemoProcessor(),
        request_id,
        prompt.token_ids,
        {**data, **auxiliary},
        mm_item_order=order,
        output_embedding_lengths=prompt.num_embedding_rows,
        multimodal_input=located,
    )


def num_clips(sound: Sound) -> int:
    """How many items a sound becomes."""
    return -(-len(sound.samples) // (SECONDS_PER_CLIP * SAMPLE_RATE))


def _clips(sound: Sound) -> list[npt.NDArray[np.float32]]:
    size = SECONDS_PER_CLIP * SAMPLE_RATE
    return [sound.samples[start : start + size] for start in range(0, len(sound.samples), size)]


def _take_turns(num_photographs: int, clips_per_sound: list[int]) -> Iterator[tuple[str, int]]:
    next_clip = 0
    for photograph, clips in zip_longest(range(num_photographs), clips_per_sound):
        if photograph is not None:
            yield "image", photograph
        for _ in range(clips or 0):
            yield "audio", next_clip
            next_clip += 1


def _tensor(data: Mapping[str, object], modality: str, field: str) -> torch.Tensor:
    return cast(torch.Tensor, cast(Mapping[str, object], data[modality])[field])


def _num_patches(data: Mapping[str, object]) -> list[int]:
    if "image" not in data:
        return []
    return [int(patches) for patches in _tensor(data, "image", "image_grid_thw").prod(dim=1)]


def _num_clips(data: Mapping[str, object]) -> int:
    return len(_tensor(data, "audio", "input_features")) if "audio" in data else 0


def _num_embedding_rows(data: Mapping[str, object], order: Sequence[tuple[str, int]]) -> list[int]:
    patches = _num_patches(data)
    return [
        patches[index] // MERGE_SIZE**2 if modality == "image" else ROWS_PER_CLIP
        for modality, index in order
    ]


def _partitions(patches: list[int], clips: int) -> dict[str, dict[str, ow.MultimodalItemPartition]]:
    partitions: dict[str, dict[str, ow.MultimodalItemPartition]] = {}
    if patches:
        partitions["image"] = {
            "pixel_values": ow.MultimodalItemPartition(item_lengths=patches),
            "image_grid_thw": ow.MultimodalItemPartition(),
        }
    if clips:
        partitions["audio"] = {"input_features": ow.MultimodalItemPartition()}
    return partitions


def _item_payload(data: Mapping[str, object], modality: str, index: int) -> dict[str, object]:
    """What of the payload belongs to one item; its content hash identifies the item."""
    if modality == "audio":
        return {"input_features": _tensor(data, "audio", "input_features")[index]}
    pieces = torch.split(_tensor(data, "image", "pixel_values"), _num_patches(data))
    return {
        "pixel_values": pieces[index],
        "image_grid_thw": _tensor(data, "image", "image_grid_thw")[index],
    }


def _mrope_position_deltas(data: Mapping[str, object]) -> torch.Tensor:
    """How far generation's rotary positions lie behind its token positions, int64[1, 1].

    An image of t x h x w patches moves the position on by the largest of t, h/2 and w/2
    instead of by its rows (Qwen2-VL, multimodal rotary position embedding).
    """
    delta = 0
    if "image" in data:
        for t, h, w in _tensor(data, "image", "image_grid_thw").tolist():
            rows = t * h * w // MERGE_SIZE**2
            delta += max(t, h // MERGE_SIZE, w // MERGE_SIZE) - rows
    return torch.tensor([[delta]])
