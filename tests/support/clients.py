"""Processes that use a shared queue beside the test, told what to do over a pipe.

Each is a real process: forked, so that it may run what a test defines, or a program of its own.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

_LENGTH = struct.Struct(">I")
# This process's ends of the pipes to all peers.
_ends: set[int] = set()


class Peer:
    """A forked process that runs functions one after another and returns what they return."""

    def __init__(self) -> None:
        there, self._requests = os.pipe()
        self._results, back = os.pipe()
        _ends.update((self._requests, self._results))
        self.pid = os.fork()
        if self.pid == 0:
            # Also those of earlier ones, which end when nobody else holds their pipe.
            for descriptor in _ends:
                os.close(descriptor)
            _serve(there, back)
        os.close(there)
        os.close(back)
        self._ended = False

    def begin(self, work: Callable[[], Any]) -> None:
        """Has it run a function, which was defined before the fork or is pickled by name."""
        _write(self._requests, work)

    def result(self) -> Any:
        """Returns what the function returned; raises what it raised."""
        outcome, value = _read(self._results)
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
            _close(self._requests)
            self._wait()

    def _wait(self) -> None:
        self._ended = True
        os.waitpid(self.pid, 0)
        for descriptor in {self._requests, self._results} & _ends:
            _close(descriptor)


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


def _close(descriptor: int) -> None:
    _ends.discard(descriptor)
    os.close(descriptor)


def _serve(requests: int, results: int) -> None:
    """Runs what it is told until the pipe ends; never returns."""
    try:
        while True:
            try:
                work = _read(requests)
            except EOFError:
                break
            try:
                outcome = "returned", work()
            except BaseException as error:
                outcome = "raised", error
            _write(results, outcome)
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(0)


def _write(descriptor: int, value: object) -> None:
    data = pickle.dumps(value)
    data = _LENGTH.pack(len(data)) + data
    while data:
        data = data[os.write(descriptor, data) :]


def _read(descriptor: int) -> Any:
    (size,) = _LENGTH.unpack(_read_exactly(descriptor, _LENGTH.size))
    return pickle.loads(_read_exactly(descriptor, size))


def _read_exactly(descriptor: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = os.read(descriptor, size - len(data))
        if not more:
            raise EOFError
        data += more
    return data
