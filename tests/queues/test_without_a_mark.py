"""Logs without `tail`, as the original program leaves them: one bad file never costs the others."""

from __future__ import annotations

import errno
import struct
from pathlib import Path

import pytest

from forebay import Log, LogReader
from forebay.cli import exits
from tests.cli.helpers import json_lines, run
from tests.queues.test_unreadable import drain
from tests.support.bad_disk import BadDisk

GOOD = [b"message %d" % number for number in range(51)]
BAD = {
    "empty": b"",
    "within its header": b"FFLG\0\0",
    "bad magic": b"XFLG" + bytes(4) + (51).to_bytes(8, "big") + b"\0\0\0\1a",
    "bad version": b"FFLG\0\0\0\7" + (51).to_bytes(8, "big") + b"\0\0\0\1a",
    "zeros": bytes(4096),
}


def make_directory(path: Path, newest: bytes) -> Path:
    """Makes what the original program leaves: 51 records, and a newest file that is bad."""
    (path / "q").mkdir(mode=0o700)
    entries = b"".join(struct.pack(">I", len(value)) + value for value in GOOD)
    (path / "q" / f"{0:016x}").write_bytes(b"FFLG" + bytes(12) + entries)
    (path / "q" / f"{51:016x}").write_bytes(newest)
    return path / "q"


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_newest_segment_costs_itself(tmp_path: Path, bad: str) -> None:
    path = make_directory(tmp_path, BAD[bad])
    held_nothing = bad in ("empty", "within its header")

    with LogReader(path, salvage=True) as reader:
        values = list(reader.values())
        told = [(damage.offset, damage.count) for damage in reader.damage]
    codes = [run(verb, path).exit_code for verb in ("info", "fsck")]
    summary = json_lines(run("fsck", path, "--json"))[-1]["summary"]
    recovered = run("recover", path, "--to", tmp_path / "r")
    with Log(path) as log:
        offset = log.append(b"next")
        taken, raised = drain(log)
        losses = log.info().losses

    assert (values, taken, offset) == (GOOD, [*GOOD, b"next"], 51)
    assert recovered.exit_code == 0
    assert told == ([] if held_nothing else [(51, None)])
    assert codes == [0, 0 if held_nothing else exits.DAMAGE]
    assert summary["lost"] == (0 if held_nothing else None)
    assert (len(raised), losses) == ((0, 0) if held_nothing else (1, 1))
    assert (path / f"{51:016x}").read_bytes().endswith(b"next")


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
def test_a_newest_segment_that_cannot_be_opened_is_passed_by(tmp_path: Path, code: int) -> None:
    path = make_directory(tmp_path, BAD["bad magic"])
    disk = BadDisk(unopenable={f"{51:016x}": code})

    with LogReader(path, salvage=True, filesystem=disk) as reader:
        assert list(reader.values()) == GOOD
        assert [damage.count for damage in reader.damage] == [None]


def test_entries_that_the_next_segment_hides_are_told(tmp_path: Path) -> None:
    path = make_directory(tmp_path, b"FFLG" + bytes(4) + (51).to_bytes(8, "big") + b"\0\0\0\1n")
    with (path / f"{0:016x}").open("ab") as file:
        file.write(b"\0\0\0\5other")

    checked = run("fsck", path, "--json")
    found = [line["damage"] for line in json_lines(checked) if "damage" in line]

    assert checked.exit_code == exits.DAMAGE
    assert [(item["offset"], item["count"]) for item in found] == [(51, 1)]
    assert "the next segment has as well" in found[0]["reason"]


@pytest.mark.parametrize("name", ["0000000000", "0000000008", "tail", "index-check"])
def test_junk_after_the_end_of_a_file_is_named_and_costs_nothing(tmp_path: Path, name: str) -> None:
    with Log(tmp_path / "q", segment_bytes=1_000) as log:
        log.append_many([b"%099d" % number for number in range(16)])
        log.consumer("c").commit()
    with (tmp_path / "q" / name).open("ab") as file:
        file.write(b"junk" * 50)

    checked = run("fsck", tmp_path / "q")

    assert checked.exit_code == 0
    assert f"note: {name}: " in checked.output
    with Log(tmp_path / "q") as log:
        assert len(drain(log)[0]) == 16
