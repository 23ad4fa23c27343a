"""What the tests of the examples share."""

from __future__ import annotations

from pathlib import Path


def processes_that_name(path: Path) -> list[str]:
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = file.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(path) in text:
            found.append(text)
    return found
