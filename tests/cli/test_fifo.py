"""The command line on fifos: every verb, on queues that are whole, in use, killed and damaged."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from forebay import Fifo, FifoReader, Log
from forebay.cli import exits
from forebay.clock import SystemClock
from forebay.queues.kinds import kind_named
from tests.cli.helpers import environment, json_lines, make_log, run
from tests.crash.forgetful import ForgetfulFilesystem
from tests.queues.helpers import snapshot
from tests.support.values import flip

FILE_BYTES = 512
KEYS = [
    *("kind", "id", "id_str", "time_ms", "ttl_seconds", "expires_ms"),
    *("value", "value_b64"),
]
# Entries of 64 bytes, metadata included: 8 in a file, and the first file has number 1.
PER_FILE = 8
FIRST, SECOND, THIRD = "0000000001.tape", "0000000002.tape", "0000000003.tape"


class AgedClock(SystemClock):
    """A clock that is behind, so that entries are old when they are read."""

    def __init__(self, age_seconds: int) -> None:
        self._age_ms = age_seconds * 1000

    def now_ms(self) -> int:
        return super().now_ms() - self._age_ms


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [(b"%08d" % number).ljust(32, b".") for number in range(first, first + count)]


def lines(values: list[bytes]) -> bytes:
    return b"".join(value + b"\n" for value in values)


def make_fifo(path: Path, values: list[bytes], **options: Any) -> Path:
    """Makes a closed fifo of small files."""
    with Fifo(path, file_bytes=FILE_BYTES, **options) as fifo:
        fifo.push_many(values)
    return path


def add_old(path: Path, values: list[bytes], ttl_seconds: int, age_seconds: int) -> None:
    """Pushes entries as they were pushed some time ago."""
    with Fifo(path, file_bytes=FILE_BYTES, clock=AgedClock(age_seconds)) as fifo:
        fifo.push_many(values, ttl_seconds=ttl_seconds)


def values_of(path: Path) -> list[bytes]:
    with FifoReader(path) as reader:
        return list(reader.values())


def leave_crashed(path: Path, program: str) -> Path:
    """Runs a program on a fifo and kills it."""
    text = (
        "import os, sys; from forebay import Fifo\n"
        f"fifo = Fifo(sys.argv[1], sync='os', file_bytes={FILE_BYTES})\n{program}\nos._exit(9)\n"
    )
    subprocess.run([sys.executable, "-c", text, str(path)], env=environment(), check=False)
    return path


def test_put_makes_a_fifo_and_tells_the_last_id(tmp_path: Path) -> None:
    result = run("put", tmp_path / "q", "--kind", "fifo", "--json", stdin=b"one\ntwo\n\n")
    again = run("put", tmp_path / "q", stdin=b"four\n")

    with FifoReader(tmp_path / "q") as reader:
        entries = list(reader)
    last = entries[2].id
    ids = {"first": None, "last": last, "first_str": None, "last_str": str(last)}
    assert json_lines(result) == [{"count": 3, **ids}]
    assert again.stderr == f"1 entry, the last with id {entries[3].id}\n"
    assert [entry.value for entry in entries] == [b"one", b"two", b"", b"four"]


def test_cat_json_is_exactly_one_object_a_line(tmp_path: Path) -> None:
    run("put", tmp_path / "q", "--kind", "fifo", "--ttl", 60, stdin=b"hello\n")
    run("put", tmp_path / "q", stdin=b"for ever\n")

    result = run("cat", tmp_path / "q", "--json")

    mortal, immortal = json_lines(result)
    ms = mortal["id"] >> 16
    assert result.stdout.startswith(
        f'{{"kind":"fifo","id":{mortal["id"]},"id_str":"{mortal["id"]}","time_ms":{ms},'
        f'"ttl_seconds":60,"expires_ms":{ms + 60_000},"value":"hello","value_b64":"aGVsbG8="}}\n'
    )
    assert list(mortal) == list(immortal) == KEYS
    assert (immortal["ttl_seconds"], immortal["expires_ms"]) == (0, None)


def test_put_into_a_full_queue_keeps_what_fits_and_says_how_much(tmp_path: Path) -> None:
    arguments = ("put", tmp_path / "q", "--kind", "fifo", "--file-bytes", 512, "--max-bytes", 2048)

    result = run(*arguments, "--json", stdin=lines(numbered(100)))

    count = json_lines(result)[0]["count"]
    assert result.exit_code == exits.TRY_AGAIN
    assert "2048 bytes of max_bytes = 2048" in result.stderr
    assert count == 32
    assert values_of(tmp_path / "q") == numbered(count)


def test_put_drops_the_oldest_entries_if_asked_to(tmp_path: Path) -> None:
    bound = ("--file-bytes", 512, "--max-bytes", 2048, "--when-full", "drop_oldest")

    result = run("put", tmp_path / "q", "--kind", "fifo", *bound, stdin=lines(numbered(100)))

    left = values_of(tmp_path / "q")
    assert result.exit_code == exits.OK
    assert left == numbered(len(left), 100 - len(left))
    assert 32 >= len(left) >= 32 - 2 * PER_FILE
    assert json_lines(run("info", tmp_path / "q", "--json"))[0]["dropped"] == 100 - len(left)


def test_an_entry_that_is_too_large_is_named_and_those_before_it_are_put(tmp_path: Path) -> None:
    bound = ("--file-bytes", 512, "--max-bytes", 1024)

    result = run("put", tmp_path / "q", "--kind", "fifo", *bound, stdin=b"a\n" + b"b" * 993 + b"\n")

    assert result.exit_code == exits.BAD_DATA
    assert "stdin: entry 2 has 993 bytes; the queue takes 992" in result.stderr
    assert values_of(tmp_path / "q") == [b"a"]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--ttl", -1, "ttl_seconds = -1"),
        ("--ttl", 2**32, "ttl_seconds = 4294967296"),
        ("--file-bytes", 10, "file_bytes = 10"),
        ("--file-bytes", 4096, "file_bytes = 4096: "),
        ("--max-bytes", 1, "max_bytes = 1"),
    ],
)
def test_an_option_out_of_bounds_is_a_usage_error(
    tmp_path: Path, option: str, value: int, message: str
) -> None:
    path = make_fifo(tmp_path / "q", numbered(3))
    before = snapshot(path)

    result = run("put", path, option, value, stdin=b"x\n")

    assert result.exit_code == exits.USAGE
    assert message in result.stderr
    assert snapshot(path) == before


def test_take_passes_over_what_has_expired(tmp_path: Path) -> None:
    add_old(tmp_path / "q", numbered(5), ttl_seconds=60, age_seconds=120)
    add_old(tmp_path / "q", numbered(1, 5), ttl_seconds=0, age_seconds=60)

    result = run("take", tmp_path / "q", "-n", 10)

    assert result.stdout_bytes == lines(numbered(1, 5))
    assert json_lines(run("info", tmp_path / "q", "--json"))[0]["expired"] == 5


def test_peek_shows_the_next_entries_of_a_queue_in_use_and_they_stay(tmp_path: Path) -> None:
    with Fifo(tmp_path / "q", file_bytes=FILE_BYTES) as fifo:
        fifo.push_many(numbered(30))
        fifo.pop()

        one = run("peek", tmp_path / "q")
        first = json_lines(run("peek", tmp_path / "q", "-n", 9, "--json"))
        more = run("peek", tmp_path / "q", "-n", 100, "--after", first[-1]["id"])

        assert len(fifo) == 29
    assert one.stdout_bytes == lines(numbered(1, 1))
    assert [base64.b64decode(line["value_b64"]) for line in first] == numbered(9, 1)
    assert more.stdout_bytes == lines(numbered(20, 10))


def test_peek_passes_over_what_has_expired_which_cat_still_prints(tmp_path: Path) -> None:
    add_old(tmp_path / "q", numbered(3), ttl_seconds=60, age_seconds=120)

    peeked = run("peek", tmp_path / "q")
    printed = run("cat", tmp_path / "q")

    assert (peeked.exit_code, peeked.stdout) == (exits.NOTHING, "")
    assert printed.stdout_bytes == lines(numbered(3))


def test_info_tells_what_is_there(tmp_path: Path) -> None:
    path = make_fifo(tmp_path / "q", numbered(20))
    run("take", path, "-n", 9)

    (info,) = json_lines(run("info", path, "--json"))
    text = run("info", path)

    assert (info["kind"], info["state"], info["owner"]) == ("fifo", "closed", None)
    assert (info["records"], info["begin"], info["end"], info["durable"]) == (11, 9, 20, 20)
    assert (info["entry_bytes"], info["segments"], info["bytes"]) == (11 * 64, 2, 1024)
    assert info["disk_bytes"] == sum(
        (path / name).stat().st_blocks * 512 for name in (SECOND, THIRD)
    )
    assert info["next_id"] & 0xFFFF == 9
    assert "entries\t11\n" in text.stdout


def test_segments_lists_the_files_and_their_first_entries(tmp_path: Path) -> None:
    path = make_fifo(tmp_path / "q", [*numbered(4), b"x" * 1000, *numbered(2)])

    found = json_lines(run("segments", path, "--json"))
    table = run("segments", path)

    places = [(file["name"], file["first_position"], file["first_offset"]) for file in found]
    assert places == [(FIRST, 0, 0), (SECOND, None, None), (THIRD, 264, 5)]
    assert all(file["known"] and file["bytes"] == FILE_BYTES for file in found)
    assert table.stdout.startswith(
        "name\trecords\tbytes\tnumber\tfirst position\tfirst offset\tknown\n"
    )


def test_fsck_of_a_whole_queue_counts_and_changes_nothing(tmp_path: Path) -> None:
    add_old(tmp_path / "q", numbered(5), ttl_seconds=60, age_seconds=120)
    run("put", tmp_path / "q", stdin=lines(numbered(20)))
    (tmp_path / "q" / "notes.txt").write_bytes(b"")
    before = snapshot(tmp_path / "q")

    result = run("fsck", tmp_path / "q", "--json")
    text = run("fsck", tmp_path / "q")

    summary = json_lines(result)[-1]["summary"]
    assert (result.exit_code, summary["records"], summary["expired"]) == (exits.OK, 25, 5)
    assert (summary["damage"], summary["lost"], summary["state"]) == (0, 0, "closed")
    assert {"foreign": "notes.txt"} in json_lines(result)
    assert "25 good entries in 4 files (2.0 kB): no damage" in text.stdout
    assert snapshot(tmp_path / "q") == before


def flip_a_byte(path: Path) -> None:
    flip(path / SECOND, 3 * 64 + 40)


def remove_a_file(path: Path) -> None:
    (path / SECOND).unlink()


def cut_a_file(path: Path) -> None:
    os.truncate(path / SECOND, 200)


# What is done to the second file of three, what is said of it, and which of its entries are lost.
HARMS = [
    (flip_a_byte, "no entry verifies here", range(11, 12)),
    (remove_a_file, "the file is missing", range(8, 16)),
    (cut_a_file, "the file has 200 bytes, not 512", range(11, 16)),
]
harmed = pytest.mark.parametrize(
    ("harm", "reason", "lost"), HARMS, ids=[row[0].__name__ for row in HARMS]
)


@harmed
def test_fsck_tells_the_damage_and_what_it_costs(
    tmp_path: Path, harm: Any, reason: str, lost: range
) -> None:
    path = make_fifo(tmp_path / "q", numbered(24))
    harm(path)
    before = snapshot(path)

    result = run("fsck", path, "--json")

    found = [line["damage"] for line in json_lines(result) if "damage" in line]
    assert result.exit_code == run("fsck", path).exit_code == exits.DAMAGE
    assert [(item["path"], item["reason"]) for item in found] == [(f"{path}/{SECOND}", reason)]
    assert json_lines(result)[-1]["summary"]["lost"] == len(lost)
    assert snapshot(path) == before


@harmed
def test_cat_stops_at_damage_and_with_salvage_goes_round_it(
    tmp_path: Path, harm: Any, reason: str, lost: range
) -> None:
    path = make_fifo(tmp_path / "q", numbered(24))
    harm(path)
    good = [value for number, value in enumerate(numbered(24)) if number not in lost]

    plain = run("cat", path)
    salvaged = run("cat", path, "--salvage")

    assert plain.stdout_bytes == lines(numbered(lost.start) if lost else numbered(24))
    assert plain.exit_code == (exits.DAMAGE if lost else exits.OK)
    assert not lost or reason in plain.stderr
    assert (salvaged.exit_code, salvaged.stdout_bytes) == (exits.OK, lines(good))


@harmed
def test_take_stops_once_at_damage_and_then_goes_on_behind_it(
    tmp_path: Path, harm: Any, reason: str, lost: range
) -> None:
    path = make_fifo(tmp_path / "q", numbered(24))
    harm(path)

    first = run("take", path, "-n", 100)
    second = run("take", path, "-n", 100)

    good = [value for number, value in enumerate(numbered(24)) if number not in lost]
    assert first.stdout_bytes + second.stdout_bytes == lines(good)
    assert first.exit_code == (exits.DAMAGE if lost else exits.OK)
    told = f"{reason}; entries lost: {len(lost)} from offset {lost.start}"
    assert not lost or told in first.stderr


@harmed
def test_recover_copies_all_that_can_be_read(
    tmp_path: Path, harm: Any, reason: str, lost: range
) -> None:
    path = make_fifo(tmp_path / "q", numbered(24), ttl_seconds=600)
    harm(path)
    before = snapshot(path)

    result = run("recover", path, "--to", tmp_path / "new", "--json")

    summary = json_lines(result)[-1]["summary"]
    good = [value for number, value in enumerate(numbered(24)) if number not in lost]
    assert result.exit_code == exits.OK
    assert (summary["copied"], summary["expired"], summary["lost"]) == (len(good), 0, len(lost))
    assert values_of(tmp_path / "new") == good
    assert snapshot(path) == before


def test_an_entry_that_goes_on_in_a_missing_file_says_which(tmp_path: Path) -> None:
    path = make_fifo(tmp_path / "q", [b"a", b"b" * 600, b"c" * 600, b"d"])
    (path / SECOND).unlink()

    result = run("cat", path, "--salvage")

    assert f"{FIRST}, byte 33" in result.stderr
    assert f"the file {SECOND}, where it goes on, is missing" in result.stderr
    assert result.stdout_bytes == b"a\nd\n"


def test_recover_keeps_the_time_to_live_and_leaves_out_what_has_expired(tmp_path: Path) -> None:
    add_old(tmp_path / "q", numbered(3), ttl_seconds=60, age_seconds=120)
    add_old(tmp_path / "q", numbered(3, 3), ttl_seconds=3600, age_seconds=60)
    run("put", tmp_path / "q", stdin=lines(numbered(3, 6)))
    with FifoReader(tmp_path / "q") as reader:
        old = list(reader)[3:]

    result = run("recover", tmp_path / "q", "--to", tmp_path / "new")

    with FifoReader(tmp_path / "new") as reader:
        new = list(reader)
        file_bytes = reader.head.file_bytes
    facts = [(entry.value, entry.time_ms, entry.expires_ms) for entry in new]
    assert "6 entries copied to" in result.stdout
    assert "3 entries left out that had expired\n" in result.stdout
    assert facts == [(entry.value, entry.time_ms, entry.expires_ms) for entry in old]
    assert file_bytes == FILE_BYTES


@pytest.mark.slow
def test_a_killed_writer_leaves_a_queue_that_can_be_looked_at(tmp_path: Path) -> None:
    path = leave_crashed(tmp_path / "q", "[fifo.push(b'entry %d' % n) for n in range(5)]")
    before = snapshot(path)

    info = json_lines(run("info", path, "--json"))[0]
    checked = run("fsck", path)
    printed = run("cat", path)

    assert (info["state"], info["records"]) == ("crashed", 5)
    assert (checked.exit_code, printed.exit_code) == (exits.OK, exits.OK)
    assert "was not closed; the next open recovers it" in checked.stdout
    assert printed.stdout_bytes == lines([b"entry %d" % number for number in range(5)])
    assert snapshot(path) == before


@pytest.mark.slow
def test_what_a_killed_process_had_taken_is_the_next_again(tmp_path: Path) -> None:
    program = "fifo.push_many([b'a', b'b', b'c']); fifo.sync(); fifo.take().__enter__()"
    path = leave_crashed(tmp_path / "q", program)

    info = json_lines(run("info", path, "--json"))[0]
    peeked = run("peek", path)
    taken = run("take", path, "-n", 5)

    assert (info["records"], info["taken"]) == (3, 1)
    assert peeked.stdout_bytes == b"a\n"
    assert taken.stdout_bytes == b"a\nb\nc\n"


@pytest.mark.slow
def test_an_unfinished_end_is_told_and_is_no_damage(tmp_path: Path) -> None:
    path = leave_crashed(tmp_path / "q", "fifo.push_many([b'a', b'b']); fifo.sync()")
    with (path / FIRST).open("r+b") as file:
        file.seek(66)
        file.write(b"half an entry")

    checked = run("fsck", path)
    printed = run("cat", path)

    assert checked.exit_code == printed.exit_code == exits.OK
    place = f"{path}/{FIRST}, byte 66"
    assert f"unfinished end: {place}, 13 bytes: after the last entry" in checked.stdout
    assert (
        f"{place}, 13 bytes: after the last entry; no acknowledged record is missing"
        in printed.stderr
    )
    assert printed.stdout_bytes == b"a\nb\n"


@pytest.mark.parametrize(("name", "code"), [("fifo-head", exits.OK), ("fifo-tail", exits.DAMAGE)])
def test_a_lost_side_file_is_named_and_the_entries_are_read(
    tmp_path: Path, name: str, code: int
) -> None:
    path = make_fifo(tmp_path / "q", numbered(10))
    (path / name).write_bytes(b"\0" * 16384)

    info = json_lines(run("info", path, "--json"))[0]
    checked = run("fsck", path)
    printed = run("cat", path)

    assert info["state"] == f"{name.removeprefix('fifo-')}-damaged"
    assert checked.exit_code == code
    assert name in checked.stdout
    assert printed.stdout_bytes == lines(numbered(10))


def test_bytes_after_the_end_of_a_file_are_named_and_are_no_damage(tmp_path: Path) -> None:
    path = make_fifo(tmp_path / "q", numbered(24))
    for name in (SECOND, "fifo-head", "fifo-tail"):
        with (path / name).open("ab") as file:
            file.write(b"junk" * 4_000)

    checked = run("fsck", path)

    assert checked.exit_code == exits.OK
    for name in (SECOND, "fifo-head"):
        assert f"{name} has" in checked.stdout
    assert "fifo-tail: there are bytes outside its slots" in checked.stdout


def test_convert_is_for_event_queues(tmp_path: Path) -> None:
    path = make_fifo(tmp_path / "q", numbered(1))

    result = run("convert", path, "--to-version", "v2", "--to", tmp_path / "new")

    assert result.exit_code == exits.USAGE
    assert f'"convert" is for a Beats queue or a deadline queue; {path} is a fifo' in result.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("peek",), '"peek" needs --consumer NAME for a log'),
        (("take",), '"take" needs --consumer NAME for a log'),
        (("put", "--kind", "fifo"), "--kind fifo: {} is a log"),
        (("put", "--ttl", "5"), "--ttl does not apply to a log"),
        (("put", "--max-bytes", "5000"), "max_bytes = 5000: must be a whole number"),
    ],
    ids=lambda item: " ".join(item) if isinstance(item, tuple) else "",
)
def test_a_log_is_not_taken_for_a_fifo(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    path = make_log(tmp_path / "log", [b"record"])
    before = snapshot(path)

    result = run(arguments[0], path, *arguments[1:], stdin=b"x\n")

    assert result.exit_code == exits.USAGE
    assert message.format(path) in result.stderr
    assert snapshot(path) == before
    with Log(path) as log:
        assert len(log) == 1


def test_a_directory_that_is_no_queue_is_not_made_one(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(b"precious")

    result = run("put", tmp_path, "--kind", "fifo", stdin=b"x\n")

    assert result.exit_code == exits.CANNOT_CREATE
    assert f"{tmp_path} is not a fifo: it holds 'notes.txt'" in result.stderr
    assert snapshot(tmp_path) == {"notes.txt": b"precious"}


def make_dead(path: Path) -> Path:
    """Makes a fifo of one entry, with two that came back too often."""
    with Fifo(path, max_attempts=1, background=False) as fifo:
        fifo.push_many([b"bad", b"worse"], ttl_seconds=1_000)
        for _ in range(2):
            with pytest.raises(KeyError), fifo.take():
                raise KeyError
        fifo.push(b"good")
    return path


def test_cat_prints_what_was_put_aside_and_kick_brings_it_back(tmp_path: Path) -> None:
    path = make_dead(tmp_path / "q")

    rows = json_lines(run("cat", path, "--dead", "--json"))
    one = run("kick", path, rows[1]["id"])
    again = run("kick", path, rows[1]["id"])
    rest = run("kick", path, "--count", 9, "--json")

    assert [(row["value"], row["ttl_seconds"]) for row in rows] == [("bad", 1000), ("worse", 1000)]
    assert (one.exit_code, one.stderr) == (exits.OK, "1 entry kicked\n")
    assert again.exit_code == exits.NOTHING
    assert f"{path} has no entry {rows[1]['id']} that was set aside" in again.stderr
    assert json_lines(rest) == [{"kicked": 1}]
    assert run("cat", path).stdout == "good\nworse\nbad\n"
    assert run("cat", path, "--dead").stdout == ""
    assert json_lines(run("cat", path, "--json"))[2]["ttl_seconds"] == 1000


def test_fsck_counts_one_entry_as_one(tmp_path: Path) -> None:
    path = make_dead(tmp_path / "q")
    with Fifo(path, background=False) as fifo:
        fifo.take().__enter__()

    result = run("fsck", path)

    assert "note: 2 entries put aside in dead/\n" in result.stdout
    assert "note: 1 entry taken and not finished\n" in result.stdout


@pytest.mark.slow
def test_each_batch_that_was_taken_is_gone_for_good_before_the_next() -> None:
    filesystem = ForgetfulFilesystem()
    fifo = Fifo("/q", filesystem=filesystem, sync="os", background=False)
    fifo.push_many([b"a", b"b", b"c"])
    fifo.sync()

    with kind_named("fifo").records.lender(fifo)(2) as lent:
        taken = list(lent.rows.values)
    end = filesystem.operations
    states = list(filesystem.crash_states(points=lambda point: point == end, limit=8))
    fifo.close()

    assert taken == [b"a", b"b"]
    assert states
    for state in states:
        with Fifo("/q", filesystem=state.restore(), background=False) as left:
            assert left.pop_many(9) == [b"c"]
