"""Invalid params, requests, envelopes and budgets, and requests that a boundary refuses."""

from typing import Any, Final

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from omniwire.contracts import (
    DisaggregatedParams,
    EncoderBudget,
    EncoderCapability,
    ItemRef,
    MultimodalItemMetadata,
    MultimodalParams,
    MultimodalRuntimeData,
    ProcessedRequest,
    TensorHandle,
)
from omniwire.contracts.errors import Path
from omniwire.contracts.params import EMBEDDING_KEY, ITEM_METADATA_KEY, RESERVED_KEYS
from omniwire.testing.strategies.inputs import hash_words
from omniwire.testing.strategies.invalid import (
    BAD_TEXTS,
    NEGATIVE,
    NONE,
    NOT_BOOLS,
    NOT_INTS,
    NOT_MAPPINGS,
    NOT_SEQUENCES,
    NOT_TEXTS,
    Defect,
    Invalid,
    broken,
    surplus_element,
    wrong,
    wrong_element,
)
from omniwire.testing.strategies.invalid_payloads import sparse_tensor, wrong_payload
from omniwire.testing.strategies.requests import (
    encoder_budgets,
    encoder_capabilities,
    multimodal_params,
    processed_requests,
)

_RUNTIME: Final = MultimodalRuntimeData(0, 1, 0, 0, 0)


def invalid_multimodal_params() -> SearchStrategy[Invalid]:
    """Params with a bad payload, or with something else under a reserved key."""
    return broken(
        MultimodalParams,
        multimodal_params(),
        [
            wrong("multimodal_input", st.sampled_from([{}, 1, "input", _RUNTIME]), "type"),
            wrong("multimodal_data", NOT_MAPPINGS | NONE, "type"),
            wrong_payload("multimodal_data"),
            wrong("multimodal_runtime", st.sampled_from([(0, 1), 1, "chunk", {}]), "type"),
            _state_in_a_view,
            _under_reserved_key(ITEM_METADATA_KEY, _NOT_RECORDS, (), "type"),
            _reserved_modality,
            _under_reserved_key(EMBEDDING_KEY, _NOT_EMBEDDINGS, (), "type"),
            _under_reserved_key(EMBEDDING_KEY, st.just([]), (), "count"),
            _under_reserved_key(EMBEDDING_KEY, _one_tensor_and(_NOT_EMBEDDINGS), (1,), "type"),
            _under_reserved_key(EMBEDDING_KEY, _one_tensor_and(_SPARSE), (1,), "layout"),
        ],
    )


def invalid_processed_requests() -> SearchStrategy[Invalid]:
    """Requests with a bad id, bad tokens, or something else for params."""
    return broken(
        ProcessedRequest,
        processed_requests(min_items=1, max_items=2),
        [
            wrong("request_id", NOT_TEXTS | NONE, "type"),
            wrong("request_id", BAD_TEXTS, "format"),
            _with_a_token(wrong_element("prompt_token_ids", NOT_INTS | NONE, "type")),
            _with_a_token(wrong_element("prompt_token_ids", _BAD_IDS, "range")),
            wrong("prompt_token_ids", st.sampled_from([1, "12", {1, 2}]) | NONE, "type"),
            wrong("multimodal_params", st.sampled_from([{}, 1, "params", _RUNTIME]), "type"),
        ],
    )


def invalid_disaggregated_params() -> SearchStrategy[Invalid]:
    """Envelopes with bad handles or hashes, or counts that disagree."""
    return broken(
        DisaggregatedParams,
        _envelopes(),
        [
            wrong("multimodal_embedding_handles", NOT_SEQUENCES, "type"),
            wrong_element("multimodal_embedding_handles", _NOT_HANDLES, "type"),
            wrong("multimodal_hashes", NOT_SEQUENCES, "type"),
            wrong_element("multimodal_hashes", st.sampled_from(["f" * 64, 1]) | NONE, "type"),
            wrong_element("multimodal_hashes", st.sampled_from([(), (1,) * 7]), "count"),
            surplus_element("multimodal_hashes"),
            wrong("request_type", NOT_TEXTS | NONE, "type"),
            wrong("request_type", BAD_TEXTS, "format"),
            wrong("opaque_state", st.sampled_from([1, "state", {}, (1,)]), "type"),
        ],
    )


