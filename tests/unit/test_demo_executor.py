"""The demo's processor and executor, put together in one process."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from PIL import Image

import omniwire as ow
from omniwire.demo.executor import Executor
from omniwire.demo.media import Media
from omniwire.demo.models import DemoModel
from omniwire.demo.photographs import Photograph
from omniwire.demo.problems import DemoFailed
from omniwire.demo.processor import Processor
from omniwire.demo.proofs import prove
from omniwire.demo.reports import ExecutorReport, Outcome, ProcessorReport
from omniwire.demo.sounds import Sound
from omniwire.demo.videos import Video


def small_media() -> Media:
    generator = np.random.default_rng(0)

    def picture(*size: int) -> Image.Image:
        return Image.fromarray(generator.integers(0, 255, (*size, 3), dtype=np.uint8))

    samples = generator.normal(0, 0.1, 80_000).astype(np.float32)
    return Media(
        (Photograph("one", picture(84, 112)), Photograph("two", picture(56, 56))),
        (Sound("sound", samples, 16_000, 1),),
        (Video("video", [picture(28, 56), picture(28, 56)], (56, 28), 2),),
    )


def run(media: Media) -> tuple[ProcessorReport, ExecutorReport]:
    processor, executor = Processor(0, media), Executor(0)
    for chunk in executor.serve(processor.prepare()):
        processor.take(chunk)
    assert processor.is_done
    return processor.report(), executor.report()


def failed(processor: ProcessorReport, executor: ExecutorReport) -> list[str]:
    proofs = prove(Outcome([processor], [executor], []), -1)
    own_process, *others = [proof.claim for proof in proofs if not proof.holds]
    assert own_process == "processors and executors are processes of their own"
    return others


def test_everything_but_the_processes_is_proved_in_one_process() -> None:
    processor, executor = run(small_media())
    assert failed(processor, executor) == []
    assert list(processor.request_hashes) == ["p0-0", "p0-1"]
    assert processor.num_chunks == 2 * 12
    # 12 + 200 + 200 + 2 + 4 rows, once, of two requests with five items each
    assert sum(row.embedding_rows for row in executor.iterations) == 418
    assert sum(row.num_items for row in executor.iterations) == 10
    assert sum(row.num_encoded for row in executor.iterations) == 5
    assert all(row.encoder_tokens <= 1600 for row in executor.iterations)


def test_rows_in_a_wrong_order_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def reverse(_self: object, params: Sequence[ow.MultimodalParams]) -> list[torch.Tensor]:
        return [rows.flip(0) for rows in encode(model, list(params))]

    model, encode = DemoModel(), DemoModel.encode_multimodal_inputs
    monkeypatch.setattr(DemoModel, "encode_multimodal_inputs", reverse)
    processor, executor = run(small_media())
    assert "prefill read the right embedding row at every token" in failed(processor, executor)


def test_items_in_a_wrong_order_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    media = small_media()
    monkeypatch.setattr(
        "omniwire.demo.processor.item_order", lambda _media: [("audio", 0), ("image", 0)]
    )
    processor, executor = run(media)
    assert failed(processor, executor) == [
        "the items found in each prompt are its media, in their order"
    ]


def test_a_difference_that_is_no_number_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    differences = iter([float("nan"), 0.0, 0.0, 0.0])
    monkeypatch.setattr(
        "omniwire.demo.executor._difference", lambda _one, _other: next(differences)
    )
    processor, executor = run(Media(photographs=small_media().photographs))
    assert failed(processor, executor) == ["item-by-item encoding equals full-request encoding"]


def test_an_oversized_item_is_refused_by_name() -> None:
    photograph = Photograph("large", Image.effect_noise((1200, 1200), 50).convert("RGB"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("omniwire.demo.preprocess.MAX_ROWS_PER_IMAGE", 500)
        requests = Processor(0, Media((photograph,))).prepare()
    with pytest.raises(ow.AdmissionError, match=r"1600") as caught:
        list(Executor(0).serve(requests))
    assert caught.value.request_id == "p0-0"


def test_a_request_without_media_is_refused() -> None:
    with pytest.raises((DemoFailed, ow.OmniwireError)):
        list(Executor(0).serve([ow.ProcessedRequest("r", [1])]))
