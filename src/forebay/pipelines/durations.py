"""Lengths of time as people write them: `500ms`, `30s`, `5 minutes`, `1d`."""

from __future__ import annotations

import re

from forebay.errors import InvalidOption

_UNITS_MS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "second", "seconds"), 1_000),
    **dict.fromkeys(("m", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
}
_DURATION = re.compile(r"(\d{1,12})\s*([a-z]+)")


def duration_ms(name: str, text: object) -> int:
    """Reads the value of the option `name`; raises `InvalidOption`."""
    match = _DURATION.fullmatch(text.strip().lower()) if isinstance(text, str) else None
    ms = int(match[1]) * _UNITS_MS.get(match[2], 0) if match else 0
    if ms == 0:
        raise InvalidOption(
            f"{name} = {text!r}: must be a length of time above 0 such as '500ms', '30s', "
            "'5 minutes', '2h' or '1d'"
        )
    return ms
