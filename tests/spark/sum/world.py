"""Queues that come, grow, are trimmed, go, come again, and break; and two queries over all of them.

Every value says which queue it was written to, in which life of its path, and at which offset: so
whoever has a value knows what it is, whatever the reader says of it.
"""

from __future__ import annotations

import json
import logging
import random
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import forebay
from forebay.errors import DataLoss
from tests.queues.helpers import SEGMENT_BYTES, segment_files
from tests.spark.readers import rows_of, stream_reader
from tests.support.inside import look_again

COLUMNS = "queue,queue_id,offset,value,damage"
# A queue to which nothing happens but appends.
QUIET = "quiet"
_RECORD_BYTES = 100
_QUEUES = 4
_LIVES_MAX = 40


@dataclass
class Life:
    """One queue: what was written to it, and what was done to it."""

    path: Path
    number: int
    # What tells it from another queue at its path.
    id: str = ""
    written: int = 0
    removed: bool = False
    trimmed: bool = False
    # Whether bytes of it were flipped: of such a queue records may be missing.
    harmed: bool = False

    def value(self, offset: int) -> bytes:
        text = json.dumps({"path": self.path.name, "life": self.number, "offset": offset})
        return text.encode().ljust(_RECORD_BYTES)


@dataclass
class World:
    """The queues below one directory, and all that ever were."""

    root: Path
    draw: random.Random
    there: dict[str, Life] = field(default_factory=dict)
    lives: list[Life] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)

    def step(self) -> None:
        """Does something to one of the queues."""
        name = f"queue {self.draw.randrange(_QUEUES)}"
        if self.draw.random() < 0.1:
            name = QUIET
        life = self.there.get(name)
        if life is None:
            self._make(name)
            return
        if name == QUIET:
            self.append(life)
            return
        actions = [self.append, self.append, self.append, self.trim, self.remove, self.harm]
        self.draw.choice(actions)(life)

    def _make(self, name: str) -> None:
        if len(self.lives) == _LIVES_MAX:
            return
        life = Life(self.root / name, len(self.lives))
        self.lives.append(life)
        self.there[name] = life
        self.open(life).close()
        with forebay.read(life.path, kind="log") as reader:
            assert reader.tail is not None
            life.id = reader.tail.queue_id.hex()
        again = any(other.path == life.path for other in self.lives[:-1])
        self.done["made again" if again else "made"] += 1
        if self.draw.random() < 0.7:
            self.append(life)
        if self.draw.random() < 0.3 and name != QUIET:
            self.trim(life)

    def open(self, life: Life) -> forebay.Log:
        return forebay.Log(life.path, segment_bytes=SEGMENT_BYTES, background=False)

    def append(self, life: Life) -> None:
        """Appends some records, durably."""
        count = self.draw.randrange(1, 30)
        with self.open(life) as log:
            # Behind damage the numbers go on: only what is on record as written counts.
            life.written = log.end
            log.append_many([life.value(life.written + number) for number in range(count)])
            life.written += count
        self.done["appended"] += 1

    def trim(self, life: Life) -> None:
        """Lets a consumer pass that is quicker than the queries, if they let it."""
        with self.open(life) as log:
            consumer = log.consumer("quicker", start="latest")
            consumer.seek(log.end)
            consumer.commit()
            if log.trim():
                life.trimmed = True
                self.done["trimmed"] += 1

    def remove(self, life: Life) -> None:
        """Removes a queue, read or not."""
        shutil.rmtree(life.path)
        life.removed = True
        del self.there[life.path.name]
        self.done["removed"] += 1

    def harm(self, life: Life) -> None:
        """Flips a byte of a record."""
        files = [file for file in segment_files(life.path) if file.stat().st_size > 40]
        if not files:
            return
        file = self.draw.choice(files)
        data = bytearray(file.read_bytes())
        data[self.draw.randrange(34, len(data))] ^= 1 << self.draw.randrange(8)
        file.write_bytes(data)
        life.harmed = True
        self.done["harmed"] += 1


