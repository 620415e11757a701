"""The reference pages say what the docstrings say, about every public name and every code."""

import importlib
import importlib.util
import inspect
from pathlib import Path
from types import ModuleType

import attrs
import pytest

import omniwire.contracts
from omniwire.contracts import errors

DOCS = Path(__file__).parents[2] / "docs"


def load_generator() -> ModuleType:
    path = DOCS / "generate_reference.py"
    spec = importlib.util.spec_from_file_location("generate_reference", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATOR = load_generator()


def written(page: str) -> str:
    return (DOCS / "reference" / f"{page}.md").read_text()


@pytest.mark.parametrize("page", GENERATOR.PAGES)
def test_page_is_what_the_docstrings_make(page: str) -> None:
    assert GENERATOR.page(page) == written(page), "run docs/generate_reference.py"


@pytest.mark.parametrize("page", GENERATOR.LISTINGS)
def test_every_public_name_has_an_entry_and_a_docstring(page: str) -> None:
    module = importlib.import_module(GENERATOR.LISTINGS[page].module)
    entries = written(page) + (written("errors") if page == "contracts" else "")
    for name in module.__all__:
        entry = entries.split(f"\n## {name}\n")[1].split("\n## ")[0]
        is_documented = len(entry.strip().split("\n\n")) > 1
        assert is_documented or not callable(getattr(module, name)), f"{name} has no docstring"


def test_every_public_method_of_a_contract_has_a_docstring() -> None:
    """A method without one would be missing from the page."""
    for name in omniwire.contracts.__all__:
        kind = getattr(omniwire.contracts, name)
        if isinstance(kind, type):
            for member in vars(kind):
                if not member.startswith("_") and callable(getattr(kind, member)):
                    assert inspect.getdoc(getattr(kind, member)), f"{name}.{member}"


def test_every_field_of_every_contract_is_documented() -> None:
    """A field that no docstring mentions would be missing from the page's tables."""
    page = written("contracts")
    for name in omniwire.contracts.__all__:
        kind = getattr(omniwire.contracts, name)
        if isinstance(kind, type) and attrs.has(kind) and name not in {"Concat", "Stack"}:
            entry = page.split(f"\n## {name}\n")[1].split("\n## ")[0]
            for field in attrs.fields(kind):
                if not field.name.startswith("_"):
                    assert f"| `{field.name}` |" in entry, f"{name}.{field.name}"


@pytest.mark.parametrize(
    ("prefix", "codes"), [("problem", errors.PROBLEM_CODES), ("decode", errors.DECODE_CODES)]
)
def test_every_code_has_an_anchor_a_meaning_and_a_cause(prefix: str, codes: dict[str, str]) -> None:
    rows = {
        line.split('"')[1]: [cell.strip() for cell in line.split(" | ")]
        for line in written("errors").splitlines()
        if line.startswith(f'| <a id="{prefix}-')
    }
    assert list(rows) == [f"{prefix}-{code}" for code in codes]
    for (_, meaning, cause), text in zip(rows.values(), codes.values(), strict=True):
        assert meaning == text
        assert len(cause) > len("| x")


def test_every_error_that_has_no_code_has_a_cause() -> None:
    """What is printed of it leads to its class, not to a code."""
    bases = (errors.ContractError, errors.EncodeError, errors.DecodeError)
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    for kind in classes:
        if issubclass(kind, errors.OmniwireError) and not issubclass(kind, bases):
            entry = written("errors").split(f"\n## {kind.__name__}\n")[1].split("\n## ")[0]
            assert kind is errors.OmniwireError or "\nUsual cause: " in entry, kind
