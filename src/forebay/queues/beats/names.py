"""The names in the directory of a Beats queue, which tell it from other kinds."""

from __future__ import annotations

from forebay.formats.beats.versions import parse_segment_name
from forebay.storage import atomic, losses, quarantine

CONTENTS_NAME = "contents"
MARK_NAME = "mark"
STATE_NAME = "state.dat"
OWN_NAMES = {CONTENTS_NAME, MARK_NAME, STATE_NAME, atomic.RESERVE, losses.NAME}
OWN_DIRECTORIES = {quarantine.DIRECTORY}


def is_beats_queue(names: list[str]) -> bool:
    """Says whether the names in a directory are those of a Beats queue."""
    return any(
        name in (STATE_NAME, MARK_NAME) or parse_segment_name(name) is not None for name in names
    )
