from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from forebay import Log, LogReader
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

HEADER_BYTES = 34
FRAME_BYTES = 12


def test_plain_output_is_each_value_and_a_newline(tmp_path: Path) -> None:
    make_log(tmp_path / "log", [b"one", b"", b"\xff\0"])

    result = run("cat", tmp_path / "log")

    assert result.stdout_bytes == b"one\n\n\xff\0\n"
    assert result.exit_code == 0


def test_json_is_exactly_one_object_a_line(tmp_path: Path) -> None:
    make_log(tmp_path / "log", [b"one", b"\xff"])
    with LogReader(tmp_path / "log") as reader:
        times = [record.time_ms for record in reader]

    result = run("cat", tmp_path / "log", "--json")

    assert result.stdout == (
        f'{{"kind":"log","offset":0,"time_ms":{times[0]},"value":"one","value_b64":"b25l"}}\n'
        f'{{"kind":"log","offset":1,"time_ms":{times[1]},"value":null,"value_b64":"/w=="}}\n'
    )


def test_json_has_null_for_the_time_where_the_format_has_none(tmp_path: Path) -> None:
    make_log(tmp_path / "log", [b"one"], version=1)

    result = run("cat", tmp_path / "log", "--json")

    line = '{"kind":"log","offset":0,"time_ms":null,"value":"one","value_b64":"b25l"}\n'
    assert result.stdout == line


def test_an_empty_log_prints_nothing_and_is_fine(tmp_path: Path) -> None:
    make_log(tmp_path / "log", [])

    result = run("cat", tmp_path / "log", "--json")

    assert (result.exit_code, result.stdout) == (0, "")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--start", "earliest", "--count", "2"], [0, 1]),
        (["--start", "97"], [97, 98, 99]),
        (["--start", "latest"], []),
        (["--start", "5000"], []),
        (["--start", "60", "--count", "60"], list(range(60, 100))),
        (["--count", "0"], []),
    ],
)
def test_start_and_count_choose_the_records(
    options: list[str], expected: list[int], tmp_path: Path
) -> None:
    make_log(tmp_path / "log", numbered(100))

    result = run("cat", tmp_path / "log", "--json", *options)

    assert [row["offset"] for row in json_lines(result)] == expected


def test_start_may_be_a_time(tmp_path: Path) -> None:
    make_log(tmp_path / "log", numbered(3))
    now = datetime.now(UTC)

    before = run("cat", tmp_path / "log", "--start", (now - timedelta(hours=1)).isoformat())
    after = run("cat", tmp_path / "log", "--start", (now + timedelta(hours=1)).isoformat())

    assert before.stdout.splitlines() == ["record 0", "record 1", "record 2"]
    assert (after.exit_code, after.stdout) == (0, "")


def test_a_start_that_is_no_place_is_a_usage_error(tmp_path: Path) -> None:
    result = run("cat", make_log(tmp_path / "log", [b"a"]), "--start", "yesterday")

    assert result.exit_code == exits.USAGE
    assert "'yesterday' is not earliest, latest, an offset or a time" in result.stderr


def test_framing_and_json_exclude_each_other(tmp_path: Path) -> None:
    result = run("cat", make_log(tmp_path / "log", [b"a"]), "--json", "--framing", "nul")

    assert result.exit_code == exits.USAGE


def test_damage_stops_it_with_the_code_for_damage_and_says_where(tmp_path: Path) -> None:
    path = _damaged_log(tmp_path)

    result = run("cat", path, "--json")

    assert result.exit_code == exits.DAMAGE
    assert [row["offset"] for row in json_lines(result)] == [0, 1, 2]
    assert result.stderr == (
        f"forebay: damage: {path}/0000000000, byte 94, 20 bytes: checksum does not match; "
        "records lost: 1 from offset 3; --salvage skips it\n"
    )


