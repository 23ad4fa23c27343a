"""All files of a deadline queue at one moment: which of them count, what holds, what is lost.

Used by owners, readers and checks alike, so that they see the same damage and count it alike.
Changes nothing. If a queue has lost its manifest, all existing files count.

How many items damage costs is reported only if it is certain. The ids that a log should have and
lacks are the most that can be lost; some of those items may have left the queue by a tombstone that
is lost as well. The mark says how many items there were: as many as are missing from that number
are lost at least. Where both are the same, that is the number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from forebay.damage import Damage
from forebay.errors import Damaged, ForebayError, NotAQueue
from forebay.formats.deadline.items import FileKind, KeyTuple, file_name
from forebay.formats.deadline.manifest import NAME, Manifest, SetRow, decode_manifest
from forebay.formats.deadline.mark import End, Mark
from forebay.formats.deadline.wal import (
    Copied,
    Header,
    decode_header,
    decode_note,
    scan_rows,
    whole_bytes,
)
from forebay.kernels import deadline as kernel
from forebay.queues.deadline.bytes import read_whole, reason_of
from forebay.queues.deadline.mark import read_mark
from forebay.queues.deadline.names import is_deadline_queue, list_files
from forebay.queues.deadline.replay import STAGED_PLACE, FoundLog, find_logs, read_logs, trusted_end
from forebay.queues.deadline.runs import LostRun, RunFile, RunSet, cost_of, open_set
from forebay.queues.deadline.schedule import Memory, replay
from forebay.queues.deadline.state import State
from forebay.storage import staging
from forebay.storage.filesystem import Directory
from forebay.storage.losses import is_same, read_losses
from forebay.storage.staging import Staged, read_staged

if TYPE_CHECKING:
    from forebay.queues.deadline.replay import Rows


# An owner with tiny segments freezes hundreds of times a second: few looks at it succeed.
_LOOKS_MAX = 10_000


@dataclass(slots=True)
class Found:
    """Damage, and the most items that it may cost; None if there is no bound.

    `revives`: tombstones may be lost with it; `exact`: it costs no fewer items.
    """

    damage: Damage
    most: int | None
    revives: bool = False
    exact: bool = False


@dataclass(slots=True)
class Picture:
    """The files of a queue. The code that takes it must close the sets.

    `damage` is everything found except bad blocks of runs, with its cost; `manifest_damage` and
    `mended` cost nothing. `segment` is the content of the logs.
    """

    manifest: Manifest
    guessed: bool = False
    manifest_damage: Damage | None = None
    mark: Mark | None = None
    same_boot: bool = False
    names: list[str] = field(default_factory=list)
    sets: list[RunSet] = field(default_factory=list)
    logs: list[FoundLog] = field(default_factory=list)
    segment: Memory = field(default_factory=Memory)
    highest_id: int = 0
    floor_ms: int = 0
    damage: list[Damage] = field(default_factory=list)
    torn: list[Damage] = field(default_factory=list)
    mended: list[Damage] = field(default_factory=list)
    # Keys of copies that came back only because their tombstones are lost.
    revived: list[KeyTuple] = field(default_factory=list)

    @property
    def runs(self) -> list[RunFile]:
        """The runs that can be read, by name."""
        files = (file for each in self.sets for file in each.files.values())
        return sorted(files, key=lambda file: file.name)

    @property
    def log_sizes(self) -> dict[str, int]:
        """How many bytes the logs have, by name, excluding those that cannot be read."""
        return {log.name: len(log.data) for log in self.logs if log.header is not None}

    @property
    def size(self) -> int:
        """How many bytes all files that count take."""
        return sum(run.size for run in self.runs) + sum(self.log_sizes.values())

    @property
    def entry_count(self) -> int:
        """How many entries there are to read."""
        return sum(run.run.footer.count for run in self.runs) + self.segment.count

    @property
    def has_buried(self) -> bool:
        """Whether an item was buried, and may still be."""
        return any(run.run.footer.buried_count for run in self.runs) or self.segment.buried > 0

    @property
    def lost_runs(self) -> list[LostRun]:
        """The runs of which nothing can be read."""
        return [lost for each in self.sets for lost in each.lost]

    def close(self) -> None:
        """Closes the sets."""
        for each in self.sets:
            each.close()


def read_manifest(directory: Directory) -> bytes | Damage:
    """Returns the bytes of the manifest, or the damage if it cannot be read."""
    try:
        return read_whole(directory, NAME)[0]
    except FileNotFoundError as error:
        return Damage(f"{directory.path}/{NAME}", 0, 0, reason_of(error))
    except Damaged as error:
        return error.damage


def queue_id_of(
    directory: Directory, names: list[str], manifest: Manifest | None, mark: Mark | None
) -> bytes | None:
    """Returns the id of the queue; where manifest and mark disagree, the logs decide."""
    told = [each.queue_id for each in (manifest, mark) if each is not None]
    if told and all(each == told[0] for each in told):
        return told[0]
    for number, kind in reversed(list_files(names)):
        if kind is not FileKind.WAL:
            continue
        try:
            data = read_whole(directory, file_name(number, kind))[0]
            queue_id = decode_header(data[:64], "").queue_id
        except (OSError, ForebayError):
            continue
        if queue_id is not None:
            return queue_id
    return told[0] if told else None


def staged_of(
    directory: Directory, mark: Mark | None, boot_id: bytes
) -> tuple[Staged | None, Damage | None]:
    """Returns what is in the staging buffer, and what is lost from it.

    The mark is that of the queue, read before: what it says of the buffer is known even if the
    buffer has lost it.
    """
    try:
        staged = read_staged(directory)
        reason = "it holds nothing, and something was in it"
    except (OSError, ForebayError) as error:
        staged, reason = None, reason_of(error)
    if mark is None or not mark.staged or mark.clean or mark.boot_id != boot_id:
        return staged, None
    header = Header(mark.written.log, mark.salt, mark.queue_id)
    if staged is None:
        # The head of the chunk is lost; the mark has the same facts.
        frames = _frames(directory)
        place = header.encode() + STAGED_PLACE.pack(mark.written.position)
        staged = Staged(place, mark.written.batches, frames)
    if staged.header[: header.size] == header.encode():
        (position,) = STAGED_PLACE.unpack(staged.header[header.size :])
        if position < mark.written.position:
            reason = "it is an older one"
        elif whole_bytes(staged.frames, staged.index, header, holes=True):
            return staged, None
    elif _log_of(staged) > mark.written.log:
        return staged, None
    path = f"{directory.path}/{staging.NAME}"
    return None, Damage(path, 0, 0, reason)


def look(directory: Directory, boot_id: bytes) -> Picture:
    """Looks at a queue that another process may own; raises `NotAQueue`.

    If an owner changes the files meanwhile, by a freeze or a merge, it looks again.
    """
    for _ in range(_LOOKS_MAX):
        before = read_manifest(directory)
        try:
            picture = take_picture(directory, boot_id, before)
        except FileNotFoundError:
            continue
        if not is_deadline_queue(picture.names):
            picture.close()
            raise NotAQueue(f"{directory.path} is not a deadline queue: it has no manifest")
        if read_manifest(directory) == before:
            return picture
        picture.close()
    raise NotAQueue(f"{directory.path}: its files change faster than they can be read")


def take_picture(
    directory: Directory, boot_id: bytes, data: bytes | Damage, number: int = 0
) -> Picture:
    """Looks at a queue whose manifest was just read.

    Raises `FileNotFoundError` if a file that is not required disappears: its owner is at work. A
    caller that does not own the queue must check afterwards that the manifest is still the same.
    """
    # The mark, then the staging buffer, then the logs: each must hold what the earlier ones name.
    mark = _with_manifest(directory, directory.names(), data, read_mark(directory)).mark
    staged, staging_damage = staged_of(directory, mark, boot_id)
    names = directory.names()
    picture = _with_manifest(directory, names, data, mark)
    picture.names = names
    picture.segment = Memory(number)
    if picture.mark is not None:
        picture.same_boot = picture.mark.boot_id == boot_id and not picture.mark.clean
    try:
        _look(picture, directory, staged, staging_damage)
    except BaseException:
        picture.close()
        raise
    return picture


def _with_manifest(
    directory: Directory, names: list[str], data: bytes | Damage, mark: Mark | None
) -> Picture:
    """Begins a picture from the manifest; without one, all existing runs count."""
    path = f"{directory.path}/{NAME}"
    damage, size = (data, 0) if isinstance(data, Damage) else (None, len(data))
    manifest: Manifest | None = None
    if not isinstance(data, Damage):
        try:
            manifest = decode_manifest(data, path)
        except Damaged as error:
            damage = error.damage
    queue_id = queue_id_of(directory, names, manifest, mark)
    if mark is not None and queue_id is not None and mark.queue_id != queue_id:
        mark = None
    if manifest is not None and queue_id is not None and manifest.queue_id != queue_id:
        manifest, damage = None, Damage(path, 0, size, "it is that of another queue")
    elif manifest is not None and mark is not None and manifest.generation < mark.generation:
        # The runs that it names may be merged away, and those it does not name may count.
        manifest, damage = None, Damage(path, 0, size, "it is an older one")
    if manifest is not None:
        return Picture(manifest, mark=mark, floor_ms=manifest.floor_ms)
    rows = []
    for number, group in groupby(list_files(names), itemgetter(0)):
        kinds = frozenset(kind for _, kind in group if kind is not FileKind.WAL)
        if kinds:
            rows.append(SetRow(number, kinds))
    guess = Manifest(queue_id or bytes(16), sets=tuple(rows))
    has_files = bool(list_files(names)) or mark is not None
    if damage is not None and has_files:
        damage = replace(damage, reason=f"{damage.reason}; all files that are there count", count=0)
    else:
        damage = None
    return Picture(guess, True, damage, mark)


def _log_of(staged: Staged) -> int:
    """Returns the number of the log that a chunk continues; 0 if the chunk does not name it."""
    try:
        return decode_header(staged.header, "").number
    except ForebayError:
        return 0


def _frames(directory: Directory) -> bytes:
    try:
        return read_whole(directory, staging.NAME)[0][staging.HEADER_BYTES :]
    except (OSError, ForebayError):
        return b""


def _look(
    picture: Picture, directory: Directory, staged: Staged | None, staging_damage: Damage | None
) -> None:
    manifest = picture.manifest
    for row in manifest.sets:
        picture.sets.append(open_set(directory, row, manifest.queue_id))
    picture.logs = find_logs(
        directory, manifest, picture.mark, staged, picture.names, same_boot=picture.same_boot
    )
    found: list[Found] = []
    of_logs: list[tuple[FoundLog, Damage]] = []
    for log, part in read_logs(picture.logs):
        if not isinstance(part, Damage):
            picture.segment.number = log.number
            highest_id, floor_ms = replay(picture.segment, part)
            picture.highest_id = max(picture.highest_id, highest_id)
            picture.floor_ms = max(picture.floor_ms, floor_ms)
        elif part.torn:
            picture.torn.append(part)
        else:
            of_logs.append((log, part))
    for log in picture.logs:
        if log.mended:
            reason = "the header does not verify; it is known from elsewhere"
            size = 44 if log.header is None else log.header.size
            picture.mended.append(Damage(log.path, 0, size, reason, count=0))
    if staging_damage is not None:
        found.append(Found(staging_damage, None, revives=True))
    found += _of_runs(picture)
    if of_logs:
        # An item that was requeued in the lost part exists under its old key, or not at all.
        for each in picture.sets:
            each.low_water = (0, 0)
    if of_logs or found:
        found += _of_logs(picture, of_logs)
        state = State(picture.segment, picture.sets, 0)
        state.recount()
        picture.revived = state.revived
        picture.damage = _count(picture, directory, found)


def _of_runs(picture: Picture) -> Iterator[Found]:
    for each in picture.sets:
        for lost in each.lost:
            yield of_run(lost.kind, lost.damage)
        for kind, file in each.files.items():
            for damage in file.run.damage:
                if damage.count != 0:
                    yield of_run(kind, replace(damage, torn=False, offset=None))
                else:
                    picture.mended.append(replace(damage, torn=False))


def of_run(kind: FileKind, damage: Damage) -> Found:
    """Returns what damage of a run may cost."""
    costs = cost_of(kind, damage)
    return Found(costs, costs.count, kind is FileKind.TOMBSTONE_RUN)


def _of_logs(picture: Picture, damaged: list[tuple[FoundLog, Damage]]) -> list[Found]:
    """Returns how many items each damage of a log may cost."""
    if not damaged:
        return []
    gaps = _Gaps(picture)
    found = []
    for log in picture.logs:
        mine = [damage for each, damage in damaged if each is log]
        if mine:
            found += gaps.of_log(log, mine)
    return found


@dataclass(slots=True)
class _Gap:
    """A gap between good batches: how many batches, None if unknown, and how many ids."""

    start: int
    stop: int
    batches: int | None
    ids: int | None = 0
    copies: int = 0


class _Gaps:
    """The ids that logs should have and of which nothing is left."""

    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        self._seen: set[int] = set()
        for log in picture.logs:
            for part in log.parts:
                if isinstance(part, list):
                    self._seen.update(row[2] for row in part if row[0] != kernel.DEQUEUED)

    def of_log(self, log: FoundLog, damage: list[Damage]) -> list[Found]:
        """Returns what each damage of a log may cost."""
        gaps = self._find(log)
        found = []
        for each in damage:
            stop = each.position + max(each.length, 1)
            mine = [gap for gap in gaps if gap.start < stop and each.position < gap.stop]
            ids = [gap.ids for gap in mine]
            most = None if None in ids or not mine else sum(gap.ids or 0 for gap in mine)
            copies = sum(gap.copies for gap in mine)
            # A batch of new items holds nothing else, so no tombstone is lost with it. With copies
            # some may be lost: then an older copy comes back, and the mark decides.
            one = len(mine) == 1 and mine[0].batches == 1
            exact = one and most is not None and not copies
            revives = not exact or most == copies == 0
            bound = None if most is None else most + copies
            text = each if not exact or bound else _may_come_again(each)
            found.append(Found(text, bound, revives, exact))
        return found

    def _find(self, log: FoundLog) -> list[_Gap]:
        """Finds the gaps of a log, and the ids that belong in each."""
        gaps: list[_Gap] = []
        waiting: list[_Gap] = []
        next_id, found = log.first_id, 0
        for gap, rows, is_copy in self._batches(log):
            if gap is not None:
                gaps.append(gap)
                waiting.append(gap)
                continue
            if is_copy:
                # Its items have ids from before this log.
                found += sum(row[0] == kernel.ITEM for row in rows)
                continue
            for row in rows:
                if row[0] == kernel.FRESH:
                    self._close(waiting, next_id, row[2])
                    next_id = row[2] + 1
        self._close(waiting, next_id, self._end_id(log))
        copied = log.copied
        if gaps and copied is None:
            gaps[0].ids = None
        elif gaps and copied is not None:
            gaps[0].copies = max(copied - found, 0)
        return gaps

    def _batches(self, log: FoundLog) -> Iterator[tuple[_Gap | None, Rows, bool]]:
        """Yields a log batch by batch: a gap, or records and whether they are copies."""
        if log.header is None:
            yield _Gap(0, 1 << 62, None), [], False
            return
        data, seed = log.data, log.header.seed
        end = len(data.rstrip(b"\0"))
        position, number = log.header.size, 0
        while position < end:
            rows: Rows = []
            stop, number = kernel.scan_batches(data, position, number, seed, 1, rows)
            if stop > position:
                copy = bool(rows) and bool(decode_note(rows[0]) == Copied())
                yield None, rows, copy
                position = stop
                continue
            found, due = kernel.find_batch(data, position + 1, number, seed, 1)
            if found < 0:
                break
            yield _Gap(position, found, due - number), [], False
            position, number = found, due
        if position < max(end, log.limit):
            last = _end(self._picture)
            batches = None
            if last is not None and last.log == log.number and last.batches > number:
                batches = last.batches - number
            yield _Gap(position, 1 << 62, batches), [], False

    def _close(self, waiting: list[_Gap], start: int | None, end: int | None) -> None:
        """Sets the ids of the gaps before an id; of several in a row, all go to the first."""
        for at, gap in enumerate(waiting):
            if start is None or end is None:
                gap.ids = None
            elif at == 0:
                gap.ids = sum(not self._is_known(id) for id in range(start, end))
        waiting.clear()

    def _end_id(self, log: FoundLog) -> int | None:
        """Returns the id that would have come next at the end of a log."""
        if log.row is not None and log.row.end:
            return log.row.end_id
        following = [each for each in self._picture.logs if each.number > log.number]
        if following:
            return following[0].first_id
        end = _end(self._picture)
        return end.next_id if end is not None and end.log == log.number else None

    def _is_known(self, id: int) -> bool:
        """Says whether an id was found anywhere: then its item is not lost."""
        if id in self._seen:
            return True
        for each in self._picture.sets:
            file = each.files.get(FileKind.PENDING_RUN)
            if file is not None:
                try:
                    if file.run.find_id(id):
                        return True
                except Damaged:
                    continue
        return False


def _end(picture: Picture) -> End | None:
    return trusted_end(picture.mark, same_boot=picture.same_boot)


def _count(picture: Picture, directory: Directory, found: list[Found]) -> list[Damage]:
    """Returns damage with its cost, as far as that is certain.

    Damage on record keeps the recorded count: the mark no longer covers those items.
    """
    known = [loss.damage for loss in read_losses(directory)]
    fresh, settled = [], []
    for each in found:
        same = [damage for damage in known if is_same(damage, each.damage)]
        if same:
            settled.append(replace(each.damage, count=same[0].count))
        else:
            fresh.append(each)
    return settled + (settle_counts(fresh, missing_items(picture)) if fresh else [])


def settle_counts(found: list[Found], missing: int | None) -> list[Damage]:
    """Returns damage with its counts; `missing` is by how many the number of items has dropped.

    If no tombstone can be lost, these are the lost items. Otherwise some may have come back
    instead.
    """
    if all(each.exact for each in found):
        return [replace(each.damage, count=each.most) for each in found]
    bounds = [each.most for each in found]
    most = None if None in bounds else sum(bound or 0 for bound in bounds)
    if missing is not None and most == missing:
        return [replace(each.damage, count=each.most) for each in found]
    if missing is not None and missing >= 0 and not any(each.revives for each in found):
        settled = []
        for each in found:
            count = missing if each.most is None else min(missing, each.most)
            missing -= count
            settled.append(replace(each.damage, count=count))
        return settled
    return [
        replace(each.damage, count=each.most if each.exact or each.most == 0 else None)
        for each in found
    ]


def _may_come_again(damage: Damage) -> Damage:
    return replace(damage, reason=f"{damage.reason}; items that were taken away may come again")


def missing_items(picture: Picture) -> int | None:
    """Returns how many items fewer there are than the mark says; None if it does not say."""
    end = _end(picture)
    if end is None or not end.log or picture.guessed:
        return None
    memory = Memory(0)
    for log in picture.logs:
        if log.number > end.log or log.header is None:
            continue
        data = log.data[: end.position] if log.number == end.log else log.data[: log.end]
        for part, _ in scan_rows(data, log.path, log.header):
            if isinstance(part, list):
                replay(memory, part)
    # Changes after the mark was written.
    now = picture.segment
    since = now.pending + now.buried - memory.pending - memory.buried
    state = State(now, picture.sets, 0)
    state.recount()
    return end.live + since - (state.schedule.total + state.schedule.buried)
