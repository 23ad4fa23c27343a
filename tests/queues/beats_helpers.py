"""What the tests of the Beats queue share: queues, events, directories as Beats left them."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

from forebay import BeatsQueue, BeatsReader, Event
from forebay.formats.beats.versions import LAYOUTS, parse_segment_name
from tests.formats.beats_independent import KEY, write_segment

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "beats"
WRITABLE = [name for name, row in LAYOUTS.items() if row.writable]
# A segment of this size takes 9 events of `numbered`: 12 + 9 × 100 = 912.
SEGMENT_BYTES = 1_000
PER_SEGMENT = 9


def make_key(directory: Path, key: bytes = KEY) -> Path:
    """Makes a key file as the queue wants it."""
    file = directory / "key"
    file.write_bytes(key)
    file.chmod(0o600)
    return file


def open_queue(path: Path, version: str | None = None, **options: Any) -> BeatsQueue:
    """Opens a queue with small segments and the key of the tests."""
    settings = {"segment_bytes": SEGMENT_BYTES, "key_file": make_key(path.parent), **options}
    return BeatsQueue(path, version=version, **settings)


def numbered(count: int, first: int = 0) -> list[Event]:
    """Makes events that can be told apart: the time is the number."""
    return [
        Event(10**9 + number, 0, {}, {"message": f"{number:041}"})
        for number in range(first, first + count)
    ]


def numbers_of(events: Any) -> list[int]:
    return [event.timestamp_ns - 10**9 for event in events]


def take_all(queue: BeatsQueue, *, ack: bool = True) -> list[int]:
    """Reads everything that is there, and acknowledges it."""
    numbers: list[int] = []
    while batch := queue.read(7):
        numbers += numbers_of(batch)
        if ack:
            batch.ack()
    return numbers


def unread(path: Path) -> list[int]:
    """Returns what a reader sees that is not acknowledged."""
    with BeatsReader(path, key_file=make_key(path.parent)) as reader:
        return numbers_of(reader.events(unread=True))


def segment_names(path: Path) -> list[str]:
    """Lists the segments, oldest first."""
    found = {parse_segment_name(file.name): file.name for file in path.iterdir()}
    return [found[number] for number in sorted(n for n in found if n is not None)]


def state_of(path: Path) -> tuple[int, int, int]:
    """Returns segment, position and frame of a `state.dat` of version 1."""
    version, segment, position, index = struct.unpack("<IQQQ", (path / "state.dat").read_bytes())
    assert version == 1
    return segment, position, index


def document(event: Event) -> dict[str, Any]:
    """Returns an event as the tests' own encoder takes it."""
    return {
        "timestamp": event.timestamp_ns,
        "flags": event.flags,
        "meta": event.meta,
        "fields": event.fields,
    }


def leave_segment(
    path: Path, number: int, version: str, events: list[Event], count: int | None = None
) -> Path:
    """Leaves a segment as another program writes it; `count` is what its header says."""
    path.mkdir(mode=0o700, exist_ok=True)
    file = path / f"{number}.seg"
    file.write_bytes(write_segment(version, [document(event) for event in events], count=count))
    return file


def copy_golden(case: str, target: Path) -> Path:
    """Copies a directory that Beats wrote, so that a queue may own it."""
    shutil.copytree(GOLDEN / case, target)
    target.chmod(0o700)
    for file in target.iterdir():
        file.chmod(0o600)
    return target
