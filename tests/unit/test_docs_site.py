"""What a strict build of the site does not check: navigation, links out of it, names in text."""

import importlib
import inspect
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import reduce
from pathlib import Path

import pytest

import omniwire as ow
from omniwire.commands import omniwire as command_line

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "examples" not in page.parts)
TEXTS = [ROOT / "README.md", *PAGES]

in_each = pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))


def nav_files(entries: object) -> Iterator[str]:
    if isinstance(entries, str):
        yield entries
    elif isinstance(entries, list):
        for entry in entries:
            yield from nav_files(entry)
    elif isinstance(entries, dict):
        yield from nav_files(list(entries.values()))


PROJECT = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]


def test_every_page_is_in_the_navigation_once() -> None:
    listed = Counter(nav_files(PROJECT["nav"]))
    assert listed == Counter(str(page.relative_to(DOCS)) for page in PAGES)


def prose(page: Path) -> str:
    return re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """As both the site and the usual forges make them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    slugs = {re.sub(r"[^\w\s-]", "", text).strip().lower().replace(" ", "-") for text in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)"', prose(page)))


@in_each
def test_links_lead_to_pages_and_headings(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", prose(page)):
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.exists(), target
        if page.is_relative_to(DOCS):
            assert linked.is_relative_to(DOCS), f"{target} is not part of the site"
        if anchor:
            assert anchor in anchors(linked), target


def test_no_page_needs_a_network() -> None:
    """Pictures, styles and scripts are files beside the pages, and fonts are the reader's own."""
    assert PROJECT["theme"]["font"] is False
    for asset in [*PROJECT["extra_css"], *PROJECT["extra"]["polyfills"]]:
        assert (DOCS / asset).is_file()
    for page in TEXTS:
        assert not re.search(r"!\[[^\]]*\]\(https?:|<(?:img|script|link|iframe)\b", prose(page))


@in_each
def test_names_of_the_facade_exist(page: Path) -> None:
    for name, member in re.findall(r"\bow\.([A-Za-z_]\w*)(?:\.([A-Za-z_]\w*))?", page.read_text()):
        value = getattr(ow, name)
        assert not member or hasattr(value, member), f"ow.{name}.{member}"


@in_each
def test_members_of_classes_exist(page: Path) -> None:
    for name, member in re.findall(r"`([A-Z]\w+)\.([a-z_]\w*)", page.read_text()):
        kind = getattr(ow, name, None)
        known = [] if kind is None else [*dir(kind), *inspect.signature(kind).parameters]
        assert kind is None or member in known, f"{name}.{member}"


@in_each
def test_names_of_modules_exist(page: Path) -> None:
    for path in re.findall(r"(?<![\w./'-])omniwire((?:\.[A-Za-z_]\w*)+)", page.read_text()):
        names = path.removeprefix(".").split(".")
        assert resolves(names), f"omniwire{path}"


def resolves(names: list[str]) -> bool:
    """Whether a module, or an attribute of one, has this path in the package."""
    for depth in range(len(names), -1, -1):
        try:
            module = importlib.import_module(".".join(["omniwire", *names[:depth]]))
        except ModuleNotFoundError:
            continue
        try:
            reduce(getattr, names[depth:], module)
        except AttributeError:
            continue
        return True
    return False


@in_each
def test_commands_exist(page: Path) -> None:
    commands = command_line.list_commands(None)  # type: ignore[arg-type]  # our own list needs no context
    fenced = re.findall(r"^ *```.*?^ *```", page.read_text(), re.DOTALL | re.MULTILINE)
    typed = re.findall(r"^(?:\$ )?omniwire ([a-z]+)", "\n".join(fenced), re.MULTILINE)
    typed += re.findall(r"`omniwire ([a-z]+)", prose(page))
    assert set(typed) <= set(commands)
