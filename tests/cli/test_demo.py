from __future__ import annotations

from pathlib import Path

import pytest

from forebay.cli import exits
from forebay.cli.demo_records import (
    RECORD_BYTES,
    Comparison,
    Records,
    claim_complete,
    claim_recovered,
    claim_salvaged,
    claim_trimmed,
    compare,
)
from forebay.cli.demo_teller import Teller
from forebay.damage import Damage
from forebay.queues.log.scanner import RecordBatch
from tests.cli.helpers import NOTHING_LOADED, json_lines, run, start_held

LINES_MAX = 25
RECORDS = Records(seed=1)
# Nothing is done until a line comes.
HELD = """
from forebay.cli.demo import Story
tell = Story.tell

def held(story):
    tell_loaded()
    sys.stdin.readline()
    tell(story)

Story.tell = held
"""


def batch(first: int, values: list[bytes]) -> RecordBatch:
    return RecordBatch(first, values, None, 0, "0000000000", 0, 12)


def right(first: int, count: int) -> RecordBatch:
    return batch(first, RECORDS.make(first, count))


@pytest.mark.slow
def test_the_demo_holds_its_claims_in_few_lines_and_cleans_up(tmp_path: Path) -> None:
    process = start_held(HELD, "demo", "--records", 20_000, "--path", tmp_path / "demo")
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
    assert b"all 5 claims hold" in output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_demo_tells_its_claims_as_json_and_keeps_its_queue(tmp_path: Path) -> None:
    path = tmp_path / "demo"

    result = run("demo", "--records", 5_000, "--path", path, "--keep", "--json", "--seed", 7)
    *claims, last = json_lines(result)

    assert result.exit_code == 0
    assert [row["holds"] for row in claims] == [True] * 5
    assert 2_500 <= claims[0]["acknowledged"] < 5_000
    assert (last["claims"], last["failed"]) == (5, 0)
    assert json_lines(run("fsck", path / "log", "--json"))[-1]["summary"]["damage"] == 0


def test_a_directory_in_use_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()

    result = run("demo", "--path", tmp_path)

    assert result.exit_code == exits.CANNOT_CREATE
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]


def test_records_have_their_size_and_depend_on_offset_and_seed() -> None:
    values = RECORDS.make(0, 2_000)

    assert {len(value) for value in values} == {RECORD_BYTES}
    assert len({value[8:] for value in values}) == 2_000
    assert RECORDS.make(1_990, 10) == values[1_990:]
    assert Records(seed=2).make(0, 1) != values[:1]


def test_records_that_are_all_right_compare_as_exact() -> None:
    found = compare([right(0, 5), right(5, 5)], RECORDS, 0, 10)

    assert found == Comparison(right=10)
    assert found.exact


@pytest.mark.parametrize(
    ("items", "missing", "wrong"),
    [
        ([right(0, 5), right(6, 4)], [5], []),
        ([right(0, 9)], [9], []),
        ([right(1, 9)], [0], []),
        ([], list(range(10)), []),
        ([right(0, 5), batch(5, [b"other"]), right(6, 4)], [], [5]),
        ([right(0, 5), batch(5, RECORDS.make(6, 1)), right(6, 4)], [], [5]),
        ([right(0, 10), right(4, 1)], [], [4]),
    ],
    ids=["gap", "end", "start", "nothing", "changed", "moved", "twice"],
)
def test_a_record_that_is_missing_changed_moved_or_doubled_is_found(
    items: list[RecordBatch | Damage], missing: list[int], wrong: list[int]
) -> None:
    found = compare(items, RECORDS, 0, 10)

    assert (found.missing, found.wrong) == (missing, wrong)
    assert not found.exact


@pytest.mark.parametrize(
    ("acknowledged", "end", "found", "holds"),
    [
        (8, 10, Comparison(right=10), True),
        (10, 10, Comparison(right=10), True),
        (11, 10, Comparison(right=10), False),
        (8, 10, Comparison(right=9, missing=[3]), False),
        (8, 10, Comparison(right=9, wrong=[3]), False),
        (8, 10, Comparison(right=10, damage=[Damage("x", 0, 1, "bad")]), False),
        (8, 10, Comparison(right=9), False),
    ],
)
def test_recovery_fails_its_claim_if_one_acknowledged_record_is_not_right(
    acknowledged: int, end: int, found: Comparison, holds: bool
) -> None:
    assert claim_recovered(acknowledged, end, found).holds is holds


@pytest.mark.parametrize(
    ("found", "holds"),
    [
        (Comparison(right=10), True),
        (Comparison(right=9, missing=[9]), False),
        (Comparison(right=9), False),
        (Comparison(right=11), False),
    ],
)
def test_completeness_fails_its_claim_if_a_record_is_not_right(
    found: Comparison, holds: bool
) -> None:
    assert claim_complete(10, found).holds is holds


VICTIM = Damage("x", 100, 290, "checksum does not match", False, 4, 1)


@pytest.mark.parametrize(
    ("refused", "found", "holds"),
    [
        (True, Comparison(right=9, missing=[4], damage=[VICTIM]), True),
        (False, Comparison(right=9, missing=[4], damage=[VICTIM]), False),
        (True, Comparison(right=8, missing=[4, 5], damage=[VICTIM]), False),
        (True, Comparison(right=9, missing=[5], damage=[VICTIM]), False),
        (True, Comparison(right=9, missing=[4]), False),
        (True, Comparison(right=8, missing=[4], wrong=[5], damage=[VICTIM]), False),
        (True, Comparison(right=10), False),
    ],
)
def test_salvage_fails_its_claim_unless_exactly_the_victim_is_lost(
    refused: bool, found: Comparison, holds: bool
) -> None:
    assert claim_salvaged(10, 4, refused, found).holds is holds


@pytest.mark.parametrize(
    ("removed", "places", "rest", "holds"),
    [
        (["a", "b"], {"audit": True}, Comparison(right=5), True),
        (["a"], {"audit": True}, Comparison(right=5), False),
        (["a", "b", "c"], {"audit": True}, Comparison(right=5), False),
        (["a", "b"], {"audit": False}, Comparison(right=5), False),
        (["a", "b"], {"audit": True}, Comparison(missing=[5]), False),
    ],
)
def test_trimming_fails_its_claim_if_too_much_or_too_little_went(
    removed: list[str], places: dict[str, bool], rest: Comparison, holds: bool
) -> None:
    assert claim_trimmed(removed, ["a", "b"], places, "c", "audit", rest).holds is holds


def test_a_claim_that_does_not_hold_is_counted_and_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    teller = Teller(as_json=False)

    teller.claim(claim_complete(10, Comparison(right=9)))
    teller.end(1.0, None)

    assert teller.failed == 1
    assert "FAILED" in capsys.readouterr().out
