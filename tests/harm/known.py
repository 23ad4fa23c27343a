"""The cells that are known to fail, a file for each kind: they must fail until they are mended."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

_FOLDER = Path(__file__).parent / "known"


def known_failures() -> dict[str, str]:
    """Returns the ids of cells that are known to fail, and as what."""
    rows: dict[str, str] = {}
    for file in sorted(_FOLDER.glob("*.txt")):
        for line in file.read_text(encoding="utf-8").splitlines():
            cell, _, sorts = line.partition("\t")
            rows[cell] = sorts
    return rows


def write_known(rows: dict[str, str], kinds: Iterable[str]) -> None:
    """Writes the files of the kinds again."""
    _FOLDER.mkdir(exist_ok=True)
    for kind in kinds:
        lines = [f"{cell}\t{rows[cell]}\n" for cell in rows if cell.split(":")[0] == kind]
        file = _FOLDER / f"{kind}.txt"
        if lines:
            file.write_text("".join(lines), encoding="utf-8")
        else:
            file.unlink(missing_ok=True)
