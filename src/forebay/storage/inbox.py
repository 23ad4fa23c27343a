"""`inbox/`: work that other processes leave for the owner, and the ledger of adopted batches.

A writer puts complete, synced files under unique names (`*.part`) and publishes them by renaming
one manifest to `*.ready`. The owner adopts a manifest whole or not at all: one synced replacement
of `ledger` contains both the ledger line and the decision on which part becomes which segment. The
steps after it, the new headers and the renames, are repeated after a crash until they are finished.
A manifest whose (writer, batch) is already in the ledger is dropped: a replay does nothing.

Manifests and the ledger are checked documents (`atomic.py`); both are source of truth. Other
processes write the manifests, so each name, number and size in one is checked when it is read. A
name from `new_stem` contains its time, which separates abandoned work from work in progress.
"""

from __future__ import annotations

import contextlib
import logging
import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TypeVar

from forebay.damage import Damage
from forebay.errors import Damaged, InvalidOption, NotAQueue
from forebay.storage import atomic, quarantine
from forebay.storage.atomic import decode_document, encode_document, typed
from forebay.storage.filesystem import Directory, write_all
from forebay.storage.readable import read_whole

_logger = logging.getLogger(__name__)
DIRECTORY = "inbox"
LEDGER = "ledger"
PART = ".part"
READY = ".ready"
# Prefix of a writer of a single batch: its ledger line is removed with its manifest.
ONE_TIME = "once:"
ORPHAN_MS = 24 * 60 * 60 * 1000
NUMBER_MAX = 2**62
BATCH_MAX = 2**64 - 1
WRITER_CHARACTERS_MAX = 1_000
MANIFEST_BYTES_MAX = 64 << 20
_STEM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_SEGMENT = re.compile(r"[0-9a-f]{10,16}")
_TIMED = re.compile(r"(\d{1,15})-[0-9a-f]{32}\.[a-z]+")


@dataclass(frozen=True, slots=True)
class Part:
    """A file in the inbox: its name, and how many records and bytes it holds."""

    name: str
    count: int
    size: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """One batch of one writer; batch numbers of a writer increase.

    `kind` is the kind of queue that the records were made for; "" means any that accepts them.
    """

    writer: str
    batch: int
    parts: list[Part]
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Move:
    """A part, the segment that it becomes, and that segment's header in hex."""

    part: str
    segment: str
    header: str


@dataclass(frozen=True, slots=True)
class Ledger:
    """The last adopted batch of each writer, and the moves of an unfinished adoption."""

    adopted: dict[str, int] = field(default_factory=dict)
    moves: list[Move] = field(default_factory=list)


_Document = TypeVar("_Document")


def new_stem(now_ms: int) -> str:
    """Makes the unique part of a name, for a part or a manifest; it contains the time."""
    return f"{now_ms}-{uuid.uuid4().hex}"


def made_ms(name: str) -> int | None:
    """Returns when a file was made, if its name comes from `new_stem`."""
    found = _TIMED.fullmatch(name)
    return None if found is None else int(found[1])


def publish(queue: Directory, stem: str, manifest: Manifest) -> None:
    """Publishes parts that are complete and synced; durable on return."""
    if _STEM.fullmatch(stem) is None:
        raise InvalidOption(f"inbox name {stem!r}: must be of A-Z a-z 0-9 . _ -")
    try:
        _manifest(asdict(manifest))
    except ValueError as error:
        # The owner would reject it, and the process that waits for the batch would never know.
        raise InvalidOption(f"manifest {stem!r}: {error}") from None
    directory = queue.directory(DIRECTORY, create=True)
    try:
        queue.sync()
        file = directory.create(stem + atomic.TEMPORARY)
        try:
            write_all(file, _encode(manifest), 0)
            file.sync()
        finally:
            file.close()
        # One sync makes the names of the parts durable; the manifest gets its name after it.
        directory.sync()
        directory.rename(stem + atomic.TEMPORARY, stem + READY)
        directory.sync()
    finally:
        directory.close()


def read_manifests(inbox: Directory) -> list[tuple[str, Manifest | None]]:
    """Returns what is ready, each writer's oldest batch first; None for a bad manifest."""
    good: list[tuple[str, Manifest]] = []
    bad: list[tuple[str, None]] = []
    for name in inbox.names():
        if not name.endswith(READY):
            continue
        try:
            manifest = _read_manifest(inbox, name)
        except Damaged:
            bad.append((name, None))
        else:
            if manifest is not None:
                good.append((name, manifest))
    good.sort(key=lambda item: (item[1].batch, item[1].writer))
    return [*bad, *good]


def _read_manifest(inbox: Directory, name: str) -> Manifest | None:
    path = f"{inbox.path}/{name}"
    try:
        data = read_whole(inbox, name, MANIFEST_BYTES_MAX)
    except Damaged:
        # Try once more: the second read of a disk may succeed where the first one failed.
        data = read_whole(inbox, name, MANIFEST_BYTES_MAX)
    return None if data is None else _decode(data, _manifest, path)


def read_ledger(queue: Directory) -> Ledger:
    """Returns the ledger, an empty one if there is none; raises `Damaged` if it cannot be read."""
    try:
        data = read_whole(queue, LEDGER)
        return Ledger() if data is None else _decode(data, _ledger, f"{queue.path}/{LEDGER}")
    except Damaged as error:
        # This costs no record: at worst a batch is adopted twice.
        raise Damaged(replace(error.damage, count=0)) from None


