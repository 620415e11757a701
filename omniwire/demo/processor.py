"""The processor process: media in, request out, output chunks in, final output."""

import os
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection

import torch

import omniwire as ow
from omniwire.demo.agreement import OUTPUT_TYPE, REQUEST_ID, output_hash
from omniwire.demo.events import FieldRow, Line, MediaRow, ProcessorReport
from omniwire.demo.media import Photograph, Sound
from omniwire.demo.preprocess import build_request, num_clips, preprocess
from omniwire.demo.problems import BadInput, first_line, printable


def process(
    data: Connection,
    line: Line,
    photographs: list[Photograph],
    sounds: list[Sound],
    save: str | None,
) -> ProcessorReport:
    """Do the processor's whole part.

    Args:
        data: Connection to the executor.
        line: Line to the parent.
        photographs: The decoded photographs.
        sounds: The decoded sounds.
        save: Where to save the request, if anywhere.

    Raises:
        BadInput: The request cannot be saved there.
        EOFError: The executor went away.
    """
    line.step("running the Hugging Face processors")
    with line.timed("run the Hugging Face processors"):
        payload, order = preprocess(photographs, sounds)
    line.step("building the prompt and the request")
    with line.timed("build the prompt, runs and content hashes"):
        request = build_request(REQUEST_ID, payload, order)
    with line.timed("check_producer"):
        ow.check_producer(request)
    if save is not None:
        _save(request, save)

    line.step("waiting for the executor")
    ow.loads(data.recv_bytes())
    line.step("sending the request")
    with line.timed("dumps: tensors into one message"):
        message = ow.dumps(request)
    with line.timed("send through the pipe"):
        data.send_bytes(message)
    echo = ow.loads(data.recv_bytes())

    outputs = ow.MultimodalOutputProcessor()
    outputs.add_request(REQUEST_ID, OUTPUT_TYPE)
    chunk_bytes: list[int] = []
    final = None
    while final is None:
        received = data.recv_bytes()
        chunk_bytes.append(len(received))
        for output in outputs.process_outputs([ow.loads(received)]):
            final = output if output.finished else None
    line.step("output complete")
    return ProcessorReport(
        pid=os.getpid(),
        media=_media_rows(photographs, sounds),
        sent_fields=list(request_rows(request)),
        sent_bytes=len(message),
        sent_hash=ow.content_hash(request),
        echo_equal=echo == request,
        output_fields=list(output_rows(final)),
        output_hash=output_hash(final.new_token_ids, final.multimodal_outputs),
        num_chunks=len(chunk_bytes),
        chunk_bytes=sum(chunk_bytes),
        output_errors=[f"{name}: {first_line(error)}" for name, error in final.errors.items()],
        retained_bytes=outputs.retained_bytes,
        saved_to=printable(save) if save is not None else "",
        timings=line.timings,
    )


def request_rows(request: ow.ProcessedRequest) -> Iterator[FieldRow]:
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


def output_rows(output: ow.RequestOutput) -> Iterator[FieldRow]:
    """A row for the token ids and every tensor of a final output."""
    num_tokens = len(output.new_token_ids)
    yield FieldRow("new_token_ids", "int32", [num_tokens], 4 * num_tokens)
    yield from _payload_rows("", output.multimodal_outputs)


def _payload_rows(prefix: str, payload: Mapping[str, object]) -> Iterator[FieldRow]:
    for name, value in payload.items():
        if isinstance(value, torch.Tensor):
            yield _tensor_row(prefix + name, value)
        elif isinstance(value, Mapping):
            yield from _payload_rows(f"{prefix}{name}.", value)


def _tensor_row(name: str, tensor: torch.Tensor) -> FieldRow:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return FieldRow(name, dtype, list(tensor.shape), tensor.nbytes)


def _media_rows(photographs: list[Photograph], sounds: list[Sound]) -> list[MediaRow]:
    rows = [
        MediaRow(photo.name, f"{photo.image.width} x {photo.image.height} pixels", 1)
        for photo in photographs
    ]
    rows += [
        MediaRow(
            sound.name,
            f"{sound.seconds:.1f} s, {sound.source_rate} Hz, {sound.source_channels} channel(s)",
            num_clips(sound),
        )
        for sound in sounds
    ]
    return rows


def _save(request: ow.ProcessedRequest, save: str) -> None:
    try:
        ow.save(request, save)
    except OSError as error:
        raise BadInput(f"{printable(save)}: cannot save there: {first_line(error)}") from error
