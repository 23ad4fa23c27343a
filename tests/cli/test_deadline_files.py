"""`forebay cat` on files of deadline queues: those of the original program, and ours."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import Result

from forebay.cli import exits
from forebay.formats.deadline.items import Item, Key, Stats, Tombstone
from forebay.formats.deadline.run_encoder import RunEncoder
from forebay.formats.deadline.wal import Batches, Dequeued, Header
from tests.cli.helpers import json_lines, run
from tests.sources import ROOT

QRONO = ROOT / "tests" / "golden" / "qrono"
FILES = sorted(path.relative_to(QRONO) for path in QRONO.rglob("0*[!d]") if path.is_file())
SURVIVORS = [5, 11, 2**62 + 7, 2**63 + 2**62 + 9, 20, 2, 6]
ITEM = Item(Key(1_700_000_000_000, 1), b"hello", Stats(1_699_999_999_000, 0, 0))


def expected_of(name: str) -> list[dict[str, object]]:
    lines = (QRONO / "expected" / f"{name}.jsonl").read_text().splitlines()
    return [{"kind": "deadline", **json.loads(line)} for line in lines]


def plain(result: Result) -> list[dict[str, object]]:
    """Returns the lines without the fields that say the same as another one."""
    lines = json_lines(result)
    assert all(line.pop("id_str") == str(line["id"]) for line in lines)
    for line in lines:
        line.pop("value", None)
    return lines


@pytest.mark.parametrize(
    "file", [*(path for path in FILES if path.suffix != ".jsonl"), Path("merged/bc.c-idx")], ids=str
)
def test_a_file_of_the_original_is_printed_as_it_is(file: Path) -> None:
    result = run("cat", "--json", QRONO / file)

    assert result.exit_code == exits.OK
    assert plain(result) == expected_of(file.name)


def test_a_folder_of_the_original_gives_the_live_items_by_deadline() -> None:
    lines = json_lines(run("cat", "--json", QRONO))

    assert [line["id"] for line in lines] == SURVIVORS
    assert {line["type"] for line in lines} == {"pending"}


def test_runs_without_their_logs_have_the_same_live_items(tmp_path: Path) -> None:
    for file in QRONO.glob("*-idx"):
        shutil.copy(file, tmp_path)

    lines = json_lines(run("cat", "--json", tmp_path))

    assert [line["id"] for line in lines] == SURVIVORS


def test_a_folder_read_raw_gives_every_entry_of_every_file() -> None:
    lines = plain(run("cat", "--json", "--raw", QRONO))

    assert lines == [line for file in sorted(QRONO.glob("0*")) for line in expected_of(file.name)]


def test_values_are_printed_without_json_and_counted() -> None:
    assert run("cat", "--count", 2, QRONO).stdout == "deadline zero\nrequeued 3\n"


def test_our_run_and_log_are_printed(tmp_path: Path) -> None:
    encoder = RunEncoder(b"saltsalt")
    (tmp_path / "0000000001.c.run").write_bytes(
        encoder.encode([ITEM, Tombstone(Key(1_700_000_000_001, 2))]) + encoder.finish()
    )
    header = Header(1, b"saltsalt")
    batch = Batches(header).encode([ITEM, Dequeued(ITEM.key, 1, 1_700_000_000_002)], 0)
    (tmp_path / "0000000001.wal").write_bytes(header.encode() + batch)

    of_run = plain(run("cat", "--json", tmp_path / "0000000001.c.run"))
    of_log = plain(run("cat", "--json", tmp_path / "0000000001.wal"))

    assert [line["type"] for line in of_run] == ["pending", "tombstone"]
    assert of_run[0] == of_log[0]
    assert of_log[1] == {
        "kind": "deadline",
        "type": "dequeued",
        "id": 1,
        "deadline_ms": 1_700_000_000_000,
        "dequeue_count": 1,
        "time_ms": 1_700_000_000_002,
    }


def test_damage_stops_it_and_is_shown_in_its_place_if_asked_for(tmp_path: Path) -> None:
    data = bytearray((QRONO / "0000000001.p-idx").read_bytes())
    data[7] = 0xFF
    (tmp_path / "0000000001.p-idx").write_bytes(data)
    shutil.copy(QRONO / "0000000002.p-idx", tmp_path)

    stopped = run("cat", "--json", tmp_path)
    salvaged = run("cat", "--json", "--salvage", tmp_path)

    assert stopped.exit_code == exits.DAMAGE
    assert "--salvage skips it" in stopped.stderr
    assert salvaged.exit_code == exits.OK
    assert [line.get("id") for line in json_lines(salvaged)] == [None, 20]


def test_what_has_no_meaning_is_refused(tmp_path: Path) -> None:
    run("put", tmp_path / "log", stdin=b"one\n")

    raw_log = run("cat", "--raw", tmp_path / "log")
    start = run("cat", "--start", "3", QRONO)

    assert (raw_log.exit_code, start.exit_code) == (exits.USAGE, exits.USAGE)
    assert "--raw does not apply to a log" in raw_log.stderr
    assert "--start does not apply to a folder of the original" in start.stderr
