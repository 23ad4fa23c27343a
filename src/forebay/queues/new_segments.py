"""Makes the segments of a log, and takes one away whose first write failed.

Called with the queue's lock held. A failed try may leave its file behind; the next segment at the
same offset needs that name, so the file is remembered and removed then.
"""

from __future__ import annotations

import contextlib

from forebay.formats.fflg import LAYOUTS, Frames, Header, segment_name
from forebay.storage.filesystem import Directory, Filesystem
from forebay.storage.segments import SegmentWriter


class NewSegments:
    """Creates segments of one version and size in a directory."""

    def __init__(
        self, filesystem: Filesystem, directory: Directory, version: int, segment_bytes: int
    ) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._version = version
        self._checked = LAYOUTS[version].checked
        # Version 1 has nothing that tells preallocated space from entries.
        self._allocate_bytes = segment_bytes if self._checked else 0
        self._leftover: str | None = None

    def create(self, base: int, now_ms: int, size_max: int) -> tuple[SegmentWriter, Frames]:
        """Makes the segment that starts at `base`; the caller syncs the directory.

        No space is set aside beyond `size_max`.
        """
        name = segment_name(base, self._version)
        if self._leftover == name:
            with contextlib.suppress(FileNotFoundError):
                self._directory.unlink(name)
        salt = self._filesystem.random_bytes(8) if self._checked else b""
        header = Header(self._version, base, salt, now_ms - 1 if self._checked else 0)
        self._leftover = name
        writer = SegmentWriter(
            self._directory,
            name,
            header.encode(),
            allocate_bytes=self._allocate_bytes,
            size_max=size_max,
        )
        self._leftover = None
        return writer, Frames(header)

    def discard(self, name: str) -> None:
        """Takes the name of an empty segment away."""
        self._leftover = name
        self._directory.unlink(name)
