"""The verbs that report: info, segments, consumers, trim, doctor."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forebay import Log
from forebay.cli import exits
from tests.cli.helpers import (
    flip,
    json_lines,
    leave_crashed,
    make_log,
    numbered,
    run,
    segments_of,
)


def make_consumed_log(path: Path) -> Path:
    """Makes a log of 100 records with two consumers, both past the first segment."""
    make_log(path, numbered(100))
    with Log(path) as log:
        log.consumer("audit", start=60)
        log.consumer("billing", start=90)
    return path


def test_info_tells_what_a_closed_log_holds(tmp_path: Path) -> None:
    path = make_consumed_log(tmp_path / "log")

    (facts,) = json_lines(run("info", path, "--json"))

    assert facts["kind"] == "log"
    assert facts["path"] == str(path)
    assert facts["state"] == "closed"
    assert facts["owner"] is None
    assert (facts["begin"], facts["end"], facts["durable"], facts["records"]) == (0, 100, 100, 100)
    assert facts["segments"] == 3
    assert facts["bytes"] == sum((path / name).stat().st_size for name in segments_of(path))
    assert facts["consumers"]["audit"] == {"offset": 60, "lag": 40}
    assert facts["version"] == 2
    assert facts["incarnation"] == 1
    assert facts["damage"] == []
    assert (facts["quarantined_files"], facts["quarantined_bytes"]) == (0, 0)


def test_info_needs_no_lock_and_names_the_owner(tmp_path: Path) -> None:
    with Log(tmp_path / "log"):
        (facts,) = json_lines(run("info", tmp_path / "log", "--json"))
        text = run("info", tmp_path / "log").stdout

    assert (facts["state"], facts["owner"]) == ("open", os.getpid())
    assert f"state\topen in process {os.getpid()}\n" in text


@pytest.mark.slow
def test_info_tells_a_crash_and_what_is_behind_the_end(tmp_path: Path) -> None:
    leave_crashed(tmp_path / "log", [b"one"], rest=b"\0\0\0\x40torn")

    (facts,) = json_lines(run("info", tmp_path / "log", "--json"))

    assert (facts["state"], facts["end"], facts["durable"]) == ("crashed", 1, 0)
    assert [damage["torn"] for damage in facts["damage"]] == [True]


def test_info_shows_a_damaged_index_and_the_rest(tmp_path: Path) -> None:
    path = make_consumed_log(tmp_path / "log")
    flip(path / "index", 5)

    result = run("info", path, "--json")

    assert result.exit_code == 0
    assert "do not match their checksum" in json_lines(result)[0]["consumers_damage"]


def test_segments_come_in_order_with_their_counts(tmp_path: Path) -> None:
    path = make_log(tmp_path / "log", numbered(100))

    rows = json_lines(run("segments", path, "--json"))
    text = run("segments", path).stdout.splitlines()

    assert [row["name"] for row in rows] == segments_of(path)
    assert sum(row["records"] for row in rows) == 100
    assert [row["first_offset"] for row in rows] == [int(row["name"], 16) for row in rows]
    assert all(row["sealed"] and row["version"] == 2 for row in rows)
    assert all(row["first_time_ms"] > 0 and row["error"] is None for row in rows)
    assert text[0] == "name\trecords\tbytes\tfirst offset\tversion\tfirst time\tsealed"
    assert len(text) == 1 + len(rows)


def test_the_segment_that_is_being_written_is_not_sealed(tmp_path: Path) -> None:
    with Log(tmp_path / "log", segment_bytes=1_000) as log:
        log.append_many(numbered(60))
        rows = json_lines(run("segments", tmp_path / "log", "--json"))

    assert [row["sealed"] for row in rows] == [True, False]


def test_a_segment_without_a_header_is_listed_and_gives_the_code_for_damage(tmp_path: Path) -> None:
    path = make_log(tmp_path / "log", numbered(100))
    (path / segments_of(path)[1]).write_bytes(b"rubbish")

    result = run("segments", path, "--json")

    assert result.exit_code == exits.DAMAGE
    assert [row["version"] for row in json_lines(result)] == [2, None, 2]


def test_consumers_are_listed_with_their_lag(tmp_path: Path) -> None:
    path = make_consumed_log(tmp_path / "log")

    assert json_lines(run("consumers", path, "--json")) == [
        {"name": "audit", "kind": "consumer", "offset": 60, "lag": 40},
        {"name": "billing", "kind": "consumer", "offset": 90, "lag": 10},
    ]
    assert run("consumers", path).stdout == (
        "name\tkind\toffset\tlag\naudit\tconsumer\t60\t40\nbilling\tconsumer\t90\t10\n"
    )


def test_a_forgotten_consumer_is_gone(tmp_path: Path) -> None:
    path = make_consumed_log(tmp_path / "log")

    result = run("consumers", path, "--forget", "audit", "--json")
    left = [row["name"] for row in json_lines(run("consumers", path, "--json"))]

    assert json_lines(result) == [{"forgot": "audit", "offset": 60}]
    assert left == ["billing"]


def test_forgetting_one_that_is_not_there_gives_the_code_for_nothing(tmp_path: Path) -> None:
    result = run("consumers", make_consumed_log(tmp_path / "log"), "--forget", "nobody")

    assert result.exit_code == exits.NOTHING
    assert result.stderr.endswith("has no consumer 'nobody'\n")


def test_a_dry_run_tells_what_a_trim_does_and_changes_nothing(tmp_path: Path) -> None:
    path = make_consumed_log(tmp_path / "log")
    names = segments_of(path)

    (planned,) = json_lines(run("trim", path, "--dry-run", "--json"))
    unchanged = segments_of(path)
    (done,) = json_lines(run("trim", path, "--json"))

    assert unchanged == names
    assert segments_of(path) == names[1:]
    assert planned == {**done, "dry_run": True}
    assert done == {
        "records": int(names[1], 16),
        "segments": names[:1],
        "begin": int(names[1], 16),
        "end": 100,
        "held_by": ["audit"],
        "held_at": 60,
        "dry_run": False,
    }


def test_without_a_consumer_trim_removes_nothing_and_says_why(tmp_path: Path) -> None:
    path = make_log(tmp_path / "log", numbered(100))

    result = run("trim", path)

    assert result.exit_code == 0
    assert "nothing is trimmed until there is a consumer" in result.stdout
    assert len(segments_of(path)) == 3


def test_the_doctor_looks_at_installation_disk_and_queue(tmp_path: Path) -> None:
    path = make_log(tmp_path / "log", numbered(3))

    result = run("doctor", path, "--json")
    found = {row["what"]: row for row in json_lines(result)}

    assert result.exit_code == 0
    assert found["kernels"]["found"]
    assert found["CRC-32"]["found"].startswith("zlib")
    assert " ms (median of " in found["write and sync"]["found"]
    assert found["queue"]["found"] == "log of 3 records, closed"
    assert found["mode"] == {"what": "mode", "found": "0700", "verdict": "ok"}
    assert {row["verdict"] for row in found.values()} <= {"ok", "note"}


def test_the_doctor_finds_a_queue_that_others_may_write_to(tmp_path: Path) -> None:
    path = make_log(tmp_path / "log", numbered(3))
    path.chmod(0o777)

    result = run("doctor", path, "--json")

    assert result.exit_code == exits.ERROR
    assert {"what": "mode", "found": "0777", "verdict": "wrong"} in json_lines(result)


def test_the_doctor_takes_a_path_that_is_not_there_yet(tmp_path: Path) -> None:
    result = run("doctor", tmp_path / "a" / "b")

    assert result.exit_code == 0
    assert f"directory\t{tmp_path}\tok\n" in result.stdout
    assert list(tmp_path.iterdir()) == []
