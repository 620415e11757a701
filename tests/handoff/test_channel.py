"""A channel in one process: what is sent is received, whole, in order, and bit by bit."""

import gc
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from handoff_children import TIMEOUT_S, is_pattern, pattern, request, tensor_of
from hypothesis import given, settings
from hypothesis import strategies as hst

import omniwire as ow
from omniwire.testing import assert_equal
from omniwire.testing import strategies as st

MIB = 2**20

DTYPES = sorted(
    {  # all but the quantized
        value
        for value in vars(torch).values()
        if isinstance(value, torch.dtype) and not str(value).startswith("torch.q")
    },
    key=str,
)


@pytest.fixture
def pair() -> tuple[ow.Channel, ow.Channel]:
    return ow.Channel.pair(arena_bytes=2 * MIB)


@pytest.fixture
def a(pair: tuple[ow.Channel, ow.Channel]) -> ow.Channel:
    return pair[0]


@pytest.fixture
def b(pair: tuple[ow.Channel, ow.Channel]) -> ow.Channel:
    return pair[1]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor in row-major order."""
    return tensor.contiguous().view(-1).view(torch.uint8)


class TestOneThread:
    def test_sending_does_not_wait_for_receiving(self, a: ow.Channel, b: ow.Channel) -> None:
        """Many more than a socket has room for."""
        for number in range(3000):
            a.send(request(request_id=str(number)))
        for number in range(3000):
            assert b.recv().request_id == str(number)
        with pytest.raises(ow.HandoffTimeout):
            b.recv(timeout=0)

    def test_nor_with_tensors_that_fit_no_arena(self) -> None:
        a, b = ow.Channel.pair(arena_bytes=MIB, max_bytes=MIB)
        for number in range(5):
            a.send(request(pattern(2 * MIB, number)))
        for number in range(5):
            assert is_pattern(tensor_of(b.recv()), number)

    def test_both_directions(self, a: ow.Channel, b: ow.Channel) -> None:
        for number in range(10):
            a.send(request(pattern(2**16, number)))
            b.send(request(pattern(2**16, number + 100)))
        for number in range(10):
            assert is_pattern(tensor_of(b.recv()), number)
            assert is_pattern(tensor_of(a.recv()), number + 100)

    def test_two_servers_ends(self, folder: Path) -> None:
        with ow.ChannelServer(folder / "socket") as server:
            a = ow.Channel.connect(folder / "socket", TIMEOUT_S)
            b = server.accept(TIMEOUT_S)
        a.send(request(pattern(MIB)))
        assert is_pattern(tensor_of(b.recv()))


class TestObjects:
    def test_every_contract(self, a: ow.Channel, b: ow.Channel) -> None:
        sent: list[Any] = [
            request(pattern(MIB), text="x", number=3, none=None, nested={"a": [1.5, True]}),
            ow.ItemRef("image", 3),
            ow.TokenIds(range(1000)),
            ow.MultimodalItemMetadata([("image", 0)], [3], [3], {}),
            ow.OmniOutput(torch.ones(2, 8), {"audio": torch.zeros(1, 99_999), "rate": 24000}),
            ow.OutputChunk("r", 0, "text", [1], finish_reason="stop"),
            ow.OutputSpec({"codes.audio": ow.Concat(0)}),
            ow.RequestOutput("r", [1], errors={"": ow.AccumulationError("x", "r", "image")}),
            ow.DisaggregatedParams(None, None, "decode", b"state"),
        ]
        for each in sent:
            a.send(each)
        for each in sent:
            assert_equal(b.recv(), each)

    @settings(max_examples=30)
    @given(hst.lists(st.processed_requests(), max_size=4))
    def test_any_request(self, requests: list[ow.ProcessedRequest]) -> None:
        a, b = ow.Channel.pair(arena_bytes=2**16)
        for each in requests:
            a.send(each)
        for each in requests:
            assert_equal(b.recv(), each)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_every_dtype_bit_by_bit(self, a: ow.Channel, b: ow.Channel, dtype: torch.dtype) -> None:
        """In the header, in a shared slot, and in one of their own."""
        for num_bytes in (256, 4096, 2**17):
            content = torch.randint(0, 256, (num_bytes,), dtype=torch.uint8)
            if dtype is torch.bool:
                content &= 1
            tensor = content.view(dtype).view(2, -1)
            a.send(request(tensor))
            result = tensor_of(b.recv())
            assert result.dtype is dtype
            assert result.shape == tensor.shape
            assert torch.equal(bits(result), content)

    @pytest.mark.parametrize(
        "make",
        [
            lambda base: base.T,
            lambda base: base[::2, 1::3],
            lambda base: base[:1].expand(64, -1),
            lambda base: base.view(16, 4, -1, 64).permute(0, 3, 1, 2),
            lambda base: base.view(16, 4, -1, 64).contiguous(memory_format=torch.channels_last),
            lambda base: torch.complex(base, -base).conj(),
            lambda base: torch.complex(base, -base).conj().imag,
            lambda base: base.requires_grad_(),
            lambda base: base[3, 3],
        ],
        ids=["T", "steps", "expanded", "permuted", "channels", "conj", "neg", "grad", "scalar"],
    )
    def test_strided_tensors(
        self, a: ow.Channel, b: ow.Channel, make: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        tensor = make(torch.randn(64, 1024))
        a.send(request(tensor))
        result = tensor_of(b.recv())
        assert torch.equal(result, tensor.detach())
        assert not result.requires_grad
        own = a.empty(tensor.shape, tensor.dtype).copy_(tensor.detach())
        a.send(request(own))
        assert torch.equal(tensor_of(b.recv()), tensor.detach())

    @pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 2**40), ()], ids=str)
    def test_tensors_without_bytes(
        self, a: ow.Channel, b: ow.Channel, shape: tuple[int, ...]
    ) -> None:
        sent = [torch.zeros(shape), a.empty(shape, torch.float32).zero_(), np.zeros(shape)]
        a.send(request(a=sent[0], b=sent[1], c=sent[2]))
        message = b.recv()
        for field in "abc":
            assert tuple(tensor_of(message, field).shape) == shape

    def test_every_tensor_starts_at_64_bytes(self, a: ow.Channel, b: ow.Channel) -> None:
        a.send(request(a=pattern(1001), b=pattern(777), c=pattern(2**16 + 1), d=pattern(2**16)))
        message = b.recv()
        for field in "abcd":
            assert tensor_of(message, field).data_ptr() % 64 == 0
        assert a.empty((5,), torch.uint8).data_ptr() % 64 == 0

    def test_ten_thousand_items_in_one_message(self, a: ow.Channel, b: ow.Channel) -> None:
        num_items = 10_000
        metadata = ow.MultimodalItemMetadata(
            [("image", number) for number in range(num_items)],
            [1] * num_items,
            [1] * num_items,
            {"image": {"pixels": ow.MultimodalItemPartition()}},
        )
        items = pattern(num_items * 600).view(num_items, 600)
        data = {"item_metadata": metadata, "image": {"pixels": items, "each": list(items)}}
        sent = ow.ProcessedRequest("r", [1], ow.MultimodalParams(multimodal_data=data))
        a.send(sent)
        assert_equal(b.recv(), sent)

    def test_thousands_of_tensors_with_slots_of_their_own(
        self, a: ow.Channel, b: ow.Channel
    ) -> None:
        """Their references alone are larger than a packet."""
        whole = a.empty((1000, 2**16 // 64), torch.uint8)
        whole.copy_(pattern(whole.numel()).view(whole.shape))
        flat = whole.view(-1)
        slices = [flat[64 * number : 64 * number + 2**16] for number in range(1000)]
        a.send(request(each=slices))
        received = tensor_of(b.recv(), "each")
        assert len(received) == 1000
        assert all(torch.equal(*each) for each in zip(received, slices, strict=True))

    @pytest.mark.parametrize("num_tokens", [1, 8_000, 16_000, 128_000, 1_000_000])
    def test_any_number_of_prompt_tokens(
        self, a: ow.Channel, b: ow.Channel, num_tokens: int
    ) -> None:
        """Headers smaller and larger than a packet of the socket."""
        tokens = ow.TokenIds(range(num_tokens))
        a.send(ow.ProcessedRequest("r", tokens))
        a.send(ow.ProcessedRequest("s", [5]))
        assert b.recv().prompt_token_ids == tokens
        assert b.recv().request_id == "s"
        assert a.stats()["in_flight_bytes"] == 0

    def test_a_large_header_and_large_tensors(self, a: ow.Channel, b: ow.Channel) -> None:
        data = {"image": {"x": pattern(MIB)}}
        params = ow.MultimodalParams(multimodal_data=data)
        a.send(ow.ProcessedRequest("r", range(128_000), params))
        message = b.recv()
        assert len(message.prompt_token_ids) == 128_000
        assert is_pattern(tensor_of(message))

    def test_a_large_header_that_fits_no_arena(self) -> None:
        a, b = ow.Channel.pair(arena_bytes=4096, max_bytes=2**16)
        a.send(ow.ProcessedRequest("r", range(128_000)))
        assert len(b.recv().prompt_token_ids) == 128_000


class TestFailures:
    @pytest.mark.parametrize(
        "wrong",
        [
            lambda: "text",
            lambda: torch.zeros(3),
            lambda: {"a": 1},
            lambda: request(torch.zeros(2, device="meta")),
            lambda: ow.MultimodalParams(encoder_state=object()),
        ],
        ids=["str", "tensor", "dict", "meta", "state"],
    )
    def test_what_cannot_be_encoded_is_not_sent(
        self, a: ow.Channel, b: ow.Channel, wrong: Callable[[], object]
    ) -> None:
        before = dict(a.stats())
        with pytest.raises(ow.OmniwireError) as caught:
            a.send(wrong())
        assert isinstance(caught.value, ow.EncodeError | ow.ContractError)
        assert dict(a.stats()) == before
        with pytest.raises(ow.HandoffTimeout):
            b.recv(timeout=0)
        a.send(request(pattern(MIB)))
        assert is_pattern(tensor_of(b.recv()))

    def test_a_message_with_a_part_that_cannot_be_encoded_is_not_sent(
        self, a: ow.Channel, b: ow.Channel
    ) -> None:
        """Neither are the tensors in it that could be; they are free again (vllm-omni#7840)."""
        own = a.empty((MIB,), torch.uint8)
        data = {"image": {"a": own, "b": pattern(MIB)}}
        with pytest.raises(ow.EncodeError):
            a.send(ow.MultimodalParams(multimodal_data=data, encoder_state=object()))
        del data
        assert a.stats()["in_flight_bytes"] == MIB
        del own
        assert a.stats()["in_flight_bytes"] == 0
        with pytest.raises(ow.HandoffTimeout):
            b.recv(timeout=0)

    def test_waiting_in_vain_sends_nothing(self) -> None:
        a, b = ow.Channel.pair(arena_bytes=MIB, max_bytes=MIB)
        a.send(request(pattern(MIB), "first"))
        with pytest.raises(ow.ArenaFull):
            a.send(request(pattern(MIB), "second"), timeout=0.01)
        a.send(request(request_id="third"))
        assert [b.recv().request_id for _ in range(2)] == ["first", "third"]

    @pytest.mark.parametrize("shape", [(-1,), (2**40, 2**40), (True,), ("3",), (1.0,)], ids=str)
    def test_no_shape(self, a: ow.Channel, shape: tuple[Any, ...]) -> None:
        with pytest.raises(ow.ContractError) as caught:
            a.empty(shape, torch.uint8)
        assert caught.value.problems[0].path[0] == "shape"

    @pytest.mark.parametrize("dtype", [None, "uint8", np.uint8, float], ids=str)
    def test_no_dtype(self, a: ow.Channel, dtype: Any) -> None:
        with pytest.raises(ow.ContractTypeError) as caught:
            a.empty((3,), dtype)
        assert caught.value.problems[0].path == ("dtype",)


class TestClosing:
    def test_again_does_nothing(self, a: ow.Channel) -> None:
        a.close()
        a.close()

    def test_what_was_sent_arrives_first(self, a: ow.Channel, b: ow.Channel) -> None:
        for number in range(3):
            a.send(request(pattern(2**16, number)))
        a.close()
        for number in range(3):
            assert is_pattern(tensor_of(b.recv()), number)
        for _ in range(2):
            with pytest.raises(ow.PeerClosed):
                b.recv()

    def test_sending_to_a_closed_end(self, a: ow.Channel, b: ow.Channel) -> None:
        b.close()
        for tensor in (None, pattern(MIB)):
            with pytest.raises(ow.PeerClosed):
                a.send(request(tensor))
        assert a.stats()["in_flight_bytes"] == 0

    def test_what_nobody_received_is_free_again(self, a: ow.Channel, b: ow.Channel) -> None:
        a.send(request(pattern(MIB), "taken"))
        a.send(request(pattern(MIB), "left"))
        message = b.recv()
        b.close()
        assert a.stats()["in_flight_bytes"] == MIB
        assert is_pattern(tensor_of(message))
        del message
        assert a.stats()["in_flight_bytes"] == 0

    @pytest.mark.parametrize("used", [False, True])
    def test_nothing_works_on_a_closed_end(
        self, a: ow.Channel, b: ow.Channel, used: bool, tmp_path: Path
    ) -> None:
        if used:
            a.send(request())
        a.close()
        uses: list[Callable[[], object]] = [
            lambda: a.send(request()),
            a.recv,
            lambda: a.empty((3,), torch.uint8),
            lambda: a.share(torch.zeros(3)),
            a.stats,
            lambda: ow.broadcast([a], request()),
        ]
        for use in uses:
            with pytest.raises(ow.HandoffError) as caught:
                use()
            assert type(caught.value) is ow.HandoffError

    def test_at_the_end_of_a_block(self, a: ow.Channel, b: ow.Channel) -> None:
        with a:
            a.send(request())
        assert b.recv().request_id == "r"
        with pytest.raises(ow.PeerClosed):
            b.recv()

    def test_when_it_is_collected(self) -> None:
        a, b = ow.Channel.pair()
        a.send(request())
        del a
        assert b.recv().request_id == "r"
        with pytest.raises(ow.PeerClosed):
            b.recv()

    def test_when_it_is_collected_in_a_cycle(self) -> None:
        a, b = ow.Channel.pair(arena_bytes=MIB)
        a.send(request(pattern(2**16)))
        cycle: list[Any] = [a, b]
        cycle.append(cycle)
        del a, b, cycle
        gc.collect()

    def test_an_end_that_was_never_used(self, a: ow.Channel, b: ow.Channel) -> None:
        a.close()
        with pytest.raises(ow.PeerClosed):
            b.recv()
        with pytest.raises(ow.PeerClosed):
            b.send(request())

    def test_a_thread_that_receives_is_woken(self, a: ow.Channel, b: ow.Channel) -> None:
        outcomes: list[object] = []
        started = threading.Event()

        def receive() -> None:
            started.set()
            try:
                outcomes.append(b.recv())
            except ow.HandoffError as error:
                outcomes.append(error)

        thread = threading.Thread(target=receive)
        thread.start()
        started.wait()
        b.close()
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
        assert type(outcomes[0]) is ow.HandoffError

    def test_a_thread_that_waits_for_memory_is_woken(self) -> None:
        a, _b = ow.Channel.pair(arena_bytes=MIB, max_bytes=MIB)
        a.send(request(pattern(MIB)))
        outcomes: list[object] = []

        def send() -> None:
            try:
                a.send(request(pattern(MIB)))
            except ow.HandoffError as error:
                outcomes.append(error)

        thread = threading.Thread(target=send)
        thread.start()
        a.close()
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
        assert type(outcomes[0]) is ow.HandoffError

    def test_how_it_looks(self, a: ow.Channel) -> None:
        assert "open" in repr(a)
        a.close()
        assert "closed" in repr(a)


def test_what_was_sent_is_not_kept(a: ow.Channel) -> None:
    tensor = pattern(MIB)
    before = sys.getrefcount(tensor)
    a.send(request(tensor))
    gc.collect()
    assert sys.getrefcount(tensor) == before
