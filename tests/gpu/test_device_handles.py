"""CUDA tensors and handles between two real processes, and between threads of one.

What does not need a device is in `tests/handoff/test_devices.py`, with devices that are files.
"""

import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from gpu_children import BUSY_CYCLES, keep_busy, run_gpu_puppet
from handoff_children import TIMEOUT_S, request, tensor_of
from handoff_remote import Remote

import omniwire as ow

MANY = 1 << 22  # elements: more than the allocator puts in a block with others

Peers = Callable[..., tuple[ow.Channel, Remote]]


@pytest.fixture
def peer() -> Iterator[Peers]:
    """Starts a process that holds the other end of a channel."""
    remotes: list[Remote] = []

    def start(**environment: str) -> tuple[ow.Channel, Remote]:
        here, there = ow.Channel.pair()
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            remote = Remote.start("spawn", run_gpu_puppet, there)
        remotes.append(remote)
        remote.end()
        return here, remote

    yield start
    for remote in remotes:
        remote.close()


@pytest.fixture
def introduced(peer: Peers) -> tuple[ow.Channel, Remote]:
    """A peer that has shown that it can open memory of the device."""
    channel, remote = peer()
    channel.send(request(torch.zeros(1, device="cuda")))
    remote.do("receive", keep=False)
    return channel, remote


def filled(value: float, num: int = MANY) -> torch.Tensor:
    return torch.full((num,), value, device="cuda")


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def allocated() -> int:
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


def test_the_first_message_is_copied_and_later_ones_are_opened(peer: Peers) -> None:
    """pytorch#156618: the values, not zeros."""
    channel, remote = peer()
    for value in (1.0, 2.0, 3.0):
        channel.send(request(filled(value)))
        remote.do("receive")
    assert remote.do("where") == ["cuda:0", "cuda:0 borrowed", "cuda:0 borrowed"]
    assert remote.do("values") == [1.0 * MANY, 2.0 * MANY, 3.0 * MANY]
    stats = channel.stats()
    assert (stats["copied_bytes"], stats["zero_copy_bytes"]) == (4 * MANY, 8 * MANY)


def test_every_kind_of_tensor_arrives_equal(introduced: tuple[ow.Channel, Remote]) -> None:
    channel, remote = introduced
    numbers = torch.arange(2000.0).view(20, 100)
    on_host: dict[str, torch.Tensor] = {
        "slice": numbers[3:5],
        "columns": numbers[:, 2:9:3],
        "transposed": numbers.T,
        "scalar": numbers[1, 1],
        "bf16": numbers.bfloat16(),
        "f8": numbers.to(torch.float8_e4m3fn),
        "bool": numbers > 70,
        "int64": numbers.long(),
        "conj": torch.complex(numbers, -numbers).conj(),
        "empty": numbers[:0],
    }
    whole = numbers.cuda()
    on_device: dict[str, Any] = {
        **{name: tensor.cuda() for name, tensor in on_host.items()},
        "slice": whole[3:5],
        "columns": whole[:, 2:9:3],
        "transposed": whole.T,
        "scalar": whole[1, 1],
        "conj": torch.complex(whole, -whole).conj(),
    }
    channel.send(request(**on_device))
    received = remote.do("receive_fields", list(on_host))
    for name, expected in on_host.items():
        assert received[name].dtype == expected.dtype, name
        assert received[name].shape == expected.shape, name
        assert torch.equal(received[name].to(expected.dtype), expected.resolve_conj()), name


def test_values_come_after_what_the_sender_has_queued(
    introduced: tuple[ow.Channel, Remote],
) -> None:
    """sglang#33949, the first half: the sender's call returns long before its device is done."""
    channel, remote = introduced
    tensor = filled(0.0)
    torch.cuda.synchronize()
    keep_busy(10 * BUSY_CYCLES)
    tensor.fill_(5.0)
    channel.send(request(tensor))
    remote.do("receive")
    assert remote.do("values") == [5.0 * MANY]


def test_values_made_on_another_stream_are_waited_for(
    introduced: tuple[ow.Channel, Remote],
) -> None:
    channel, remote = introduced
    tensor = filled(0.0)
    torch.cuda.synchronize()
    other = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it bare
    with torch.cuda.stream(other):
        keep_busy(5 * BUSY_CYCLES)
        tensor.fill_(5.0)
        handle = channel.share(tensor)
    channel.send(request(x=handle))  # where another stream is current
    remote.do("receive")
    assert remote.do("resolve_twice") == 5.0 * MANY


def test_memory_is_reused_only_after_the_readers_work(
    introduced: tuple[ow.Channel, Remote],
) -> None:
    """sglang#33949, the second half: the reader drops the tensor long before its device is done."""
    channel, remote = introduced
    start = allocated()
    tensor = filled(5.0)
    address = tensor.data_ptr()
    channel.send(request(tensor))
    del tensor
    remote.do("receive")
    remote.do("read_later", 20 * BUSY_CYCLES)
    assert channel.stats()["in_flight_bytes"] > 0, "given back while the device was busy"
    eventually(lambda: torch.cuda.memory_allocated() == start)
    overwritten = filled(9.0)
    assert overwritten.data_ptr() == address, "the test needs the allocator to use it again"
    torch.cuda.synchronize()
    assert remote.do("what_was_read") == [5.0, 5.0]


