"""Parts: sealed segments that a Spark job leaves in `inbox/` of a queue, and their manifest.

Tasks write parts under names that no other attempt uses; the parts do not count until the driver
publishes one manifest that names them all. A batch that is already published or adopted is not
published again. When a failed batch is aborted, only parts that no manifest names are removed: the
error may have occurred after publishing, and the owner may be adopting the parts right now.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow

from forebay.clock import Clock
from forebay.damage import Damage
from forebay.errors import Damaged, InvalidOption, RecordTooLarge
from forebay.formats.fflg import LAYOUTS, MS_MAX, VERSION_DEFAULT, Header
from forebay.kernels.fflg import encode_columns
from forebay.storage import inbox
from forebay.storage.filesystem import Directory, File, Filesystem, write_all

if TYPE_CHECKING:
    from pyarrow import Array


_BUFFER_BYTES = 4 << 20
# After this many bytes a sync runs while the next rows are written: little is left for the end.
_SYNC_BYTES = 16 << 20
_INT32_MAX = 2**31 - 1
_LAYOUT = LAYOUTS[VERSION_DEFAULT]
# The owner removes unpublished files that are older than a day: they must be published before that.
_PUBLISH_WITHIN_MS = inbox.ORPHAN_MS - 60 * 60 * 1000


class PartWriter:
    """The parts of one attempt of a task. One thread may use it.

    A part is created with its first row; `segment_bytes` is the most that one may take.
    """

    def __init__(
        self,
        filesystem: Filesystem,
        work: Directory,
        clock: Clock,
        *,
        segment_bytes: int,
        partition: int,
    ) -> None:
        """`work` is the open `inbox/` of the queue; errors name the partition."""
        self._filesystem = filesystem
        self._work = work
        self._clock = clock
        self._segment_bytes = segment_bytes
        self._partition = partition
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._rows = 0
        self._parts: list[_OpenPart] = []
        self._part: _OpenPart | None = None
        self._syncer = ThreadPoolExecutor(1, "forebay sync")
        self._syncs: deque[Future[None]] = deque()

    def append(self, column: Array) -> None:
        """Writes the values of a binary or string column, each as a record, in order."""
        if column.null_count:
            row = self._rows + column.is_null().index(True).as_py()
            place = f"row {row} of partition {self._partition}"
            raise InvalidOption(f"column 'value' is null in {place}; give every row a value")
        for narrow in _narrow(column):
            _, ends, data = narrow.buffers()
            bounds = memoryview(ends).cast("i")[narrow.offset : narrow.offset + len(narrow) + 1]
            self._append(bounds, memoryview(data or b"").cast("B"))

    def finish(self) -> list[inbox.Part]:
        """Seals what is open and returns all parts; their bytes are durable on return."""
        self._seal()
        self._syncer.shutdown()
        self._check_syncs()
        return [inbox.Part(part.name, part.count, part.size) for part in self._parts]

    def discard(self) -> None:
        """Removes everything that this writer wrote."""
        self._syncer.shutdown(cancel_futures=True)
        for part in self._parts:
            part.file.close()
            inbox.remove(self._work, part.name)

    def _append(self, bounds: memoryview, data: memoryview) -> None:
        first, end = 0, len(bounds) - 1
        while first < end:
            now_ms = self._clock.now_ms()
            part = self._part_at(now_ms)
            room = self._buffer[: self._segment_bytes - part.size]
            ms = part.advance(now_ms)
            done, size = encode_columns(
                bounds, data, first, end - first, room, part.count, part.seed, ms
            )
            if done:
                part.write(self._buffer[:size], done)
                first, self._rows = first + done, self._rows + done
                if part.size - part.sync_position >= _SYNC_BYTES:
                    part.sync_position = part.size
                    self._start_sync(part.file.sync)
            else:
                self._make_room(bounds[first + 1] - bounds[first])

    def _part_at(self, now_ms: int) -> _OpenPart:
        if self._part is not None and now_ms - self._part.header.epoch_ms > MS_MAX:
            self._seal()
        if self._part is None:
            header = Header(VERSION_DEFAULT, 0, self._filesystem.random_bytes(8), now_ms - 1)
            self._part = _OpenPart(self._work, header, now_ms)
            self._parts.append(self._part)
            self._part.write(memoryview(header.encode()), 0)
        return self._part

    def _make_room(self, value_bytes: int) -> None:
        """Makes room for a record that fits neither in the buffer nor in the part."""
        frame = _LAYOUT.frame_bytes + value_bytes
        if frame > self._segment_bytes - _LAYOUT.header_bytes:
            most = self._segment_bytes - _LAYOUT.header_bytes - _LAYOUT.frame_bytes
            raise RecordTooLarge(
                f"column 'value' holds {value_bytes} bytes in row {self._rows} of partition "
                f"{self._partition}: with segmentBytes = {self._segment_bytes} at most {most} fit"
            )
        if frame > len(self._buffer):
            self._buffer = memoryview(bytearray(frame))
        else:
            self._seal()

    def _seal(self) -> None:
        if self._part is not None:
            self._start_sync(self._part.seal)
            self._part = None

    def _start_sync(self, action: Callable[[], None]) -> None:
        self._check_syncs()
        self._syncs.append(self._syncer.submit(action))

    def _check_syncs(self) -> None:
        """Raises the error of a sync: the system reports it only once, not at later syncs."""
        while self._syncs and self._syncs[0].done():
            self._syncs.popleft().result()


class _OpenPart:
    """A part that is being written."""

    def __init__(self, work: Directory, header: Header, now_ms: int) -> None:
        self.name = inbox.new_stem(now_ms) + inbox.PART
        self.header = header
        self.seed = header.seed
        self.count = 0
        self.size = 0
        self.sync_position = 0
        self._last_ms = 1
        self.file: File = work.create(self.name)

    def advance(self, now_ms: int) -> int:
        """Returns the ms since the epoch for new records; the time never falls."""
        self._last_ms = max(self._last_ms, now_ms - self.header.epoch_ms)
        return self._last_ms

    def write(self, data: memoryview, count: int) -> None:
        """Writes the frames of `count` records at the end."""
        write_all(self.file, data, self.size)
        self.size += len(data)
        self.count += count

    def seal(self) -> None:
        """Makes the part durable and closes it; its name becomes durable with the manifest."""
        try:
            self.file.sync()
        finally:
            self.file.close()


def _narrow(column: Array) -> Iterator[Array]:
    """Yields a column as arrays with 32-bit offsets."""
    kind = column.type
    if pyarrow.types.is_binary(kind) or pyarrow.types.is_string(kind):
        yield column
    elif column.nbytes > _INT32_MAX and len(column) > 1:
        half = len(column) // 2
        yield from _narrow(column[:half])
        yield from _narrow(column[half:])
    else:
        yield column.cast(pyarrow.binary())


def publish_batch(
    queue: Directory,
    writer: str,
    batch: int,
    parts: Sequence[inbox.Part],
    now_ms: int,
) -> bool:
    """Publishes the parts of a batch, durably and once; returns whether it published them.

    A batch that is already published or adopted is left alone, and the new parts are removed.
    """
    if _is_taken(queue, writer, batch):
        with _open_inbox(queue) as work:
            # The process that renamed the manifest may have died before its name was durable.
            work.sync()
        discard_parts(queue, parts)
        return False
    _check_parts(queue, parts, now_ms)
    inbox.publish(queue, inbox.new_stem(now_ms), inbox.Manifest(writer, batch, list(parts)))
    return True


def discard_parts(queue: Directory, parts: Iterable[inbox.Part]) -> None:
    """Removes those of the parts that no manifest names and no adoption is moving."""
    with contextlib.suppress(FileNotFoundError), _open_inbox(queue) as work:
        # Read manifests before the ledger: a batch moves from the first to the second, and its
        # files move after that.
        manifests = [manifest for _, manifest in inbox.read_manifests(work)]
        published = {move.part for move in inbox.read_ledger(queue).moves}
        for manifest in manifests:
            if manifest is None:
                # It may name any of them; after a day the owner removes what is not published.
                return
            published.update(part.name for part in manifest.parts)
        for part in parts:
            if part.name not in published:
                inbox.remove(work, part.name)


def waiting_manifests(queue: Directory) -> set[str]:
    """Returns the names of the manifests that await adoption."""
    try:
        with _open_inbox(queue) as work:
            return {name for name in work.names() if name.endswith(inbox.READY)}
    except FileNotFoundError:
        return set()


def _is_taken(queue: Directory, writer: str, batch: int) -> bool:
    """Returns whether a batch, or a later one of its writer, is published or adopted."""
    with _open_inbox(queue) as work:
        manifests = [manifest for _, manifest in inbox.read_manifests(work)]
    published = [item.batch for item in manifests if item is not None and item.writer == writer]
    adopted = inbox.read_ledger(queue).adopted.get(writer, -1)
    return batch <= max([adopted, *published])


def _check_parts(queue: Directory, parts: Sequence[inbox.Part], now_ms: int) -> None:
    with _open_inbox(queue) as work:
        names = set(work.names())
    for part in parts:
        path = f"{queue.path}/{inbox.DIRECTORY}/{part.name}"
        remedy = "nothing was published; write the batch again"
        if part.name not in names:
            raise Damaged(Damage(path, 0, part.size, "the part is gone"), remedy)
        if now_ms - (inbox.made_ms(part.name) or 0) > _PUBLISH_WITHIN_MS:
            raise Damaged(Damage(path, 0, part.size, "the part is almost a day old"), remedy)


@contextlib.contextmanager
def _open_inbox(queue: Directory) -> Iterator[Directory]:
    work = queue.directory(inbox.DIRECTORY)
    try:
        yield work
    finally:
        work.close()
