"""The encoder cache: bytes, leases, eviction, all-or-nothing commits."""

import pytest
import torch

from omniwire.contracts import ContractTypeError, ContractValueError
from omniwire.runtime import TensorLRUCache


def rows(count: int) -> torch.Tensor:
    """`count` rows of 16 bytes."""
    return torch.full((count, 4), float(count))


def put(cache: TensorLRUCache, key: str, count: int) -> None:
    """Commit an entry and give its lease up."""
    assert cache.reserve(key, 16 * count)
    cache.commit({key: rows(count)})[key].release()


def test_a_miss_is_reserved_committed_and_then_hit() -> None:
    cache = TensorLRUCache(64)
    assert cache.acquire("a") is None
    assert cache.reserve("a", 32)
    assert (cache.is_reserved("a"), "a" in cache, cache.used_bytes) == (True, False, 32)
    lease = cache.commit({"a": rows(2)})["a"]
    assert torch.equal(lease.tensor, rows(2))
    hit = cache.acquire("a")
    assert hit is not None
    assert hit.tensor is lease.tensor
    assert (cache.is_reserved("a"), len(cache), cache.used_bytes) == (False, 1, 32)


def test_identical_items_are_reserved_once() -> None:
    cache = TensorLRUCache(64)
    cache.reserve("a", 16)
    for _ in range(2):
        with pytest.raises(ContractValueError) as caught:
            cache.reserve("a", 16)
        assert [(p.path, p.code) for p in caught.value.problems] == [(("key",), "duplicate")]
        if cache.is_reserved("a"):
            cache.commit({"a": rows(1)})


def test_the_least_recently_used_entry_makes_room() -> None:
    cache = TensorLRUCache(48)
    for key in "abc":
        put(cache, key, 1)
    hit = cache.acquire("a")
    assert hit is not None
    hit.release()
    put(cache, "d", 1)
    assert [key in cache for key in "abcd"] == [True, False, True, True]
    assert cache.used_bytes == cache.max_bytes


def test_leased_entries_and_reservations_are_never_evicted() -> None:
    cache = TensorLRUCache(48)
    put(cache, "a", 1)
    lease = cache.acquire("a")
    assert lease is not None
    assert cache.reserve("b", 16)
    assert cache.reserve("c", 16)
    assert not cache.reserve("d", 16)
    assert not cache.reserve("e", 64)
    lease.release()
    assert cache.reserve("d", 16)
    assert "a" not in cache


def test_what_cannot_fit_evicts_nothing() -> None:
    cache = TensorLRUCache(48)
    put(cache, "a", 1)
    assert not cache.reserve("b", 64)
    assert "a" in cache


def test_a_second_release_gives_nothing_up() -> None:
    cache = TensorLRUCache(16)
    put(cache, "a", 1)
    first, second = cache.acquire("a"), cache.acquire("a")
    assert first is not None
    assert second is not None
    first.release()
    first.release()
    assert not cache.reserve("b", 16)
    second.release()
    assert cache.reserve("b", 16)


def test_one_wrong_output_commits_none_and_can_be_retried() -> None:
    cache = TensorLRUCache(64)
    cache.reserve("a", 16)
    cache.reserve("b", 32)
    with pytest.raises(ContractValueError) as caught:
        cache.commit({"a": rows(1), "b": rows(1), "c": rows(1)})
    assert [(p.path, p.code) for p in caught.value.problems] == [
        (("outputs", "b"), "count"),
        (("outputs", "c"), "missing"),
    ]
    assert (len(cache), cache.used_bytes) == (0, 48)
    with pytest.raises(ContractTypeError):
        cache.commit({"a": None})  # type: ignore[dict-item]  # what is tested
    assert set(cache.commit({"a": rows(1), "b": rows(2)})) == {"a", "b"}


def test_a_failed_encode_gives_its_room_back() -> None:
    cache = TensorLRUCache(16)
    cache.reserve("a", 16)
    cache.cancel("a")
    cache.cancel("a")
    assert cache.used_bytes == 0
    assert cache.reserve("b", 16)


def test_an_entry_owns_its_bytes() -> None:
    """vllm-omni#3164: neither the batch nor an arena slot stays, nor do later writes show."""
    cache = TensorLRUCache(64)
    batch = torch.zeros(100, 4)
    cache.reserve("a", 32)
    lease = cache.commit({"a": batch[3:5]})["a"]
    batch.fill_(1)
    assert lease.tensor.untyped_storage().nbytes() == 32
    assert torch.equal(lease.tensor, torch.zeros(2, 4))


@pytest.mark.parametrize("max_bytes", [-1, True, 1.0, None])
def test_a_bound_is_a_number_of_bytes(max_bytes: object) -> None:
    with pytest.raises((ContractValueError, ContractTypeError)) as caught:
        TensorLRUCache(max_bytes)  # type: ignore[arg-type]  # what is tested
    assert caught.value.problems[0].path == ("max_bytes",)


def test_a_reservation_is_a_number_of_bytes() -> None:
    with pytest.raises(ContractValueError) as caught:
        TensorLRUCache(16).reserve("a", -1)
    assert [(p.path, p.code) for p in caught.value.problems] == [(("num_bytes",), "range")]
