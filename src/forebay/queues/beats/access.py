"""The key of a Beats queue, and the lock that keeps it and a running Beat apart.

The key is read from its file and shows in no message. A Beat locks `NAME.lock` in its data
directory, above the queue's own, for as long as it runs, with `flock` and for itself alone. Whoever
opens the queue takes the same lock, shared: it fails while the Beat runs, and the Beat does not
start while the queue is open.
"""

from __future__ import annotations

import os
import re

from forebay.errors import InvalidOption, Locked, NotAQueue
from forebay.formats.beats.crypto import Key, decode_key
from forebay.storage.filesystem import File, Filesystem, read_private

_KEY_FILE_BYTES_MAX = 4096


def read_key(path: str | os.PathLike[str] | None) -> Key | None:
    """Returns the key that a file holds; refuses a file that others than its owner can get at."""
    if path is None:
        return None
    name = os.fspath(path)
    try:
        return decode_key(read_private(name, _KEY_FILE_BYTES_MAX))
    except InvalidOption as error:
        raise InvalidOption(f"key_file {name!r}: {error}") from None


_NAME = re.compile(r"[a-z][a-z0-9_-]*\.lock")


class BeatLocks:
    """The locks of Beats whose data directory holds a queue."""

    def __init__(self, filesystem: Filesystem, path: str) -> None:
        """Takes them; raises `Locked` if a Beat is running."""
        self._files: list[File] = []
        try:
            parent = filesystem.open_directory(os.path.dirname(path))
        except OSError:
            # Who cannot look into it cannot share it with a Beat either.
            return
        try:
            for name in sorted(filter(_NAME.fullmatch, parent.names())):
                try:
                    file = parent.open(name)
                except (OSError, NotAQueue):
                    # The Beat of this queue runs as the same user: it is not this one's lock.
                    continue
                self._files.append(file)
                if not file.lock(shared=True):
                    raise Locked(f"{path}, the queue of the Beat that holds {name},", None)
        except BaseException:
            self.close()
            raise
        finally:
            parent.close()

    def close(self) -> None:
        """Returns them back."""
        for file in self._files:
            file.close()
        self._files = []
