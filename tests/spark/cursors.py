"""The cursors of a stream that has ended: the next one of its name must not come too early.

Spark ends the process that plans a stream without waiting for it. Until that is gone it holds the
cursors, and a query that is started at once may find them in use.
"""

from __future__ import annotations

import fcntl
import glob
from pathlib import Path

from tests.support.waiting import wait_until


def wait_for_cursors(path: str | Path, name: str) -> None:
    """Returns when nobody holds the cursors of a name, in queues that a pattern names."""
    files = glob.glob(f"{path}/cursors/{name}")
    assert wait_until(lambda: all(map(_is_free, files))), f"{files} are in use"


def _is_free(file: str) -> bool:
    with open(file, "rb") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