class Told(logging.Handler):
    """Of which queues a query has said that some of them is lost, by errors and by warnings."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.WARNING)
        self._world = world
        # The ids of the last two queues at each path that the query's plans refer to.
        self._referred: dict[Path, list[str]] = {}
        self.lives: set[int] = set()

    def emit(self, record: logging.LogRecord) -> None:
        self.note(record.getMessage())

    def refer(self, path: Path, queue_id: str) -> None:
        """Takes note of the queue that the latest plan refers to at a path."""
        referred = self._referred.setdefault(path, [])
        if queue_id not in referred[-1:]:
            self._referred[path] = [*referred[-1:], queue_id]

    def note(self, message: str) -> None:
        """Takes note of a message: it is about the queue at its path, or those of the checkpoint.

        Between those, other queues may have come and gone at that path, and no plan saw them.
        """
        for path in {life.path for life in self._world.lives}:
            if f"{path}:" in message or f"{path} " in message or f"{path}/" in message:
                at_path = [life for life in self._world.lives if life.path == path]
                referred = self._referred.get(path, [])
                self.lives.update(life.number for life in at_path if life.id in referred)
                self.lives.add(at_path[-1].number)


class Query:
    """A query as Spark runs it: a checkpoint and a sink that stay, and a process that is killed."""

    def __init__(self, world: World, **options: str) -> None:
        self._path = f"{world.root}/*"
        self._draw = world.draw
        self.told = Told(world)
        # How much of each queue a plan has seen, and where the query began, by the queue's id.
        self.seen: Counter[str] = Counter()
        self.began: Counter[str] = Counter()
        self._options = {
            "mode": "PERMISSIVE",
            "columns": COLUMNS,
            "startingOffsets": "earliest",
            **options,
        }
        self._reader: Any = None
        self._planned: list[str] = []
        self._done = 0
        self.rows: dict[int, list[dict[str, Any]]] = {}
        self.losses = 0
        self.kills = 0

    def run(self, steps: int) -> None:
        """Does some batches, and is killed between any two steps of one."""
        logger = logging.getLogger("forebay.spark")
        logger.addHandler(self.told)
        try:
            for _ in range(steps):
                for step in (self._plan, self._land, self._finish):
                    if self._draw.random() < 0.08:
                        self.kill()
                    self._try(step)
        finally:
            logger.removeHandler(self.told)

    def kill(self) -> None:
        """Ends the process: what it held is free, what it had not logged is gone."""
        if self._reader is not None:
            self._reader.stop()
            self._reader = None
            self.kills += 1

    def _try(self, step: Any) -> None:
        try:
            step()
        except DataLoss as error:
            # The operator has read it, and lets the query go on.
            self.losses += 1
            self.told.note(str(error))
            self.kill()
            strict = self._options
            self._options = {**strict, "failOnDataLoss": "false"}
            try:
                step()
            finally:
                self.kill()
                self._options = strict

    def _plan(self) -> None:
        if self._done < len(self._planned):
            return
        reader = self._running()
        if self._draw.random() < 0.7:
            look_again(reader)
        before = self._before()
        after = reader.latestOffset(before, reader.getDefaultReadLimit())
        if not self._done or after != before:
            self._planned.append(json.dumps(after))
            for path, place in after["queues"].items():
                self.told.refer(Path(path), place["id"])
                if len(self._planned) == 1:
                    # "earliest": what was trimmed before is not asked for.
                    self.began[place["id"]] = place["from"]
                end = place.get("seen", place["offset"])
                self.seen[place["id"]] = max(self.seen[place["id"]], end)
            if self._done:
                reader.commit(before)

    def _land(self) -> None:
        if self._done == len(self._planned):
            return
        reader = self._running()
        partitions = reader.partitions(self._before(), json.loads(self._planned[self._done]))
        # A batch that is replayed replaces what it had landed, as in Spark's file sinks.
        self.rows[self._done] = rows_of(reader, partitions)

    def _finish(self) -> None:
        if self._done < len(self._planned) and self._done in self.rows:
            self._done += 1

    def _before(self) -> dict[str, Any]:
        if not self._done:
            offset: dict[str, Any] = self._running().initialOffset()
            return offset
        before: dict[str, Any] = json.loads(self._planned[self._done - 1])
        return before

    def _running(self) -> Any:
        if self._reader is None:
            self._reader = stream_reader(self._path, **self._options)
        return self._reader
