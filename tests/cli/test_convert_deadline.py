"""`convert` of a deadline queue: a run that the original program reads."""

from __future__ import annotations

from pathlib import Path

from forebay.formats.deadline.items import FOOTER_BYTES, Item, scan_run
from tests.cli.deadline_helpers import PAST_MS, items_of, make_queue, make_worn_queue
from tests.cli.helpers import flip, json_lines, run
from tests.formats.deadline_independent import read_run_1


def test_the_run_holds_all_pending_items_with_their_keys(tmp_path: Path) -> None:
    path = make_queue(tmp_path / "q", [b"first", b"", b"third"], frozen=True)

    result = run("convert", path, "--to-version", "1", "--to", tmp_path / "new")

    assert result.exit_code == 0
    data = (tmp_path / "new" / "0000000000.p-idx").read_bytes()
    found = [item for item in scan_run(data, "r") if isinstance(item, Item)]
    assert [(item.value, item.key.deadline_ms) for item in found] == [
        (b"first", PAST_MS),
        (b"", PAST_MS + 1000),
        (b"third", PAST_MS + 2000),
    ]
    assert [item.key.id for item in found] == [item.id for item in items_of(path)]
    assert len(read_run_1(data)) == 3


def test_buried_items_are_left_out_and_counted(tmp_path: Path) -> None:
    path = make_worn_queue(tmp_path / "q")

    result = run("convert", path, "--to-version", "1", "--to", tmp_path / "new", "--json")

    (row,) = json_lines(result)
    assert (row["summary"]["pending"], row["summary"]["buried"]) == (18, 1)


def test_an_empty_queue_is_an_empty_run(tmp_path: Path) -> None:
    path = make_queue(tmp_path / "q", [])

    assert run("convert", path, "--to-version", "1", "--to", tmp_path / "new").exit_code == 0

    assert (tmp_path / "new" / "0000000000.p-idx").stat().st_size == FOOTER_BYTES


def test_it_stops_at_damage_unless_it_may_salvage(tmp_path: Path) -> None:
    path = make_worn_queue(tmp_path / "q")
    run_file = max(path.glob("*.p.run"), key=lambda file: file.stat().st_size)
    flip(run_file, 15_000)

    stopped = run("convert", path, "--to-version", "1", "--to", tmp_path / "new")
    salvaged = run(
        "convert", path, "--to-version", "1", "--to", tmp_path / "other", "--salvage", "--json"
    )

    assert stopped.exit_code == 4
    assert not (tmp_path / "new" / "0000000000.p-idx").exists()
    assert salvaged.exit_code == 0
    assert json_lines(salvaged)[-1]["summary"]["damage"] == 1


def test_versions_of_the_other_kind_are_refused(tmp_path: Path) -> None:
    path = make_queue(tmp_path / "q", [b"x"])

    result = run("convert", path, "--to-version", "v2", "--to", tmp_path / "new")

    assert result.exit_code == 2
    assert "give 1" in result.stderr
