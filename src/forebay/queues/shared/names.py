"""The names in the directories of queues: which kind they belong to, and which are foreign.

The names of all kinds are in one module, so that each kind refuses the directories of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from forebay.errors import NotAQueue
from forebay.formats import entry, fflg
from forebay.formats.beats import versions as beats
from forebay.formats.deadline import items, manifest, mark
from forebay.storage import atomic, inbox, losses, posted, quarantine, staging, tail
from forebay.storage.filesystem import Directory


@dataclass(frozen=True, slots=True)
class Names:
    """The names in the directory of one kind of queue.

    `marks` are files that only this kind has; others may have `files` and `directories` too.
    `is_data` says whether a name is that of a file of records.
    """

    label: str
    marks: frozenset[str]
    files: frozenset[str]
    directories: frozenset[str]
    is_data: Callable[[str], bool]

    @property
    def own_files(self) -> frozenset[str]:
        """All files except those of records."""
        return self.marks | self.files

    def fit(self, names: Iterable[str]) -> bool:
        """Says whether the names in a directory are those of this kind."""
        return any(name in self.marks or self.is_data(name) for name in names)

    def is_temporary(self, name: str) -> bool:
        """Says whether a name is that of a file whose writer stopped before it was complete."""
        stem = name.removesuffix(atomic.TEMPORARY)
        return stem != name and (stem in self.own_files or self.is_data(stem))

    def remove_temporary(self, directory: Directory, names: Iterable[str]) -> None:
        """Removes the files whose writers stopped before they were complete."""
        for name in names:
            if self.is_temporary(name):
                quarantine.remove(directory, name)

    def refuse_foreign(self, directory: Directory, names: Iterable[str]) -> None:
        """Refuses a directory of another kind, and one that holds only unknown names."""
        given = list(names)
        # Any directory may have a name that marks a log: for a log, look for other kinds first.
        kinds = [*_OTHERS, self] if self is LOG else [self, *_OTHERS]
        found = next((kind for kind in kinds if kind.fit(given)), None)
        if found is self:
            return
        if found is not None:
            raise NotAQueue(
                f"{directory.path} is {found.label}, not {self.label}; open it as what it is"
            )
        known = self.own_files | self.directories
        strange = [name for name in given if name not in known and not self.is_temporary(name)]
        if strange:
            raise NotAQueue(
                f"{directory.path} is not {self.label}: it holds {min(strange)!r}; "
                "give an empty or a new directory"
            )


def _is_deadline_file(name: str) -> bool:
    found = items.parse_file_name(name)
    return found is not None and found[1] in (items.FileKind.WAL, *manifest.FILE_BITS)


# What the server of a shared queue leaves: its socket, its log, and the options of its clients.
SOCKET, SERVER_LOG, OPTIONS = "server.sock", "server.log", "shared-options"
SHARED = frozenset({SOCKET, SERVER_LOG, OPTIONS})
_FILES = frozenset({atomic.RESERVE, losses.NAME, *SHARED})
# `forward` holds the state of forwarders.
_DIRECTORIES = frozenset({quarantine.DIRECTORY, posted.DIRECTORY, "forward"})
LOG = Names(
    "a log",
    frozenset({tail.NAME, "index", "index-check"}),
    _FILES | {staging.NAME, inbox.LEDGER},
    _DIRECTORIES | {inbox.DIRECTORY, "cursors"},
    lambda name: fflg.parse_segment_name(name) is not None,
)
BEATS = Names(
    "a Beats queue",
    frozenset({"state.dat", "mark"}),
    _FILES | {"contents"},
    _DIRECTORIES,
    lambda name: beats.parse_segment_name(name) is not None,
)
FIFO = Names(
    "a fifo",
    frozenset({"fifo-head", "fifo-tail", "fifo-bounds", "fifo-copy"}),
    _FILES | {staging.NAME},
    _DIRECTORIES | {"dead"},
    lambda name: entry.parse_file_name(name) is not None,
)
DEADLINE = Names(
    "a deadline queue",
    frozenset({manifest.NAME, mark.NAME}),
    # `takeover` exists while a directory of the original program is being taken over.
    _FILES | {staging.NAME, "takeover"},
    _DIRECTORIES,
    _is_deadline_file,
)
_OTHERS = (BEATS, FIFO, DEADLINE)
