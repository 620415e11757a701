"""The embedding rows of one prefill chunk."""

import torch

from omniwire.contracts.errors import Problem, contract_error
from omniwire.contracts.guard import guarded
from omniwire.contracts.handles import TensorHandle, resolved
from omniwire.contracts.params import Embeddings
from omniwire.contracts.runtime_data import MultimodalRuntimeData
from omniwire.runtime.rows import check_rows, join_rows

_SUBJECT = "chunk_embeddings"


@guarded
def chunk_embeddings(
    item_embeddings: Embeddings, runtime_data: MultimodalRuntimeData | None
) -> torch.Tensor:
    """The rows that a chunk needs, out of a request's item embeddings.

    Args:
        item_embeddings: Per item, in prompt order, its rows `[rows, hidden]`, as tensors or
            handles; or one tensor or handle of all rows. Items after the chunk may be left
            out, those before it not.
        runtime_data: The chunk; None for all rows.

    Returns:
        `[rows, hidden]`: a view where one item suffices (also for a chunk without rows), one
        concatenation otherwise. Treat it as read-only.

    Raises:
        ContractTypeError: An item is no tensor.
        ContractValueError: An item is not 2-D or differs from the first in hidden size, dtype
            or device; the chunk needs more rows than there are, or the items have more rows
            than the request.

    >>> items = [torch.arange(2).reshape(2, 1), torch.arange(2, 5).reshape(3, 1)]
    >>> chunk = MultimodalRuntimeData.for_chunk(
    ...     past_seen_token_num=2, chunk_end_pos=7, embed_mask=[0, 1, 1, 0, 0, 1, 1, 1])
    >>> chunk_embeddings(items, chunk).flatten().tolist()
    [1, 2, 3]
    """
    if isinstance(item_embeddings, torch.Tensor | TensorHandle):
        item_embeddings = [item_embeddings]
    items = [resolved(item) for item in item_embeddings]
    check_rows(_SUBJECT, "item_embeddings", items)
    num_rows = sum(item.size(0) for item in items)
    start, stop = (0, num_rows) if runtime_data is None else runtime_data.row_range
    if runtime_data is not None:
        num_needed = stop if stop > start else 0
        _check_total(num_rows, num_needed, runtime_data.total_embeds_in_request)
    pieces: list[torch.Tensor] = []
    item_start = 0
    for item in items:
        item_stop = item_start + item.size(0)
        first, past = max(start, item_start), min(stop, item_stop)
        if first < past:
            pieces.append(item.narrow(0, first - item_start, past - first))
        item_start = item_stop
        if item_start >= stop:
            break
    if pieces:
        return join_rows(pieces)
    return items[0][:0] if items else torch.empty((0, 0))


def _check_total(num_rows: int, num_needed: int, num_in_request: int) -> None:
    if num_rows < num_needed:
        expected = f"at least the {num_needed} embedding rows up to the chunk's end"
    elif num_rows > num_in_request:
        expected = f"at most the request's {num_in_request} embedding rows"
    else:
        return
    problem = Problem(("item_embeddings",), "count", expected, str(num_rows))
    raise contract_error(_SUBJECT, [problem])
