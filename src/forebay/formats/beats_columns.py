"""Events as columns, laid out as Arrow wants them: numbers, and text with the ends of each.

Makes no object for a field of an event, where that is possible. An event that cannot be decoded
takes no row; it is listed with its reason, so that nothing is lost silently.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from forebay.errors import UndecodableEvent
from forebay.formats.beats_text import TextDecoder

# Arrow's ends have 32 bits, and so has what a batch may hold.
TEXT_BYTES_MAX = 1 << 30


@dataclass(slots=True)
class Text:
    """A column of text in UTF-8: one behind the other in `data`, cut at `ends`, a first 0."""

    data: bytes
    ends: array[int]


@dataclass(slots=True)
class EventColumns:
    """Some events, column by column. `numbers` says which payload a row is of.

    `bad` are the payloads that are no event: number and reason. `taken` is how many payloads were
    looked at; fewer than were given if the text would have grown too large.
    """

    taken: int
    numbers: array[int]
    timestamps_ns: array[int]
    flags: array[int]
    meta: Text
    fields: Text
    bad: list[tuple[int, str]] = field(default_factory=list)


def decode_columns(
    payloads: Sequence[bytes], decoder: TextDecoder, text_bytes_max: int = TEXT_BYTES_MAX
) -> EventColumns:
    """Decodes payloads into columns, at least one of them."""
    rows: list[tuple[int, int, bytes, bytes]] = []
    bad: list[tuple[int, str]] = []
    room = text_bytes_max
    taken = 0
    for payload in payloads:
        try:
            row = decoder.decode(payload)
        except UndecodableEvent as error:
            bad.append((taken, str(error)))
            taken += 1
            continue
        room -= len(row[2]) + len(row[3])
        if room < 0 and rows:
            break
        rows.append(row)
        taken += 1
    timestamps, flags, metas, fields = zip(*rows, strict=True) if rows else ((), (), (), ())
    skipped = {number for number, _ in bad}
    numbers = (number for number in range(taken) if number not in skipped)
    return EventColumns(
        taken,
        array("q", numbers if bad else range(taken)),
        array("q", timestamps),
        array("I", flags),
        _text(metas),
        _text(fields),
        bad,
    )


def _text(parts: Sequence[bytes]) -> Text:
    return Text(b"".join(parts), array("i", accumulate(map(len, parts), initial=0)))
