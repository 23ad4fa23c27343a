"""What the verbs do alike on every kind of queue: put, cat, peek, take, and what they refuse."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from forebay.cli import exits
from forebay.queues.kinds import KINDS, Kind, kind_named
from tests.cli.helpers import environment, flip, json_lines, run, start
from tests.queues.helpers import snapshot

each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
RAW_KINDS = [kind for kind in KINDS if not kind.lines]
each_raw_kind = pytest.mark.parametrize("kind", RAW_KINDS, ids=lambda kind: kind.name)


def numbered(count: int, first: int = 0) -> list[bytes]:
    """Returns lines that every kind takes: Beats prints them as they are."""
    line = b'{"timestamp_ns":%d,"flags":0,"meta":{},"fields":{"text":"........................"}}'
    return [line % number for number in range(first, first + count)]


def lines(values: list[bytes]) -> bytes:
    return b"".join(value + b"\n" for value in values)


def make(kind: Kind, path: Path, values: list[bytes], *options: object) -> Path:
    result = run("put", path, "--kind", kind.name, *options, stdin=lines(values))
    assert result.exit_code == exits.OK
    return path


def consumer_of(kind: Kind) -> tuple[str, ...]:
    return ("--consumer", "c") if kind.has_consumers else ()


def value_of(row: dict[str, Any]) -> bytes:
    if "value_b64" in row:
        assert base64.b64decode(row["value_b64"]) == row["value"].encode()
        return base64.b64decode(row["value_b64"])
    return numbered(1, row["timestamp_ns"])[0]


@each_raw_kind
@pytest.mark.parametrize("framing", ["nul", "length"])
def test_what_cat_prints_put_takes_again(tmp_path: Path, kind: Kind, framing: str) -> None:
    values = [b"", b"a\nb", b"\n", b"\xff" * 2000]
    stream = b"".join(len(value).to_bytes(4, "big") + value for value in values)
    make_framed = ("put", tmp_path / "q", "--kind", kind.name, "--framing", "length")
    assert run(*make_framed, stdin=stream).exit_code == exits.OK

    printed = run("cat", tmp_path / "q", "--framing", framing).stdout_bytes
    again = ("put", tmp_path / "new", "--kind", kind.name, "--framing", framing)
    assert run(*again, stdin=printed).exit_code == exits.OK

    assert run("cat", tmp_path / "new", "--framing", "length").stdout_bytes == stream


@each_kind
def test_cat_prints_at_most_the_count(tmp_path: Path, kind: Kind) -> None:
    path = make(kind, tmp_path / "q", numbered(20))

    assert run("cat", path, "-n", 11).stdout_bytes == lines(numbered(11))
    assert run("cat", path, "--count", 0).stdout == ""


@each_kind
def test_json_has_the_kind_first_and_ids_also_as_text(tmp_path: Path, kind: Kind) -> None:
    path = make(kind, tmp_path / "q", numbered(3))

    rows = json_lines(run("cat", path, "--json"))

    assert [value_of(row) for row in rows] == numbered(3)
    assert all(next(iter(row.items())) == ("kind", kind.name) for row in rows)
    if kind.place == "id":
        assert all(row["id_str"] == str(row["id"]) for row in rows)


@each_kind
def test_take_prints_and_removes_in_order(tmp_path: Path, kind: Kind) -> None:
    path = make(kind, tmp_path / "q", numbered(250))
    consumer = consumer_of(kind)

    one = run("take", path, *consumer)
    peeked = run("peek", path, "-n", 2, *consumer)
    many = run("take", path, "-n", 200, "--json", *consumer)
    rest = run("take", path, "-n", 1000, *consumer)
    none = run("take", path, *consumer)

    assert one.stdout_bytes == lines(numbered(1))
    assert peeked.stdout_bytes == lines(numbered(2, 1))
    assert [value_of(row) for row in json_lines(many)] == numbered(200, 1)
    assert rest.stdout_bytes == lines(numbered(49, 201))
    assert (none.exit_code, none.stdout) == (exits.NOTHING, "")


@pytest.mark.slow
@each_kind
def test_take_into_a_pipe_that_nobody_reads_loses_nothing(tmp_path: Path, kind: Kind) -> None:
    path = make(kind, tmp_path / "q", numbered(30))
    reading, writing = os.pipe()
    os.close(reading)

    process = subprocess.run(
        [sys.executable, "-m", "forebay", "take", str(path), "-n", "20", *consumer_of(kind)],
        stdout=writing,
        stderr=subprocess.PIPE,
        env=environment(),
        check=False,
    )
    os.close(writing)

    assert (process.returncode, process.stderr) == (exits.BROKEN_PIPE, b"")
    left = run("take", path, "-n", 30, *consumer_of(kind))
    assert left.stdout_bytes == lines(numbered(30))


@pytest.mark.slow
@each_kind
def test_take_waits_for_a_record_and_lets_others_put_meanwhile(tmp_path: Path, kind: Kind) -> None:
    path = make(kind, tmp_path / "q", [])
    waiting = start("take", path, "--timeout", "240", *consumer_of(kind))

    run("put", path, "--wait", 60, stdin=lines(numbered(1)))
    printed, said = waiting.communicate(timeout=240)

    assert (waiting.returncode, printed, said) == (exits.OK, lines(numbered(1)), b"")


@each_kind
def test_take_that_waits_in_vain_gives_the_code_for_nothing(tmp_path: Path, kind: Kind) -> None:
    path = make(kind, tmp_path / "q", [])

    result = run("take", path, "--timeout", 0.3, *consumer_of(kind))

    assert (result.exit_code, result.stdout) == (exits.NOTHING, "")


@each_kind
@pytest.mark.parametrize("verb", ["put", "take"])
def test_a_queue_in_use_gives_the_code_to_try_again(tmp_path: Path, kind: Kind, verb: str) -> None:
    path = make(kind, tmp_path / "q", numbered(1))
    consumer = consumer_of(kind) if verb == "take" else ()

    with kind.open_queue(path):
        result = run(verb, path, *consumer, stdin=lines(numbered(1)))

    assert result.exit_code == exits.TRY_AGAIN
    assert "is in use by process" in result.stderr


@each_kind
def test_put_into_a_full_queue_keeps_what_fits_and_says_how_much(
    tmp_path: Path, kind: Kind
) -> None:
    known = kind.options_class.__dataclass_fields__
    small = [flag for flag in ("segment_bytes", "file_bytes") if flag in known]
    options: list[object] = ["--max-bytes", 4000]
    if not kind.deadlines:
        options += [f"--{small[0].replace('_', '-')}", 1000]

    result = run(
        *("put", tmp_path / "q", "--kind", kind.name, *options, "--json"),
        stdin=lines(numbered(100)),
    )

    count = json_lines(result)[0]["count"]
    assert result.exit_code == exits.TRY_AGAIN
    assert 0 < count < 100
    assert run("cat", tmp_path / "q").stdout_bytes == lines(numbered(count))


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.drops_oldest], ids=lambda kind: kind.name
)
def test_put_drops_the_oldest_records_if_asked_to(tmp_path: Path, kind: Kind) -> None:
    size = "--file-bytes" if "file_bytes" in kind.options_class.__dataclass_fields__ else None
    bound = ("--max-bytes", 4000, "--when-full", "drop_oldest", size or "--segment-bytes", 1000)

    make(kind, tmp_path / "q", numbered(100), *bound)

    left = run("cat", tmp_path / "q").stdout_bytes.splitlines()
    assert 0 < len(left) < 100
    assert left == numbered(len(left), 100 - len(left))


@pytest.mark.parametrize("verb", ["tail", "trim", "consumers"])
@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if not kind.has_consumers], ids=lambda kind: kind.name
)
def test_a_verb_of_logs_says_so(tmp_path: Path, kind: Kind, verb: str) -> None:
    path = make(kind, tmp_path / "q", numbered(1))
    before = snapshot(path)

    result = run(verb, path)

    assert result.exit_code == exits.USAGE
    assert f'"{verb}" is for a log; {path} is {kind.title}' in result.stderr
    assert snapshot(path) == before


@each_kind
@pytest.mark.parametrize(
    ("verb", "option", "fits"),
    [
        ("cat", ("--start", "5"), lambda kind: kind.has_consumers),
        ("cat", ("--unread",), lambda kind: kind.lines),
        ("cat", ("--raw",), lambda kind: kind.deadlines),
        ("cat", ("--key-file", "key"), lambda kind: bool(kind.read_options)),
        ("cat", ("--framing", "nul"), lambda kind: not kind.lines),
        ("info", ("--key-file", "key"), lambda kind: bool(kind.read_options)),
        ("fsck", ("--key-file", "key"), lambda kind: bool(kind.read_options)),
        ("take", ("--key-file", "key"), lambda kind: bool(kind.read_options)),
        ("take", ("--lease", "5"), lambda kind: kind.leases),
        ("put", ("--delay", "5"), lambda kind: kind.deadlines),
        ("put", ("--ttl", "5"), lambda kind: kind.name == "fifo"),
    ],
    ids=lambda item: " ".join(item) if isinstance(item, tuple) else None,
)
def test_an_option_that_a_kind_does_not_have_is_refused(
    tmp_path: Path, kind: Kind, verb: str, option: tuple[str, ...], fits: Any
) -> None:
    path = make(kind, tmp_path / "q", numbered(2))
    before = snapshot(path)

    result = run(verb, path, *option, stdin=lines(numbered(1)))

    if not fits(kind):
        assert result.exit_code == exits.USAGE
        assert f"does not apply to {kind.title}" in result.stderr
        assert snapshot(path) == before
    else:
        assert "does not apply" not in result.stderr


# The side files of each kind that a queue of several files has, once something was taken from it.
SIDE_FILES = {
    "log": ["tail", "index-check"],
    "fifo": ["fifo-head", "fifo-tail", "fifo-bounds"],
    "deadline": ["deadline-mark"],
    "beats": ["mark", "contents", "state.dat"],
}


@each_kind
def test_fsck_notes_what_follows_the_end_of_a_side_file(tmp_path: Path, kind: Kind) -> None:
    size = {"log": ("--segment-bytes", 1000), "beats": ("--segment-bytes", 1000)}
    path = make(kind, tmp_path / "q", numbered(100), *size.get(kind.name, ()), *file_bytes_of(kind))
    run("take", path, *consumer_of(kind))
    before = [row for row in json_lines(run("fsck", path, "--json")) if "note" in row]
    for name in SIDE_FILES[kind.name]:
        with (path / name).open("ab") as file:
            file.write(b"junk")

    result = run("fsck", path, "--json")
    notes = [row["note"] for row in json_lines(result) if "note" in row]

    assert result.exit_code == exits.OK
    assert before == []
    for name, note in zip(SIDE_FILES[kind.name], notes, strict=True):
        assert note in (
            f"{name}: there are bytes outside its slots",
            f"{name} has 4 bytes after its end that are not used",
        )


def file_bytes_of(kind: Kind) -> tuple[object, ...]:
    return ("--file-bytes", 4096) if kind.name == "fifo" else ()


def test_fsck_notes_a_bad_slot_of_a_head_that_costs_nothing(tmp_path: Path) -> None:
    path = make(kind_named("fifo"), tmp_path / "q", numbered(2))
    flip(path / "fifo-head", 4096 + 20)

    result = run("fsck", path)

    assert result.exit_code == exits.OK
    assert "note: fifo-head: the slot at byte 4096 does not verify\n" in result.stdout
