"""The two ways a run ends badly, and text that is safe on one terminal line."""


class BadInput(Exception):
    """Input that the demo cannot use; its text is one printable line. Exit code 2."""


class DemoFailed(Exception):
    """The run broke off; its text is one printable line. Exit code 1."""


def printable(text: str) -> str:
    r"""`text` on one line, with everything that is not printable escaped.

    >>> printable("cafe\n.jpg")
    "'cafe\\n.jpg'"
    """
    return text if text.isprintable() else ascii(text)


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its class name when it has none."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return printable(text.splitlines()[0].strip())
