"""Looks at a queue until the time is up: `python -m tests.threads.looking KIND PATH SECONDS`.

Prints how often it looked, and then each alarm on a line of its own.
"""

from __future__ import annotations

import sys
import time

import forebay
from tests.kinds import KINDS


def look_until(kind: str, path: str, seconds: float) -> tuple[int, list[str]]:
    """Looks again and again; returns how often, and the alarms."""
    looks, alarms = 0, []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        looks += 1
        try:
            values = KINDS[kind].look(path)
        except forebay.Overtaken:
            # What an owner that removes what is done with may have told a reader.
            continue
        except Exception as error:
            alarms.append(f"{type(error).__name__}: {error}")
            continue
        if len(set(values)) != len(values):
            alarms.append("a value came twice in one look")
    return looks, alarms


if __name__ == "__main__":
    counted, told = look_until(sys.argv[1], sys.argv[2], float(sys.argv[3]))
    sys.stdout.write("\n".join([str(counted), *told]))
