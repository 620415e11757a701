"""Handles: tensors in an arena that need not be resolved where they arrive."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from handoff_children import TIMEOUT_S, is_pattern, pattern, request, tensor_of

import omniwire as ow

MIB = 2**20


@pytest.fixture
def pair() -> tuple[ow.Channel, ow.Channel]:
    return ow.Channel.pair(arena_bytes=2 * MIB)


@pytest.fixture
def a(pair: tuple[ow.Channel, ow.Channel]) -> ow.Channel:
    return pair[0]


@pytest.fixture
def b(pair: tuple[ow.Channel, ow.Channel]) -> ow.Channel:
    return pair[1]


def held(channel: ow.Channel) -> int:
    return channel.stats()["in_flight_bytes"]


def sent(a: ow.Channel, b: ow.Channel, handle: ow.TensorHandle) -> ow.TensorHandle:
    a.send(request(handle))
    result = tensor_of(b.recv(TIMEOUT_S))
    assert isinstance(result, ow.TensorHandle)
    return result


class TestSharing:
    def test_says_what_the_tensor_is(self, a: ow.Channel) -> None:
        handle = a.share(torch.zeros(3, 5, dtype=torch.bfloat16))
        assert (handle.kind, handle.dtype, handle.shape) == ("arena", torch.bfloat16, (3, 5))

    def test_copies_the_tensor_once(self, a: ow.Channel, b: ow.Channel) -> None:
        handle = a.share(pattern(MIB))
        assert held(a) == MIB
        for _ in range(3):
            sent(a, b, handle)
        assert held(a) == MIB
        assert a.stats()["zero_copy_bytes"] == 3 * MIB

    def test_does_not_copy_what_is_in_the_arena(self, a: ow.Channel, b: ow.Channel) -> None:
        tensor = a.empty((MIB,), torch.uint8).copy_(pattern(MIB))
        handle = a.share(tensor)
        assert handle.resolve().data_ptr() == tensor.data_ptr()
        assert held(a) == MIB
        part = a.share(tensor[64:128])
        assert part.resolve().data_ptr() == tensor.data_ptr() + 64
        del tensor, handle
        assert held(a) == MIB
        del part
        assert held(a) == 0

    def test_of_tensors_of_any_layout(self, a: ow.Channel, b: ow.Channel) -> None:
        base = torch.randn(64, 64)
        for tensor in (base.T, base[::2], base[3, 3], base.requires_grad_(), base[:0]):
            result = sent(a, b, a.share(tensor)).resolve()
            assert torch.equal(result, tensor.detach())
            assert not result.requires_grad

    def test_of_what_is_in_the_arena_in_another_layout(self, a: ow.Channel, b: ow.Channel) -> None:
        own = a.empty((64, 64), torch.float32).copy_(torch.randn(64, 64))
        for tensor in (own.T, own[:, ::2], own[::2]):
            assert torch.equal(sent(a, b, a.share(tensor)).resolve(), tensor)

    @pytest.mark.parametrize("num_bytes", [0, 1, 512, 2**16, MIB + 1])
    def test_of_tensors_of_any_size(self, a: ow.Channel, b: ow.Channel, num_bytes: int) -> None:
        assert is_pattern(sent(a, b, a.share(pattern(num_bytes))).resolve())
        assert held(a) == 0

    @pytest.mark.parametrize(
        ("tensor", "error", "path"),
        [
            (lambda: None, ow.ContractTypeError, ("tensor",)),
            (lambda: [1.0], ow.ContractTypeError, ("tensor",)),
            (lambda: torch.zeros(2, device="meta"), ow.ContractError, ("tensor",)),
            (lambda: torch.zeros(2, 2).to_sparse(), ow.ContractError, ("tensor",)),
        ],
        ids=["None", "list", "meta", "sparse"],
    )
    @pytest.mark.filterwarnings("ignore:Sparse invariant checks")
    def test_of_what_cannot_travel(
        self,
        a: ow.Channel,
        tensor: Callable[[], Any],
        error: type[Exception],
        path: tuple[str, ...],
    ) -> None:
        with pytest.raises(error) as caught:
            a.share(tensor())
        assert isinstance(caught.value, ow.ContractError)
        assert caught.value.problems[0].path == path


class TestResolving:
    def test_any_number_of_times_to_the_same_memory(self, a: ow.Channel, b: ow.Channel) -> None:
        """sglang#26304: the second time failed."""
        own = a.share(pattern(MIB))
        theirs = sent(a, b, own)
        for handle in (own, theirs):
            tensors = [handle.resolve() for _ in range(3)]
            assert len({tensor.data_ptr() for tensor in tensors}) == 1
            assert is_pattern(tensors[0])

    def test_without_a_copy(self, a: ow.Channel, b: ow.Channel) -> None:
        own = a.share(pattern(MIB))
        theirs = sent(a, b, own)
        own.resolve().fill_(5)
        assert theirs.resolve().unique().tolist() == [5]

    def test_what_it_resolved_to_outlives_the_handle(self, a: ow.Channel, b: ow.Channel) -> None:
        handle = a.share(pattern(MIB))
        theirs = sent(a, b, handle)
        del handle
        tensor = theirs.resolve()
        del theirs
        assert held(a) == MIB
        assert is_pattern(tensor)
        del tensor
        assert held(a) == 0

    def test_after_the_channel_is_closed(self, a: ow.Channel, b: ow.Channel) -> None:
        theirs = sent(a, b, a.share(pattern(MIB)))
        a.close()
        b.close()
        assert is_pattern(theirs.resolve())

    def test_never(self, a: ow.Channel, b: ow.Channel) -> None:
        """A handle that is dropped unresolved frees the memory: here, there, or on its way.

        vllm-omni#1905: that of an aborted request, which came late, did not.
        """
        handle = a.share(pattern(MIB))
        del handle
        assert held(a) == 0
        theirs = sent(a, b, a.share(pattern(MIB)))
        assert held(a) == MIB
        del theirs
        assert held(a) == 0
        a.send(request(a.share(pattern(MIB))))
        b.close()
        assert held(a) == 0

    def test_next_to_plain_tensors(self, a: ow.Channel, b: ow.Channel) -> None:
        a.send(request(a=a.share(pattern(MIB)), b=pattern(2**17, 1), c=a.share(pattern(99, 2))))
        message = b.recv()
        assert is_pattern(tensor_of(message, "a").resolve())
        assert is_pattern(tensor_of(message, "b"), 1)
        assert is_pattern(tensor_of(message, "c").resolve(), 2)

    def test_the_same_handle_twice_in_a_message(self, a: ow.Channel, b: ow.Channel) -> None:
        handle = a.share(pattern(MIB))
        a.send(request(a=handle, b=[handle, handle]))
        del handle
        message = b.recv()
        assert held(a) == MIB
        first, second = tensor_of(message, "a"), tensor_of(message, "b")[1]
        assert first.resolve().data_ptr() == second.resolve().data_ptr()


