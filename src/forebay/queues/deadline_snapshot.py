"""A deadline queue at one moment: which of its files count, and up to where.

A snapshot is small, has a text form, and can be read by another process later, without the queue's
lock (`deadline_contents.py`). Its files never change below what it names: runs are written once,
logs only grow.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from forebay.errors import NotAQueue
from forebay.formats.deadline import FileKind, KeyTuple, file_name, parse_file_name
from forebay.formats.deadline_manifest import NAME, Manifest, decode_manifest
from forebay.frames import Damage
from forebay.queues.deadline_logs import read_logs
from forebay.queues.deadline_names import list_files, wal_name
from forebay.storage import atomic
from forebay.storage.filesystem import Directory
from forebay.storage.staging import Staged, read_staged

# An owner that freezes or merges changes the files while they are listed: then it looks again.
_LOOKS_MAX = 100


@dataclass(frozen=True, slots=True)
class RunPart:
    """A run; `size` is -1 if it is lost. Items below `low_water` are dead."""

    name: str
    size: int
    low_water: KeyTuple = (0, 0)

    @property
    def kind(self) -> FileKind:
        """What it holds."""
        parsed = parse_file_name(self.name)
        assert parsed is not None
        return parsed[1]


@dataclass(frozen=True, slots=True)
class LogPart:
    """A log up to the last batch that counts, which may be in the staging buffer yet."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of a queue at one moment, the oldest first."""

    queue_id: str
    runs: tuple[RunPart, ...]
    logs: tuple[LogPart, ...]

    @property
    def id(self) -> str:
        """Tells snapshots apart, in few letters; the same as long as nothing was written."""
        return hashlib.sha256(self.encode().encode()).hexdigest()[:16]

    def encode(self) -> str:
        """Gives its text."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> Snapshot:
        """Reads what `encode` gave."""
        plain = json.loads(text)
        runs = (
            RunPart(run["name"], run["size"], (run["low_water"][0], run["low_water"][1]))
            for run in plain["runs"]
        )
        return cls(plain["queue_id"], tuple(runs), tuple(LogPart(**log) for log in plain["logs"]))


def take_snapshot(directory: Directory) -> Snapshot:
    """Looks at a queue; raises `NotAQueue`, or `Damaged` if its manifest is."""
    for _ in range(_LOOKS_MAX):
        # What leaves the staging buffer after this is in the logs that are listed later.
        staged = read_staged(directory)
        before = read_manifest(directory)
        manifest = decode_manifest(before, f"{directory.path}/{NAME}")
        runs = tuple(_list_runs(directory, manifest))
        logs = _list_logs(directory, manifest, staged)
        if logs is not None and read_manifest(directory) == before:
            return Snapshot(manifest.queue_id.hex(), runs, logs)
    raise NotAQueue(f"{directory.path}: its files change faster than they can be listed")


def read_manifest(directory: Directory) -> bytes:
    """Gives the bytes of the manifest; raises `NotAQueue` if there is none."""
    data = atomic.read_small(directory, NAME)
    if data is None:
        raise NotAQueue(f"{directory.path} is no deadline queue: it has no manifest")
    return data


def _list_runs(directory: Directory, manifest: Manifest) -> Iterator[RunPart]:
    for row in manifest.sets:
        for kind in sorted(row.kinds):
            name = file_name(row.number, kind)
            low = (row.low_water.deadline_ms, row.low_water.id)
            try:
                file = directory.open(name)
            except FileNotFoundError:
                yield RunPart(name, -1)
                continue
            yield RunPart(name, file.size(), low if kind is FileKind.PENDING_RUN else (0, 0))
            file.close()


def _list_logs(
    directory: Directory, manifest: Manifest, staged: Staged | None
) -> tuple[LogPart, ...] | None:
    """Gives the logs that hold something, up to what a power cut left of them; None: look again."""
    names = directory.names()
    wals = [
        wal_name(number)
        for number, kind in list_files(names)
        if kind is FileKind.WAL and number >= manifest.oldest_wal
    ]
    oldest = wal_name(manifest.oldest_wal)
    if oldest not in wals and oldest + atomic.TEMPORARY in names:
        # A recovery was about to give it its name.
        wals.insert(0, oldest + atomic.TEMPORARY)
    sizes: dict[str, int] = {}
    try:
        for log, part in read_logs(directory, wals, staged):
            torn = isinstance(part, Damage) and part.torn
            sizes[log.name] = part.position if torn else len(log.data)  # type: ignore[union-attr]
    except FileNotFoundError:
        return None
    return tuple(LogPart(name, size) for name, size in sizes.items() if size)
