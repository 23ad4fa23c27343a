"""Looking at deadline queues from outside, and saving what can be read of damaged ones."""

from __future__ import annotations

import base64
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from forebay import DeadlineQueue
from forebay.cli import exits
from tests.cli.deadline_helpers import (
    FUTURE_MS,
    KEYS,
    PAST_MS,
    items_of,
    make_queue,
    make_worn_queue,
    numbered_item,
    values_of,
)
from tests.cli.helpers import environment, json_lines, run
from tests.queues.deadline_helpers import files_of, open_queue
from tests.queues.helpers import run_python, snapshot
from tests.sources import ROOT
from tests.support.values import flip

QRONO = ROOT / "tests" / "golden" / "qrono"
MANIFEST = "deadline-manifest"
RUN = "0000000001.p.run"
TOMBSTONES = "0000000003.t.run"
COUNTS = "0000000003.d.run"
# What make_worn_queue leaves, by deadline, the buried one last.
LIVE = [*map(numbered_item, range(3, 20)), b"later", numbered_item(2)]
HOUR_MS = 3_600_000


def decoded(result: Any) -> list[bytes]:
    lines = [line for line in json_lines(result) if "damage" not in line]
    return [base64.b64decode(line["value_b64"]) for line in lines]


def test_cat_prints_the_live_items_by_deadline_while_the_queue_is_in_use(tmp_path: Path) -> None:
    path = make_worn_queue(tmp_path / "q")
    with open_queue(path):
        before = snapshot(path)

        result = run("cat", path, "--json")

        assert snapshot(path) == before
    lines = json_lines(result)
    assert decoded(result) == LIVE
    assert list(lines[0]) == KEYS
    assert [line["type"] for line in lines] == ["pending"] * 18 + ["buried"]
    assert [line["dequeue_count"] for line in lines] == [1, *[0] * 17, 1]
    assert lines[-1]["reason"] == "no good"


def test_cat_raw_prints_what_every_file_holds(tmp_path: Path) -> None:
    path = make_worn_queue(tmp_path / "q")

    lines = json_lines(run("cat", path, "--raw", "--json"))

    kinds = [line["type"] for line in lines]
    assert kinds == [
        *(["pending"] * 20),
        *("dequeued", "buried"),
        *(["tombstone"] * 3),
        "pending",
    ]
    assert [line["id"] for line in lines[20:25]] == [4, 3, 1, 2, 3]
    assert lines[20]["dequeue_count"] == 1


def test_cat_prints_one_file_of_counts(tmp_path: Path) -> None:
    path = make_worn_queue(tmp_path / "q")

    (line,) = json_lines(run("cat", path / COUNTS, "--json"))

    assert (line["type"], line["id"], line["dequeue_count"]) == ("dequeued", 4, 1)


def test_peek_shows_the_first_items_due_or_not_and_they_stay(tmp_path: Path) -> None:
    path = tmp_path / "q"
    run("put", path, "--kind", "deadline", "--deadline", FUTURE_MS, stdin=b"b\nc\n")
    run("put", path, "--deadline", PAST_MS, stdin=b"a\n")

    one = run("peek", path)
    more = run("peek", path, "-n", 9, "--json")

    assert one.stdout == "a\n"
    assert decoded(more) == values_of(path) == [b"a", b"b", b"c"]


def test_peek_passes_over_what_is_buried(tmp_path: Path) -> None:
    path = make_queue(tmp_path / "q", [b"one"])
    run("take", path, "--lease", 60)
    run("bury", path, "1.1")

    result = run("peek", path)

    assert (result.exit_code, result.stdout) == (exits.NOTHING, "")


