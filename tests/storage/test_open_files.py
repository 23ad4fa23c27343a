"""The files that are being written: which of them a sync covers, and when they are closed."""

from __future__ import annotations

from forebay.storage.open_files import OpenFiles


class Noted:
    """A file that notes what was done to it."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def sync(self) -> None:
        self.calls.append("sync")

    def close(self) -> None:
        self.calls.append("close")


def test_what_is_written_while_a_sync_runs_is_left_to_the_next_one() -> None:
    files, file = OpenFiles(), Noted()
    files.wrote(file)
    first = files.begin_sync()
    files.wrote(file)
    files.finish(file)

    full = files.end_sync(done=True)

    assert (first, full, file.calls) == ([file], False, [])
    assert files.begin_sync() == [file]
    assert files.end_sync(done=True)
    assert file.calls == ["close"]


def test_a_finished_file_stays_open_while_a_sync_runs_on_it() -> None:
    files, file = OpenFiles(), Noted()
    files.wrote(file)
    files.begin_sync()
    files.finish(file)

    files.sync()
    before = list(file.calls)
    files.end_sync(done=True)

    assert (before, file.calls) == (["sync"], ["sync", "close"])


def test_a_sync_that_failed_or_was_interrupted_is_done_again() -> None:
    files, older, newer = OpenFiles(), Noted(), Noted()
    files.wrote(older)
    files.begin_sync()
    files.end_sync(done=False)
    files.begin_sync()
    files.wrote(newer)

    assert files.unsynced == 2
    assert files.begin_sync() == [older, newer]


def test_all_is_durable_after_a_sync_with_the_lock_held() -> None:
    files, older, newer = OpenFiles(), Noted(), Noted()
    files.wrote(older)
    files.finish(older)
    files.wrote(newer)

    files.sync()

    assert (files.unsynced, files.begin_sync(), files.finished) == (0, [], [])
    assert (older.calls, newer.calls) == (["sync", "close"], ["sync"])


def test_a_file_that_is_dropped_is_not_synced() -> None:
    files, file = OpenFiles(), Noted()
    files.wrote(file)

    files.drop(file)

    assert (files.begin_sync(), file.calls) == ([], ["close"])


def test_closing_closes_finished_files_once() -> None:
    files, file = OpenFiles(), Noted()
    files.wrote(file)
    files.finish(file)

    files.close()
    files.close()

    assert file.calls == ["close"]
