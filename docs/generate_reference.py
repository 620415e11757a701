"""Write the pages of docs/reference that come from the package's own docstrings.

Run it after a docstring, a signature or an option of a command changed:
`.venv/bin/python docs/generate_reference.py`. A test compares the pages with what this script
makes of the installed package.
"""

import contextlib
import enum
import functools
import importlib
import inspect
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple, is_typeddict

import attrs
import click
import griffe

from omniwire.commands import omniwire as command_line
from omniwire.contracts import errors

REFERENCE = Path(__file__).parent / "reference"

# The second comment keeps ruff from formatting examples otherwise than they are in the docstrings.
GENERATED: Final = (
    "<!-- Made by docs/generate_reference.py from the package itself; do not edit. -->\n"
    "<!-- fmt: off -->"
)


class Listing(NamedTuple):
    """A page that lists the public names of one module."""

    module: str
    title: str
    introduction: str


LISTINGS: Final[Mapping[str, Listing]] = {
    "contracts": Listing(
        "omniwire.contracts",
        "Contracts",
        "Every class below is immutable, checks all of its parts when it is built, compares by\n"
        "structure (tensors by dtype, shape and bits) and pickles. Fields can be given by\n"
        "position or by name. The codes of their errors are listed in [errors](errors.md).",
    ),
    "serialization": Listing(
        "omniwire.serialization",
        "Serialization and handoff",
        "Contracts as bytes, in files and between the processes of a host. The bytes are\n"
        "specified in the [wire format](wire-format.md); who owns which memory is in\n"
        "[ownership](../explanation/ownership.md).",
    ),
    "runtime": Listing(
        "omniwire.runtime",
        "Runtime",
        "What both sides do with contracts: select and schedule items, assemble their embeddings,\n"
        "and put streamed outputs together.",
    ),
    "testing": Listing(
        "omniwire.testing",
        "Testing kit",
        "From `omniwire.testing`, with the extra `testing`. The strategies are on\n"
        "[a page of their own](strategies.md).",
    ),
    "strategies": Listing(
        "omniwire.testing.strategies",
        "Strategies",
        "For Hypothesis, from `omniwire.testing.strategies`, with the extra `testing`. With the\n"
        "package installed, `hypothesis.strategies.from_type` knows those of the contracts too.",
    ),
    "integrations": Listing(
        "omniwire.integrations.huggingface",
        "Layouts for transformers",
        "Layouts of what transformers' processors emit, from `omniwire.integrations.huggingface`.\n"
        "Nothing here imports transformers; [how to use them](../how-to/write-a-processor.md).",
    ),
}

PAGES: Final = (*LISTINGS, "errors", "command-line")


def page(name: str) -> str:
    """The text of one page, by the name of its file."""
    if name == "errors":
        return errors_page()
    if name == "command-line":
        return command_line_page()
    listing = LISTINGS[name]
    names = [one for one in _public_names(listing.module) if not _is_error(listing.module, one)]
    lines = [f"# {listing.title}", "", GENERATED, "", listing.introduction, ""]
    lines += ["| name | |", "| --- | --- |"]
    for one in names:
        text = _cell(_first_line(listing.module, one))
        lines.append(f"| [`{one}`](#{_anchor(one)}) | {_linked(text, name, one)} |")
    for one in names:
        lines += ["", *_entry(name, listing.module, one)]
    return "\n".join(lines) + "\n"


def errors_page() -> str:
    """The error classes and the closed sets of their codes."""
    module = "omniwire.contracts"
    causes = tomllib.loads((REFERENCE / "causes.toml").read_text())
    lines = [
        "# Errors",
        "",
        GENERATED,
        "",
        "Every error has one sentence shape, `Subject: expected X, got Y - at $.path`, one line",
        "a problem. Paths start at the object that was checked. Values are described (`bf16[729,",
        "1152]`), never printed. All errors pickle.",
        "",
        "What Python prints of an error ends with the place below that explains it, as in",
        "`See docs/reference/errors.md#problem-count`. It is a note beside the error's text.",
        "[Debug a refused payload](../how-to/debug-a-refused-payload.md) goes on from there.",
        "",
        "## Codes of a `Problem`",
        "",
        "`ContractError.problems[i].code` and `EncodeError.code` are one of:",
        "",
        *_code_table("problem", errors.PROBLEM_CODES, causes),
        "",
        "## Codes of a `DecodeError`",
        "",
        *_code_table("decode", errors.DECODE_CODES, causes),
    ]
    for name in (name for name in _public_names(module) if _is_error(module, name)):
        lines += ["", *_entry("errors", module, name)]
        if cause := causes["class"].get(name):
            lines += ["", f"Usual cause: {cause}"]
    return "\n".join(lines) + "\n"


