"""`losses`: what a queue has lost stays on record until somebody has seen it."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from forebay.damage import Damage
from forebay.storage import losses
from forebay.storage.atomic import encode_document
from forebay.storage.filesystem import DiskDirectory
from forebay.storage.losses import Losses, accept, read_losses
from tests.crash.forgetful import ForgetfulFilesystem
from tests.storage.helpers import open_directory


def damage(position: int = 40, count: int | None = 3) -> Damage:
    return Damage("/anywhere/0000000007", position, 12, "checksum does not match", count=count)


@pytest.fixture
def directory(tmp_path: Path) -> DiskDirectory:
    return open_directory(tmp_path)


def note_and_save(directory: DiskDirectory, *found: Damage, gone: bool = False) -> None:
    record = Losses.load(directory)
    for item in found:
        record.note(item, gone=gone)
    record.save()


def test_a_queue_that_lost_nothing_has_no_file(directory: DiskDirectory) -> None:
    record = Losses.load(directory)
    record.save()

    assert directory.names() == []
    assert (record.unaccepted, record.waiting) == (0, False)


def test_damage_is_raised_once_a_handle(directory: DiskDirectory) -> None:
    record = Losses.load(directory)

    assert [record.note(damage()) for _ in range(3)] == [True, False, False]
    assert record.note(damage(position=99))

    record.save()
    assert Losses.load(directory).note(damage())


def test_a_loss_whose_evidence_is_gone_waits_in_every_handle_until_it_is_accepted(
    directory: DiskDirectory,
) -> None:
    note_and_save(directory, damage(), gone=True)

    for _ in range(2):
        record = Losses.load(directory)
        assert record.waiting
        found = record.next_pending()
        assert found is not None
        assert (found.path, found.count) == (f"{directory.path}/0000000007", 3)
        assert record.next_pending() is None
        assert not record.waiting
    accept(directory)
    assert not Losses.load(directory).waiting


def test_damage_that_stays_in_the_files_does_not_wait(directory: DiskDirectory) -> None:
    note_and_save(directory, damage())

    record = Losses.load(directory)

    assert not record.waiting
    assert record.unaccepted == 1


def test_accepting_marks_what_is_on_record_and_what_was_found(directory: DiskDirectory) -> None:
    note_and_save(directory, damage(), gone=True)

    assert accept(directory, [damage(), damage(position=99)]) == 2
    assert accept(directory) == 0

    record = Losses.load(directory)
    assert record.unaccepted == 0
    assert not record.note(damage(position=99))
    assert record.note(damage(position=100))


def test_an_unknown_count_stays_unknown(directory: DiskDirectory) -> None:
    note_and_save(directory, damage(count=None))

    assert [loss.damage.count for loss in read_losses(directory)] == [None]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]\n00000000\n",
        encode_document({"file": "x"}),
        encode_document([3]),
        encode_document([{"file": "x", "position": "y"}]),
    ],
)
def test_a_file_that_does_not_verify_is_a_loss_of_an_unknown_number(
    directory: DiskDirectory, tmp_path: Path, data: bytes
) -> None:
    (tmp_path / "d" / losses.NAME).write_bytes(data)

    (loss,) = read_losses(directory)

    assert loss.damage.path == f"{directory.path}/losses"
    assert loss.damage.count is None
    record = Losses.load(directory)
    assert record.waiting
    record.save()
    assert len(read_losses(directory)) == 1


def test_a_directory_in_its_place_stops_nobody(directory: DiskDirectory, tmp_path: Path) -> None:
    (tmp_path / "d" / losses.NAME).mkdir()

    record = Losses.load(directory)
    record.note(damage())
    record.save()

    assert len(read_losses(directory)) == 2
    assert (tmp_path / "d" / "quarantine" / losses.NAME).is_dir()


def test_what_is_beyond_the_limit_is_added_up(
    directory: DiskDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "LOSSES_MAX", 3)

    note_and_save(directory, *(damage(position=place, count=2) for place in range(10)))

    rows = read_losses(directory)
    assert len(rows) == 3
    assert sum(row.damage.count or 0 for row in rows) == 20


def test_what_was_saved_is_durable() -> None:
    filesystem = ForgetfulFilesystem()
    directory = filesystem.open_directory("/d", create=True)
    record = Losses.load(directory)
    record.note(damage(), gone=True)
    record.save()
    last = filesystem.operations

    for state in filesystem.crash_states(points=lambda point: point == last):
        assert losses.NAME in {name.rpartition("/")[2] for name in state.files()}


def test_what_could_not_be_written_down_is_written_by_the_next_save() -> None:
    filesystem = ForgetfulFilesystem()
    directory = filesystem.open_directory("/d", create=True)
    record = Losses.load(directory)
    record.note(damage(), gone=True)
    filesystem.fail_at(1, errno.EIO, forever=True)

    with pytest.raises(OSError, match="Input/output error"):
        record.save()
    filesystem.heal()
    record.save()

    assert [loss.damage.count for loss in read_losses(directory)] == [3]
