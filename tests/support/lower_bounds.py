"""The oldest versions that pyproject.toml allows, as constraints for pip: `make bounds`.

Run as a script it prints one `name==version` for each requirement of the package and of the
extras meant for users; `dev` and `docs` are for work on omniwire itself and have no bounds.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
UNBOUNDED_EXTRAS = frozenset(("dev", "docs"))
REQUIREMENT = re.compile(r"(?P<name>[a-z0-9-]+)>=(?P<version>[0-9]+(\.[0-9]+)*)")


def requirements() -> dict[str, list[str]]:
    """The requirements of each extra for users, and under "" those of the package itself."""
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    extras = project["optional-dependencies"]
    return {
        "": project["dependencies"],
        **{name: listed for name, listed in extras.items() if name not in UNBOUNDED_EXTRAS},
    }


def lower_bounds() -> dict[str, str]:
    """The lower bound of each distribution.

    Raises:
        ValueError: A requirement is not of the form `name>=version`, or two differ in the bound.
    """
    bounds: dict[str, str] = {}
    for name, version in _parsed():
        if bounds.setdefault(name, version) != version:
            raise ValueError(f"{name}: expected one lower bound, got {bounds[name]} and {version}")
    return bounds


def _parsed() -> Iterator[tuple[str, str]]:
    for listed in requirements().values():
        for requirement in listed:
            match = REQUIREMENT.fullmatch(requirement)
            if match is None:
                raise ValueError(f"expected name>=version, got {requirement}")
            yield match["name"], match["version"]


if __name__ == "__main__":
    for name, version in sorted(lower_bounds().items()):
        sys.stdout.write(f"{name}=={version}\n")
