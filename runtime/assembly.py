"""`EncoderGroup`: one encoder call per modality, rows handed back in each prompt's order."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from omniwire.contracts.describe import describe
from omniwire.contracts.errors import Path, Problem, contract_error
from omniwire.contracts.guard import guarded
from omniwire.contracts.items import MultimodalItemMetadata
from omniwire.contracts.params import ITEM_METADATA_KEY, MultimodalParams
from omniwire.runtime.rows import join_rows, row_problem

ModalityEncoder = Callable[[list[MultimodalParams]], torch.Tensor]
"""Encodes one modality of several params: `[rows, hidden]`, in modality-local index order."""

_SUBJECT = "EncoderGroup"


class EncoderGroup:
    """Encodes the modalities of several requests together, each encoder called once.

    An encoder gets the params that have its modality, unreordered and in the order given, and
    returns their rows one after the other, each params' rows in modality-local index order.
    The group splits them by the exact row counts in each record and puts every params' rows
    in its own prompt order. Nothing is returned unless every output is sound.

    Args:
        encoders: The encoder of each modality.

    Raises:
        ContractTypeError: `encoders` is not a mapping.

    >>> import torch
    >>> from omniwire.contracts import MultimodalItemMetadata, MultimodalParams
    >>> record = MultimodalItemMetadata(
    ...     [("video", 0), ("image", 0)], output_embedding_lengths=[3, 1])
    >>> params = MultimodalParams(
    ...     multimodal_data={"image": {}, "video": {}, "item_metadata": record})
    >>> group = EncoderGroup(
    ...     {"image": lambda params: torch.zeros(1, 1), "video": lambda params: torch.ones(3, 1)})
    >>> group.encode([params])[0].flatten().tolist()
    [1.0, 1.0, 1.0, 0.0]
    """

    @guarded
    def __init__(self, encoders: Mapping[str, ModalityEncoder]) -> None:
        self._encoders = dict(encoders)

    def encode(self, params: Sequence[MultimodalParams]) -> list[torch.Tensor]:
        """Encode all items of several params.

        Args:
            params: Params whose records have exact `output_embedding_lengths`, in any order.

        Returns:
            Per params, its rows `[rows, hidden]` in prompt order: a view of the encoder's
            output where those lie together in that order, one concatenation otherwise.

        Raises:
            ContractTypeError: An element is no params, or an encoder returns no tensor.
            ContractValueError: Params without items, a record or row counts; a modality
                without an encoder; an encoder's output with a wrong number of rows; outputs
                that differ in hidden size, dtype or device.
        """
        records = self._check_params(params)
        members: dict[str, list[int]] = {}
        for position, record in enumerate(records):
            for modality in dict.fromkeys(ref.modality for ref in record.item_refs):
                members.setdefault(modality, []).append(position)
        outputs = {
            modality: encoder([params[position] for position in members[modality]])
            for modality, encoder in self._encoders.items()
            if modality in members
        }
        _check_outputs(outputs, members, records)
        first_rows = dict.fromkeys(outputs, 0)
        return [_assemble(record, outputs, first_rows) for record in records]

    def _check_params(self, params: Sequence[MultimodalParams]) -> list[MultimodalItemMetadata]:
        problems: list[Problem] = []
        records: list[MultimodalItemMetadata] = []
        for position, one in enumerate(params):
            if type(one) is not MultimodalParams:
                expected = "a MultimodalParams"
                problems.append(Problem((position,), "type", expected, describe(one)))
                continue
            path: Path = (position, "multimodal_data", ITEM_METADATA_KEY)
            record = one.item_metadata
            if record is None:
                problems.append(Problem(path, "missing", "an item metadata record", "none"))
                continue
            records.append(record)
            if not record.item_refs:
                problems.append(Problem((*path, "item_refs"), "count", "at least 1 item", "0"))
            elif record.output_embedding_lengths is None:
                expected = "exact row counts, which grouped assembly splits by"
                rows_path = (*path, "output_embedding_lengths")
                problems.append(Problem(rows_path, "missing", expected, "None"))
            for modality in dict.fromkeys(ref.modality for ref in record.item_refs):
                if modality not in self._encoders:
                    expected = f"a modality with an encoder ({', '.join(self._encoders)})"
                    problems.append(Problem((*path, "item_refs"), "unknown", expected, modality))
        if problems:
            raise contract_error(_SUBJECT, problems)
        return records


def _row_counts(record: MultimodalItemMetadata) -> tuple[int, ...]:
    assert record.output_embedding_lengths is not None
    return record.output_embedding_lengths


def _check_outputs(
    outputs: Mapping[str, object],
    members: Mapping[str, list[int]],
    records: list[MultimodalItemMetadata],
) -> None:
    """Check every encoder's output against the records before any row is used."""
    problems: list[Problem] = []
    like: torch.Tensor | None = None
    for modality, output in outputs.items():
        problem = row_problem((modality,), output, like)
        if problem is not None:
            problems.append(problem)
            continue
        assert isinstance(output, torch.Tensor)
        like = output if like is None else like
        expected = sum(
            num_rows
            for position in members[modality]
            for ref, num_rows in zip(
                records[position].item_refs, _row_counts(records[position]), strict=True
            )
            if ref.modality == modality
        )
        if output.size(0) != expected:
            wanted = f"{expected} embedding rows from the {modality} encoder"
            problems.append(Problem((modality,), "count", wanted, str(output.size(0))))
    if problems:
        raise contract_error(_SUBJECT, problems)


def _assemble(
    record: MultimodalItemMetadata,
    outputs: Mapping[str, torch.Tensor],
    first_rows: dict[str, int],
) -> torch.Tensor:
    """One params' rows in prompt order; advances `first_rows` past them."""
    starts = [0] * len(record.item_refs)
    row_counts = _row_counts(record)
    prompt_index_by_ref = {ref: index for index, ref in enumerate(record.item_refs)}
    for ref in sorted(prompt_index_by_ref):
        index = prompt_index_by_ref[ref]
        starts[index] = first_rows[ref.modality]
        first_rows[ref.modality] += row_counts[index]
    return join_rows(
        [
            outputs[modality].narrow(0, start, stop - start)
            for modality, start, stop in _runs(record, starts)
        ]
    )


def _runs(record: MultimodalItemMetadata, starts: list[int]) -> Iterator[tuple[str, int, int]]:
    """Runs of consecutive rows of one output, in prompt order: (modality, start, stop)."""
    run: tuple[str, int, int] | None = None
    for ref, start, num_rows in zip(record.item_refs, starts, _row_counts(record), strict=True):
        if run is not None and run[0] == ref.modality and run[2] == start:
            run = (ref.modality, run[1], start + num_rows)
            continue
        if run is not None:
            yield run
        run = (ref.modality, start, start + num_rows)
    if run is not None:
        yield run
