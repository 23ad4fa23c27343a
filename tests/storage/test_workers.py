"""Threads for work that others must not wait for."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator

import pytest

from forebay.storage.commit import GroupCommit, Ticket
from forebay.storage.workers import Workers


@pytest.fixture
def no_memory() -> Iterator[None]:
    """Leaves this process no address space for a new thread."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.usefixtures("no_memory")
def test_without_memory_for_a_thread_a_job_is_refused_and_not_run() -> None:
    workers = Workers("test", 2)
    ran: list[str] = []

    for _ in range(3):
        with pytest.raises(MemoryError, match="no thread"):
            workers.submit(lambda: ran.append("refused"))

    assert ran == []


def test_jobs_run_again_once_there_is_memory(no_memory: None) -> None:
    workers = Workers("test", 1)
    done = threading.Event()
    with pytest.raises(MemoryError):
        workers.submit(done.set)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    workers.submit(done.set)

    assert done.wait(10)


@pytest.mark.usefixtures("no_memory")
def test_without_memory_for_a_thread_the_caller_of_a_commit_waits_for_it() -> None:
    commit = GroupCommit(lambda: 1, 0)
    told: list[BaseException | None] = []

    Ticket(commit, 1).notify(told.append)

    assert told == [None]
