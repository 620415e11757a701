"""Outputs that are made on a CUDA device: they leave it without making a step wait."""

import asyncio

import pytest
import torch

from omniwire.contracts import ChunkKind, OmniOutput, OutputChunk, OutputKind, RequestOutput
from omniwire.runtime import MultimodalOutputProcessor, OmniRequestState, default_registry
from omniwire.runtime.host_copies import HostCopies

BUSY_CYCLES = 200_000_000  # about a tenth of a second


def keep_busy(cycles: int) -> None:
    """Give the current stream something to do."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]  # torch leaves it bare


def audio_of(output: RequestOutput) -> torch.Tensor:
    tensor = output.multimodal_outputs["audio"]
    assert isinstance(tensor, torch.Tensor)
    return tensor


def audio_chunk(step: int, tensor: torch.Tensor, finish_reason: str | None = None) -> OutputChunk:
    output = OmniOutput(multimodal_outputs={"audio": tensor, "sample_rate": 24000})
    return OutputChunk("r", step, "audio", (), output, finish_reason=finish_reason)


def started(output_kind: OutputKind) -> MultimodalOutputProcessor:
    processor = MultimodalOutputProcessor()
    processor.add_request("r", "audio", output_kind=output_kind)
    return processor


def warm_up() -> None:
    """Let torch allocate pinned memory and create its streams."""
    processor = started(OutputKind.FINAL_ONLY)
    processor.process_outputs([audio_chunk(0, torch.zeros(1, 4096, device="cuda"), "stop")])
    torch.cuda.synchronize()


def test_a_step_does_not_wait_for_the_device() -> None:
    warm_up()
    chunks = [torch.full((1, 1000), float(step), device="cuda") for step in range(20)]
    processor = started(OutputKind.FINAL_ONLY)
    torch.cuda.synchronize()
    keep_busy(BUSY_CYCLES)
    busy = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it bare
    busy.record()
    torch.cuda.set_sync_debug_mode("error")  # any operation that waits for the device raises
    try:
        for step, tensor in enumerate(chunks):
            assert processor.process_outputs([audio_chunk(step, tensor)]) == []
    finally:
        torch.cuda.set_sync_debug_mode("default")
    finished = busy.query()  # type: ignore[no-untyped-call]  # torch leaves it bare
    assert not finished, "the steps took as long as the device"
    (last,) = processor.process_outputs([OutputChunk("r", 20, "audio", finish_reason="stop")])
    expected = torch.arange(20.0).repeat_interleave(1000).unsqueeze(0)
    assert torch.equal(audio_of(last), expected)


@pytest.mark.parametrize("output_kind", OutputKind)
def test_values_are_right_behind_a_busy_stream_that_reuses_its_buffer(
    output_kind: OutputKind,
) -> None:
    """vllm-omni#3164: step k + 1 writes into the buffer of step k, in the device's time."""
    processor = started(output_kind)
    buffer = torch.empty(2, 500, device="cuda")
    outputs = []
    for step in range(10):
        keep_busy(BUSY_CYCLES // 50)
        buffer.fill_(step)
        reason = "stop" if step == 9 else None
        outputs += processor.process_outputs([audio_chunk(step, buffer, reason)])
    emitted = [audio_of(output) for output in outputs]
    assert {tensor.device.type for tensor in emitted} == {"cpu"}
    value = torch.cat(emitted, -1) if output_kind is OutputKind.DELTA else emitted[-1]
    assert torch.equal(value, torch.arange(10.0).repeat_interleave(500).expand(2, -1))
    assert outputs[-1].metadata["audio"]["sample_rate"] == 24000


@pytest.mark.parametrize("output_kind", OutputKind)
def test_a_whole_value_on_the_device_is_cut_like_one_on_the_host(output_kind: OutputKind) -> None:
    processor = started(output_kind)
    outputs = []
    for step, size in enumerate((3, 5, 9)):
        tensor = torch.arange(float(size), device="cuda").unsqueeze(0)
        output = OmniOutput(multimodal_outputs={"audio": tensor})
        kind, reason = ChunkKind.CUMULATIVE, "stop" if step == 2 else None
        sent = OutputChunk("r", step, "audio", (), output, kind, reason)
        outputs += processor.process_outputs([sent])
    assert not any(output.errors for output in outputs)
    emitted = [audio_of(output) for output in outputs]
    value = torch.cat(emitted, -1) if output_kind is OutputKind.DELTA else emitted[-1]
    assert torch.equal(value, torch.arange(9.0).unsqueeze(0))


def test_work_on_another_stream_is_waited_for() -> None:
    """The current stream of the caller is the one that makes the chunk."""
    processor = started(OutputKind.FINAL_ONLY)
    other = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it bare
    with torch.cuda.stream(other):
        keep_busy(BUSY_CYCLES // 10)
        tensor = torch.full((1, 100_000), 3.0, device="cuda")
        processor.process_outputs([audio_chunk(0, tensor)])
        del tensor
        # Memory that is free again for this stream must not be taken too early.
        torch.full((1, 100_000), 4.0, device="cuda")
    (last,) = processor.process_outputs([OutputChunk("r", 1, "audio", finish_reason="stop")])
    assert torch.equal(audio_of(last), torch.full((1, 100_000), 3.0))


def test_memory_on_the_device_returns_to_the_start() -> None:
    warm_up()
    start = torch.cuda.memory_allocated()
    processor = started(OutputKind.FINAL_ONLY)
    for step in range(50):
        tensor = torch.full((1, 1 << 18), float(step), device="cuda")
        processor.process_outputs([audio_chunk(step, tensor)])
        del tensor
    torch.cuda.synchronize()
    torch.empty(1, device="cuda")  # lets the allocator look at what its streams are done with
    assert torch.cuda.memory_allocated() <= start + 512
    assert processor.retained_bytes == 50 * (4 << 18)
    processor.abort("r")
    assert processor.retained_bytes == 0


def test_an_abort_with_copies_on_their_way_is_safe() -> None:
    for _ in range(20):
        processor = started(OutputKind.FINAL_ONLY)
        keep_busy(BUSY_CYCLES // 100)
        processor.process_outputs([audio_chunk(0, torch.ones(1, 1 << 18, device="cuda"))])
        processor.abort("r")
    torch.cuda.synchronize()


def _all(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _transposed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.transpose(0, 2)


def _sliced(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:, 1:, ::2]


def _nothing(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:0]


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.bool, torch.int64]
)
def test_every_layout_arrives_bit_by_bit(dtype: torch.dtype) -> None:
    host = torch.arange(24).reshape(2, 3, 4).to(dtype)
    device = host.cuda()
    copies = HostCopies()
    for pick in (_all, _transposed, _sliced, _nothing):
        copied = copies.copy(pick(device))
        copies.wait()
        assert copied.device.type == "cpu"
        expected = pick(host).contiguous()
        assert torch.equal(copied.view(torch.uint8), expected.view(torch.uint8))
    conjugate = torch.ones(3, dtype=torch.complex64, device="cuda").mul(1j).conj()
    copied = copies.copy(conjugate)
    copies.wait()
    assert copied.tolist() == [-1j] * 3


def test_chunks_of_host_and_device_go_together() -> None:
    state = OmniRequestState("r", "audio", registry=default_registry())
    state.add_output("audio", torch.ones(1, 2))
    state.add_output("audio", torch.full((1, 2), 2.0, device="cuda"))
    value = state.consolidate()["audio"]
    assert isinstance(value, torch.Tensor)
    assert torch.equal(value, torch.tensor([[1.0, 1.0, 2.0, 2.0]]))


def test_a_custom_handler_reads_only_what_has_arrived() -> None:
    class Peaks:
        modality = "audio"

        def extract(self, output: OmniOutput) -> object | None:
            return output.multimodal_outputs.get("audio")

        def accumulate(self, existing: list[float] | None, incoming: torch.Tensor) -> list[float]:
            return [*(existing or []), float(incoming.max())]

        def consolidate(self, accumulated: list[float]) -> torch.Tensor:
            return torch.tensor(accumulated)

        def validate(self, value: object) -> bool:
            return True

    registry = default_registry()
    registry.register(Peaks(), replace=True)
    processor = MultimodalOutputProcessor(registry)
    processor.add_request("r", "audio")
    for step in range(5):
        keep_busy(BUSY_CYCLES // 50)
        tensor = torch.full((1, 100), float(step), device="cuda")
        processor.process_outputs([audio_chunk(step, tensor)])
    (last,) = processor.process_outputs([OutputChunk("r", 5, "audio", finish_reason="stop")])
    assert audio_of(last).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_stream_waits_without_stopping_the_event_loop() -> None:
    async def main() -> int:
        processor = started(OutputKind.DELTA)
        stream = processor.stream("r")
        keep_busy(BUSY_CYCLES)
        processor.process_outputs([audio_chunk(0, torch.ones(1, 10, device="cuda"))])
        reading = asyncio.ensure_future(anext(stream))
        turns = 0
        while not reading.done():
            turns += 1
            await asyncio.sleep(0.001)
        assert torch.equal(audio_of(reading.result()), torch.ones(1, 10))
        return turns

    assert asyncio.run(main()) > 5
