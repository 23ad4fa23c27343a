"""`inbox/`: work that other processes leave for the owner, and the ledger of what was taken.

A writer puts complete, synced files under unique names (`*.part`) and publishes them by renaming
one manifest to `*.ready`. The owner adopts a manifest whole or not at all: the ledger line and the
decision which part becomes which segment are one synced replacement of `ledger`. What follows,
the new headers and the renames, is done again after a crash until it is finished. A manifest whose
(writer, batch) is in the ledger already is dropped: a replay does nothing.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from forebay.errors import Damaged, InvalidOption
from forebay.frames import Damage
from forebay.kernels.checksum import crc32
from forebay.storage import atomic
from forebay.storage.filesystem import Directory, write_all

DIRECTORY = "inbox"
LEDGER = "ledger"
PART = ".part"
READY = ".ready"
_STEM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")


class Part(msgspec.Struct, frozen=True):
    """A file in the inbox: its name, how many records and bytes it holds."""

    name: str
    count: int
    size: int


class Manifest(msgspec.Struct, frozen=True):
    """One batch of one writer; batches of a writer rise."""

    writer: str
    batch: int
    parts: list[Part]


class Move(msgspec.Struct, frozen=True):
    """A part, the segment that it becomes, and that segment's header in hex."""

    part: str
    segment: str
    header: str


class Ledger(msgspec.Struct, frozen=True):
    """The last batch taken of each writer, and the moves of an adoption that is not finished."""

    adopted: dict[str, int] = {}
    moves: list[Move] = []


_Document = TypeVar("_Document", Manifest, Ledger)


def publish(queue: Directory, stem: str, manifest: Manifest) -> None:
    """Publishes parts that are complete and synced; durable on return."""
    if _STEM.fullmatch(stem) is None:
        raise InvalidOption(f"inbox name {stem!r}: must be of A-Z a-z 0-9 . _ -")
    directory = queue.directory(DIRECTORY, create=True)
    try:
        queue.sync()
        data = msgspec.json.encode(manifest)
        file = directory.create(stem + atomic.TEMPORARY)
        try:
            write_all(file, data + f"\n{crc32(data):08x}\n".encode(), 0)
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
            good.append((name, _decode(data, Manifest, f"{inbox.path}/{name}")))
        except Damaged:
            bad.append((name, None))
    good.sort(key=lambda item: (item[1].batch, item[1].writer))
    return [*bad, *good]


def read_ledger(queue: Directory) -> Ledger:
    """Gives the ledger; an empty one if there is none."""
    data = atomic.read_small(queue, LEDGER)
    return Ledger() if data is None else _decode(data, Ledger, f"{queue.path}/{LEDGER}")


def write_ledger(queue: Directory, ledger: Ledger) -> None:
    """Replaces the ledger; durable on return."""
    data = msgspec.json.encode(ledger)
    atomic.replace(queue, LEDGER, data + f"\n{crc32(data):08x}\n".encode())


def finish_moves(queue: Directory, inbox: Directory, moves: Sequence[Move]) -> None:
    """Makes the parts segments; may be done any number of times until it is finished."""
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
    inbox.sync()
    queue.sync()


def remove(inbox: Directory, name: str) -> None:
    """Removes a file that is done with."""
    with contextlib.suppress(FileNotFoundError):
        inbox.unlink(name)


def _decode(data: bytes, kind: type[_Document], path: str) -> _Document:
    body, _, check = data.rstrip(b"\n").rpartition(b"\n")
    if check != f"{crc32(body):08x}".encode():
        raise Damaged(Damage(path, 0, len(data), "checksum does not match"))
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise Damaged(Damage(path, 0, len(data), str(error))) from None
