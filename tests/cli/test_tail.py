from __future__ import annotations

import select
import signal
import subprocess
from pathlib import Path

import pytest

from forebay import Log
from forebay.cli import exits
from tests.cli.helpers import flip, json_lines, make_log, numbered, run, segments_of, start


@pytest.mark.parametrize(("count", "first"), [(3, 97), (0, 100), (500, 0)])
def test_it_prints_the_last_records(count: int, first: int, tmp_path: Path) -> None:
    make_log(tmp_path / "log", numbered(100))

    result = run("tail", tmp_path / "log", "-n", count, "--json")

    assert result.exit_code == 0
    assert [row["offset"] for row in json_lines(result)] == list(range(first, 100))


def test_ten_records_are_the_default(tmp_path: Path) -> None:
    result = run("tail", make_log(tmp_path / "log", numbered(100)))

    assert result.stdout.splitlines() == [f"record {number}" for number in range(90, 100)]


def test_damage_stops_it_unless_salvage_is_asked_for(tmp_path: Path) -> None:
    path = make_log(tmp_path / "log", numbered(10))
    flip(path / segments_of(path)[0], 60)

    plain = run("tail", path)
    salvaged = run("tail", path, "--salvage")

    assert plain.exit_code == exits.DAMAGE
    assert salvaged.exit_code == 0
    assert len(salvaged.stdout.splitlines()) == 9


@pytest.mark.slow
def test_following_prints_what_comes_across_segments_until_interrupted(tmp_path: Path) -> None:
    lines = []
    with Log(tmp_path / "log", segment_bytes=1_000) as log:
        log.append_many(numbered(3))
        process = start("tail", tmp_path / "log", "-n", 1, "-f", stdin=subprocess.DEVNULL)
        assert process.stdout is not None
        lines.append(process.stdout.readline())
        log.append_many(numbered(100))
        lines += [process.stdout.readline() for _ in range(100)]
        log.append(b"last")
        lines.append(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        _, said = process.communicate()

    expected = [b"record 2", *numbered(100), b"last"]
    assert lines == [value + b"\n" for value in expected]
    assert said.strip() == b"forebay: interrupted"
    assert process.returncode == exits.INTERRUPTED


@pytest.mark.slow
def test_following_goes_on_when_the_queue_is_closed_and_opened_again(tmp_path: Path) -> None:
    make_log(tmp_path / "log", numbered(3))
    process = start("tail", tmp_path / "log", "-n", 0, "-f", "--json", stdin=subprocess.DEVNULL)
    assert process.stdout is not None
    make_log(tmp_path / "log", [b"first"])
    # What was appended before the program looked for the first time is not part of "from now on".
    lines: list[bytes] = []
    with Log(tmp_path / "log") as log:
        while not lines:
            log.append(b"more")
            lines = _lines_there(process)

    process.kill()
    process.communicate()

    assert lines[0].startswith(b'{"kind":"log","offset":')


def _lines_there(process: subprocess.Popen[bytes]) -> list[bytes]:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], 0.1)
    return [process.stdout.readline()] if ready else []
