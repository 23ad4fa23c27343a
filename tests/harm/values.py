"""Values that carry their number and the letter of their queue, so that losses can be counted."""

from __future__ import annotations

import re

# The letter of the queue under test, and of the sibling whose files are put in place of its own.
OURS, SIBLING = "A", "B"
# What a living owner puts after the harm: a log gives it these very offsets.
LATER = range(86, 96)
# What is put when all has been taken.
ONE_MORE = 999_999
_MARK = re.compile(rb"<([A-Z])(\d{6})\|")


def value_of(number: int, letter: str = OURS) -> bytes:
    """Makes the value of a number: its mark, and filling of a length of its own."""
    filling = b"%06d." % ((number * 7919 + ord(letter)) % 1_000_000)
    return b"<%s%06d|%s>" % (letter.encode(), number, filling * (2 + number * 5 % 11))


def number_of(value: bytes) -> int:
    """Returns the number of a value of the queue under test; raises ValueError for any other."""
    found = _MARK.match(value)
    if found is None:
        raise ValueError(f"altered: {value[:60]!r}")
    letter, number = found[1].decode(), int(found[2])
    if value != value_of(number, letter):
        raise ValueError(f"altered: {value[:60]!r}")
    if letter != OURS:
        raise ValueError(f"phantom: {value[:9]!r} belongs to another queue")
    return number


def marks_in(data: bytes) -> list[tuple[int, int, int]]:
    """Returns number, first and last position of the values that have their mark in these bytes."""
    return [
        (int(found[2]), found.start(), found.start() + len(value_of(int(found[2]))))
        for found in _MARK.finditer(data)
    ]
