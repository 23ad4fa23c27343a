"""The queues that a server has: the one of its directory, or those of a root.

They are opened and closed on threads of the server, one at a time. The queue of a directory is
open as long as a client has it open, so that a program may own it afterwards. Those of a root stay
open until the server ends: what they are is in the registry of the root, not with their clients.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from forebay.errors import ForebayError, InvalidOption, NotAQueue
from forebay.queues.kinds import ROOT, Kind, kind_named, kind_of
from forebay.queues.root import Definition, Root
from forebay.queues.shared.options import make_options
from forebay.serve.settled import Options
from forebay.storage.filesystem import DiskFilesystem

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Served:
    """A queue that is open, how many handles clients have, and how many records went through.

    `written` and `taken` count since the server began; only its loop changes them.
    """

    name: str
    kind: str
    queue: Any
    options: Options
    handles: int = 0
    written: int = 0
    taken: int = 0

    @property
    def described(self) -> dict[str, Any]:
        """What a client keeps of it: its path, and the options that it was opened with."""
        return {
            "path": self.queue.path,
            "options": self.options.effective(self.queue),
            "life": self.options.life,
        }


class Holding(Protocol):
    """The queues of a server; any thread may call it."""

    def open(self, path: str, kind: str, options: dict[str, Any], *, create: bool) -> Served:
        """Opens a queue, or shares the one that is open. Raises what an open raises."""
        ...

    def release(self, served: Served) -> None:
        """Ends a handle of a client."""
        ...

    def kind_at(self, path: str) -> str:
        """Returns the kind of a queue; raises `NotAQueue` if there is none."""
        ...

    def all(self) -> list[Served]:
        """Returns all queues that are open."""
        ...

    def close(self) -> None:
        """Closes all queues."""
        ...


class OneQueue:
    """The queue of a directory, open while clients have it open."""

    def __init__(self, directory: int) -> None:
        """`directory` is a descriptor of it."""
        self._directory = directory
        self._mutex = threading.Lock()
        self._served: Served | None = None

    def open(self, path: str, kind: str, options: dict[str, Any], *, create: bool) -> Served:
        """Opens the queue or shares it."""
        path = self._checked(path)
        found = kind_named(kind)
        # The constructor takes more than options: `shared` would wait for this very server.
        make_options(found.options_class, options)
        with self._mutex:
            served = self._served
            if served is None:
                settled = Options.load(path, options)
                if not create and kind_of(path) is not found:
                    raise NotAQueue(f"{path} is no longer {found.title}")
                queue = found.open_queue(path, **settled.given)
                settled.save(queue)
                name = os.path.basename(path)
                served = self._served = Served(name, kind, queue, settled)
            elif served.kind != kind:
                raise InvalidOption(f"{path} is of kind {served.kind!r}, not {kind!r}")
            else:
                served.options.agree(served.queue, options)
            served.handles += 1
            return served

    def release(self, served: Served) -> None:
        """Closes the queue after its last handle."""
        with self._mutex:
            served.handles -= 1
            if served.handles == 0:
                self._end()

    def kind_at(self, path: str) -> str:
        """Returns the kind of the queue."""
        return _kind_there(self._checked(path))

    def all(self) -> list[Served]:
        """Returns the queue, if it is open."""
        served = self._served
        return [] if served is None else [served]

    def close(self) -> None:
        """Closes the queue: what clients could not give back is lent, and comes back by itself."""
        with self._mutex:
            if self._served is not None:
                self._end()

    def _end(self) -> None:
        served, self._served = self._served, None
        assert served is not None
        served.queue.close()
        served.options.forget()

    def _checked(self, path: str) -> str:
        """Returns the path without links; refuses that of another directory."""
        # Also refuses at once what is too long for a path.
        _identity(path)
        path = os.path.realpath(path)
        # Where it is now: it may have been moved.
        own = os.readlink(f"/proc/self/fd/{self._directory}")
        if path != own:
            raise NotAQueue(f"{path}: the server of {own} serves nothing else")
        return path


class Rooted:
    """The queues of a root, which are defined when a client first opens one of a new name."""

    def __init__(self, path: str, definitions: Mapping[str, Definition] | None = None) -> None:
        """`definitions` are those of a configuration: they replace what is in the registry."""
        self._path = path
        self._definitions = definitions or {}
        self._mutex = threading.Lock()
        self._opened: Root | None = None
        self._served: dict[str, Served] = {}
        # Those whose opening is on record: clients have used them.
        self._saved: set[str] = set()

    def recover(self) -> int:
        """Opens all queues and returns how many are open.

        One that cannot be opened is reported, and does not hold up the others.
        """
        with self._mutex:
            root = self._root()
            for name in root.names:
                try:
                    root.queue(name)
                except (ForebayError, OSError) as error:
                    _logger.error("%s/%s: cannot be opened: %s", self._path, name, error)
            return len(root.open_names)

    def open(self, path: str, kind: str, options: dict[str, Any], *, create: bool) -> Served:
        """Opens a queue by its path, defines it if its name is new, or shares it."""
        name = self._name(path)
        found = kind_named(kind)
        make_options(found.options_class, options)
        with self._mutex:
            root = self._root()
            served = self._served.get(name)
            if served is None:
                served = self._served[name] = self._open(root, name, found, options, create=create)
            elif served.kind != kind:
                raise NotAQueue(f"{path} is of kind {served.kind!r}, not {kind!r}")
            served.options.agree(served.queue, options)
            if name not in self._saved:
                served.options.save(served.queue)
                self._saved.add(name)
            served.handles += 1
            return served

    def release(self, served: Served) -> None:
        """Keeps the queue open."""
        with self._mutex:
            served.handles -= 1

    def kind_at(self, path: str) -> str:
        """Returns the kind that a queue was defined with, or that of its directory."""
        name = self._name(path)
        with self._mutex:
            root = self._root()
            if name in root.names:
                return root.definition(name).kind
            return _kind_there(f"{self._path}/{name}")

    def all(self) -> list[Served]:
        """Returns all queues that are open."""
        with self._mutex:
            if self._opened is None:
                return []
            for name in self._opened.open_names:
                if name not in self._served:
                    self._served[name] = self._of(self._opened, name)
            return [self._served[name] for name in sorted(self._served)]

    def close(self) -> None:
        """Closes all queues and frees the root."""
        with self._mutex:
            if self._opened is not None:
                self._opened.close()
                for name in self._saved:
                    self._served[name].options.forget()
                self._opened, self._served = None, {}

    def _root(self) -> Root:
        """Returns the root, opened when it is first needed: whoever has it may have ended."""
        if self._opened is None:
            root: Any = Root(self._path)
            try:
                for name, wanted in self._definitions.items():
                    if name not in root.names or root.definition(name) != wanted:
                        root.define(name, wanted.kind, **wanted.options)
            except BaseException:
                root.close()
                raise
            self._opened = root
        opened: Root = self._opened
        return opened

    def _open(
        self, root: Root, name: str, kind: Kind, options: dict[str, Any], *, create: bool
    ) -> Served:
        if name in root.names:
            root.queue(name, kind.name)  # type: ignore[call-overload]
            return self._of(root, name)
        path = f"{self._path}/{name}"
        if os.path.isdir(path):
            directory = DiskFilesystem().open_directory(path)
            try:
                assert kind.names is not None
                kind.names.refuse_foreign(directory, directory.names())
            finally:
                directory.close()
        elif not create:
            raise NotAQueue(f"{path} is gone")
        root.define(name, kind.name, **options)  # type: ignore[call-overload]
        try:
            root.queue(name)
        except BaseException:
            root.forget(name)
            raise
        return self._of(root, name)

    def _of(self, root: Root, name: str) -> Served:
        definition = root.definition(name)
        queue = root.queue(name)
        settled = Options.of_root(f"{self._path}/{name}", dict(definition.options))
        return Served(name, definition.kind, queue, settled)

    def _name(self, path: str) -> str:
        folder, name = os.path.split(os.path.normpath(os.fsdecode(path)))
        if _identity(folder) != _identity(self._path) or not name:
            raise NotAQueue(f"{path}: the server of {self._path} serves only what is in it")
        return name


def holding_of(directory: int) -> Holding:
    """Returns the queues of a directory, which is a root or that of a queue."""
    path = os.readlink(f"/proc/self/fd/{directory}")
    return Rooted(path) if os.path.exists(f"{path}/{ROOT}") else OneQueue(directory)


def _kind_there(path: str) -> str:
    if not os.path.isdir(path):
        raise NotAQueue(f"{path} is not a queue: it does not exist")
    found = kind_of(path)
    found.refuse_foreign(path)
    return found.name


def _identity(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        raise NotAQueue(f"{path} is gone") from None
    return found.st_dev, found.st_ino
