"""The command line on deadline queues: putting, taking, leases by token, keeping house."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from forebay import DeadlineQueue
from forebay.cli import exits
from forebay.queues.kinds import kind_named
from tests.cli.deadline_helpers import (
    FUTURE_MS,
    KEYS,
    PAST_MS,
    items_of,
    make_queue,
    make_worn_queue,
    values_of,
)
from tests.cli.helpers import json_lines, make_log, run, start
from tests.crash.forgetful import ForgetfulFilesystem
from tests.queues.deadline_helpers import files_of
from tests.queues.helpers import snapshot


def test_put_makes_a_queue_and_tells_the_ids(tmp_path: Path) -> None:
    kind = ("--kind", "deadline")
    result = run("put", tmp_path / "q", *kind, "--delay", 60, "--json", stdin=b"one\ntwo\n\n")
    again = run("put", tmp_path / "q", stdin=b"four\n")

    ids = {"first": 1, "last": 3, "first_str": "1", "last_str": "3"}
    assert json_lines(result) == [{"count": 3, **ids}]
    assert again.stderr == "1 item, id 4\n"
    items = items_of(tmp_path / "q")
    assert [item.value for item in items] == [b"four", b"one", b"two", b""]
    assert [item.deadline_ms - item.enqueue_ms for item in items] == [0, 60_000, 60_000, 60_000]


@pytest.mark.parametrize(
    ("text", "deadline_ms"),
    [
        ("1800000000123", 1_800_000_000_123),
        ("2027-01-15T08:00:00.123Z", 1_800_000_000_123),
        ("2027-01-15T09:00:00.123+01:00", 1_800_000_000_123),
        ("0", 0),
    ],
)
def test_a_deadline_is_ms_or_a_time_with_its_zone(
    tmp_path: Path, text: str, deadline_ms: int
) -> None:
    run("put", tmp_path / "q", "--kind", "deadline", "--deadline", text, stdin=b"x\n")

    assert [item.deadline_ms for item in items_of(tmp_path / "q")] == [deadline_ms]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--delay", "5", "--deadline", "5"), "--delay and --deadline exclude each other"),
        (("--delay", "-1"), "-1.0 is not a number of seconds"),
        (("--delay", "nan"), "nan is not a number of seconds"),
        (("--deadline", "2026-11-01T09:00"), "nor a time with a zone"),
        (("--deadline", "tomorrow"), "nor a time with a zone"),
        (("--deadline", str(2**47)), "is not within the years 1970 to 6429"),
        (("--ttl", "5"), "--ttl does not apply to a deadline queue"),
        (("--deadline", "1793523600"), "1793523600 looks like seconds since 1970"),
        (("--file-bytes", "5000"), "--file-bytes does not apply to a deadline queue"),
        (("--when-full", "drop_oldest"), "when_full = 'drop_oldest': must be one of"),
        (("--max-bytes", "5"), "max_bytes = 5"),
    ],
    ids=lambda item: " ".join(item) if isinstance(item, tuple) else "",
)
def test_a_bad_option_of_put_is_a_usage_error(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    path = make_queue(tmp_path / "q", [b"x"])
    before = snapshot(path)

    result = run("put", path, *arguments, stdin=b"y\n")

    assert result.exit_code == exits.USAGE
    assert message in result.stderr
    assert snapshot(path) == before


def test_take_prints_what_is_due_and_removes_it(tmp_path: Path) -> None:
    values = [b"item %d" % number for number in range(250)]
    path = make_queue(tmp_path / "q", values)
    run("put", path, "--deadline", FUTURE_MS, stdin=b"later\n")

    one = run("take", path)
    many = run("take", path, "-n", 200, "--json")
    rest = run("take", path, "-n", 1000, "--framing", "nul")
    none = run("take", path)

    assert one.stdout_bytes == b"item 0\n"
    taken = json_lines(many)
    assert [base64.b64decode(line["value_b64"]) for line in taken] == values[1:201]
    assert list(taken[0]) == KEYS
    assert rest.stdout_bytes.split(b"\0")[:-1] == values[201:]
    assert (none.exit_code, none.stdout) == (exits.NOTHING, "")
    assert values_of(path) == [b"later"]


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0, 0.5])
def test_take_waits_until_an_item_is_due_and_lets_others_put(tmp_path: Path, delay: float) -> None:
    path = make_queue(tmp_path / "q", [])
    waiting = start("take", path, "--timeout", "240")

    run("put", path, "--delay", delay, stdin=b"at last\n")
    printed, said = waiting.communicate(timeout=240)

    assert (waiting.returncode, printed, said) == (exits.OK, b"at last\n", b"")


def test_a_leased_item_stays_until_it_is_released_by_its_token(tmp_path: Path) -> None:
    path = make_queue(tmp_path / "q", [b"one", b"two"], frozen=True)

    leased = run("take", path, "-n", 5, "--lease", 3600)
    nothing = run("take", path)
    left = values_of(path)
    released = run("release", path, "1.1", "2.1")

    assert leased.stdout_bytes == b"1.1\tone\n2.1\ttwo\n"
    assert (nothing.exit_code, left) == (exits.NOTHING, [b"one", b"two"])
    assert (released.exit_code, released.stderr) == (exits.OK, "2 items released\n")
    assert values_of(path) == []


def test_a_lease_in_json_has_the_token(tmp_path: Path) -> None:
    path = make_queue(tmp_path / "q", [b"one"])

    (line,) = json_lines(run("take", path, "--lease", 3600, "--json"))

    assert list(line) == [*KEYS, "token"]
    assert (line["token"], line["id"], line["dequeue_count"]) == ("1.1", 1, 1)
    assert line["deadline_ms"] == PAST_MS


@pytest.mark.slow
def test_a_leased_item_can_be_released_as_soon_as_it_is_printed(tmp_path: Path) -> None:
    path = make_queue(tmp_path / "q", [b"item %d" % number for number in range(150)])
    taking = start("take", path, "-n", "150", "--lease", "3600")
    assert taking.stdout is not None

    first = taking.stdout.readline()
    released = run("release", path, first.split(b"\t")[0].decode())
    rest = taking.stdout.read()
    taking.communicate(timeout=240)

    assert (released.exit_code, first) == (exits.OK, b"1.1\titem 0\n")
    assert (taking.returncode, len(rest.splitlines())) == (exits.OK, 149)


def test_a_token_is_lost_when_the_item_is_given_out_again(tmp_path: Path) -> None:
    path = make_queue(tmp_path / "q", [b"one", b"two"])
    run("take", path, "-n", 2, "--lease", 0.001)
    again = run("take", path, "--lease", 3600, "--timeout", 60)

    result = run("release", path, "1.1", "2.1", "7.1", "--json")

    assert again.stdout_bytes == b"1.2\tone\n"
    assert result.exit_code == exits.NOTHING
    assert json_lines(result) == [{"released": 1, "lost": ["1.1", "7.1"]}]
    assert "item 1 (delivery 1) is no longer leased" in result.stderr
    assert [item.token for item in items_of(path)] == [(1, 2)]


def test_a_token_holds_when_its_lease_has_ended_and_nobody_took_the_item(tmp_path: Path) -> None:
    path = make_queue(tmp_path / "q", [b"one"])
    run("take", path, "--lease", 0.001)

    result = run("release", path, "1.1", "1.1")

    assert (result.exit_code, values_of(path)) == (exits.OK, [])


def test_requeue_gives_an_item_back_with_another_value(tmp_path: Path) -> None:
    path = make_queue(tmp_path / "q", [b"one"])
    run("take", path, "--lease", 60)

    by_time = run("requeue", path, "1.1", "--deadline", FUTURE_MS, "--value-file", "-", stdin=b"1")
    (item,) = items_of(path)

    assert by_time.stderr == "item 1 is due at 5138-11-16T09:46:40.000Z\n"
    assert (item.value, item.deadline_ms, item.token) == (b"1", FUTURE_MS, (1, 1))


def test_requeue_says_that_a_lease_is_not_cut_short(tmp_path: Path) -> None:
    path = make_queue(tmp_path / "q", [b"one"])
    run("take", path, "--lease", 3600)
    (leased,) = items_of(path)
    (tmp_path / "value").write_bytes(b"other")

    result = run("requeue", path, "1.1", "--delay", 5, "--value-file", tmp_path / "value", "--json")

    assert json_lines(result) == [{"id": 1, "id_str": "1", "deadline_ms": leased.deadline_ms + 1}]
    assert values_of(path) == [b"other"]


def test_bury_puts_aside_and_kick_brings_back(tmp_path: Path) -> None:
    path = make_queue(tmp_path / "q", [b"one", b"two", b"three"])
    run("take", path, "-n", 3, "--lease", 3600)

    buried = run("bury", path, "1.1", "--reason", "schlecht: ä")
    run("bury", path, "2.1")
    lines = json_lines(run("cat", path, "--json"))
    by_id = run("kick", path, 1)
    rest = run("kick", path, "--count", 9, "--json")

    assert buried.stderr == 'item 1 is buried; "forebay kick" makes it pending again\n'
    assert [(line["id"], line["type"]) for line in lines] == [
        (3, "pending"),
        (1, "buried"),
        (2, "buried"),
    ]
    assert list(lines[1]) == [*KEYS, "reason"]
    assert lines[1]["reason"] == "schlecht: ä"
    assert by_id.stderr == "1 item kicked\n"
    assert json_lines(rest) == [{"kicked": 1}]
    assert not any(item.buried for item in items_of(path))


@pytest.mark.parametrize(
    "arguments", [("kick", 1), ("kick", "--count", 3), ("bury", "1.1"), ("requeue", "1.1")]
)
def test_what_is_not_there_gives_the_code_for_nothing(
    tmp_path: Path, arguments: tuple[object, ...]
) -> None:
    path = make_queue(tmp_path / "q", [b"one"])

    result = run(arguments[0], path, *arguments[1:])

    assert result.exit_code == exits.NOTHING
    assert [item.token for item in items_of(path)] == [(1, 0)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("release", "1"), "'1' is not a token: give ID.COUNT"),
        (("release", "1.0"), "'1.0' is not a token"),
        (("release", "1.1.1"), "'1.1.1' is not a token"),
        (("release", "one.two"), "'one.two' is not a token"),
        (("bury", f"{2**64}.1"), "is not a token"),
        (("release",), "Missing argument 'TOKEN...'"),
        (("requeue", "1.1", "--delay", "1", "--deadline", "2"), "exclude each other"),
        (("requeue", "1.1", "--value-file", "nowhere"), "does not exist"),
        (("kick",), "give an ID or --count N"),
        (("kick", "1", "--count", "1"), "give an ID or --count N"),
        (("take", "--lease", "-1"), "-1.0 is not in the range x>0"),
        (("take", "--key-file", "key"), "--key-file does not apply to a deadline queue"),
        (("peek", "--after", "3"), "--after does not apply to a deadline queue"),
        (("cat", "--start", "3"), "--start does not apply to a deadline queue"),
        (("cat", "--unread"), "--unread does not apply to a deadline queue"),
        (("take", "--lease", "0"), "0.0 is not in the range x>0"),
    ],
    ids=lambda item: " ".join(item) if isinstance(item, tuple) else "",
)
def test_a_bad_command_line_is_a_usage_error_and_changes_nothing(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    path = make_queue(tmp_path / "q", [b"one"])
    before = snapshot(path)

    result = run(arguments[0], path, *arguments[1:])

    assert result.exit_code == exits.USAGE
    assert message in result.stderr
    assert snapshot(path) == before


OWNERS = [
    ("take",),
    ("release", "1.1"),
    ("requeue", "1.1"),
    ("bury", "1.1"),
    ("kick", "1"),
    ("merge",),
]
owning = pytest.mark.parametrize("arguments", OWNERS, ids=[row[0] for row in OWNERS])


@owning
def test_a_queue_in_use_gives_the_code_to_try_again(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    with DeadlineQueue(tmp_path / "q") as queue:
        queue.enqueue(b"mine")

        result = run(arguments[0], tmp_path / "q", *arguments[1:])

    assert result.exit_code == exits.TRY_AGAIN
    assert "is in use by process" in result.stderr


@owning
def test_a_path_that_is_not_there_is_not_made(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    result = run(arguments[0], tmp_path / "nothing", *arguments[1:])

    assert result.exit_code == exits.ERROR
    assert result.stderr == f"forebay: {tmp_path}/nothing: No such file or directory\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", OWNERS[1:], ids=[row[0] for row in OWNERS[1:]])
def test_a_log_is_not_taken_for_a_deadline_queue(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    path = make_log(tmp_path / "log", [b"record"])
    before = snapshot(path)

    result = run(arguments[0], path, *arguments[1:])

    assert result.exit_code == exits.USAGE
    assert f"a deadline queue; {path} is a log" in result.stderr
    assert snapshot(path) == before


def test_merge_leaves_one_run_and_tells_files_and_bytes(tmp_path: Path) -> None:
    path = make_worn_queue(tmp_path / "q")
    before = json_lines(run("cat", path, "--json"))

    result = run("merge", path, "--json")
    again = run("merge", path)

    (told,) = json_lines(result)
    assert told["before"]["runs"] == 5
    assert told["after"]["runs"] == 1
    assert told["after"]["bytes"] < told["before"]["bytes"]
    assert (result.exit_code, told["damage"]) == (exits.OK, 0)
    assert again.stdout.startswith("before: 2 files, ")
    assert len(files_of(path, ".run")) == 1
    assert json_lines(run("cat", path, "--json")) == before


def test_merge_of_a_queue_without_runs_changes_no_item(tmp_path: Path) -> None:
    path = make_queue(tmp_path / "q", [b"one"])

    result = run("merge", path, "--json")

    (told,) = json_lines(result)
    assert told["before"] == told["after"]
    assert values_of(path) == [b"one"]


@pytest.mark.parametrize("lease", [None, 3600.0])
def test_each_batch_is_gone_or_leased_for_good_before_its_tokens_are_told(
    lease: float | None,
) -> None:
    filesystem = ForgetfulFilesystem()
    queue = DeadlineQueue("/q", filesystem=filesystem, sync="os", background=False)
    queue.enqueue_many([b"a", b"b"])
    queue.sync()

    records = kind_named("deadline").records
    if lease is None:
        with records.lender(queue)(2) as lent:
            taken = list(lent.rows.values)
    else:
        taken = list(records.lease(queue, 2, seconds=lease).rows.values)
    end = filesystem.operations
    states = list(filesystem.crash_states(points=lambda point: point == end, limit=8))
    queue.close()

    assert taken == ([b"a", b"b"] if lease is None else [b"1.1\ta", b"2.1\tb"])
    assert states
    for state in states:
        with DeadlineQueue("/q", filesystem=state.restore(), background=False) as left:
            assert (left.pending, left.due) == (0 if lease is None else 2, 0)
