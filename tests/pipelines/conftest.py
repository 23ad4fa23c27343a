"""Tables that several tests look at: making them costs more than all the looks."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from forebay.pipelines import IngestResult
from tests.pipelines.helpers import append, event, run
from tests.support.clocks import FakeClock
from tests.support.libraries import start_threads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR_MS = 3_600_000
NO_KEY = json.dumps({"name": "no key"}).encode()


@dataclass(frozen=True, slots=True)
class Made:
    """Queues `a` and `b` and their tables `out`, that no test may change."""

    path: Path
    out: Path
    options: dict[str, Any]
    result: IngestResult

    def copy(self, target: Path) -> Path:
        """Copies the tables for a test that changes them; the queues stay where they are."""
        shutil.copytree(self.out, target)
        return target


@pytest.fixture(scope="session")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Makes tables of two batches with three records of each queue, of every fate."""
    path = tmp_path_factory.mktemp("made")
    clock = FakeClock()
    append(path / "a", [event(1, more=1), event(2), event(1)], clock=clock)
    append(path / "b", [event(2), event(3), NO_KEY], clock=clock)
    clock.ms += HOUR_MS - 1
    append(path / "a", [event(3), b"bad", event(-1)], clock=clock)
    append(path / "b", [event(4), NO_KEY], clock=clock)
    clock.ms += 2
    append(path / "b", [event(3)], clock=clock)
    options: dict[str, Any] = {
        "sql": "SELECT * FROM records WHERE id IS NULL OR id >= 0",
        "deduplicate": {"key": "id", "within": "1h"},
        "max_offsets_per_trigger": 6,
    }
    result = run(spark, path / "?", path / "out", **options)
    return Made(path, path / "out", options, result)


@pytest.fixture(autouse=True, scope="session")
def _libraries() -> None:
    start_threads()
