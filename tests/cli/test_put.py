from __future__ import annotations

import signal
from pathlib import Path

import pytest

from forebay import LogReader
from forebay.cli import exits
from tests.cli.helpers import (
    json_lines,
    make_log,
    numbered,
    run,
    segments_of,
    start,
    values_of,
)
from tests.support.waiting import wait_until


def test_lines_of_stdin_become_records_without_their_newline(tmp_path: Path) -> None:
    result = run("put", tmp_path / "log", stdin=b"one\n\ntwo\r\nthree")

    assert result.exit_code == 0
    assert result.stdout == ""
    assert result.stderr == "4 records, offsets 0 to 3\n"
    assert values_of(tmp_path / "log") == [b"one", b"", b"two\r", b"three"]


def test_json_tells_the_first_offset_and_the_count(tmp_path: Path) -> None:
    make_log(tmp_path / "log", numbered(3))

    result = run("put", tmp_path / "log", "--json", stdin=b"a\nb\n")

    assert result.stdout == ('{"count":2,"first":3,"last":4,"first_str":"3","last_str":"4"}\n')
    assert result.stderr == ""


def test_no_input_makes_an_empty_log_and_says_so(tmp_path: Path) -> None:
    result = run("put", tmp_path / "log")

    assert result.exit_code == 0
    assert result.stderr == "no records\n"
    assert values_of(tmp_path / "log") == []


def test_files_are_read_in_order_and_a_dash_is_stdin(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1\n2")
    (tmp_path / "b").write_bytes(b"4\n")

    result = run("put", tmp_path / "log", tmp_path / "a", "-", tmp_path / "b", stdin=b"3\n")

    assert result.exit_code == 0
    assert values_of(tmp_path / "log") == [b"1", b"2", b"3", b"4"]


def test_with_framing_files_each_file_is_one_record(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1\n2\n")
    (tmp_path / "b").write_bytes(b"\0\1")

    run("put", tmp_path / "log", tmp_path / "a", tmp_path / "b", "--framing", "files")

    assert values_of(tmp_path / "log") == [b"1\n2\n", b"\0\1"]


def test_framing_files_without_a_file_is_a_usage_error(tmp_path: Path) -> None:
    result = run("put", tmp_path / "log", "--framing", "files")

    assert result.exit_code == exits.USAGE
    assert not (tmp_path / "log").exists()


def test_bad_lengths_keep_what_came_before_and_give_the_code_for_bad_data(tmp_path: Path) -> None:
    result = run("put", tmp_path / "log", "--framing", "length", stdin=b"\0\0\0\1a\0\0\0\5b")

    assert result.exit_code == exits.BAD_DATA
    assert result.stderr == (
        "before the bad input: 1 record, offset 0\n"
        "forebay: stdin: the input ends inside a record, 5 bytes into it\n"
    )
    assert values_of(tmp_path / "log") == [b"a"]


def test_a_record_that_no_segment_takes_is_named_and_those_before_it_stay(tmp_path: Path) -> None:
    big = b"x" * 2_000

    result = run("put", tmp_path / "log", "--segment-bytes", 1000, stdin=b"a\nb\n" + big + b"\nc\n")

    assert result.exit_code == exits.BAD_DATA
    assert "stdin: record 3 has 2000 bytes; the queue takes 954" in result.stderr
    assert values_of(tmp_path / "log") == [b"a", b"b"]


def test_version_one_refuses_an_empty_line(tmp_path: Path) -> None:
    result = run("put", tmp_path / "log", "--version", 1, stdin=b"a\n\nb\n")

    assert result.exit_code == exits.BAD_DATA
    assert "record 2 is empty, which version 1 cannot store" in result.stderr
    assert values_of(tmp_path / "log") == [b"a"]


def test_a_log_of_version_one_stays_one_unless_asked_otherwise(tmp_path: Path) -> None:
    make_log(tmp_path / "log", [b"a"], version=1)

    run("put", tmp_path / "log", stdin=b"b\n")
    run("put", tmp_path / "log", "--version", 2, stdin=b"c\n")
    found = [row["version"] for row in json_lines(run("segments", tmp_path / "log", "--json"))]

    assert found == [1, 1, 2]


def test_segments_get_the_size_that_is_asked_for(tmp_path: Path) -> None:
    lines = b"\n".join(numbered(100))

    run("put", tmp_path / "log", "--segment-bytes", 1000, "--sync", "os", stdin=lines)

    assert len(segments_of(tmp_path / "log")) > 2
    assert values_of(tmp_path / "log") == numbered(100)


def test_an_option_out_of_its_bounds_is_a_usage_error_and_names_the_bound(tmp_path: Path) -> None:
    result = run("put", tmp_path / "log", "--segment-bytes", 5)

    assert result.exit_code == exits.USAGE
    assert "segment_bytes = 5: must be a whole number, 1000 to" in result.stderr


@pytest.mark.parametrize("make", [Path.touch, lambda path: (path.mkdir(), (path / "x").touch())])
def test_a_path_that_is_something_else_cannot_be_created(make: object, tmp_path: Path) -> None:
    assert callable(make)
    make(tmp_path / "other")

    result = run("put", tmp_path / "other", stdin=b"a\n")

    assert result.exit_code == exits.CANNOT_CREATE
    assert result.stderr.startswith(f"forebay: {tmp_path}/other is")


@pytest.mark.slow
def test_a_slow_pipe_does_not_wait_for_a_full_batch(tmp_path: Path) -> None:
    process = start("put", tmp_path / "log")
    assert process.stdin is not None

    process.stdin.write(b"one\ntw")
    process.stdin.flush()
    came = wait_until(lambda: _values(tmp_path / "log") == [b"one"])
    _, said = process.communicate(b"o\n")

    assert came
    assert said == b"2 records, offsets 0 to 1\n"
    assert process.returncode == 0


@pytest.mark.slow
def test_interrupting_keeps_the_log_whole_and_tells_the_position(tmp_path: Path) -> None:
    process = start("put", tmp_path / "log")
    assert process.stdin is not None
    process.stdin.write(b"one\ntwo\nhal")
    process.stdin.flush()
    came = wait_until(lambda: _values(tmp_path / "log") == [b"one", b"two"])

    process.send_signal(signal.SIGINT)
    _, said = process.communicate()

    assert came
    assert said == b"interrupted: 2 records, offsets 0 to 1\n"
    assert process.returncode == exits.INTERRUPTED
    assert json_lines(run("fsck", tmp_path / "log", "--json"))[-1]["summary"]["state"] == "closed"


def _values(path: Path) -> list[bytes]:
    if not (path / "tail").exists():
        return []
    with LogReader(path) as reader:
        return list(reader.values())
