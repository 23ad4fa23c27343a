"""Does with a stream reader what Spark does, without Spark: plain Python, so that it is fast.

A batch is planned and the offsets behind it are logged; then its tasks read and its rows land; then
it is logged as done. `commit` of a batch comes when the next is planned. What is logged survives
the process; a restart replays the batch that was planned and is not done. Where the query began is
not logged: a replay of the first batch, which is planned even if nothing is there, asks for the
initial offset again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from forebay.spark.stream import QueueStreamReader
from tests.spark.once.checking import Row
from tests.spark.readers import rows_of, stream_reader
from tests.support.planting import Broken

BATCHES_MAX = 50


class Engine:
    """A query: its checkpoint and its sink, which stay, and the reader of the process that runs."""

    def __init__(self, path: str | Path, *, available_now: bool = False, **options: Any) -> None:
        self._path = path
        self._options = {
            "startingOffsets": "earliest",
            **{name: str(value) for name, value in options.items()},
        }
        self._available_now = available_now
        # JSON, as in the checkpoint.
        self.planned: list[str] = []
        self.done = 0
        self.landed: dict[int, list[Row]] = {}
        self._reader: QueueStreamReader | None = None

    def begin(self) -> None:
        """Asks where the query begins; planning does it too."""
        self._start()

    def plan(self) -> bool:
        """Plans a batch and logs its offsets; false if nothing is new."""
        if self.done < len(self.planned):
            return True
        reader = self._running()
        before = self._start()
        after = reader.latestOffset(before, reader.getDefaultReadLimit())
        if self.done and after == before:
            return False
        self.planned.append(json.dumps(after))
        if self.done:
            reader.commit(before)
        return True

    def land(self) -> None:
        """Reads the planned batch into the sink; the second time it must be the same."""
        reader = self._running()
        partitions = reader.partitions(self._start(), json.loads(self.planned[self.done]))
        rows = [(row["queue"], row["offset"], row["value"]) for row in rows_of(reader, partitions)]
        if self.landed.setdefault(self.done, rows) != rows:
            raise Broken(f"batch {self.done} has other rows when it is replayed")

    def finish(self) -> None:
        """Logs that the batch is done."""
        self.done += 1

    def run(self) -> None:
        """Does batches until nothing is new."""
        for _ in range(BATCHES_MAX):
            if not self.plan():
                return
            self.land()
            self.finish()
        raise Broken(f"the query has not ended after {BATCHES_MAX} batches")

    def kill(self) -> None:
        """Ends the process: what it held is free, what it had not logged is gone."""
        if self._reader is not None:
            self._reader.stop()
            self._reader = None

    def rows(self) -> list[Row]:
        """Returns what is in the sink, in the order of the batches."""
        return [row for batch in sorted(self.landed) for row in self.landed[batch]]

    @property
    def offset(self) -> int:
        """Returns the offset behind the last batch that was planned, of a query over one queue."""
        (place,) = json.loads(self.planned[-1])["queues"].values()
        offset: int = place["offset"]
        return offset

    def _start(self) -> dict[str, Any]:
        """Returns the offsets before the batch that is to be done."""
        if not self.done:
            return self._running().initialOffset()
        start: dict[str, Any] = json.loads(self.planned[self.done - 1])
        return start

    def _running(self) -> QueueStreamReader:
        if self._reader is None:
            self._reader = stream_reader(self._path, **self._options)
            if self._available_now:
                self._reader.prepareForTriggerAvailableNow()
        return self._reader
