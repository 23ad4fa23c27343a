"""An owner in a process of its own: appends all the time, and tells what it did.

Run as `python -m tests.spark.owner PATH FIRST WINDOW`. Writes a line for each acknowledged append,
`own N`, numbered from FIRST on. With a WINDOW it stops at that step of its next adoption, tells
`window`, and waits there to be killed; "" never stops.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from forebay.errors import Locked
from forebay.queues.log import adoption
from forebay.queues.log.queue import Log
from forebay.storage import inbox

# Each step of an adoption, in its order: the place that a kill may fall into.
WINDOWS = (
    "before the check of the parts",
    "before the ledger",
    "after the ledger",
    "after the moves",
    "before the ledger is cleared",
    "before the manifest goes",
    "after the manifest went",
)


def main() -> None:
    path, first, window = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    if window:
        _stop_at(window)
    with _open(path) as log:
        number = first
        while True:
            log.append(b"own %d" % number)
            _tell(f"own {number}")
            number += 1
            log.adopt()
            time.sleep(0.005)


def _open(path: str) -> Log:
    while True:
        try:
            return Log(path, segment_bytes=20_000, background=False)
        except Locked:
            # A commit is adopting what it just published.
            time.sleep(0.01)


def _stop_at(window: str) -> None:
    steps: dict[str, tuple[Any, str, bool]] = {
        "before the check of the parts": (adoption, "_check_part", False),
        "before the ledger": (inbox, "write_ledger", False),
        "after the ledger": (inbox, "write_ledger", True),
        "after the moves": (inbox, "finish_moves", True),
        "before the ledger is cleared": (adoption, "clear_adoption", False),
        "before the manifest goes": (inbox, "remove", False),
        "after the manifest went": (inbox, "remove", True),
    }
    module, name, after = steps[window]
    original = getattr(module, name)

    def stopping(*arguments: Any) -> Any:
        if not after:
            _wait_for_the_end()
        result = original(*arguments)
        _wait_for_the_end()
        return result

    setattr(module, name, stopping)


def _wait_for_the_end() -> None:
    _tell("window")
    time.sleep(600)


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
