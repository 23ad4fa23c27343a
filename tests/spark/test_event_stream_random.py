"""Random stories of a Beats queue and a stream over it: every event comes once, none is missed.

The owner puts, acknowledges what the stream has read, closes and opens again; the stream polls with
limits, is started anew from its checkpoint, and has its last batch replayed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from forebay import BeatsQueue
from forebay.errors import ForebayError
from forebay.queues.beats.place import offset_of
from forebay.spark.kinds.beats import BeatsLive, BeatsMark, Counted
from tests.counting import Count
from tests.queues.beats_helpers import make_key, numbered, open_queue
from tests.spark.readers import rows_of, stream_reader
from tests.support.inside import poll_again

VERSIONS = ("v1", "v2", "v2-lz4", "v3-seed")
SEEDS = 12
STEPS = 25


class Broken(Exception):
    """A promise does not hold."""


class Story:
    """One queue, one stream, and what they have done so far."""

    def __init__(self, path: Path, seed: int) -> None:
        self._draw = Random(seed)
        self._path = path
        self._version = VERSIONS[seed % len(VERSIONS)]
        self._key = str(make_key(path.parent))
        self._queue = self._open()
        self._put = 0
        self._acknowledged = 0
        self._reader = self._start()
        self._places = [json.dumps(self._reader.initialOffset())]
        self._last: list[int] = []
        self.seen: list[int] = []

    def run(self, steps: int) -> None:
        """Does so many things, and looks in the end whether every event came."""
        actions = (
            *(self.put, self.put, self.poll, self.poll),
            *(self.acknowledge, self.reopen, self.restart, self.replay),
        )
        try:
            for _ in range(steps):
                self._draw.choice(actions)()
            self._queue.sync()
            while self.poll():
                pass
        finally:
            self._reader.stop()
            self._queue.close()
        if self.seen != list(range(self._put)):
            raise Broken(f"{len(self.seen)} events came of {self._put}: {self.seen}")

    def put(self) -> None:
        count = self._draw.randrange(1, 15)
        self._queue.put_many(numbered(count, first=self._put))
        self._put += count

    def poll(self) -> bool:
        """Does one batch; says whether it had something."""
        limit = self._draw.choice((ReadAllAvailable(), ReadMaxRows(self._draw.randrange(1, 9))))
        before = json.loads(self._places[-1])
        poll_again(self._reader)
        after = self._reader.latestOffset(before, limit)
        text = json.dumps(after)
        if text == self._places[-1]:
            return False
        self._last = self._read(before, json.loads(text))
        self._places.append(text)
        self.seen += self._last
        return True

    def replay(self) -> None:
        if len(self._places) > 1 and self._acknowledged <= len(self.seen) - len(self._last):
            again = self._read(json.loads(self._places[-2]), json.loads(self._places[-1]))
            if again != self._last:
                raise Broken(f"a batch had {self._last}, and {again} the second time")

    def acknowledge(self) -> None:
        """Acknowledges some of what the stream has read, so that whole segments go."""
        count = self._draw.randrange(1, 30)
        while count and self._acknowledged < len(self.seen):
            batch = self._queue.read(min(count, len(self.seen) - self._acknowledged))
            if not len(batch):
                return
            batch.ack()
            count -= len(batch)
            self._acknowledged += len(batch)

    def reopen(self) -> None:
        self._queue.close()
        self._queue = self._open()

    def restart(self) -> None:
        self._reader.stop()
        self._reader = self._start()

    def _open(self) -> BeatsQueue:
        return open_queue(self._path, self._version, sync="os", background=False)

    def _start(self) -> Any:
        return stream_reader(self._path, startingOffsets="earliest", keyFile=self._key)

    def _read(self, before: dict[str, Any], after: dict[str, Any]) -> list[int]:
        rows = rows_of(self._reader, self._reader.partitions(before, after))
        return [row["timestamp_ns"] - 10**9 for row in rows]


def hunt(tmp_path: Path) -> int:
    """Runs the stories; gives how many events came."""
    came = 0
    for seed in range(SEEDS):
        (tmp_path / str(seed)).mkdir()
        story = Story(tmp_path / str(seed) / "q", seed)
        try:
            story.run(STEPS)
        except ForebayError as error:
            raise Broken(f"seed {seed}: {error}") from error
        came += len(story.seen)
    return came


@pytest.mark.slow
def test_every_event_comes_once(tmp_path: Path, record_property: Count) -> None:
    assert hunt(tmp_path) > SEEDS * STEPS

    record_property("random stories of a stream over events", SEEDS)


def limit_is_one_more(patch: pytest.MonkeyPatch) -> None:
    original = BeatsMark.spans

    def spans(self: BeatsMark, start: int, end: int) -> list[tuple[int, int]]:
        return [(first, last + 1) for first, last in original(self, start, end)]

    patch.setattr(BeatsMark, "spans", spans)


def position_of_the_frame_before(patch: pytest.MonkeyPatch) -> None:
    original = BeatsLive._position

    def position(self: BeatsLive, place: dict[str, Any], end: int) -> int:
        return original(self, place, end - 1) if original(self, place, end) else 0

    patch.setattr(BeatsLive, "_position", position)


def all_that_is_written_is_counted(patch: pytest.MonkeyPatch) -> None:
    """A segment is taken for finished while it is still being written."""
    patch.setattr(BeatsLive, "_is_finished", lambda self, segment: True)


def segments_counted_once_only(patch: pytest.MonkeyPatch) -> None:
    original = BeatsLive._count

    def count(self: BeatsLive, segment: int, *, finished: bool) -> None:
        if segment not in self._segments:
            original(self, segment, finished=finished)
        else:
            known = self._segments[segment]
            self._segments[segment] = Counted(known.count, known.position, finished)

    patch.setattr(BeatsLive, "_count", count)


def start_of_a_batch_left_out(patch: pytest.MonkeyPatch) -> None:
    """A batch begins with the segment in which it begins, not where it does."""
    original = BeatsMark.spans

    def spans(self: BeatsMark, start: int, end: int) -> list[tuple[int, int]]:
        return original(self, offset_of(start >> 32, 0), end)

    patch.setattr(BeatsMark, "spans", spans)


BUGS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "limit is one more": limit_is_one_more,
    "position of another frame": position_of_the_frame_before,
    "finished too early": all_that_is_written_is_counted,
    "counted once only": segments_counted_once_only,
    "start left out": start_of_a_batch_left_out,
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_caught(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Count
) -> None:
    BUGS[name](monkeypatch)

    with pytest.raises(Broken):
        hunt(tmp_path)

    record_property("planted bugs caught", 1)
