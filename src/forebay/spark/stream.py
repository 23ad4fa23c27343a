"""Reads queues as they grow: `spark.readStream.format("forebay")`, exactly once.

Spark keeps the offsets in the checkpoint, as JSON of this form, small and with a version:

    {"v": 1, "queues": {PATH: {"id": HEX, "incarnation": N, "offset": N, "from": N, "seen": N}}}

With the option `resumeFrom` a query with a new checkpoint goes on at such offsets, as if they were
in its checkpoint.

A kind of queue may add fields that it needs to find the place again (`Live.fields`). `offset` is
the offset after the last record of the batch. `from` is present if this batch is the first one of a
queue, as it is for all queues in the first batch: a replay must start there again. `seen` is the
known durable end, if a limit kept the batch below it. `gone` marks a queue that is missing: its
place is kept, because the queue may come back. The id and the incarnation reveal a queue that was
replaced, and offsets that were lost in a power cut and assigned again: that is data loss and is
never skipped.

A stream reads up to the durable end only. With `consumerId` it owns `cursors/NAME` in each queue,
and trimming never overtakes it; a second stream with that name raises `Locked`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from forebay.errors import DataLoss, InvalidOption, NotAQueue
from forebay.spark import kinds, paths
from forebay.spark.options import SourceOptions
from forebay.spark.planning import Range, ReadRequest, check_paths, lose, pack, with_queue_id
from forebay.spark.watch import Live, Mark, Watch
from forebay.storage.cursors import Cursor, read_cursors
from forebay.storage.filesystem import DiskFilesystem

VERSION = 1
# Fields of a place that describe its own batch and not those that follow.
_OF_ONE_BATCH = ("from", "seen", "spans", "gone")
Places = dict[str, dict[str, Any]]


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream over queues. Spark keeps one in a process of its own, and copies in the tasks."""

    def __init__(self, options: SourceOptions, schema: Any) -> None:
        self._options = options
        self._wanted = ReadRequest(
            schema,
            options.mode,
            options.fail_on_data_loss,
            key_file=options.key_file,
            stream=True,
        )
        # Created at first use: planning alone opens and locks nothing.
        self._watch: Watch | None = None
        self._cursors: Cursors | None = None
        self._initial: dict[str, Any] | None = None
        self._final: dict[str, Mark] | None = None
        # When the last batch was planned.
        self._planned = float("-inf")
        # How far the last plan goes, for reports.
        self._ends: Places = {}
        # The offsets at which another query ended, and this one goes on.
        self._resumed = options.resume
        # Places that were compared with a mark, which showed no loss.
        self._sound: dict[str, tuple[Mark, int]] = {}

    def __getstate__(self) -> dict[str, Any]:
        # The copy for a task opens and locks nothing.
        return {**self.__dict__, "_watch": None, "_cursors": None, "_sound": {}, "_final": None}

    def initialOffset(self) -> dict[str, Any]:
        """Returns the offsets at which a new query starts."""
        if self._resumed is not None:
            return self._resume(self._resumed)
        if self._initial is None:
            marks = self._queues().marks()
            check_paths(self._options, paths.find(self._options.paths))
            missing = [path for path in self._options.paths if not paths.is_pattern(path)]
            for path in missing:
                if path not in marks and path not in self._queues().unreadable:
                    paths.expand([path])
                    raise NotAQueue(f"path = {path!r} is not a queue")
            self._check_consumer(marks)
            places: Places = {}
            for path, mark in marks.items():
                with self._passing_over(path):
                    places[path] = self._initial_place(path, mark)
            self._initial = {"v": VERSION, "queues": places}
        return self._initial

    def _resume(self, offsets: dict[str, Any]) -> dict[str, Any]:
        """Returns the offsets at which another query ended; all before them is done."""
        done = _places(offsets)
        for path, mark in self._queues().marks().items():
            if path in done and done[path]["id"] == mark.queue_id:
                self._kept().hold(path, done[path]["offset"], mark.incarnation)
        # That query may have been killed before it could move the cursors.
        self._kept().advance(done)
        return offsets

    def getDefaultReadLimit(self) -> ReadLimit:
        """Returns the limit of one batch."""
        if self._options.max_records is not None:
            return ReadMaxRows(self._options.max_records)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Records the present ends of the queues: a query with that trigger ends there."""
        self._queues().look_again()
        self._final = self._queues().marks()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Returns the offsets after the next batch: what is durable, within the limit."""
        before = _places(start)
        marks = self._final if self._final is not None else self._queues().marks()
        known: Places = {}
        for path, mark in sorted(marks.items()):
            with self._passing_over(path):
                if path in before:
                    known[path] = self._checked(path, before[path], mark)
                else:
                    known[path] = self._first_place(path, mark)
        vanished = self._check_vanished(before, known)
        begins = start == self._initial
        if begins:
            # Spark does not record where a query started: a replay of its first batch calls
            # `initialOffset` again.
            known = {path: {"from": place["offset"], **place} for path, place in known.items()}
        ends = _limited({path: (known[path]["offset"], marks[path]) for path in known}, limit)
        after = {
            path: self._end_place(path, known[path], marks[path], ends[path]) for path in known
        } | vanished
        if not begins and (_offsets(after) == _offsets(before) or self._waits(known, marks)):
            self._ends = before
            return start
        self._planned = time.monotonic()
        self._ends = after
        return {"v": VERSION, "queues": after}

    def _waits(self, known: Places, marks: dict[str, Mark]) -> bool:
        """Returns whether there are fewer new records than a batch should have, and still time."""
        wanted = self._options.min_records
        if wanted is None or self._final is not None:
            return False
        if time.monotonic() - self._planned >= self._options.max_delay_seconds:
            return False
        return sum(marks[path].waiting(known[path]["offset"]) for path in known) < wanted

    def reportLatestOffset(self) -> dict[str, Any]:
        """Returns the durable ends, for progress reports, and how many records are before them.

        `read` is how far the last plan goes, and `lag` counts the records from there on.
        """
        queues: Places = {}
        for path, mark in self._queues().marks().items():
            read = self._ends[path]["offset"] if path in self._ends else mark.durable
            queues[path] = {**_place(mark), "read": read, "lag": mark.waiting(read)}
        return {"v": VERSION, "queues": queues}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Returns the tasks of a batch; a replayed batch has the same records."""
        before, after = _places(start), _places(end)
        ranges: list[Range] = []
        for path, place in sorted(after.items()):
            if place == before.get(path):
                continue
            earlier = before.get(path, {})
            first = place["from"] if "from" in place else earlier["offset"]
            if place["offset"] > first:
                ranges += self._ranges(path, first, earlier, place)
        return pack(ranges, self._options.partition_bytes, self._options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yields the record batches of one task."""
        yield from kinds.read(self._wanted, partition.value or ())

    def commit(self, end: dict[str, Any]) -> None:
        """Allows trimming up to `end`: Spark will not request anything before it again."""
        self._kept().advance(_places(end))

    def stop(self) -> None:
        """Closes files and releases the cursors."""
        if self._watch is not None:
            self._watch.close()
        if self._cursors is not None:
            self._cursors.close()

    def _queues(self) -> Watch:
        if self._watch is None:
            passable = kinds.UNREADABLE if self._wanted.tolerant else ()
            self._watch = Watch(self._options.paths, self._follow, passable)
        return self._watch

    @contextlib.contextmanager
    def _passing_over(self, path: str) -> Iterator[None]:
        """Skips a queue that cannot be read, if the options allow it."""
        try:
            yield
        except kinds.UNREADABLE as error:
            if not self._wanted.tolerant:
                raise
            self._queues().pass_over(path, error)

    def _follow(self, path: str) -> Live:
        return kinds.check_streamed(path).follow(path, self._options)

    def _kept(self) -> Cursors:
        if self._cursors is None:
            self._cursors = Cursors(self._options.consumer)
        return self._cursors

    def _check_consumer(self, marks: dict[str, Mark]) -> None:
        """Rejects a consumer name if no queue has cursors."""
        found = [kinds.kind_at(path) for path in marks] if self._options.consumer else []
        if found and not any(kind.has_cursors for kind in found):
            raise InvalidOption(
                f"consumerId: every queue is {found[0].label}, to which a stream writes nothing"
            )

    def _initial_place(self, path: str, mark: Mark) -> dict[str, Any]:
        saved = self._kept().saved(path)
        kind, reader = kinds.open_streamed(path, self._options)
        with reader:
            if self._options.start is None and self._options.start_ms is None and saved is not None:
                offset = max(saved, kind.begin(reader))
            else:
                offset = min(kind.first_offset(reader, self._options), mark.durable)
        self._kept().hold(path, offset, mark.incarnation)
        return _place(mark, offset)

    def _first_place(self, path: str, mark: Mark) -> dict[str, Any]:
        """Returns the place of a queue that appeared after the start: its earliest record."""
        kind, reader = kinds.open_streamed(path, self._options)
        with reader:
            gone = kind.gone(reader)
            if gone is not None:
                lose(self._options, f"{gone} before this stream saw the queue")
            begin = min(kind.begin(reader), mark.durable)
        self._kept().hold(path, begin, mark.incarnation)
        return {**_place(mark, begin), "from": begin}

    def _checked(self, path: str, place: dict[str, Any], mark: Mark) -> dict[str, Any]:
        """Returns the place to continue from; raises if records were lost in the meantime."""
        if place["id"] not in ("", mark.queue_id):
            if "gone" not in place:
                lose(
                    self._options,
                    f"{path} is not the queue that the checkpoint refers to: "
                    f"its id is {mark.queue_id or 'unknown'}, not {place['id'] or 'unknown'}",
                )
            return self._first_place(path, mark)
        if self._sound.get(path) != (mark, place["offset"]):
            trouble = mark.trouble(place)
            if trouble is not None:
                lose(self._options, trouble)
                restart = mark.restart(place)
                return {**_place(mark, restart), "from": restart}
            self._sound[path] = (mark, place["offset"])
        self._kept().hold(path, place["offset"], mark.incarnation)
        kept = {name: value for name, value in place.items() if name not in _OF_ONE_BATCH}
        return {**kept, "id": mark.queue_id, "incarnation": mark.incarnation}

    def _check_vanished(self, before: Places, known: Places) -> Places:
        """Returns the places of missing queues; raises if one had unread records."""
        vanished: Places = {}
        for path, place in before.items():
            if path in known:
                continue
            if "gone" in place or path in self._queues().unreadable:
                vanished[path] = place
                continue
            if not self._queues().belongs(path):
                lose(
                    self._options,
                    f"the checkpoint is for other queues: {path} is not among the paths of this "
                    "query; give it its own checkpointLocation, or the old paths",
                )
            self._kept().let_go(path)
            if place.get("seen", place["offset"]) > place["offset"]:
                unread = place["seen"] - place["offset"]
                lose(self._options, f"{path} is gone, with at least {unread} unread records")
            kept = {name: value for name, value in place.items() if name not in _OF_ONE_BATCH}
            vanished[path] = {**kept, "gone": True}
        return vanished

    def _ranges(
        self, path: str, first: int, before: dict[str, Any], place: dict[str, Any]
    ) -> Iterator[Range]:
        try:
            kind, reader = kinds.open_streamed(path, self._options)
        except (FileNotFoundError, NotAQueue):
            lose(self._options, f"{path} is gone, with offsets {first}..{place['offset']} unread")
            return
        except kinds.UNREADABLE as error:
            if not self._wanted.tolerant:
                raise
            whole = Range("", path, first, place["offset"], queue_id=place["id"])
            yield kinds.unreadable_of(path, error, whole)
            return
        with reader:
            # A replay precedes the first poll: from now on no other process may move the cursor.
            self._kept().hold(path, first, place["incarnation"])
            parts = kind.resume(reader, first, before, place, self._options)
            parts = with_queue_id(parts, self._wanted, place["id"])
            yield from kinds.planned(parts, path, tolerant=self._wanted.tolerant)

    def _end_place(self, path: str, place: dict[str, Any], mark: Mark, end: int) -> dict[str, Any]:
        after: dict[str, Any] = {
            name: place[name] for name in ("id", "incarnation", "from") if name in place
        }
        after |= {"offset": end, **self._queues().fields(path, mark, place, end)}
        return {**after, "seen": mark.durable} if end < mark.durable else after


