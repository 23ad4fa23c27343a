"""`fsck --accept`: damage that somebody has seen is a note, and new damage counts again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import forebay
from tests.cli.helpers import run


def damaged_log(path: Path, *places: bytes) -> str:
    """Makes a closed log and flips a bit in each record that is named."""
    with forebay.Log(path) as log:
        log.append_many([b"record %04d" % number for number in range(100)])
    flip(path, *places)
    return str(path)


def flip(path: Path, *places: bytes) -> None:
    segment = path / "0000000000"
    data = bytearray(segment.read_bytes())
    for place in places:
        data[data.find(place)] ^= 1
    segment.write_bytes(data)


def test_accepted_damage_is_a_note_and_new_damage_counts_again(tmp_path: Path) -> None:
    path = damaged_log(tmp_path / "log", b"record 0030")
    assert run("fsck", path).exit_code == 4

    accepted = run("fsck", path, "--accept")
    after = run("fsck", path)
    flip(tmp_path / "log", b"record 0060")
    again = run("fsck", path, "--json")

    assert (accepted.exit_code, after.exit_code, again.exit_code) == (0, 0, 4)
    assert "1 loss marked as seen now" in accepted.stdout
    assert "1 loss marked as seen before" in after.stdout
    rows = [json.loads(line) for line in again.stdout.splitlines()]
    assert [row["damage"]["offset"] for row in rows if "damage" in row] == [60]


def test_a_queue_in_use_is_not_accepted_by_another(tmp_path: Path) -> None:
    path = damaged_log(tmp_path / "log", b"record 0030")

    with forebay.Log(path), pytest.raises(forebay.Locked):
        forebay.accept_losses(path)

    assert run("fsck", path).exit_code == 4


def test_accepting_by_the_function_counts_what_is_new(tmp_path: Path) -> None:
    path = damaged_log(tmp_path / "log")

    assert forebay.accept_losses(path) == 0
    assert "losses" not in {entry.name for entry in Path(path).iterdir()}
