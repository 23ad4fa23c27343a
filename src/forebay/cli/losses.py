"""What `fsck` makes of the losses on record: those not seen yet count, the others are notes."""

from __future__ import annotations

from collections.abc import Sequence

from forebay.cli.output import plural
from forebay.damage import Damage
from forebay.queues.kinds import accept_losses
from forebay.storage.filesystem import DiskFilesystem
from forebay.storage.losses import Loss, is_same, read_losses


def settle(found: Sequence[Damage], path: str, *, accept: bool) -> tuple[list[Damage], list[str]]:
    """Returns the damage that counts, and notes on the rest.

    What was found counts unless it was accepted before; so does what is only on record. With
    `accept` all of it is marked as seen, and nothing counts any more.
    """
    directory = DiskFilesystem().open_directory(path)
    try:
        losses = read_losses(directory)
    finally:
        directory.close()
    damage = [item for item in found if not _accepted(item, losses)]
    damage += [
        loss.damage
        for loss in losses
        if not loss.accepted and not any(is_same(loss.damage, item) for item in found)
    ]
    notes = []
    seen = sum(loss.accepted for loss in losses)
    if seen:
        notes.append(f"{plural(seen, 'loss')} marked as seen before")
    if accept:
        fresh = accept_losses(path, found)
        notes.append(f"{plural(fresh, 'loss')} marked as seen now")
        return [], notes
    return damage, notes


def _accepted(damage: Damage, losses: Sequence[Loss]) -> bool:
    return any(loss.accepted and is_same(loss.damage, damage) for loss in losses)
