"""`Root`: queues of all kinds by name in one directory, each with the options it was defined with.

Owns the file `root-definitions`, the source of truth for which queues there are and how they
behave: one line, `crc32 in hex | space | JSON`, replaced as a whole. Version 2 has a kind and
options for each name; version 1, which can still be read, has only options, all of deadline queues.
Refuses names other than of letters, digits, `_` and `-`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Literal, Unpack, overload

# For annotations: a class is imported when somebody looks at them.
import forebay
from forebay.clock import BootClock
from forebay.damage import Damage
from forebay.errors import Closed, Damaged, InvalidOption, NotAQueue
from forebay.kernels.buffers import crc32
from forebay.queues.beats.options import BeatsKeywords
from forebay.queues.deadline.options import DeadlineKeywords
from forebay.queues.fifo.options import FifoKeywords
from forebay.queues.kinds import ROOT as DEFINITIONS
from forebay.queues.kinds import kind_named
from forebay.queues.log.options import LogKeywords
from forebay.queues.opening import AnyQueue, KindName
from forebay.queues.shared.handle import Handle
from forebay.queues.shared.names import SHARED
from forebay.queues.shared.options import as_seconds, make_options
from forebay.storage import atomic
from forebay.storage.filesystem import Directory, DiskFilesystem, Filesystem

_VERSION = 2
# The kind of all queues of version 1.
_KIND_1 = "deadline"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_OWN_NAMES = {DEFINITIONS, DEFINITIONS + atomic.TEMPORARY, atomic.RESERVE, *SHARED}


@dataclass(frozen=True, slots=True)
class Definition:
    """The definition of a queue: the name of its kind and the options that it is opened with."""

    kind: str
    options: Mapping[str, object]


_Definitions = dict[str, Definition]


def definitions(path: str | os.PathLike[str]) -> dict[str, Definition]:
    """Returns what the queues of a root are, by name, without its lock."""
    directory = DiskFilesystem().open_directory(os.fspath(path))
    try:
        if DEFINITIONS not in directory.names():
            raise NotAQueue(f"{directory.path} is not a root: it has no {DEFINITIONS}")
        return _read(directory)
    finally:
        directory.close()


class Root(Handle):
    """Queues by name, which this process owns. Any thread may call it.

    Opens the directory or creates it. A queue is opened when `queue` first asks for it, and stays
    open until the root is closed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        filesystem: Filesystem | None = None,
        clock: BootClock | None = None,
        group_readable: bool = False,
    ) -> None:
        self._filesystem = filesystem or DiskFilesystem()
        self._clock = clock
        self._group_readable = group_readable
        self._lock = threading.Lock()
        self._open: dict[str, AnyQueue] = {}
        self._error: Closed | None = None
        self._directory = self._filesystem.open_directory(
            os.fspath(path), create=True, group_readable=group_readable
        )
        self.path = self._directory.path
        try:
            self._directory.lock()
            self._definitions = _read(self._directory)
            self._refuse_foreign()
            if DEFINITIONS not in self._directory.names():
                # A root from now on, also for those who look from outside.
                self._write({})
        except BaseException:
            self._directory.close()
            raise
        self._own()

    @property
    def names(self) -> list[str]:
        """The names of the queues, sorted."""
        return sorted(self._definitions)

    @property
    def open_names(self) -> list[str]:
        """The names of those that are open, sorted."""
        with self._lock:
            return sorted(self._open)

    @overload
    def define(self, name: str, kind: Literal["log"], **options: Unpack[LogKeywords]) -> None: ...
    @overload
    def define(self, name: str, kind: Literal["fifo"], **options: Unpack[FifoKeywords]) -> None: ...
    @overload
    def define(
        self, name: str, kind: Literal["deadline"], **options: Unpack[DeadlineKeywords]
    ) -> None: ...
    @overload
    def define(
        self, name: str, kind: Literal["beats"], **options: Unpack[BeatsKeywords]
    ) -> None: ...
    def define(self, name: str, kind: KindName, **options: object) -> None:
        """Defines a queue, or changes the options of one that is not open; durable on return.

        `kind` is "log", "fifo", "deadline" or "beats"; the options are those of its class.
        """
        if _NAME.fullmatch(name) is None:
            raise InvalidOption(f"name = {name!r}: must be of A-Z a-z 0-9 _ -, at most 100")
        if name in _OWN_NAMES:
            raise InvalidOption(f"name = {name!r}: the root has a file of this name")
        given = {
            option: as_seconds(value) if isinstance(value, timedelta) else value
            for option, value in options.items()
        }
        make_options(kind_named(kind).options_class, given)
        with self._lock:
            self._check()
            if name in self._open:
                raise InvalidOption(f"{name}: the queue is open; define it before it is used")
            known = self._definitions.get(name)
            if known is not None and known.kind != kind:
                raise InvalidOption(
                    f"{name} is defined as a {known.kind!r} already; forget it first"
                )
            self._write({**self._definitions, name: Definition(kind, given)})

    @overload
    def queue(self, name: str, kind: Literal["log"]) -> forebay.Log: ...
    @overload
    def queue(self, name: str, kind: Literal["fifo"]) -> forebay.Fifo: ...
    @overload
    def queue(self, name: str, kind: Literal["deadline"]) -> forebay.DeadlineQueue: ...
    @overload
    def queue(self, name: str, kind: Literal["beats"]) -> forebay.BeatsQueue: ...
    @overload
    def queue(self, name: str, kind: KindName | None = None) -> AnyQueue: ...
    def queue(self, name: str, kind: KindName | None = None) -> AnyQueue:
        """Returns a defined queue, opened with its options; the root closes it.

        Raises `NotAQueue` if there is none with that name, or it is not of `kind`.
        """
        with self._lock:
            self._check()
            if name not in self._definitions:
                there = ", ".join(self.names) or "none"
                raise NotAQueue(f"{self.path} has no queue {name!r}; defined: {there}")
            defined = self._definitions[name].kind
            if kind is not None and kind != defined:
                raise NotAQueue(f"{self.path}/{name} is of kind {defined!r}, not {kind!r}")
            if name not in self._open:
                self._open[name] = self._open_queue(name, self._definitions[name])
            return self._open[name]

    def definition(self, name: str) -> Definition:
        """Returns the kind and the options that a queue was defined with."""
        return self._definitions[name]

    def forget(self, name: str) -> None:
        """Removes a definition and closes the queue; its files stay, and `define` finds them."""
        with self._lock:
            self._check()
            rest = {key: value for key, value in self._definitions.items() if key != name}
            self._write(rest)
            if name in self._open:
                self._open.pop(name).close()

    def _end(self) -> None:
        """Closes all queues and releases the directory."""
        with self._lock:
            self._error = Closed(f"{self.path} is closed")
            with contextlib.ExitStack() as stack:
                stack.callback(self._directory.close)
                for queue in self._open.values():
                    stack.callback(queue.close)

    def __repr__(self) -> str:
        return f"<Root {self.path} of {len(self._definitions)}>"

    def _open_queue(self, name: str, definition: Definition) -> Any:
        options = {"group_readable": self._group_readable, **definition.options}
        if self._clock is not None:
            options["clock"] = self._clock
        path = f"{self.path}/{name}"
        return kind_named(definition.kind).open_queue(path, filesystem=self._filesystem, **options)

    def _refuse(self, error: Closed) -> None:
        self._error = self._error or error

    def _abandon(self, error: Closed) -> None:
        """Ends it in the child of a fork; the queues are ended by their own handles."""
        self._error = error
        # A thread of the parent, which does not exist in the child, may hold the old lock.
        self._lock = threading.Lock()
        self._open = {}

    def _check(self) -> None:
        if self._error is not None:
            raise self._error.with_traceback(None)

    def _refuse_foreign(self) -> None:
        """Refuses a directory that holds something but no definitions."""
        others = [name for name in self._directory.names() if name not in _OWN_NAMES]
        if others and not self._definitions and DEFINITIONS not in self._directory.names():
            raise NotAQueue(
                f"{self.path} is not a root: it holds {min(others)!r}; "
                "give an empty or a new directory"
            )

    def _write(self, definitions: _Definitions) -> None:
        queues = {name: asdict(definition) for name, definition in definitions.items()}
        document = {"version": _VERSION, "queues": queues}
        body = json.dumps(document, sort_keys=True, default=os.fspath).encode()
        atomic.replace(self._directory, DEFINITIONS, f"{crc32(body):08x} ".encode() + body)
        self._definitions = definitions


def _read(directory: Directory) -> _Definitions:
    data = atomic.read_small(directory, DEFINITIONS)
    if data is None:
        return {}
    check, _, body = data.partition(b" ")
    found = f"{crc32(body):08x}".encode()
    if check != found:
        reason = f"checksum {found.decode()} expected, {check[:8]!r} found"
        damage = Damage(f"{directory.path}/{DEFINITIONS}", 0, len(data), reason)
        raise Damaged(damage, "the queues are whole: open each by its own path")
    document = json.loads(body)
    queues: dict[str, Any] = document["queues"]
    if document["version"] == 1:
        return {name: Definition(_KIND_1, _renamed(options)) for name, options in queues.items()}
    if document["version"] != _VERSION:
        raise NotAQueue(
            f"{directory.path}: definitions of version {document['version']}, not 1 or 2"
        )
    return {name: Definition(row["kind"], _renamed(row["options"])) for name, row in queues.items()}


def _renamed(options: dict[str, Any]) -> dict[str, Any]:
    """Returns options under their present names: 0.1.0 had the sync interval in milliseconds."""
    options = dict(options)
    if "sync_interval_ms" in options:
        options["sync_interval_seconds"] = options.pop("sync_interval_ms") / 1000
    return options
