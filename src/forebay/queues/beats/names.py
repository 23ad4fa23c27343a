"""The names in the directory of a Beats queue."""

from __future__ import annotations

from forebay.queues.shared.names import BEATS

CONTENTS_NAME = "contents"
MARK_NAME = "mark"
STATE_NAME = "state.dat"
OWN_NAMES = BEATS.own_files
OWN_DIRECTORIES = BEATS.directories

is_beats_queue = BEATS.fit
refuse_foreign = BEATS.refuse_foreign
