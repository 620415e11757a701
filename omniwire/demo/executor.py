"""The executor: requests in, encoders and language model, output chunks out."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

import omniwire as ow
from omniwire.demo.agreement import (
    MAX_ENCODER_TOKENS_PER_ITEM,
    OUTPUT_TYPE,
    make_processor,
    output_hash,
)
from omniwire.demo.events import Progress
from omniwire.demo.models import (
    HIDDEN_SIZE,
    OUTPUT_SAMPLE_RATE,
    DemoLanguageModel,
    DemoModel,
)
from omniwire.demo.problems import DemoFailed
from omniwire.demo.reports import ExecutorReport, IterationRow

TOLERANCE: Final = 1e-4
"""Largest accepted difference of float32 rows that are of the order of 1."""

BUDGET: Final = ow.EncoderBudget(
    max_encoder_tokens=MAX_ENCODER_TOKENS_PER_ITEM + 64,
    max_output_bytes=1 << 20,
    output_row_bytes=4 * HIDDEN_SIZE,
)
"""Room for the largest item and little more, so that a request takes several iterations."""

CACHE_BYTES: Final = 1 << 30
"""Room for the rows of all items; nothing is set aside for it."""

PREFILL_WINDOW: Final = 256
"""Prompt tokens per prefill chunk."""

NUM_GENERATION_STEPS: Final = 12
"""Generation steps; the image comes with the one in the middle."""


class WatchedModel(DemoModel):
    """Remembers what it was asked to encode."""

    def __init__(self) -> None:
        super().__init__()
        self.views: list[ow.MultimodalParams] = []

    def encode_multimodal_inputs(self, params: list[ow.MultimodalParams]) -> list[torch.Tensor]:
        """As `DemoModel`; `views` are the params of all calls since it was last emptied."""
        self.views += params
        return super().encode_multimodal_inputs(params)


@dataclass
class _Running:
    """A request from admission to its end.

    Attributes:
        request: With its encoder state; once prefill is done, with what generation needs.
        state: That encoder state.
        hidden: The language model's state.
        token_ids: Generated so far.
        audio: Generated so far, in pieces.
    """

    request: ow.ProcessedRequest
    state: ow.MultimodalEncoderRequestState
    hidden: torch.Tensor
    token_ids: list[int] = field(default_factory=list)
    audio: list[torch.Tensor] = field(default_factory=list)

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def params(self) -> ow.MultimodalParams:
        if self.request.multimodal_params is None:
            raise DemoFailed(f"{self.request_id}: the request carries no media")
        return self.request.multimodal_params

    @property
    def record(self) -> ow.MultimodalItemMetadata:
        return _record(self.params)

    def with_params(self, params: ow.MultimodalParams) -> ow.ProcessedRequest:
        return ow.ProcessedRequest(self.request_id, self.request.prompt_token_ids, params)

    def embeddings(self) -> list[torch.Tensor]:
        """Rows per item in prompt order: leases on the cache, or what it had no room for."""
        references = [self.state.reference(i) for i in range(len(self.record.item_refs))]
        rows = [one.tensor if isinstance(one, ow.CacheLease) else one for one in references]
        return [one for one in rows if isinstance(one, torch.Tensor)]


class Executor:
    """One engine: encoders, scheduler, encoder cache, language model; lives like its process.

    Args:
        number: The executor.
        progress: Told what is being done.
    """

    def __init__(self, number: int, progress: Progress | None = None) -> None:
        torch.set_num_threads(1)
        self._number = number
        self._progress = Progress() if progress is None else progress
        self._progress.step("building the encoders")
        with self._progress.timed("build the encoders and the language model"):
            self._model, self._language_model = WatchedModel(), DemoLanguageModel()
        ow.validate_mm_encoder_scheduling_compatibility(self._model, budget=BUDGET)
        self._capability = ow.EncoderCapability(
            item_scheduling=ow.mm_item_scheduling_enabled(self._model), hidden_size=HIDDEN_SIZE
        )
        self._settings = f"omniwire demo encoders; {make_processor().settings}"
        self._scheduler = ow.ItemScheduler(BUDGET)
        self._cache = ow.TensorLRUCache(CACHE_BYTES)
        self._running: list[_Running] = []
        self._request_hashes: dict[str, str] = {}
        self._distinct_items: set[tuple[int, ...]] = set()
        self._tensor_bytes = self._kept_bytes = 0
        self._iterations: list[IterationRow] = []
        self._windows: list[bool] = []  # of each window, whether its rows are a view
        self._max_item_difference = self._max_fused_difference = 0.0
        self._streamed_hashes: dict[str, str] = {}

    @torch.inference_mode()
    def serve(self, requests: Sequence[ow.ProcessedRequest]) -> Iterator[ow.OutputChunk]:
        """Admit, encode, prefill and generate; the output chunks, all requests in step.

        Raises:
            AdmissionError: A request is refused.
            DemoFailed: A request has no media.
        """
        self._progress.step("admitting the requests")
        with self._progress.timed("check_admission"):
            self._running = [self._admit(request) for request in requests]
        self._progress.step("encoding item by item")
        with self._progress.timed("encode item by item"):
            self._encode()
        self._progress.step("encoding whole requests, to compare")
        with self._progress.timed("encode whole requests, to compare"):
            for running in self._running:
                self._compare_items(running)
        self._progress.step("chunked prefill")
        for running in self._running:
            self._prefill(running)
        self._progress.step("generating")
        with self._progress.timed("generate and stream back"):
            yield from self._generate()

    def report(self) -> ExecutorReport:
        """What it saw, once all is streamed."""
        return ExecutorReport(
            name=f"executor {self._number}",
            pid=os.getpid(),
            request_hashes=self._request_hashes,
            tensor_bytes=self._tensor_bytes,
            budget_encoder_tokens=BUDGET.max_encoder_tokens or 0,
            iterations=self._iterations,
            num_distinct_items=len(self._distinct_items),
            max_item_difference=self._max_item_difference,
            max_fused_difference=self._max_fused_difference,
            tolerance=TOLERANCE,
            num_windows=len(self._windows),
            num_window_views=sum(self._windows),
            kept_bytes=self._kept_bytes,
            streamed_hashes=self._streamed_hashes,
            timings=self._progress.timings,
        )

    def _admit(self, request: ow.ProcessedRequest) -> _Running:
        ow.check_admission(request, self._capability, BUDGET)
        state = ow.MultimodalEncoderRequestState.from_request(request)
        running = _Running(request, state, self._language_model.initial_state())
        params = running.params
        running.request = running.with_params(params.with_encoder_state(state))
        self._request_hashes[request.request_id] = ow.content_hash(request)
        if params.multimodal_input is not None:
            self._distinct_items.update(params.multimodal_input.multimodal_hashes)
        self._tensor_bytes += sum(tensor.nbytes for tensor in _tensors(params.multimodal_data))
        return running

    def _encode(self) -> None:
        """Make all items ready, as the budget allows; equal ones of all requests once."""
        requests = [one.request for one in self._running]
        states = [one.state for one in self._running]
        while scheduled := self._scheduler.schedule(states):
            self._progress.detail(f"encoder iteration {len(self._iterations) + 1}")
            self._model.views = []
            ow.encode_scheduled(
                self._model,
                requests,
                scheduled,
                cache=self._cache,
                dtype=torch.float32,
                settings=self._settings,
            )
            self._iterations.append(self._iteration_row(scheduled))

    def _iteration_row(self, scheduled: Mapping[str, Sequence[int]]) -> IterationRow:
        originals: list[torch.Tensor] = []
        items: list[str] = []
        for running in self._running:
            originals += _tensors(running.params.multimodal_data)
            refs = [running.record.item_refs[i] for i in scheduled.get(running.request_id, ())]
            if refs:
                names = ", ".join(f"{modality} {index}" for modality, index in refs)
                items.append(f"{running.request_id}: {names}")
        selected = [t for view in self._model.views for t in _tensors(view.multimodal_data)]
        viewed = sum(t.nbytes for t in selected if any(_share_memory(t, o) for o in originals))
        records = [_record(view) for view in self._model.views]
        return IterationRow(
            items="\n".join(items),
            num_items=sum(len(indices) for indices in scheduled.values()),
            num_encoded=sum(len(record.item_refs) for record in records),
            encoder_tokens=sum(sum(record.encoder_token_lengths or ()) for record in records),
            embedding_rows=sum(sum(record.output_embedding_lengths or ()) for record in records),
            viewed_bytes=viewed,
            copied_bytes=sum(t.nbytes for t in selected) - viewed,
        )

    def _compare_items(self, running: _Running) -> None:
        """Hold the items' rows against those that encoding the whole request gives."""
        (full,) = self._model.encode_multimodal_inputs([running.params])
        difference = _difference(torch.cat(running.embeddings()), full)
        self._max_item_difference = _larger(self._max_item_difference, difference)

    def _prefill(self, running: _Running) -> None:
        """Walk the prompt window by window; then the media and their rows are let go."""
        tokens = list(running.request.prompt_token_ids)
        embeddings = running.embeddings()
        fused: list[torch.Tensor] = []
        with self._progress.timed(f"chunked prefill: {running.request_id}"):
            for start in range(0, len(tokens), PREFILL_WINDOW):
                end = min(start + PREFILL_WINDOW, len(tokens))
                self._progress.detail(f"prefill of prompt tokens {start} to {end}")
                runtime = ow.MultimodalRuntimeData.for_chunk(
                    past_seen_token_num=start,
                    chunk_end_pos=end,
                    multimodal_input=running.params.multimodal_input,
                )
                rows = ow.chunk_embeddings(embeddings, runtime)
                forward = running.params.with_runtime(runtime).with_embeddings(rows)
                attached = forward.multimodal_data["multimodal_embedding"]
                inputs = self._language_model.fuse(tokens[start:end], attached)
                running.hidden = self._language_model.prefill(inputs, running.hidden)
                fused.append(inputs)
                self._windows.append(any(_share_memory(rows, item) for item in embeddings))
        direct = self._model.encode_directly(running.params.multimodal_data)
        expected = self._language_model.fuse_by_modality(tokens, direct)
        difference = _difference(torch.cat(fused), expected)
        self._max_fused_difference = _larger(self._max_fused_difference, difference)
        kept = running.params.strip_for_generation()
        running.request = running.with_params(kept)
        running.state.release()
        self._kept_bytes += sum(tensor.nbytes for tensor in _tensors(kept.multimodal_data))

    def _generate(self) -> Iterator[ow.OutputChunk]:
        """The output chunks; what they should add up to is put together independently."""
        images = [self._language_model.image(running.hidden) for running in self._running]
        for number in range(NUM_GENERATION_STEPS):
            self._progress.detail(f"generating step {number + 1} of {NUM_GENERATION_STEPS}")
            is_last = number == NUM_GENERATION_STEPS - 1
            for running, image in zip(self._running, images, strict=True):
                step = self._language_model.step(running.hidden)
                running.hidden = step.state
                running.token_ids.append(step.token_id)
                running.audio.append(step.audio)
                payload: dict[str, Any] = {
                    "audio": {"waveform": step.audio, "sample_rate": OUTPUT_SAMPLE_RATE}
                }
                if number == NUM_GENERATION_STEPS // 2:
                    payload["image"] = image
                if is_last:
                    whole = {"audio": torch.cat(running.audio, dim=-1), "image": image}
                    streamed = output_hash(running.token_ids, whole)
                    self._streamed_hashes[running.request_id] = streamed
                yield ow.OutputChunk(
                    running.request_id,
                    number,
                    OUTPUT_TYPE,
                    [step.token_id],
                    ow.OmniOutput(multimodal_outputs=payload),
                    finish_reason="length" if is_last else None,
                )


def _record(params: ow.MultimodalParams) -> ow.MultimodalItemMetadata:
    assert params.item_metadata is not None  # admission requires it
    return params.item_metadata


def _tensors(payload: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    for value in payload.values():
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, Mapping):
            yield from _tensors(value)


def _share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())


def _larger(one: float, other: float) -> float:
    """The larger one, and what is not a number before any that is."""
    return one if one != one or one > other else other  # noqa: PLR0124  # NaN differs from itself
