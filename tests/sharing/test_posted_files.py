"""What clients left in their files gets into the queue once, whenever its owner dies."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay import Full
from forebay.queues.shared.posted import Intake
from forebay.queues.shared.posts import Posts
from forebay.storage import posted
from forebay.storage.filesystem import DiskFilesystem
from forebay.storage.posted import Note, PostedFile
from tests.counting import Count
from tests.kinds import POLICIES
from tests.queues.helpers import publish, write_part
from tests.sharing.posting import (
    Client,
    DeadlyFilesystem,
    check,
    deaths,
    dies,
    files,
    left,
    owner,
)
from tests.support.inside import intake_of
from tests.support.planting import Bug, Patch, check_caught, each

FILED = pytest.mark.parametrize("kind", ["log", "fifo"])
SYNC = pytest.mark.parametrize("sync", POLICIES)
pytestmark = pytest.mark.crash


def values(count: int, start: int = 0) -> list[bytes]:
    return [b"%05d" % number + b"." * (number * 37 % 90) for number in range(start, start + count)]


def one_client(path: Path, kind: str = "fifo", sync: str = "os") -> list[bytes]:
    """Makes a queue with some records, and a client that has posted more and is gone."""
    first, more = values(3), values(40, 3)
    with owner(path, kind, sync=sync) as queue:
        queue.put_many(first)
    client = Client(path)
    for value in more:
        assert client.post(value)
    client.end()
    return first + more


@FILED
@SYNC
def test_what_was_posted_is_there_once_wherever_the_owner_dies(
    tmp_path: Path, kind: str, sync: str, record_property: Count
) -> None:
    before = partial(one_client, kind=kind, sync=sync)

    count = deaths(tmp_path, kind, before, sync=sync)

    assert count > 5
    record_property("deaths of an owner that takes in", count)


def with_an_inbox(path: Path) -> list[bytes]:
    """Leaves posts of a client, and a batch of another process to be adopted."""
    wanted = one_client(path, "log")
    publish(path, "batch", 1, [write_part(path, "batch.part", values(9, 100))])
    return wanted + values(9, 100)


def test_a_batch_that_is_adopted_does_not_pass_for_posts(tmp_path: Path) -> None:
    killed, at = True, 0
    while killed:
        at += 1
        place = tmp_path / str(at)
        wanted = with_an_inbox(place)
        killed = dies(partial(owner, place, "log", DeadlyFilesystem(at), sync="os"))
        publish(place, "more", 2, [write_part(place, "more.part", values(50, 200))])

        assert sorted(left(place, "log")) == sorted(wanted + values(50, 200)), at

    assert 5 < at < 60


@FILED
def test_a_ring_goes_on_at_its_start(tmp_path: Path, kind: str) -> None:
    client, rng, put = Client(tmp_path / "q"), random.Random(1), 0
    for _ in range(40):
        while put < 5000 and client.post(b"%05d" % put + b"x" * rng.randrange(900)):
            put += 1
        owner(tmp_path / "q", kind, sync="os").close()
    client.end()

    found = left(tmp_path / "q", kind)

    assert [int(value[:5]) for value in found] == list(range(put))
    assert put > 300
    assert not files(tmp_path / "q")


@FILED
def test_the_file_of_a_client_that_lives_stays_and_wakes(tmp_path: Path, kind: str) -> None:
    client = Client(tmp_path / "q")
    client.post(b"one")
    owner(tmp_path / "q", kind).close()
    client.post(b"two")

    # Before, nobody had asked to be woken.
    assert client.rings == 1
    assert files(tmp_path / "q") == [client.file.name]
    client.end()
    assert left(tmp_path / "q", kind) == [b"one", b"two"]
    assert not files(tmp_path / "q")


def test_what_finds_no_room_waits_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "q"
    options: dict[str, Any] = {"max_entries": 10, "when_full": "reject"}
    client = Client(path)
    for value in values(25):
        client.post(value)
    client.end()
    found = []
    with owner(path, "fifo", **options) as fifo:
        assert len(fifo) == 10
        with pytest.raises(Full):
            fifo.push(b"more")
        found += fifo.pop_many(10)
    assert len(files(path)) == 1
    with owner(path, "fifo", **options) as fifo:
        found += fifo.pop_many(10)
        intake_of(fifo).retry()
        found += fifo.pop_many(10)

    assert found == values(25)
    assert not files(path)


def test_the_oldest_make_room_for_what_was_posted(tmp_path: Path) -> None:
    client = Client(tmp_path / "q")
    for value in values(25):
        client.post(value)
    client.end()

    found = left(tmp_path / "q", "fifo", max_entries=10, when_full="drop_oldest")

    assert found == values(10, 15)


def test_each_entry_has_its_own_time_to_live(tmp_path: Path) -> None:
    client = Client(tmp_path / "q")
    for number in range(20):
        client.post(b"%d" % number, number // 3)
    client.end()

    with owner(tmp_path / "q", "fifo") as fifo:
        assert [entry.ttl_seconds for entry in fifo] == [number // 3 for number in range(20)]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_log_of_any_version_takes_in_what_was_posted(tmp_path: Path, version: int) -> None:
    client = Client(tmp_path / "q")
    for value in values(30):
        client.post(value)
    client.end()

    assert left(tmp_path / "q", "log", version=version) == values(30)


@FILED
def test_a_check_tells_that_clients_have_left_files(tmp_path: Path, kind: str) -> None:
    one_client(tmp_path / "q", kind)

    report = forebay.check(tmp_path / "q")

    assert not report.damage
    assert any("posted/ has 1 file of clients" in note for note in report.notes)


@FILED
def test_a_file_of_before_a_restart_of_the_machine_is_void(tmp_path: Path, kind: str) -> None:
    client = Client(tmp_path / "q", boot=bytes(16))
    client.post(b"old")
    client.end()

    assert left(tmp_path / "q", kind) == []
    assert not files(tmp_path / "q")
    assert len(os.listdir(tmp_path / "q" / "quarantine")) == 1


def copied(path: Path, kind: str = "fifo") -> None:
    """A copy of a queue, taken when its owner had stored what a file holds, has it once."""
    place = path / "q"
    one_client(place, kind)
    early = path / "early"
    shutil.copytree(place / "posted", early)
    wanted = left(place, "log") if kind == "log" else None
    if wanted is None:
        with owner(place, kind) as queue:
            wanted = [entry.value for entry in queue]
    shutil.copytree(place, path / "copy")
    shutil.copytree(early, path / "copy" / "posted", dirs_exist_ok=True)
    if kind == "fifo":
        check(left(path / "copy", kind), wanted)


def test_a_copy_of_a_file_is_void(tmp_path: Path) -> None:
    copied(tmp_path)

    assert not files(tmp_path / "copy")


def damaged(path: Path, at: int, kind: str = "log") -> list[bytes]:
    one_client(path, kind)
    (name,) = files(path)
    with (path / "posted" / name).open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x55]))
    return left(path, kind)


@pytest.mark.parametrize("at", [posted.HEADER_AT, posted.HEADER_AT + 20, posted.HEADER_AT + 39])
def test_a_damaged_header_keeps_the_file_aside(tmp_path: Path, at: int) -> None:
    assert damaged(tmp_path / "q", at) == values(3)
    assert not files(tmp_path / "q")
    assert len(os.listdir(tmp_path / "q" / "quarantine")) == 1


def test_a_damaged_record_ends_what_is_taken(tmp_path: Path) -> None:
    found = damaged(tmp_path / "q", posted.DATA_AT + 500)

    assert 3 < len(found) < 43
    assert found == values(len(found))


def test_a_record_that_can_never_be_stored_is_kept_aside(tmp_path: Path) -> None:
    client = Client(tmp_path / "q")
    for value in (b"one", b"two"):
        client.post(value)
    client.post(b"three", 7)
    client.end()

    assert left(tmp_path / "q", "log") == [b"one", b"two"]
    assert not files(tmp_path / "q")
    assert len(os.listdir(tmp_path / "q" / "quarantine")) == 1


# What a tired programmer might write. Each with the hunt that finds it.


def hunt_deaths(path: Path) -> None:
    deaths(path, "fifo", one_client, sync="os")


def hunt_full(path: Path) -> None:
    options: dict[str, Any] = {"max_entries": 10}
    client = Client(path / "q")
    for value in values(25):
        client.post(value)
    client.end()
    found: list[bytes] = []
    for _ in range(5):
        with owner(path / "q", "fifo", **options) as fifo:
            found += fifo.pop_many(10)
    check(found, values(25))


def hunt_restart(path: Path) -> None:
    place = path / "q"
    wanted = one_client(place)
    (name,) = files(place)
    data = (place / "posted" / name).read_bytes()
    with owner(place, "fifo") as fifo:
        assert len(fifo) == len(wanted)
    # The queue was durable, the file and its note were not: they are as they were.
    client = Client(place, boot=bytes(16))
    with (place / "posted" / client.file.name).open("r+b") as file:
        file.write(data[: posted.HEADER_AT])
        file.seek(posted.DATA_AT)
        file.write(data[posted.DATA_AT :])
    for value in wanted[3:]:
        client.post(value)
    client.end()
    check(left(place, "fifo"), wanted)


def hunt_flush(path: Path) -> None:
    with forebay.Log(path / "q", background=False) as log:
        for value in values(10):
            log.post(value)
        log.flush()
        check(values(log.durable), values(10))


def _never_noted(patch: Patch) -> None:
    patch.setattr(PostedFile, "begin", lambda self, batch, end: None)


def _noted_after(patch: Patch) -> None:
    store = Intake.store

    def wrong(self: Intake, file: PostedFile, batch: Any) -> Any:
        begin, advance = file.begin, file.advance
        noted: list[Any] = []
        changed: Any = file
        changed.begin = lambda *given: noted.append(given)

        def late(*given: Any) -> None:
            begin(*noted[-1])
            advance(*given)

        changed.advance = late
        try:
            return store(self, file, batch)
        finally:
            del changed.begin, changed.advance

    patch.setattr(Intake, "store", wrong)


def _advanced_before(patch: Patch) -> None:
    begin = PostedFile.begin

    def wrong(self: PostedFile, batch: Any, end: int) -> None:
        begin(self, batch, end)
        note = self.note
        self._write(Note(batch.after, note.number + batch.count))
        self.note = note

    patch.setattr(PostedFile, "begin", wrong)


def _begins_again(patch: Patch) -> None:
    patch.setattr(PostedFile, "resume", lambda self, end: None)


def _believes_the_note(patch: Patch) -> None:
    def wrong(self: PostedFile, end: int) -> None:
        if self.note.count:
            self._write(self._after(self.note.count))

    patch.setattr(PostedFile, "resume", wrong)


def _numbers_from_one(patch: Patch) -> None:
    patch.setattr(Note, "of", classmethod(lambda cls, payload: cls()))


def _removed_first(patch: Patch) -> None:
    finish = Intake.finish

    def wrong(self: Intake, file: PostedFile) -> bool:
        self._remove(file.name)
        return finish(self, file)

    patch.setattr(Intake, "finish", wrong)


def _removed_when_full(patch: Patch) -> None:
    patch.setattr(PostedFile, "is_empty", True)


def _any_boot(patch: Patch) -> None:
    init = PostedFile.__init__

    def wrong(self: PostedFile, *given: Any) -> None:
        init(self, *given)
        self.void = None

    patch.setattr(PostedFile, "__init__", wrong)


def _not_awaited(patch: Patch) -> None:
    def wrong(self: Posts) -> Any:
        return None
        yield

    patch.setattr(Posts, "settle", wrong)


def _end_of_before(patch: Patch) -> None:
    """Notes the end of the queue as it was when it was opened."""
    begin = PostedFile.begin
    patch.setattr(PostedFile, "begin", lambda self, batch, end: begin(self, batch, 0))


BUGS: dict[str, Bug] = {
    "the note is not written": (_never_noted, hunt_deaths),
    "stored before it is noted": (_noted_after, hunt_deaths),
    "taken before it is stored": (_advanced_before, hunt_deaths),
    "a restart begins the batch again": (_begins_again, hunt_deaths),
    "a restart believes the note": (_believes_the_note, hunt_deaths),
    "a restart numbers from one": (_numbers_from_one, hunt_deaths),
    "the end of another moment is noted": (_end_of_before, hunt_deaths),
    "the file goes before it is stored": (_removed_first, hunt_deaths),
    "the file goes while the queue is full": (_removed_when_full, hunt_full),
    "a file of another boot is taken": (_any_boot, hunt_restart),
    "a copy of a file is taken": (_any_boot, copied),
    "a flush does not wait for the disk": (_not_awaited, hunt_flush),
}


@each(BUGS)
def test_a_planted_bug_is_caught(
    bug: Bug, tmp_path: Path, monkeypatch: Patch, record_property: Count
) -> None:
    check_caught(bug, monkeypatch, record_property, tmp_path)


HUNTS: list[Callable[[Path], None]] = [hunt_deaths, hunt_full, hunt_restart, hunt_flush, copied]


@pytest.mark.parametrize("hunt", HUNTS, ids=lambda hunt: hunt.__name__)
def test_the_hunts_find_nothing_without_a_bug(tmp_path: Path, hunt: Any) -> None:
    hunt(tmp_path)

    assert not list(tmp_path.rglob("q/posted/*"))


def test_the_file_of_a_client_takes_no_hole(tmp_path: Path) -> None:
    client = Client(tmp_path / "q", posted.ROOM_BYTES)
    found = os.stat(tmp_path / "q" / "posted" / client.file.name)

    assert found.st_blocks * 512 >= found.st_size
    assert found.st_mode & 0o777 == 0o600
    client.end()
    assert DiskFilesystem().boot_id() != bytes(16)
