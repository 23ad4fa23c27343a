"""An audit finds exactly what was damaged, in queues of every kind, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet
from pyspark.sql import SparkSession

import forebay
from forebay.cli import exits
from forebay.pipelines import Audit, audit
from forebay.pipelines.maintenance.audit import audit_one
from forebay.storage.cursors import Cursor
from forebay.storage.filesystem import DiskFilesystem
from tests.cli.helpers import run
from tests.spark.test_bad_directories import MAKERS
from tests.support.values import numbered


def flip(file: Path, position: int) -> str:
    """Flips a bit; returns the name of the file."""
    data = bytearray(file.read_bytes())
    data[position] ^= 1
    file.write_bytes(data)
    return file.name


def flip_in_a_segment(queue: Path) -> str:
    return flip(sorted(queue.glob("0*"))[2], 100)


def flip_in_an_event(queue: Path) -> str:
    return flip(sorted(queue.glob("*.seg"))[2], 200)


def flip_in_the_tape(queue: Path) -> str:
    return flip(queue / "0000000003.tape", 500)


def flip_in_the_changes(queue: Path) -> str:
    return flip(queue / "0000000001.wal", 2000)


def lose_a_segment(queue: Path) -> str:
    before, lost, *_ = sorted(queue.glob("0*"))
    lost.unlink()
    return before.name


def pass_the_end(queue: Path) -> str:
    directory = DiskFilesystem().open_directory(str(queue))
    Cursor.open(directory, "spark", start=999, incarnation=0).close()
    directory.close()
    return ""


def lose_the_tail(queue: Path) -> str:
    """Puts a directory where a file of the queue was, so that it cannot be opened."""
    (queue / "tail").unlink()
    (queue / "tail").mkdir()
    return "tail"


# The name of a queue, its kind, what is done to it, and the word for what must be found.
HARM: dict[str, tuple[str, Callable[[Path], str], str]] = {
    "bad-log": ("log", flip_in_a_segment, "damage"),
    "bad-beats": ("beats", flip_in_an_event, "damage"),
    "bad-fifo": ("fifo", flip_in_the_tape, "damage"),
    "bad-deadline": ("deadline", flip_in_the_changes, "damage"),
    "cut-log": ("log", lose_a_segment, "gap"),
    "far-log": ("log", pass_the_end, "place"),
    "shut-log": ("log", lose_the_tail, "damage"),
}


def make_fleet(root: Path) -> set[tuple[str, str, str]]:
    """Makes good queues of every kind, and those of `HARM`; returns what must be found."""
    expected = set()
    for kind, make in MAKERS.items():
        make(root / f"good-{kind}")
    for name, (kind, harm, what) in HARM.items():
        MAKERS[kind](root / name)
        expected.add((name, what, harm(root / name)))
    with forebay.Log(root / "old-log", version=1) as log:
        log.append_many(numbered(9))
    (root / "notes").mkdir()
    return expected


def wrong_in(found: Audit) -> set[tuple[str, str, str]]:
    return {(Path(one.queue).name, one.what, one.file) for one in found.findings if one.wrong}


def test_an_audit_finds_what_was_damaged_and_nothing_else(
    spark: SparkSession, tmp_path: Path
) -> None:
    expected = make_fleet(tmp_path)
    done: list[tuple[int, int]] = []

    found = audit(f"{tmp_path}/*", spark=spark, on_progress=lambda *told: done.append(told))

    others = [one for one in found.findings if not one.wrong and one.what != "note"]
    good = [queue for queue in found.queues if "good" in queue.queue]
    assert wrong_in(found) == expected
    assert len(found.queues) == 12
    assert [(queue.wrong, queue.records) for queue in good] == [(0, 40)] * 4
    assert [(Path(one.queue).name, one.what) for one in others] == [("old-log", "unverifiable")]
    assert (done[0], done[-1]) == ((0, 12), (12, 12))


def test_a_queue_that_vanishes_before_its_task_is_a_finding(tmp_path: Path) -> None:
    (row,) = audit_one((f"{tmp_path}/gone", None))

    (finding,) = row["findings"]
    assert (finding["what"], finding["wrong"]) == ("unreadable", True)
    assert finding["reason"] == "cannot be read: No such file or directory"


def test_the_verb_writes_tables_and_a_page(spark: SparkSession, tmp_path: Path) -> None:
    MAKERS["log"](tmp_path / "queues/good")
    MAKERS["log"](tmp_path / "queues/<bad>")
    name = flip_in_a_segment(tmp_path / "queues/<bad>")
    page, tables = tmp_path / "audit.html", tmp_path / "tables"

    result = run(
        "pipeline", "audit", f"{tmp_path}/queues/*", "--html", page, "--tables", tables, "--json"
    )

    lines = [json.loads(line) for line in result.stdout.splitlines()]
    rows = pyarrow.parquet.read_table(tables / "findings.parquet").to_pylist()
    text = page.read_text()
    assert result.exit_code == exits.DAMAGE, result.stderr
    assert lines[-1]["summary"]["wrong"] == len(rows) == 1
    assert (rows[0]["file"], rows[0]["count"], rows[0]["offset"]) == (name, 1, 16)
    assert "&lt;bad&gt;" in text
    assert "<bad>" not in text
    assert text.count('<div class="queue">') == 2
    assert text.count('<i class="damage" style') == 1
