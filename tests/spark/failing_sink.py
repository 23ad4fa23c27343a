"""A sink that fails where a test asks for it, once: Spark's workers import it from here.

A file in the directory `failAt` arms a point for one time; the hook that meets it removes it and
raises. Tasks, commit and abort run in processes of their own, so files are what they share.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from forebay.spark.sink.writer import ForebayStreamWriter, ForebayWriter, Written
from forebay.spark.source import ForebaySource

FORMAT = "failing-forebay"
ABORTED = "aborted"
LATE = "a task is late"
LATE_DONE = "the late task is done"
# Spark tries a task so many times.
TRIES = 3
_SECONDS_MAX = 240


def arm(points: Path, *names: str) -> None:
    """Arms points; those of a task often enough that it fails for good."""
    points.mkdir()
    for name in names:
        for turn in range(TRIES if name.endswith("every write") else 1):
            (points / f"{name} {turn}").touch()


class Failed(Exception):
    """What a fail point raises."""


class FailPoints:
    """Mixed into a writer: raises before or after the effect of each hook."""

    points: Path

    def write(self, iterator: Iterator[Any]) -> Written:
        context = TaskContext.get()
        if context is not None and context.partitionId() == 1 and self._is_armed(LATE):
            self._leave_to_a_child(iterator)
        self._wait_while(lambda: self._is_armed(LATE))
        self._meet("before a write", "before every write")
        written: Written = super().write(iterator)  # type: ignore[misc]
        self._meet("after a write", "after every write")
        return written

    def commit(self, *arguments: Any) -> None:
        self._meet("before commit")
        super().commit(*arguments)  # type: ignore[misc]
        self._meet("after commit")

    def abort(self, *arguments: Any) -> None:
        self._meet("before abort")
        super().abort(*arguments)  # type: ignore[misc]
        (self.points / ABORTED).touch()
        self._meet("after abort")

    def _leave_to_a_child(self, iterator: Iterator[Any]) -> None:
        """Goes on in a child that waits for the abort, and works as if nothing had been.

        Spark kills the workers of a failed job within seconds, often before it aborts. The child is
        as a task on a machine that the kill does not reach.
        """
        batches = list(iterator)
        if os.fork() == 0:
            try:
                self._wait_while(lambda: not (self.points / ABORTED).exists())
                super().write(iter(batches))  # type: ignore[misc]
                (self.points / LATE_DONE).touch()
            finally:
                os._exit(0)
        # From now on the others may fail.
        self._take(LATE)
        # Until Spark kills it.
        time.sleep(_SECONDS_MAX)
        raise Failed(LATE)

    def _wait_while(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _SECONDS_MAX
        while condition() and time.monotonic() < deadline:
            time.sleep(0.01)

    def _meet(self, *names: str) -> None:
        for name in names:
            if self._take(name):
                raise Failed(name)

    def _is_armed(self, name: str) -> bool:
        return (self.points / f"{name} 0").exists()

    def _take(self, name: str) -> bool:
        for turn in range(TRIES):
            try:
                (self.points / f"{name} {turn}").unlink()
            except FileNotFoundError:
                continue
            return True
        return False


class FailingWriter(FailPoints, ForebayWriter):
    """A batch writer that may fail."""


class FailingStreamWriter(FailPoints, ForebayStreamWriter):
    """A stream writer that may fail."""


class FailingSource(ForebaySource):
    """The format of these writers."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        points, options = _split(self.options)
        writer = FailingWriter(options, schema, overwrite)
        writer.points = points
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        points, options = _split(self.options)
        writer = FailingStreamWriter(options, schema, overwrite)
        writer.points = points
        return writer


def _split(options: Mapping[str, str]) -> tuple[Path, dict[str, str]]:
    rest = {name.lower(): value for name, value in options.items()}
    return Path(rest.pop("failat")), rest
