"""The kinds of queue as one: put values, read them back in order, look without the lock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import forebay


@dataclass(frozen=True, slots=True)
class Kind:
    """How a kind puts and gives back values of bytes.

    `program` puts the values `v0`, `v1`, ... of its second argument's count in a process of its
    own. `small` are options that make small files; `bounded` bound the queue to a few of them.
    `drops` says whether it knows `when_full="drop_oldest"`.
    """

    queue: Callable[..., Any]
    put: Callable[[Any, bytes], object]
    put_many: Callable[[Any, list[bytes]], object]
    drain: Callable[[Any], list[bytes]]
    look: Callable[[Any], list[bytes]]
    program: str
    small: dict[str, Any]
    drops: bool = True

    @property
    def bounded(self) -> dict[str, Any]:
        """Options of a queue that is soon full."""
        return {**self.small, "max_bytes": 4_000}


def _event(value: bytes) -> dict[str, Any]:
    return {"fields": {"value": value}}


def _drain_log(log: Any) -> list[bytes]:
    consumer = log.consumer("all")
    values: list[bytes] = []
    while len(values) < len(log):
        try:
            values += [record.value for record in consumer.read(100)]
        except forebay.Overtaken:
            continue
    consumer.commit()
    log.trim()
    return values


def _drain_events(queue: Any) -> list[bytes]:
    values: list[bytes] = []
    while True:
        try:
            batch = queue.read(100)
        except forebay.Overtaken:
            continue
        if not batch:
            return values
        values += [event.fields["value"] for event in batch]
        batch.ack()


def _drain_deadlines(queue: Any) -> list[bytes]:
    items = queue.dequeue_many(10_000)
    queue.release_many(items)
    return [item.value for item in items]


LOG = Kind(
    forebay.Log,
    lambda log, value: log.put(value),
    lambda log, values: log.put_many(values),
    _drain_log,
    lambda reader: list(reader.values()),
    "queue = forebay.Log(sys.argv[1], sync=sys.argv[2]); put = queue.append",
    {"segment_bytes": 1_000},
)
EVENTS = Kind(
    forebay.BeatsQueue,
    lambda queue, value: queue.put(_event(value)),
    lambda queue, values: queue.put_many([_event(value) for value in values]),
    _drain_events,
    lambda reader: [event.fields["value"] for event in reader],
    "queue = forebay.BeatsQueue(sys.argv[1], sync=sys.argv[2]);"
    " put = lambda value: queue.put({'fields': {'value': value}})",
    {"segment_bytes": 1_000},
)
FIFO = Kind(
    forebay.Fifo,
    lambda fifo, value: fifo.put(value),
    lambda fifo, values: fifo.push_many(values),
    lambda fifo: fifo.pop_many(10_000),
    lambda reader: list(reader.values()),
    "queue = forebay.Fifo(sys.argv[1], sync=sys.argv[2]); put = queue.push",
    {"file_bytes": 1_000},
)
DEADLINE = Kind(
    forebay.DeadlineQueue,
    lambda queue, value: queue.enqueue(value),
    lambda queue, values: queue.enqueue_many(values),
    _drain_deadlines,
    lambda reader: list(reader.values()),
    "queue = forebay.DeadlineQueue(sys.argv[1], sync=sys.argv[2]); put = queue.enqueue",
    {"segment_items": 8},
    drops=False,
)
KINDS = {"log": LOG, "events": EVENTS, "fifo": FIFO, "deadline": DEADLINE}
