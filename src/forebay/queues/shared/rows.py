"""Records on their way out of a queue, and into it, the same for every kind.

What the command line prints and takes, and what a suite that knows no kind works with.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from json.encoder import encode_basestring

from forebay.damage import Damage


@dataclass(frozen=True, slots=True)
class Rows:
    """Records to print. A value is None where only JSON tells what it is.

    `line` returns the record of an index as one line of JSON.
    """

    values: Sequence[bytes | None]
    line: Callable[[int], bytes]

    def first(self, count: int) -> Rows:
        """Returns the first of them."""
        return replace(self, values=self.values[:count])

    def json_lines(self) -> bytes:
        """Returns a line of JSON for each."""
        return b"".join(map(self.line, range(len(self.values))))

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True)
class Lent:
    """Records that are on loan until the block ends, and damage that was met before them."""

    rows: Rows
    damage: Sequence[Damage] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """What a queue takes: a record's bytes, what it adds to each, and the most that all may take.

    `empty` says what cannot store an empty record; None if it can be stored.
    """

    record_bytes_max: int
    extra_bytes: int = 0
    total_bytes_max: int | None = None
    empty: str | None = None


def value_json(value: bytes) -> bytes:
    """Returns a value as two fields of JSON: its text, null if it is none, and base64."""
    try:
        text = encode_basestring(value.decode()).encode()
    except UnicodeDecodeError:
        text = b"null"
    return b'"value":%b,"value_b64":"%b"' % (text, binascii.b2a_base64(value, newline=False))
