"""Processes that use a shared queue beside the test, told what to do over a pipe.

Each is a real process: forked, so that it may run what a test defines, or a program of its own.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

# This process's ends of the pipes to all peers.
_pipes: set[Connection] = set()


class Peer:
    """A forked process that runs functions one after another and returns what they return."""

    def __init__(self) -> None:
        self._pipe, there = multiprocessing.Pipe()
        self.pid = os.fork()
        if self.pid == 0:
            # Also those of earlier peers, which end when nobody else holds their pipe.
            for pipe in [self._pipe, *_pipes]:
                pipe.close()
            _serve(there)
        there.close()
        _pipes.add(self._pipe)
        self._ended = False

    def begin(self, work: Callable[[], Any]) -> None:
        """Has it run a function, which was defined before the fork or is pickled by name."""
        self._pipe.send(work)

    def result(self) -> Any:
        """Returns what the function returned; raises what it raised."""
        outcome, value = self._pipe.recv()
        if outcome == "raised":
            raise value
        return value

    def do(self, work: Callable[[], Any]) -> Any:
        """Runs a function there."""
        self.begin(work)
        return self.result()

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Sends it a signal; after `SIGKILL` waits until it is gone."""
        os.kill(self.pid, number)
        if number == signal.SIGKILL:
            self._wait()

    def end(self) -> None:
        """Lets it end by itself, and waits until it is gone."""
        if not self._ended:
            self._close()
            self._wait()

    def _wait(self) -> None:
        self._ended = True
        os.waitpid(self.pid, 0)
        self._close()

    def _close(self) -> None:
        _pipes.discard(self._pipe)
        self._pipe.close()


@contextlib.contextmanager
def peers(count: int) -> Iterator[list[Peer]]:
    """Starts processes; those that are left at the end are killed."""
    started: list[Peer] = []
    try:
        for _ in range(count):
            started.append(Peer())
        yield started
    except BaseException:
        for peer in started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(peer.pid, signal.SIGKILL)
        raise
    finally:
        for peer in started:
            peer.end()


def _serve(told: Connection) -> None:
    """Runs what it is told until the pipe ends; never returns."""
    try:
        while True:
            try:
                work = told.recv()
            except EOFError:
                break
            try:
                outcome = "returned", work()
            except BaseException as error:
                outcome = "raised", error
            told.send(outcome)
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(0)
