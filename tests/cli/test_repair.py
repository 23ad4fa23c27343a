"""The verbs for damage: fsck and recover."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from forebay import Log, LogReader
from forebay.cli import exits
from forebay.cli.fsck import summary, write_text
from forebay.damage import Damage
from forebay.queues.kinds import kind_named
from forebay.queues.log.check import Copying
from forebay.queues.shared.reports import Report
from tests.cli.helpers import (
    flip,
    json_lines,
    leave_crashed,
    make_log,
    numbered,
    run,
    segments_of,
    values_of,
)
from tests.support.clocks import SteppingClock


def fingerprint(path: Path) -> dict[str, str]:
    files = [file for file in path.rglob("*") if file.is_file()]
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_a_good_log_has_no_damage(tmp_path: Path) -> None:
    path = make_log(tmp_path / "log", numbered(100))
    before = fingerprint(path)

    result = run("fsck", path, "--json")
    (row,) = json_lines(result)

    assert result.exit_code == 0
    assert fingerprint(path) == before
    assert row["summary"]["records"] == 100
    assert row["summary"]["state"] == "closed"
    assert [row["summary"][name] for name in ("damage", "torn", "lost", "foreign")] == [0] * 4


def test_each_damage_is_listed_with_what_it_costs(tmp_path: Path) -> None:
    path = make_log(tmp_path / "log", numbered(100))
    first, second, _ = segments_of(path)
    flip(path / first, 60)
    (path / second).write_bytes((path / second).read_bytes()[:-5])

    result = run("fsck", path, "--json")
    *rows, last = json_lines(result)
    lost = int(segments_of(path)[2], 16) - 1

    assert result.exit_code == exits.DAMAGE
    assert rows == [
        {
            "damage": {
                "path": f"{path}/{first}",
                "position": 54,
                "length": 20,
                "reason": "checksum does not match",
                "torn": False,
                "offset": 1,
                "count": 1,
            }
        },
        {"damage": {**rows[1]["damage"], "torn": False, "offset": lost, "count": 1}},
    ]
    assert (last["summary"]["damage"], last["summary"]["lost"]) == (2, 2)
    assert last["summary"]["records"] == 98


@pytest.mark.slow
def test_a_torn_end_is_reported_and_is_no_damage(tmp_path: Path) -> None:
    leave_crashed(tmp_path / "log", numbered(3), rest=b"\0\0\0\x40torn")

    result = run("fsck", tmp_path / "log")
    summary = json_lines(run("fsck", tmp_path / "log", "--json"))[-1]["summary"]

    assert result.exit_code == 0
    assert "unfinished end: " in result.stdout
    assert result.stdout.endswith("3 good records in 1 segment (8.4 MB): no damage\n")
    assert (summary["damage"], summary["torn"], summary["state"]) == (0, 1, "crashed")


def test_foreign_and_half_made_files_are_named(tmp_path: Path) -> None:
    path = make_log(tmp_path / "log", numbered(3))
    (path / "notes.txt").touch()
    (path / "index.new").touch()

    rows = json_lines(run("fsck", path, "--json"))

    assert rows[:2] == [
        {"foreign": "notes.txt"},
        {"note": "index.new was left half made; the next open removes it"},
    ]


def test_damaged_side_files_are_damage(tmp_path: Path) -> None:
    path = make_log(tmp_path / "log", numbered(3))
    with Log(path) as log:
        log.consumer("billing")
    flip(path / "index", 5)

    result = run("fsck", path, "--json")

    assert result.exit_code == exits.DAMAGE
    assert json_lines(result)[0]["damage"]["path"] == f"{path}/index"


def test_a_damaged_tail_file_is_damage_and_the_records_are_read(tmp_path: Path) -> None:
    path = make_log(tmp_path / "log", numbered(3))
    (path / "tail").write_bytes(b"rubbish" * 1_000)

    rows = json_lines(run("fsck", path, "--json"))

    assert rows[0]["damage"]["path"] == f"{path}/tail"
    assert (rows[-1]["summary"]["records"], rows[-1]["summary"]["lost"]) == (3, 0)


def test_a_version_without_checksums_is_said_to_be_checked_less(tmp_path: Path) -> None:
    path = make_log(tmp_path / "log", numbered(3), version=1)

    assert "version 1 has no checksums: only sizes were checked" in run("fsck", path).stdout


def test_recover_copies_all_that_can_be_read_and_leaves_the_source_alone(tmp_path: Path) -> None:
    path = make_log(tmp_path / "log", numbered(100))
    flip(path / segments_of(path)[0], 60)
    before = fingerprint(path)

    result = run("recover", path, "--to", tmp_path / "new", "--json")
    rows = json_lines(result)

    assert result.exit_code == 0
    assert fingerprint(path) == before
    assert values_of(tmp_path / "new") == [b"record 0", *numbered(100)[2:]]
    assert [row["run"] for row in rows if "run" in row] == [
        {"source": 0, "target": 0, "count": 1},
        {"source": 2, "target": 1, "count": 98},
    ]
    assert rows[-1]["summary"]["copied"] == 99
    assert rows[-1]["summary"]["lost"] == 1
    assert rows[-1]["summary"]["same_offsets"] is False
    assert rows[0]["damage"]["offset"] == 1


def test_recovered_records_keep_their_times(tmp_path: Path) -> None:
    with Log(tmp_path / "log", sync="os", clock=SteppingClock(1_700_000_000_000, 7)) as log:
        for value in numbered(50):
            log.append(value)

    run("recover", tmp_path / "log", "--to", tmp_path / "new")

    with LogReader(tmp_path / "log") as old, LogReader(tmp_path / "new") as new:
        assert list(new) == list(old)
        assert len({record.time_ms for record in new}) > 10


def test_consumers_are_carried_over_to_the_same_records(tmp_path: Path) -> None:
    path = make_log(tmp_path / "log", numbered(100))
    with Log(path) as log:
        log.consumer("audit", start=60)
        log.consumer("billing", start=1)
    flip(path / segments_of(path)[0], 60)

    run("recover", path, "--to", tmp_path / "new")

    with Log(tmp_path / "new") as log:
        assert log.consumer("audit").read(1)[0].value == b"record 60"
        assert log.consumer("billing").read(1)[0].value == b"record 2"


def test_a_target_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    path = make_log(tmp_path / "log", numbered(3))
    make_log(tmp_path / "new", [b"mine"])

    result = run("recover", path, "--to", tmp_path / "new")

    assert result.exit_code == exits.CANNOT_CREATE
    assert values_of(tmp_path / "new") == [b"mine"]


def test_a_target_within_the_source_is_refused(tmp_path: Path) -> None:
    path = make_log(tmp_path / "log", numbered(3))

    result = run("recover", path, "--to", path / "new")

    assert result.exit_code == exits.CANNOT_CREATE
    assert not (path / "new").exists()


def test_the_text_tells_how_offsets_moved(tmp_path: Path) -> None:
    path = make_log(tmp_path / "log", numbered(100))
    flip(path / segments_of(path)[0], 60)

    result = run("recover", path, "--to", tmp_path / "new")

    assert "  2 to 99 became 1 to 98\n" in result.stdout
    assert "99 records copied to" in result.stdout


def test_a_place_in_a_gap_moves_to_the_next_record_that_is_left() -> None:
    report = Copying()
    report.add_run(10, 0, 5)
    report.add_run(15, 5, 5)
    report.add_run(30, 10, 5)

    assert [report.place(offset) for offset in (0, 12, 20, 29, 34, 35, 99)] == [
        *(0, 2, 10, 10, 14, 15, 15)
    ]


def test_a_number_that_nobody_knows_is_never_printed_as_0(
    capsys: pytest.CaptureFixture[str],
) -> None:
    damage = (
        Damage("q/0000000000", 0, 34, "cannot be read", offset=7),
        Damage("q/0000000010", 0, 34, "checksum does not match", offset=16, count=3),
    )
    report = Report(
        kind="log", path="q", state="closed", records=0, segments=2, bytes=68, damage=damage
    )

    write_text(report, kind_named("log"))

    printed = capsys.readouterr().out
    assert summary(report)["lost"] is None
    assert "cannot be read; records lost: an unknown number from offset 7\n" in printed
    assert "records lost: 3 from offset 16\n" in printed
    assert "2 damaged places, an unknown number of records lost" in printed
