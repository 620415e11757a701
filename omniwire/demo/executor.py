"""The executor process: request in, encoders and language model, output chunks out."""

import os
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Final, cast

import numpy as np
import torch

import omniwire as ow
from omniwire.demo.agreement import MAX_ENCODER_TOKENS_PER_ITEM, OUTPUT_TYPE, output_hash
from omniwire.demo.events import ExecutorReport, IterationRow, Line
from omniwire.demo.models import (
    HIDDEN_SIZE,
    OUTPUT_SAMPLE_RATE,
    DemoLanguageModel,
    DemoModel,
)
from omniwire.demo.problems import DemoFailed

TOLERANCE: Final = 1e-4
"""Largest accepted difference of float32 rows that are of the order of 1."""

BUDGET: Final = ow.EncoderBudget(
    max_encoder_tokens=MAX_ENCODER_TOKENS_PER_ITEM + 64,
    max_output_bytes=1 << 20,
    output_row_bytes=4 * HIDDEN_SIZE,
)
"""Room for the largest item and little more, so that a request takes several iterations."""

PREFILL_WINDOW: Final = 256
"""Prompt tokens per prefill chunk."""

NUM_GENERATION_STEPS: Final = 12
"""Generation steps; the image comes with the one in the middle."""


def execute(data: Connection, line: Line) -> ExecutorReport:
    """Do the executor's whole part.

    Args:
        data: Connection to the processor.
        line: Line to the parent.

    Raises:
        OmniwireError: The request is refused.
        EOFError: The processor went away.
    """
    torch.set_num_threads(1)
    line.step("building the encoders")
    with torch.inference_mode():
        with line.timed("build the encoders and the language model"):
            model, language_model = DemoModel(), DemoLanguageModel()
        ow.validate_mm_encoder_scheduling_compatibility(model, budget=BUDGET)
        data.send_bytes(ow.dumps(BUDGET))  # the processor waits for it before it sends
        return _serve(data, line, model, language_model)


def _serve(
    data: Connection, line: Line, model: DemoModel, language_model: DemoLanguageModel
) -> ExecutorReport:
    message = data.recv_bytes()
    line.step("admitting the request")
    with line.timed("loads: tensors as views of the message"):
        request = cast(ow.ProcessedRequest, ow.loads(message))
    capability = ow.EncoderCapability(
        item_scheduling=ow.mm_item_scheduling_enabled(model), hidden_size=HIDDEN_SIZE
    )
    with line.timed("check_admission"):
        ow.check_admission(request, capability, BUDGET)
    data.send_bytes(ow.dumps(request))
    params = _params(request)
    tensors = list(_tensors(params.multimodal_data))
    aliased = [tensor for tensor in tensors if _lies_in(tensor, message)]

    state = ow.MultimodalEncoderRequestState.from_request(request)
    params = params.with_encoder_state(state)
    embeddings, iterations = _encode_items(line, model, params, state)
    line.step("encoding the whole request at once, to compare")
    with line.timed("encode the whole request at once, to compare"):
        full = model.encode_multimodal_inputs([params])[0]
    item_by_item = torch.cat(embeddings)
    max_difference = float((item_by_item - full).abs().max())

    hidden, windows = _prefill(line, language_model, request, params, embeddings)
    generation_params = params.strip_for_generation()
    state.release()
    streamed = _generate(data, line, language_model, request.request_id, hidden)
    return ExecutorReport(
        pid=os.getpid(),
        received_hash=ow.content_hash(request),
        tensor_bytes=sum(tensor.nbytes for tensor in tensors),
        aliased_bytes=sum(tensor.nbytes for tensor in aliased),
        budget_encoder_tokens=cast(int, BUDGET.max_encoder_tokens),
        iterations=iterations,
        max_difference=max_difference,
        tolerance=TOLERANCE,
        num_windows=len(windows),
        num_window_views=sum(
            any(_share_memory(rows, item) for item in embeddings) for rows in windows
        ),
        windows_equal=torch.equal(torch.cat(windows), item_by_item),
        kept_bytes=sum(t.nbytes for t in _tensors(generation_params.multimodal_data)),
        streamed_hash=streamed,
        timings=line.timings,
    )


def _encode_items(
    line: Line,
    model: DemoModel,
    params: ow.MultimodalParams,
    state: ow.MultimodalEncoderRequestState,
) -> tuple[list[torch.Tensor], list[IterationRow]]:
    """Encode item by item as the budget allows; the rows per item, in prompt order."""
    scheduler = ow.ItemScheduler(BUDGET)
    refs = _metadata(params).item_refs
    rows_of: dict[int, torch.Tensor] = {}
    iterations: list[IterationRow] = []
    line.step("encoding item by item")
    with line.timed("encode item by item"):
        while state.pending_items:
            chosen = scheduler.schedule([state])[state.request_id]
            names = [f"{modality} {index}" for modality, index in (refs[i] for i in chosen)]
            line.detail(f"encoding {', '.join(names)}")
            view = ow.select(params, chosen)
            encoded = model.encode_multimodal_inputs([view])[0]
            metadata = _metadata(view)
            for index, rows in zip(chosen, torch.split(encoded, _rows(metadata)), strict=True):
                rows_of[index] = rows
                state.complete(index, rows)
            copied, viewed = _copied_and_viewed(view, params)
            tokens = sum(cast(Sequence[int], metadata.encoder_token_lengths))
            iterations.append(IterationRow(names, tokens, len(encoded), copied, viewed))
    return [rows_of[index] for index in range(len(refs))], iterations


