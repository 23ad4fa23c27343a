"""Makes these directories: `python make.py TARGET`, with the release to be kept on the path.

Each queue is filled by a process of its own, which then closes it or kills itself.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import forebay

POLICIES = ("always", "interval", "os")
ENDS = ("closed", "killed")
# Contexts that are left open: one that is collected would give its entry back.
LENT: list[Any] = []
SMALL: dict[str, Any] = {"sync_interval_ms": 3_600_000, "background": False}


def value(number: int) -> bytes:
    """Returns a value that tells its number."""
    return b"value %04d " % number + b"x" * (number % 40)


def fill_log(path: str, policy: str, version: int = 2) -> Any:
    """200 records: 0 to 99 one by one, 100 to 179 in batches, the rest one by one."""
    options: dict[str, Any] = {
        "segment_bytes": 2_000,
        "staging_bytes": 4_096,
        "trim_interval_seconds": None,
    }
    log = forebay.Log(path, sync=policy, version=version, **options, **SMALL)
    for number in range(100):
        log.append(value(number))
    first, second = log.consumer("first"), log.consumer("second")
    first.read(60)
    first.commit()
    second.read(90)
    second.commit()
    log.trim()
    for start in range(100, 180, 20):
        log.append_many([value(number) for number in range(start, start + 20)])
    log.sync()
    for number in range(180, 200):
        log.append(value(number))
    return log


def fill_fifo(path: str, policy: str) -> Any:
    """200 entries, of which the first 50 are popped and the next two are lent."""
    options: dict[str, Any] = {"file_bytes": 2_000, "staging_bytes": 4_096}
    fifo = forebay.Fifo(path, sync=policy, **options, **SMALL)
    for number in range(100):
        fifo.push(value(number))
    fifo.push_many([value(number) for number in range(100, 180)])
    fifo.pop_many(50)
    fifo.sync()
    lent = [fifo.take() for _ in range(2)]
    for context in lent:
        context.__enter__()
    LENT.extend(lent)
    for number in range(180, 200):
        fifo.push(value(number))
    return fifo


def fill_deadline(path: str, policy: str) -> Any:
    """200 items with rising deadlines in the past; 0 to 49 are released, 50 to 59 requeued."""
    options: dict[str, Any] = {"segment_items": 40, "staging_bytes": 4_096}
    queue = forebay.DeadlineQueue(path, sync=policy, **options, **SMALL)
    for number in range(100):
        queue.enqueue(value(number), deadline=1_000 + number)
    queue.freeze()
    later = [value(number) for number in range(100, 180)]
    queue.enqueue_many(later, deadline=[1_000 + number for number in range(100, 180)])
    queue.freeze()
    for item in queue.dequeue_many(50):
        queue.release(item)
    for item in queue.dequeue_many(10):
        queue.requeue(item, deadline=5_000 + item.id)
    (last,) = queue.dequeue_many(1)
    queue.bury(last, "kept aside")
    queue.freeze()
    queue.sync()
    for number in range(180, 200):
        queue.enqueue(value(number), deadline=1_000 + number)
    return queue


def fill_events(path: str, policy: str, **options: Any) -> Any:
    """200 events, of which the first 60 are acknowledged."""
    queue = forebay.BeatsQueue(path, sync=policy, segment_bytes=3_000, **options, **SMALL)
    for number in range(100):
        queue.put({"timestamp_ns": 1_700_000_000_000_000_000 + number, "fields": fields(number)})
    events = [{"fields": fields(number)} for number in range(100, 180)]
    queue.put_many(events)
    queue.read(60).ack()
    queue.sync()
    for number in range(180, 200):
        queue.put({"fields": fields(number)})
    return queue


def fields(number: int) -> dict[str, Any]:
    """Returns the fields of an event."""
    return {"number": number, "message": value(number).decode()}


def fill_log_1(path: str, policy: str) -> Any:
    """The same as `fill_log`, in version 1."""
    return fill_log(path, policy, version=1)


def fill_encrypted(path: str, policy: str) -> Any:
    """The same as `fill_events`, with a key."""
    key = Path(path).with_name("key")
    key.write_bytes(bytes(range(16)))
    key.chmod(0o600)
    return fill_events(path, policy, key_file=key)


FILL = {
    "log": fill_log,
    "log1": fill_log_1,
    "fifo": fill_fifo,
    "deadline": fill_deadline,
    "beats": fill_events,
    "beatskey": fill_encrypted,
}


def main() -> None:
    """Makes all directories, or fills one and ends as told."""
    if len(sys.argv) == 2:
        for kind in FILL:
            for policy in POLICIES:
                for end in ENDS:
                    path = Path(sys.argv[1], f"{kind}-{policy}-{end}")
                    shutil.rmtree(path, ignore_errors=True)
                    subprocess.run([sys.executable, __file__, kind, policy, end, path], check=False)
                    (path / "reserve").unlink(missing_ok=True)
        return
    kind, policy, end, target = sys.argv[1:]
    queue = FILL[kind](target, policy)
    if end == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    queue.close()


if __name__ == "__main__":
    main()
