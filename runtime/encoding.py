"""Encoding scheduled items: what is cached is reused, the rest is encoded, once each."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

import attrs
import torch

from omniwire.contracts.describe import describe
from omniwire.contracts.errors import Path, Problem, contract_error
from omniwire.contracts.guard import guarded
from omniwire.contracts.params import MultimodalParams
from omniwire.contracts.requests import ProcessedRequest
from omniwire.runtime.cache import CacheLease, TensorLRUCache
from omniwire.runtime.cache_keys import EncoderCacheKey, encoder_cache_key
from omniwire.runtime.encoder import MultimodalEncoderMixin
from omniwire.runtime.encoder_state import MultimodalEncoderRequestState
from omniwire.runtime.rows import row_problem
from omniwire.runtime.selection import record_of

_SUBJECT: Final = "encode_scheduled"


@attrs.frozen
class _Item:
    """One scheduled item, by the position of its request and its prompt index."""

    request: int
    index: int
    num_rows: int
    key: EncoderCacheKey | None


@guarded
def encode_scheduled(
    model: MultimodalEncoderMixin,
    requests: Sequence[ProcessedRequest],
    scheduled: Mapping[str, Sequence[int]],
    *,
    cache: TensorLRUCache | None = None,
    dtype: torch.dtype | None = None,
    settings: str | None = None,
) -> None:
    """Make the scheduled items of admitted requests ready.

    Items found in the cache are not encoded; of identical items one is. The rest goes to
    `model.encode_multimodal_inputs` in one call, a view per request. Only when every output
    is sound is any of them cached or any item completed: a failed call leaves states and
    cache as they were, and can be repeated.

    The references in the states are `CacheLease`s, or plain tensors of rows for what could
    not be cached: no complete identity, or no room.

    Args:
        model: Encodes and selects.
        requests: Requests with a `MultimodalEncoderRequestState` as `encoder_state` of
            their params; more than the scheduled ones are fine.
        scheduled: Prompt indices by request id, as `ItemScheduler.schedule` returns them.
        cache: The model's cache, if it has one.
        dtype: Data type of the model's rows, which are checked for it.
        settings: As for `encoder_cache_key`. Without it and `dtype` no item has an identity:
            each is encoded, none cached.

    Raises:
        ContractTypeError: An argument, an encoder state or an output has the wrong type.
        ContractValueError: A scheduled request is not there, an item is not pending or its rows
            are unknown, or the model's outputs are not the rows that the records state.
        Exception: Whatever the model raises.
    """
    states, items = _scheduled_items(requests, scheduled, dtype, settings)
    with ExitStack() as undo:
        leases: dict[EncoderCacheKey, CacheLease] = {}
        encoded: list[_Item] = []
        seen: set[EncoderCacheKey] = set()
        for item in items:
            key = item.key
            if key is None:
                encoded.append(item)
            elif key not in seen:
                seen.add(key)
                lease = None if cache is None else cache.acquire(key, num_rows=item.num_rows)
                if lease is None:
                    encoded.append(item)
                else:
                    undo.callback(lease.release)
                    leases[key] = lease
        rows = _encode(model, requests, encoded, dtype)
        if cache is not None:
            for lease_key, lease in _cached(cache, encoded, rows).items():
                undo.callback(lease.release)
                leases[lease_key] = lease
        by_key = {item.key: row for item, row in zip(encoded, rows, strict=True) if item.key}
        own = {(item.request, item.index): row for item, row in zip(encoded, rows, strict=True)}
        for item in items:
            reference: object
            if item.key is not None and item.key in leases:
                reference = leases[item.key].share()
            elif item.key is not None:
                reference = by_key[item.key]
            else:
                reference = own[item.request, item.index]
            states[item.request].complete(item.index, reference)


def _scheduled_items(
    requests: Sequence[ProcessedRequest],
    scheduled: Mapping[str, Sequence[int]],
    dtype: torch.dtype | None,
    settings: str | None,
) -> tuple[dict[int, MultimodalEncoderRequestState], list[_Item]]:
    """The states of the scheduled requests, by position, and their items."""
    problems: list[Problem] = []
    positions = {request.request_id: position for position, request in enumerate(requests)}
    states: dict[int, MultimodalEncoderRequestState] = {}
    items: list[_Item] = []
    for request_id, indices in scheduled.items():
        if request_id not in positions:
            expected = f"a request among the {len(requests)} given"
            problem = Problem(("scheduled", request_id), "unknown", expected, describe(request_id))
            problems.append(problem)
            continue
        position = positions[request_id]
        path: Path = ("requests", position, "multimodal_params")
        params = requests[position].multimodal_params
        state = None if params is None else params.encoder_state
        if params is None or not isinstance(state, MultimodalEncoderRequestState):
            expected = "a MultimodalEncoderRequestState"
            problems.append(Problem((*path, "encoder_state"), "type", expected, describe(state)))
            continue
        record = record_of(params)
        rows = record.output_embedding_lengths
        if rows is None:
            expected = "exact row counts, which single items are encoded by"
            problems.append(
                Problem((*path, "output_embedding_lengths"), "missing", expected, "None")
            )
            continue
        pending = set(state.pending_items)
        states[position] = state
        for number, index in enumerate(indices):
            if index not in pending:
                expected = "an item still pending, once"
                where = ("scheduled", request_id, number)
                problems.append(Problem(where, "index", expected, describe(index)))
                continue
            pending.remove(index)
            key = encoder_cache_key(params, index, dtype=dtype, settings=settings)
            items.append(_Item(position, index, rows[index], key))
    if problems:
        raise contract_error(_SUBJECT, problems)
    return states, items


def _encode(
    model: MultimodalEncoderMixin,
    requests: Sequence[ProcessedRequest],
    items: list[_Item],
    dtype: torch.dtype | None,
) -> list[torch.Tensor]:
    """The rows of each item, all outputs checked as a whole."""
    if not items:
        return []
    by_request: dict[int, list[_Item]] = {}
    for item in items:
        by_request.setdefault(item.request, []).append(item)
    views: list[MultimodalParams] = []
    for position, group in by_request.items():
        params = requests[position].multimodal_params
        assert params is not None
        views.append(model.select_multimodal_items(params, [item.index for item in group]))
    outputs: Any = model.encode_multimodal_inputs(views)
    path: Path = ("encode_multimodal_inputs",)
    if not isinstance(outputs, list | tuple) or len(outputs) != len(views):
        expected = f"a list of {len(views)} tensors, one per params"
        is_list = isinstance(outputs, list | tuple)
        got = f"{len(outputs)}" if is_list else describe(outputs)
        problem = Problem(path, "count" if is_list else "type", expected, got)
        raise contract_error(_SUBJECT, [problem])
    problems: list[Problem] = []
    like: torch.Tensor | None = None
    for number, (output, group) in enumerate(zip(outputs, by_request.values(), strict=True)):
        problem_or_none = row_problem((*path, number), output, like)
        if problem_or_none is not None:
            problems.append(problem_or_none)
            continue
        like = output if like is None else like
        num_rows = sum(item.num_rows for item in group)
        if dtype is not None and output.dtype != dtype:
            expected = f"rows of {dtype}".replace("torch.", "")
            problems.append(Problem((*path, number), "dtype", expected, describe(output)))
        if output.size(0) != num_rows:
            expected = f"{num_rows} embedding rows"
            problems.append(Problem((*path, number), "count", expected, str(output.size(0))))
    if problems:
        raise contract_error(_SUBJECT, problems)
    rows: dict[tuple[int, int], torch.Tensor] = {}
    for output, group in zip(outputs, by_request.values(), strict=True):
        pieces = output.split([item.num_rows for item in group])
        rows |= {
            (item.request, item.index): piece for item, piece in zip(group, pieces, strict=True)
        }
    return [rows[item.request, item.index] for item in items]


def _cached(
    cache: TensorLRUCache, items: list[_Item], rows: list[torch.Tensor]
) -> dict[EncoderCacheKey, CacheLease]:
    """Commit what has an identity and finds room; the leases on it."""
    outputs: dict[EncoderCacheKey, torch.Tensor] = {}
    try:
        for item, row in zip(items, rows, strict=True):
            key = item.key
            if key is not None and not cache.is_reserved(key) and cache.reserve(key, row.nbytes):
                outputs[key] = row
        return cache.commit(outputs)
    except BaseException:
        for key in outputs:
            cache.cancel(key)
        raise
