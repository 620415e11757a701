"""Every layout against transformers itself: its processors' output and its models' encoders.

The processors and encoders are built from small configurations. How many tokens an encoder
sees is counted at its first block, how many rows it yields at its end: neither is computed
by the code under test.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    CLIPVisionConfig,
    Gemma3Config,
    Gemma3Model,
    Gemma3TextConfig,
    InternVLConfig,
    InternVLModel,
    InternVLVisionConfig,
    LlamaConfig,
    LlavaNextConfig,
    LlavaNextModel,
    Mistral3Config,
    Mistral3Model,
    MistralConfig,
    PixtralVisionConfig,
    PixtralVisionModel,
    PreTrainedTokenizerFast,
    SiglipVisionConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
)
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.llava_next.image_processing_pil_llava_next import (
    LlavaNextImageProcessorPil,
)
from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import (
    Qwen2_5OmniAudioEncoderConfig,
)
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniAudioEncoder
from transformers.models.qwen2_5_omni.processing_qwen2_5_omni import Qwen2_5OmniProcessor
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
    Qwen2_5_VisionTransformerPretrainedModel,
)
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel
from transformers.models.whisper.modeling_whisper import WhisperEncoder

import omniwire as ow
from omniwire.integrations import huggingface as hf
from omniwire.testing import assert_equal, assert_processor_conforms

Fields = Mapping[str, Any]

HIDDEN = 16
SMALL = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2}
TEXT = {
    **SMALL,
    "hidden_size": HIDDEN,
    "num_hidden_layers": 1,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "vocab_size": 16,
}
SIZES = [(90, 60), (40, 120), (56, 56)]  # width, height
PINPOINTS = [[28, 56], [56, 28], [56, 56]]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Encoders this small only wait for further threads."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def photographs() -> list[Image.Image]:
    noise = np.random.default_rng(0)
    return [
        Image.fromarray(noise.integers(0, 255, (height, width, 3), dtype=np.uint8))
        for width, height in SIZES
    ]


def sounds() -> list[np.ndarray[Any, Any]]:
    noise = np.random.default_rng(0)
    return [noise.normal(0, 0.1, count).astype(np.float32) for count in (16_000, 20_480, 9_999)]


def qwen_images(patch_size: int = 14) -> Fields:
    side = (2 * patch_size) ** 2
    processor = Qwen2VLImageProcessorPil(
        size={"shortest_edge": side, "longest_edge": 16 * side}, patch_size=patch_size
    )
    return processor(photographs(), return_tensors="pt")


def llava_next_images(*, pad: bool = True) -> Fields:
    processor = LlavaNextImageProcessorPil(
        size={"shortest_edge": 28},
        crop_size={"height": 28, "width": 28},
        image_grid_pinpoints=PINPOINTS,
    )
    if pad:
        return processor(photographs(), return_tensors="pt")
    output = processor(photographs(), do_pad=False)
    return {
        "pixel_values": [torch.from_numpy(tiles) for tiles in output["pixel_values"]],
        "image_sizes": torch.tensor(output["image_sizes"]),
    }


def pixtral_images(square: int) -> Fields:
    processor = PixtralImageProcessorPil(
        size={"longest_edge": 64}, patch_size={"height": square, "width": square}
    )
    return processor(photographs(), return_tensors="pt")


def gemma3_processor() -> Gemma3ImageProcessorPil:
    return Gemma3ImageProcessorPil(
        size={"height": 28, "width": 28},
        do_pan_and_scan=True,
        pan_and_scan_min_crop_size=16,
        pan_and_scan_max_num_crops=4,
        pan_and_scan_min_ratio_to_activate=1.2,
    )


def internvl_images() -> Fields:
    processor = GotOcr2ImageProcessorPil(
        size={"height": 28, "width": 28}, crop_to_patches=True, min_patches=1, max_patches=4
    )
    return processor(photographs(), return_tensors="pt")


def whisper_audio() -> Fields:
    extractor = WhisperFeatureExtractor(feature_size=16, chunk_length=2)
    return extractor(sounds(), sampling_rate=16_000, return_tensors="pt")


def omni_audio() -> Fields:
    """The audio part of the real processor; the whole needs a video processor."""
    extractor = WhisperFeatureExtractor(feature_size=16, chunk_length=2)
    options = {"sampling_rate": 16_000, "return_attention_mask": True, "return_tensors": "pt"}
    if not hasattr(Qwen2_5OmniProcessor, "_process_audio"):
        # Before transformers 5.23 these lines were in the middle of its `__call__`.
        outputs = extractor(sounds(), padding="max_length", **options)
        outputs["feature_attention_mask"] = outputs.pop("attention_mask")
        return outputs
    part = SimpleNamespace(feature_extractor=extractor, replace_audio_token=lambda *_, **_named: "")
    outputs, _ = Qwen2_5OmniProcessor._process_audio(part, sounds(), **options)
    return outputs


def qwen_videos() -> Fields:
    """The documented output of `Qwen2VLVideoProcessor`, which needs torchvision."""
    grid = torch.tensor([[2, 4, 4], [1, 2, 6], [3, 2, 2]])
    generator = torch.Generator().manual_seed(0)
    return {
        "pixel_values_videos": torch.randn(32 + 12 + 12, 1176, generator=generator),
        "video_grid_thw": grid,
        "second_per_grid_ts": [1.0, 0.5, 1.0],
    }


def internvl_videos() -> Fields:
    """The documented output of `InternVLVideoProcessor`, which needs torchvision."""
    generator = torch.Generator().manual_seed(0)
    return {"pixel_values_videos": torch.randn(3, 2, 3, 28, 28, generator=generator)}


@attrs.frozen
class Encoder:
    """An encoder of transformers: its rows for a payload, and its first block."""

    rows: Callable[[Fields], torch.Tensor]
    first_block: torch.nn.Module
    width: int


def qwen2_vision(name: str = "pixel_values", grid: str = "image_grid_thw") -> Encoder:
    config = Qwen2VLVisionConfig(depth=1, embed_dim=32, hidden_size=HIDDEN, num_heads=2)
    tower = Qwen2VisionTransformerPretrainedModel._from_config(config)
    return Encoder(lambda f: tower(f[name], grid_thw=f[grid]).pooler_output, tower.blocks[0], 32)


def qwen2_5_vision(name: str = "pixel_values", grid: str = "image_grid_thw") -> Encoder:
    config = Qwen2_5_VLVisionConfig(
        depth=1, hidden_size=32, intermediate_size=32, num_heads=2, out_hidden_size=HIDDEN
    )
    tower = Qwen2_5_VisionTransformerPretrainedModel._from_config(config)
    return Encoder(lambda f: tower(f[name], grid_thw=f[grid]).pooler_output, tower.blocks[0], 32)


def qwen3_vision() -> Encoder:
    config = Qwen3VLVisionConfig(
        depth=1,
        hidden_size=32,
        intermediate_size=32,
        num_heads=2,
        out_hidden_size=HIDDEN,
        num_position_embeddings=16,
        deepstack_visual_indexes=[0],
    )
    tower = Qwen3VLVisionModel._from_config(config)
    return Encoder(
        lambda f: tower(f["pixel_values"], grid_thw=f["image_grid_thw"]).pooler_output,
        tower.blocks[0],
        32,
    )


def llava_next_vision() -> Encoder:
    config = LlavaNextConfig(
        vision_config=CLIPVisionConfig(
            **SMALL, image_size=28, patch_size=14, num_hidden_layers=2, projection_dim=HIDDEN
        ),
        text_config=LlamaConfig(**TEXT),
        image_grid_pinpoints=PINPOINTS,
    )
    model = LlavaNextModel(config).eval()

    def rows(fields: Fields) -> torch.Tensor:
        tiles = fields["pixel_values"]
        if isinstance(tiles, tuple):
            tiles = torch.cat(tiles)
        return torch.cat(model.get_image_features(tiles, fields["image_sizes"]).pooler_output)

    block = next(m for n, m in model.named_modules() if n.endswith("encoder.layers.0"))
    return Encoder(rows, block, 32)


def mistral3_vision() -> Encoder:
    config = Mistral3Config(
        vision_config=PixtralVisionConfig(
            **SMALL, image_size=64, patch_size=8, num_hidden_layers=1, head_dim=16
        ),
        text_config=MistralConfig(**TEXT),
        spatial_merge_size=2,
    )
    model = Mistral3Model(config).eval()

    def rows(fields: Fields) -> torch.Tensor:
        sizes = fields["image_sizes"]
        return torch.cat(model.get_image_features(fields["pixel_values"], sizes).pooler_output)

    return Encoder(rows, model.vision_tower.transformer.layers[0], 32)


def pixtral_vision() -> Encoder:
    config = PixtralVisionConfig(
        **SMALL, image_size=64, patch_size=8, num_hidden_layers=1, head_dim=16
    )
    tower = PixtralVisionModel(config).eval()

    def rows(fields: Fields) -> torch.Tensor:
        output = tower(fields["pixel_values"], image_sizes=fields["image_sizes"])
        return output.last_hidden_state.squeeze(0)

    return Encoder(rows, tower.transformer.layers[0], 32)


def gemma3_vision() -> Encoder:
    config = Gemma3Config(
        vision_config=SiglipVisionConfig(
            **SMALL, image_size=28, patch_size=7, num_hidden_layers=1, vision_use_head=False
        ),
        text_config=Gemma3TextConfig(**TEXT),
        mm_tokens_per_image=4,
    )
    model = Gemma3Model(config).eval()
    block = next(m for n, m in model.named_modules() if n.endswith("encoder.layers.0"))
    return Encoder(
        lambda f: model.get_image_features(f["pixel_values"]).pooler_output.flatten(0, 1),
        block,
        32,
    )


def internvl_vision() -> Encoder:
    config = InternVLConfig(
        vision_config=InternVLVisionConfig(
            **SMALL, image_size=[28, 28], patch_size=[7, 7], num_hidden_layers=1
        ),
        text_config=LlamaConfig(**TEXT),
    )
    model = InternVLModel(config).eval()

    def rows(fields: Fields) -> torch.Tensor:
        tiles = fields.get("pixel_values")
        if tiles is None:
            tiles = fields["pixel_values_videos"].flatten(0, 1)
        return model.get_image_features(tiles).pooler_output.flatten(0, 1)

    return Encoder(rows, model.vision_tower.encoder.layer[0], 32)


def whisper_encoder() -> Encoder:
    config = WhisperConfig(
        d_model=HIDDEN,
        encoder_layers=1,
        encoder_attention_heads=2,
        encoder_ffn_dim=16,
        num_mel_bins=16,
        max_source_positions=100,
    )
    tower = WhisperEncoder(config).eval()
    return Encoder(
        lambda f: tower(f["input_features"]).last_hidden_state.flatten(0, 1),
        tower.layers[0],
        HIDDEN,
    )


def omni_encoder() -> Encoder:
    config = Qwen2_5OmniAudioEncoderConfig(
        d_model=32,
        encoder_layers=1,
        encoder_attention_heads=2,
        encoder_ffn_dim=32,
        num_mel_bins=16,
        max_source_positions=100,
        n_window=20,
        output_dim=HIDDEN,
    )
    tower = Qwen2_5OmniAudioEncoder._from_config(config)

    def rows(fields: Fields) -> torch.Tensor:
        mask = fields["feature_attention_mask"]
        kept = fields["input_features"].permute(0, 2, 1)[mask.bool()].permute(1, 0)
        frames = mask.sum(-1)
        after, _ = tower._get_feat_extract_output_lengths(frames)
        return tower(kept, feature_lens=frames, aftercnn_lens=after).last_hidden_state

    return Encoder(rows, tower.layers[0], 32)


QWEN_IMAGES = hf.QwenImages(max_pixels=28 * 28 * 6)
QWEN_VIDEOS = hf.QwenVideos(max_pixels=28 * 28 * 4, max_frames=5)
GEMMA3 = hf.Gemma3Images(image_size=28, patch_size=7, image_seq_length=4, max_crops=4)
INTERNVL = {"image_size": 28, "patch_size": 7, "image_seq_length": 4}
LLAVA_NEXT = hf.LlavaNextImages(PINPOINTS, image_size=28)
CASES: dict[str, tuple[str, hf.ModalityLayout, Callable[[], Fields], Callable[[], Encoder]]] = {
    "qwen2-vl images": ("image", QWEN_IMAGES, qwen_images, qwen2_vision),
    "qwen2.5-vl images": ("image", QWEN_IMAGES, qwen_images, qwen2_5_vision),
    "qwen3-vl images": (
        "image",
        hf.QwenImages(patch_size=16, max_pixels=32 * 32 * 6),
        lambda: qwen_images(16),
        qwen3_vision,
    ),
    "qwen2-vl videos, documented": (
        "video",
        QWEN_VIDEOS,
        qwen_videos,
        lambda: qwen2_vision("pixel_values_videos", "video_grid_thw"),
    ),
    "qwen2.5-vl videos, documented": (
        "video",
        QWEN_VIDEOS,
        qwen_videos,
        lambda: qwen2_5_vision("pixel_values_videos", "video_grid_thw"),
    ),
    "qwen2.5-omni audio": (
        "audio",
        hf.QwenOmniAudio(num_mel_bins=16, max_frames=200),
        omni_audio,
        omni_encoder,
    ),
    "llava-next": ("image", LLAVA_NEXT, llava_next_images, llava_next_vision),
    "llava-next, not padded": (
        "image",
        LLAVA_NEXT,
        lambda: llava_next_images(pad=False),
        llava_next_vision,
    ),
    "pixtral": (
        "image",
        hf.PixtralImages(patch_size=8, longest_edge=64),
        lambda: pixtral_images(8),
        pixtral_vision,
    ),
    "mistral 3": (
        "image",
        hf.PixtralImages(patch_size=8, spatial_merge_size=2, longest_edge=64),
        lambda: pixtral_images(16),
        mistral3_vision,
    ),
    "gemma 3": (
        "image",
        GEMMA3,
        lambda: gemma3_processor()(photographs(), return_tensors="pt"),
        gemma3_vision,
    ),
    "internvl images": (
        "image",
        hf.InternVLImages(**INTERNVL, max_patches=4),
        internvl_images,
        internvl_vision,
    ),
    "internvl videos, documented": (
        "video",
        hf.InternVLVideos(**INTERNVL, max_frames=2),
        internvl_videos,
        internvl_vision,
    ),
    "whisper": (
        "audio",
        hf.WhisperAudio(num_mel_bins=16, max_frames=200),
        whisper_audio,
        whisper_encoder,
    ),
}


@attrs.frozen
class Case:
    modality: str
    processor: hf.HuggingFaceProcessor
    params: ow.MultimodalParams
    encoder: Encoder

    @property
    def record(self) -> ow.MultimodalItemMetadata:
        record = self.params.item_metadata
        assert record is not None
        return record

    def rows(self, params: ow.MultimodalParams) -> torch.Tensor:
        with torch.no_grad():
            return self.encoder.rows(params.multimodal_data[self.modality])


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES.keys())
def case(request: pytest.FixtureRequest) -> Case:
    modality, layout, fields, encoder = request.param
    torch.manual_seed(0)
    processor = hf.HuggingFaceProcessor({modality: layout})
    payload = processor.payload(**{modality: fields()})
    prepared = ow.check_producer(ow.prepare_request(processor, "r1", [1, 2], payload))
    assert prepared.multimodal_params is not None
    return Case(modality, processor, prepared.multimodal_params, encoder())


@pytest.fixture
def tokens_seen(case: Case) -> Iterator[list[int]]:
    """How many tokens went through the encoder's first block, call by call."""
    seen: list[int] = []

    def count(_module: torch.nn.Module, _inputs: object, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        seen.append(hidden.numel() // case.encoder.width)

    handle = case.encoder.first_block.register_forward_hook(count)
    yield seen
    handle.remove()


def test_three_items_come_as_they_are_emitted(case: Case) -> None:
    assert case.record.item_refs == tuple((case.modality, index) for index in range(3))


def test_each_item_costs_and_yields_what_the_real_encoder_does(
    case: Case, tokens_seen: list[int]
) -> None:
    rows = [case.rows(ow.select(case.params, [index])).shape[0] for index in range(3)]
    assert case.record.output_embedding_lengths == tuple(rows)
    assert case.record.encoder_token_lengths == tuple(tokens_seen)


@pytest.mark.parametrize("indices", [[1], [0, 1], [2, 0], [1, 1, 2]])
def test_select_then_encode_is_encode_then_select_rows(case: Case, indices: list[int]) -> None:
    lengths = case.record.output_embedding_lengths
    assert lengths is not None
    items = case.rows(case.params).split(list(lengths))
    found = case.rows(ow.select(case.params, indices))
    expected = torch.cat([items[index] for index in indices])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_the_processor_conforms(case: Case) -> None:
    data = {case.modality: case.params.multimodal_data[case.modality]}
    assert_processor_conforms(case.processor, [([1, 2], data)])


def test_dummy_data_are_what_the_encoder_takes(case: Case, tokens_seen: list[int]) -> None:
    params = ow.MultimodalParams(
        multimodal_data=case.processor.get_dummy_mm_data({case.modality: 1})
    )
    record = params.item_metadata
    assert record is not None
    assert record.output_embedding_lengths == (case.rows(params).shape[0],)
    assert record.encoder_token_lengths == tuple(tokens_seen)


def test_selecting_an_image_is_processing_it_alone() -> None:
    side = 28 * 28
    real = Qwen2VLImageProcessorPil(size={"shortest_edge": side, "longest_edge": 16 * side})
    processor = hf.HuggingFaceProcessor({"image": QWEN_IMAGES})
    alone = [processor.payload(image=real(one, return_tensors="pt")) for one in photographs()]
    example = {
        "prompt_token_ids": [1],
        "multimodal_data": processor.payload(image=qwen_images()),
        "item_payloads": alone,
    }
    assert_processor_conforms(processor, [example])
    for wrong in (alone[:2], [alone[1], alone[0], alone[2]]):
        with pytest.raises(AssertionError, match="item_payloads"):
            assert_processor_conforms(processor, [{**example, "item_payloads": wrong}])


WORDS = ["?", "look", "<image>", "<boi>", "<soft>", "<eoi>"]


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="?")
    tokenizer.add_tokens(WORDS[2:], special_tokens=True)
    return tokenizer


def test_the_whole_llava_next_processor(tokenizer: PreTrainedTokenizerFast) -> None:
    real = LlavaNextProcessor(
        LlavaNextImageProcessorPil(
            size={"shortest_edge": 28},
            crop_size={"height": 28, "width": 28},
            image_grid_pinpoints=PINPOINTS,
        ),
        tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )
    text = "look <image> look <image> look <image>"
    output = real(text=text, images=photographs(), return_tensors="pt")
    processor = hf.HuggingFaceProcessor({"image": LLAVA_NEXT}, {"image": 2})
    payload = processor.payload(image=output)
    request = ow.check_producer(processor.prepare("r1", output["input_ids"][0], payload))
    assert request.multimodal_params is not None
    located = request.multimodal_params.multimodal_input
    assert located is not None
    rows = located.multimodal_lengths
    assert located.multimodal_positions == (1, 2 + rows[0], 3 + rows[0] + rows[1])
    assert sum(rows) == int((output["input_ids"] == 2).sum())


def test_the_whole_gemma_3_processor(tokenizer: PreTrainedTokenizerFast) -> None:
    """It leaves the numbers of crops out: without pan-and-scan every image is an item."""
    for name, word in (("boi", "<boi>"), ("image", "<soft>"), ("eoi", "<eoi>")):
        setattr(tokenizer, f"{name}_token", word)
        setattr(tokenizer, f"{name}_token_id", WORDS.index(word))
    real = Gemma3Processor(
        Gemma3ImageProcessorPil(size={"height": 28, "width": 28}), tokenizer, image_seq_length=4
    )
    output = real(text="look <boi> <boi> <boi>", images=[photographs()], return_tensors="pt")
    assert "num_crops" not in output
    processor = hf.HuggingFaceProcessor({"image": GEMMA3}, {"image": WORDS.index("<soft>")})
    payload = processor.payload(image=output)
    request = ow.check_producer(processor.prepare("r1", output["input_ids"][0], payload))
    assert request.multimodal_params is not None
    assert request.multimodal_params.item_metadata is not None
    assert request.multimodal_params.item_metadata.output_embedding_lengths == (4, 4, 4)


@pytest.mark.parametrize(
    ("module", "name", "video"),
    [
        ("qwen2_vl.video_processing_qwen2_vl", "Qwen2VLVideoProcessor", hf.QwenVideos()),
        ("qwen3_vl.video_processing_qwen3_vl", "Qwen3VLVideoProcessor", hf.QwenVideos(16)),
        (
            "internvl.video_processing_internvl",
            "InternVLVideoProcessor",
            hf.InternVLVideos(image_size=28, patch_size=7, image_seq_length=4),
        ),
    ],
)
def test_real_videos(module: str, name: str, video: hf.ModalityLayout) -> None:
    pytest.importorskip(
        "torchvision", reason="transformers' video processors need torchvision, not built for torch"
    )
    kind = getattr(importlib.import_module(f"transformers.models.{module}"), name)
    size = {"height": 28, "width": 28} if name.startswith("Intern") else None
    real = kind() if size is None else kind(size=size)
    frames = np.random.default_rng(0).integers(0, 255, (4, 64, 64, 3), dtype=np.uint8)
    output = real([frames, frames], do_sample_frames=False, return_tensors="pt")
    processor = hf.HuggingFaceProcessor({"video": video})
    assert_processor_conforms(processor, [([1], processor.payload(video=output))])


class Mixed(ow.MultimodalEncoderMixin):
    """Images, videos and sounds through one `EncoderGroup` of real encoders."""

    def __init__(self, encoders: Mapping[str, Encoder]) -> None:
        def encode(modality: str) -> Callable[[list[ow.MultimodalParams]], torch.Tensor]:
            return lambda params: torch.cat(
                [encoders[modality].rows(one.multimodal_data[modality]) for one in params]
            )

        self._group = ow.EncoderGroup({modality: encode(modality) for modality in encoders})

    def encode_multimodal_inputs(self, params: list[ow.MultimodalParams]) -> list[torch.Tensor]:
        with torch.no_grad():
            return self._group.encode(params)


def test_images_videos_and_sounds_interleaved_in_one_prompt() -> None:
    """vllm#32249: V0 A0 I0 V1 I1 A1 ... come back in prompt order, with their own rows."""
    torch.manual_seed(0)
    encoders = {
        "image": qwen2_5_vision(),
        "video": qwen2_5_vision("pixel_values_videos", "video_grid_thw"),
        "audio": omni_encoder(),
    }
    layouts = {
        "image": QWEN_IMAGES,
        "video": QWEN_VIDEOS,
        "audio": hf.QwenOmniAudio(num_mel_bins=16, max_frames=200),
    }
    ids = {"image": 7, "video": 8, "audio": 9}
    processor = hf.HuggingFaceProcessor(layouts, ids)
    payload = processor.payload(image=qwen_images(), video=qwen_videos(), audio=omni_audio())
    order = [(m, i) for i in range(3) for m in ("video", "audio", "image")]
    counts = {
        m: [int(c) // 4 for c in payload[m][f"{m}_grid_thw"].prod(1)] for m in ("image", "video")
    }
    frames = payload["audio"]["feature_attention_mask"].sum(1)
    counts["audio"] = (((frames - 1) // 2 + 1 - 2) // 2 + 1).tolist()  # convolved, then pooled
    prompt = [1]
    for modality, index in order:
        prompt += [ids[modality]] * counts[modality][index] + [2]
    request = ow.check_producer(processor.prepare("r1", prompt, payload))
    params = request.multimodal_params
    assert params is not None
    record = params.item_metadata
    assert record is not None
    assert record.item_refs == tuple(order)
    assert record.output_embedding_lengths == tuple(counts[m][i] for m, i in order)
    assert ow.loads(ow.dumps(request)) == request

    model = Mixed(encoders)
    (rows,) = model.encode_multimodal_inputs([params])
    for index, item_rows in enumerate(rows.split(list(record.output_embedding_lengths))):
        view = model.select_multimodal_items(params, [index])
        (alone,) = model.encode_multimodal_inputs([view])
        torch.testing.assert_close(item_rows, alone, rtol=1e-4, atol=1e-5)
    assert_processor_conforms(processor, [(prompt, payload, order)])
    assert_equal(processor.get_mm_item_metadata(prompt, payload, order), record)
