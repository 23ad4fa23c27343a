"""What the tests of entries share: the version of a queue, and ids."""

from __future__ import annotations

VERSION = b"FBE2\x01\x02\x03\x04"


def make_id(time_ms: int, offset: int) -> int:
    """Makes the id of the entry with a number, pushed at a time."""
    return time_ms << 16 | offset & 0xFFFF
