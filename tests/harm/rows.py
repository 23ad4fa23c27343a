"""What a harm may cost: the one table of the matrix, row by row as in `docs/guarantees.md`.

The rows say which records may be missing and whether records that have left may come again. The sum
holds in each: what is missing is told, with its number or as unknown.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """`missing`: "none", "hit" (the records with bytes in it) or "file" (those of the file).

    `again`: what has left the queue may come again, and what was moved may come at its old place.
    `told`: False where the format cannot show it. `late`: a reader beside the owner may not see the
    newest records yet. `kills`: the system may kill the owner, which has the file mapped. `last`:
    the newest change cannot be told from one that was never acknowledged.
    """

    text: str
    missing: str = "none"
    again: bool = False
    told: bool = True
    late: bool = False
    kills: bool = False
    last: bool = False


NOTHING = Row("nothing")
HIT = Row("the records that have bytes in it", "hit")
FILE = Row("the records of the file, counted or said to be unknown", "file")
AGAIN = Row("may come again", "none", again=True)
HIT_AGAIN = Row(
    "the changes that have bytes in it: items lost are told, others may come again", "hit", True
)
FILE_AGAIN = Row(
    "the changes of the file: items lost are told, others may come again", "file", True
)
CANNOT = Row("cannot be told", "file", again=True, told=False)
LATE = Row("nothing; a reader sees the newest records with the owner's next mark", late=True)
KILLED = Row(
    "as kill -9: the system ends an owner whose mapped file is cut", "file", True, kills=True
)
LAST = Row(
    "the changes of the buffer, told but for the last one: cannot be told", "file", True, last=True
)
ROWS = (NOTHING, HIT, FILE, AGAIN, HIT_AGAIN, FILE_AGAIN, CANNOT, LATE, KILLED, LAST)

# Harms that hit some bytes and leave the others where they are.
PARTIAL = {
    *("flip-start", "flip-quarter", "flip-middle", "flip-end", "flip-value", "flip-last"),
    *("zero-part", "cut-end", "eio-sector"),
}
# Files that hold records. All others are side files.
_DATA = {"log": "segment", "fifo": "tape", "beats": "segment", "deadline": "run"}


def row_of(kind: str, role: str, harm: str, *, alive: bool = False) -> Row:
    """Returns the row that a harm to a file of a kind belongs to; `alive`: its owner lives."""
    base = kind.partition("-")[0]
    if alive and role == "tail":
        return LATE
    if alive and harm in ("emptied", "cut") and (role == "staging" or (base, role) in _MAPPED):
        return KILLED
    if role.startswith(_DATA[base]):
        return _of_data(base, harm)
    if role.startswith("tombstones"):
        return AGAIN
    if role.startswith("wal"):
        return HIT_AGAIN if harm in PARTIAL else NOTHING if harm == "junk" else FILE_AGAIN
    if role == "staging":
        if harm == "junk":
            return NOTHING
        if base != "deadline":
            return FILE
        # docs/decisions/0015: the last change in the buffer.
        return LAST if harm in PARTIAL or harm == "cut" else FILE_AGAIN
    return _OF_SIDE_FILES.get((base, role), NOTHING)


def _of_data(kind: str, harm: str) -> Row:
    if harm == "junk":
        return NOTHING
    if kind == "beats" and harm in ("sibling", "older"):
        # A frame of Beats tells neither its file nor its queue.
        return CANNOT
    if kind == "log" and harm == "sibling":
        # docs/decisions/0014: a segment does not tell its log.
        return CANNOT
    return HIT if harm in PARTIAL and kind != "deadline" else FILE


_MAPPED = {("fifo", "head")}
_OF_SIDE_FILES = {
    # Consumers begin where their places are known to be, or at the oldest record.
    ("log", "index"): AGAIN,
    # An older check looks as if the index were another.
    ("log", "index-check"): AGAIN,
    ("fifo", "head"): AGAIN,
    # Nothing in Beats' file checks it: a wrong place in it looks like any other.
    ("beats", "state"): CANNOT,
    ("deadline", "manifest"): AGAIN,
}
