"""A source that passes a point before and after the effect of every hook of its stream.

Spark's workers import it from here. What happens at a point, the test says (`points.py`), in the
directory of the option `pointsAt`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from forebay.spark import schemas
from forebay.spark.source import ForebaySource
from forebay.spark.stream import QueueStreamReader
from tests.spark.once.points import Points
from tests.support.inside import poll_again

FORMAT = "failing-stream"
HOOKS = (
    "initialOffset",
    "getDefaultReadLimit",
    "prepareForTriggerAvailableNow",
    "latestOffset",
    "partitions",
    "commit",
    "reportLatestOffset",
    "stop",
)
# Of a task, which delivers several batches of rows.
READS = ("before read", "in the middle of read", "after read")
MOMENTS = (*(f"{when} {hook}" for hook in HOOKS for when in ("before", "after")), *READS)
# What a process tells when it has left a hook, or a task.
BETWEEN = "between hooks"
IDLE = "between tasks"
_MIDDLE = 2

Result = TypeVar("Result")


class FailingReader(QueueStreamReader):
    """A stream reader with points."""

    points: Points

    def initialOffset(self) -> dict[str, Any]:
        return self._pass("initialOffset", super().initialOffset)

    def getDefaultReadLimit(self) -> ReadLimit:
        return self._pass("getDefaultReadLimit", super().getDefaultReadLimit)

    def prepareForTriggerAvailableNow(self) -> None:
        self._pass("prepareForTriggerAvailableNow", super().prepareForTriggerAvailableNow)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        # Lets the time pass after which a poll is done anew: the one before may have taken long.
        poll_again(self)
        return self._pass("latestOffset", super().latestOffset, start, limit)

    def reportLatestOffset(self) -> dict[str, Any]:
        return self._pass("reportLatestOffset", super().reportLatestOffset)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return self._pass("partitions", super().partitions, start, end)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        before, middle, after = READS
        self.points.meet(before)
        for number, batch in enumerate(super().read(partition), start=1):
            yield batch
            if number == _MIDDLE:
                self.points.meet(middle)
        self.points.meet(after)
        self.points.tell(IDLE)

    def commit(self, end: dict[str, Any]) -> None:
        self._pass("commit", super().commit, end)

    def stop(self) -> None:
        self._pass("stop", super().stop)

    def _pass(self, hook: str, effect: Callable[..., Result], *arguments: Any) -> Result:
        self.points.meet(f"before {hook}")
        result = effect(*arguments)
        self.points.meet(f"after {hook}")
        self.points.tell(BETWEEN)
        return result


class FailingSource(ForebaySource):
    """The format of this reader."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return self._plain()[0].schema()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        source, points = self._plain()
        options = source._source_options()
        reader = FailingReader(options, schemas.check_schema(options.table, schema))
        reader.points = points
        return reader

    def _plain(self) -> tuple[ForebaySource, Points]:
        """Returns the source without the option that only this one knows."""
        rest = {name.lower(): value for name, value in self.options.items()}
        points = Points(Path(rest.pop("pointsat")))
        return ForebaySource(rest), points
