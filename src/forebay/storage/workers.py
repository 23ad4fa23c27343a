"""A few threads for work that other threads must not wait for; they end when they are idle.

A process without such work has none of them. They are daemon threads: when the process ends, their
work may be cut off anywhere, as by a crash.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue

from forebay.storage.filesystem import check_memory

# How long a thread waits for its next job before it ends. Tests wait for its end, with less.
IDLE_SECONDS = 0.2
# What a new thread may need: its stack, and the first memory of its own.
_THREAD_BYTES = 12 << 20


class Workers:
    """Up to `most` threads of one name. Any thread may call it."""

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self.forget()
        _all.add(self)

    def submit(self, job: Callable[[], None]) -> None:
        """Runs a job soon: on an idle thread, on a new one, or when a thread becomes free.

        The job must neither raise nor wait for another one. Raises `MemoryError` if no thread can
        be started; the job is not run then.
        """
        with self._mutex:
            if self._idle:
                self._idle.pop().put(job)
                return
            if self._threads == self._most:
                self._waiting.append(job)
                return
            self._threads += 1
        try:
            # A thread that fails for want of memory as it begins leaves its starter waiting for
            # ever: find out before.
            check_memory(_THREAD_BYTES)
            threading.Thread(target=self._work, args=(job,), name=self._name, daemon=True).start()
        except (MemoryError, RuntimeError) as error:
            with self._mutex:
                self._threads -= 1
            raise MemoryError("no thread can be started") from error

    def forget(self) -> None:
        """Starts over in the child of a fork, which has no threads."""
        self._mutex = threading.Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        # Where the idle threads get their next job.
        self._idle: list[SimpleQueue[Callable[[], None]]] = []
        self._threads = 0

    def _work(self, first: Callable[[], None]) -> None:
        inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        inbox.put(first)
        del first
        while True:
            try:
                job = inbox.get(timeout=IDLE_SECONDS)
            except Empty:
                with self._mutex:
                    if inbox in self._idle:
                        self._idle.remove(inbox)
                        self._threads -= 1
                        return
                # A job arrived just now.
                continue
            job()
            # What the job refers to must not be kept alive while this thread is idle.
            del job
            with self._mutex:
                if self._waiting:
                    inbox.put(self._waiting.popleft())
                else:
                    self._idle.append(inbox)


_all: weakref.WeakSet[Workers] = weakref.WeakSet()


def _forget_all() -> None:
    for workers in list(_all):
        workers.forget()


os.register_at_fork(after_in_child=_forget_all)
