"""Runs cases in a child of a fork, so that one that hangs is found, told and left behind.

The child runs one case after another and reports each; if nothing comes for a while it is asked for
its stacks, killed, and another child goes on with the next case.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import select
import signal
import struct
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, TypeVar

_Case = TypeVar("_Case")
_LENGTH = struct.Struct(">I")
# Far above what a case takes on a busy machine: it is only paid where something hangs.
SECONDS = 15.0


def run_each(
    cases: Sequence[_Case],
    run: Callable[[_Case], object],
    *,
    seconds: float = SECONDS,
    until: float | None = None,
) -> Iterator[tuple[_Case, str | None]]:
    """Yields each case and what went wrong with it; None if nothing did.

    Ends early at the time `until`, on the monotonic clock.
    """
    done = 0
    while done < len(cases) and not _is_over(until):
        with _Child(cases[done:], run, until) as child:
            while done < len(cases):
                finished, outcome = child.next_outcome(seconds)
                if not finished:
                    break
                yield cases[done], outcome
                done += 1
            else:
                return
            if child.ended_early:
                return
        yield cases[done], child.post_mortem
        done += 1


def _is_over(until: float | None) -> bool:
    return until is not None and time.monotonic() >= until


class _Child:
    """A process that runs cases, seen from its parent."""

    def __init__(
        self, cases: Sequence[_Case], run: Callable[[_Case], object], until: float | None
    ) -> None:
        self.ended_early = False
        self.post_mortem = ""
        self._stacks = tempfile.TemporaryFile()  # noqa: SIM115 - closed at the exit
        reading, writing = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(reading)
            _run_all(cases, run, until, writing, self._stacks)
        os.close(writing)
        self._pipe = os.fdopen(reading, "rb", buffering=0)

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            self._reap()
        self._pipe.close()
        self._stacks.close()

    def next_outcome(self, seconds: float) -> tuple[bool, str | None]:
        """Returns whether the next case ended, and what went wrong with it."""
        head = self._read(_LENGTH.size, seconds)
        if head is None:
            return False, None
        body = self._read(_LENGTH.unpack(head)[0], seconds)
        if body is None:
            return False, None
        outcome: str | None = json.loads(body)
        return True, outcome

    def _read(self, size: int, seconds: float) -> bytes | None:
        data = b""
        deadline = time.monotonic() + seconds
        while len(data) < size:
            ready, _, _ = select.select([self._pipe], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                self.post_mortem = f"hangs\n{self._stacks_now()}"
                return None
            part = self._pipe.read(size - len(data))
            if not part:
                code = self._reap()
                self.ended_early = code == 0
                self.post_mortem = f"the process died: {code}"
                return None
            data += part
        return data

    def _reap(self) -> int:
        pid, self._pid = self._pid, 0
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def _stacks_now(self) -> str:
        os.kill(self._pid, signal.SIGUSR1)
        time.sleep(0.2)
        self._stacks.seek(0)
        return self._stacks.read().decode(errors="replace")


def _run_all(
    cases: Sequence[_Case],
    run: Callable[[_Case], object],
    until: float | None,
    writing: int,
    stacks: BinaryIO,
) -> None:
    """What the child does; never returns."""
    code = 1
    try:
        # What the parent has is not for the child to collect: a look at all of it takes long.
        gc.freeze()
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
        for case in cases:
            if _is_over(until):
                break
            outcome: str | None = None
            try:
                run(case)
            except AssertionError as error:
                outcome = str(error)
            except BaseException:
                outcome = traceback.format_exc()
            body = json.dumps(outcome).encode()
            os.write(writing, _LENGTH.pack(len(body)) + body)
        code = 0
    finally:
        os._exit(code)
