"""The promise that all tests of this directory check: every record once, in order per queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tests.support.planting import Broken

# Queue, offset and value, in the order in which they arrived.
Row = tuple[str, int, bytes]
_EXAMPLES = 5


def check_once(rows: Sequence[Row], written: Mapping[str, Sequence[bytes]]) -> None:
    """Raises unless every record of each queue, from offset 0 on, arrived once and in order."""
    arrived: dict[str, list[tuple[int, bytes]]] = {path: [] for path in written}
    for path, offset, value in rows:
        if path not in arrived:
            raise Broken(f"a row of {path}, which nobody wrote")
        arrived[path].append((offset, value))
    for path, values in written.items():
        if arrived[path] != list(enumerate(values)):
            raise Broken(f"{path}: {_difference(arrived[path], values)}")


def _difference(arrived: Sequence[tuple[int, bytes]], values: Sequence[bytes]) -> str:
    counts = Counter(offset for offset, _ in arrived)
    faults = {
        "missing": [offset for offset in range(len(values)) if offset not in counts],
        "twice": [offset for offset, count in counts.items() if count > 1],
        "never written": [offset for offset in counts if offset >= len(values)],
        "another value": [
            offset for offset, value in arrived if offset < len(values) and value != values[offset]
        ],
    }
    told = [
        f"{len(offsets)} {fault}, such as {sorted(offsets)[:_EXAMPLES]}"
        for fault, offsets in faults.items()
        if offsets
    ]
    return "; ".join(told) or "out of order"
