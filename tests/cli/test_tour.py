from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from forebay.cli import exits
from forebay.cli.tour_checks import (
    Comparison,
    QueueSums,
    claim_damage,
    claim_decoded,
    claim_landed,
    claim_reconciled,
    compare_decoded,
    compare_landed,
)
from forebay.cli.tour_events import (
    DAMAGED_OFFSET,
    DAMAGED_QUEUE,
    DECODED,
    DEDUPLICATED,
    EVENT_QUEUE,
    LOGS,
    PER_QUEUE_MIN,
    QUEUES,
    REJECTED,
    Plan,
    event,
    fate,
    frame_position,
    number_of,
)
from forebay.cli.tour_jobs import JOBS
from forebay.cli.tour_processes import ProcessFailed, Producer
from forebay.cli.tour_story import claim_recovered, claim_resumed
from forebay.cli.tour_teller import TourTeller
from forebay.dashboard.history import Outage
from forebay.dashboard.page import cell_text
from forebay.queues.beats.place import offset_of
from tests.cli.helpers import NOTHING_LOADED, make_log, run, start, start_held, values_of
from tests.dashboard.reading import PageReader
from tests.queues.helpers import wait_until

EVENTS = PER_QUEUE_MIN * len(QUEUES)
PLAN = Plan(EVENTS)
LINES_MAX = 30
# About a minute on two idle cores; Spark starts four times, and others may be at work.
TOUR_SECONDS_MAX = 1200.0
Row = dict[str, Any]


# In the long tier: it starts Spark four times and takes two minutes. `./run` is this tour, and an
# ingest is killed and started again everyday in tests/pipelines/test_kills.py.
@pytest.mark.full
@pytest.mark.crash
def test_a_tour_with_three_kills_holds_its_claims(tmp_path: Path) -> None:
    # The space is there to show that it makes no difference.
    path = tmp_path / "the tour"

    told = run_tour(path)

    check_claims(path, told)
    check_report(path, told)


# In the long tier: it needs a tour of its own, and Spark once more.
@pytest.mark.full
@pytest.mark.crash
def test_a_tour_that_loses_a_file_fails_its_check(tmp_path: Path) -> None:
    path = tmp_path / "tour"
    run_tour(path)

    sorted((path / "tables").glob("_batches/*/landed/*.parquet"))[-1].unlink()
    code, output, said = finish(start("tour", "--out", path, "--check", stdin=subprocess.DEVNULL))

    assert (code, said) == (exits.ERROR, b""), (output, said)
    assert b"2 of 5 claims FAILED" in output
    assert b"sums do not add up" in output
    assert len(output.splitlines()) <= LINES_MAX


def run_tour(path: Path) -> list[Row]:
    """Runs a whole tour and gives what it told."""
    code, output, said = finish(
        start("tour", "--out", path, "--events", EVENTS, "--json", stdin=subprocess.DEVNULL)
    )
    assert (code, said) == (0, b""), (output, said)
    return [json.loads(line) for line in output.splitlines()]