def invalid_encoder_capabilities() -> SearchStrategy[Invalid]:
    """Capabilities with a field of the wrong type, or no hidden size."""
    return broken(
        EncoderCapability,
        encoder_capabilities(),
        [
            wrong("item_scheduling", NOT_BOOLS | NONE, "type"),
            wrong("custom_selection", NOT_BOOLS | NONE, "type"),
            wrong("hidden_size", NOT_INTS, "type"),
            wrong("hidden_size", _NOT_POSITIVE, "range"),
        ],
    )


def invalid_encoder_budgets() -> SearchStrategy[Invalid]:
    """Budgets that are not positive, or in bytes without the bytes of a row."""
    names = ("max_encoder_tokens", "max_output_bytes", "output_row_bytes")
    return broken(
        EncoderBudget,
        encoder_budgets().filter(lambda budget: budget.output_row_bytes is not None),
        [
            *[wrong(name, NOT_INTS, "type") for name in names],
            *[wrong(name, _NOT_POSITIVE, "range") for name in names],
            _bytes_without_row_bytes,
        ],
    )


_BAD_IDS: Final = NEGATIVE | st.integers(min_value=2**31)
_NOT_POSITIVE: Final = st.integers(max_value=0)
_NOT_RECORDS: Final = st.sampled_from([None, {"item_refs": ()}, ("image", 0), ItemRef("image", 0)])
_NOT_EMBEDDINGS: Final = st.sampled_from([None, 1.0, {"rows": 1}, ItemRef("image", 0)])
_NOT_HANDLES: Final = st.sampled_from([None, b"handle", 1]) | st.builds(torch.zeros, st.just(2))
_SPARSE: Final = st.builds(sparse_tensor)


@st.composite
def _envelopes(draw: DrawFn) -> dict[str, Any]:
    """Arguments of an envelope with everything in it."""
    tensors = [torch.zeros(1, 2) for _ in range(draw(st.integers(1, 3)))]
    num_items = len(tensors)
    return {
        "multimodal_embedding_handles": [
            TensorHandle("local", tensor.dtype, tuple(tensor.shape), tensor) for tensor in tensors
        ],
        "multimodal_hashes": draw(st.lists(hash_words(), min_size=num_items, max_size=num_items)),
        "request_type": "prefill",
        "opaque_state": draw(st.binary(max_size=4)),
    }


def _under_reserved_key(
    key: str, values: SearchStrategy[object], inside: Path, code: str
) -> Defect:
    def put_in(draw: DrawFn, arguments: dict[str, Any]) -> tuple[Path, str]:
        arguments["multimodal_data"] = {**arguments["multimodal_data"], key: draw(values)}
        return ("multimodal_data", key, *inside), code

    return put_in


def _one_tensor_and(values: SearchStrategy[object]) -> SearchStrategy[object]:
    return st.tuples(st.builds(torch.zeros, st.just((1, 2))), values)


def _reserved_modality(draw: DrawFn, arguments: dict[str, Any]) -> tuple[Path, str]:
    modality = draw(st.sampled_from(sorted(RESERVED_KEYS)))
    record = MultimodalItemMetadata([("image", 0), (modality, 0)])
    arguments["multimodal_data"] = {ITEM_METADATA_KEY: record}
    return ("multimodal_data", ITEM_METADATA_KEY, "item_refs", 1, "modality"), "conflict"


def _state_in_a_view(draw: DrawFn, arguments: dict[str, Any]) -> tuple[Path, str]:
    arguments["multimodal_runtime"] = _RUNTIME
    arguments["encoder_state"] = draw(st.builds(object))
    return ("encoder_state",), "conflict"


def _with_a_token(defect: Defect) -> Defect:
    """The defect of a token, where the prompt may have none to put it into."""

    def put_in(draw: DrawFn, arguments: dict[str, Any]) -> tuple[Path, str]:
        arguments["prompt_token_ids"] = (*arguments["prompt_token_ids"], 1)
        return defect(draw, arguments)

    return put_in


def _bytes_without_row_bytes(draw: DrawFn, arguments: dict[str, Any]) -> tuple[Path, str]:
    arguments["max_output_bytes"] = draw(st.integers(1, 100))
    arguments["output_row_bytes"] = None
    return ("output_row_bytes",), "missing"
