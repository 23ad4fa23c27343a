"""`losses`: what a queue has lost, on record until it is marked as seen.

Every reader finds damage that stays in place again. Damage whose evidence disappears would be
forgotten with it: for example a missing run that is dropped from the manifest, or a segment that
moves to `quarantine/`. So an owner records both here, the second kind before the evidence
disappears, and `forebay fsck` exits with 4 until `fsck --accept` marks them as seen.

The file is a checked document (`atomic.py`), replaced whole, and source of truth. If it does not
verify, that is itself a loss of an unknown number of records. It holds at most `LOSSES_MAX` losses:
the last one sums up the rest.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace

from forebay.damage import Damage
from forebay.errors import Damaged, NotAQueue
from forebay.storage import atomic, quarantine
from forebay.storage.atomic import decode_document, encode_document, typed
from forebay.storage.filesystem import Directory

NAME = "losses"
LOSSES_MAX = 1_000

_Key = tuple[str, int, str]


@dataclass(frozen=True, slots=True)
class Loss:
    """A damage on record.

    `gone` means that its evidence is no longer in the files, so that no scan finds it again;
    `accepted` means that it was marked as seen.
    """

    damage: Damage
    gone: bool = False
    accepted: bool = False


class Losses:
    """The losses that an owner knows of. Call it with the lock of the queue held."""

    def __init__(self, directory: Directory, losses: Iterable[Loss], *, dirty: bool) -> None:
        self._directory = directory
        self._losses = {_key(loss.damage): loss for loss in losses}
        self._raised: set[_Key] = set()
        self._dirty = dirty
        # Whether `next_pending` would return a loss: the verbs that take check this at every call.
        self.waiting = False
        self._look_for_pending()

    @classmethod
    def load(cls, directory: Directory) -> Losses:
        """Reads the record; a file that does not verify is a loss itself."""
        try:
            return cls(directory, _read(directory), dirty=False)
        except Damaged as error:
            return cls(directory, [Loss(error.damage, gone=True)], dirty=True)

    @property
    def unaccepted(self) -> int:
        """Returns how many losses are not marked as seen."""
        return sum(not loss.accepted for loss in self._losses.values())

    def accepted(self, damage: Damage) -> bool:
        """Returns whether this damage was already marked as seen."""
        loss = self._losses.get(_key(damage))
        return loss is not None and loss.accepted

    def of_file(self, name: str) -> Damage | None:
        """Returns a loss of one file that is not marked as seen; None if there is none."""
        found = (
            loss.damage
            for (file, *_), loss in self._losses.items()
            if file == name and not loss.accepted
        )
        return next(found, None)

    def note(self, damage: Damage, *, gone: bool = False) -> bool:
        """Remembers damage; returns whether to raise it now.

        Returns True once per damage and handle, and never for damage that was accepted. With
        `gone`, the caller saves before it removes the evidence; `next_pending` then returns the
        damage.
        """
        key = _key(damage)
        known = self._losses.get(key)
        if known is None or (gone and not known.gone):
            accepted = known is not None and known.accepted
            self._losses[key] = Loss(damage, gone=gone, accepted=accepted)
            self._dirty = True
        if gone:
            self._look_for_pending()
            return False
        if key in self._raised or self._losses[key].accepted:
            return False
        self._raised.add(key)
        return True

    def next_pending(self) -> Damage | None:
        """Returns a loss whose evidence is gone and that this handle has not raised; else None."""
        for key in self._pending():
            self._raised.add(key)
            self._look_for_pending()
            return self._losses[key].damage
        return None

    def save(self) -> None:
        """Writes new losses; durable on return, even on a full disk."""
        if self._dirty:
            _write(self._directory, self._losses.values())
            self._dirty = False

    def _pending(self) -> list[_Key]:
        return [
            key
            for key, loss in self._losses.items()
            if loss.gone and not loss.accepted and key not in self._raised
        ]

    def _look_for_pending(self) -> None:
        self.waiting = bool(self._pending())


def read_losses(directory: Directory) -> list[Loss]:
    """Returns the losses on record, without owning the queue."""
    try:
        return _read(directory)
    except Damaged as error:
        return [Loss(error.damage, gone=True)]


def count_unaccepted(directory: Directory) -> int:
    """Returns how many losses are not marked as seen, without owning the queue."""
    return sum(not loss.accepted for loss in read_losses(directory))


def accept(directory: Directory, found: Iterable[Damage] = ()) -> int:
    """Marks all losses as seen, including those `found` just now; returns how many are new.

    The caller owns the directory. Durable on return.
    """
    losses = {_key(loss.damage): loss for loss in read_losses(directory)}
    for damage in found:
        losses.setdefault(_key(damage), Loss(damage))
    fresh = sum(not loss.accepted for loss in losses.values())
    if fresh:
        _write(directory, [replace(loss, accepted=True) for loss in losses.values()])
    return fresh


def is_same(one: Damage, other: Damage) -> bool:
    """Returns whether two reports are about the same damage."""
    return _key(one) == _key(other)


def _key(damage: Damage) -> _Key:
    # By the file's name alone: a queue may be moved elsewhere.
    return os.path.basename(damage.path), damage.position, damage.reason


def _read(directory: Directory) -> list[Loss]:
    path = f"{directory.path}/{NAME}"
    try:
        data = atomic.read_small(directory, NAME)
    except (OSError, NotAQueue) as error:
        raise Damaged(_unreadable(path, 0, str(error))) from None
    if data is None:
        return []
    try:
        rows = typed("losses", decode_document(data, path), list)
        return [_decode(directory.path, typed("loss", row, dict)) for row in rows]
    except Damaged as error:
        raise Damaged(_unreadable(path, len(data), error.damage.reason)) from None
    except ValueError as error:
        raise Damaged(_unreadable(path, len(data), str(error))) from None


def _unreadable(path: str, size: int, reason: str) -> Damage:
    return Damage(path, 0, size, f"{reason}: earlier losses are unknown")


def _write(directory: Directory, losses: Iterable[Loss]) -> None:
    rows = list(losses)
    if len(rows) > LOSSES_MAX:
        rows = [*rows[: LOSSES_MAX - 1], _add_up(rows[LOSSES_MAX - 1 :])]
    _clear_the_name(directory)
    atomic.replace(directory, NAME, encode_document([_encode(row) for row in rows]))


def _clear_the_name(directory: Directory) -> None:
    """Moves aside anything with the name of the file that a rename could not replace."""
    try:
        atomic.read_small(directory, NAME)
    except (OSError, NotAQueue):
        quarantine.keep_file(directory, NAME)


def _add_up(rows: list[Loss]) -> Loss:
    """Sums up the losses that the file has no room for."""
    counts = [row.damage.count for row in rows]
    total = None if None in counts else sum(count or 0 for count in counts)
    first = rows[0].damage
    reason = f"{len(rows)} more damaged places"
    damage = Damage(first.path, 0, sum(row.damage.length for row in rows), reason, count=total)
    return Loss(damage, gone=True, accepted=all(row.accepted for row in rows))


def _encode(loss: Loss) -> dict[str, object]:
    damage = loss.damage
    return {
        "file": os.path.basename(damage.path),
        "position": damage.position,
        "length": damage.length,
        "reason": damage.reason,
        "offset": damage.offset,
        "count": damage.count,
        "gone": loss.gone,
        "accepted": loss.accepted,
    }


def _decode(path: str, fields: dict[str, object]) -> Loss:
    damage = Damage(
        f"{path}/{typed('file', fields.get('file'), str)}",
        typed("position", fields.get("position"), int),
        typed("length", fields.get("length"), int),
        typed("reason", fields.get("reason"), str),
        offset=_optional("offset", fields.get("offset")),
        count=_optional("count", fields.get("count")),
    )
    gone = typed("gone", fields.get("gone"), bool)
    return Loss(damage, gone, typed("accepted", fields.get("accepted"), bool))


def _optional(name: str, value: object) -> int | None:
    return None if value is None else int(typed(name, value, int))
