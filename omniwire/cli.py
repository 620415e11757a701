"""The `omniwire` command, as far as it works without the extra that it needs."""

import sys


def main() -> None:
    """Run the command line in `sys.argv`, and exit the process with its status."""
    try:
        from omniwire.commands import omniwire  # noqa: PLC0415  # click is in an extra
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        extra = sys.argv[1] if sys.argv[1:2] in (["bench"], ["demo"]) else "cli"
        sys.stderr.write(
            f"omniwire: the command line needs click: pip install 'omniwire[{extra}]'\n"
        )
        sys.exit(2)
    omniwire(prog_name="omniwire")
