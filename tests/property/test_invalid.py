"""What must be refused is refused, with exactly the problem that its defect causes."""

import pickle

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as hst

from omniwire.contracts import (
    AdmissionError,
    ContractError,
    ContractTypeError,
    ContractValueError,
    check_admission,
)
from omniwire.contracts.errors import PROBLEM_CODES
from omniwire.testing import strategies as st

INVALID = [name for name in st.__all__ if name.startswith(("invalid_", "requests_refused_by_"))]


@pytest.mark.parametrize("strategy", INVALID)
@settings(max_examples=60)
@given(data=hst.data())
def test_there_is_exactly_the_problem_of_the_defect(data, strategy):
    invalid = data.draw(getattr(st, strategy)())
    with pytest.raises(ContractError) as caught:
        invalid.construct()
    error = caught.value
    assert [(problem.path, problem.code) for problem in error.problems] == [
        (invalid.path, invalid.code)
    ]
    assert invalid.code in PROBLEM_CODES
    if invalid.build is check_admission:
        assert type(error) is AdmissionError
        assert error.request_id == invalid.arguments["request"].request_id
    else:
        expected = ContractTypeError if invalid.code == "type" else ContractValueError
        assert type(error) is expected
    # Plain text, which holds no part of the payload and travels.
    (problem,) = error.problems
    assert {type(part) for part in problem.path} <= {str, int}
    assert {type(problem.code), type(problem.expected), type(problem.got)} == {str}
    restored = pickle.loads(pickle.dumps(error))
    assert type(restored) is type(error)
    assert restored.problems == error.problems
    assert str(restored) == str(error)


def test_every_contract_has_invalid_variants():
    built = {name.removeprefix("invalid_") for name in INVALID}
    strategies = {name for name in st.__all__ if name.islower()}
    valid = {name for name in strategies if not name.startswith(("invalid_", "requests_refused"))}
    not_contracts = {
        "accumulation_rules",  # with output_specs
        "arrays",  # with payloads, as tensors are
        "concats",
        "payload_values",
        "problems",  # which check nothing, as errors do
        "stacks",
        "tensors",
        "wire_errors",
    }
    assert valid - not_contracts <= built


def test_every_code_of_a_construction_is_among_them():
    """`index` alone is missing: it is a code of calls, not of what is built."""
    found = set()
    for name in INVALID:

        @settings(max_examples=200, derandomize=True, database=None, phases=[Phase.generate])
        @given(getattr(st, name)())
        def collect(invalid):
            found.add(invalid.code)

        collect()
    assert found == PROBLEM_CODES.keys() - {"index"}
