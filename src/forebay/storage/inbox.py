"""`inbox/`: work that other processes leave for the owner, and the ledger of what was taken.

A writer puts complete, synced files under unique names (`*.part`) and publishes them by renaming
one manifest to `*.ready`. The owner adopts a manifest whole or not at all: the ledger line and the
decision which part becomes which segment are one synced replacement of `ledger`. What follows,
the new headers and the renames, is done again after a crash until it is finished. A manifest whose
(writer, batch) is in the ledger already is dropped: a replay does nothing.

Manifests and the ledger are one line of JSON and one of its CRC-32; both are source of truth. Names
that `new_stem` made tell when, so that what nobody ever publishes can be told from work in hand.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TypeVar

from forebay.errors import Damaged, InvalidOption
from forebay.frames import Damage
from forebay.storage import atomic
from forebay.storage.documents import decode_document, encode_document, typed
from forebay.storage.filesystem import Directory, write_all

DIRECTORY = "inbox"
LEDGER = "ledger"
PART = ".part"
READY = ".ready"
# A writer of one batch, who never comes again: its ledger line goes when its manifest is gone.
ONE_TIME = "once:"
ORPHAN_MS = 24 * 60 * 60 * 1000
_STEM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_TIMED = re.compile(r"(\d{1,15})-[0-9a-f]{32}\.[a-z]+")


@dataclass(frozen=True, slots=True)
class Part:
    """A file in the inbox: its name, how many records and bytes it holds."""

    name: str
    count: int
    size: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """One batch of one writer; batches of a writer rise."""

    writer: str
    batch: int
    parts: list[Part]


@dataclass(frozen=True, slots=True)
class Move:
    """A part, the segment that it becomes, and that segment's header in hex; "": as it is."""

    part: str
    segment: str
    header: str


@dataclass(frozen=True, slots=True)
class Ledger:
    """The last batch taken of each writer, and the moves of an adoption that is not finished.

    `end` is what the queue must know of its end when they are done, where the files do not tell.
    """

    adopted: dict[str, int] = field(default_factory=dict)
    moves: list[Move] = field(default_factory=list)
    end: list[int] = field(default_factory=list)


_Document = TypeVar("_Document")


def new_stem(now_ms: int) -> str:
    """Makes the unique part of a name, for a part or a manifest; it tells when it was made."""
    return f"{now_ms}-{uuid.uuid4().hex}"


def made_ms(name: str) -> int | None:
    """Gives when a file was made, if its name is one of `new_stem`."""
    found = _TIMED.fullmatch(name)
    return None if found is None else int(found[1])


def publish(queue: Directory, stem: str, manifest: Manifest) -> None:
    """Publishes parts that are complete and synced; durable on return."""
    if _STEM.fullmatch(stem) is None:
        raise InvalidOption(f"inbox name {stem!r}: must be of A-Z a-z 0-9 . _ -")
    directory = queue.directory(DIRECTORY, create=True)
    try:
        queue.sync()
        file = directory.create(stem + atomic.TEMPORARY)
        try:
            write_all(file, _encode(manifest), 0)
            file.sync()
        finally:
            file.close()
        # Parts and the manifest get their names in one sync; the manifest's is the last.
        directory.sync()
        directory.rename(stem + atomic.TEMPORARY, stem + READY)
        directory.sync()
    finally:
        directory.close()


def read_manifests(inbox: Directory) -> list[tuple[str, Manifest | None]]:
    """Gives what is ready, oldest batch of each writer first; None for what does not verify."""
    good: list[tuple[str, Manifest]] = []
    bad: list[tuple[str, None]] = []
    for name in inbox.names():
        if not name.endswith(READY):
            continue
        data = atomic.read_small(inbox, name)
        if data is None:
            continue
        try:
            good.append((name, _decode(data, _manifest, f"{inbox.path}/{name}")))
        except Damaged:
            bad.append((name, None))
    good.sort(key=lambda item: (item[1].batch, item[1].writer))
    return [*bad, *good]


def read_ledger(queue: Directory) -> Ledger:
    """Gives the ledger; an empty one if there is none."""
    data = atomic.read_small(queue, LEDGER)
    return Ledger() if data is None else _decode(data, _ledger, f"{queue.path}/{LEDGER}")


def write_ledger(queue: Directory, ledger: Ledger) -> None:
    """Replaces the ledger; durable on return."""
    atomic.replace(queue, LEDGER, _encode(ledger))


def finish_moves(queue: Directory, inbox: Directory, moves: Sequence[Move]) -> None:
    """Makes the parts segments; may be done any number of times until it is finished."""
    waiting = set(inbox.names())
    for move in moves:
        if move.part not in waiting:
            continue
        if move.header:
            file = inbox.open(move.part, write=True)
            try:
                write_all(file, bytes.fromhex(move.header), 0)
                file.sync()
            finally:
                file.close()
        inbox.rename(move.part, move.segment, into=queue)
    inbox.sync()
    queue.sync()


def remove(inbox: Directory, name: str) -> None:
    """Removes a file that is done with."""
    with contextlib.suppress(FileNotFoundError):
        inbox.unlink(name)


def _encode(document: Manifest | Ledger) -> bytes:
    fields = asdict(document)
    if not fields.get("end"):
        fields.pop("end", None)
    return encode_document(fields)


def _decode(data: bytes, make: Callable[[object], _Document], path: str) -> _Document:
    value = decode_document(data, path)
    try:
        return make(value)
    except ValueError as error:
        raise Damaged(Damage(path, 0, len(data), str(error))) from None


def _manifest(value: object) -> Manifest:
    fields = typed("manifest", value, dict)
    parts = typed("parts", fields.get("parts"), list)
    return Manifest(
        typed("writer", fields.get("writer"), str),
        typed("batch", fields.get("batch"), int),
        [_part(part) for part in parts],
    )


def _part(value: object) -> Part:
    fields = typed("part", value, dict)
    return Part(
        typed("name", fields.get("name"), str),
        typed("count", fields.get("count"), int),
        typed("size", fields.get("size"), int),
    )


def _ledger(value: object) -> Ledger:
    fields = typed("ledger", value, dict)
    adopted = typed("adopted", fields.get("adopted", {}), dict)
    moves = typed("moves", fields.get("moves", []), list)
    end = typed("end", fields.get("end", []), list)
    return Ledger(
        {writer: typed(writer, batch, int) for writer, batch in adopted.items()},
        [_move(move) for move in moves],
        [typed("end", number, int) for number in end],
    )


def _move(value: object) -> Move:
    fields = typed("move", value, dict)
    header = typed("header", fields.get("header"), str)
    # Whatever is wrong with it must show here, not in the middle of an adoption.
    bytes.fromhex(header)
    return Move(
        typed("part", fields.get("part"), str),
        typed("segment", fields.get("segment"), str),
        header,
    )
