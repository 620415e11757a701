"""Laws that hold for every contract: construction, equality, hashes, immutability, pickling."""

import copy
import pickle
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as hst

from omniwire.contracts import FrozenMapping, ItemRef, content_hash
from omniwire.contracts.base import Contract
from omniwire.testing import strategies as st

MODEST = settings(max_examples=20)
PROTOCOLS = range(2, pickle.HIGHEST_PROTOCOL + 1)


def thawed(value):
    """The value with lists for tuples and dictionaries for frozen mappings."""
    if type(value) is tuple:
        return [thawed(part) for part in value]
    if isinstance(value, Mapping):
        return {key: thawed(part) for key, part in value.items()}
    return value


def tupled(value):
    """The value with dictionaries for frozen mappings; tuples stay."""
    if type(value) is tuple:
        return tuple(map(tupled, value))
    if isinstance(value, Mapping):
        return {key: tupled(part) for key, part in value.items()}
    return value


def is_hashable(value):
    """Whether there is a hash, by the rule: only what holds no tensor or array has one."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return False
    if isinstance(value, FrozenMapping):
        return all(map(is_hashable, value.values()))
    if type(value) is tuple:
        return all(map(is_hashable, value))
    return type(value).__hash__ is not None


@MODEST
@given(data=hst.data())
def test_from_lists_and_from_tuples_is_the_same(data, contracts, arguments_of):
    contract = data.draw(contracts)
    arguments = arguments_of(contract)
    from_lists = type(contract)(**{name: thawed(part) for name, part in arguments.items()})
    from_tuples = type(contract)(**{name: tupled(part) for name, part in arguments.items()})
    assert from_lists == from_tuples == contract
    assert from_lists == contract


@given(record=st.item_metadata())
def test_references_may_be_given_as_pairs(record, arguments_of):
    arguments = arguments_of(record)
    arguments["item_refs"] = [list(ref) for ref in record.item_refs]
    assert type(record)(**arguments) == record
    arguments["item_refs"] = [tuple(ref) for ref in record.item_refs]
    built = type(record)(**arguments)
    assert built == record
    assert {type(ref) for ref in built.item_refs} <= {ItemRef}


@MODEST
@given(data=hst.data())
def test_equality_is_an_equivalence(data, contracts, rebuild):
    first = data.draw(contracts)
    second = rebuild(first)
    third = rebuild(second)
    other = data.draw(contracts)
    assert (first == first) is True  # noqa: PLR0124  # reflexive, also with NaNs inside
    assert (first == second) is True
    assert (second == first) is True
    assert (second == third) is True
    assert (first == third) is True
    assert (first != second) is False
    assert (first == other) is (other == first)
    assert (first == other) is (second == other)
    assert (first != other) is not (first == other)


@MODEST
@given(data=hst.data())
def test_nothing_else_equals_a_contract(data, contracts):
    contract = data.draw(contracts)
    for other in (None, 0, "", object(), np.zeros(2), torch.zeros(()), [contract]):
        assert (contract == other) is False
        assert (contract != other) is True


@MODEST
@given(data=hst.data())
def test_hashes_agree_with_equality(data, contracts, rebuild):
    first = data.draw(contracts)
    if is_hashable(first):
        assert hash(first) == hash(rebuild(first))
        assert {first: 1}[rebuild(first)] == 1
    else:
        with pytest.raises(TypeError):
            hash(first)


@MODEST
@given(data=hst.data())
def test_content_hashes_agree_with_equality(data, contracts, rebuild):
    first, other = data.draw(contracts), data.draw(contracts)
    assert content_hash(first) == content_hash(rebuild(first))
    if first == other:
        assert content_hash(first) == content_hash(other)


@given(
    data=hst.data(),
    small=hst.sampled_from(
        [
            st.item_refs(),
            st.item_partitions(),
            st.item_metadata(modalities=["image"], max_items=1),
            st.token_ids(max_size=2),
            st.tensors(shapes=hst.sampled_from([(1,), (1, 1), (0,), (0, 1)])),
            st.arrays(shapes=hst.sampled_from([(1,), (1, 1), (0,), (0, 1)])),
            st.accumulation_rules(),
            hst.booleans() | hst.integers(0, 1) | hst.sampled_from([0.0, -0.0, 1.0, "1", b"1"]),
        ]
    ),
)
def test_equal_content_hashes_mean_equal_values(data, small):
    """Values so small that equal ones are drawn, and nearly equal ones."""
    one, other = data.draw(small), data.draw(small)
    same = FrozenMapping({"value": one}) == FrozenMapping({"value": other})
    assert (content_hash(one) == content_hash(other)) is same


@MODEST
@given(data=hst.data())
def test_every_attempt_to_change_a_contract_raises(data, contracts):
    contract = data.draw(contracts)
    before = content_hash(contract)
    names = ["new", "__dict__", "__class__", *dir(type(contract))]
    for name in names:
        with pytest.raises((AttributeError, TypeError)):
            setattr(contract, name, None)
        with pytest.raises((AttributeError, TypeError)):
            delattr(contract, name)
    for key in ("image", 0, slice(0, 1)):
        with pytest.raises(TypeError):
            contract[key] = 1
        with pytest.raises(TypeError):
            del contract[key]
    for method in ("append", "clear", "extend", "pop", "popitem", "setdefault", "sort", "update"):
        assert not hasattr(contract, method)
    assert not hasattr(contract, "__dict__")
    assert content_hash(contract) == before


@MODEST
@given(data=hst.data())
def test_what_a_contract_holds_cannot_be_changed_either(data, contracts, arguments_of):
    """Tensors and arrays apart, which are read-only by contract only."""
    legal = (torch.Tensor, np.ndarray, torch.dtype, str, int, float, bool, bytes, type(None))

    def check(value):
        if isinstance(value, FrozenMapping):
            for part in value.values():
                check(part)
        elif type(value) is tuple:
            for part in value:
                check(part)
        elif isinstance(value, Contract):
            for part in arguments_of(value).values():
                check(part)
        elif not isinstance(value, BaseException):
            assert type(value) in legal or hasattr(type(value), "__members__")

    check(data.draw(contracts))


@MODEST
@given(data=hst.data())
def test_inputs_that_change_later_do_not_change_a_contract(data, contracts, arguments_of):
    contract = data.draw(contracts)
    arguments = {name: thawed(part) for name, part in arguments_of(contract).items()}
    built = type(contract)(**arguments)

    def spoil(value):
        if isinstance(value, list):
            for part in value:
                spoil(part)
            value.append(value)
        elif type(value) is dict:
            for part in value.values():
                spoil(part)
            value["spoiled"] = value

    for argument in arguments.values():
        spoil(argument)
    assert built == contract


@MODEST
@given(data=hst.data())
def test_the_repr_shows_no_tensor_contents(data, contracts):
    contract = data.draw(contracts)
    text = repr(contract)
    assert type(contract).__name__ in text
    assert "tensor(" not in text
    assert "array(" not in text


@MODEST
@given(data=hst.data(), protocol=hst.sampled_from(PROTOCOLS))
def test_pickling_round_trips(data, protocol, sendable_contracts):
    contract = data.draw(sendable_contracts)
    restored = pickle.loads(pickle.dumps(contract, protocol))
    assert type(restored) is type(contract)
    assert restored == contract
    assert copy.deepcopy(contract) == contract


@MODEST
@given(data=hst.data())
def test_pickling_out_of_band_round_trips(data, sendable_contracts):
    contract = data.draw(sendable_contracts)
    buffers = []
    pickled = pickle.dumps(contract, 5, buffer_callback=buffers.append)
    assert pickle.loads(pickled, buffers=buffers) == contract


@settings(max_examples=100)
@given(error=st.request_outputs().map(lambda output: list(output.errors.values())))
def test_errors_pickle(error):
    restored = pickle.loads(pickle.dumps(error))
    assert list(map(type, restored)) == list(map(type, error))
    assert list(map(str, restored)) == list(map(str, error))
    assert [one.__reduce__()[1] for one in restored] == [one.__reduce__()[1] for one in error]
