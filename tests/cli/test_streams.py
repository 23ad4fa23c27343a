"""Standard streams that are closed or full: it is said, nothing is lost, nothing is put twice."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from forebay import Log
from forebay.cli import exits
from forebay.queues.kinds import KINDS
from tests.cli.deadline_helpers import PAST_MS
from tests.cli.helpers import environment, make_log, numbered, run, start, start_held, values_of
from tests.queues.deadline_helpers import open_queue
from tests.queues.helpers import snapshot
from tests.support.waiting import wait_until


def shell(path: Path, arguments: str, redirection: str, stdin: bytes = b"") -> tuple[int, str]:
    """Runs the program as a shell does; returns its code and what it said."""
    command = f"{shlex.quote(sys.executable)} -m forebay {arguments} {redirection}"
    result = subprocess.run(
        ["sh", "-c", command],
        input=stdin,
        capture_output=True,
        cwd=path,
        env=environment(),
        check=False,
    )
    return result.returncode, result.stderr.decode()


@pytest.mark.slow
def test_put_with_a_closed_stdin_says_so_and_makes_nothing(tmp_path: Path) -> None:
    code, said = shell(tmp_path, "put log", "<&-")

    assert (code, said) == (exits.ERROR, "forebay: stdin is closed; give a FILE or a pipe\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_put_needs_no_stdout(tmp_path: Path) -> None:
    code, said = shell(tmp_path, "put log", ">&-", b"a\nb\n")

    assert (code, said) == (exits.OK, "2 records, offsets 0 to 1\n")
    assert values_of(tmp_path / "log") == [b"a", b"b"]


@pytest.mark.parametrize("redirection", [">&-", ">/dev/full"])
@pytest.mark.parametrize("path", ["log", "new"])
def test_put_whose_report_could_not_be_printed_stores_nothing(
    tmp_path: Path, path: str, redirection: str
) -> None:
    make_log(tmp_path / "log", [b"a"])

    code, said = shell(tmp_path, f"put {path} --json", redirection, b"b\n")

    assert code == exits.ERROR
    assert said.startswith("forebay: ")
    assert "stdout" in said
    assert values_of(tmp_path / "log") == [b"a"]
    assert [each.name for each in tmp_path.iterdir()] == ["log"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "verb",
    [
        *("release later 1.1 --json", "requeue later 1.1 --json", "bury later 1.1 --json"),
        *("kick later 2 --json", "merge later", "trim log"),
        "consumers log --forget c --json",
    ],
)
def test_a_change_that_could_not_be_printed_is_not_made(tmp_path: Path, verb: str) -> None:
    with Log(tmp_path / "log", segment_bytes=1_000) as log:
        log.append_many(numbered(200))
        log.consumer("c", start=150)
    with open_queue(tmp_path / "later") as queue:
        queue.enqueue_many([b"leased", b"buried", b"left"], deadline_ms=PAST_MS)
        queue.bury(queue.dequeue_many(2)[1], "no good")
        queue.freeze()
    before = snapshot(tmp_path / "log"), snapshot(tmp_path / "later")

    code, said = shell(tmp_path, verb, ">&-")

    assert (code, said) == (exits.ERROR, "forebay: stdout is closed\n")
    assert (snapshot(tmp_path / "log"), snapshot(tmp_path / "later")) == before


@pytest.mark.slow
def test_put_whose_reader_has_gone_stores_nothing(tmp_path: Path) -> None:
    process = start_held("import time; time.sleep(0.2)", "put", tmp_path / "log", "--json")
    assert process.stdout is not None
    process.stdout.close()

    process.communicate(b"a\n")

    assert process.returncode == exits.BROKEN_PIPE
    assert not (tmp_path / "log").exists()


@pytest.mark.slow
def test_put_whose_reader_goes_meanwhile_says_that_it_has_stored(tmp_path: Path) -> None:
    process = start("put", tmp_path / "log", "--json")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"a\n")
    process.stdin.flush()
    came = wait_until((tmp_path / "log" / "tail").exists)
    process.stdout.close()

    _, said = process.communicate(b"b\n")

    assert came
    assert process.returncode == exits.BROKEN_PIPE
    assert said == b"2 records, offsets 0 to 1\n"
    assert values_of(tmp_path / "log") == [b"a", b"b"]


@pytest.mark.slow
@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_put_and_fsck_need_no_stderr(tmp_path: Path, redirection: str) -> None:
    put, _ = shell(tmp_path, "put log", redirection, b"a\n")
    fsck, _ = shell(tmp_path, "fsck log", redirection)

    assert (put, fsck) == (exits.OK, exits.OK)
    assert values_of(tmp_path / "log") == [b"a"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "verb", ["cat log", "info log", "segments log", "fsck log", "ls", "tail log"]
)
@pytest.mark.parametrize("redirection", [">&-", ">/dev/full"])
def test_a_stdout_that_takes_nothing_is_one_line_and_not_the_queues_error(
    tmp_path: Path, verb: str, redirection: str
) -> None:
    make_log(tmp_path / "log", numbered(3))

    code, said = shell(tmp_path, verb, redirection)

    assert code == exits.ERROR
    assert said.count("\n") == 1
    assert said.startswith("forebay: ")
    assert "stdout" in said


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
@pytest.mark.parametrize("redirection", [">&-", ">/dev/full"])
def test_take_without_a_stdout_removes_nothing(tmp_path: Path, kind: str, redirection: str) -> None:
    consumer = ["--consumer", "c"] if kind == "log" else []
    run("put", tmp_path / "q", "--kind", kind, stdin=b'{"fields":{"n":1}}\n{"fields":{"n":2}}\n')

    code, said = shell(tmp_path, f"take q -n 2 {' '.join(consumer)}", redirection)
    again = run("take", tmp_path / "q", "-n", 2, *consumer)

    assert code == exits.ERROR
    assert "stdout" in said
    assert again.exit_code == exits.OK
    assert len(again.stdout.splitlines()) == 2


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_an_encoding_lacks_is_printed_in_another_way(tmp_path: Path, encoding: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "forebay", "doctor", "--help"],
        capture_output=True,
        env={**environment(), "PYTHONIOENCODING": encoding},
        check=True,
    )

    assert b"spark://" in result.stdout


@pytest.mark.slow
def test_help_into_a_full_device_is_an_error_in_one_line(tmp_path: Path) -> None:
    code, said = shell(tmp_path, "--help", ">/dev/full")

    assert (code, said) == (
        exits.ERROR,
        "forebay: cannot write to stdout: No space left on device\n",
    )


@pytest.mark.slow
def test_a_usage_error_is_one_line(tmp_path: Path) -> None:
    code, said = shell(tmp_path, "cat --no-such-option q", "")

    assert code == exits.USAGE
    assert said == "forebay: No such option '--no-such-option'; see \"forebay cat --help\"\n"


def test_a_permission_error_says_whose_it_is(tmp_path: Path) -> None:
    (tmp_path / "q").mkdir()
    error = PermissionError(13, "Permission denied", str(tmp_path / "q" / "tail"))

    mine = exits.message_of(error)
    theirs = exits.message_of(PermissionError(13, "Permission denied", "/proc/1/root"))

    assert mine == f"{tmp_path}/q/tail: Permission denied; its mode forbids it"
    assert exits.code_of(error) == exits.ERROR
    assert os.geteuid() == 0 or 'belongs to user root: try "sudo -u root"' in theirs


def test_an_error_of_a_file_is_told_with_the_path_of_its_queue() -> None:
    bare = OSError(30, "Read-only file system", "tail")
    full = OSError(28, "No space left on device")

    assert exits.message_of(bare, "spool/q") == "spool/q/tail: Read-only file system"
    assert exits.message_of(full, "spool/q") == "spool/q: No space left on device"


def test_a_file_that_is_not_the_queues_is_told_by_its_own_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_log(tmp_path / "q", [b"a"])
    (tmp_path / "key").touch()

    told = [
        exits.message_of(OSError(13, "Permission denied", name), "q")
        for name in ("q", "tail", "key", str(tmp_path / "q" / "index"))
    ]

    where = [text.partition(": ")[0] for text in told]
    assert where == ["q", "q/tail", "key", f"{tmp_path}/q/index"]


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
@pytest.mark.parametrize("verb", ["put", "take --consumer c", "trim"])
def test_every_verb_says_alike_whose_a_queue_is(tmp_path: Path, verb: str) -> None:
    make_log(tmp_path / "q", [b"a"])
    os.chown(tmp_path / "q", 12345, -1)

    code, said = shell(tmp_path, f"{verb} q", "", b"b\n")

    assert (code, said) == (
        exits.ERROR,
        f'forebay: {tmp_path}/q belongs to user #12345: try "sudo -u #12345"\n',
    )
