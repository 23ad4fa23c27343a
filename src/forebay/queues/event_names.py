"""The names in the directory of an event queue, which tell it from other kinds."""

from __future__ import annotations

from forebay.formats.beats_versions import parse_segment_name
from forebay.storage import atomic, losses, quarantine

CONTENTS_NAME = "contents"
MARK_NAME = "mark"
STATE_NAME = "state.dat"
OWN_NAMES = {CONTENTS_NAME, MARK_NAME, STATE_NAME, atomic.RESERVE, losses.NAME}
OWN_DIRECTORIES = {quarantine.DIRECTORY}


def is_event_queue(names: list[str]) -> bool:
    """Says whether the names in a directory are those of an event queue."""
    return any(
        name in (STATE_NAME, MARK_NAME) or parse_segment_name(name) is not None for name in names
    )
