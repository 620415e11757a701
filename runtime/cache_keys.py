"""The identity of an item's encoder output: what must agree for a cached one to be its own."""

import attrs
import torch

from omniwire.contracts.checks import check_indices
from omniwire.contracts.errors import Problem, contract_error
from omniwire.contracts.guard import guarded
from omniwire.contracts.params import MultimodalParams
from omniwire.runtime.selection import record_of

_SUBJECT = "encoder_cache_key"


@attrs.frozen
class EncoderCacheKey:
    """Everything that an item's embedding rows depend on; hashable, compared in full.

    Attributes:
        modality: Which encoder.
        content_hash: The item's content, all 256 bits as 8 signed int32.
        num_rows: Embedding rows of the item.
        dtype: Data type of the rows.
        settings: The model, its processor and their settings, as text.
    """

    modality: str
    content_hash: tuple[int, ...]
    num_rows: int
    dtype: torch.dtype
    settings: str


@guarded
def encoder_cache_key(
    params: MultimodalParams, index: int, *, dtype: torch.dtype | None, settings: str | None
) -> EncoderCacheKey | None:
    """The identity of one item's encoder output, or None for what must not be cached.

    Only content identifies an item: a uuid names an upload, not what is in it.

    Args:
        params: Request-owned params.
        index: Prompt index of the item.
        dtype: Data type of the rows that the model makes. None if it is not known.
        settings: Model, processor and their settings as text, such as a checkpoint's name and
            revision with `HuggingFaceProcessor.settings`. None if they are not known.

    Returns:
        None if hash, rows, data type or settings are unknown.

    Raises:
        ContractTypeError: An argument has the wrong type.
        ContractValueError: There is no record, the index is out of range, or the hashes are
            not those of the record's items.

    >>> from omniwire.contracts import MultimodalInput, MultimodalItemMetadata
    >>> params = MultimodalParams(
    ...     MultimodalInput([[1] * 8], [0], [4]),
    ...     {"image": {}, "item_metadata": MultimodalItemMetadata(
    ...         [("image", 0)], output_embedding_lengths=[4])})
    >>> encoder_cache_key(params, 0, dtype=torch.bfloat16, settings="model@1").num_rows
    4
    >>> encoder_cache_key(params, 0, dtype=torch.bfloat16, settings=None) is None
    True
    """
    record = record_of(params)
    check_indices([index], len(record.item_refs), _SUBJECT, "index")
    problems: list[Problem] = []
    given, rows = params.multimodal_input, record.output_embedding_lengths
    if given is not None and len(given.multimodal_hashes) != len(record.item_refs):
        path = ("multimodal_input", "multimodal_hashes")
        expected = f"{len(record.item_refs)} items"
        problems.append(Problem(path, "count", expected, str(len(given.multimodal_hashes))))
    if problems:
        raise contract_error(_SUBJECT, problems)
    if given is None or rows is None or dtype is None or not settings:
        return None
    return EncoderCacheKey(
        record.item_refs[index].modality,
        given.multimodal_hashes[index],
        rows[index],
        dtype,
        settings,
    )
