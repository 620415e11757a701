"""What type checkers see of the lazy facade; `make check` checks this file, nothing runs it."""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from typing import assert_type

import omniwire
from omniwire import Problem
from omniwire.contracts import Problem as ProblemOfContracts

assert_type(omniwire.__version__, str)
assert_type(omniwire.Problem(("image", 0), "type", "an int", "a str").code, str)

problem: ProblemOfContracts = Problem(("image", 0), "type", "an int", "a str")


def unknown_names_are_errors() -> None:
    """Both checkers report an ignore comment that ignores nothing, so these must be errors."""
    from omniwire import no_such_name  # type: ignore[attr-defined]

    assert omniwire.no_such_name is no_such_name  # type: ignore[attr-defined]
