"""The options of a served queue: those of its first client, kept while anybody has it open.

`shared-options` holds what was given explicitly, and a name for this opening of the queue, as a
checked document, from the first open to the clean close: a server that was killed is replaced by
one that opens the queue in the same way. Without it, or if it is damaged, the next client decides.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import fields
from typing import Any

from forebay.errors import Damaged, InvalidOption
from forebay.queues.shared.names import OPTIONS
from forebay.storage import atomic
from forebay.storage.filesystem import DiskFilesystem


class Options:
    """What was given for a queue, by its first client or before a crash."""

    def __init__(self, path: str, given: dict[str, Any], before: str | None = None) -> None:
        self._path = path
        self.given = given
        # What tells this opening of the queue from all others; and the one that a crash has ended.
        self.life = os.urandom(8).hex()
        self.before = before

    @classmethod
    def load(cls, path: str, given: dict[str, Any]) -> Options:
        """Returns the options to open a queue with: those of before a crash, if there are any."""
        kept = cls._read(path)
        if kept is None:
            return cls(path, given)
        options, before = kept
        for name, value in given.items():
            if options.get(name, value) != value:
                raise InvalidOption(_differs(path, name, value, options[name]))
        return cls(path, {**given, **options}, before)

    @classmethod
    def of_root(cls, path: str, given: dict[str, Any]) -> Options:
        """Returns the options that the registry of a root has: they outlive clients and crashes."""
        kept = cls._read(path)
        return cls(path, given, None if kept is None else kept[1])

    def save(self, queue: Any) -> None:
        """Keeps them until `forget`."""
        document = atomic.encode_document({"options": self.given, "life": self.life})
        atomic.replace(queue._directory, OPTIONS, document)

    def forget(self) -> None:
        """Removes them: the queue is closed."""
        directory = DiskFilesystem().open_directory(self._path)
        with contextlib.closing(directory), contextlib.suppress(FileNotFoundError):
            directory.unlink(OPTIONS)

    def agree(self, queue: Any, given: dict[str, Any]) -> None:
        """Refuses options that differ from those that the queue is open with."""
        effective = self.effective(queue)
        for name, value in given.items():
            if name in effective and effective[name] != value:
                raise InvalidOption(_differs(self._path, name, value, effective[name]))

    def effective(self, queue: Any) -> dict[str, Any]:
        """Returns all options of a queue as they are."""
        found = {each.name: getattr(queue.options, each.name) for each in fields(queue.options)}
        return {
            name: os.fspath(value) if isinstance(value, os.PathLike) else value
            for name, value in found.items()
        }

    @staticmethod
    def _read(path: str) -> tuple[dict[str, Any], str] | None:
        try:
            directory = DiskFilesystem().open_directory(path)
        except FileNotFoundError:
            return None
        with contextlib.closing(directory):
            data = atomic.read_small(directory, OPTIONS)
            if data is None:
                return None
            try:
                found: Any = atomic.decode_document(data, f"{path}/{OPTIONS}")
                return dict(found["options"]), str(found["life"])
            except (Damaged, KeyError, TypeError, ValueError):
                return None


def _differs(path: str, name: str, given: object, kept: object) -> str:
    return (
        f"{name} = {given!r}: {path} is shared with {name} = {kept!r}, as its first client gave "
        "it; leave it out, or close the queue everywhere first"
    )
