"""The processor: media in, requests out, output chunks in, final outputs."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch

import omniwire as ow
from omniwire.demo.agreement import NUM_REQUESTS, OUTPUT_TYPE, output_hash
from omniwire.demo.events import Progress
from omniwire.demo.media import Media
from omniwire.demo.preprocess import build_request, item_order, num_items
from omniwire.demo.problems import BadInput, first_line, printable
from omniwire.demo.reports import FieldRow, MediaRow, ProcessorReport

_TASKS = ("Describe all of them in order.", "And again, from the last to the first.")


class Processor:
    """Makes requests of some media and collects their outputs; lives as long as its process.

    Args:
        number: The processor; its requests' ids begin with it.
        media: What the requests show.
        save: Where to save the first request, if anywhere.
        progress: Told what is being done.
    """

    def __init__(
        self, number: int, media: Media, save: str | None = None, progress: Progress | None = None
    ) -> None:
        torch.set_num_threads(1)
        self._number = number
        self._media = media
        self._save = save
        self._progress = Progress() if progress is None else progress
        self._outputs = ow.MultimodalOutputProcessor()
        self._requests: dict[str, ow.ProcessedRequest] = {}
        self._finished: dict[str, ow.RequestOutput] = {}
        self._num_chunks = 0
        self._num_misplaced = 0

    def request_ids(self) -> list[str]:
        """The ids of its requests, in order."""
        return [f"p{self._number}-{number}" for number in range(NUM_REQUESTS)]

    def prepare(self) -> list[ow.ProcessedRequest]:
        """Make `NUM_REQUESTS` requests, checked and ready to be sent.

        Raises:
            BadInput: The first one cannot be saved where it should.
        """
        for number, request_id in enumerate(self.request_ids()):
            self._progress.step(f"preparing request {number + 1} of {NUM_REQUESTS}")
            media = self._media.reversed() if number % 2 else self._media
            with self._progress.timed(f"Hugging Face processors, prompt, hashes: {request_id}"):
                request = build_request(request_id, media, _TASKS[number])
            with self._progress.timed(f"check_producer: {request_id}"):
                ow.check_producer(request)
            found = _refs(request)
            expected = item_order(media)
            self._num_misplaced += abs(len(found) - len(expected))
            self._num_misplaced += sum(
                one != other for one, other in zip(found, expected, strict=False)
            )
            self._requests[request_id] = request
            self._outputs.add_request(request_id, OUTPUT_TYPE)
        requests = list(self._requests.values())
        if self._save is not None:
            _save(requests[0], self._save)
        return requests

    def take(self, chunk: ow.OutputChunk) -> None:
        """Take in one output chunk."""
        self._num_chunks += 1
        for output in self._outputs.process_outputs([chunk]):
            if output.finished:
                self._finished[output.request_id] = output

    @property
    def is_done(self) -> bool:
        """Whether all requests have their output."""
        return self._finished.keys() == self._requests.keys()

    def report(self, transport: Mapping[str, int] | None = None) -> ProcessorReport:
        """What it saw, once all is done.

        Args:
            transport: What its end of the transport counted.
        """
        outputs = [self._finished[request_id] for request_id in self._requests]
        return ProcessorReport(
            name=f"processor {self._number}",
            pid=os.getpid(),
            media=[
                MediaRow(medium.name, medium.decoded, num_items(medium))
                for medium in self._media.in_turns()
            ],
            request_fields=list(_request_rows(next(iter(self._requests.values())))),
            request_hashes={name: ow.content_hash(one) for name, one in self._requests.items()},
            num_misplaced=self._num_misplaced,
            output_fields=list(_output_rows(outputs[0])),
            output_hashes={
                output.request_id: output_hash(output.new_token_ids, output.multimodal_outputs)
                for output in outputs
            },
            num_chunks=self._num_chunks,
            output_errors=[
                f"{output.request_id} {modality}: {first_line(error)}"
                for output in outputs
                for modality, error in output.errors.items()
            ],
            retained_bytes=self._outputs.retained_bytes,
            saved_to=printable(self._save) if self._save is not None else "",
            transport=dict(transport or {}),
            timings=self._progress.timings,
        )


def _refs(request: ow.ProcessedRequest) -> list[tuple[str, int]]:
    params = request.multimodal_params
    record = None if params is None else params.item_metadata
    return [] if record is None else list(record.item_refs)


def _request_rows(request: ow.ProcessedRequest) -> Iterator[FieldRow]:
    """A row for every tensor of a request, and for its prompt and its located items."""
    num_tokens = len(request.prompt_token_ids)
    yield FieldRow("prompt_token_ids", "int32", [num_tokens], 4 * num_tokens)
    params = request.multimodal_params
    if params is None:
        return
    if params.multimodal_input is not None:
        for name, tensor in params.multimodal_input.to_tensors().items():
            yield _tensor_row(name, tensor)
    yield from _payload_rows("", params.multimodal_data)


def _output_rows(output: ow.RequestOutput) -> Iterator[FieldRow]:
    """A row for the token ids and every tensor of a final output."""
    num_tokens = len(output.new_token_ids)
    yield FieldRow("new_token_ids", "int32", [num_tokens], 4 * num_tokens)
    yield from _payload_rows("", output.multimodal_outputs)


def _payload_rows(prefix: str, payload: Mapping[str, Any]) -> Iterator[FieldRow]:
    for name, value in payload.items():
        if isinstance(value, torch.Tensor):
            yield _tensor_row(prefix + name, value)
        elif isinstance(value, Mapping):
            yield from _payload_rows(f"{prefix}{name}.", value)


def _tensor_row(name: str, tensor: torch.Tensor) -> FieldRow:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return FieldRow(name, dtype, list(tensor.shape), tensor.nbytes)


def _save(request: ow.ProcessedRequest, save: str) -> None:
    try:
        ow.save(request, save)
    except OSError as error:
        raise BadInput(f"{printable(save)}: cannot save there: {first_line(error)}") from error
