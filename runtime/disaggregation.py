"""Encoder and prefill in different engines: embeddings out in an envelope, and in from one."""

from collections.abc import Sequence
from typing import Any, Final, Protocol

import torch

from omniwire.contracts.describe import describe
from omniwire.contracts.errors import Path, Problem, contract_error
from omniwire.contracts.guard import guarded
from omniwire.contracts.handles import TensorHandle
from omniwire.contracts.inputs import MultimodalInput
from omniwire.contracts.items import MultimodalItemMetadata
from omniwire.contracts.params import MultimodalParams
from omniwire.contracts.requests import DisaggregatedParams
from omniwire.contracts.tokens import TokenIds
from omniwire.runtime.selection import record_of

_SUBJECT: Final = "DisaggregatedParams"


class PrefillHook(Protocol):
    """What a model's processor does with an envelope on the prefill side."""

    def __call__(
        self, envelope: DisaggregatedParams, prompt: Any
    ) -> tuple[TokenIds, MultimodalParams]:
        """Rebuild the model's prompt layout around embeddings that are there already.

        Args:
            envelope: What the encoder side sent.
            prompt: The prompt as the engine received it.

        Returns:
            The prompt with its placeholders, and params from `import_embeddings`.
        """
        ...


@guarded
def record_rows(
    metadata: MultimodalItemMetadata, item_embeddings: Sequence[torch.Tensor | TensorHandle]
) -> MultimodalItemMetadata:
    """New metadata with the rows that a full encoding turned out to have.

    Args:
        metadata: The items' record; stays as it is.
        item_embeddings: Per item in prompt order, its rows `[rows, hidden]`.

    Raises:
        ContractValueError: Another number of items, an element that is not 2-D or has no row, or
            rows that the record has otherwise (at `$.output_embedding_lengths[1]`, say).
    """
    problems: list[Problem] = []
    if len(item_embeddings) != len(metadata.item_refs):
        expected = f"{len(metadata.item_refs)} items"
        got = str(len(item_embeddings))
        problems.append(Problem(("item_embeddings",), "count", expected, got))
    for index, rows in enumerate(item_embeddings):
        if len(rows.shape) != 2:
            path: Path = ("item_embeddings", index)
            expected = "2-D embedding rows [rows, hidden]"
            problems.append(Problem(path, "shape", expected, describe(rows)))
    if problems:
        raise contract_error("record_rows", problems)
    rows_known = MultimodalItemMetadata(
        metadata.item_refs,
        output_embedding_lengths=tuple([int(rows.shape[0]) for rows in item_embeddings]),
    )
    return metadata.merge(rows_known)


@guarded
def export_embeddings(
    params: MultimodalParams,
    item_embeddings: Sequence[torch.Tensor | TensorHandle],
    *,
    request_type: str = "prefill",
    opaque_state: bytes | None = None,
) -> DisaggregatedParams:
    """The envelope of a request's encoded items.

    Args:
        params: The request's params, with record and hashes.
        item_embeddings: Per item in prompt order, its rows. A tensor becomes a handle of this
            process; give handles that reach further for a receiver that is further away.
        request_type: What the receiver is asked to do.
        opaque_state: Bytes that only the engine understands.

    Raises:
        ContractValueError: There is no record, there are no hashes (none are invented), or the
            embeddings are not those of the record's items.
    """
    record_rows(record_of(params), item_embeddings)
    given = params.multimodal_input
    if given is None:
        problem = Problem(("multimodal_input",), "missing", "the items' hashes", "None")
        raise contract_error("MultimodalParams", [problem])
    handles = [
        rows
        if isinstance(rows, TensorHandle)
        else TensorHandle("local", rows.dtype, rows.shape, rows)
        for rows in item_embeddings
    ]
    return DisaggregatedParams(handles, given.multimodal_hashes, request_type, opaque_state)


@guarded
def import_embeddings(
    envelope: DisaggregatedParams,
    item_metadata: MultimodalItemMetadata,
    multimodal_input: MultimodalInput,
) -> MultimodalParams:
    """Params of the prefill side, with the envelope's embeddings attached.

    Args:
        envelope: What the encoder side sent.
        item_metadata: The items in the order of the prompt that was rebuilt here.
        multimodal_input: Their hashes, and their positions in that prompt.

    Returns:
        Params with the handles as embeddings, one per item, and their rows in the record.

    Raises:
        ContractValueError: The envelope has no handles or no hashes, other items than the
            record, other hashes than `multimodal_input`, or rows that the record contradicts.
    """
    handles, hashes = envelope.multimodal_embedding_handles, envelope.multimodal_hashes
    problems = [
        Problem((name,), "missing", "one per item", "None")
        for name, value in (
            ("multimodal_embedding_handles", handles),
            ("multimodal_hashes", hashes),
        )
        if value is None
    ]
    if handles is None or hashes is None:
        raise contract_error(_SUBJECT, problems)
    own = multimodal_input.multimodal_hashes
    if len(own) != len(hashes):
        path: Path = ("multimodal_hashes",)
        problems.append(Problem(path, "count", f"{len(own)} hashes", str(len(hashes))))
    for index, (sent, rebuilt) in enumerate(zip(hashes, own, strict=False)):
        if sent != rebuilt:
            path = ("multimodal_hashes", index)
            expected = "the hash of the item at this place of the prompt"
            problems.append(Problem(path, "conflict", expected, "another"))
    if problems:
        raise contract_error(_SUBJECT, problems)
    return MultimodalParams.from_embeddings(
        handles, record_rows(item_metadata, handles), multimodal_input
    )
