"""The small programs in `examples/` do what they say, each as a user would start it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import forebay
from examples import delta_tables, spark_batch, spark_stream
from tests.sources import ROOT
from tests.support.libraries import start_threads

pytestmark = pytest.mark.slow

PROGRAMS = sorted(path for path in (ROOT / "examples").glob("*.py") if path.stem != "__init__")


def output_of(name: str, *arguments: object) -> list[str]:
    result = subprocess.run(
        [sys.executable, "-W", "error", ROOT / "examples" / f"{name}.py", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    # What is logged about an entry that is put aside, and about an outage.
    told = (" put aside: ", " does not take records: ", " takes records again, ")
    lines = result.stderr.splitlines()
    unexpected = [line for line in lines if not any(text in line for text in told)]
    assert (unexpected, result.returncode) == ([], 0)
    return result.stdout.splitlines()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_every_program_says_in_three_lines_when_to_use_it(program: Path) -> None:
    lines = program.read_text().splitlines()
    start = lines.index("When to use it:")

    assert all(line.startswith("    ") for line in lines[start + 1 : start + 4])
    assert lines[start + 4] == ""
    assert lines[start + 5].startswith(f"Run it: python examples/{program.name} ")
    assert f"[{program.stem}.py]({program.name})" in (program.parent / "README.md").read_text()


def test_the_spooling_logger_keeps_each_line(tmp_path: Path) -> None:
    assert output_of("spooling_logger", tmp_path) == [
        "0 INFO opened by alice",
        "1 WARNING open for 10 minutes",
    ]


def test_the_job_worker_tries_again_and_buries_what_is_hopeless(tmp_path: Path) -> None:
    lines = output_of("job_worker", tmp_path)

    assert sorted(lines[:-1]) == [
        *["failed: broken.png is not a picture"] * 3,
        "resized 1.png",
        "resized 2.png",
    ]
    assert lines[-1].startswith("buried: broken.png after 3 attempts;")


@pytest.mark.usefixtures("servers")
def test_three_workers_do_each_page_once(tmp_path: Path) -> None:
    lines = output_of("three_workers", tmp_path)

    assert [line.partition(" by ")[0] for line in lines] == [f"page {n:02}" for n in range(30)]
    assert {line.partition(" by ")[2] for line in lines} <= {"worker 1", "worker 2", "worker 3"}


@pytest.mark.usefixtures("servers")
def test_the_web_service_does_every_order_that_it_accepted(tmp_path: Path) -> None:
    assert output_of("web_service", tmp_path) == [
        *["answered 202"] * 3,
        *[f"done: order {number}" for number in range(3)],
    ]


def test_the_crawler_finds_all_pages_and_puts_the_lost_one_aside(tmp_path: Path) -> None:
    assert output_of("asyncio_crawler", tmp_path) == ["found: / /a /b /c /lost", "failed: /lost"]


def test_the_shipper_delivers_each_record_in_order_after_the_outage(tmp_path: Path) -> None:
    assert output_of("shipper", tmp_path) == [
        "during the outage: 0 arrived",
        "after it:",
        *['{"reading": ' + f"{number}}}" for number in range(3)],
    ]


def test_filebeats_queue_is_read_as_far_as_it_was_not_sent(tmp_path: Path) -> None:
    with forebay.BeatsQueue(tmp_path / "diskqueue") as queue:
        queue.put({"timestamp_ns": 1, "fields": {"message": "sent"}})
        queue.read(1).ack()
        queue.put({"timestamp_ns": 2, "fields": {"message": "stuck"}})

    assert output_of("reading_filebeat", tmp_path / "diskqueue") == ["2 stuck"]


def make_hosts(directory: Path) -> str:
    for host, count in (("a", 3), ("b", 5)):
        with forebay.Log(directory / "spool" / host / "events") as log:
            log.append_many([host.encode()] * count)
    return f"{directory}/spool/*/events"


def test_the_spark_report_counts_the_records_of_each_host(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spark_batch.report(spark, make_hosts(tmp_path))

    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition(" ")[2] for line in lines] == ["3", "5", "0"]


def test_the_spark_stream_copies_each_record_once_however_often_it_runs(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, lake = make_hosts(tmp_path), str(tmp_path / "lake")

    for _ in range(2):
        spark_stream.copy(spark, path, lake, available_now=True)

    assert spark.read.parquet(f"{lake}/events").count() == 8


@pytest.fixture(scope="session")
def _libraries() -> None:
    start_threads()


@pytest.mark.usefixtures("_libraries")
def test_the_delta_tables_have_every_record_that_can_be_decoded(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with forebay.Log(tmp_path / "events") as log:
        log.append_many([b'{"door": "a", "open": true}', b'{"door": "b"}', b"not JSON"])

    delta_tables.load(str(tmp_path / "events"), str(tmp_path / "doors"), spark)

    assert capsys.readouterr().out == "every record accounted for: True\n2 rows\n"
