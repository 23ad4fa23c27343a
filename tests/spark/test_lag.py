"""The lag of streams, from Spark's reports: for a program and for Prometheus."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import prometheus_client
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)

from forebay.spark.lag import Lag, LagListener

QUERY = "00000000-0000-0000-0000-000000000001"
START = 1_800_000_000


def report(seconds: int, end: int, read: int, latest: str | None = None) -> QueryProgressEvent:
    """Returns Spark's report of a query over one queue that ends at `end`."""
    place = {"id": "", "incarnation": 0, "offset": end, "read": read, "lag": end - read}
    source = {
        "description": "forebay",
        "startOffset": "{}",
        "endOffset": "{}",
        "latestOffset": latest or json.dumps({"v": 1, "queues": {"/spool/log": place}}),
        "numInputRows": 0,
        "inputRowsPerSecond": 0.0,
        "processedRowsPerSecond": 0.0,
    }
    fields: dict[str, Any] = {
        "id": QUERY,
        "runId": QUERY,
        "name": "lake",
        "timestamp": datetime.fromtimestamp(START + seconds, UTC).isoformat(
            timespec="milliseconds"
        ),
        "batchId": 1,
        "batchDuration": 1,
        "durationMs": {},
        "stateOperators": [],
        "sources": [source],
        "sink": {"description": "noop", "numOutputRows": 0},
        "numInputRows": 0,
        "inputRowsPerSecond": 0.0,
        "processedRowsPerSecond": 0.0,
    }
    return QueryProgressEvent(StreamingQueryProgress.fromJson(fields))


def test_the_lag_counts_from_the_first_report_that_saw_a_record() -> None:
    listener = LagListener(now=lambda: START + 100.0)
    seen = []

    for seconds, end, read in ((0, 50, 50), (10, 60, 50), (20, 90, 55), (30, 90, 60), (40, 90, 90)):
        listener.onQueryProgress(report(seconds, end, read))
        seen += [(lag.records, lag.seconds) for lag in listener.lags()]

    assert seen == [(0, 0), (10, 90), (35, 90), (30, 80), (0, 0)]


def test_reports_of_other_sources_and_of_queries_that_ended_are_left_out() -> None:
    listener = LagListener(now=lambda: START)
    for latest in ("17", '{"queues": 3}', '{"topic": {"0": 5}}', "not JSON"):
        listener.onQueryProgress(report(0, 1, 1, latest))
    before = listener.lags()
    listener.onQueryProgress(report(0, 9, 4))
    running = listener.lags()
    listener.onQueryTerminated(QueryTerminatedEvent(UUID(QUERY), UUID(QUERY), None, None))

    assert (before, listener.lags()) == ([], [])
    assert running == [Lag("lake", "/spool/log", 5, 0.0)]


def test_prometheus_scrapes_the_lag() -> None:
    listener = LagListener(now=lambda: START + 7.0)
    listener.onQueryProgress(report(0, 9, 4))
    registry = prometheus_client.CollectorRegistry()
    registry.register(listener)

    text = prometheus_client.generate_latest(registry).decode()

    labels = '{query="lake",queue="/spool/log"}'
    assert f"forebay_stream_lag_records{labels} 5.0" in text
    assert f"forebay_stream_lag_seconds{labels} 7.0" in text
