"""The reference pages say what the docstrings say, and the docs link to pages that exist."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def load_generator() -> ModuleType:
    path = DOCS / "generate_reference.py"
    spec = importlib.util.spec_from_file_location("generate_reference", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["contracts", "errors"])
def test_reference_page_is_what_the_docstrings_make(page: str) -> None:
    made = getattr(load_generator(), f"{page}_page")()
    written = (DOCS / "reference" / f"{page}.md").read_text()
    assert made == written, "run docs/generate_reference.py"


def test_every_field_of_every_contract_is_documented() -> None:
    """A field that no docstring mentions would be missing from the page's tables."""
    import attrs

    import omniwire.contracts

    page = (DOCS / "reference" / "contracts.md").read_text()
    for name in omniwire.contracts.__all__:
        kind = getattr(omniwire.contracts, name)
        if isinstance(kind, type) and attrs.has(kind) and name not in {"Concat", "Stack"}:
            entry = page.split(f"\n## {name}\n")[1].split("\n## ")[0]
            for field in attrs.fields(kind):
                if not field.name.startswith("_"):
                    assert f"| `{field.name}` |" in entry, f"{name}.{field.name}"


def test_links_between_pages_lead_somewhere() -> None:
    pages = [DOCS.parent / "README.md", *DOCS.rglob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
