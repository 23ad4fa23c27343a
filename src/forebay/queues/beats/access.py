"""The key of a Beats queue, and the lock that keeps the queue and a running Beat apart.

The key is read from its file and never appears in a message. A Beat holds an exclusive `flock` on
`NAME.lock` in its data directory, which is the parent of the queue's directory, as long as it runs.
Opening the queue takes the same lock, shared: this fails while the Beat runs, and the Beat does not
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
    """Returns the key in a file; refuses a file that users other than its owner can access."""
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
        """Takes the locks; raises `Locked` if a Beat is running."""
        self._files: list[File] = []
        try:
            parent = filesystem.open_directory(os.path.dirname(path))
        except OSError:
            # A process that cannot open the parent cannot share it with a Beat either.
            return
        try:
            for name in sorted(filter(_NAME.fullmatch, parent.names())):
                try:
                    file = parent.open(name)
                except (OSError, NotAQueue):
                    # The Beat of this queue runs as the same user, so this lock is not its own.
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
        """Releases the locks."""
        for file in self._files:
            file.close()
        self._files = []
