"""Points at which a process fails, waits to be killed, or tells where it is.

What is to happen is written into a directory, because the hooks of a stream run in processes of
their own: the one that plans, and those of the tasks.

| file | what it does |
| --- | --- |
| `fail MOMENT N` | the first that meets the moment takes the file away and raises |
| `wait MOMENT` | the first that meets the moment takes it away, makes `reached`, and waits |
| `reached` | somebody waits; goes on when the file is taken away |
| `phases/PID` | if the directory is there: the moment at which a process is now |
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

_FAILS_MAX = 10
REACHED = "reached"
PHASES = "phases"
_WAIT_SECONDS = 600
# A hook takes microseconds; no kill from outside would ever meet one.
_PHASE_SECONDS = 0.02
_PHASE_BYTES = 60


class Failed(Exception):
    """What a fail point raises."""


@dataclass(frozen=True, slots=True)
class Points:
    """The directory of points, as a test and the hooks see it."""

    directory: Path

    def make(self, *, phases: bool = False) -> Points:
        """Makes the directory; with `phases`, those who pass slow down and tell where they are."""
        (self.directory / PHASES if phases else self.directory).mkdir(parents=True)
        return self

    def fail(self, moment: str, times: int = 1) -> None:
        """Arms a moment, to fail so many times."""
        for turn in range(times):
            (self.directory / f"fail {moment} {turn}").touch()

    def wait(self, moment: str) -> None:
        """Arms a moment, to stop there for a kill, or until it is let go."""
        (self.directory / REACHED).unlink(missing_ok=True)
        (self.directory / f"wait {moment}").touch()

    @property
    def reached(self) -> bool:
        """Whether somebody stands at the moment that was armed."""
        return (self.directory / REACHED).exists()

    def let_go(self) -> None:
        """Lets the one who waits go on."""
        (self.directory / REACHED).unlink()

    def disarm(self) -> int:
        """Takes back what nobody has met; gives how much that was."""
        left = [file for file in self.directory.iterdir() if " " in file.name]
        for file in left:
            file.unlink()
        return len(left)

    def phases(self) -> dict[int, str]:
        """Returns where each process is, or was when it died."""
        found = {}
        for file in (self.directory / PHASES).iterdir():
            moment = file.read_text().rstrip()
            if moment:
                found[int(file.name)] = moment
        return found

    def meet(self, moment: str) -> None:
        """Called by a process that is at a moment."""
        for turn in range(_FAILS_MAX):
            if self._take(f"fail {moment} {turn}"):
                raise Failed(moment)
        if self._take(f"wait {moment}"):
            self._wait_for_release()
        if self.tell(moment):
            time.sleep(_PHASE_SECONDS)

    def tell(self, moment: str) -> bool:
        """Tells where this process is, if somebody wants to know."""
        if not (self.directory / PHASES).exists():
            return False
        file = os.open(self.directory / PHASES / str(os.getpid()), os.O_WRONLY | os.O_CREAT, 0o600)
        # One write of always the same length: a kill leaves the old one or the new one.
        os.pwrite(file, moment.ljust(_PHASE_BYTES).encode(), 0)
        os.close(file)
        return True

    def _wait_for_release(self) -> None:
        (self.directory / REACHED).touch()
        end = time.monotonic() + _WAIT_SECONDS
        while self.reached and time.monotonic() < end:
            time.sleep(_PHASE_SECONDS)

    def _take(self, name: str) -> bool:
        try:
            (self.directory / name).unlink()
        except FileNotFoundError:
            return False
        return True
