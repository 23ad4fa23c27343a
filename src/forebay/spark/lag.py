"""The lag of streams over queues: for listeners, for a program, and for Prometheus.

    listener = LagListener()
    spark.streams.addListener(listener)
    prometheus_client.REGISTRY.register(listener)       # with the extra `metrics`

After each batch Spark reports how far the stream is, and the reader how many durable records each
queue has beyond that. How long the oldest of them has waited follows from the reports: since the
first one that saw it. So the lag is as new as the last report, and none comes during a long batch.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from forebay.extras import require

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a query is behind one queue: `query` is its name, or its id if it has none."""

    query: str
    queue: str
    records: int
    seconds: float


@dataclass(slots=True)
class _Queue:
    records: int = 0
    # When a report first saw the queue end at an offset; only ends that were not read yet.
    seen: deque[tuple[float, int]] = field(default_factory=deque)


class LagListener(StreamingQueryListener):
    """Keeps the lag of every stream of this format. Any thread may call it."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._names: dict[str, str] = {}
        self._queues: dict[str, dict[str, _Queue]] = {}

    def lags(self) -> list[Lag]:
        """Returns the lag of each queue of each running query."""
        now = self._now()
        with self._lock:
            return [
                Lag(
                    self._names[query],
                    path,
                    queue.records,
                    max(0.0, now - queue.seen[0][0]) if queue.records and queue.seen else 0.0,
                )
                for query, queues in sorted(self._queues.items())
                for path, queue in sorted(queues.items())
            ]

    def collect(self) -> Iterator[Any]:
        """Yields the lag as gauges: a registry of `prometheus_client` calls it."""
        require("prometheus_client", "metrics")
        from prometheus_client.core import GaugeMetricFamily

        labels = ("query", "queue")
        records = GaugeMetricFamily(
            "forebay_stream_lag_records",
            "Durable records that the stream has not read.",
            None,
            labels,
        )
        seconds = GaugeMetricFamily(
            "forebay_stream_lag_seconds", "How long the oldest of them has waited.", None, labels
        )
        for lag in self.lags():
            records.add_metric((lag.query, lag.queue), lag.records)
            seconds.add_metric((lag.query, lag.queue), lag.seconds)
        yield from (records, seconds)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Does nothing: the first report says what there is."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Takes a report."""
        progress = event.progress
        when = datetime.fromisoformat(progress.timestamp.replace("Z", "+00:00")).timestamp()
        with self._lock:
            for source in progress.sources:
                latest = _queues_in(source.latestOffset)
                if latest is None:
                    continue
                query = str(progress.id)
                self._names[query] = progress.name or query
                held = self._queues.setdefault(query, {})
                for path, place in latest.items():
                    _note(held.setdefault(path, _Queue()), place, when)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Does nothing: a query is idle when nothing is new."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Forgets a query."""
        with self._lock:
            self._queues.pop(str(event.id), None)
            self._names.pop(str(event.id), None)


def _note(queue: _Queue, place: dict[str, Any], when: float) -> None:
    queue.records = place["lag"]
    end = place["offset"]
    if not queue.seen or queue.seen[-1][1] < end:
        queue.seen.append((when, end))
    while queue.seen and queue.seen[0][1] <= place["read"]:
        queue.seen.popleft()


def _queues_in(text: str | None) -> dict[str, Any] | None:
    """Returns the queues in a report of a source of this format; None if it is of another one."""
    try:
        found = json.loads(text or "null")
    except ValueError:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("queues"), dict):
        return None
    queues: dict[str, Any] = found["queues"]
    ours = all(isinstance(place, dict) and "lag" in place for place in queues.values())
    return queues if ours else None