class Cursors:
    """The positions `cursors/NAME` of one stream, held while it runs, so that trimming stays below.

    Without a name nothing is held, and every call does nothing. Queues of kinds without cursors are
    not held either. One thread at a time may use it.
    """

    def __init__(self, name: str | None) -> None:
        self._name = name
        self._held: dict[str, Cursor] = {}
        self._without: set[str] = set()

    def saved(self, path: str) -> int | None:
        """Returns the position that an earlier stream of this name saved in a queue."""
        if self._name is None or not self._may_hold(path):
            return None
        directory = DiskFilesystem().open_directory(path)
        try:
            return dict(read_cursors(directory)).get(self._name)
        finally:
            directory.close()

    def hold(self, path: str, offset: int, incarnation: int) -> None:
        """Locks the cursor of a queue, created at `offset` if missing; raises `Locked`."""
        if self._name is None or path in self._held or not self._may_hold(path):
            return
        directory = DiskFilesystem().open_directory(path)
        try:
            self._held[path] = Cursor.open(
                directory, self._name, start=offset, incarnation=incarnation
            )
        finally:
            directory.close()

    def _may_hold(self, path: str) -> bool:
        if path not in self._without and not kinds.kind_at(path).has_cursors:
            self._without.add(path)
        return path not in self._without

    def advance(self, places: dict[str, dict[str, Any]]) -> None:
        """Moves the cursors forward; durable on return."""
        for path, cursor in self._held.items():
            if path in places:
                cursor.advance(places[path]["offset"], places[path]["incarnation"])

    def let_go(self, path: str) -> None:
        """Releases the cursor of a queue that is gone."""
        cursor = self._held.pop(path, None)
        if cursor is not None:
            cursor.close()

    def close(self) -> None:
        """Releases all cursors."""
        for path in list(self._held):
            self.let_go(path)


