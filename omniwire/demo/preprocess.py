"""From decoded media to a request: the Hugging Face processors, the prompt, the adapters."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.whisper.feature_extraction_whisper import WhisperFeatureExtractor

import omniwire as ow
from omniwire.demo.agreement import (
    LAYOUTS,
    MAX_ROWS_PER_IMAGE,
    MAX_ROWS_PER_STEP,
    MERGE_SIZE,
    NUM_MEL_BINS,
    PATCH_SIZE,
    PIXELS_PER_ROW,
    SECONDS_PER_CLIP,
    make_processor,
)
from omniwire.demo.media import Media
from omniwire.demo.photographs import Photograph
from omniwire.demo.prompt import build_prompt
from omniwire.demo.sounds import SAMPLE_RATE, Sound
from omniwire.demo.videos import Video
from omniwire.integrations.huggingface import HuggingFaceProcessor

_FRAMES_PER_STEP: Final = 2


def preprocess(media: Media) -> dict[str, dict[str, Any]]:
    """Run the Hugging Face processors; the payload per modality."""
    outputs: dict[str, Mapping[str, Any]] = {}
    if media.photographs:
        images = [photograph.image for photograph in media.photographs]
        outputs["image"] = _image_processor(MAX_ROWS_PER_IMAGE)(images, return_tensors="pt")
    if media.sounds:
        extractor = WhisperFeatureExtractor(  # type: ignore[no-untyped-call]  # unannotated
            feature_size=NUM_MEL_BINS, sampling_rate=SAMPLE_RATE, chunk_length=SECONDS_PER_CLIP
        )
        clips = [clip for sound in media.sounds for clip in sound.clips()]
        outputs["audio"] = extractor(clips, sampling_rate=SAMPLE_RATE, return_tensors="pt")
    if media.videos:
        outputs["video"] = _video_fields(media.videos)
    return make_processor().payload(**outputs)


def build_request(request_id: str, media: Media, task: str) -> ow.ProcessedRequest:
    """Preprocess the media, place them in a prompt and prepare the request, unchecked yet.

    Args:
        request_id: The request.
        media: What the prompt shows, its kinds taking turns.
        task: What it asks.
    """
    payload = preprocess(media)
    # transformers' own processors expand the placeholders from the same numbers.
    order = item_order(media)
    record = HuggingFaceProcessor(LAYOUTS).get_mm_item_metadata((), payload, order)
    rows = () if record is None else record.output_embedding_lengths or ()
    runs = [_runs(payload, ref, num_rows) for ref, num_rows in zip(order, rows, strict=True)]
    modalities = [modality for modality, _ in order]
    token_ids = build_prompt(list(zip(modalities, runs, strict=True)), task)
    deltas = {"mrope_position_deltas": _mrope_position_deltas(payload)}
    # Order, positions and runs are found again in the prompt, by its placeholders.
    return make_processor().prepare(request_id, token_ids, {**payload, "mrope_config": deltas})


def item_order(media: Media) -> list[tuple[str, int]]:
    """The items that the media become, in prompt order; a sound becomes one per clip."""
    counts = {"image": 0, "audio": 0, "video": 0}
    order: list[tuple[str, int]] = []
    for medium in media.in_turns():
        modality = _MODALITIES[type(medium)]
        for _ in range(num_items(medium)):
            order.append((modality, counts[modality]))
            counts[modality] += 1
    return order


_MODALITIES: Final[Mapping[type, str]] = {Photograph: "image", Sound: "audio", Video: "video"}


def num_items(medium: Photograph | Sound | Video) -> int:
    """How many items a photograph, a sound or a video becomes."""
    return len(medium.clips()) if isinstance(medium, Sound) else 1


def _image_processor(max_rows: int) -> Qwen2VLImageProcessorPil:
    limits = {"shortest_edge": PIXELS_PER_ROW, "longest_edge": max_rows * PIXELS_PER_ROW}
    return Qwen2VLImageProcessorPil(size=limits, patch_size=PATCH_SIZE, merge_size=MERGE_SIZE)


def _video_fields(videos: Sequence[Video]) -> dict[str, torch.Tensor]:
    """What transformers' `Qwen2VLVideoProcessor` documents, made by its image processor.

    That class needs torchvision. The image processor makes a patch of twice the same frame; of
    two frames' patches, the first half of one and the second half of the other are the patch
    of both.
    """
    processor = _image_processor(MAX_ROWS_PER_STEP)
    patches: list[torch.Tensor] = []
    grids: list[list[int]] = []
    for video in videos:
        frames = video.frames + video.frames[-1:] * (len(video.frames) % _FRAMES_PER_STEP)
        images = processor(frames, return_tensors="pt")
        _, height, width = images["image_grid_thw"][0].tolist()
        steps = len(frames) // _FRAMES_PER_STEP
        # [step, frame of the step, patch, color, copy, pixel]
        halves = images["pixel_values"].view(steps, 2, height * width, 3, 2, PATCH_SIZE**2)
        joined = torch.stack([halves[:, 0, :, :, 0], halves[:, 1, :, :, 1]], dim=3)
        patches.append(joined.view(steps * height * width, -1))
        grids.append([steps, height, width])
    return {"pixel_values_videos": torch.cat(patches), "video_grid_thw": torch.tensor(grids)}


def _runs(payload: Mapping[str, Mapping[str, Any]], ref: tuple[str, int], rows: int) -> list[int]:
    """The rows of each run of an item: one run, or for a video one per step in time."""
    modality, index = ref
    steps = int(payload["video"]["video_grid_thw"][index, 0]) if modality == "video" else 1
    return [rows // steps] * steps


def _mrope_position_deltas(payload: Mapping[str, Mapping[str, Any]]) -> torch.Tensor:
    """How far generation's rotary positions lie behind its token positions, int64[1, 1].

    A run of h x w patches moves the position on by the larger of h/2 and w/2 instead of by its
    rows (Qwen2-VL, multimodal rotary position embedding).
    """
    delta = 0
    for modality in ("image", "video"):
        if modality in payload:
            for steps, height, width in payload[modality][f"{modality}_grid_thw"].tolist():
                rows = height * width // MERGE_SIZE**2
                delta += steps * (max(height, width) // MERGE_SIZE - rows)
    return torch.tensor([[delta]])
