"""The writer of the demo, a process of its own, so that it can be killed.

Appends the records from the log's end up to a given offset, in batches and one by one, and tells
its parent on stdout after each step what is acknowledged: one line of fixed size an offset.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

from forebay import Log
from forebay.cli.demo_records import Records

ACK_BYTES = 32
_SINGLES = 20


def write(path: str, end: int, seed: int, batch: int, segment_bytes: int) -> None:
    """Writes up to `end`; each line that it prints is a promise that the log has kept."""
    records = Records(seed)
    with Log(path, sync="os", segment_bytes=segment_bytes) as log:
        offset = log.end
        _acknowledge(offset)
        while offset < end:
            log.append_many(records.make(offset, min(batch, end - offset)))
            offset = log.end
            _acknowledge(offset)
            for value in records.make(offset, min(_SINGLES, end - offset)):
                log.append(value)
            offset = log.end
            _acknowledge(offset)


def _acknowledge(offset: int) -> None:
    os.write(sys.stdout.fileno(), f"{offset:{ACK_BYTES - 1}d}\n".encode())


if __name__ == "__main__":
    # Ctrl-C goes to the whole group; the parent decides what becomes of the writer.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):
        write(sys.argv[1], *map(int, sys.argv[2:6]))