class TestSendingOn:
    def test_to_a_third_end_copies(self, a: ow.Channel, b: ow.Channel) -> None:
        further = ow.Channel.pair(arena_bytes=2 * MIB)
        theirs = sent(a, b, a.share(pattern(MIB)))
        third = sent(further[0], further[1], theirs)
        del theirs
        assert (held(a), held(further[0])) == (0, MIB)
        assert is_pattern(third.resolve())

    def test_back_copies(self, a: ow.Channel, b: ow.Channel) -> None:
        theirs = sent(a, b, a.share(pattern(MIB)))
        again = sent(b, a, theirs)
        del theirs
        assert (held(a), held(b)) == (0, MIB)
        assert is_pattern(again.resolve())

    def test_by_other_means_is_refused(self, a: ow.Channel, b: ow.Channel) -> None:
        """Only a channel can take it along."""
        own = a.share(pattern(MIB))
        for handle in (own, sent(a, b, own)):
            with pytest.raises(ow.EncodeError):
                ow.encode(request(handle))

    def test_one_that_came_by_other_means_cannot_be_resolved(
        self, a: ow.Channel, b: ow.Channel
    ) -> None:
        handle = ow.TensorHandle("arena", torch.uint8, (MIB,), b"omniwire:slot:0")
        with pytest.raises(ow.HandoffError):
            handle.resolve()
        a.send(request(handle, more=pattern(MIB)))
        with pytest.raises((ow.DecodeError, ow.HandoffError)):
            tensor_of(b.recv()).resolve()

    def test_larger_than_the_arena(self) -> None:
        """There is no other way for it, so nothing is sent."""
        a, b = ow.Channel.pair(arena_bytes=MIB, max_bytes=MIB)
        big, _ = ow.Channel.pair(arena_bytes=2 * MIB)
        handle = big.share(pattern(2 * MIB))
        with pytest.raises(ow.ArenaFull):
            a.send(request(handle))
        a.send(request(request_id="next"))
        assert b.recv().request_id == "next"


class TestAsEmbeddings:
    def test_in_params_and_in_the_transport_envelope(self, a: ow.Channel, b: ow.Channel) -> None:
        embeddings = torch.randn(300, 300)
        a.send(ow.MultimodalParams.from_embeddings(a.share(embeddings)))
        a.send(ow.DisaggregatedParams([a.share(embeddings)], [[1] * 8]))
        params, envelope = b.recv(), b.recv()
        assert torch.equal(params.multimodal_data["multimodal_embedding"].resolve(), embeddings)
        [handle] = envelope.multimodal_embedding_handles
        assert torch.equal(handle.resolve(), embeddings)
