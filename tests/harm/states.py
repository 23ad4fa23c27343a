"""The queues under test, made once for each kind, policy and state, and copied for each case.

A `Place` is the directory of one of them: the queue, the truth, what its files were at some moments
before, and a sibling made by the same story with other values.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harm.machine import files_of
from tests.harm.recipes import RECIPES, Truth
from tests.harm.values import LATER, OURS, SIBLING
from tests.support.killing import Tell, kill_a_writer

# In the last one the owner is alive: `alive.py`.
STATES = ("closed", "reopened", "killed", "alive")


@dataclass(frozen=True, slots=True)
class Place:
    """One queue that was made, with its truth, its older selves and its sibling."""

    queue: Path
    truth: Truth
    older: list[Path]
    sibling: Path

    def older_copy(self, name: str) -> Path | None:
        """Finds the newest earlier copy of a file that differs from it."""
        now = (self.queue / name).read_bytes()
        copies = [path / name for path in reversed(self.older)]
        return next((it for it in copies if it.is_file() and it.read_bytes() != now), None)


def place_of(root: Path, kind: str, policy: str, state: str) -> Place:
    """Returns the place of a kind, policy and state below `root`; makes it if nobody has.

    That of a living owner is what it leaves when it is killed: the same bytes.
    """
    state = "killed" if state == "alive" else state
    place = root / f"{kind}-{policy}-{state}"
    root.mkdir(mode=0o711, parents=True, exist_ok=True)
    with open(root / f"{place.name}.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "made").exists():
            shutil.rmtree(place, ignore_errors=True)
            for letter in (OURS, SIBLING):
                _make(place / letter, kind, policy, state, letter)
            (place / "made").touch()
    ours = place / OURS
    truth = Truth(**json.loads((ours / "truth.json").read_text(encoding="ascii")))
    older = sorted(path for path in ours.iterdir() if path.name.startswith("older"))
    return Place(ours / "queue", truth, older, place / SIBLING / "queue")


def copy_queue(source: Path, target: Path) -> Path:
    """Copies a queue's directory, with its modes."""
    shutil.copytree(source, target, symlinks=True)
    return target


def write_story(place: Path, kind: str, policy: str, letter: str) -> Any:
    """Makes a queue; returns it in the middle of its work."""
    recipe = RECIPES[kind]
    queue = recipe.open(place / "queue", policy, letter)
    taken: list[None] = []

    def snapshot() -> None:
        copy_queue(place / "queue", place / f"older-{len(taken)}")
        taken.append(None)

    truth = recipe.write(queue, letter, snapshot=snapshot)
    if letter == SIBLING:
        # Not as long as ours: a mark of the one that is taken for the other's is wrong.
        recipe.put(queue, [*LATER][:3], letter)
    (place / "truth.json").write_text(json.dumps(truth.as_json()), encoding="ascii")
    return queue


def _make(place: Path, kind: str, policy: str, state: str, letter: str) -> None:
    place.mkdir(mode=0o711, parents=True)
    if state == "killed":
        kill_a_writer(lambda tell: _tell_when_written(tell, place, kind, policy, letter))
    else:
        write_story(place, kind, policy, letter).close()
    if state == "reopened":
        copy_queue(place / "queue", place / "older-9")
        RECIPES[kind].open_later(place / "queue", policy).close()
    keep_something(place / "queue", letter)
    assert files_of(place / "queue")


def keep_something(queue: Path, letter: str) -> None:
    """Puts a file into `quarantine/`, as a recovery does."""
    kept = queue / "quarantine"
    kept.mkdir(mode=0o700, exist_ok=True)
    (kept / "kept").write_bytes(b"bytes that an earlier recovery took out, " + letter.encode() * 99)


def _tell_when_written(tell: Tell, place: Path, kind: str, policy: str, letter: str) -> None:
    # The queue stays open until the kill.
    queue = write_story(place, kind, policy, letter)
    tell(len(queue.path))
    signal.pause()
