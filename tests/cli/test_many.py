"""Several queues at once: `ls`, several PATHs, and waiting for one that is in use."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import forebay
from forebay.cli import exits
from forebay.queues.kinds import KINDS
from tests.cli.helpers import flip, json_lines, make_log, numbered, run

LINES = b'{"fields":{"n":1}}\n{"fields":{"n":2}}\n'


def make_all(path: Path) -> list[Path]:
    """Makes a queue of every kind with two records each, and something that is none."""
    for kind in KINDS:
        assert run("put", path / kind.name, "--kind", kind.name, stdin=LINES).exit_code == 0
    (path / "notes").mkdir()
    (path / "notes.txt").touch()
    return sorted(path / kind.name for kind in KINDS)


def test_ls_lists_the_queues_of_a_directory(tmp_path: Path) -> None:
    paths = make_all(tmp_path)

    result = run("ls", tmp_path)
    rows = json_lines(run("ls", tmp_path, "--json"))

    table = [line.split("\t") for line in result.stdout.splitlines()]
    assert result.exit_code == exits.OK
    assert table[0] == ["path", "kind", "state", "owner", "records", "bytes"]
    assert [row[:5] for row in table[1:]] == [
        [str(path), path.name, "closed", "", "2"] for path in paths
    ]
    assert [row["kind"] for row in rows] == [path.name for path in paths]


def test_ls_of_a_queue_and_of_a_root_lists_them(tmp_path: Path) -> None:
    make_log(tmp_path / "log", numbered(3))
    with forebay.Root(tmp_path / "root") as root:
        root.define("jobs", "fifo")
        root.queue("jobs", "fifo").push(b"job")

    rows = json_lines(run("ls", tmp_path / "log", tmp_path / "root", "--json"))
    info = run("info", tmp_path / "root")

    assert [(row["kind"], row["records"]) for row in rows] == [("log", 3), ("fifo", 1)]
    assert info.exit_code == exits.ERROR
    assert 'is a root of queues: "forebay ls" lists them' in info.stderr


def test_every_kind_has_the_same_fields_first(tmp_path: Path) -> None:
    make_all(tmp_path)
    common = [
        *("kind", "path", "state", "owner", "records", "segments", "bytes", "damage"),
        *("losses", "quarantined_files", "quarantined_bytes", "maintenance", "syncs"),
    ]

    facts = json_lines(run("ls", tmp_path, "--json"))
    files = [json_lines(run("segments", row["path"], "--json"))[0] for row in facts]
    checks = [json_lines(run("fsck", row["path"], "--json"))[-1]["summary"] for row in facts]

    assert all(list(row)[: len(common)] == common for row in facts)
    assert all(list(row)[:4] == ["name", "records", "bytes", "error"] for row in files)
    assert [row["records"] for row in checks] == [row["records"] for row in facts]


@pytest.mark.parametrize("verb", ["info", "segments", "fsck", "cat"])
def test_a_path_that_fails_does_not_keep_the_others_from_being_looked_at(
    tmp_path: Path, verb: str
) -> None:
    first = make_log(tmp_path / "a", numbered(3))
    last = make_log(tmp_path / "c", numbered(3))

    result = run(verb, first, tmp_path / "b", last)
    alone = run(verb, first), run(verb, last)

    assert result.exit_code == exits.ERROR
    assert result.stderr == f"forebay: {tmp_path}/b: No such file or directory\n"
    if verb != "fsck":
        assert result.stdout == "".join(each.stdout for each in alone)


def test_fsck_of_several_ends_with_the_code_for_damage(tmp_path: Path) -> None:
    good = make_log(tmp_path / "good", numbered(3))
    bad = make_log(tmp_path / "bad", numbered(3))
    flip(bad / "0000000000", 60)

    result = run("fsck", good, bad, good)

    assert result.exit_code == exits.DAMAGE
    assert f"{good}: 3 good records in 1 segment" in result.stdout
    assert f"{bad}: 2 good records in 1 segment" in result.stdout


@pytest.mark.parametrize("arguments", [("put",), ("trim",), ("consumers", "--forget", "c")])
def test_a_verb_waits_for_a_queue_that_is_in_use(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    log = forebay.Log(tmp_path / "q")
    log.consumer("c")
    closing = threading.Timer(0.5, log.close)
    closing.start()

    result = run(arguments[0], tmp_path / "q", *arguments[1:], "--wait", 60)
    closing.join()

    assert result.exit_code == exits.OK


@pytest.mark.parametrize(
    "arguments", [("release", "1.1"), ("bury", "1.1"), ("kick", "1"), ("take",)]
)
def test_waiting_in_vain_gives_the_code_to_try_again(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    with forebay.DeadlineQueue(tmp_path / "q"):
        result = run(arguments[0], tmp_path / "q", *arguments[1:], "--wait", 0.2)

    assert result.exit_code == exits.TRY_AGAIN
    assert "is in use by process" in result.stderr