def own_ledger(queue: Directory) -> Ledger:
    """Returns the ledger of a queue that this process owns; sets a damaged one aside.

    Without the ledger an adopted batch is adopted again if its writer submits it again; nothing in
    the queue is touched.
    """
    with contextlib.suppress(Damaged):
        return read_ledger(queue)
    try:
        # Try once more: the second read of a disk may succeed where the first one failed.
        return read_ledger(queue)
    except Damaged as error:
        _logger.error(
            "%s/%s: %s; kept in quarantine/: a batch that is submitted again is adopted again",
            queue.path,
            LEDGER,
            error.damage.reason,
        )
        quarantine.keep_file(queue, LEDGER)
        return Ledger()


def write_ledger(queue: Directory, ledger: Ledger) -> None:
    """Replaces the ledger; durable on return."""
    atomic.replace(queue, LEDGER, _encode(ledger))


def finish_moves(queue: Directory, inbox: Directory, moves: Sequence[Move]) -> None:
    """Turns the parts into segments; may be repeated any number of times until it succeeds."""
    waiting = set(inbox.names())
    for move in moves:
        if move.part not in waiting:
            continue
        file = inbox.open(move.part, write=True)
        try:
            write_all(file, bytes.fromhex(move.header), 0)
            file.sync()
        finally:
            file.close()
        inbox.rename(move.part, move.segment, into=queue)
    # One sync covers both directories: a rename is durable as a whole or not at all.
    queue.sync()


def warn_of_waiting(queue: Directory) -> None:
    """Logs a warning if batches wait in `inbox/` of a queue whose kind does not adopt batches.

    Earlier versions of that kind adopted them.
    """
    try:
        inbox = queue.directory(DIRECTORY)
    except (FileNotFoundError, NotAQueue):
        return
    try:
        waiting = sum(name.endswith(READY) for name in inbox.names())
    finally:
        inbox.close()
    if waiting:
        _logger.warning(
            "%s/%s: %d batches wait there, and this version does not adopt them; open the queue "
            "once with the version that they were written for, or put their records again; then "
            "remove the directory",
            queue.path,
            DIRECTORY,
            waiting,
        )


def remove(inbox: Directory, name: str) -> None:
    """Removes a file that is no longer needed."""
    with contextlib.suppress(FileNotFoundError):
        inbox.unlink(name)


def _encode(document: Manifest | Ledger) -> bytes:
    fields = asdict(document)
    if fields.get("kind") == "":
        del fields["kind"]
    return encode_document(fields)


def _decode(data: bytes, make: Callable[[object], _Document], path: str) -> _Document:
    fields = decode_document(data, path)
    try:
        return make(fields)
    except ValueError as error:
        raise Damaged(Damage(path, 0, len(data), str(error))) from None


def _manifest(value: object) -> Manifest:
    fields = typed("manifest", value, dict)
    parts = [_part(part) for part in typed("parts", fields.get("parts"), list)]
    if len({part.name for part in parts}) < len(parts):
        raise ValueError("a part is named twice")
    if sum(part.count for part in parts) > NUMBER_MAX:
        raise ValueError("the parts have more records than a queue can count")
    return Manifest(
        _writer(fields.get("writer")),
        _number("batch", fields.get("batch"), most=BATCH_MAX),
        parts,
        typed("kind", fields.get("kind", ""), str),
    )


def _part(value: object) -> Part:
    fields = typed("part", value, dict)
    return Part(
        _part_name(fields.get("name")),
        _number("count", fields.get("count"), least=1),
        _number("size", fields.get("size"), least=1),
    )


def _ledger(value: object) -> Ledger:
    fields = typed("ledger", value, dict)
    adopted = typed("adopted", fields.get("adopted", {}), dict)
    moves = typed("moves", fields.get("moves", []), list)
    return Ledger(
        {
            _text(writer): _number("batch", batch, most=BATCH_MAX)
            for writer, batch in adopted.items()
        },
        [_move(move) for move in moves],
    )


def _move(value: object) -> Move:
    fields = typed("move", value, dict)
    header = typed("header", fields.get("header"), str)
    # An error in it must be found here, not in the middle of an adoption.
    bytes.fromhex(header)
    segment = typed("segment", fields.get("segment"), str)
    if _SEGMENT.fullmatch(segment) is None:
        raise ValueError(f"segment = {segment!r:.60}: not the name of a file of records")
    return Move(_part_name(fields.get("part")), segment, header)


def _number(name: str, value: object, *, least: int = 0, most: int = NUMBER_MAX) -> int:
    number: int = typed(name, value, int)
    if not least <= number <= most:
        raise ValueError(f"{name} = {number}: must be {least} to {most}")
    return number


def _part_name(value: object) -> str:
    name: str = typed("name", value, str)
    if _STEM.fullmatch(name) is None or not name.endswith(PART):
        raise ValueError(f"name = {name!r:.60}: not the name of a part")
    return name


def _writer(value: object) -> str:
    writer = _text(typed("writer", value, str))
    if not 0 < len(writer) <= WRITER_CHARACTERS_MAX:
        raise ValueError(f"writer = {writer!r:.60}: not the name of a writer")
    return writer


def _text(value: str) -> str:
    """Returns text that can be written; a lone surrogate cannot."""
    value.encode()
    return value