def _code_table(
    prefix: str, codes: Mapping[str, str], causes: Mapping[str, Mapping[str, str]]
) -> list[str]:
    return [
        "| code | meaning | usual cause, and what to do |",
        "| --- | --- | --- |",
        *(
            f'| <a id="{prefix}-{code}"></a>`{code}` | {text} | {causes[prefix][code]} |'
            for code, text in codes.items()
        ),
    ]


def command_line_page() -> str:
    """Every command with its usage, help text and options."""
    lines = ["# Command line", "", GENERATED, ""]
    lines += ["`python -m omniwire` is the same as `omniwire`; it needs the extra `cli`.", ""]
    lines += ["| command | |", "| --- | --- |"]
    context = click.Context(command_line, info_name="omniwire")
    commands = {
        f"omniwire {name}": command_line.get_command(context, name)
        for name in command_line.list_commands(context)
    }
    for name, command in commands.items():
        assert command is not None
        anchor = name.replace(" ", "-")
        lines.append(f"| [`{name}`](#{anchor}) | {command.get_short_help_str(limit=200)} |")
    for name, command in commands.items():
        assert command is not None
        lines += ["", *_command(name, command, context)]
    return "\n".join(lines) + "\n"


def _command(name: str, command: click.Command, parent: click.Context) -> Iterator[str]:
    context = click.Context(command, info_name=name.rpartition(" ")[2], parent=parent)
    yield f"## {name}"
    yield ""
    yield f"```text\n{' '.join([name, *command.collect_usage_pieces(context)])}\n```"
    yield ""
    yield inspect.cleandoc(command.help or "")
    records = [parameter.get_help_record(context) for parameter in command.params]
    options = [record for record in records if record is not None and record[1]]
    if options:
        yield "\n| option | |\n| --- | --- |"
    for option, text in options:
        yield f"| `{option}` | {_cell(text)} |"


def _public_names(module: str) -> list[str]:
    names: list[str] = importlib.import_module(module).__all__
    return names


def _value(module: str, name: str) -> object:
    value: object = getattr(importlib.import_module(module), name)
    return value


def _is_error(module: str, name: str) -> bool:
    value = _value(module, name)
    return value is errors.Problem or (isinstance(value, type) and issubclass(value, Exception))


def _documentation(module: str, name: str) -> str:
    value = _value(module, name)
    if callable(value):
        return inspect.getdoc(value) or ""
    definition = _definition(module, name)
    return definition.docstring.value if definition.docstring else ""


def _definition(module: str, name: str) -> griffe.Object:
    """A public name as its source has it, for what the value itself does not know."""
    definition = _visited(module).members[name]
    while isinstance(definition, griffe.Alias):
        module, _, name = definition.target_path.rpartition(".")
        definition = _visited(module).members[name]
    return definition


def _visited(module: str) -> griffe.Module:
    path = Path(importlib.import_module(module).__file__ or "")
    return griffe.visit(module, filepath=path, code=path.read_text())


def _first_line(module: str, name: str) -> str:
    return _documentation(module, name).split("\n\n")[0]


