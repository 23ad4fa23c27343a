"""A log consumed from the shell: `take --consumer`, `peek --consumer`, and trimming after it."""

from __future__ import annotations

import base64
from pathlib import Path

from forebay.cli import exits
from tests.cli.helpers import (
    flip,
    json_lines,
    make_log,
    numbered,
    run,
    segments_of,
)


def lines(values: list[bytes]) -> bytes:
    return b"".join(value + b"\n" for value in values)


def test_a_consumer_gets_every_record_once_and_trimming_waits_for_it(tmp_path: Path) -> None:
    path = make_log(tmp_path / "log", numbered(100))
    as_billing = ("--consumer", "billing")

    first = run("take", path, "-n", 60, *as_billing)
    peeked = run("peek", path, *as_billing, "--json")
    rest = run("take", path, "-n", 1000, *as_billing, "--json")
    none = run("take", path, *as_billing)
    trimmed = run("trim", path, "--json")

    assert first.stdout_bytes == lines(numbered(60))
    assert [row["offset"] for row in json_lines(peeked)] == [60]
    values = [base64.b64decode(row["value_b64"]) for row in json_lines(rest)]
    assert values == numbered(100)[60:]
    assert list(json_lines(rest)[0]) == ["kind", "offset", "time_ms", "value", "value_b64"]
    assert (none.exit_code, none.stdout) == (exits.NOTHING, "")
    assert json_lines(trimmed)[0]["held_by"] == ["billing"]
    assert len(segments_of(path)) == 1


def test_consumers_have_their_own_places(tmp_path: Path) -> None:
    path = make_log(tmp_path / "log", numbered(3))

    run("take", path, "-n", 2, "--consumer", "a")
    other = run("take", path, "-n", 9, "--consumer", "b")

    assert other.stdout_bytes == lines(numbered(3))
    rows = json_lines(run("consumers", path, "--json"))
    assert {row["name"]: row["offset"] for row in rows} == {"a": 2, "b": 3}


def test_damage_is_told_and_passed_over(tmp_path: Path) -> None:
    path = make_log(tmp_path / "log", numbered(10))
    flip(path / segments_of(path)[0], 60)

    result = run("take", path, "-n", 20, "--consumer", "a")
    again = run("take", path, "--consumer", "a")

    assert result.exit_code == exits.DAMAGE
    assert "records lost: 1 from offset 1; skipped" in result.stderr
    assert result.stdout_bytes == lines([numbered(10)[0], *numbered(10)[2:]])
    assert (again.exit_code, again.stdout) == (exits.NOTHING, "")


def test_records_that_were_dropped_are_told_and_the_rest_comes(tmp_path: Path) -> None:
    options = ("--segment-bytes", 1000, "--max-bytes", 3000, "--when-full", "drop_oldest")
    run("put", tmp_path / "q", stdin=b"first\n")
    run("take", tmp_path / "q", "--consumer", "a")

    put = run("put", tmp_path / "q", *options, stdin=lines(numbered(500)))
    result = run("take", tmp_path / "q", "-n", 1000, "--consumer", "a")

    assert put.exit_code == exits.OK
    assert "consumer 'a'" in result.stderr
    assert result.exit_code == exits.OK
    assert result.stdout_bytes.endswith(b"record 499\n")
    assert 0 < len(result.stdout_bytes.splitlines()) < 500


def test_peek_of_an_unknown_consumer_is_a_usage_error(tmp_path: Path) -> None:
    path = make_log(tmp_path / "log", numbered(1))

    result = run("peek", path, "--consumer", "nobody")

    assert result.exit_code == exits.USAGE
    assert "has no consumer 'nobody'" in result.stderr
