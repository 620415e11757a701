"""Writes the golden vectors that are not there yet; those that are there are never changed.

    python tests/conformance/generator/make.py [FOLDER]

A vector that no longer comes out as it was written is an error: leave it as it is, and give what
it is now a new name. Vectors are added at the end.
"""

import json
import sys
from pathlib import Path

import refused
import valid
from collecting import Entry, entries


def make(folder: Path) -> int:
    """Write what is new to a folder; the exit status."""
    for module in (valid, refused):
        module.define()
    manifest = folder / "manifest.json"
    known: list[Entry] = json.loads(manifest.read_text()) if manifest.exists() else []
    by_file = {entry["file"]: entry for entry in known}
    assert len({entry["file"] for entry, _ in entries}) == len(entries)
    for entry, _ in entries:
        if by_file.get(entry["file"], entry) != entry:
            sys.stderr.write(f"{entry['file']} is there and reads otherwise: choose a new name\n")
            return 1
    new = [(entry, blob) for entry, blob in entries if entry["file"] not in by_file]
    for entry, blob in new:
        path = folder / entry["file"]
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(blob)
    if new:
        lines = [json.dumps(entry) for entry in [*known, *(entry for entry, _ in new)]]
        manifest.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    sys.stdout.write(f"{len(new)} new vectors, {len(known)} there already\n")
    return 0


if __name__ == "__main__":
    arguments = sys.argv[1:] or [str(Path(__file__).parents[1] / "vectors")]
    sys.exit(make(Path(arguments[0])))
