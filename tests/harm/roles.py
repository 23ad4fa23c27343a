"""The files of each kind by what they are for: the names under which the matrix knows them."""

from __future__ import annotations

import re
from pathlib import Path

from tests.harm.machine import files_of

# A pattern for each role; where several files have it they are numbered, the last one is "last".
_PATTERNS = {
    "log": {
        "segment": r"[0-9a-f]{10,16}",
        "tail": "tail",
        "index": "index",
        "index-check": "index-check",
        "ledger": "ledger",
        "cursor": "cursors/.*",
    },
    "fifo": {
        "tape": r".*\.tape",
        "head": "fifo-head",
        "tail": "fifo-tail",
        "bounds": "fifo-bounds",
    },
    "beats": {
        "segment": r".*\.seg",
        "contents": "contents",
        "mark": "mark",
        "state": r"state\.dat",
    },
    "deadline": {
        "run": r".*\.p\.run",
        "tombstones": r".*\.t\.run",
        "wal": r".*\.wal",
        "manifest": "deadline-manifest",
        "mark": "deadline-mark",
    },
}
_OF_ALL = {"staging": "staging", "reserve": "reserve", "losses": "losses", "kept": "quarantine/.*"}
# How many files of a role there may be.
_MOST = {
    "log": {"segment": 7},
    "fifo": {"tape": 5},
    "beats": {"segment": 5},
    "deadline": {"run": 2},
}


def roles_of(kind: str) -> list[str]:
    """Lists the roles of a kind, those that a state may lack too."""
    base = kind.partition("-")[0]
    roles = []
    for role in {**_PATTERNS[base], **_OF_ALL}:
        most = _MOST[base].get(role, 1)
        roles += [role] if most == 1 else [f"{role}-{n}" for n in [*range(1, most), "last"]]
    return roles


def files_by_role(kind: str, queue: Path) -> dict[str, str]:
    """Names each file of a queue by its role; raises for one that has none."""
    base = kind.partition("-")[0]
    found: dict[str, str] = {}
    patterns = {**_PATTERNS[base], **_OF_ALL}
    groups: dict[str, list[str]] = {role: [] for role in patterns}
    for name in files_of(queue):
        role = next((role for role, it in patterns.items() if re.fullmatch(it, name)), None)
        if role is None:
            raise AssertionError(f"{name} has no role in the matrix: give it one")
        groups[role].append(name)
    for role, names in groups.items():
        names.sort(key=lambda name: (len(name), name))
        most = _MOST[base].get(role, 1)
        if len(names) > most:
            raise AssertionError(f"{len(names)} files of the role {role}: more than {most}")
        for number, name in enumerate(names, 1):
            last = number == len(names)
            found[role if most == 1 else f"{role}-{'last' if last else number}"] = name
    return found
