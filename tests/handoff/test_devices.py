"""Tensors on devices, and handles of one process, through channels.

The devices are files, so that everything but CUDA itself is what it is on a GPU; `tests/gpu`
has the rest.
"""

import gc
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from device_fakes import FakeDevices, installed, run_device_puppet, wait_for_keeper
from handoff_children import TIMEOUT_S, request, tensor_of
from handoff_remote import Remote

import omniwire as ow

NUM_BYTES = 4000


@pytest.fixture
def devices(folder: Path) -> Iterator[FakeDevices]:
    """The devices of this process; the files of all processes are removed."""
    with installed(FakeDevices(str(folder))) as devices:
        yield devices
        wait_for_keeper()
    for path in folder.glob("*-*"):
        path.unlink()


Peers = Callable[..., tuple[ow.Channel, Remote]]


@pytest.fixture
def peer(devices: FakeDevices) -> Iterator[Peers]:
    """Starts a process that holds the other end of a channel."""
    remotes: list[Remote] = []

    def start(names: tuple[str, ...] = ("gpu-a", "gpu-b"), **sizes: Any) -> tuple[ow.Channel, Any]:
        here, there = ow.Channel.pair(**sizes)
        remote = Remote.start("forkserver", run_device_puppet, there, devices.folder, names)
        remotes.append(remote)
        remote.end()
        return here, remote

    yield start
    for remote in remotes:
        remote.close()


