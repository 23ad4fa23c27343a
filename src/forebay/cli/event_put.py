"""Puts events from lines of JSON into a Beats queue."""

from __future__ import annotations

from typing import Any

from forebay import BeatsQueue
from forebay.cli.framing import BadInput
from forebay.cli.output import plural, talk, write_json
from forebay.clock import SystemClock
from forebay.errors import InvalidEvent, RecordTooLarge
from forebay.formats.beats.events import encode_event
from forebay.formats.beats.text import parse_event

_BATCH_EVENTS_MAX = 4096
_BATCH_BYTES_MAX = 1 << 20


class EventPutter:
    """Collects events and puts them in batches."""

    def __init__(self, queue: BeatsQueue) -> None:
        self._queue = queue
        self._clock = SystemClock()
        self._pending: list[bytes] = []
        self._size = 0
        # Text is longer than what is stored: the queue itself says what is too large.
        self.record_bytes_max = 8 * queue.options.segment_bytes
        self.count = 0

    def add(self, records: list[bytes], source: str) -> None:
        """Takes lines; puts if there are enough. Empty ones are passed over."""
        now_ns = self._clock.now_ms() * 1_000_000
        for line in records:
            if not line.strip():
                continue
            try:
                payload = encode_event(parse_event(line, now_ns))
            except (InvalidEvent, RecordTooLarge) as error:
                which = self.count + len(self._pending) + 1
                raise BadInput(
                    f"{source}: event {which}: {error}; nothing from it on was put"
                ) from None
            self._pending.append(payload)
            self._size += len(payload)
        if self._size >= _BATCH_BYTES_MAX or len(self._pending) >= _BATCH_EVENTS_MAX:
            self.flush()

    def flush(self) -> None:
        """Puts what was collected."""
        if self._pending:
            pending, self._pending, self._size = self._pending, [], 0
            self._queue.put_encoded(pending)
            self.count += len(pending)

    def report(self, as_json: bool, prefix: str = "") -> None:
        """Tells how many events were put."""
        if as_json:
            write_json({"count": self.count})
        else:
            talk(f"{prefix}{plural(self.count, 'event')}")


def open_for_put(path: str, options: dict[str, Any]) -> BeatsQueue:
    """Opens or makes a Beats queue; numbers stand for versions as in Python."""
    given = {name: value for name, value in options.items() if value is not None}
    version = given.get("version")
    if isinstance(version, str) and version.isdigit():
        given["version"] = int(version)
    return BeatsQueue(path, **given)
