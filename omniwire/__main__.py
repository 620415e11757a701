"""`python -m omniwire`: the same as the `omniwire` command."""

from omniwire.cli import main

if __name__ == "__main__":
    main()
