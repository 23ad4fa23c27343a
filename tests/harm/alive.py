"""A queue that is open in another process while its files are harmed.

The owner is a fork: it makes the queue by the story of its kind and waits. Told of the harm, it
takes everything, puts more, syncs and closes. Each answer is sent when it is there, so that an
owner that is killed by what it meets has told what it acknowledged until then.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from forebay.errors import ForebayError
from tests.harm.harms import HARMS, Hit, Target, failing
from tests.harm.recipes import Recipe, Seen
from tests.harm.values import LATER

# An owner that has not answered by then never will.
SECONDS_MAX = 20
_CONTEXT = multiprocessing.get_context("fork")


@dataclass(slots=True)
class Answers:
    """What an owner has told since the harm.

    `looks` are what it gave out, `acknowledged` what it put; `refused` are the errors that it
    raised, of the library or the system, `raw` all others. `signal` is what killed it.
    """

    looks: list[Seen] = field(default_factory=list)
    acknowledged: list[int] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    raw: list[str] = field(default_factory=list)
    signal: int = 0
    hangs: bool = False


class LiveOwner:
    """A process that owns a queue, which it has just made."""

    def __init__(self, recipe: Recipe, path: Path, policy: str) -> None:
        self._connection, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_own, args=(theirs, recipe, path, policy))
        self._process.start()
        theirs.close()
        try:
            assert self._connection.poll(SECONDS_MAX), "the queue is not made in time"
            assert self._connection.recv() == "made"
        except BaseException:
            self.end()
            raise

    def go_on(self, harm: str, target: Target, hit: Hit) -> Answers:
        """Has the owner take everything, put more, and close; returns when it has ended."""
        answers = Answers()
        self._connection.send((harm, target, hit))
        try:
            while self._connection.poll(SECONDS_MAX):
                name, answer = self._connection.recv()
                getattr(answers, name).append(answer)
            answers.hangs = True
        except EOFError:
            self._process.join(SECONDS_MAX)
            answers.signal = max(0, -(self._process.exitcode or 0))
        return answers

    def end(self) -> None:
        """Ends the process, if it is still there."""
        if self._process.is_alive():
            os.kill(self._process.pid or 0, signal.SIGKILL)
        self._process.join()
        self._process.close()
        self._connection.close()


def _own(connection: Connection, recipe: Recipe, path: Path, policy: str) -> None:
    queue = recipe.open(path, policy)
    truth = recipe.write(queue, snapshot=lambda: None)
    connection.send("made")
    try:
        harm, target, hit = connection.recv()
    except EOFError:
        return

    def attempt(verb: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return verb(*arguments)
        except (ForebayError, OSError) as error:
            connection.send(("refused", f"{type(error).__name__}: {error}"))
        except Exception as error:
            connection.send(("raw", f"{type(error).__name__}: {error}"))

    def put(numbers: list[int]) -> None:
        recipe.put(queue, numbers)
        for number in numbers:
            connection.send(("acknowledged", number))

    Seen.listener = lambda seen: connection.send(("looks", seen))
    half = len(LATER) // 2
    with failing(HARMS[harm], target, hit):
        for seen in attempt(recipe.take_all, queue, truth) or []:
            connection.send(("looks", seen))
        for number in LATER[:half]:
            attempt(put, [number])
        attempt(put, [*LATER[half:]])
        attempt(queue.sync)
        attempt(queue.info)
        attempt(queue.close)
    connection.close()