def finish(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    """Waits for a tour; one that hangs is ended, with all that it started."""
    try:
        output, said = process.communicate(timeout=TOUR_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.terminate()
        output, said = process.communicate(timeout=240)
    return process.returncode, output, said


def check_claims(path: Path, told: list[Row]) -> None:
    recovered, worker, resumed, *rest, last = told
    assert [row["holds"] for row in told[:-1]] == [True] * 8
    # As a rule not all of them: but it goes on while the one who is to kill it is held up.
    assert PLAN.per_queue * 2 // 5 <= recovered["acknowledged"] <= PLAN.per_queue
    assert PLAN.jobs.count < worker["acknowledged"] <= worker["found"] <= PLAN.jobs.steps
    assert resumed["published"] == resumed["kept"] >= 2
    assert resumed["back_seconds"] > 0
    assert rest[0]["queues"] == {
        **{queue: {"range": PLAN.per_queue, **PLAN.expected(queue)} for queue in QUEUES},
        JOBS: {"range": len(PLAN.jobs.left()), **PLAN.expected(JOBS)},
    }
    assert (last["claims"], last["failed"]) == (8, 0)
    assert last["report"] == str(path / "report.html")
    assert sorted(item.name for item in path.iterdir()) == [
        *("ingest.log", "ingest.toml", "jobs", "jobs.log", "jobs.toml", "queues"),
        *("reconcile.log", "report.html", "snapshot", "tables", "tour.json"),
    ]


def check_report(path: Path, told: list[Row]) -> None:
    page = PageReader((path / "report.html").read_text(encoding="utf-8"))
    names = ["range", "landed", "damaged", "trimmed"]
    names += [DECODED, REJECTED, DEDUPLICATED, "filtered"]
    queues = told[3]["queues"]
    order = [*sorted(QUEUES), JOBS]
    rows = [[queue, *(queues[queue][name] for name in names)] for queue in order]
    rows.append(["all", *(sum(queues[queue][name] for queue in order) for name in names)])
    sums = page.table("Counts in are counts out").rows
    assert sums == [[cell_text(cell) for cell in row] for row in rows]
    costs = page.table("What the crashes cost").rows
    assert [row[-2:] for row in costs] == [["0", "0"]] * 3
    assert costs[2][1] == cell_text(told[2]["back_seconds"])
    course = page.table("The plots as numbers").rows
    assert course[-1][3:] == [f"{PLAN.total:,}", f"{PLAN.total:,}", "0"]
    assert [one.attributes["class"] for one in page.all("li")] == ["holds"] * 8


# Tells what is loaded before anything is done, and goes no further than to the start of the ingest.
HELD = """
import time
from forebay.cli import tour
from forebay.cli.tour_processes import Command
check, start = tour._check_installation, Command.start

def held_check():
    tell_loaded()
    check()

def held_start(command):
    start(command)
    print("started", flush=True)
    time.sleep(600)

tour._check_installation, Command.start = held_check, held_start
"""
STARTED = b"started\n"


class Ring(Exception):
    """An alarm clock rang."""


def ring(_number: int, _frame: object) -> None:
    raise Ring


@pytest.mark.slow
def test_a_signal_while_a_process_is_looked_at_does_not_keep_its_end_waiting(
    tmp_path: Path,
) -> None:
    producer = Producer(str(tmp_path / "doors"), 10**9, [1.0, 100_000])
    producer.start()
    old = signal.signal(signal.SIGALRM, ring)
    try:
        for turn in range(2_000):
            with contextlib.suppress(Ring):
                signal.setitimer(signal.ITIMER_REAL, (1 + turn % 100) / 1_000_000)
                while True:
                    producer.look()
        # If a lock were left behind, this would wait until the clock rings.
        signal.alarm(240)
        producer.end()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)

    assert processes_that_name(tmp_path) == []


@pytest.mark.slow
def test_the_first_line_comes_at_once_and_ctrl_c_leaves_no_process(tmp_path: Path) -> None:
    process = start_held(HELD, "tour", "--out", tmp_path / "out", stdin=subprocess.DEVNULL)
    assert process.stdout is not None

    lines = list(itertools.takewhile(STARTED.__ne__, iter(process.stdout.readline, b"")))
    # A process that was just started has no name for a moment.
    ingests = wait_until(lambda: "ingest.toml" in str(processes_that_name(tmp_path)))
    running = processes_that_name(tmp_path)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=240)
    left = processes_that_name(tmp_path)

    assert lines[0].startswith(b"forebay ")
    assert lines[2] == NOTHING_LOADED
    assert ingests
    assert (process.returncode, said.strip()) == (exits.INTERRUPTED, b"forebay: interrupted")
    # The producers were waited for; what the ingest had started may still be about to end.
    assert "producer" in str(running)
    assert "producer" not in str(left)
    assert wait_until(lambda: not processes_that_name(tmp_path))


def processes_that_name(path: Path) -> list[str]:
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = file.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(path) in text:
            found.append(text)
    return found


def test_a_directory_of_something_else_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "queues").mkdir()

    result = run("tour", "--out", tmp_path)

    assert result.exit_code == exits.CANNOT_CREATE
    assert [file.name for file in tmp_path.iterdir()] == ["queues"]


def test_a_second_tour_in_the_same_directory_is_refused(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)

    result = run("tour", "--out", tmp_path)

    os.close(descriptor)
    assert result.exit_code == exits.TRY_AGAIN
    assert "another tour" in result.stderr


def test_there_is_nothing_to_check_where_no_tour_was(tmp_path: Path) -> None:
    assert run("tour", "--out", tmp_path, "--check").exit_code == exits.NOTHING
    assert run("tour", "--out", tmp_path / "none", "--check").exit_code == exits.NOTHING


def test_what_becomes_of_an_event_follows_from_its_offset() -> None:
    fates = Counter(fate(offset) for offset in range(PLAN.per_queue))

    assert fates == {DECODED: 920, REJECTED: 10, DEDUPLICATED: 20, "filtered": 50}
    assert PLAN.expected("doors")["landed"] == 1_000
    assert PLAN.expected(DAMAGED_QUEUE) == {
        "landed": 999,
        "decoded": 919,
        "rejected": 10,
        "deduplicated": 20,
        "filtered": 50,
        "damaged": 1,
        "trimmed": 0,
    }
    assert (fate(DAMAGED_OFFSET), fate(DAMAGED_OFFSET + 5)) == (DECODED, DECODED)


