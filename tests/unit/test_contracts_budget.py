"""`EncoderCapability` and `EncoderBudget`."""

import numpy as np
import pytest

from omniwire.contracts import (
    ContractTypeError,
    ContractValueError,
    EncoderBudget,
    EncoderCapability,
)

NOT_INTS = [True, 1.0, "1", np.int64(1)]
BOUNDS = ["max_encoder_tokens", "max_output_bytes", "output_row_bytes"]


def budget(**fields: object) -> EncoderBudget:
    given = {"max_encoder_tokens": 1, "max_output_bytes": 1, "output_row_bytes": 1, **fields}
    return EncoderBudget(**given)


def test_defaults() -> None:
    capability = EncoderCapability()
    assert (capability.item_scheduling, capability.custom_selection) == (True, False)
    assert capability.hidden_size is None
    assert [getattr(EncoderBudget(), name) for name in BOUNDS] == [None] * 3


@pytest.mark.parametrize("name", ["item_scheduling", "custom_selection"])
@pytest.mark.parametrize("value", [None, 1, "yes", np.True_])
def test_a_flag_is_a_bool(refusal, name: str, value: object) -> None:
    assert refusal(EncoderCapability, **{name: value}) == (ContractTypeError, [((name,), "type")])


@pytest.mark.parametrize("size", NOT_INTS)
def test_a_hidden_size_that_is_no_int(refusal, size: object) -> None:
    assert refusal(EncoderCapability, hidden_size=size) == (
        ContractTypeError,
        [(("hidden_size",), "type")],
    )


@pytest.mark.parametrize("size", [0, -1, 2**63])
def test_a_hidden_size_out_of_range(refusal, size: int) -> None:
    assert refusal(EncoderCapability, hidden_size=size) == (
        ContractValueError,
        [(("hidden_size",), "range")],
    )


def test_the_smallest_sizes() -> None:
    assert EncoderCapability(hidden_size=1).hidden_size == 1
    assert [getattr(budget(), name) for name in BOUNDS] == [1, 1, 1]


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("value", NOT_INTS)
def test_a_bound_that_is_no_int(refusal, name: str, value: object) -> None:
    assert refusal(budget, **{name: value}) == (ContractTypeError, [((name,), "type")])


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("value", [0, -1, 2**63])
def test_a_bound_out_of_range(refusal, name: str, value: int) -> None:
    assert refusal(budget, **{name: value}) == (ContractValueError, [((name,), "range")])


def test_output_bytes_need_the_bytes_of_a_row(refusal) -> None:
    assert refusal(EncoderBudget, max_output_bytes=64) == (
        ContractValueError,
        [(("output_row_bytes",), "missing")],
    )
    assert EncoderBudget(output_row_bytes=64).max_output_bytes is None
    assert EncoderBudget(max_encoder_tokens=9).max_encoder_tokens == 9


def test_every_problem_is_reported(refusal) -> None:
    assert refusal(EncoderCapability, None, 0, True) == (
        ContractTypeError,
        [
            (("item_scheduling",), "type"),
            (("custom_selection",), "type"),
            (("hidden_size",), "type"),
        ],
    )
    assert refusal(EncoderBudget, 0, True) == (
        ContractTypeError,
        [
            (("max_encoder_tokens",), "range"),
            (("max_output_bytes",), "type"),
            (("output_row_bytes",), "missing"),
        ],
    )
