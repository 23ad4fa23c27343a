"""The sum of an ingest: records of every type of value, in queues that come, go and break.

What the tables hold is compared with a model in plain Python, record by record and column by
column, as every reader sees it.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import forebay
from forebay.pipelines import ingest, read_settings, reconcile
from forebay.pipelines.ingest.output import Output
from tests.counting import Count
from tests.pipelines.killed_driver import MOMENTS, kill_driver
from tests.queues.helpers import segment_files
from tests.spark.sum.records import COLUMNS, SCHEMA, Record, Rejected, make_record
from tests.spark.sum.tables import READERS, Rows, read_table
from tests.support.campaigns import seeds
from tests.support.values import flip

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = f"""
source = "queues/*"
out = "out"
schema = "{SCHEMA}"
fail_on_data_loss = false
deduplicate = {{ key = ["s", "t"], within = "1d" }}
"""
TABLES = ("landed", "decoded", "rejected", "dropped", "damage")


@dataclass
class Story:
    """Queues and what was written to them, by the id of the queue and the offset."""

    path: Path
    draw: random.Random
    records: dict[tuple[str, int], Record] = field(default_factory=dict)
    # What cannot land: trimmed before it was read, or damaged.
    lost: set[tuple[str, int]] = field(default_factory=set)

    @property
    def settings(self) -> Path:
        return self.path / "ingest.toml"

    def queue(self, name: str) -> Path:
        return self.path / "queues" / name

    def write(self, name: str, count: int) -> str:
        """Appends records, durably; returns the id of the queue."""
        made = [make_record(self.draw) for _ in range(count)]
        with forebay.Log(self.queue(name), segment_bytes=2_000, background=False) as log:
            first = log.end
            log.append_many([record.text for record in made])
        with forebay.read(self.queue(name), kind="log") as reader:
            assert reader.tail is not None
            queue_id = reader.tail.queue_id.hex()
        self.records |= {(queue_id, first + n): record for n, record in enumerate(made)}
        return queue_id

    def trim(self, name: str, queue_id: str) -> None:
        """Removes the oldest segments."""
        with forebay.Log(self.queue(name), segment_bytes=2_000, background=False) as log:
            log.consumer("quicker", start="latest")
            log.trim()
            self.lost |= {(queue_id, offset) for offset in range(log.begin)}

    def harm(self, name: str, queue_id: str) -> None:
        """Flips a byte in the middle of the first segment."""
        file = segment_files(self.queue(name))[0]
        flip(file, file.stat().st_size // 2)
        with forebay.read(self.queue(name), salvage=True, kind="log") as reader:
            left = {record.offset for record in reader}
            self.lost |= {(queue_id, offset) for offset in set(range(reader.end)) - left}

    def ingest(self, spark: SparkSession) -> None:
        ingest(**read_settings(self.settings), spark=spark)


def tell(
    path: Path, seed: int, spark: SparkSession, format: str, moment: str | None = None
) -> Story:
    """Lets queues come, go and break between the runs of an ingest; one of them may be killed."""
    story = Story(path, random.Random(seed))
    story.queue("").mkdir(parents=True)
    story.settings.write_text(f'{SETTINGS}format = "{format}"\n')
    story.write("stays", 40)
    story.write("empty", 0)
    story.harm("harmed", story.write("harmed", 40))
    story.trim("trimmed", story.write("trimmed", 40))
    story.ingest(spark)
    shutil.rmtree(story.queue("stays"))
    story.write("harmed", 10)
    story.ingest(spark)
    story.write("stays", 30)
    story.write("empty", 20)
    story.trim("late", story.write("late", 40))
    if moment is not None:
        kill_driver(story.settings, moment, len(Output.at(path / "out").batches()))
    story.ingest(spark)
    return story


def check_sum(story: Story, tables: dict[str, Rows]) -> Counter[str]:
    """Compares the tables with what was written; returns how many records went where."""
    landed = {(row["queue_id"], row["offset"]): row for row in tables["landed"]}
    assert len(landed) == len(tables["landed"])
    assert set(landed) == set(story.records) - story.lost
    assert all(row["value"] == story.records[key].text for key, row in landed.items())
    assert tables["damage"]
    expected: dict[str, dict[tuple[Any, ...], Any]] = {"decoded": {}, "rejected": {}, "dropped": {}}
    kept: set[tuple[Any, ...]] = set()
    for row in tables["landed"]:
        record = story.records[row["queue_id"], row["offset"]]
        place = (row["batch"], row["queue"], row["offset"])
        try:
            columns = record.decoded()
        except Rejected:
            expected["rejected"][place] = record.text
            continue
        key = (columns["s"], columns["t"])
        if None not in key and key in kept:
            expected["dropped"][place] = "duplicate"
            continue
        kept.add(key)
        expected["decoded"][place] = {**columns, "_rescued": parsed(record.rescued())}
    found = {
        "decoded": {place_of(row): columns_of(row) for row in tables["decoded"]},
        "rejected": {place_of(row): row["value"] for row in tables["rejected"]},
        "dropped": {place_of(row): row["why"] for row in tables["dropped"]},
    }
    texts = {
        place_of(row): story.records[row["queue_id"], row["offset"]].text
        for row in tables["landed"]
    }
    for table, rows in expected.items():
        wrong = [
            (texts[place], rows.get(place), found[table].get(place))
            for place in {**rows, **found[table]}
            if rows.get(place) != found[table].get(place)
        ]
        assert not wrong, (table, len(wrong), wrong[:3])
        assert len(tables[table]) == len(rows)
    return Counter({table: len(rows) for table, rows in tables.items()})


def place_of(row: dict[str, Any]) -> tuple[int, str, int]:
    return row["batch"], row["queue"], row["offset"]


def columns_of(row: dict[str, Any]) -> dict[str, Any]:
    return {**{name: row[name] for name in COLUMNS}, "_rescued": parsed(row["_rescued"])}


def parsed(text: str | None) -> Any:
    """Returns what a JSON text says, with its numbers as they are written."""
    return None if text is None else json.loads(text, parse_float=str, parse_int=str)


def check_story(story: Story, spark: SparkSession) -> Counter[str]:
    """Checks the tables as one reader sees them, and that all see the same."""
    out = story.path / "out"
    tables = {table: read_table("forebay", spark, out, table) for table in TABLES}
    counts = check_sum(story, tables)
    readers = READERS[Output.at(out).document()["definition"]["format"]]
    for reader in readers:
        for table, rows in tables.items():
            assert read_table(reader, spark, out, table) == rows, (reader, table)
    proof = reconcile(out, spark=spark)
    assert proof.proven, [one.problems for one in proof.queues]
    # One path had two queues, one after the other.
    assert len(proof.queues) == len({queue_id for queue_id, _ in story.records})
    return counts


@pytest.mark.parametrize(
    "format", ["parquet", "delta", pytest.param("iceberg", marks=pytest.mark.full)]
)
def test_each_record_of_an_ingest_is_where_the_model_says_for_every_reader(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    story = tell(tmp_path, 1, spark, format)

    counts = check_story(story, spark)

    assert all(counts[table] for table in TABLES)


@pytest.mark.full
@pytest.mark.crash
def test_the_sum_of_an_ingest_holds_over_many_stories(
    spark: SparkSession, tmp_path: Path, record_property: Count
) -> None:
    done: Counter[str] = Counter()
    for seed in seeds("spark", "sum-of-ingest", tests=3):
        moment = random.Random(seed).choice([None, *MOMENTS])
        format = random.Random(seed).choice(list(READERS))
        done += check_story(tell(tmp_path / str(seed), seed, spark, format, moment), spark)
        done[f"into {format}"] += 1
        done["stories"] += 1
        done[f"killed when {moment}" if moment else "not killed"] += 1

    assert done["stories"]
    record_property("sum of an ingest, readers", sum(map(len, READERS.values())))
    for what, count in sorted(done.items()):
        record_property(f"sum of an ingest, {what}", count)
