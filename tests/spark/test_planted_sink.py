"""The tests of the sink can fail: each of these bugs, planted into it, is caught.

A bug is a patch of our own code that a tired programmer might have written, and the story that
finds it. The stories call the writers as Spark does, in the order in which Spark was seen to.
`test_without_a_bug_the_same_story_ends_well` is the control.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.queues.log import adoption
from forebay.queues.log.queue import Log
from forebay.spark.sink import parts
from forebay.spark.sink import writer as sink
from forebay.spark.sink.writer import ForebayStreamWriter, Messages, Written
from forebay.storage import inbox
from forebay.storage.filesystem import Directory
from tests.counting import Count
from tests.crash.forgetful import ForgetfulFilesystem
from tests.queues.helpers import publish as publish_parts
from tests.queues.helpers import write_part
from tests.spark.test_parts import NOW_MS, write
from tests.spark.test_sink_writers import left_in_inbox, stream_writer, task, values_in
from tests.spark.test_sink_writers import rows as batches
from tests.support.clocks import FakeClock
from tests.support.planting import Broken, Bug, Patch, check_caught, check_control, each


def expect(found: object, wanted: object) -> None:
    if found != wanted:
        raise Broken(f"{found} is not {wanted}")


def commit_fails_after_its_effect(path: Path) -> None:
    """Spark calls abort with the same messages, and the restart replays the batch."""
    with Log(path, background=False) as owner:
        writer = stream_writer(path)
        messages = [task(writer, [b"a"]), task(writer, [b"b"], 1)]
        writer.commit(messages, 0)
        writer.abort(messages, 0)
        replay = [task(writer, [b"a"]), task(writer, [b"b"], 1)]
        writer.commit(replay, 0)
        owner.adopt()
    expect(values_in(path), [b"a", b"b"])


def abort_while_the_owner_adopts(path: Path) -> None:
    """The ledger is written and the parts are about to move when abort comes."""
    with Log(path, background=False) as owner:
        writer = stream_writer(path)
        messages = [task(writer, [b"a"])]
        writer.commit(messages, 0)
        finish = inbox.finish_moves

        def aborted_meanwhile(queue: Directory, work: Directory, moves: Any) -> None:
            inbox.remove(work, next(name for name in work.names() if name.endswith(".ready")))
            writer.abort(messages, 0)
            finish(queue, work, moves)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(inbox, "finish_moves", aborted_meanwhile)
            owner.adopt()
    with forebay.read(path, salvage=True, kind="log") as reader:
        expect(list(reader.values()), [b"a"])


def a_task_is_late(path: Path) -> None:
    """A sibling failed, the batch is aborted; then the other task ends, then comes the replay."""
    writer = stream_writer(path)
    writer.abort([None, None], 0)
    task(writer, [b"b"], 1)
    Log(path).close()
    expect(values_in(path), [])
    writer.commit([task(writer, [b"a"]), task(writer, [b"b"], 1)], 0)
    expect(values_in(path), [b"a", b"b"])


def tasks_end_in_any_order(path: Path) -> None:
    """The second partition is done first."""
    writer = stream_writer(path)
    writer.commit([task(writer, [b"b"], 1), task(writer, [b"a"], 0)], 0)
    expect(values_in(path), [b"a", b"b"])


def a_task_fails_halfway(path: Path) -> None:
    """A null comes in the second batch of rows, when those of the first are written."""
    writer = stream_writer(path)
    with pytest.raises(forebay.InvalidOption):
        writer.write(itertools.chain(batches([b"a"]), batches([None])))
    expect(left_in_inbox(path), [])


def two_commits_meet(path: Path) -> None:
    """One publishes while the other has the lock and has looked into the inbox already."""
    late = stream_writer(path)
    messages = [Written(0, "late", task(late, [b"late"]).parts)]
    closing = Log.close

    def close_after_another_commit(log: Log) -> None:
        patch.setattr(Log, "close", closing)
        late.commit(messages, 0)
        closing(log)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Log, "close", close_after_another_commit)
        writer = stream_writer(path)
        writer.commit([task(writer, [b"a"])], 0)
    expect(values_in(path), [b"a", b"late"])


def the_owner_was_away_for_days(path: Path) -> None:
    """A batch is published, and adopted long after its parts were made."""
    Log(path).close()
    part = write_part(path, f"{NOW_MS}-{'0' * 32}.part", [b"a"])
    publish_parts(path, "a", 0, [part])
    Log(path, clock=FakeClock(NOW_MS + 3 * inbox.ORPHAN_MS)).close()
    expect(values_in(path), [b"a"])


def the_power_goes(path: Path) -> None:
    """A published batch must be there, whole, whatever the disk forgets."""
    filesystem = ForgetfulFilesystem()
    queue = filesystem.open_directory("/q", create=True)
    written = write(queue, [b"a", b"b" * 500, b"c" * 500], filesystem=filesystem)
    parts.publish_batch(queue, "w", 0, written, NOW_MS)
    filesystem.acknowledge("published")
    for state in filesystem.crash_states(6, torn=True):
        log = Log("/q", filesystem=state.restore(), background=False)
        end = log.end
        log.close()
        expect(end in ((3,) if state.acknowledged else (0, 3)), True)


def abort_removes_everything(patch: Patch) -> None:
    def remove_all(queue: Directory, given: list[inbox.Part]) -> None:
        work = queue.directory(inbox.DIRECTORY)
        for part in given:
            inbox.remove(work, part.name)
        work.close()

    patch.setattr(sink, "discard_parts", remove_all)


def abort_knows_only_manifests(patch: Patch) -> None:
    class NoMoves:
        def __getattr__(self, name: str) -> Any:
            return getattr(inbox, name)

        @staticmethod
        def read_ledger(queue: Directory) -> inbox.Ledger:
            return inbox.Ledger(inbox.read_ledger(queue).adopted, [])

    patch.setattr(parts, "inbox", NoMoves())


def commit_under_a_new_name(patch: Patch) -> None:
    def commit(self: ForebayStreamWriter, messages: Messages, batchId: int) -> None:
        self._publish(f"query:{uuid.uuid4()}", batchId, messages)

    patch.setattr(ForebayStreamWriter, "commit", commit)


def late_task_publishes(patch: Patch) -> None:
    original = ForebayStreamWriter.write

    def publishing(self: ForebayStreamWriter, iterator: Iterator[Any]) -> Written:
        written = original(self, iterator)
        self._publish(f"task:{uuid.uuid4()}", 0, [written])
        return written

    patch.setattr(ForebayStreamWriter, "write", publishing)


def order_of_the_messages(patch: Patch) -> None:
    def unsorted(messages: Messages) -> list[inbox.Part]:
        return [
            part for message in messages if isinstance(message, Written) for part in message.parts
        ]

    patch.setattr(sink, "_parts", unsorted)


def failed_task_leaves_its_parts(patch: Patch) -> None:
    def close_only(self: parts.PartWriter) -> None:
        self._syncer.shutdown()
        for part in self._parts:
            part.file.close()

    patch.setattr(parts.PartWriter, "discard", close_only)


def commit_does_not_look_again(patch: Patch) -> None:
    patch.setattr(sink, "waiting_manifests", lambda queue: set())


def orphans_by_age_alone(patch: Patch) -> None:
    original = adoption._remove_orphans
    patch.setattr(
        adoption,
        "_remove_orphans",
        lambda work, names, manifests, now_ms: original(work, names, [], now_ms),
    )


def parts_not_synced(patch: Patch) -> None:
    patch.setattr(parts._OpenPart, "seal", lambda self: self.file.close())


BUGS: dict[str, Bug] = {
    "abort deletes a published batch": (abort_removes_everything, commit_fails_after_its_effect),
    "abort deletes what is being adopted": (
        abort_knows_only_manifests,
        abort_while_the_owner_adopts,
    ),
    "commit not idempotent": (commit_under_a_new_name, commit_fails_after_its_effect),
    "late task publishes": (late_task_publishes, a_task_is_late),
    "partitions out of order": (order_of_the_messages, tasks_end_in_any_order),
    "failed task leaves its parts": (failed_task_leaves_its_parts, a_task_fails_halfway),
    "batch left to nobody": (commit_does_not_look_again, two_commits_meet),
    "published part removed as an orphan": (orphans_by_age_alone, the_owner_was_away_for_days),
    "parts not synced": (parts_not_synced, the_power_goes),
}


@each(BUGS)
def test_a_planted_bug_is_caught(
    bug: Bug, tmp_path: Path, monkeypatch: Patch, record_property: Count
) -> None:
    check_caught(bug, monkeypatch, record_property, tmp_path / "q")


@each(BUGS)
def test_without_a_bug_the_same_story_ends_well(bug: Bug, tmp_path: Path) -> None:
    check_control(bug, tmp_path / "q")