def _entry(where: str, module: str, name: str) -> Iterator[str]:
    """One public name: signature, description, fields or parameters, errors, methods."""
    value = _value(module, name)
    yield f"## {name}"
    yield ""
    if not callable(value):
        yield f"`{name} = {value!r}`"
        if text := _documentation(module, name):
            yield f"\n{_linked(text, where, name)}"
        return
    if isinstance(value, type) and issubclass(value, Exception):
        bases = ", ".join(base.__name__ for base in value.__bases__)
        yield f"`{name}({bases})`"
    elif isinstance(value, type) and issubclass(value, enum.Enum):
        yield f"One of {', '.join(f'`{member}`' for member in value)}."
    elif is_typeddict(value):
        yield f"`**{name}`"
    elif getattr(value, "_is_protocol", False):
        yield "A protocol: any class with these members will do."
    elif _is_made_elsewhere(value):
        yield f"`class {name}`"
    else:
        yield f"`{name}{_signature(value)}`"
    yield from _sections(value, where, name)
    if is_typeddict(value):
        yield "\n| key | type | meaning |\n| --- | --- | --- |"
        for key, item in _definition(module, name).members.items():
            assert isinstance(item, griffe.Attribute)
            meaning = "" if item.docstring is None else item.docstring.value
            kind = _type_name(str(item.annotation))
            yield f"| `{key}` | {kind} | {_linked(_cell(meaning), where, name)} |"
    elif isinstance(value, type):
        call = vars(value).get("__call__")
        if inspect.isfunction(call) and inspect.getdoc(call):
            yield f"\nIt is called with `{_signature(call)}`."
            yield from _sections(call, where, name)
        constants = [f"`{key} = {constant!r}`" for key, constant in _public_constants(value)]
        if constants:
            yield ""
            yield ", ".join(constants)
        for member_name, member in _public_members(value):
            yield ""
            yield f"### {name}.{member_name}"
            yield ""
            if isinstance(member, property):
                yield f"`{member_name}`, a property: `{_type_text(_result(member))}`"
                yield from _sections(member, where, name)
            else:
                bound = getattr(value, member_name)
                awaited = "await " if inspect.iscoroutinefunction(bound) else ""
                yield f"`{awaited}{member_name}{_signature(bound)}`"
                yield from _sections(bound, where, name)


def _is_made_elsewhere(value: object) -> bool:
    """Whether a value is a class whose arguments are none of a user's business."""
    sections = griffe.parse_google(griffe.Docstring(inspect.getdoc(value) or ""), warnings=False)
    if not isinstance(value, type) or attrs.has(value) or issubclass(value, tuple):
        return False
    parameters = griffe.DocstringSectionKind.parameters
    is_documented = any(section.kind is parameters for section in sections)
    return not is_documented and _signature(value) != "()"


def _public_members(kind: type) -> Iterator[tuple[str, object]]:
    kinds = (classmethod, staticmethod, property, functools.cached_property)
    for name, member in vars(kind).items():
        is_ours = inspect.isfunction(member) or isinstance(member, kinds)
        if not name.startswith("_") and is_ours and inspect.getdoc(member):
            yield name, member


def _public_constants(kind: type) -> Iterator[tuple[str, object]]:
    """What a class's own body sets, such as the keys of a handler."""
    is_plain = not attrs.has(kind) and not issubclass(kind, enum.Enum | tuple)
    for name, value in vars(kind).items():
        if is_plain and not name.startswith("_") and isinstance(value, str | int | tuple):
            yield name, value


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
    shown = str(inspect.Signature(parameters))
    if isinstance(value, type) or signature.return_annotation in {None, inspect.Signature.empty}:
        return shown
    return f"{shown} -> {_type_text(signature.return_annotation)}"


