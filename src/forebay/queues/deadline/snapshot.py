"""A deadline queue at one moment: which of its files count, how far, and what is in them.

A snapshot is small, has a text form, and can be read by another process later, without the queue's
lock, in parts of any size: a part needs the entries between two keys, and finds them by the sparse
indexes of the runs. Its files never change below what it names: runs are written once, logs only
grow. An owner that freezes or merges removes them: opening them then raises `DataLoss`, and another
snapshot has to be taken. Damage is a value.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

from forebay.damage import Damage
from forebay.formats.deadline.items import FileKind, KeyTuple, file_name, parse_file_name
from forebay.queues.deadline.picture import Picture
from forebay.storage.atomic import TEMPORARY


@dataclass(frozen=True, slots=True)
class RunPart:
    """A run; `size` is -1 if it is lost. Items below `low_water` are dead."""

    name: str
    size: int
    low_water: KeyTuple = (0, 0)

    @property
    def kind(self) -> FileKind:
        """The kind of its entries."""
        return _parsed(self.name)[1]

    @property
    def number(self) -> int:
        """The number of its set."""
        return _parsed(self.name)[0]


@dataclass(frozen=True, slots=True)
class LogPart:
    """A log up to the last batch that counts, which may still be in the staging buffer.

    `header` is its header in hex, whatever is left of it in the file. The size of a lost log
    is 0. `only_staged`: nothing of the file counts, only its batches in the staging buffer.
    """

    name: str
    size: int
    header: str = ""
    only_staged: bool = False

    @property
    def number(self) -> int:
        """Its number, which is also in a name that a recovery has yet to change."""
        return _parsed(self.name.removesuffix(TEMPORARY))[0]


@dataclass(frozen=True, slots=True)
class LostPart:
    """Damage that was found when the snapshot was taken; bad blocks are found when they are read.

    `count` is how many items it costs, None if that is unknown.
    """

    name: str
    position: int
    length: int
    reason: str
    count: int | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of a queue at one moment, the oldest first, and what is lost."""

    queue_id: str
    runs: tuple[RunPart, ...]
    logs: tuple[LogPart, ...]
    lost: tuple[LostPart, ...] = ()
    # Copies of items that came back only because their tombstones are lost.
    hidden: tuple[KeyTuple, ...] = ()
    # Damage that costs nothing: what it destroyed is known from elsewhere.
    mended: tuple[LostPart, ...] = ()

    @property
    def id(self) -> str:
        """A short text that identifies the snapshot; the same as long as nothing was written."""
        return hashlib.sha256(self.encode().encode()).hexdigest()[:16]

    def encode(self) -> str:
        """Returns its text."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> Snapshot:
        """Reads the text that `encode` returned."""
        plain = json.loads(text)
        runs = (
            RunPart(run["name"], run["size"], (run["low_water"][0], run["low_water"][1]))
            for run in plain["runs"]
        )
        logs = tuple(LogPart(**log) for log in plain["logs"])
        lost = tuple(LostPart(**each) for each in plain.get("lost", ()))
        hidden = tuple((key[0], key[1]) for key in plain.get("hidden", ()))
        mended = tuple(LostPart(**each) for each in plain.get("mended", ()))
        return cls(plain["queue_id"], tuple(runs), logs, lost, hidden, mended)


def snapshot_of(picture: Picture) -> Snapshot:
    """Makes the snapshot of a picture."""
    runs = []
    for each in picture.sets:
        for kind, file in sorted(each.files.items()):
            low = each.low_water if kind is FileKind.PENDING_RUN else (0, 0)
            runs.append(RunPart(file_name(each.number, kind), file.size, low))
        runs += [RunPart(lost.name, -1) for lost in each.lost]
    lost = tuple(_lost(damage) for damage in picture.damage)
    names = {each.name for each in lost}
    logs = []
    for log in picture.logs:
        if log.header is not None and not log.gone:
            size = min(log.end, len(log.data))
            header = log.header.encode().hex()
            logs.append(LogPart(log.name, size, header, only_staged=bool(log.trouble)))
        elif log.name in names:
            logs.append(LogPart(log.name, 0))
    mended = [*picture.mended]
    if picture.manifest_damage is not None:
        mended.append(picture.manifest_damage)
    return Snapshot(
        picture.manifest.queue_id.hex(),
        tuple(runs),
        tuple(logs),
        lost,
        tuple(picture.revived),
        tuple(map(_lost, mended)),
    )


def _lost(damage: Damage) -> LostPart:
    name = damage.path.rpartition("/")[2]
    return LostPart(name, damage.position, damage.length, damage.reason, damage.count)


def _parsed(name: str) -> tuple[int, FileKind]:
    parsed = parse_file_name(name)
    assert parsed is not None
    return parsed