@pytest.mark.parametrize("queue", QUEUES)
def test_events_are_what_their_fate_says(queue: str) -> None:
    ids: list[str] = []
    for offset in range(300):
        value = event(queue, offset)
        if fate(offset) == REJECTED and queue in LOGS:
            with pytest.raises(json.JSONDecodeError):
                json.loads(value)
            continue
        decoded = json.loads(value)
        if queue == EVENT_QUEUE:
            assert number_of(value) == offset
            decoded = decoded["fields"]
            assert isinstance(decoded["hall"], str) is (fate(offset) == REJECTED)
        assert (decoded["id"] in ids) is (fate(offset) == DEDUPLICATED)
        assert (decoded["kind"] == "heartbeat") is (fate(offset) == "filtered")
        ids.append(decoded["id"])


def test_the_frame_of_an_event_is_where_it_is_said_to_be(tmp_path: Path) -> None:
    values = [event("doors", offset) for offset in range(50)]
    make_log(tmp_path / "doors", values, segment_bytes=100_000)

    data = (tmp_path / "doors" / "0000000000").read_bytes()

    position = frame_position("doors", 49)
    assert data[position + 12 : position + 12 + len(values[49])] == values[49]


@pytest.mark.slow
def test_a_producer_that_is_killed_goes_on_behind_what_it_promised(tmp_path: Path) -> None:
    path = tmp_path / "doors"
    # So many that it is killed in the middle, whoever is held up meanwhile.
    producer = Producer(str(path), 10**9, [200, 100_000])

    def look_until(offset: int) -> bool:
        producer.look()
        return producer.acknowledged >= offset

    try:
        producer.start()
        assert wait_until(lambda: look_until(50))
        producer.kill()
        promised = producer.acknowledged
        producer.start()
        assert wait_until(lambda: look_until(promised + 50))
        found = producer.found
        producer.kill()
        count = len(values_of(path)) + 50
        producer = Producer(str(path), count, [200, 100_000])
        producer.start()
        assert wait_until(lambda: look_until(count) and producer.done)
    finally:
        producer.end()

    assert found is not None
    assert 50 <= promised <= found
    assert producer.found == count - 50
    assert values_of(path) == [event("doors", offset) for offset in range(count)]


@pytest.mark.slow
def test_a_producer_that_ends_by_itself_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    producer = Producer(str(tmp_path / "file"), 400, [200, 100_000])

    def look() -> bool:
        producer.look()
        return False

    producer.start()
    with pytest.raises(ProcessFailed, match="the producer of file ended by itself, with code 1"):
        wait_until(look)
    producer.end()


def _place(queue: str, number: int) -> int:
    """Returns an offset that an event may have: those of the Beats queue have gaps."""
    return offset_of(*divmod(number, 77)) if queue == EVENT_QUEUE else number


def landed_rows() -> list[Row]:
    return [
        {"queue": f"/x/{queue}", "offset": _place(queue, offset), "value": event(queue, offset)}
        for queue in QUEUES
        for offset in range(PLAN.per_queue)
        if not PLAN.is_damaged(queue, offset)
    ]


LANDED = landed_rows()
VICTIM = {"queue": f"/x/{DAMAGED_QUEUE}", "offset": DAMAGED_OFFSET}


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (LANDED, Comparison(right=4_999)),
        (LANDED[1:], Comparison(right=4_998, missing=1)),
        ([*LANDED, LANDED[5]], Comparison(right=4_999, twice=1)),
        ([*LANDED[1:], {**LANDED[0], "value": b"?"}], Comparison(right=4_998, wrong=1)),
        ([*LANDED, {**LANDED[0], "queue": "/x/other"}], Comparison(right=4_999, wrong=1)),
        ([*LANDED, {**LANDED[0], "offset": PLAN.per_queue}], Comparison(right=4_999, wrong=1)),
        ([*LANDED, {**VICTIM, "value": b"?"}], Comparison(right=4_999, wrong=1)),
    ],
    ids=["exact", "missing", "twice", "changed", "stray queue", "behind the end", "damaged"],
)
def test_landed_values_that_are_not_the_events_are_found(
    rows: list[Row], found: Comparison
) -> None:
    assert compare_landed(rows, PLAN) == found
    assert claim_landed(found).holds is (rows is LANDED)


