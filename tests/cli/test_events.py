"""The command line on Beats queues: every fixture of Beats, and what we write ourselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forebay.cli import exits
from tests.cli.helpers import flip, json_lines, run
from tests.queues.beats_helpers import (
    GOLDEN,
    WRITABLE,
    leave_segment,
    make_key,
    numbered,
    open_queue,
    unread,
)
from tests.queues.helpers import snapshot

CASES: list[dict[str, Any]] = json.loads((GOLDEN / "manifest.json").read_text())
CLEAN = [case for case in CASES if "made_from" not in case]
DAMAGED = [case for case in CASES if "made_from" in case]


def name_of(case: dict[str, Any]) -> str:
    return str(case["case"])


def make_case(case: dict[str, Any], target: Path) -> Path:
    """Makes the directory of a case; a damaged one is made from the clean one it came from."""
    target.mkdir()
    source = GOLDEN / case.get("made_from", case["case"])
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    if "made_from" in case:
        data = bytearray((target / "0.seg").read_bytes())
        if "flipped_bit" in case:
            data[case["flipped_bit"] // 8] ^= 1 << case["flipped_bit"] % 8
        (target / "0.seg").write_bytes(data[: case.get("cut_to", len(data))])
    return target


def key_of(case: dict[str, Any], directory: Path) -> list[str]:
    return ["--key-file", str(make_key(directory, case["key"].encode()))] if "key" in case else []


def expected_of(case: dict[str, Any]) -> list[dict[str, Any]]:
    text = (GOLDEN / "expected" / case["expected"]).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n")[:-1]]


def events_of(lines: list[Any]) -> list[dict[str, Any]]:
    """Strips what `cat --json` adds to an event."""
    events = [line for line in lines if "damage" not in line]
    assert all(event.pop("kind") == "beats" for event in events)
    assert all(isinstance(event.pop("segment"), int) for event in events)
    assert all(event.pop("timestamp_ns_str") == str(event["timestamp_ns"]) for event in events)
    return events


@pytest.mark.parametrize("case", CLEAN, ids=name_of)
def test_cat_prints_every_clean_fixture_exactly(tmp_path: Path, case: dict[str, Any]) -> None:
    path = make_case(case, tmp_path / "q")
    before = snapshot(path)

    result = run("cat", path, "--json", *key_of(case, tmp_path))

    events = events_of(json_lines(result))
    assert result.exit_code == exits.OK
    assert len(events) == sum(entry["frames"] for entry in case["segments"])
    assert "expected" not in case or events == expected_of(case)
    assert snapshot(path) == before


@pytest.mark.parametrize("case", DAMAGED, ids=name_of)
def test_cat_gives_the_good_prefix_and_with_salvage_the_rest(
    tmp_path: Path, case: dict[str, Any]
) -> None:
    path = make_case(case, tmp_path / "q")
    key = key_of(case, tmp_path)

    plain = events_of(json_lines(run("cat", path, "--json", *key)))
    salvaged = run("cat", path, "--json", "--salvage", *key)

    expected = expected_of(case)
    prefix = case["good_prefix"]
    assert plain[:prefix] == expected[:prefix]
    assert salvaged.exit_code == exits.OK
    found = events_of(json_lines(salvaged))
    assert [event for event in found if event not in expected] == []
    assert all(expected[number] in found for number in case["salvage"])
    assert any("damage" in line for line in json_lines(salvaged))


def test_cat_json_is_exactly_one_object_a_line(tmp_path: Path) -> None:
    leave_segment(tmp_path / "q", 7, "v2", numbered(1))

    result = run("cat", tmp_path / "q", "--json")

    message = "0" * 41
    assert result.stdout == (
        '{"kind":"beats","segment":7,"timestamp_ns":1000000000,"timestamp_ns_str":"1000000000",'
        '"flags":0,"meta":{},'
        f'"fields":{{"message":"{message}"}}}}\n'
    )


@pytest.mark.parametrize("version", WRITABLE)
def test_what_cat_prints_put_takes_again(tmp_path: Path, version: str) -> None:
    key = make_key(tmp_path)
    line = (
        b'{"timestamp_ns":-1,"flags":1,"meta":{"_id":"a"},"fields":{"b":{"$bytes_b64":"AP8="},'
        b'"f":{"$float":"-inf"},"t":{"$str_b64":"Yf8="},"n":null,"l":[1,{"x":"\xc3\xa9"}]}}\n'
    )

    put = run(
        "put",
        tmp_path / "q",
        "--kind",
        "beats",
        "--version",
        version,
        "--key-file",
        key,
        "--json",
        stdin=line * 3,
    )
    result = run("cat", tmp_path / "q", "--key-file", key)

    assert (put.exit_code, json_lines(put)[0]["count"]) == (0, 3)
    assert result.stdout_bytes == line * 3


def test_put_without_a_time_uses_the_present_and_refuses_what_is_no_event(tmp_path: Path) -> None:
    bad = run("put", tmp_path / "q", "--kind", "beats", stdin=b'{"fields":{"a":1}}\n{"fields":7}\n')
    result = run("cat", tmp_path / "q", "--json")

    (event,) = json_lines(result)
    assert bad.exit_code == exits.BAD_DATA
    assert "event 2" in bad.stderr
    assert event["fields"] == {"a": 1}
    assert event["timestamp_ns"] > 10**18


def test_take_of_an_encrypted_queue_acknowledges(tmp_path: Path) -> None:
    key = make_key(tmp_path)
    with open_queue(tmp_path / "q") as queue:
        queue.put_many(numbered(5))

    first = run("take", tmp_path / "q", "-n", 3, "--key-file", key, "--json")
    second = run("take", tmp_path / "q", "-n", 10, "--key-file", key)

    assert [line["timestamp_ns"] for line in json_lines(first)] == [10**9, 10**9 + 1, 10**9 + 2]
    assert len(second.stdout.splitlines()) == 2
    assert unread(tmp_path / "q") == []


def test_a_time_that_a_tool_has_rounded_is_put_as_its_text_says(tmp_path: Path) -> None:
    exact = 1_700_000_000_123_456_789
    line = b'{"timestamp_ns":%d,"timestamp_ns_str":"%d","fields":{}}\n' % (float(exact), exact)
    other = b'{"timestamp_ns":5,"timestamp_ns_str":"%d","fields":{}}\n' % exact

    run("put", tmp_path / "q", "--kind", "beats", stdin=line + other)

    rows = json_lines(run("cat", tmp_path / "q", "--json"))
    assert [row["timestamp_ns"] for row in rows] == [exact, 5]


def test_cat_unread_begins_at_the_place(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q", "v2") as queue:
        queue.put_many(numbered(5))
        queue.read(2).ack()

    everything = run("cat", tmp_path / "q", "--json", "--all")
    rest = run("cat", tmp_path / "q", "--json", "--unread", "--count", 2)

    assert len(json_lines(everything)) == 5
    assert [line["timestamp_ns"] - 10**9 for line in json_lines(rest)] == [2, 3]


def test_info_and_segments_tell_what_is_there(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q", "v2") as queue:
        queue.put_many(numbered(12))
        queue.read(2).ack()

    info = json_lines(run("info", tmp_path / "q", "--json"))[0]
    segments = json_lines(run("segments", tmp_path / "q", "--json"))

    assert (info["kind"], info["state"], info["version"]) == ("beats", "closed", "v2")
    assert (info["records"], info["unread"], info["segments"]) == (12, 10, 2)
    assert info["position"] == {"segment": 0, "position": 212, "index": 2}
    assert [(item["name"], item["records"], item["count"]) for item in segments] == [
        ("0.seg", 9, 9),
        ("1.seg", 3, 3),
    ]
    assert run("info", tmp_path / "q").exit_code == run("segments", tmp_path / "q").exit_code == 0


def test_fsck_counts_what_is_lost_and_changes_nothing(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q", "v2") as queue:
        queue.put_many(numbered(12))
    clean = run("fsck", tmp_path / "q", "--json")
    flip(tmp_path / "q" / "0.seg", 12 + 250)
    before = snapshot(tmp_path / "q")

    result = run("fsck", tmp_path / "q", "--json")

    summary = json_lines(result)[-1]["summary"]
    assert (clean.exit_code, result.exit_code) == (exits.OK, exits.DAMAGE)
    assert (summary["records"], summary["damage"], summary["lost"]) == (11, 1, 1)
    assert run("fsck", tmp_path / "q").exit_code == exits.DAMAGE
    assert snapshot(tmp_path / "q") == before


def test_recover_copies_all_that_can_be_read(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q", "v2") as queue:
        queue.put_many(numbered(12))
        queue.read(2).ack()
    flip(tmp_path / "q" / "0.seg", 12 + 250)

    result = run("recover", tmp_path / "q", "--to", tmp_path / "new", "--json")

    summary = json_lines(result)[-1]["summary"]
    assert (summary["copied"], summary["lost"], summary["done"]) == (11, 1, 2)
    assert unread(tmp_path / "new") == list(range(3, 12))


@pytest.mark.parametrize("version", WRITABLE)
def test_convert_changes_the_version_and_nothing_else(tmp_path: Path, version: str) -> None:
    key = make_key(tmp_path)
    leave_segment(tmp_path / "q", 0, "v0", numbered(4))

    result = run(
        "convert",
        tmp_path / "q",
        "--to-version",
        version,
        "--to",
        tmp_path / "new",
        "--key-file",
        key,
    )
    segments = json_lines(run("segments", tmp_path / "new", "--key-file", key, "--json"))

    assert result.exit_code == exits.OK
    assert [item["version"] for item in segments] == [version]
    assert unread(tmp_path / "new") == [0, 1, 2, 3]


def test_convert_stops_at_damage_unless_it_may_salvage(tmp_path: Path) -> None:
    leave_segment(tmp_path / "q", 0, "v1", numbered(4))
    flip(tmp_path / "q" / "0.seg", 60)
    arguments = ("convert", tmp_path / "q", "--to-version", "v2")

    stopped = run(*arguments, "--to", tmp_path / "one")
    salvaged = run(*arguments, "--to", tmp_path / "two", "--salvage")

    assert (stopped.exit_code, salvaged.exit_code) == (exits.DAMAGE, exits.OK)
    assert unread(tmp_path / "two") == [1, 2, 3]


def test_a_wrong_key_is_told_as_such(tmp_path: Path) -> None:
    leave_segment(tmp_path / "q", 0, "v2-seed", numbered(2))

    result = run("cat", tmp_path / "q", "--json", "--salvage")

    assert result.exit_code == exits.ERROR
    assert "encrypted" in result.stderr
    assert "Traceback" not in result.stderr