def test_info_counts_what_is_due_by_when(tmp_path: Path) -> None:
    path = make_worn_queue(tmp_path / "q")
    with DeadlineQueue(path) as queue:
        queue.enqueue_many([b"x"] * 2, delay=HOUR_MS // 1000 * 30)

    (info,) = json_lines(run("info", path, "--json"))
    text = run("info", path).stdout

    assert (info["kind"], info["state"], info["owner"]) == ("deadline", "closed", None)
    assert (info["pending"], info["due"], info["working"], info["buried"]) == (20, 17, 0, 1)
    rows = ["overdue", "minute", "hour", "day", "week", "month", "year", "later"]
    assert list(info["deadlines"]) == rows
    assert list(info["deadlines"].values()) == [17, 0, 0, 0, 2, 0, 0, 1]
    assert (info["runs"], info["logs"], info["damage"]) == (5, 1, [])
    assert info["bytes"] == sum(file.stat().st_size for file in files_of(path, ".run")) + sum(
        file.stat().st_size for file in files_of(path, ".wal")
    )
    assert info["next_deadline_ms"] == PAST_MS + 3000
    assert "due by now\t17\n" in text
    assert "within a week\t2\n" in text


def test_info_of_a_queue_in_use_says_what_only_the_owner_knows(tmp_path: Path) -> None:
    with DeadlineQueue(tmp_path / "q") as queue:
        queue.enqueue(b"x")
        queue.dequeue()

        (info,) = json_lines(run("info", tmp_path / "q", "--json"))

    assert (info["state"], info["owner"]) == ("open", os.getpid())
    assert (info["pending"], info["working"]) == (1, None)


@pytest.mark.slow
def test_info_draws_bars_on_a_terminal(tmp_path: Path) -> None:
    path = make_queue(tmp_path / "q", [b"x"] * 3)
    controller, terminal = pty.openpty()
    subprocess.run(
        [sys.executable, "-m", "forebay", "info", str(path)],
        stdout=terminal,
        check=True,
        env={**environment(), "NO_COLOR": "1", "TERM": "dumb"},
    )
    os.close(terminal)

    text = os.read(controller, 65_536).decode()
    os.close(controller)

    (row,) = [line for line in text.splitlines() if "due by now" in line]
    assert row.split() == ["due", "by", "now", "3", "█" * 40]


def test_segments_lists_the_files_that_count(tmp_path: Path) -> None:
    path = make_worn_queue(tmp_path / "q")

    lines = json_lines(run("segments", path, "--json"))
    table = run("segments", path).stdout

    holds = ["items", "items", "counts", "items", "tombstones", "log"]
    assert [line["holds"] for line in lines] == holds
    assert [line["records"] for line in lines] == [10, 10, 1, 1, 3, None]
    assert (lines[0]["name"], lines[0]["first_deadline_ms"]) == (RUN, PAST_MS)
    assert lines[1]["last_deadline_ms"] == PAST_MS + 19_000
    assert table.startswith("name\trecords\tbytes\tholds\tfirst deadline\tlast deadline\n")


def test_fsck_of_a_whole_queue_counts_and_changes_nothing(tmp_path: Path) -> None:
    path = make_worn_queue(tmp_path / "q")
    (path / "notes.txt").write_bytes(b"")
    (path / f"{MANIFEST}.new").write_bytes(b"half")
    shutil.copy(path / RUN, path / "0000000009.p.run")
    before = snapshot(path)

    result = run("fsck", path, "--json")
    text = run("fsck", path)

    lines = json_lines(result)
    summary = lines[-1]["summary"]
    assert (result.exit_code, summary["records"], summary["buried"]) == (exits.OK, 19, 1)
    assert (summary["damage"], summary["segments"], summary["state"]) == (0, 6, "closed")
    assert {"foreign": "notes.txt"} in lines
    assert {"note": f"{MANIFEST}.new was left half made; the next open removes it"} in lines
    not_counted = f"0000000009.p.run is a run that {MANIFEST} does not count any more"
    assert {"note": not_counted} in lines
    assert "19 good items in 6 files" in text.stdout
    assert snapshot(path) == before


# A byte of each part: the file, its position (from the end if below 0), what is said of it, and
# which of the items in the first run are lost.
HARMS = [
    (MANIFEST, 30, "all files that are there count", range(0)),
    (RUN, 2, "", range(0)),
    # All items of the first block have left it.
    (RUN, 20 + 24 + 80, "the check of block 0 does not match", range(0)),
    (RUN, 40_000, "the check of block 1 does not match", range(3, 6)),
    (RUN, -5, "", range(0)),
    (RUN, -141, "the check of the id index does not match; lookups by id read", range(0)),
    (TOMBSTONES, 50, "items that were taken away may come again", range(0)),
    (COUNTS, 50, "how often items were given out may be too low", range(0)),
    ("0000000004.wal", 5, "the header does not verify", range(0)),
]
harmed = pytest.mark.parametrize(
    ("name", "position", "reason", "lost"), HARMS, ids=[f"{row[0]} {row[1]}" for row in HARMS]
)


def harm(path: Path, name: str, position: int) -> None:
    size = (path / name).stat().st_size
    flip(path / name, position if position >= 0 else size + position)


@harmed
def test_fsck_tells_every_bad_byte(
    tmp_path: Path, name: str, position: int, reason: str, lost: range
) -> None:
    path = make_worn_queue(tmp_path / "q")
    harm(path, name, position)
    before = snapshot(path)

    result = run("fsck", path, "--json")

    found = [line["damage"] for line in json_lines(result) if "damage" in line]
    at = position if position >= 0 else (path / name).stat().st_size + position
    assert result.exit_code == run("fsck", path).exit_code == exits.DAMAGE
    assert {item["path"] for item in found} == {f"{path}/{name}"}
    assert any(item["position"] <= at < item["position"] + item["length"] for item in found)
    assert any(reason in item["reason"] for item in found)
    assert json_lines(result)[-1]["summary"]["lost"] == len(lost)
    assert snapshot(path) == before


@harmed
def test_salvage_and_recover_give_all_that_can_be_read(
    tmp_path: Path, name: str, position: int, reason: str, lost: range
) -> None:
    path = make_worn_queue(tmp_path / "q")
    harm(path, name, position)
    before = snapshot(path)
    # The first three are gone or elsewhere: the manifest knows, whatever is with their tombstones.
    missing = [numbered_item(number) for number in lost if number > 2]
    expected = [value for value in LIVE if value not in missing]

    salvaged = run("cat", path, "--salvage", "--json")
    result = run("recover", path, "--to", tmp_path / "new", "--json")

    summary = json_lines(result)[-1]["summary"]
    assert (salvaged.exit_code, decoded(salvaged)) == (exits.OK, expected)
    assert (result.exit_code, summary["copied"]) == (exits.OK, len(expected))
    assert summary["pending"] + summary["buried"] == summary["copied"]
    assert summary["lost"] == len(lost)
    assert values_of(tmp_path / "new") == expected
    assert snapshot(path) == before


@harmed
def test_info_and_segments_of_a_damaged_queue_tell_what_they_can(
    tmp_path: Path, name: str, position: int, reason: str, lost: range
) -> None:
    path = make_worn_queue(tmp_path / "q")
    harm(path, name, position)

    info = run("info", path, "--json")
    listed = run("segments", path, "--json")

    assert info.exit_code == exits.OK
    assert json_lines(info)[0]["runs"] == 5
    assert json_lines(info)[0]["buried"] == 1
    assert listed.exit_code in (exits.OK, exits.DAMAGE)
    assert len(json_lines(listed)) == 6


def test_cat_stops_at_damage_and_says_where(tmp_path: Path) -> None:
    path = make_worn_queue(tmp_path / "q")
    flip(path / RUN, 40_000)

    result = run("cat", path)

    assert result.exit_code == exits.DAMAGE
    assert f"{path}/{RUN}, byte " in result.stderr
    assert "--salvage skips it" in result.stderr


def test_take_goes_on_behind_damage_and_ends_with_its_code(tmp_path: Path) -> None:
    path = make_worn_queue(tmp_path / "q")
    flip(path / RUN, 40_000)

    result = run("take", path, "-n", 100)

    assert result.exit_code == exits.DAMAGE
    assert "the check of block 1 does not match" in result.stderr
    assert result.stdout_bytes.split(b"\n")[:-1] == LIVE[3:17]
    assert [item.value for item in items_of(path)] == LIVE[17:]


def test_merge_of_a_damaged_queue_keeps_what_can_be_read(tmp_path: Path) -> None:
    path = make_worn_queue(tmp_path / "q")
    flip(path / RUN, 40_000)

    result = run("merge", path)

    assert result.exit_code == exits.DAMAGE
    assert "what did not verify was dropped" in result.stderr
    assert run("fsck", path).exit_code == exits.DAMAGE
    assert run("fsck", path, "--accept").exit_code == exits.OK
    assert run("fsck", path).exit_code == exits.OK
    assert decoded(run("cat", path, "--json")) == LIVE[3:]


@pytest.mark.parametrize("name", [MANIFEST, RUN])
def test_a_missing_file_is_damage(tmp_path: Path, name: str) -> None:
    path = make_worn_queue(tmp_path / "q")
    (path / name).unlink()

    result = run("fsck", path)
    info = run("info", path)

    assert (result.exit_code, info.exit_code) == (exits.DAMAGE, exits.OK)
    assert f"{path}/{name}, byte 0, 0 bytes: " in result.stdout


def test_the_state_of_a_queue_without_its_manifest_is_told(tmp_path: Path) -> None:
    path = make_worn_queue(tmp_path / "q")
    (path / MANIFEST).unlink()

    (info,) = json_lines(run("info", path, "--json"))

    assert (info["state"], info["next_id"]) == ("manifest-damaged", None)
    assert (info["pending"], info["due"], info["buried"]) == (18, 17, 1)


@pytest.mark.slow
def test_a_killed_owner_leaves_a_queue_that_can_be_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "q"
    program = (
        "import os, sys; from forebay import DeadlineQueue; q = DeadlineQueue(sys.argv[1])\n"
        "q.enqueue_many([b'a', b'b']); q.dequeue(); os._exit(9)"
    )
    run_python(program, path)
    (log,) = files_of(path, ".wal")
    with log.open("r+b") as file:
        file.seek(len(log.read_bytes().rstrip(b"\0")))
        file.write(b"\x40\0\0\0half a batch")

    checked = run("fsck", path)
    printed = run("cat", path)

    assert (checked.exit_code, printed.exit_code) == (exits.OK, exits.OK)
    assert f"unfinished end: {log}, byte " in checked.stdout
    assert "no acknowledged record is missing" in printed.stderr
    assert printed.stdout == "a\nb\n"


def test_recover_keeps_deadlines_times_and_burials(tmp_path: Path) -> None:
    path = make_worn_queue(tmp_path / "q")
    run("put", path, "--deadline", 0, stdin=b"first of all\n")

    result = run("recover", path, "--to", tmp_path / "new")

    facts = [
        [
            (item.value, item.deadline_ms, item.enqueue_ms, item.buried, item.reason)
            for item in items_of(each)
        ]
        for each in (path, tmp_path / "new")
    ]
    assert facts[0] == facts[1]
    copied = f"20 items copied to {tmp_path / 'new'}, 0 items lost\n"
    assert result.stdout == f"buried items: 1\n{copied}"


def test_recover_brings_the_files_of_the_original_into_a_queue(tmp_path: Path) -> None:
    before = snapshot(QRONO)

    result = run("recover", QRONO, "--to", tmp_path / "new", "--json")

    old = json_lines(run("cat", QRONO, "--json"))
    new = json_lines(run("cat", tmp_path / "new", "--json"))
    same = ("enqueue_ms", "value_b64")
    assert [[line[key] for key in same] for line in new] == [
        [line[key] for key in same] for line in old
    ]
    deadlines = [min(line["deadline_ms"], 2**47 - 1) for line in old]
    assert [line["deadline_ms"] for line in new] == deadlines
    (summary,) = json_lines(result)
    counts = {"copied": 7, "pending": 7, "buried": 0, "moved": 1, "lost": 0, "damage": 0}
    assert summary["summary"] == counts
    assert snapshot(QRONO) == before


def test_recover_of_a_damaged_file_of_the_original_tells_it(tmp_path: Path) -> None:
    shutil.copytree(QRONO, tmp_path / "old", ignore=shutil.ignore_patterns("*log"))
    flip(tmp_path / "old" / "0000000000.p-idx", 7)

    checked = run("fsck", tmp_path / "old")
    result = run("recover", tmp_path / "old", "--to", tmp_path / "new", "--json")

    damage, summary = json_lines(result)
    assert checked.exit_code == exits.DAMAGE
    assert damage["damage"]["path"] == f"{tmp_path}/old/0000000000.p-idx"
    assert summary["summary"]["lost"] == 8
    assert summary["summary"]["copied"] == len(items_of(tmp_path / "new"))


@pytest.mark.parametrize("verb", ["info", "take", "merge", "tail", "segments"])
def test_a_folder_of_the_original_is_no_queue_until_it_is_recovered(verb: str) -> None:
    before = snapshot(QRONO)

    result = run(verb, QRONO)

    assert result.exit_code == exits.USAGE
    told = f"{QRONO} is a folder of the original deadline queue's files"
    assert f'{told}: "forebay recover" copies them into a queue' in result.stderr
    assert snapshot(QRONO) == before


def test_fsck_of_a_folder_of_the_original_says_what_cannot_be_checked() -> None:
    result = run("fsck", QRONO)

    assert result.exit_code == exits.OK
    assert "these files have no checksums" in result.stdout
    assert "7 good items in 7 files" in result.stdout
