"""Write docs/reference/contracts.md and errors.md from the package's own docstrings.

Run it after a docstring changed: `.venv/bin/python docs/generate_reference.py`. A test
compares the pages with what this script makes of the installed package.
"""

import enum
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs
import griffe

import omniwire.contracts
from omniwire.contracts import errors

REFERENCE = Path(__file__).parent / "reference"


def contracts_page() -> str:
    """The fields, rules, errors and methods of every contract."""
    lines = [
        "# Contracts",
        "",
        "Generated from the docstrings by docs/generate_reference.py; do not edit.",
        "",
        "Every class below is immutable, checks all of its parts when it is built, compares by",
        "structure (tensors by dtype, shape and bits) and pickles. Fields can be given by",
        "position or by name. The codes of their errors are listed in [errors](errors.md).",
    ]
    names = [name for name in omniwire.contracts.__all__ if not _is_error(name)]
    for name in names:
        lines += ["", *_entry(name)]
    return "\n".join(lines) + "\n"


def errors_page() -> str:
    """The error classes and the closed sets of their codes."""
    lines = [
        "# Errors",
        "",
        "Generated from the docstrings by docs/generate_reference.py; do not edit.",
        "",
        "Every error has one sentence shape, `Subject: expected X, got Y - at $.path`, one line",
        "a problem. Paths start at the object that was checked. Values are described (`bf16[729,",
        "1152]`), never printed. All errors pickle.",
        "",
        "## Codes of a `Problem`",
        "",
        "`ContractError.problems[i].code` and `EncodeError.code` are one of:",
        "",
        *_code_table("problem", errors.PROBLEM_CODES),
        "",
        "## Codes of a `DecodeError`",
        "",
        *_code_table("decode", errors.DECODE_CODES),
    ]
    for name in (name for name in omniwire.contracts.__all__ if _is_error(name)):
        lines += ["", *_entry(name)]
    return "\n".join(lines) + "\n"


def _is_error(name: str) -> bool:
    value = getattr(omniwire.contracts, name)
    return name == "Problem" or (isinstance(value, type) and issubclass(value, Exception))


def _code_table(prefix: str, codes: Mapping[str, str]) -> list[str]:
    return [
        "| code | meaning |",
        "| --- | --- |",
        *(f'| <a id="{prefix}-{code}"></a>`{code}` | {text} |' for code, text in codes.items()),
    ]


def _entry(name: str) -> Iterator[str]:
    """One public name: signature, description, fields or parameters, errors, methods."""
    value = getattr(omniwire.contracts, name)
    yield f"## {name}"
    yield ""
    if isinstance(value, type) and issubclass(value, Exception):
        bases = ", ".join(base.__name__ for base in value.__bases__)
        yield f"`{name}({bases})`"
    elif isinstance(value, type) and issubclass(value, enum.Enum):
        yield f"One of {', '.join(f'`{member}`' for member in value)}."
    else:
        yield f"`{name}{_signature(value)}`"
    yield from _sections(value)
    if isinstance(value, type):
        for member_name, member in _public_methods(value):
            yield ""
            yield f"### {name}.{member_name}"
            yield ""
            if isinstance(member, property):
                yield "A property."
                yield from _sections(member)
            else:
                bound = getattr(value, member_name)
                yield f"`{member_name}{_signature(bound)}`"
                yield from _sections(bound)


def _public_methods(kind: type) -> Iterator[tuple[str, object]]:
    for name, member in vars(kind).items():
        callable_member = inspect.isfunction(member) or isinstance(member, classmethod | property)
        if not name.startswith("_") and callable_member and inspect.getdoc(member):
            yield name, member


def _signature(value: object) -> str:
    """The parameters and their defaults, without annotations: the tables say the types."""
    try:
        signature = inspect.signature(value)  # type: ignore[arg-type]  # a class or function
    except ValueError:
        return "(...)"
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty, default=_default(parameter.default))
        for parameter in signature.parameters.values()
        if parameter.name != "self"
    ]
    return str(inspect.Signature(parameters))


class _Shown(str):
    """A default that prints as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _default(value: object) -> object:
    if type(value).__name__ == "_Nothing" or "NOTHING" in repr(value):
        return _Shown("...")  # made by a factory
    return value


def _sections(value: object) -> Iterator[str]:
    docstring = griffe.Docstring(inspect.getdoc(value) or "")
    for section in griffe.parse_google(docstring, warnings=False):
        yield ""
        if section.kind is griffe.DocstringSectionKind.text:
            yield _fence_examples(section.value)
        elif section.kind is griffe.DocstringSectionKind.raises:
            yield "Raises:"
            yield ""
            for item in section.value:
                yield f"- `{item.annotation}`: {_one_line(item.description)}"
        elif section.kind is griffe.DocstringSectionKind.returns:
            yield "Returns: " + " ".join(_one_line(item.description) for item in section.value)
        elif isinstance(value, type) and attrs.has(value):
            types = {field.name: _type_name(field.type) for field in attrs.fields(value)}
            yield "| field | type | meaning |"
            yield "| --- | --- | --- |"
            for item in section.value:
                kind = types.get(item.name, "")
                yield f"| `{item.name}` | {kind} | {_one_line(item.description)} |"
        else:
            yield "| name | meaning |"
            yield "| --- | --- |"
            for item in section.value:
                yield f"| `{item.name}` | {_one_line(item.description)} |"


def _type_name(kind: object) -> str:
    name = inspect.formatannotation(kind).replace("typing.", "")
    return "`" + re.sub(r"[\w.]*\.(\w+)", r"\1", name).replace("|", "\\|") + "`"


def _fence_examples(text: str) -> str:
    """Paragraphs that are interpreter sessions, as fenced blocks."""
    return "\n\n".join(
        f"```pycon\n{paragraph}\n```" if paragraph.startswith(">>>") else paragraph
        for paragraph in text.split("\n\n")
    )


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    REFERENCE.mkdir(exist_ok=True)
    (REFERENCE / "contracts.md").write_text(contracts_page())
    (REFERENCE / "errors.md").write_text(errors_page())
