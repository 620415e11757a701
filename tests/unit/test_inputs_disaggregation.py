"""Encoder and prefill apart: the envelope both ways, rows recorded, nothing invented."""

from collections.abc import Callable

import pytest
import torch

from omniwire.contracts import (
    ContractError,
    ContractValueError,
    DisaggregatedParams,
    MultimodalInput,
    MultimodalItemMetadata,
    MultimodalParams,
    MultimodalRuntimeData,
    ProcessedRequest,
    TensorHandle,
    TokenIds,
    check_admission,
    check_producer,
)
from omniwire.contracts.errors import Path
from omniwire.runtime import (
    chunk_embeddings,
    export_embeddings,
    import_embeddings,
    record_rows,
)

Refusals = Callable[..., tuple[type[ContractError], list[tuple[Path, str]]]]

RECORD = MultimodalItemMetadata([("image", 0), ("audio", 0)])
HASHES = [[1] * 8, [2] * 8]
INPUT = MultimodalInput(HASHES, [1, 4], [2, 3])
EMBEDDINGS = [torch.full((2, 4), 1.0), torch.full((3, 4), 2.0)]


def request_params(given: MultimodalInput | None = INPUT) -> MultimodalParams:
    data = {"image": {}, "audio": {}, "item_metadata": RECORD}
    return MultimodalParams(given, data)


def rebuild(envelope: DisaggregatedParams, prompt: list[str]) -> tuple[TokenIds, MultimodalParams]:
    """A prefill hook: its own layout, with one more token in front of each item."""
    handles = envelope.multimodal_embedding_handles
    assert handles is not None
    tokens: list[int] = []
    positions: list[int] = []
    for handle, _ in zip(handles, prompt, strict=True):
        tokens += [7, 8]
        positions.append(len(tokens))
        tokens += [5] * handle.shape[0]
    located = MultimodalInput(HASHES, positions, [handle.shape[0] for handle in handles])
    return TokenIds(tokens), import_embeddings(envelope, RECORD, located)


def test_embeddings_cross_from_the_encoder_to_the_prefill_side() -> None:
    envelope = export_embeddings(request_params(), EMBEDDINGS, opaque_state=b"engine")
    assert envelope.multimodal_hashes == tuple(map(tuple, HASHES))
    assert (envelope.request_type, envelope.opaque_state) == ("prefill", b"engine")
    tokens, params = rebuild(envelope, ["image", "audio"])
    request = check_admission(check_producer(ProcessedRequest("r1", tokens, params)))
    assert request.multimodal_params is not None
    record = request.multimodal_params.item_metadata
    assert record == MultimodalItemMetadata(RECORD.item_refs, None, [2, 3])
    assert RECORD.output_embedding_lengths is None  # new metadata, the old is as it was
    chunk = MultimodalRuntimeData.for_chunk(
        past_seen_token_num=3, chunk_end_pos=7, multimodal_input=params.multimodal_input
    )
    assert params.embeddings is not None
    rows = chunk_embeddings(params.embeddings, chunk)
    assert torch.equal(rows, torch.cat([EMBEDDINGS[0][1:], EMBEDDINGS[1][:1]]))
    first = params.embeddings[0]
    assert isinstance(first, TensorHandle)
    assert first.resolve() is EMBEDDINGS[0]


def test_handles_are_handed_on_as_they_are() -> None:
    handles = [TensorHandle("arena", torch.float32, rows.shape, b"slot") for rows in EMBEDDINGS]
    envelope = export_embeddings(request_params(), handles)
    assert envelope.multimodal_embedding_handles == tuple(handles)


def test_missing_hashes_are_refused_and_not_invented(refusal: Refusals) -> None:
    value = ContractValueError
    assert refusal(export_embeddings, request_params(None), EMBEDDINGS) == (
        value,
        [(("multimodal_input",), "missing")],
    )
    handles = export_embeddings(request_params(), EMBEDDINGS).multimodal_embedding_handles
    assert refusal(import_embeddings, DisaggregatedParams(handles), RECORD, INPUT) == (
        value,
        [(("multimodal_hashes",), "missing")],
    )
    assert refusal(import_embeddings, DisaggregatedParams(None, HASHES), RECORD, INPUT) == (
        value,
        [(("multimodal_embedding_handles",), "missing")],
    )


def test_items_in_another_order_are_a_conflict(refusal: Refusals) -> None:
    envelope = export_embeddings(request_params(), EMBEDDINGS)
    swapped = MultimodalInput(HASHES[::-1], [1, 4], [2, 3])
    assert refusal(import_embeddings, envelope, RECORD, swapped) == (
        ContractValueError,
        [(("multimodal_hashes", 0), "conflict"), (("multimodal_hashes", 1), "conflict")],
    )
    one = MultimodalInput(HASHES[:1], [1], [2])
    assert refusal(import_embeddings, envelope, RECORD, one)[1] == [
        (("multimodal_hashes",), "count")
    ]


@pytest.mark.parametrize(
    ("embeddings", "path", "code"),
    [
        (EMBEDDINGS[:1], ("item_embeddings",), "count"),
        ([EMBEDDINGS[0], EMBEDDINGS[1][0]], ("item_embeddings", 1), "shape"),
        ([EMBEDDINGS[0], EMBEDDINGS[1][:0]], ("output_embedding_lengths", 1), "range"),
    ],
)
def test_what_is_not_the_rows_of_the_items(
    embeddings: list[torch.Tensor], path: Path, code: str, refusal: Refusals
) -> None:
    expected = (ContractValueError, [(path, code)])
    assert refusal(record_rows, RECORD, embeddings) == expected
    assert refusal(export_embeddings, request_params(), embeddings) == expected


def test_rows_that_the_record_has_otherwise_are_a_conflict(refusal: Refusals) -> None:
    known = MultimodalItemMetadata(RECORD.item_refs, None, [2, 4])
    assert refusal(record_rows, known, EMBEDDINGS) == (
        ContractValueError,
        [(("output_embedding_lengths", 1), "conflict")],
    )
