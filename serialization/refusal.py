"""`Refused`: how the parts of the encoder say that a value cannot travel."""

from omniwire.contracts.errors import Path


class Refused(Exception):
    """A value cannot travel; `encode` finds its path and raises `EncodeError` in its place.

    Args:
        value: The value itself, by whose identity its path is found.
        code: One of `PROBLEM_CODES`.
        expected: What could travel, in words.
        got: A description of the value.
        within: Path from the value to the part of it that cannot travel.
    """

    def __init__(
        self, value: object, code: str, expected: str, got: str, within: Path = ()
    ) -> None:
        super().__init__(code)
        self.value = value
        self.within = within
        self.code = code
        self.expected = expected
        self.got = got
