"""Text from a file, made safe to print: nothing in it reaches a terminal but plain characters."""

import re
import unicodedata
from typing import Final

_PLAIN_CLASSES: Final = frozenset(("L", "EN", "ES", "ET", "CS", "ON", "WS"))
"""Bidirectional classes of characters that keep their place on a line and have a width."""

_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def escape(text: str) -> str:
    r"""`text` with all but plain characters as backslash escapes, on one line.

    Control characters, line ends, lone surrogates, invisible and combining characters are not
    plain, nor are those of right-to-left scripts, which rearrange what stands beside them.

    >>> print(escape("two\nlines, \x1b[31m red"))
    two\nlines, \x1b[31m red
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_escape_one, text))


def _escape_one(character: str) -> str:
    if (
        character.isprintable()
        and unicodedata.bidirectional(character) in _PLAIN_CLASSES
        and not unicodedata.category(character).startswith("M")  # drawn over the one before
    ):
        return character
    return character.encode("unicode_escape").decode()


def shorten(text: str, max_characters: int) -> str:
    """`text` escaped, and cut if it is longer than `max_characters`.

    >>> shorten("a long story", 6)
    'a long ... (12 characters)'
    """
    safe = escape(text[:max_characters])
    if len(text) <= max_characters and len(safe) <= max_characters:
        return safe
    return f"{safe[:max_characters]} ... ({len(text):,} characters)"


def quoted(text: str, max_characters: int = 48) -> str:
    r"""`text` in quotes, escaped and cut.

    >>> print(quoted("it's"))
    'it\'s'
    """
    safe = escape(text[:max_characters].replace("\\", r"\\").replace("'", r"\'"))
    if len(text) <= max_characters and len(safe) <= max_characters:
        return f"'{safe}'"
    return f"'{safe[:max_characters]}...' ({len(text):,} characters)"


def shown_name(name: str) -> str:
    """A mapping's key: as it is if it looks like a name, else quoted, escaped and cut."""
    return name if len(name) <= 64 and _PLAIN_NAME.fullmatch(name) else quoted(name, 24)


def counted(number: int, unit: str) -> str:
    """A number with its unit, in the plural where that is due.

    >>> counted(1, "item"), counted(2000, "tuple of 2 ints")
    ('1 item', '2,000 tuples of 2 ints')
    """
    if number == 1:
        return f"1 {unit}"
    noun, space, rest = unit.partition(" ")
    return f"{number:,} {noun}s{space}{rest}"