def test_salvage_shows_damage_in_its_place_and_goes_on(tmp_path: Path) -> None:
    path = _damaged_log(tmp_path)

    result = run("cat", path, "--json", "--salvage")
    rows = result.stdout.splitlines()

    assert result.exit_code == 0
    assert rows[3] == (
        f'{{"damage":{{"path":"{path}/0000000000","position":94,"length":20,'
        '"reason":"checksum does not match","torn":false,"offset":3,"count":1}}'
    )
    assert [row["offset"] for row in json_lines(result) if "offset" in row] == [
        *range(3),
        *range(4, 100),
    ]


def test_plain_salvage_keeps_the_data_clean_and_tells_damage_on_stderr(tmp_path: Path) -> None:
    result = run("cat", _damaged_log(tmp_path), "--salvage")

    assert result.exit_code == 0
    assert result.stdout.splitlines() == [f"record {n}" for n in range(100) if n != 3]
    assert "checksum does not match; records lost: 1 from offset 3" in result.stderr


def test_a_smashed_header_costs_its_segment_and_no_other(tmp_path: Path) -> None:
    path = make_log(tmp_path / "log", numbered(100))
    second = path / segments_of(path)[1]
    second.write_bytes(b"rubbish" * 5 + second.read_bytes()[35:])

    rows = json_lines(run("cat", path, "--json", "--salvage"))
    bases = [int(name, 16) for name in segments_of(path)]

    assert [row["offset"] for row in rows if "offset" in row] == [
        *range(bases[1]),
        *range(bases[2], 100),
    ]
    assert [row["damage"]["position"] for row in rows if "damage" in row] == [0]


@pytest.mark.slow
def test_a_torn_end_is_no_damage_and_salvage_shows_it(tmp_path: Path) -> None:
    leave_crashed(tmp_path / "log", [b"one", b"two"], rest=b"\0\0\0\x40torn")
    torn = {
        "path": f"{tmp_path}/log/0000000000",
        "position": HEADER_BYTES + 2 * (FRAME_BYTES + 3),
        "length": 8,
        "reason": "unfinished entry",
        "torn": True,
        "offset": 2,
        "count": None,
    }

    plain = run("cat", tmp_path / "log")
    salvaged = run("cat", tmp_path / "log", "--json", "--salvage")

    assert (plain.exit_code, plain.stdout) == (0, "one\ntwo\n")
    assert "no acknowledged record is missing" in plain.stderr
    assert salvaged.exit_code == 0
    assert json_lines(salvaged)[2:] == [{"damage": torn}]


def test_a_log_in_use_can_be_read_with_what_is_only_staged(tmp_path: Path) -> None:
    with Log(tmp_path / "log", sync="os", background=False) as log:
        for value in numbered(5):
            log.append(value)

        rows = json_lines(run("cat", tmp_path / "log", "--json"))

    assert [base64.b64decode(row["value_b64"]) for row in rows] == numbered(5)


def _damaged_log(tmp_path: Path) -> Path:
    """Makes a log of 100 records of which the fourth is damaged."""
    path = make_log(tmp_path / "log", numbered(100))
    flip(path / segments_of(path)[0], HEADER_BYTES + 3 * (FRAME_BYTES + 8) + FRAME_BYTES)
    return path


def test_cat_stops_at_an_offset_or_a_time(tmp_path: Path) -> None:
    path = make_log(tmp_path / "log", numbered(9))
    time_ms = json_lines(run("cat", path, "--json"))[0]["time_ms"]
    past, future = (
        datetime.fromtimestamp(time_ms / 1000 + hours * 3600, UTC).isoformat() for hours in (-1, 1)
    )

    found = {
        until: run("cat", path, "--start", 3, "--until", until).stdout.splitlines()
        for until in (5, 2, 99, past, future)
    }

    assert [len(lines) for lines in found.values()] == [2, 0, 6, 0, 6]
    assert found[5] == ["record 3", "record 4"]
