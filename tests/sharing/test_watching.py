"""`forebay top` and `forebay metrics`: what they tell is what is there, served or not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import forebay
from forebay.cli import watching
from forebay.cli.metrics import COUNTERS, GAUGES
from tests.cli.helpers import json_lines, run
from tests.sources import ROOT, python_path
from tests.support.servers import serving

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("servers")]


def fill(root: Path) -> None:
    """Puts some records into a queue of every kind, and takes some of them."""
    with forebay.Fifo(root / "fifo", shared=True) as fifo:
        fifo.push_many([b"x"] * 5)
        fifo.pop_many(2)
    with forebay.Log(root / "log", shared=True) as log:
        log.append_many([b"x"] * 7)
        with log.consumer("c") as consumer:
            consumer.read(3)
            consumer.commit()
    with forebay.DeadlineQueue(root / "deadline", shared=True) as queue:
        queue.enqueue(b"now")
        queue.enqueue(b"later", delay=3600)
        item = queue.dequeue(lease_seconds=600)
        assert item is not None
    with forebay.BeatsQueue(root / "beats", shared=True) as beats:
        beats.put({"fields": {"value": "x"}})


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("watched") / "root"
    with serving(path):
        fill(path)
        yield path


@contextmanager
def metrics(root: Path) -> Iterator[str]:
    """Runs `forebay metrics` on a free port; lends its address without a path."""
    process = subprocess.Popen(
        [sys.executable, "-m", "forebay", "metrics", str(root), "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": python_path()},
    )
    try:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        yield told["url"].removesuffix("/metrics")
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
        if process.stdout is not None:
            process.stdout.close()
    assert code == 128 + signal.SIGTERM


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def samples(text: str) -> dict[tuple[str, str], float]:
    """Returns the values by metric and queue."""
    return {
        (sample.name, sample.labels.get("queue", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_tell_what_is_there(root: Path) -> None:
    with metrics(root) as url:
        status, text = get(f"{url}/metrics")
        health = get(f"{url}/healthz")
        nothing = get(f"{url}/other")
    found = samples(text)

    assert (status, health, nothing[0]) == (200, (200, "ok\n"), 404)
    assert found["forebay_up", ""] == 1
    assert found["forebay_queue_records", "fifo"] == 3
    assert found["forebay_queue_written_records_total", "fifo"] == 5
    assert found["forebay_queue_taken_records_total", "fifo"] == 2
    assert found["forebay_queue_oldest_timestamp_seconds", "fifo"] > 1e9
    assert found["forebay_queue_consumer_lag_records", "log"] == 4
    assert found["forebay_queue_records", "deadline"] == 1
    assert found["forebay_queue_leased_records", "deadline"] == 1
    assert found["forebay_queue_next_deadline_timestamp_seconds", "deadline"] > 1e9
    assert found["forebay_queue_records", "beats"] == 1
    assert {name for name, queue in found if queue == "log"} >= {"forebay_queue_readable"}


def test_health_is_bad_without_a_server_and_the_files_still_tell(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with forebay.Root(root) as made:
        made.define("jobs", "fifo")
        made.define("later", "log")
        made.queue("jobs", "fifo").push_many([b"x"] * 4)
    with metrics(root) as url:
        health = get(f"{url}/healthz")
        found = samples(get(f"{url}/metrics")[1])

    assert health == (503, f"{root} has no server\n")
    assert found["forebay_up", ""] == 0
    assert found["forebay_queue_records", "jobs"] == 4
    assert found["forebay_queue_records", "later"] == 0
    assert not (root / "server.log").exists()


def test_a_server_that_does_not_answer_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "ANSWER_SECONDS", 0.2)
    with serving(tmp_path / "root") as service:
        watcher = watching.Watcher(str(tmp_path / "root"))
        os.kill(service.pid, signal.SIGSTOP)
        for _ in range(2):
            with pytest.raises(TimeoutError, match="does not answer"):
                watcher.look()
        os.kill(service.pid, signal.SIGCONT)
        monkeypatch.setattr(watching, "ANSWER_SECONDS", 60)
        # The answer of before, late.
        watcher.look()
        assert watcher.look().is_served


def test_the_page_names_every_metric() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()

    for name in GAUGES:
        assert f"`forebay_queue_{name}`" in page
    for name in COUNTERS:
        assert f"`forebay_queue_{name}_total`" in page


def test_top_shows_every_queue(root: Path) -> None:
    shown = run("top", root, "--once")
    told = run("top", root, "--once", "--json")
    lines = [line.split("\t") for line in shown.stdout.splitlines()]
    by_name: dict[str, dict[str, Any]] = {
        row["name"]: row for row in map(json.loads, told.stdout.splitlines())
    }

    assert (shown.exit_code, told.exit_code) == (0, 0)
    assert lines[0][:3] == ["queue", "kind", "records"]
    assert {line[0]: line[2] for line in lines[1:]} == {
        "beats": "1",
        "deadline": "1",
        "fifo": "3",
        "log": "7",
    }
    assert by_name["log"]["lag"] == {"c": 4}
    assert (by_name["deadline"]["leased"], by_name["fifo"]["written"]) == (1, 5)
    assert by_name["fifo"]["in_per_second"] is None


def test_top_counts_what_goes_by(root: Path) -> None:
    rate = 0.0
    with subprocess.Popen(
        [sys.executable, "-m", "forebay", "top", str(root), "--json", "--interval", "0.1"],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": python_path()},
    ) as process:
        assert process.stdout is not None
        with forebay.Fifo(root / "rates", shared=True) as fifo:
            fifo.push(b"x")
            for line in process.stdout:
                fifo.push(b"x")
                row = json.loads(line)
                if row["name"] == "rates" and row["in_per_second"]:
                    rate = row["in_per_second"]
                    break
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        code = process.wait(60)

    assert rate > 0
    assert code == 130


@pytest.mark.parametrize("verb", ["top", "metrics"])
def test_what_is_no_root_is_refused(tmp_path: Path, verb: str) -> None:
    refused = run(verb, tmp_path, *(["--once"] if verb == "top" else []))

    assert refused.exit_code == 1
    assert "is not a root" in refused.stderr


def test_forwarders_are_shown_with_their_queue(tmp_path: Path) -> None:
    with forebay.Root(tmp_path / "root") as made:
        made.define("out", kind="log")
    with forebay.Log(tmp_path / "root" / "out") as log:
        log.append_many([b"x"] * 9)
        with forebay.OutputManager(log, lambda batch: None, background=False) as manager:
            manager.run(until_empty=True)

    (row,) = json_lines(run("top", tmp_path / "root", "--once", "--json"))
    with metrics(tmp_path / "root") as url:
        text = urllib.request.urlopen(f"{url}/metrics", timeout=30).read().decode()

    assert [(each["delivered"], each["state"]) for each in row["forwarders"]] == [(9, "stopped")]
    labels = '{forwarder="forward",queue="out"}'
    assert f"forebay_forward_delivered_records_total{labels} 9.0" in text
    assert f"forebay_forward_running{labels} 0.0" in text