def values(seed: int = 0) -> torch.Tensor:
    return torch.arange(seed, seed + NUM_BYTES // 4, dtype=torch.int32).view(10, -1)


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def introduced(peer: Peers, devices: FakeDevices, **options: Any) -> tuple[ow.Channel, Remote]:
    """A peer that has shown that it can open memory of device 0."""
    channel, remote = peer(**options)
    channel.send(request(devices.tensor(values())))
    remote.do("receive", keep=False)
    return channel, remote


class TestOneProcess:
    def test_a_local_handle_arrives_as_the_object_it_is(self) -> None:
        a, b = ow.Channel.pair()
        tensor = torch.arange(6).view(2, 3)
        a.send(request(x=ow.TensorHandle("local", tensor.dtype, (2, 3), tensor)))
        handle = tensor_of(b.recv())
        assert handle.kind == "local"
        assert handle.payload is tensor

    def test_a_local_handle_goes_both_ways_and_between_threads(self) -> None:
        a, b = ow.Channel.pair()
        tensor = torch.ones(3)
        handle = ow.TensorHandle("local", tensor.dtype, (3,), tensor)

        def echo() -> None:
            b.send(b.recv(TIMEOUT_S))

        thread = threading.Thread(target=echo)
        thread.start()
        a.send(request(x=handle))
        assert tensor_of(a.recv(TIMEOUT_S)).resolve() is tensor
        thread.join()

    def test_a_local_handle_reaches_a_server_in_the_same_process(self, folder: Path) -> None:
        tensor = torch.ones(3)
        handle = ow.TensorHandle("local", tensor.dtype, (3,), tensor)
        with ow.ChannelServer(folder / "s") as server:
            a = ow.Channel.connect(folder / "s")
            a.send(request(x=handle))
            b = server.accept(TIMEOUT_S)
        assert tensor_of(b.recv(TIMEOUT_S)).payload is tensor
        b.send(request(x=handle))
        assert tensor_of(a.recv(TIMEOUT_S)).payload is tensor

    @pytest.mark.parametrize("closing", [False, True])
    def test_a_local_handle_that_nobody_decodes_is_let_go(self, closing: bool) -> None:
        a, b = ow.Channel.pair()
        b.stats()  # this process's from now on
        tensor = torch.ones(3)
        gone = threading.Event()
        holder = Holder(gone)
        tensor.holder = holder  # type: ignore[attr-defined]  # dies with it
        a.send(request(x=ow.TensorHandle("local", tensor.dtype, (3,), tensor)))
        del tensor, holder
        assert not gone.is_set()
        if closing:
            b.close()
        else:
            b._end.inbox.make_room()
            b._end.inbox.discard()
            assert a.stats()["in_flight_bytes"] == 0
        assert gone.wait(TIMEOUT_S)

    def test_a_local_handle_is_let_go_with_the_channel(self) -> None:
        a, b = ow.Channel.pair()
        tensor, gone = torch.ones(3), threading.Event()
        tensor.holder = Holder(gone)  # type: ignore[attr-defined]  # dies with it
        a.send(request(x=ow.TensorHandle("local", tensor.dtype, (3,), tensor)))
        del tensor, a, b
        gc.collect()
        assert gone.wait(TIMEOUT_S)

    def test_a_local_handle_does_not_leave_its_process(self, peer: Peers) -> None:
        channel, remote = peer()
        tensor = torch.ones(3)
        params = ow.MultimodalParams(
            multimodal_data={
                "image": {"y": 1, "x": ow.TensorHandle("local", torch.float32, (3,), tensor)}
            }
        )
        with pytest.raises(ow.EncodeError) as caught:
            channel.send(params)
        assert caught.value.code == "state"
        assert caught.value.path == ("multimodal_data", "image", "x")
        channel.send(request(torch.zeros(2)))
        assert remote.do("receive") == ["r"]

    def test_an_end_that_was_given_away_meanwhile_says_so(self, peer: Peers) -> None:
        """The end was still in this process when the handle was sent."""
        here, there = ow.Channel.pair()
        tensor = torch.ones(3)
        here.send(request(x=ow.TensorHandle("local", tensor.dtype, (3,), tensor)))
        remote = Remote.start("forkserver", run_device_puppet, there, "/tmp", ())
        try:
            remote.end()
            with pytest.raises(ow.HandoffError):
                remote.do("receive")
            here.send(request())
            assert remote.do("receive") == ["r"]
        finally:
            remote.close()

    def test_a_tensor_on_a_device_is_passed_as_the_object_it_is(self, devices: FakeDevices) -> None:
        """TRT-LLM#16050: producer and consumer are threads of one process."""
        a, b = ow.Channel.pair()
        b.stats()
        tensor = devices.tensor(values())
        a.send(request(tensor, again=tensor))
        received = b.recv()
        assert tensor_of(received) is tensor
        assert tensor_of(received, "again") is tensor
        # Its stream waits for the sender's, and its work keeps the memory.
        assert devices.log == ["main waits", "retain"]
        assert a.stats()["copied_bytes"] == a.stats()["zero_copy_bytes"] == 0

    def test_before_the_other_end_is_used_the_object_goes_as_well(
        self, devices: FakeDevices
    ) -> None:
        a, b = ow.Channel.pair()
        tensor = devices.tensor(values())
        a.send(request(tensor))
        assert tensor_of(b.recv()) is tensor
        del tensor
        a.stats()
        assert devices.live == 0

    def test_a_shared_handle_of_a_device_is_passed_too(self, devices: FakeDevices) -> None:
        a, b = ow.Channel.pair()
        b.stats()
        tensor = devices.tensor(values())
        handle = a.share(tensor)
        assert (handle.kind, handle.shape) == ("cuda_ipc", (10, 100))
        a.send(request(x=handle))
        received = tensor_of(b.recv())
        assert received.kind == "cuda_ipc"
        assert received.resolve().data_ptr() == tensor.data_ptr()
        assert "export" not in devices.log


class Holder:
    def __init__(self, gone: threading.Event) -> None:
        self._gone = gone

    def __del__(self) -> None:
        self._gone.set()


class TestAnotherProcess:
    def test_the_first_message_is_copied_and_later_ones_are_opened(
        self, peer: Peers, devices: FakeDevices
    ) -> None:
        channel, remote = peer()
        for _ in range(3):
            channel.send(request(devices.tensor(values())))
            remote.do("receive")
        assert remote.do("where") == ["own 0", "borrowed", "borrowed"]
        assert remote.do("values") == [values().sum().item()] * 3
        assert channel.stats()["copied_bytes"] == NUM_BYTES
        assert channel.stats()["zero_copy_bytes"] == 2 * NUM_BYTES
        assert devices.log.count("to host") == 1

    def test_each_device_is_tried_and_kept_apart(self, peer: Peers, devices: FakeDevices) -> None:
        """sglang#16106: what is on the second device of the sender is opened on the same one."""
        channel, remote = introduced(peer, devices, names=("gpu-c", "gpu-b", "gpu-a"))
        for _ in range(2):
            channel.send(request(devices.tensor(values(), 1)))
        remote.do("receive", 2)
        assert remote.do("where") == ["own 1", "own 1"]  # sent before the first was received
        channel.send(request(devices.tensor(values(), 1)))
        remote.do("receive")
        assert remote.do("values") == [values().sum().item()] * 3
        assert remote.do("where")[2] == "borrowed"

    def test_views_of_every_kind_arrive_equal(self, peer: Peers, devices: FakeDevices) -> None:
        channel, remote = introduced(peer, devices)
        whole = devices.tensor(values())
        conj = torch.complex(values().float(), values(1).float())
        on_device = devices.tensor(conj).conj()
        fields: dict[str, Any] = {
            "slice": whole[3:5],
            "columns": whole[:, 2:9:3],
            "transposed": whole.T,
            "scalar": whole[1, 1],
            "halves": devices.tensor(values().half()),
            "conj": on_device,
        }
        expected = {
            "slice": values()[3:5],
            "columns": values()[:, 2:9:3],
            "transposed": values().T,
            "scalar": values()[1, 1],
            "halves": values().half(),
            "conj": conj.conj(),
        }
        channel.send(request(**fields))
        received = remote.do("receive_fields", list(expected))
        for name, tensor in expected.items():
            assert torch.equal(received[name], tensor), name
            assert received[name].dtype == tensor.dtype

    def test_a_tensor_without_bytes_arrives_on_its_device(
        self, peer: Peers, devices: FakeDevices
    ) -> None:
        channel, remote = introduced(peer, devices)
        empty = devices.tensor(values())[:0]
        channel.send(request(x=empty, y=empty))
        assert remote.do("receive_fields", ["x"])["x"].shape == (0, 100)

    def test_what_a_message_has_twice_is_opened_once(
        self, peer: Peers, devices: FakeDevices
    ) -> None:
        channel, remote = introduced(peer, devices)
        tensor = devices.tensor(values())
        before = remote.do("get", "log")
        channel.send(request(x=tensor, y=tensor, z=tensor.view(-1)))
        remote.do("receive")
        assert remote.do("get", "log")[len(before) :].count("open") == 2  # x and y; z
        assert remote.do("get", "log")[len(before) :].count("open event") == 1
        assert remote.do("get", "num_open") == 2

    def test_the_readers_stream_waits_for_the_senders_event(
        self, peer: Peers, devices: FakeDevices
    ) -> None:
        """sglang#33949: the values come after what the sender has queued, not after its call."""
        channel, remote = introduced(peer, devices)
        remote.do("set", log=[], current="side")
        devices.is_busy = True
        channel.send(request(devices.tensor(values())))
        remote.do("receive")
        assert remote.do("get", "log") == ["open", "open event", "side waits"]
        assert not devices._pending[0].is_over, "sending has waited for the device"
        devices.finish()

    def test_memory_is_back_when_the_readers_device_is_done(
        self, peer: Peers, devices: FakeDevices
    ) -> None:
        """sglang#33949: dropping the tensor is not the end of the work on it."""
        channel, remote = introduced(peer, devices)
        devices.log.clear()
        channel.send(request(devices.tensor(values())))
        remote.do("receive")
        remote.do("set", is_busy=True, current="other")
        remote.do("drop")
        time.sleep(0.2)
        channel.stats()
        assert devices.live == 1
        assert remote.do("get", "num_open") == 1
        remote.do("finish")
        # Nobody uses the channel: it comes back all the same.
        eventually(lambda: devices.live == 0)
        assert remote.do("get", "num_open") == 0
        # After the work on the stream of arrival, and on the one where it was dropped.
        assert set(remote.do("get", "marked")[-1]) == {"main", "other"}
        assert channel.stats()["in_flight_bytes"] == 0

    def test_only_the_last_view_gives_it_back(self, peer: Peers, devices: FakeDevices) -> None:
        channel, remote = introduced(peer, devices)
        channel.send(request(devices.tensor(values())))
        remote.do("receive")
        remote.do("narrow")
        time.sleep(0.1)
        channel.stats()
        assert devices.live == 1
        remote.do("drop")
        eventually(lambda: devices.live == 0)

    def test_a_message_that_nobody_reads_gives_it_back(
        self, peer: Peers, devices: FakeDevices
    ) -> None:
        channel, remote = introduced(peer, devices)
        channel.send(request(devices.tensor(values())))
        assert devices.live == 1
        remote.do("close")
        eventually(lambda: devices.live == 0)
        assert remote.do("get", "log").count("open") == 1  # the trial

    def test_a_handle_opens_when_it_is_resolved_and_once(
        self, peer: Peers, devices: FakeDevices
    ) -> None:
        channel, remote = introduced(peer, devices)
        handle = channel.share(devices.tensor(values()))
        channel.send(request(x=handle))
        remote.do("set", log=[])
        remote.do("receive")
        assert remote.do("get", "log") == []
        assert remote.do("resolve_twice") == values().sum().item()
        assert remote.do("get", "log") == ["open", "open event", "main waits", "main waits"]
        del handle
        remote.do("drop")
        eventually(lambda: devices.live == 0)

    def test_a_handle_that_is_never_resolved_gives_it_back(
        self, peer: Peers, devices: FakeDevices
    ) -> None:
        channel, remote = introduced(peer, devices)
        channel.send(request(x=channel.share(devices.tensor(values()).T)))
        remote.do("receive")
        assert devices.live > 0
        remote.do("set", is_busy=True)  # it does not matter: the device never saw it
        remote.do("drop")
        eventually(lambda: devices.live == 0)
        assert remote.do("get", "num_open") == 0

    def test_a_handle_is_in_the_order_of_the_stream_that_shared_it(
        self, peer: Peers, devices: FakeDevices
    ) -> None:
        channel, _ = introduced(peer, devices)
        handle = channel.share(devices.tensor(values()))
        devices.log.clear()
        devices.current = "other"
        channel.send(request(x=handle))
        assert devices.log == ["other waits", "export"]

    def test_a_shared_tensor_goes_any_number_of_times(
        self, peer: Peers, devices: FakeDevices
    ) -> None:
        channel, remote = introduced(peer, devices)
        handle = channel.share(devices.tensor(values()))
        for _ in range(3):
            channel.send(request(x=handle))
            assert remote.do("resolve") == values().sum().item()
        del handle
        remote.do("drop", 0)
        remote.do("drop", 0)
        time.sleep(0.1)
        channel.stats()
        assert devices.live == 1
        remote.do("drop", 0)
        eventually(lambda: devices.live == 0)

    def test_plain_encoding_still_refuses_it(self, devices: FakeDevices) -> None:
        handle = ow.Channel.pair()[0].share(devices.tensor(values()))
        with pytest.raises(ow.EncodeError) as caught:
            ow.encode(request(x=handle))
        assert caught.value.code == "state"


class TestFallback:
    @pytest.mark.parametrize("broken", ["open", "zeros"])
    def test_who_cannot_open_it_gets_copies(
        self, peer: Peers, devices: FakeDevices, broken: str
    ) -> None:
        """pytorch#156618, TRT-LLM#17034: nobody is ever given zeros, nor an error."""
        channel, remote = peer()
        remote.do("set", broken={broken})
        for _ in range(3):
            channel.send(request(devices.tensor(values())))
            remote.do("receive")
        assert remote.do("where") == ["own 0"] * 3
        assert remote.do("values") == [values().sum().item()] * 3
        assert remote.do("get", "log").count("open") == 1
        assert channel.stats()["zero_copy_bytes"] == 0
        assert channel.stats()["copied_bytes"] == 3 * NUM_BYTES

    @pytest.mark.parametrize("broken", ["export", "events"])
    def test_memory_that_cannot_be_shared_is_copied(
        self, peer: Peers, devices: FakeDevices, broken: str
    ) -> None:
        """pytorch#165685: expandable segments."""
        channel, remote = introduced(peer, devices)
        devices.broken = {broken}
        channel.send(request(devices.tensor(values()), y=1))
        remote.do("receive")
        assert remote.do("where") == ["own 0"]
        assert remote.do("values") == [values().sum().item()]
        devices.broken = set()
        channel.send(request(devices.tensor(values())))
        remote.do("receive")
        assert remote.do("where") == ["own 0", "borrowed"]

    @pytest.mark.parametrize("broken", ["export", "events"])
    def test_what_cannot_be_tried_is_copied(
        self, peer: Peers, devices: FakeDevices, broken: str
    ) -> None:
        channel, remote = peer()
        devices.broken = {broken}
        for _ in range(2):
            channel.send(request(devices.tensor(values())))
            remote.do("receive")
        assert remote.do("where") == ["own 0"] * 2
        assert remote.do("get", "log").count("open") == 0

    def test_a_reader_without_the_device_gets_it_on_the_cpu(
        self, peer: Peers, devices: FakeDevices
    ) -> None:
        """CUDA_VISIBLE_DEVICES of the reader is another."""
        channel, remote = peer(names=("gpu-c",))
        for _ in range(2):
            channel.send(request(devices.tensor(values())))
            remote.do("receive")
        channel.send(request(x=channel.share(devices.tensor(values()))))
        assert remote.do("resolve") == values().sum().item()
        assert remote.do("where") == ["host"] * 3
        # It lies in the arena, by the same rules as every tensor there.
        assert channel.stats()["in_flight_bytes"] >= 3 * NUM_BYTES
        assert devices.live == 0
        remote.do("drop")
        assert channel.stats()["in_flight_bytes"] == 0

    def test_a_copy_is_given_back_when_the_device_has_it(
        self, peer: Peers, devices: FakeDevices
    ) -> None:
        """sglang#16118: the way around has the same rules of lifetime."""
        channel, remote = peer()
        remote.do("set", is_busy=True)
        channel.send(request(devices.tensor(values())))
        remote.do("receive")
        time.sleep(0.1)
        assert channel.stats()["in_flight_bytes"] >= NUM_BYTES
        remote.do("finish")
        eventually(lambda: channel.stats()["in_flight_bytes"] == 0)
        assert remote.do("where") == ["own 0"]  # held still, of the reader's own memory

    def test_a_failure_after_the_trial_is_named_and_later_messages_are_copied(
        self, peer: Peers, devices: FakeDevices
    ) -> None:
        channel, remote = introduced(peer, devices)
        remote.do("set", broken={"open"})
        channel.send(request(devices.tensor(values())))
        with pytest.raises(ow.HandoffError):
            remote.do("receive")
        eventually(lambda: devices.live == 0)
        channel.send(request(devices.tensor(values())))
        remote.do("receive")
        assert remote.do("where") == ["own 0"]

    def test_a_message_too_large_for_the_arena_says_so(
        self, peer: Peers, devices: FakeDevices
    ) -> None:
        channel, remote = introduced(peer, devices, arena_bytes=2**16, max_bytes=2**17)
        with pytest.raises(ow.ArenaFull):
            channel.send(request(devices.tensor(values()), big=torch.zeros(2**20)))
        eventually(lambda: devices.live == 0)
        channel.send(request(devices.tensor(values())))
        assert remote.do("receive") == ["r"]


class TestFurther:
    def test_what_is_sent_on_is_copied(self, peer: Peers, devices: FakeDevices) -> None:
        """pytorch#134755: A -> B -> C; memory can only be shared by its own process."""
        channel, remote = introduced(peer, devices)
        remote.do("send_device", 64)
        channel.recv(TIMEOUT_S)  # the trial in the other direction
        channel.send(request(devices.tensor(values())))
        channel.send(request(x=channel.share(devices.tensor(values()))))
        remote.do("receive", 2)
        remote.do("set", log=[])
        remote.do("send_back")
        assert remote.do("get", "log").count("export") == 2
        first, second = (channel.recv(TIMEOUT_S) for _ in range(2))
        remote.do("drop")
        eventually(lambda: devices.live == 0)
        assert torch.equal(tensor_of(first), values())
        assert torch.equal(tensor_of(second).resolve(), values())

    def test_one_message_to_many_is_lent_to_all(self, peer: Peers, devices: FakeDevices) -> None:
        (a, first), (b, second) = introduced(peer, devices), introduced(peer, devices)
        ow.broadcast([a, b], request(devices.tensor(values())))
        for remote in (first, second):
            remote.do("receive")
            assert remote.do("where") == ["borrowed"]
        first.do("drop")
        time.sleep(0.1)
        a.stats()
        assert devices.live == 1
        second.do("drop")
        eventually(lambda: devices.live == 0)

    def test_if_one_of_many_cannot_open_it_all_get_a_copy(
        self, peer: Peers, devices: FakeDevices
    ) -> None:
        (a, first), (b, second) = introduced(peer, devices), peer()
        c, d = ow.Channel.pair()
        d.stats()
        tensor = devices.tensor(values())
        ow.broadcast([a, b, c], request(tensor))
        for remote in (first, second):
            remote.do("receive")
            assert remote.do("where") == ["own 0"]
        assert tensor_of(d.recv()) is tensor
        ow.broadcast([a, b, c], request(tensor))
        for remote in (first, second):
            remote.do("receive")
            assert remote.do("where") == ["own 0", "borrowed"]
        assert tensor_of(d.recv()) is tensor

    def test_a_local_handle_goes_only_where_all_are_here(self, peer: Peers) -> None:
        a, _ = peer()
        c, d = ow.Channel.pair()
        tensor = torch.ones(2)
        handle = ow.TensorHandle("local", tensor.dtype, (2,), tensor)
        with pytest.raises(ow.EncodeError):
            ow.broadcast([a, c], request(x=handle))
        ow.broadcast([c], request(x=handle))
        assert tensor_of(d.recv()).payload is tensor

    def test_a_dead_reader_holds_nothing(self, peer: Peers, devices: FakeDevices) -> None:
        channel, remote = introduced(peer, devices)
        channel.send(request(devices.tensor(values())))
        remote.do("receive")
        remote.kill()
        eventually(lambda: devices.live == 0)

    def test_memory_stays_when_the_senders_end_is_gone(
        self, peer: Peers, devices: FakeDevices
    ) -> None:
        channel, remote = introduced(peer, devices)
        channel.send(request(devices.tensor(values())))
        remote.do("receive")
        channel.close()
        del channel
        gc.collect()
        time.sleep(0.1)
        assert devices.live == 1
        assert remote.do("values") == [values().sum().item()]
        remote.do("drop")
        eventually(lambda: devices.live == 0)

    def test_a_reader_that_closed_its_end_still_gives_it_back(
        self, peer: Peers, devices: FakeDevices
    ) -> None:
        channel, remote = introduced(peer, devices)
        channel.send(request(devices.tensor(values())))
        remote.do("receive")
        remote.do("close")
        assert remote.do("values") == [values().sum().item()]
        remote.do("drop")
        eventually(lambda: devices.live == 0)

    def test_a_forked_child_of_the_reader_gives_nothing_back(
        self, peer: Peers, devices: FakeDevices
    ) -> None:
        channel, remote = introduced(peer, devices)
        channel.send(request(devices.tensor(values())))
        remote.do("receive")
        before = remote.do("get", "marked")
        remote.do("fork_and_drop")
        time.sleep(0.1)
        channel.stats()
        assert devices.live == 1
        assert remote.do("get", "marked") == before
        remote.do("drop")
        eventually(lambda: devices.live == 0)

    def test_memory_of_a_dead_sender_is_a_named_error(
        self, peer: Peers, devices: FakeDevices
    ) -> None:
        """vllm#6025: the producer ends while the consumer has a handle of its memory."""
        channel, remote = peer()
        remote.do("send_device", NUM_BYTES)
        channel.recv(TIMEOUT_S)
        remote.do("share_device", NUM_BYTES)
        handle = tensor_of(channel.recv(TIMEOUT_S))
        remote.do("remove_files")
        remote.kill()
        with pytest.raises(ow.HandoffError):
            handle.resolve()

    def test_a_sender_that_ends_waits_for_its_readers(
        self, peer: Peers, devices: FakeDevices
    ) -> None:
        """vllm#6025: the producer drains before it exits."""
        channel, remote = peer()
        remote.do("send_device", NUM_BYTES)
        channel.recv(TIMEOUT_S)
        remote.do("send_device", NUM_BYTES)
        received = channel.recv(TIMEOUT_S)
        assert devices._place(tensor_of(received)) is not None
        remote._control.close()  # it has nothing more to do
        remote.process.join(0.3)
        assert remote.process.is_alive()
        assert int(tensor_of(received).sum()) == 7 * NUM_BYTES
        del received
        remote.process.join(TIMEOUT_S)
        assert remote.process.exitcode == 0
