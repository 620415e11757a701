"""What Hypothesis knows of the contracts, in a program that only imports the two."""

import subprocess
import sys
import textwrap
from importlib.metadata import entry_points

import pytest

REGISTER = """
import sys
from omniwire.testing.entry_point import register_strategies
register_strategies()
register_strategies()
"""


def run(program: str) -> None:
    """Run a program in a new interpreter; it must succeed."""
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr


def test_the_installed_package_names_the_entry_point():
    found = entry_points(group="hypothesis", name="omniwire")
    assert [entry.value for entry in found] == ["omniwire.testing.entry_point:register_strategies"]


def test_importing_hypothesis_does_not_import_torch():
    run("import hypothesis, sys; assert 'torch' not in sys.modules")


def test_registering_imports_neither_torch_nor_the_contracts():
    run(
        REGISTER
        + """
import hypothesis.strategies
assert "torch" not in sys.modules
assert "omniwire.contracts" not in sys.modules
import omniwire.testing
assert "torch" not in sys.modules
"""
    )


USE = """
from hypothesis import given, strategies as st
from omniwire.contracts import MultimodalItemMetadata, ProcessedRequest
assert "omniwire.testing.strategies" not in sys.modules
class Mine:
    def __init__(self, record: MultimodalItemMetadata, request: ProcessedRequest | None):
        self.record, self.request = record, request
@given(record=st.from_type(MultimodalItemMetadata), mine=st.builds(Mine), request=...)
def check(record, mine, request: ProcessedRequest):
    assert type(record) is type(mine.record) is MultimodalItemMetadata
    assert type(mine.request) in (ProcessedRequest, type(None))
    assert type(request) is ProcessedRequest
check()
"""


def test_the_contracts_are_known_by_type_when_they_are_imported_afterwards():
    run(REGISTER + USE)


def test_the_contracts_are_known_by_type_when_they_were_imported_before():
    run("import omniwire.contracts" + REGISTER + USE)


def test_looking_for_the_contracts_without_importing_them_loses_nothing():
    run(
        REGISTER
        + """
import importlib.util
spec = importlib.util.find_spec("omniwire.contracts")
assert spec.loader.get_source("omniwire.contracts")
assert "omniwire.contracts" not in sys.modules
"""
        + USE
    )


def test_the_import_leaves_no_trace_of_the_hook():
    run(
        REGISTER
        + """
before = len(sys.meta_path)
import omniwire.contracts as contracts
assert len(sys.meta_path) == before - 1
assert type(contracts.__spec__.loader).__module__.startswith(("_frozen_importlib", "importlib"))
assert contracts.__loader__ is contracts.__spec__.loader
import inspect
assert inspect.getsource(contracts)
"""
    )


@pytest.fixture
def registered():
    """Registration in this process."""
    from omniwire.testing.entry_point import register_strategies

    register_strategies()


@pytest.mark.usefixtures("registered")
def test_every_contract_is_known_by_type():
    from hypothesis import given, settings
    from hypothesis import strategies as hst

    from omniwire import contracts
    from omniwire.contracts.base import Contract

    kinds = [
        kind
        for kind in vars(contracts).values()
        if isinstance(kind, type) and issubclass(kind, Contract | contracts.FrozenMapping)
    ]
    assert len(kinds) == 21
    for kind in kinds:

        @settings(max_examples=5, database=None)
        @given(hst.from_type(kind))
        def check(value):
            assert type(value) is kind  # noqa: B023  # called before the next round

        check()


@pytest.mark.usefixtures("registered")
def test_the_types_of_other_programs_are_left_alone():
    """Nobody who asks for a sequence or a mapping is given one of ours."""
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from hypothesis import given, settings
    from hypothesis import strategies as hst

    for asked in (Sequence[str], Sequence[int], Mapping[str, int], Iterable[int], tuple, Hashable):

        @settings(max_examples=50, database=None)
        @given(hst.from_type(asked))
        def check(value):
            assert not type(value).__module__.startswith("omniwire")

        check()
