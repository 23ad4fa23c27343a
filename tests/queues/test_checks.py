"""`check`, `recover` and `convert` as a program calls them, on every kind of queue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.errors import Damaged, InvalidOption, NotAQueue
from forebay.queues.kinds import KINDS, Kind, kind_named, kind_of
from forebay.queues.shared.reports import describe_damage
from forebay.queues.shared.rows import Rows
from tests.queues.helpers import flip, snapshot

SMALL = {"segment_bytes": 1_000, "file_bytes": 1_000}
COUNT = 60
# The first file of each kind that holds records, and a byte within one of them.
PLACES = {
    "log": ("0000000000", 200),
    "fifo": ("*.tape", 200),
    "beats": ("0.seg", 200),
    "deadline": ("*.wal", 400),
}
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def value(number: int) -> bytes:
    return b'{"fields":{"n":"%032d"}}' % number


def make(kind: Kind, path: Path) -> Path:
    """Makes a closed queue of small files, by what the record of its kind says."""
    known = kind.options_class.__dataclass_fields__
    options: dict[str, Any] = {name: size for name, size in SMALL.items() if name in known}
    if kind.deadlines:
        options = {}
    parse = getattr(kind.records, "parse", lambda line: line)
    with kind.open_queue(path, **options) as queue:
        kind.records.put(queue, [parse(value(number)) for number in range(COUNT)])
    return path


def harm(kind: Kind, path: Path) -> None:
    pattern, position = PLACES[kind.name]
    flip(sorted(path.glob(pattern))[0], position)


def fail_while_lent(kind: Kind, path: Path, **options: Any) -> None:
    with kind.open_queue(path) as queue, kind.records.lender(queue, **options)(5):
        raise RuntimeError


@each_kind
def test_a_whole_queue_has_no_damage_and_is_told_as_what_it_is(tmp_path: Path, kind: Kind) -> None:
    path = make(kind, tmp_path / "q")
    before = snapshot(path)

    report = forebay.check(path)
    facts = forebay.describe(path)
    files = forebay.segments(path)

    assert kind_of(path) is kind
    assert (report.kind, report.state, report.records) == (kind.name, "closed", COUNT)
    assert (report.damage, report.torn, report.foreign, report.lost) == ((), (), (), 0)
    assert (facts.kind, facts.records, facts.owner) == (kind.name, COUNT, None)
    assert (facts.segments, facts.bytes) == (report.segments, report.bytes)
    assert len(files) == report.segments
    assert sum(file.bytes for file in files) == report.bytes
    assert snapshot(path) == before


@each_kind
def test_damage_is_counted_and_recover_saves_the_rest(tmp_path: Path, kind: Kind) -> None:
    path = make(kind, tmp_path / "q")
    harm(kind, path)
    before = snapshot(path)

    report = forebay.check(path)
    copied = forebay.recover(path, tmp_path / "new")

    assert report.damage
    assert report.lost is not None
    assert report.records + report.lost == COUNT
    assert (copied.copied, copied.lost) == (report.records, report.lost)
    assert forebay.check(tmp_path / "new").records == copied.copied
    assert snapshot(path) == before


@each_kind
def test_accepted_losses_are_no_damage_any_more(tmp_path: Path, kind: Kind) -> None:
    path = make(kind, tmp_path / "q")
    harm(kind, path)

    accepted = forebay.accept_losses(path, forebay.check(path).damage)

    assert accepted > 0
    assert forebay.check(path).damage == ()


@each_kind
def test_progress_is_told_and_may_stop_a_check(tmp_path: Path, kind: Kind) -> None:
    path = make(kind, tmp_path / "q")

    def stop(done: int, total: int | None) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        forebay.check(path, progress=stop)
    with pytest.raises(InterruptedError):
        forebay.recover(path, tmp_path / "new", progress=stop)


@each_kind
def test_what_is_scanned_is_what_was_put_and_what_is_lent_is_gone(
    tmp_path: Path, kind: Kind
) -> None:
    path = make(kind, tmp_path / "q")
    options = {"consumer": "all"} if kind.has_consumers else {}

    found = [rows for rows in kind.records.scan(str(path)) if isinstance(rows, Rows)]
    with pytest.raises(RuntimeError):
        fail_while_lent(kind, path, **options)
    with kind.open_queue(path) as queue, kind.records.lender(queue, **options)(COUNT) as lent:
        taken = list(lent.rows.values)

    assert sum(map(len, found)) == len(taken) == COUNT
    assert all(b"%032d" % number in (text or b"") for number, text in enumerate(taken))
    assert kind.records.next_ms(str(path), **options) is None


@each_kind
def test_a_key_is_refused_where_nothing_is_encrypted(tmp_path: Path, kind: Kind) -> None:
    path = make(kind, tmp_path / "q")

    if "key_file" in kind.read_options:
        with pytest.raises(FileNotFoundError):
            forebay.check(path, key_file=tmp_path / "key")
    else:
        with pytest.raises(InvalidOption, match=f"key_file has no meaning for {kind.title}"):
            forebay.check(path, key_file=tmp_path / "key")


@each_kind
def test_convert_writes_the_versions_that_a_kind_has(tmp_path: Path, kind: Kind) -> None:
    path = make(kind, tmp_path / "q")

    with pytest.raises(InvalidOption, match=f"is {kind.title}"):
        forebay.convert(path, tmp_path / "new", "v9")
    if kind.versions:
        copied = forebay.convert(path, tmp_path / "new", kind.versions[0])
        assert (copied.copied, copied.lost) == (COUNT, 0)


@pytest.mark.parametrize("name", [kind.name for kind in KINDS if kind.versions])
def test_convert_stops_at_damage_unless_it_may_salvage(tmp_path: Path, name: str) -> None:
    kind = kind_named(name)
    path = make(kind, tmp_path / "q")
    harm(kind, path)

    with pytest.raises(Damaged):
        forebay.convert(path, tmp_path / "one", kind.versions[0])
    copied = forebay.convert(path, tmp_path / "two", kind.versions[0], salvage=True)

    assert copied.copied + (copied.lost or 0) == COUNT


@pytest.mark.parametrize("target", ["q", "q/within", "full"])
def test_a_copy_goes_only_into_a_new_directory(tmp_path: Path, target: str) -> None:
    path = make(kind_named("log"), tmp_path / "q")
    make(kind_named("log"), tmp_path / "full")
    before = snapshot(tmp_path)

    with pytest.raises(NotAQueue):
        forebay.recover(path, tmp_path / target)

    assert snapshot(tmp_path) == before


def test_a_root_is_no_queue_and_says_so(tmp_path: Path) -> None:
    with forebay.Root(tmp_path / "root") as root:
        root.define("jobs", "fifo")

    with pytest.raises(NotAQueue, match="is a root of queues"):
        forebay.open(tmp_path / "root")


def test_damage_is_told_in_the_words_of_its_queue() -> None:
    damage = forebay.Damage("q/1.tape", 0, 34, "cannot be read", offset=7)

    assert describe_damage(damage, "entry") == (
        "damage: q/1.tape, byte 0, 34 bytes: cannot be read; "
        "entries lost: an unknown number from offset 7"
    )
