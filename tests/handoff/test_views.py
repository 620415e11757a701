"""How long a slot lives: exactly as long as anything that could still see its bytes."""

import copy
import ctypes
import functools
import gc
import pickle
import threading
import weakref
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from handoff_children import is_pattern, pattern, request, tensor_of

import omniwire as ow

ROWS, COLUMNS = 512, 1024
NUM_BYTES = ROWS * COLUMNS

Pair = tuple[ow.Channel, ow.Channel]


@pytest.fixture
def pair() -> Pair:
    return ow.Channel.pair(arena_bytes=4 * NUM_BYTES)


def held(channel: ow.Channel) -> int:
    return channel.stats()["in_flight_bytes"]


def received(pair: Pair, *, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    """A tensor of `NUM_BYTES` that came through the arena; nothing else refers to it."""
    flat = pattern(NUM_BYTES).view(dtype)
    pair[0].send(request(flat.view(ROWS, -1)))
    tensor = tensor_of(pair[1].recv())
    assert isinstance(tensor, torch.Tensor)
    return tensor


def in_module(tensor: torch.Tensor) -> torch.nn.Module:
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(tensor.view(torch.float32), requires_grad=False)
    return module


def in_graph(tensor: torch.Tensor) -> torch.Tensor:
    """A loss whose gradient will need the tensor."""
    weight = torch.ones(NUM_BYTES // 4, requires_grad=True)
    return (weight * tensor.view(torch.float32).view(-1)).sum()


def as_struct(tensor: torch.Tensor) -> object:
    return (ctypes.c_uint8 * NUM_BYTES).from_buffer(tensor.numpy())


def as_closure(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    return lambda: tensor


VIEWS: dict[str, Callable[[torch.Tensor], object]] = {
    "tensor": lambda tensor: tensor,
    "row": lambda tensor: tensor[3],
    "one element": lambda tensor: tensor[3, 3],
    "empty slice": lambda tensor: tensor[:0],
    "slice of a slice": lambda tensor: tensor[1:9][2:4, ::7],
    "transpose": lambda tensor: tensor.T,
    "flat": lambda tensor: tensor.view(-1),
    "other dtype": lambda tensor: tensor.view(torch.float64),
    "expanded": lambda tensor: tensor[:1].expand(99, COLUMNS),
    "strided": lambda tensor: tensor.as_strided((3, 3), (1, 1), 1000),
    "chunks": lambda tensor: tensor.chunk(4)[2:3],
    "unbound": lambda tensor: tensor.unbind()[-1],
    "detached": lambda tensor: tensor.detach(),
    "data": lambda tensor: tensor.data,
    "shallow copy": copy.copy,
    "storage": lambda tensor: tensor.untyped_storage(),
    "set to the storage": lambda tensor: torch.empty(0, dtype=torch.uint8).set_(
        tensor.untyped_storage()
    ),
    "from dlpack": torch.from_dlpack,
    "dlpack capsule": lambda tensor: tensor.__dlpack__(),
    "parameter": lambda tensor: torch.nn.Parameter(tensor, requires_grad=False),
    "in a module": in_module,
    "in a state dict": lambda tensor: in_module(tensor).state_dict(),
    "in an autograd graph": in_graph,
    "in a nested payload": lambda tensor: request(more={"a": [1, {"b": [tensor]}]}),
    "as an output": lambda tensor: ow.OmniOutput(None, {"image": tensor}),
    "as a local handle": lambda tensor: ow.TensorHandle("local", torch.uint8, tensor.shape, tensor),
    "numpy": lambda tensor: tensor.numpy(),
    "numpy slice": lambda tensor: tensor.numpy()[3:4, ::2],
    "numpy through dlpack": np.from_dlpack,
    "numpy array of it": np.asarray,
    "numpy, other dtype": lambda tensor: tensor.numpy().view(np.int16),
    "numpy iterator": lambda tensor: iter(tensor.numpy()),
    "memoryview": lambda tensor: memoryview(tensor.numpy()),
    "memoryview slice": lambda tensor: memoryview(tensor.numpy()).cast("B")[5:6],
    "tensor of a memoryview": lambda tensor: torch.frombuffer(
        memoryview(tensor.numpy()).cast("B"), dtype=torch.uint8
    ),
    "numpy of a memoryview": lambda tensor: np.frombuffer(memoryview(tensor.numpy()), np.uint8),
    "ctypes array": as_struct,
    "pickle buffer": lambda tensor: pickle.PickleBuffer(tensor.numpy()),
    "closure": as_closure,
    "partial": lambda tensor: functools.partial(torch.sum, tensor),
    "exception": ValueError,
    "attribute": lambda tensor: SimpleNamespace(tensor=tensor),
    "bound method": lambda tensor: tensor.sum,
}

NO_VIEWS: dict[str, Callable[[torch.Tensor], object]] = {
    "nothing": lambda _: None,
    "clone": lambda tensor: tensor.clone(),
    "deep copy": copy.deepcopy,
    "sum": lambda tensor: tensor.sum(),
    "other dtype": lambda tensor: tensor.float(),
    "gather": lambda tensor: tensor[[1, 2]],
    "numpy copy": lambda tensor: tensor.numpy().copy(),
    "bytes": lambda tensor: bytes(tensor.numpy()),
    "list": lambda tensor: tensor[0].tolist(),
    "pickled": pickle.dumps,
    "pickled request": lambda tensor: pickle.dumps(request(tensor)),
    "encoded in one": lambda tensor: ow.dumps(request(tensor)),
    "shape": lambda tensor: tensor.shape,
    "weak reference": weakref.ref,
}


class TestViews:
    @pytest.mark.parametrize("make", VIEWS.values(), ids=VIEWS)
    def test_every_kind_of_view_holds_the_slot(
        self, pair: Pair, make: Callable[[torch.Tensor], object]
    ) -> None:
        view = make(received(pair))
        assert held(pair[0]) == NUM_BYTES
        assert pair[0].stats()["free_bytes"] == pair[0].stats()["arena_bytes"] - NUM_BYTES
        # What is sent now lies elsewhere: the view still shows what it did.
        pair[0].send(request(torch.zeros(NUM_BYTES, dtype=torch.uint8)))
        other = pair[1].recv()
        assert held(pair[0]) == 2 * NUM_BYTES
        del other
        assert held(pair[0]) == NUM_BYTES
        del view
        assert held(pair[0]) == 0

    @pytest.mark.parametrize("make", NO_VIEWS.values(), ids=NO_VIEWS)
    def test_what_is_no_view_does_not(
        self, pair: Pair, make: Callable[[torch.Tensor], object]
    ) -> None:
        copied = make(received(pair))
        assert held(pair[0]) == 0
        del copied

    def test_a_received_message_that_nobody_reads(self, pair: Pair) -> None:
        pair[0].send(request(pattern(NUM_BYTES)))
        assert held(pair[0]) == NUM_BYTES
        message = pair[1].recv()
        assert held(pair[0]) == NUM_BYTES
        del message
        assert held(pair[0]) == 0

    def test_the_last_of_several_views(self, pair: Pair) -> None:
        views = [make(tensor) for tensor in [received(pair)] for make in VIEWS.values()]
        while views:
            assert held(pair[0]) == NUM_BYTES
            views.pop()
        assert held(pair[0]) == 0

    def test_tensors_from_64_kib_have_slots_of_their_own(self, pair: Pair) -> None:
        sizes = [2**16, 2**17, 2**16 + 1]
        pair[0].send(request(**{f"t{size}": pattern(size) for size in sizes}))
        message = pair[1].recv()
        tensors = [tensor_of(message, f"t{size}") for size in sizes]
        del message
        assert held(pair[0]) == 2**16 + 2**17 + 2**16 + 64  # in steps of 64
        del tensors[1]
        assert held(pair[0]) == 2**16 + 2**16 + 64
        del tensors[0]
        assert held(pair[0]) == 2**16 + 64

    def test_smaller_ones_share_a_slot(self, pair: Pair) -> None:
        pair[0].send(request(a=pattern(5000), b=pattern(9000)))
        message = pair[1].recv()
        first, second = tensor_of(message, "a"), tensor_of(message, "b")
        del message
        assert held(pair[0]) == 5056 + 9024
        del first
        assert held(pair[0]) == 5056 + 9024
        del second
        assert held(pair[0]) == 0

    def test_tiny_ones_need_none(self, pair: Pair) -> None:
        pair[0].send(request(pattern(512)))
        message = pair[1].recv()
        assert held(pair[0]) == 0
        assert is_pattern(tensor_of(message))

    def test_numpy_arrays_are_held_likewise(self, pair: Pair) -> None:
        pair[0].send(request(array=np.arange(NUM_BYTES // 8)))
        array = tensor_of(pair[1].recv(), "array")
        assert held(pair[0]) == NUM_BYTES
        row = array[5:7]
        del array
        assert held(pair[0]) == NUM_BYTES
        assert row.tolist() == [5, 6]
        del row
        assert held(pair[0]) == 0

    def test_a_selected_view(self, pair: Pair) -> None:
        metadata = ow.MultimodalItemMetadata(
            [("image", 0), ("image", 1)],
            [1, 1],
            [1, 1],
            {"image": {"pixels": ow.MultimodalItemPartition()}},
        )
        data = {"item_metadata": metadata, "image": {"pixels": pattern(NUM_BYTES).view(2, -1)}}
        params = ow.MultimodalParams(multimodal_data=data)
        pair[0].send(ow.ProcessedRequest("r", [1, 2], params))
        selected = ow.select(pair[1].recv().multimodal_params, [1])
        assert held(pair[0]) == NUM_BYTES
        del selected
        assert held(pair[0]) == 0

    def test_pickled_out_of_band(self, pair: Pair) -> None:
        """Protocol 5 with a callback does not copy: the buffers hold the slot."""
        buffers: list[pickle.PickleBuffer] = []
        message = request(received(pair))
        text = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
        del message
        assert held(pair[0]) == NUM_BYTES
        again = pickle.loads(text, buffers=buffers)
        del buffers
        assert held(pair[0]) == NUM_BYTES
        assert is_pattern(tensor_of(again).view(-1))
        del again
        assert held(pair[0]) == 0

    def test_in_a_reference_cycle(self, pair: Pair) -> None:
        gc.disable()
        try:
            cycle: list[Any] = [received(pair)]
            cycle.append(cycle)
            del cycle
            assert held(pair[0]) == NUM_BYTES
            gc.collect()
            assert held(pair[0]) == 0
        finally:
            gc.enable()

    def test_in_an_object_with_a_finalizer_in_a_cycle(self, pair: Pair) -> None:
        """The finalizer still sees the bytes; only after it is the slot free."""
        seen = []

        class Holder:
            def __init__(self, tensor: torch.Tensor) -> None:
                self.tensor = tensor
                self.self = self

            def __del__(self) -> None:
                seen.append((is_pattern(self.tensor.view(-1)), held(pair[0])))

        Holder(received(pair))
        gc.collect()
        assert seen == [(True, NUM_BYTES)]
        assert held(pair[0]) == 0

    def test_dropped_on_another_thread(self, pair: Pair) -> None:
        views = [received(pair)]
        thread = threading.Thread(target=views.clear)
        thread.start()
        thread.join()
        assert held(pair[0]) == 0

    def test_dropped_while_the_books_are_being_kept(self, pair: Pair) -> None:
        """A collection may run anywhere in the sender's own code, with its locks held."""
        thresholds = gc.get_threshold()
        gc.set_threshold(1, 1, 1)
        try:
            for _ in range(20):
                cycle: list[Any] = [received(pair), pair[0].empty((100,), torch.uint8)]
                cycle.append(cycle)
                del cycle
        finally:
            gc.set_threshold(*thresholds)
        gc.collect()
        assert held(pair[0]) == 0


class TestPublished:
    def test_what_the_sender_writes_later_is_not_seen(self, pair: Pair) -> None:
        """A tensor that is copied to be sent is the sender's again at once.

        vllm-omni#3164, vllm#50053: the next step wrote into what was still on its way.
        """
        for num_bytes in (100, 5000, NUM_BYTES, 5 * NUM_BYTES):
            tensor = pattern(num_bytes)
            pair[0].send(request(tensor))
            tensor.fill_(0)
            assert is_pattern(tensor_of(pair[1].recv()))

    def test_the_sender_may_drop_it_at_once(self, pair: Pair) -> None:
        """vllm#15207: an allocator's memory was used again while it was still being sent."""
        for number in range(8):
            pair[0].send(request(pattern(NUM_BYTES // 4, number), more=torch.zeros(0)))
            torch.full((NUM_BYTES // 4,), 255, dtype=torch.uint8)
        for number in range(8):
            message = pair[1].recv()
            assert is_pattern(tensor_of(message), number)
            assert tensor_of(message, "more").shape == (0,)

    def test_what_came_through_the_socket_lives_as_long_as_its_views(self) -> None:
        """The way round the arena has the same rules: sglang#16118, a pool too small for images."""
        a, b = ow.Channel.pair(arena_bytes=2**20, max_bytes=2**20)
        images = [pattern(1120 * 700 * 3, seed).view(1120, 700, 3) for seed in range(3)]
        a.send(request(images=images))
        received = [image[5:] for image in tensor_of(b.recv(), "images")]
        a.close()
        b.close()
        gc.collect()
        for image, view in zip(images, received, strict=True):
            assert torch.equal(image[5:], view)


class TestAfterwards:
    def test_a_view_outlives_both_ends(self, pair: Pair) -> None:
        tensor = received(pair)
        for end in pair:
            end.close()
        del pair
        gc.collect()
        assert is_pattern(tensor.view(-1))

    def test_a_view_outlives_what_was_never_closed(self) -> None:
        a, b = ow.Channel.pair(arena_bytes=4 * NUM_BYTES)
        a.send(request(pattern(NUM_BYTES)))
        tensor = tensor_of(b.recv())
        del a, b
        gc.collect()
        assert is_pattern(tensor)

    def test_an_own_tensor_outlives_the_channel(self) -> None:
        a, _b = ow.Channel.pair(arena_bytes=4 * NUM_BYTES)
        tensor = a.empty((NUM_BYTES,), torch.uint8).copy_(pattern(NUM_BYTES))
        a.close()
        del a, _b
        gc.collect()
        assert is_pattern(tensor)

    def test_writing_to_a_received_tensor_is_possible(self, pair: Pair) -> None:
        """Read-only is a contract: no page is protected, so nothing crashes."""
        tensor = received(pair)
        tensor += 1
        assert not is_pattern(tensor.view(-1))


class TestOwnTensors:
    """Those from `empty`: their slot lives as long as the sender's or a receiver's views."""

    @pytest.mark.parametrize("make", VIEWS.values(), ids=VIEWS)
    def test_every_kind_of_view_holds_the_slot(
        self, pair: Pair, make: Callable[[torch.Tensor], object]
    ) -> None:
        view = make(pair[0].empty((ROWS, COLUMNS), torch.uint8))
        assert held(pair[0]) == NUM_BYTES
        del view
        assert held(pair[0]) == 0

    def test_until_both_have_dropped_it(self, pair: Pair) -> None:
        tensor = pair[0].empty((NUM_BYTES,), torch.uint8)
        pair[0].send(request(tensor))
        message = pair[1].recv()
        assert held(pair[0]) == NUM_BYTES
        del tensor
        assert held(pair[0]) == NUM_BYTES
        del message
        assert held(pair[0]) == 0

    def test_whoever_drops_it_first(self, pair: Pair) -> None:
        tensor = pair[0].empty((NUM_BYTES,), torch.uint8)
        pair[0].send(request(tensor))
        message = pair[1].recv()
        del message
        assert held(pair[0]) == NUM_BYTES
        del tensor
        assert held(pair[0]) == 0

    def test_while_it_is_on_its_way(self, pair: Pair) -> None:
        tensor = pair[0].empty((NUM_BYTES,), torch.uint8)
        pair[0].send(request(tensor.copy_(pattern(NUM_BYTES))))
        del tensor
        assert held(pair[0]) == NUM_BYTES
        assert is_pattern(tensor_of(pair[1].recv()))

    def test_a_slice_of_one_holds_all_of_it(self, pair: Pair) -> None:
        tensor = pair[0].empty((ROWS, COLUMNS), torch.uint8)
        pair[0].send(request(tensor[100:200]))
        del tensor
        message = pair[1].recv()
        assert tensor_of(message).shape == (100, COLUMNS)
        assert held(pair[0]) == NUM_BYTES
        del message
        assert held(pair[0]) == 0

    def test_sent_many_times_it_is_there_once(self, pair: Pair) -> None:
        tensor = pair[0].empty((NUM_BYTES,), torch.uint8)
        for _ in range(20):
            pair[0].send(request(tensor))
        messages = [pair[1].recv() for _ in range(20)]
        assert held(pair[0]) == NUM_BYTES
        del tensor
        while messages:
            assert held(pair[0]) == NUM_BYTES
            messages.pop()
        assert held(pair[0]) == 0

    def test_what_the_sender_writes_later_is_seen(self, pair: Pair) -> None:
        """Documented: until the peer has dropped it, both see the same memory."""
        tensor = pair[0].empty((NUM_BYTES,), torch.uint8).zero_()
        pair[0].send(request(tensor))
        message = pair[1].recv()
        tensor.fill_(7)
        assert tensor_of(message).unique().tolist() == [7]

    def test_what_was_sent_in_place_needs_no_copy(self, pair: Pair) -> None:
        tensor = pair[0].empty((ROWS, COLUMNS), torch.uint8)
        for sent in (tensor, tensor[3], tensor[5:9], tensor.view(-1)[64:]):
            before = pair[0].stats()
            pair[0].send(request(sent))
            after = pair[0].stats()
            assert after["zero_copy_bytes"] - before["zero_copy_bytes"] == sent.nbytes
            assert after["copied_bytes"] == before["copied_bytes"]

    def test_many_small_views_of_one_tensor_need_no_copy(self, pair: Pair) -> None:
        """As far apart as they are in a frame: at multiples of 64 bytes."""
        block = pair[0].empty((32, 208), torch.float32).zero_()
        rows = [block[index, :200] for index in range(32)]
        pair[0].send(request(rows=rows))
        stats = pair[0].stats()
        assert (stats["copied_bytes"], stats["zero_copy_bytes"]) == (0, 32 * 800)
        block.copy_(torch.arange(32.0)[:, None].expand(32, 208))
        received = tensor_of(pair[1].recv(), "rows")
        assert [row.unique().tolist() for row in received] == [[float(n)] for n in range(32)]

    @pytest.mark.parametrize(
        "order", [range(31, -1, -1), range(0, 32, 2), (0, 2, 1, 3)], ids=["last", "gaps", "swapped"]
    )
    def test_small_views_that_lie_in_another_order_are_copied(
        self, pair: Pair, order: Sequence[int]
    ) -> None:
        block = pair[0].empty((32, 208), torch.float32)
        block.copy_(torch.arange(32.0)[:, None].expand(32, 208))
        pair[0].send(request(rows=[block[index] for index in order]))
        assert pair[0].stats()["copied_bytes"] == len(order) * 832
        block.zero_()
        received = tensor_of(pair[1].recv(), "rows")
        assert [row[0].item() for row in received] == list(order)

    def test_small_tensors_in_slots_side_by_side_are_copied(self, pair: Pair) -> None:
        """They only look like one range: each has a slot that is given back on its own."""
        first, second = (pair[0].empty((256,), torch.float32).fill_(n) for n in (1, 2))
        assert second.data_ptr() == first.data_ptr() + first.nbytes
        pair[0].send(request(rows=[first, second] * 2))
        del first, second
        pair[0].empty((4096,), torch.uint8).fill_(255)
        received = tensor_of(pair[1].recv(), "rows")
        assert [row.unique().tolist() for row in received] == [[1], [2], [1], [2]]

    def test_what_is_not_contiguous_is_copied(self, pair: Pair) -> None:
        tensor = (
            pair[0].empty((ROWS, COLUMNS), torch.uint8).copy_(pattern(NUM_BYTES).view(ROWS, -1))
        )
        pair[0].send(request(tensor.T))
        assert pair[0].stats()["copied_bytes"] == NUM_BYTES
        assert torch.equal(tensor_of(pair[1].recv()), tensor.T)

    def test_a_tensor_of_another_channel_is_copied(self, pair: Pair) -> None:
        other = ow.Channel.pair(arena_bytes=4 * NUM_BYTES)
        tensor = other[0].empty((NUM_BYTES,), torch.uint8).copy_(pattern(NUM_BYTES))
        pair[0].send(request(tensor))
        assert pair[0].stats()["copied_bytes"] == NUM_BYTES
        assert is_pattern(tensor_of(pair[1].recv()))

    def test_a_received_tensor_is_sent_on_as_a_copy(self, pair: Pair) -> None:
        """The slot is the first sender's: who sends on has its own (pytorch#134755)."""
        further = ow.Channel.pair(arena_bytes=4 * NUM_BYTES)
        message = request(received(pair))
        further[0].send(message)
        del message
        assert held(pair[0]) == 0
        assert held(further[0]) == NUM_BYTES
        assert is_pattern(tensor_of(further[1].recv()).view(-1))

    def test_a_received_tensor_is_sent_back_as_a_copy(self, pair: Pair) -> None:
        message = request(received(pair))
        pair[1].send(message)
        del message
        assert held(pair[0]) == 0
        assert held(pair[1]) == NUM_BYTES
        assert is_pattern(tensor_of(pair[0].recv()).view(-1))
