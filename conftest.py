"""Every Python example in a Markdown file that pytest is given is a test.

The examples of a page share one namespace and run in order, in an empty folder of their own.
"""

import contextlib
import doctest
import tempfile

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser


def _enter_empty_folder(namespace: dict[str, object]) -> None:
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(contextlib.chdir(folder))
        namespace["_leave_folder"] = stack.pop_all()


def _leave_folder(namespace: dict[str, object]) -> None:
    stack = namespace.pop("_leave_folder")
    assert isinstance(stack, contextlib.ExitStack)
    stack.close()


pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(doctest_optionflags=doctest.ELLIPSIS)],
    patterns=["*.md"],
    setup=_enter_empty_folder,
    teardown=_leave_folder,
).pytest()
