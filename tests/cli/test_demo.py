from __future__ import annotations

from pathlib import Path

import pytest

from forebay.cli import exits
from forebay.cli.demo import RECORD_BYTES, Demo, append, compare, record
from forebay.queues.log.scanner import RecordBatch
from tests.cli.helpers import NOTHING_LOADED, json_lines, run, start_held, values_of

LINES_MAX = 12
# Nothing is done until a line comes.
HELD = """
from forebay.cli.demo import Demo
run = Demo.run

def held(demo):
    tell_loaded()
    sys.stdin.readline()
    run(demo)

Demo.run = held
"""


def batch(first: int, values: list[bytes]) -> RecordBatch:
    return RecordBatch(first, values, None, 0, "0000000000", 0, 12)


def right(first: int, count: int) -> RecordBatch:
    return batch(first, [record(offset) for offset in range(first, first + count)])


@pytest.mark.slow
def test_the_demo_holds_its_claims_in_few_lines_and_cleans_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    process = start_held(HELD, "demo", "--records", 20_000)
    assert process.stdout is not None

    # It comes before anything is done, and before anything is loaded that takes long.
    first = process.stdout.readline()
    loaded = process.stdout.readline()
    output, said = process.communicate(b"go on\n")

    assert process.returncode == 0, output
    assert said == b""
    assert first.startswith(b"forebay ")
    assert loaded == NOTHING_LOADED
    assert len([first, *output.splitlines()]) <= LINES_MAX
    assert b"3 of 3 claims hold" in output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_demo_tells_its_claims_as_json_and_leaves_the_flipped_bit(tmp_path: Path) -> None:
    path = tmp_path / "demo"

    result = run("demo", "--records", 5_000, "--path", path, "--json")
    killed, complete, flipped, last = json_lines(result)

    assert result.exit_code == 0
    assert 2_500 <= killed["acknowledged"] <= killed["right"] < complete["right"] == 5_000
    assert (last["claims"], last["failed"]) == (3, 0)
    damage, *_ = json_lines(run("fsck", path / "log", "--json"))
    assert damage["damage"]["offset"] == flipped["victim"]


def test_a_directory_in_use_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()

    result = run("demo", "--path", tmp_path)

    assert result.exit_code == exits.CANNOT_CREATE
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]


def test_records_have_their_size_and_are_all_different(tmp_path: Path) -> None:
    values = [record(offset) for offset in range(2_000)]

    assert {len(value) for value in values} == {RECORD_BYTES}
    assert len(set(values)) == 2_000


def test_what_is_acknowledged_is_in_the_log(tmp_path: Path) -> None:
    path = str(tmp_path / "log")

    for acknowledged in append(path, 1_000):
        if acknowledged >= 500:
            break
    found = len(values_of(tmp_path / "log"))
    rest = list(append(path, 1_000))

    assert found == acknowledged
    assert rest[-1] == 1_000
    assert values_of(tmp_path / "log") == [record(offset) for offset in range(1_000)]


@pytest.mark.parametrize(
    ("batches", "count", "bad"),
    [
        ([right(0, 5), right(5, 5)], 10, []),
        ([right(0, 5), right(6, 4)], 9, [5]),
        ([right(0, 9)], 9, [9]),
        ([right(1, 9)], 9, [0]),
        ([], 0, list(range(10))),
        ([right(0, 5), batch(5, [b"other"]), right(6, 4)], 9, [5]),
        ([right(0, 5), batch(5, [record(6)]), right(6, 4)], 9, [5]),
        ([right(0, 10), right(4, 1)], 10, [4]),
    ],
    ids=["exact", "gap", "end", "start", "nothing", "changed", "moved", "twice"],
)
def test_a_record_that_is_missing_changed_moved_or_doubled_is_found(
    batches: list[RecordBatch], count: int, bad: list[int]
) -> None:
    assert compare(batches, 10) == (count, bad)


@pytest.mark.slow
def test_a_claim_that_does_not_hold_is_counted_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = Demo(str(tmp_path / "log"), 5_000, as_json=False)
    wrong = record(0)[:-1] + b"?"
    monkeypatch.setattr("forebay.cli.demo.record", lambda offset: wrong)

    demo.run()

    assert demo.failed == 3
    assert capsys.readouterr().out.count("FAILED") == 3