DECODED_ROWS = [
    {"id": f"{queue}-{offset}"}
    for queue in QUEUES
    for offset in range(PLAN.per_queue)
    if fate(offset) == DECODED and not PLAN.is_damaged(queue, offset)
]


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (DECODED_ROWS, Comparison(right=4_599)),
        (DECODED_ROWS[1:], Comparison(right=4_598, missing=1)),
        ([*DECODED_ROWS, DECODED_ROWS[5]], Comparison(right=4_599, twice=1)),
        ([*DECODED_ROWS, {"id": "doors-10"}], Comparison(right=4_599, wrong=1)),
    ],
    ids=["exact", "missing", "twice", "filtered"],
)
def test_decoded_ids_that_are_not_the_events_are_found(rows: list[Row], found: Comparison) -> None:
    assert compare_decoded(rows, PLAN) == found
    assert claim_decoded(found).holds is (rows is DECODED_ROWS)


def sums(**changes: int) -> list[QueueSums]:
    found = [
        QueueSums(queue, PLAN.per_queue, PLAN.expected(queue), ()) for queue in (*QUEUES, JOBS)
    ]
    return [QueueSums("doors", PLAN.per_queue, {**found[0].counts, **changes}, ()), *found[1:]]


@pytest.mark.parametrize(
    ("found", "holds"),
    [
        (sums(), True),
        (sums(decoded=919, filtered=51), False),
        (sums()[1:], False),
        (
            [QueueSums("doors", 1_000, PLAN.expected("doors"), ("2 are missing",)), *sums()[1:]],
            False,
        ),
    ],
    ids=["exact", "other sums", "a queue is missing", "do not add up"],
)
def test_sums_that_do_not_add_up_fail_their_claim(found: list[QueueSums], holds: bool) -> None:
    assert claim_reconciled(found, PLAN).holds is holds


PLACE = {
    "queue": DAMAGED_QUEUE,
    "segment": "0000000000",
    "offset": DAMAGED_OFFSET,
    "count": 1,
    "position": frame_position(DAMAGED_QUEUE, DAMAGED_OFFSET),
    "reason": "checksum does not match",
}


@pytest.mark.parametrize(
    ("damage", "holds"),
    [
        ([PLACE], True),
        ([], False),
        ([PLACE, PLACE], False),
        ([{**PLACE, "offset": 221}], False),
        ([{**PLACE, "count": 2}], False),
        ([{**PLACE, "position": 0}], False),
    ],
)
def test_damage_that_is_not_the_changed_byte_fails_its_claim(
    damage: list[Row], holds: bool
) -> None:
    assert claim_damage(damage).holds is holds


@pytest.mark.parametrize(("found", "holds"), [(99, False), (100, True), (103, True)])
def test_a_log_with_less_than_was_acknowledged_fails_its_claim(found: int, holds: bool) -> None:
    assert claim_recovered(100, found, 0.5).holds is holds


@pytest.mark.parametrize(
    ("after", "holds"),
    [
        ({0: "a", 1: "b", 2: "c"}, True),
        ({0: "a", 1: "b"}, False),
        ({0: "a", 1: "x", 2: "c"}, False),
        ({0: "a", 2: "c"}, False),
        ({0: "a", 1: "b", 3: "d"}, False),
    ],
    ids=["goes on", "stands still", "replaced", "gone", "gap"],
)
def test_an_ingest_that_does_not_go_on_where_it_was_fails_its_claim(
    after: dict[int, str], holds: bool
) -> None:
    outage = Outage(until_back=9.0, until_caught_up=12.0, lag_before=10, lag_most=50)

    assert claim_resumed({0: "a", 1: "b"}, after, outage).holds is holds


def test_the_sums_stand_below_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    TourTeller(as_json=False).sums(sums(decoded=1_234_567))

    head, *rows = capsys.readouterr().out.splitlines()
    places = [[place for place, sign in enumerate(row) if sign in "=+|"] for row in (head, *rows)]
    assert len(places[0]) == 8
    assert places == [places[0]] * (len(QUEUES) + 2)
    assert "1,234,567" in rows[0]


@pytest.mark.parametrize(("holds", "text"), [(True, "all 1 claims hold"), (False, "1 of 1 claims")])
def test_the_verdict_counts_what_failed(
    capsys: pytest.CaptureFixture[str], holds: bool, text: str
) -> None:
    teller = TourTeller(as_json=False)

    teller.claim(claim_recovered(100, 100 if holds else 99, 0.5))
    teller.verdict(1.0, "out/report.html")

    output = capsys.readouterr().out
    assert text in output
    assert output.endswith("out/report.html\n")
