"""Batches that another process hands in: parts in the inbox of a queue, and their manifest."""

from __future__ import annotations

from forebay.clock import Clock
from forebay.formats.fflg import Frames, Header
from forebay.storage import inbox
from forebay.storage.filesystem import Directory, Filesystem, write_all


def write_parts(
    filesystem: Filesystem,
    clock: Clock,
    queue: Directory,
    stem: str,
    groups: list[list[bytes]],
) -> list[inbox.Part]:
    """Writes a part for each group of values, synced."""
    work = queue.directory(inbox.DIRECTORY, create=True)
    parts = []
    for number, values in enumerate(groups):
        header = Header(2, 0, filesystem.random_bytes(8), clock.now_ms())
        frames = Frames(header)
        _, size = frames.fit(values, 0, 2**40)
        buffer = bytearray(size)
        frames.encode(values, 0, len(values), buffer, 0, 1)
        name = f"{stem}-{number}{inbox.PART}"
        file = work.create(name)
        write_all(file, header.encode() + bytes(buffer), 0)
        file.sync()
        file.close()
        parts.append(inbox.Part(name, len(values), len(header.encode()) + size))
    work.close()
    return parts
