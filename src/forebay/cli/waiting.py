"""Waits until the files of a queue change, or until no process owns it; it is woken, not polled.

A change of the files wakes by inotify: an owner whose records are in mapped memory still writes its
marks to the files. The end of an owner wakes a blocked `flock`, and nothing else.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

from forebay.storage.filesystem import DiskFilesystem, Watcher

# Between two looks where nothing wakes: the system has no watch left, or the lock is another
# program's.
LOOK_SECONDS = 0.1
_ALARM_SECONDS = 0.1
# 0 would be no alarm.
_ALARM_SECONDS_MIN = 0.001
_WAIT_SECONDS_MAX = 86_400.0


class FileWatch:
    """Waits for changes of the files in a directory since it was made, or since the last wait."""

    def __init__(self, path: str) -> None:
        self._watcher = Watcher.create()
        directory = DiskFilesystem().open_directory(path)
        try:
            if self._watcher is not None and self._watcher.add(directory, writes=True) is None:
                self.close()
        finally:
            directory.close()

    def wait(self, seconds: float | None = None) -> None:
        """Returns after a change, or after some seconds. A signal handler may raise out of it."""
        if self._watcher is None:
            time.sleep(LOOK_SECONDS if seconds is None else min(seconds, LOOK_SECONDS))
            return
        poll = select.poll()
        poll.register(self._watcher.descriptor, select.POLLIN)
        poll.poll(None if seconds is None else 1000 * min(seconds, _WAIT_SECONDS_MAX))
        self._watcher.read()

    def close(self) -> None:
        """Ends the watch."""
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None


def wait_for_lock(path: str, seconds: float) -> bool:
    """Returns when no process owns a queue, or after some seconds; False if none did before.

    It takes the lock for a moment and drops it again, so call it only to take the lock next.
    Outside the main thread, which alone gets signals, it returns after a short while.
    """
    if threading.current_thread() is not threading.main_thread():
        time.sleep(min(seconds, LOOK_SECONDS))
        return True
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with contextlib.suppress(_TimeIsUp), _alarm(seconds):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        return True
    else:
        return False
    finally:
        os.close(descriptor)


class _TimeIsUp(Exception):
    """The alarm has rung."""


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raises `_TimeIsUp` after some seconds: only a signal ends a blocked `flock`."""

    def ring(number: int, frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise _TimeIsUp

    before = signal.signal(signal.SIGALRM, ring)
    try:
        # Repeated until it is heard: the first one may come just before the block waits.
        first = min(max(seconds, _ALARM_SECONDS_MIN), _WAIT_SECONDS_MAX)
        signal.setitimer(signal.ITIMER_REAL, first, _ALARM_SECONDS)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