class _Shown(str):
    """A default that prints as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _default(value: object) -> object:
    if type(value).__name__ == "_Nothing" or "NOTHING" in repr(value):
        return _Shown("...")  # made by a factory
    if isinstance(value, enum.Enum):
        return _Shown(str(value))
    if attrs.has(type(value)) and value == type(value)():
        return _Shown(f"{type(value).__name__}()")
    return value


def _sections(value: object, where: str, name: str) -> Iterator[str]:
    """The docstring of `value`, which belongs to the entry `name` on the page `where`."""
    types = _types(value)
    docstring = griffe.Docstring(inspect.getdoc(value) or "")
    for section in griffe.parse_google(docstring, warnings=False):
        yield ""
        if section.kind is griffe.DocstringSectionKind.text:
            yield _linked(_fence_examples(section.value), where, name)
        elif section.kind is griffe.DocstringSectionKind.raises:
            yield "Raises:"
            yield ""
            for item in section.value:
                text = f"`{item.annotation}`: {_one_line(item.description)}"
                yield f"- {_linked(text, where, name)}"
        elif section.kind is griffe.DocstringSectionKind.returns:
            text = " ".join(_one_line(item.description) for item in section.value)
            yield _linked(f"Returns: {text}", where, name)
        else:
            field = "field" if isinstance(value, type) and attrs.has(value) else "name"
            yield f"| {field} | type | meaning |"
            yield "| --- | --- | --- |"
            for item in section.value:
                kind = types.get(item.name.lstrip("*"), "")
                meaning = _linked(_cell(item.description), where, name)
                yield f"| `{item.name}` | {kind} | {meaning} |"


def _types(value: object) -> dict[str, str]:
    """The types of a class's fields or a function's parameters, by name."""
    if isinstance(value, property):
        return {}
    if isinstance(value, type) and attrs.has(value):
        return {field.name: _type_name(field.type) for field in attrs.fields(value)}
    types = vars(value).get("__annotations__", {}) if isinstance(value, type) else {}
    with contextlib.suppress(ValueError):  # an exception without arguments of its own
        parameters = inspect.signature(value).parameters.values()  # type: ignore[arg-type]  # class or function
        annotated = [one for one in parameters if one.annotation is not inspect.Parameter.empty]
        types = {**types, **{one.name: one.annotation for one in annotated}}
    return {name: _type_name(kind) for name, kind in types.items()}


def _result(member: property) -> object:
    assert member.fget is not None
    return inspect.signature(member.fget).return_annotation


def _type_name(kind: object) -> str:
    return f"`{_cell(_type_text(kind))}`"


def _type_text(kind: object) -> str:
    name = kind if isinstance(kind, str) else inspect.formatannotation(kind)
    name = re.sub(r"[+~](?=\w)|\*?<class '|'>", "", name)  # type variables, unpacked keywords
    name = re.sub(r"\b(?!torch\.)(?:[a-z_]\w*\.)+(?=\w)", "", name).strip("'")
    return re.sub(r"^(?:ClassVar|Final)\[(.*)\]$", r"\1", name)


def _fence_examples(text: str) -> str:
    """Paragraphs that are interpreter sessions, as fenced blocks."""
    return "\n\n".join(
        f"```pycon\n{paragraph}\n```" if paragraph.startswith(">>>") else paragraph
        for paragraph in text.split("\n\n")
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return _one_line(text).replace("|", "\\|")


def _anchor(name: str) -> str:
    return name.lower().replace(".", "")


@functools.cache
def _targets() -> dict[str, str]:
    """The page of every public name, and of every `Class.member`."""
    targets: dict[str, str] = {}
    for where, listing in LISTINGS.items():
        if where == "strategies":
            continue
        for name in _public_names(listing.module):
            at = "errors" if _is_error(listing.module, name) else where
            targets[name] = at
            value = _value(listing.module, name)
            if isinstance(value, type):
                targets.update({f"{name}.{member}": at for member, _ in _public_members(value)})
    return targets


def _linked(text: str, where: str, current: str) -> str:
    """The text with the names in it as links, those aside that stand in code or are `current`."""

    def link(match: re.Match[str]) -> str:
        name = match[1]
        if f"{current}.{name}" in _targets():
            name = f"{current}.{name}"
        # The names of strategies are words, such as tensors: links on their own page only.
        is_strategy = where == "strategies" and name in _public_names(LISTINGS[where].module)
        at = where if is_strategy else _targets().get(name)
        if at is None or name == current:
            return match[0]
        page_name = "" if at == where else f"{at}.md"
        return f"[{match[0]}]({page_name}#{_anchor(name)})"

    blocks = re.split(r"(```.*?```)", text, flags=re.DOTALL)
    return "".join(
        block if block.startswith("```") else re.sub(r"`([A-Za-z_][\w.]*)`", link, block)
        for block in blocks
    )


if __name__ == "__main__":
    REFERENCE.mkdir(exist_ok=True)
    for page_name in PAGES:
        (REFERENCE / f"{page_name}.md").write_text(page(page_name))
