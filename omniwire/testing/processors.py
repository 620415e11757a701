"""`assert_processor_conforms`: what every model's processor owes the rest of the system."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from omniwire.contracts import (
    ContractError,
    MultimodalItemMetadata,
    MultimodalParams,
    ProcessedRequest,
    check_producer,
    content_hash,
)
from omniwire.contracts.describe import describe
from omniwire.runtime import ItemMetadataSource, MultimodalProcessor, prepare_request, select
from omniwire.testing.comparison import assert_equal

Example = Mapping[str, Any] | Sequence[Any]
"""The arguments of `get_mm_item_metadata` in order, or those of `prepare_request` by name."""

_ITEM_PAYLOADS: Final = "item_payloads"
_ARGUMENTS: Final = ("prompt_token_ids", "multimodal_data", "mm_item_order")


def assert_processor_conforms(processor: ItemMetadataSource, examples: Iterable[Example]) -> None:
    """Check a model's processor on some examples of what it processes.

    Its metadata hook gives the same record again for the same payload and leaves that alone;
    the record agrees with the order and rows of the example, and with the payload (counts,
    packed sums, declared fields); where every modality is declared, each item can be selected
    alone (and equals what processing it alone gave, where the example has that) and the items
    reordered and put back. If the processor has `get_dummy_mm_data`, that
    gives a consistent payload with exact rows for the modalities of each example.

    Args:
        processor: The processor.
        examples: At least one. Either the arguments of `get_mm_item_metadata`, in order:
            `(prompt_token_ids, multimodal_data)` or `(..., mm_item_order)`; or a mapping of
            arguments of `prepare_request`, which may add `output_embedding_lengths`,
            `multimodal_input`, and `item_payloads`: per item in prompt order, the payload
            `{modality: fields}` of that item processed alone, which selecting it must equal.

    Raises:
        AssertionError: The processor breaks a rule, named with the number of the example.

    >>> import torch
    >>> from omniwire.contracts import MultimodalItemPartition
    >>> class Processor:
    ...     def get_mm_item_metadata(self, prompt_token_ids, multimodal_data, mm_item_order=None):
    ...         rows = multimodal_data["audio"]["num_frames"]
    ...         return MultimodalItemMetadata(
    ...             [("audio", index) for index in range(len(rows))],
    ...             output_embedding_lengths=rows,
    ...             input_partitions={"audio": {
    ...                 "frames": MultimodalItemPartition(rows),
    ...                 "num_frames": MultimodalItemPartition()}})
    >>> audio = {"frames": torch.zeros(5, 80), "num_frames": [2, 3]}
    >>> assert_processor_conforms(Processor(), [([1, 9, 9, 2], {"audio": audio})])
    >>> audio = {"frames": torch.zeros(6, 80), "num_frames": [2, 3]}
    >>> assert_processor_conforms(Processor(), [([1, 9, 9, 2], {"audio": audio})])
    Traceback (most recent call last):
    AssertionError: example 0: ProcessedRequest: expected 5 along axis 0, the sum of the item \
lengths, got 6 - at $.multimodal_params.multimodal_data.audio.frames
    """
    number = -1
    for number, example in enumerate(examples):
        try:
            _check_example(processor, _by_name(example))
        except (ContractError, AssertionError) as error:
            raise AssertionError(f"example {number}: {error}") from error
    if number < 0:
        raise AssertionError("expected at least one example, got none")


def _by_name(example: Example) -> Mapping[str, Any]:
    if isinstance(example, Mapping):
        return example
    given: dict[str, Any] = dict(zip(_ARGUMENTS, example, strict=False))  # the order may be missing
    return given


def _check_example(processor: ItemMetadataSource, given: Mapping[str, Any]) -> None:
    _check_hook(processor, given)
    arguments = {name: value for name, value in given.items() if name != _ITEM_PAYLOADS}
    request = check_producer(prepare_request(processor, **{"request_id": "example", **arguments}))
    params = request.multimodal_params
    record = None if params is None else params.item_metadata
    if params is None or record is None:
        return
    counts = _counts(record)
    if record.input_partitions is not None and record.input_partitions.keys() == counts.keys():
        _check_selection(request, params, record)
    if given.get(_ITEM_PAYLOADS) is not None:
        _check_alone(params, record, given[_ITEM_PAYLOADS])
    if counts and isinstance(processor, MultimodalProcessor):
        _check_dummy_data(processor.get_dummy_mm_data(counts), counts)


def _check_hook(processor: ItemMetadataSource, given: Mapping[str, Any]) -> None:
    """The hook depends on nothing but its arguments, and leaves those alone."""
    prompt = ProcessedRequest("example", given["prompt_token_ids"]).prompt_token_ids
    data = MultimodalParams(multimodal_data=given["multimodal_data"] or {}).multimodal_data
    order = given.get("mm_item_order")
    before = content_hash(data)
    records = [processor.get_mm_item_metadata(prompt, data, mm_item_order=order) for _ in range(2)]
    if content_hash(data) != before:
        raise AssertionError("get_mm_item_metadata: expected the payload unchanged, got another")
    assert_equal(records[1], records[0])


def _check_selection(
    request: ProcessedRequest, params: MultimodalParams, record: MultimodalItemMetadata
) -> None:
    """Each item alone is a consistent request, and reordered items can be put back."""
    every = range(len(record.item_refs))
    for index in every:
        view = select(params, [index])
        single = MultimodalParams(view.multimodal_input, view.multimodal_data)
        check_producer(ProcessedRequest(request.request_id, request.prompt_token_ids, single))
    if every:
        backwards = select(params, every[::-1])
        assert_equal(select(backwards, every[::-1]), select(params, every))


def _check_alone(
    params: MultimodalParams, record: MultimodalItemMetadata, payloads: Sequence[Mapping[str, Any]]
) -> None:
    """Selecting an item gives the payload that processing it alone gives."""
    if len(payloads) != len(record.item_refs):
        expected = f"{len(record.item_refs)} payloads, one per item"
        raise AssertionError(f"{_ITEM_PAYLOADS}: expected {expected}, got {len(payloads)}")
    for index, (payload, (modality, _)) in enumerate(zip(payloads, record.item_refs, strict=True)):
        alone = MultimodalParams(multimodal_data=payload).multimodal_data
        selected = select(params, [index]).multimodal_data
        try:
            assert_equal(selected[modality], alone[modality])
        except AssertionError as error:
            raise AssertionError(f"{_ITEM_PAYLOADS}[{index}]: {error}") from error


def _check_dummy_data(data: Mapping[str, Any], wanted: Mapping[str, int]) -> None:
    name = "get_dummy_mm_data"
    params = MultimodalParams(multimodal_data=data)
    record = params.item_metadata
    if record is None:
        raise AssertionError(f"{name}: expected an item metadata record, got {describe(data)}")
    counts = _counts(record)
    for modality, count in wanted.items():
        if not 1 <= counts.get(modality, 0) <= count:
            got = f"{counts.get(modality, 0)}"
            raise AssertionError(f"{name}: expected 1 to {count} items of {modality}, got {got}")
    if record.output_embedding_lengths is None:
        raise AssertionError(f"{name}: expected exact output_embedding_lengths, got None")
    check_producer(ProcessedRequest("dummy", (), params))


def _counts(record: MultimodalItemMetadata) -> dict[str, int]:
    counts: dict[str, int] = {}
    for modality, _ in record.item_refs:
        counts[modality] = counts.get(modality, 0) + 1
    return counts