def _places(offsets: dict[str, Any]) -> Places:
    if offsets.get("v") != VERSION:
        raise DataLoss(
            f"the checkpoint has offsets of version {offsets.get('v')}, but this program reads "
            f"{VERSION}; give the query a new checkpointLocation"
        )
    places: Places = offsets["queues"]
    return places


def _offsets(places: Places) -> Places:
    """Returns places reduced to the fields that say how far they are."""
    names = ("id", "incarnation", "offset", "seen", "gone")
    return {
        path: {name: place[name] for name in names if name in place}
        for path, place in places.items()
    }


def _place(mark: Mark, offset: int | None = None) -> dict[str, Any]:
    offset = mark.durable if offset is None else offset
    return {"id": mark.queue_id, "incarnation": mark.incarnation, "offset": offset}


def _limited(queues: dict[str, tuple[int, Mark]], limit: ReadLimit) -> dict[str, int]:
    """Divides a limit among the queues by what is waiting in each; at least one record passes."""
    counts = {path: mark.waiting(start) for path, (start, mark) in queues.items()}
    if isinstance(limit, ReadMaxRows):
        sizes, room = dict.fromkeys(queues, 1), limit.max_rows
    elif isinstance(limit, ReadMaxBytes):
        sizes = {path: mark.record_bytes for path, (_, mark) in queues.items()}
        room = limit.max_bytes
    else:
        sizes, room = dict.fromkeys(queues, 0), 0
    waiting = {path: count * sizes[path] for path, count in counts.items()}
    total = sum(waiting.values())
    if total <= room:
        return {path: max(start, mark.durable) for path, (start, mark) in queues.items()}
    shares: dict[str, int] = {}
    left = room
    for path in sorted(queues):
        shares[path] = room * waiting[path] // total // sizes[path]
        left -= shares[path] * sizes[path]
    # What rounding leaves goes to the first queues with waiting records.
    progress = left < room
    for path in sorted(queues):
        more = min(left // sizes[path], counts[path] - shares[path])
        if more == 0 and not progress and counts[path]:
            more = 1
        shares[path] += more
        left -= more * sizes[path]
        progress = progress or more > 0
    return {path: mark.advance(start, shares[path]) for path, (start, mark) in queues.items()}
