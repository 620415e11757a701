"""What a processor and an executor saw; plain values, which travel as JSON or by pickle."""

from dataclasses import dataclass


@dataclass(frozen=True)
class MediaRow:
    """One media file: its name, what was decoded and how many items it became."""

    name: str
    decoded: str
    num_items: int


@dataclass(frozen=True)
class FieldRow:
    """One field of a message: where it is, its type and shape, and its payload in bytes."""

    field: str
    dtype: str
    shape: list[int]
    num_bytes: int


@dataclass(frozen=True)
class IterationRow:
    """One encoder iteration.

    Attributes:
        items: The scheduled items of each request, in words.
        num_items: How many these are.
        num_encoded: How many of them the encoders ran for; the rest was known.
        encoder_tokens: Encoder tokens of the items that were encoded.
        embedding_rows: Their rows.
        viewed_bytes: Payload bytes of the encoders' input that are the request's own memory.
        copied_bytes: Payload bytes that were copied to select the items.
    """

    items: str
    num_items: int
    num_encoded: int
    encoder_tokens: int
    embedding_rows: int
    viewed_bytes: int
    copied_bytes: int


@dataclass(frozen=True)
class Timing:
    """How long one piece of work took."""

    work: str
    seconds: float


@dataclass(frozen=True)
class ProcessorReport:
    """What a processor saw.

    Attributes:
        name: The processor.
        pid: Its process id.
        media: The files.
        request_fields: The fields of its first request.
        request_hashes: Content hash of each request as it was built, by id.
        num_misplaced: Items that are not where the media were placed in the prompt.
        output_fields: The fields of its first accumulated output.
        output_hashes: Content hash of each accumulated output, by request.
        num_chunks: Output chunks received.
        output_errors: The errors on the outputs, one line each.
        retained_bytes: What the output processor still holds at the end.
        saved_to: Where the first request was saved, or empty.
        transport: What its end of the transport counted, in bytes.
        timings: In order.
    """

    name: str
    pid: int
    media: list[MediaRow]
    request_fields: list[FieldRow]
    request_hashes: dict[str, str]
    num_misplaced: int
    output_fields: list[FieldRow]
    output_hashes: dict[str, str]
    num_chunks: int
    output_errors: list[str]
    retained_bytes: int
    saved_to: str
    transport: dict[str, int]
    timings: list[Timing]


@dataclass(frozen=True)
class ExecutorReport:
    """What an executor saw.

    Attributes:
        name: The executor.
        pid: Its process id.
        request_hashes: Content hash of each request as it arrived, by id.
        tensor_bytes: Tensor bytes of the requests.
        budget_encoder_tokens: Encoder tokens allowed in an iteration.
        iterations: The encoder iterations.
        num_distinct_items: Items of different content among all requests.
        max_item_difference: Largest difference between item-by-item and full-request rows.
        max_fused_difference: Largest difference between what prefill read, token by token,
            and what the encoders alone and a masked scatter give.
        tolerance: What they may be.
        num_windows: Prefill windows.
        num_window_views: How many of them needed no copy of embedding rows.
        kept_bytes: Payload bytes that generation still held.
        streamed_hashes: Content hash of everything that was streamed back, by request.
        timings: In order.
    """

    name: str
    pid: int
    request_hashes: dict[str, str]
    tensor_bytes: int
    budget_encoder_tokens: int
    iterations: list[IterationRow]
    num_distinct_items: int
    max_item_difference: float
    max_fused_difference: float
    tolerance: float
    num_windows: int
    num_window_views: int
    kept_bytes: int
    streamed_hashes: dict[str, str]
    timings: list[Timing]


@dataclass(frozen=True)
class Outcome:
    """A complete run: all reports, and what it left behind, in words."""

    processors: list[ProcessorReport]
    executors: list[ExecutorReport]
    left: list[str]
