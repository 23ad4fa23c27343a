"""Second decoders of the deadline formats, written from their page alone.

Know nothing of ours: integers and slices, one entry after the other. An entry is a tuple:
(deadline, id, "tombstone") or (deadline, id, "pending", enqueue, requeue, count, value, buried,
reason).
"""

from __future__ import annotations

Row = tuple[object, ...]


def number_of(data: bytes) -> int:
    assert data
    return sum(byte << 8 * index for index, byte in enumerate(data))


def read_run_1(data: bytes) -> list[Row]:
    """Gives the entries of a version 1 run whose footer fits."""
    rows: list[Row] = []
    largest = []
    position = 0
    last = b""
    while position < len(data) - 40:
        last = data[position : position + 16]
        bits = number_of(last[:8]) << 64 | number_of(last[8:])
        assert bits >> 114 == 0
        deadline, number, kind = bits >> 66, bits >> 2 & 2**64 - 1, bits & 3
        largest.append(number)
        position += 16
        if kind == 3:
            rows.append((deadline, number, "tombstone"))
            continue
        assert kind == 0
        upper, lower = (number_of(data[position + at : position + at + 8]) for at in (0, 8))
        stats = upper << 64 | lower
        size = number_of(data[position + 16 : position + 20])
        value = data[position + 20 : position + 20 + size]
        rows.append(
            (deadline, number, "pending", stats >> 80, stats >> 32 & 2**48 - 1)
            + (stats & 2**32 - 1, value, False, b"")
        )
        position += 20 + size
    footer = data[position:]
    pending = sum(row[2] == "pending" for row in rows)
    assert (number_of(footer[:8]), number_of(footer[8:16])) == (pending, len(rows) - pending)
    assert footer[16:32] == (last or bytes(16))
    assert number_of(footer[32:]) == max([0, *largest])
    return rows
