"""`MultimodalItemPartition`: batched, packed, and what is neither."""

import numpy as np
import pytest
import torch

from omniwire.contracts import ContractTypeError, ContractValueError, MultimodalItemPartition

NOT_INTS = [True, False, 1.0, "1", None, b"1", np.int64(1), torch.tensor(1)]


def test_batched_along_the_first_axis_is_the_default() -> None:
    partition = MultimodalItemPartition()
    assert partition.item_lengths is None
    assert partition.axis == 0


def test_a_list_is_stored_as_a_tuple() -> None:
    lengths = [2, 0, 1]
    partition = MultimodalItemPartition(lengths, axis=3)
    lengths.append(9)
    assert partition.item_lengths == (2, 0, 1)
    assert type(partition.item_lengths) is tuple
    assert partition.axis == 3


def test_packed_may_have_no_items_and_empty_items() -> None:
    assert MultimodalItemPartition([]).item_lengths == ()
    assert MultimodalItemPartition((0,)).item_lengths == (0,)


def test_the_largest_numbers() -> None:
    partition = MultimodalItemPartition((2**63 - 1,), axis=2**63 - 1)
    assert partition.item_lengths == (2**63 - 1,) == (partition.axis,)


@pytest.mark.parametrize("lengths", ["12", 5, range(3), np.array([1, 2]), torch.tensor([1])])
def test_lengths_that_are_no_tuple_or_list(refusal, lengths: object) -> None:
    assert refusal(MultimodalItemPartition, lengths) == (
        ContractTypeError,
        [(("item_lengths",), "type")],
    )


@pytest.mark.parametrize("length", NOT_INTS)
def test_the_last_of_a_thousand_lengths_is_no_int(refusal, length: object) -> None:
    assert refusal(MultimodalItemPartition, [*[1] * 999, length]) == (
        ContractTypeError,
        [(("item_lengths", 999), "type")],
    )


def test_every_length_is_judged(refusal) -> None:
    assert refusal(MultimodalItemPartition, [-1, 0, 2**63, 1, "1"]) == (
        ContractTypeError,
        [
            (("item_lengths", 0), "range"),
            (("item_lengths", 2), "range"),
            (("item_lengths", 4), "type"),
        ],
    )
    assert refusal(MultimodalItemPartition, [*[1] * 999, -1]) == (
        ContractValueError,
        [(("item_lengths", 999), "range")],
    )


@pytest.mark.parametrize("axis", NOT_INTS)
def test_an_axis_that_is_no_int(refusal, axis: object) -> None:
    assert refusal(MultimodalItemPartition, None, axis) == (
        ContractTypeError,
        [(("axis",), "type")],
    )


def test_an_axis_from_the_end(refusal) -> None:
    assert refusal(MultimodalItemPartition, None, -1) == (
        ContractValueError,
        [(("axis",), "range")],
    )


def test_both_fields_are_judged_at_once(refusal) -> None:
    assert refusal(MultimodalItemPartition, [1, -1], True) == (
        ContractTypeError,
        [(("item_lengths", 1), "range"), (("axis",), "type")],
    )
