"""Makes a queue and is killed before it closes it: `python -m tests.harm.killed PLACE …`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.harm.states import write_story

if __name__ == "__main__":
    place, kind, policy, letter = sys.argv[1:]
    write_story(Path(place), kind, policy, letter, killed=True)
