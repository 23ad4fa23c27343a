"""What clients have posted, taken into the queue by its owner. Page: docs/protocol.md.

The owner takes it in when it opens the queue, and a server as it comes (`serve/posted.py`). Records
are stored under the queue's lock, after a note in the client's file of which they are and where the
queue ended before: so after a crash its end says how many of them it has, and none is stored twice.
A file that a client has left is removed when all of it is in the queue. While the queue is full
it stays, and the background work tries again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable

from forebay.errors import (
    Closed,
    ForebayError,
    Full,
    InvalidOption,
    ProtocolError,
    RecordTooLarge,
)
from forebay.queues.shared.owner import Owner
from forebay.queues.shared.waiting import NoRoom
from forebay.storage import posted
from forebay.storage.commit import Ticket
from forebay.storage.filesystem import Directory
from forebay.storage.posted import Batch, PostedFile

_logger = logging.getLogger(__name__)


class Intake:
    """Takes posted records into a queue. Any thread may call it, for one file one at a time."""

    def __init__(
        self,
        directory: Directory,
        boot: bytes,
        owner: Owner,
        *,
        extra_max: int,
        store: Callable[[Batch], Ticket | None],
        make_room: Callable[[int, int], bool],
    ) -> None:
        """`extra_max` is the largest that a record may have beside it.

        `store` and `make_room` are called with the queue's lock held. `store` stores records in one
        batch, and returns what to wait for; it raises `NoRoom`. `make_room(size, count)` says
        whether to try again; it raises `Full`.
        """
        self._directory = directory
        self._boot = boot
        self._owner = owner
        self._extra_max = extra_max
        self._store_batch = store
        self._make_room = make_room
        self._stored: Callable[[], None] = lambda: None
        # Guards the files that no client is connected for, by name.
        self._mutex = threading.Lock()
        self._left: dict[str, PostedFile] = {}

    def find(self) -> None:
        """Finds the files of clients, and how much of each is in the queue already.

        Before anything else is put into the queue: its end says so.
        """
        directory = self._open()
        if directory is None:
            return
        with contextlib.closing(directory):
            for name in sorted(directory.names()):
                self._adopt(directory, name)

    def begin(self, stored: Callable[[], None]) -> None:
        """Takes in what was posted while the queue had no owner.

        `stored` plans the work that is due after a change.
        """
        self._stored = stored
        self.retry()

    def retry(self) -> None:
        """Takes in what is left in the files of clients that are not connected."""
        with self._mutex:
            for file in list(self._left.values()):
                before = 0
                while file.number != before and file.name in self._left:
                    before = file.number
                    if self.finish(file):
                        del self._left[file.name]
                    if self._owner.always:
                        # Nothing of it can be read, or dropped to make room, before.
                        self._owner.ticket().settle()

    @property
    def has_more(self) -> bool:
        """Whether there are files of clients that are not connected."""
        return bool(self._left)

    def attach(self, name: str) -> PostedFile:
        """Returns the file of a client that is connected; raises if it cannot be used."""
        with self._mutex:
            file = self._left.pop(name, None)
        if file is not None:
            return file
        directory = self._open()
        if directory is None:
            raise Closed(f"{self._directory.path}/{posted.DIRECTORY} is gone")
        with contextlib.closing(directory):
            file = PostedFile(directory, name, self._boot)
        if file.void is not None:
            file.close()
            raise Closed(f"{posted.DIRECTORY}/{name}: {file.void}")
        return file

    def leave(self, file: PostedFile) -> None:
        """Takes what is left of a file whose client has gone; later, if that is not possible."""
        with self._mutex:
            if not self.finish(file):
                self._left[file.name] = file
                self._stored()
        if self._owner.always and self._owner.error is None:
            # Nothing of it can be read before. The caller does not wait.
            self._owner.ticket().notify(lambda error: None)

    def close(self) -> None:
        """Closes the files; whoever opens the queue next takes in what is left."""
        with self._mutex:
            for file in self._left.values():
                file.close()
            self._left.clear()

    def take(self, file: PostedFile) -> tuple[int, Ticket | None]:
        """Stores what was put into a file since the last time, as far as there is room.

        Returns how many records, and what to wait for until they are durable.
        """
        batch = file.look()
        if batch is None:
            return 0, None
        try:
            with self._owner.lock:
                self._owner.check()
                return self.store(file, batch)
        finally:
            self._stored()

    def take_all(self, file: PostedFile) -> None:
        """Stores what is in a file now, as far as there is room."""
        # Its client may put records faster than they are taken.
        end = file.note.place + file.room
        while file.note.place < end and self.take(file)[0]:
            pass

    def store(self, file: PostedFile, batch: Batch) -> tuple[int, Ticket | None]:
        """Stores a batch, or a part of it if that is all that there is room for. Lock held."""
        owner = self._owner
        while True:
            # Until the next change nothing can be staged without the lock: what is stored between
            # the note and its end are these records.
            owner.drain()
            begin = owner.applied
            file.begin(batch, begin)
            try:
                self._check(file, batch)
                ticket = self._store_batch(batch)
            except NoRoom as none:
                if self._has_made_room(none.size, batch.count):
                    continue
                if batch.count == 1:
                    file.advance(batch, 0)
                    return 0, None
            except (InvalidOption, RecordTooLarge) as error:
                if batch.count == 1:
                    where = f"{posted.DIRECTORY}/{file.name}: record {file.number}"
                    raise ProtocolError(f"{where} can never be stored: {error}") from None
            except BaseException:
                # The queue itself says how many it has.
                file.advance(batch, owner.applied - begin)
                raise
            else:
                file.advance(batch, batch.count)
                return batch.count, ticket
            smaller = file.look(batch.count // 2)
            if smaller is None:
                return 0, None
            batch = smaller

    def _check(self, file: PostedFile, batch: Batch) -> None:
        if batch.extra > self._extra_max:
            raise InvalidOption(f"{batch.extra} beside it: at most {self._extra_max}")

    def _has_made_room(self, size: int, count: int) -> bool:
        try:
            return self._make_room(size, count)
        except Full:
            if count == 1:
                raise
            return False

    def _open(self) -> Directory | None:
        try:
            return self._directory.directory(posted.DIRECTORY)
        except FileNotFoundError:
            return None

    def _adopt(self, directory: Directory, name: str) -> None:
        """Opens a file of a client that an earlier owner may have been taking."""
        try:
            file = PostedFile(directory, name, self._boot)
        except (ForebayError, OSError) as error:
            self._set_aside(directory, name, str(error))
            return
        try:
            reason = file.void
            if reason is None:
                file.resume(self._owner.applied)
                self._left[name] = file
                return
            if file.is_left() and file.is_empty:
                directory.unlink(name)
                return
        except (ForebayError, OSError) as error:
            reason = str(error)
        finally:
            if name not in self._left:
                file.close()
        self._set_aside(directory, name, reason)

    def _set_aside(self, directory: Directory, name: str, reason: str) -> None:
        """Keeps a file that cannot be used out of the way, unless its client lives."""
        with contextlib.suppress(OSError):
            if posted.set_aside(self._directory, directory, name):
                path = f"{self._directory.path}/{posted.DIRECTORY}/{name}"
                _logger.warning("%s: moved to quarantine: %s", path, reason)

    def finish(self, file: PostedFile) -> bool:
        """Takes what is left of a file; removes it, and returns True, if its client is gone."""
        try:
            is_left = file.is_left()
            self.take_all(file)
            if not is_left:
                # It goes on putting records, and must say so: nobody looks.
                file.sleep()
                self.take_all(file)
                return False
            is_empty = file.is_empty
        except Closed:
            return False
        except ProtocolError as error:
            file.close()
            directory = self._open()
            if directory is not None:
                with contextlib.closing(directory):
                    self._set_aside(directory, file.name, str(error))
            return True
        except (ForebayError, OSError) as error:
            _logger.warning("%s: %s waits: %s", self._directory.path, file.name, error)
            return False
        if is_empty:
            self._remove(file.name)
            file.close()
        return is_empty

    def _remove(self, name: str) -> None:
        directory = self._open()
        if directory is not None:
            with contextlib.closing(directory), contextlib.suppress(FileNotFoundError):
                directory.unlink(name)
