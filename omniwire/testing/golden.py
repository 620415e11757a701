"""`golden_message`: objects compared with messages that an earlier run has stored."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from omniwire.contracts import DecodeError
from omniwire.serialization import dumps, loads, save
from omniwire.testing.comparison import assert_equal

_SUFFIX: Final = ".omniwire"
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class GoldenMessages:
    """The golden messages of one test.

    Args:
        folder: Where they are; made when the first one is stored.
        test_name: Of the test, which names its message.
        compared: The paths that were compared or stored in this run; added to.
        updates: Whether to store messages that are missing or differ.
        flag: The flag that asks for that.
    """

    folder: Path
    test_name: str
    compared: set[str]
    updates: bool
    flag: str

    def __call__(self, obj: object, name: str | None = None) -> None:
        """Check that a stored message still decodes, to what equals the object.

        Args:
            obj: Any contract object that can be encoded.
            name: Of the message, by default the name of the test.

        Raises:
            AssertionError: There is no such message, it cannot be decoded any more, or the two
                differ: the message says where.
            EncodeError: The object cannot be encoded.
            ValueError: The name is no plain file name.
        """
        path = self._path(name)
        shown = os.path.relpath(path)
        assert_equal(loads(dumps(obj)), obj)
        problem = _problem(path, obj)
        if problem is not None:
            if not self.updates:
                advice = f"If it is to be stored, run pytest with {self.flag}"
                raise AssertionError(f"{shown}: {problem}\n{advice}")
            if str(path) in self.compared:
                expected = "one object of a name (`name=` gives a second one its own)"
                raise AssertionError(f"{shown}: expected {expected}, got another")
            self.folder.mkdir(parents=True, exist_ok=True)
            save(obj, path)
        self.compared.add(str(path))

    def _path(self, name: str | None) -> Path:
        if name is None:
            name = _NOT_IN_NAMES.sub("-", self.test_name).strip("-.")
        if not name or _NOT_IN_NAMES.search(name) or name.startswith("."):
            raise ValueError(f"expected letters, digits, '_', '-' and '.', got {name!r}")
        return self.folder / f"{name}{_SUFFIX}"


def _problem(path: Path, obj: object) -> str | None:
    """What is wrong with a stored message."""
    try:
        stored = loads(path.read_bytes())
    except FileNotFoundError:
        return "expected a stored message, found none"
    except DecodeError as error:
        return f"expected a message that can be decoded, got one that cannot: {error}"
    try:
        assert_equal(obj, stored)
    except AssertionError as error:
        return f"the object is not what is stored: {error}"
    return None