def test_nothing_makes_the_host_wait(introduced: tuple[ow.Channel, Remote]) -> None:
    channel, remote = introduced
    tensors = [filled(float(step), 1000) for step in range(10)]
    torch.cuda.synchronize()
    keep_busy(5 * BUSY_CYCLES)
    busy = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it bare
    busy.record()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for tensor in tensors:
            channel.send(request(tensor))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert not busy.query(), "sending took as long as the device"  # type: ignore[no-untyped-call]  # as above
    for _ in tensors:
        remote.do("receive_without_waiting")
    assert remote.do("values") == [1000.0 * step for step in range(10)]


def test_memory_returns_to_the_start_in_both_processes(
    introduced: tuple[ow.Channel, Remote],
) -> None:
    """pytorch#145703: what was exported stayed allocated after the reader had dropped it."""
    channel, remote = introduced
    start, start_there = allocated(), remote.do("allocated")
    free = torch.cuda.mem_get_info()[0]
    for step in range(20):
        channel.send(request(filled(float(step)), y=filled(1.0, 100)))
        remote.do("receive")
        if step % 5 == 4:
            remote.do("drop")
    eventually(lambda: torch.cuda.memory_allocated() == start)
    torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]  # torch leaves it bare
    torch.cuda.empty_cache()
    assert allocated() == start
    assert remote.do("allocated") == start_there
    # Nor is it mapped any more: the driver has it back, but for what starting a context takes.
    eventually(lambda: torch.cuda.mem_get_info()[0] > free - (64 << 20))


def test_a_handle_resolves_when_it_is_wanted(introduced: tuple[ow.Channel, Remote]) -> None:
    channel, remote = introduced
    start = allocated()
    handle = channel.share(filled(2.0))
    assert (handle.kind, handle.resolve().device.type) == ("cuda_ipc", "cuda")
    for _ in range(2):
        channel.send(request(x=handle))
        remote.do("receive")
    assert remote.do("resolve_twice") == 2.0 * MANY
    del handle
    gc.collect()
    remote.do("drop")  # one that was resolved, and one that was not
    eventually(lambda: torch.cuda.memory_allocated() == start)


def test_what_is_sent_on_is_copied(introduced: tuple[ow.Channel, Remote]) -> None:
    """pytorch#134755: A -> B -> C."""
    channel, remote = introduced
    remote.do("send_filled", (1,), 0.0)
    channel.recv(TIMEOUT_S)
    start = allocated()
    channel.send(request(filled(3.0)))
    remote.do("receive")
    remote.do("send_back")
    received = channel.recv(TIMEOUT_S)
    remote.do("drop")
    eventually(lambda: torch.cuda.memory_allocated() == start)  # ours is back
    assert torch.equal(tensor_of(received), filled(3.0))


def test_threads_of_one_process_pass_the_object() -> None:
    """TRT-LLM#16050. Work on the reader's stream comes after the sender's, and keeps memory."""
    a, b = ow.Channel.pair()
    b.stats()
    result: list[Any] = []

    def read() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]  # torch leaves it bare
            tensor = tensor_of(b.recv(TIMEOUT_S))
            result.append((tensor.data_ptr(), tensor.sum().item()))

    thread = threading.Thread(target=read)
    thread.start()
    tensor = filled(0.0)
    address = tensor.data_ptr()
    keep_busy(5 * BUSY_CYCLES)
    tensor.fill_(1.0)
    a.send(request(tensor))
    del tensor
    thread.join()
    assert result == [(address, 1.0 * MANY)]


def test_a_dead_reader_holds_nothing(introduced: tuple[ow.Channel, Remote]) -> None:
    channel, remote = introduced
    start = allocated()
    channel.send(request(filled(1.0)))
    remote.do("receive")
    remote.kill()
    eventually(lambda: torch.cuda.memory_allocated() == start)


def test_a_handle_of_a_dead_sender_is_a_named_error(peer: Peers) -> None:
    """vllm#6025."""
    channel, remote = peer()
    remote.do("send_filled", (1,), 0.0)
    channel.recv(TIMEOUT_S)
    remote.do("share_filled", (MANY,), 1.0)
    handle = tensor_of(channel.recv(TIMEOUT_S))
    remote.kill()
    with pytest.raises(ow.HandoffError):
        handle.resolve()


def test_expandable_segments_are_copied(peer: Peers) -> None:
    """pytorch#165685: such memory cannot be shared by handles of this kind."""
    channel, remote = peer(PYTORCH_ALLOC_CONF="expandable_segments:True")
    for value in (1.0, 2.0):
        remote.do("send_filled", (MANY,), value)
        received = tensor_of(channel.recv(TIMEOUT_S))
        assert received.is_cuda
        assert torch.equal(received, filled(value))
    assert remote.do("stats")["zero_copy_bytes"] == 0


def test_a_reader_without_devices_gets_it_on_the_cpu(peer: Peers) -> None:
    """TRT-LLM#17034."""
    channel, remote = peer(CUDA_VISIBLE_DEVICES="")
    for value in (1.0, 2.0):
        channel.send(request(filled(value)))
        remote.do("receive")
    assert remote.do("where") == ["cpu", "cpu"]
    assert remote.do("values") == [1.0 * MANY, 2.0 * MANY]


def test_it_arrives_on_the_device_it_is_on(peer: Peers) -> None:
    """sglang#16106: whatever that device's number is in the reader."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    channel, remote = peer(CUDA_VISIBLE_DEVICES="1")
    for value in (1.0, 2.0):
        channel.send(request(torch.full((MANY,), value, device="cuda:1")))
        remote.do("receive")
    assert remote.do("where") == ["cuda:0", "cuda:0 borrowed"]
    assert remote.do("values") == [1.0 * MANY, 2.0 * MANY]
