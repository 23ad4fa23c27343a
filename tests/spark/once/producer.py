"""A producer in a process of its own: owns a log, appends at a steady pace, and trims.

Run as `python -m tests.spark.once.producer PATH SEGMENTS`. Writes about so many segments of one
megabyte, says so, then waits for the end of its input. The content of a record is a function of
its offset.
"""

from __future__ import annotations

import sys
import time

from forebay.queues.log.queue import Log
from tests.support.values import value_at

SEGMENT_BYTES = 1_000_000
WRITTEN = "all is written"
_PAUSE_SECONDS = 0.1


def main() -> None:
    path, segments = sys.argv[1], int(sys.argv[2])
    with Log(path, sync="interval", segment_bytes=SEGMENT_BYTES, trim_interval_seconds=0.2) as log:
        for _ in range(segments):
            size = 0
            while size < SEGMENT_BYTES:
                value = value_at(log.end)
                log.append(value)
                size += len(value)
            time.sleep(_PAUSE_SECONDS)
        sys.stdout.write(WRITTEN)
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
