"""Records on their way out of a queue and into it, the same for every kind.

The command line prints and puts them, and tests that run for every kind use them.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from json.encoder import encode_basestring

from forebay.damage import Damage


@dataclass(frozen=True, slots=True)
class Rows:
    """Records to print. A value is None if the record can only be shown as JSON.

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
    """Records that are lent until the block ends, and damage that was met before them."""

    rows: Rows
    damage: Sequence[Damage] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a queue: bytes of a record, bytes added to each, and bytes of all records.

    `empty` says why an empty record cannot be stored; None if it can be.
    """

    record_bytes_max: int
    extra_bytes: int = 0
    total_bytes_max: int | None = None
    empty: str | None = None


def value_json(value: bytes) -> bytes:
    """Returns a value as two JSON fields: its text, or null if it is not text, and its base64."""
    try:
        text = encode_basestring(value.decode()).encode()
    except UnicodeDecodeError:
        text = b"null"
    return b'"value":%b,"value_b64":"%b"' % (text, binascii.b2a_base64(value, newline=False))
