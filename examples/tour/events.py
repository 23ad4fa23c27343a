"""The events of the tour, and what must become of each of them.

An event is a function of its queue and its offset, so a reader can check that it is the right one,
in the right place. Some events cannot be decoded, some come twice, and some are left out by the
SQL: the offset alone determines which, so the sums are known in advance.

Events of the Beats queue have a number instead of an offset; their time determines it.
"""

from __future__ import annotations

from dataclasses import dataclass

from examples.tour.jobs import JOBS, Jobs
from forebay.formats.fflg import LAYOUTS, VERSION_DEFAULT

LOGS = ("doors", "lamps", "lifts", "meters")
EVENT_QUEUE = "agents"
QUEUES = (*LOGS, EVENT_QUEUE)
# The fields of a record of a log are under `fields` in an event.
_COLUMNS = {"id": "STRING", "kind": "STRING", "hall": "INT", "value": "DOUBLE"}
_TYPES = ", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())
_FIELDS = ", ".join(f"{name}: {kind}" for name, kind in _COLUMNS.items())
SCHEMA = f"{_TYPES}, timestamp_ns BIGINT, flags INT, meta STRING, fields STRUCT<{_FIELDS}>"
_EITHER = ", ".join(f"coalesce({name}, fields.{name}) AS {name}" for name in _COLUMNS)
SQL = (
    f"SELECT queue, offset, timestamp, {_EITHER} FROM records "
    "WHERE coalesce(kind, fields.kind) <> 'heartbeat'"
)
KEY = "id"

PER_QUEUE_MIN = 1_000
# In this queue one byte of this event is changed on the disk. No other event repeats it.
DAMAGED_QUEUE = "lamps"
DAMAGED_OFFSET = 220

_FIRST_TIME_NS = 1_700_000_000_000_000_000
_STEP_NS = 1_000
_CYCLE = 100
_BROKEN = 13
_REPEATS = (37, 87)
_REPEATED_BEFORE = 5
_HEARTBEATS = (10, 30, 50, 70, 90)

DECODED = "decoded"
REJECTED = "rejected"
DEDUPLICATED = "deduplicated"
FILTERED = "filtered"


def event(queue: str, offset: int) -> bytes:
    """Returns the event at an offset, as it must land."""
    return _beats_event(offset) if queue == EVENT_QUEUE else _log_event(queue, offset)


def number_of(value: bytes) -> int:
    """Returns the number of an event of the Beats queue, from its time."""
    time_ns = value.partition(b",")[0].rpartition(b":")[2]
    return (int(time_ns) - _FIRST_TIME_NS) // _STEP_NS


def _beats_event(number: int) -> bytes:
    place = number % _CYCLE
    # A producer that got no answer sends the same event again, at a later time.
    said = number - _REPEATED_BEFORE if place in _REPEATS else number
    kind = "heartbeat" if said % _CYCLE in _HEARTBEATS else "reading"
    hall = '"none"' if place == _BROKEN else said % 17
    fields = (
        f'{{"id":"{EVENT_QUEUE}-{said}","kind":"{kind}","hall":{hall},'
        f'"value":{said * 7919 % 100_000}}}'
    )
    time_ns = _FIRST_TIME_NS + number * _STEP_NS
    return f'{{"timestamp_ns":{time_ns},"flags":0,"meta":{{}},"fields":{fields}}}'.encode()


def _log_event(queue: str, offset: int) -> bytes:
    place = offset % _CYCLE
    if place in _REPEATS:
        # A producer that got no answer sends the same event again.
        return _log_event(queue, offset - _REPEATED_BEFORE)
    kind = "heartbeat" if place in _HEARTBEATS else "reading"
    value = offset * 7919 % 100_000
    text = (
        f'{{"id":"{queue}-{offset}","kind":"{kind}","hall":{offset % 17},'
        f'"value":{value // 100}.{value % 100:02d}}}'
    )
    if place == _BROKEN:
        text = text[:-20]
    return text.encode()


def fate(offset: int) -> str:
    """Returns what becomes of an event that lands."""
    place = offset % _CYCLE
    if place == _BROKEN:
        return REJECTED
    if place in _REPEATS:
        return DEDUPLICATED
    return FILTERED if place in _HEARTBEATS else DECODED


def frame_position(queue: str, offset: int) -> int:
    """Returns where in the first segment the frame of an event starts."""
    layout = LAYOUTS[VERSION_DEFAULT]
    sizes = (layout.frame_bytes + len(event(queue, before)) for before in range(offset))
    return layout.header_bytes + sum(sizes)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much the producers write, and what must become of it."""

    events: int

    @property
    def per_queue(self) -> int:
        """Returns how many events are written to each queue."""
        return self.events // len(QUEUES)

    @property
    def total(self) -> int:
        """Returns how many events are written to all queues."""
        return self.per_queue * len(QUEUES)

    @property
    def jobs(self) -> Jobs:
        """Returns the jobs of the deadline queue: fewer, because each takes several steps."""
        return Jobs(max(PER_QUEUE_MIN, self.per_queue // 10))

    def expected(self, queue: str) -> dict[str, int]:
        """Returns the sums that `reconcile` must find for a queue."""
        if queue == JOBS:
            return self.jobs.expected()
        sums = dict.fromkeys((DECODED, REJECTED, DEDUPLICATED, FILTERED), 0)
        for offset in range(self.per_queue):
            sums[fate(offset)] += 1
        damaged = int(queue == DAMAGED_QUEUE)
        sums[DECODED] -= damaged
        return {"landed": self.per_queue - damaged, **sums, "damaged": damaged, "trimmed": 0}

    def is_damaged(self, queue: str, offset: int) -> bool:
        """Returns whether this is the event whose byte is changed."""
        return (queue, offset) == (DAMAGED_QUEUE, DAMAGED_OFFSET)