def _prefill(
    line: Line,
    language_model: DemoLanguageModel,
    request: ow.ProcessedRequest,
    params: ow.MultimodalParams,
    embeddings: list[torch.Tensor],
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Walk the prompt window by window; the model's state, and the rows of every window."""
    tokens = request.prompt_token_ids
    layout = cast(Mapping[str, object], params.multimodal_data["layout"])
    offsets = cast(Sequence[Sequence[int]], layout["special_token_offsets"])
    hidden = language_model.initial_state()
    windows: list[torch.Tensor] = []
    starts = range(0, len(tokens), PREFILL_WINDOW)
    line.step("chunked prefill")
    with line.timed("chunked prefill"):
        for start in starts:
            end = min(start + PREFILL_WINDOW, len(tokens))
            line.detail(f"prefill of prompt tokens {start} to {end}")
            runtime = ow.MultimodalRuntimeData.for_chunk(
                past_seen_token_num=start,
                chunk_end_pos=end,
                multimodal_input=params.multimodal_input,
                special_token_offsets=offsets,
            )
            rows = ow.chunk_embeddings(embeddings, runtime)
            forward = params.with_runtime(runtime).with_embeddings(rows)
            attached = cast(torch.Tensor, forward.multimodal_data["multimodal_embedding"])
            hidden = language_model.prefill(tuple(tokens[start:end]), attached, hidden)
            windows.append(rows)
    return hidden, windows


def _generate(
    data: Connection,
    line: Line,
    language_model: DemoLanguageModel,
    request_id: str,
    hidden: torch.Tensor,
) -> str:
    """Stream the output chunks; the content hash of all of it, put together independently."""
    token_ids: list[int] = []
    audio: list[torch.Tensor] = []
    image = language_model.image(hidden)
    line.step("generating")
    with line.timed("generate and stream back"):
        for number in range(NUM_GENERATION_STEPS):
            line.detail(f"generating step {number + 1} of {NUM_GENERATION_STEPS}")
            step = language_model.step(hidden)
            hidden = step.state
            token_ids.append(step.token_id)
            audio.append(step.audio)
            payload: dict[str, object] = {
                "audio": {"waveform": step.audio, "sample_rate": OUTPUT_SAMPLE_RATE}
            }
            if number == NUM_GENERATION_STEPS // 2:
                payload["image"] = image
            chunk = ow.OutputChunk(
                request_id,
                number,
                OUTPUT_TYPE,
                [step.token_id],
                ow.OmniOutput(multimodal_outputs=payload),
                finish_reason="length" if number == NUM_GENERATION_STEPS - 1 else None,
            )
            data.send_bytes(ow.dumps(chunk))
    return output_hash(token_ids, {"audio": torch.cat(audio, dim=-1), "image": image})


def _params(request: ow.ProcessedRequest) -> ow.MultimodalParams:
    if request.multimodal_params is None:
        raise DemoFailed("the request carries no media")
    return request.multimodal_params


def _metadata(params: ow.MultimodalParams) -> ow.MultimodalItemMetadata:
    return cast(ow.MultimodalItemMetadata, params.item_metadata)  # admission requires it


def _rows(metadata: ow.MultimodalItemMetadata) -> list[int]:
    return list(cast(Sequence[int], metadata.output_embedding_lengths))  # and these


def _tensors(payload: Mapping[str, object]) -> Iterator[torch.Tensor]:
    for value in payload.values():
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, Mapping):
            yield from _tensors(value)


def _lies_in(tensor: torch.Tensor, message: bytes) -> bool:
    start = np.frombuffer(message, dtype=np.uint8).ctypes.data
    return start <= tensor.data_ptr() and tensor.data_ptr() + tensor.nbytes <= start + len(message)


def _share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _copied_and_viewed(view: ow.MultimodalParams, params: ow.MultimodalParams) -> tuple[int, int]:
    """Payload bytes that a selection copied, and bytes that it shares with the request."""
    original = list(_tensors(params.multimodal_data))
    copied = viewed = 0
    for tensor in _tensors(view.multimodal_data):
        if any(_share_memory(tensor, other) for other in original):
            viewed += tensor.nbytes
        else:
            copied += tensor.nbytes
    return copied, viewed
