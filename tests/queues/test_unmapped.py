"""Queues without mapped memory, where a store into a full disk would kill the process."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from forebay import Fifo
from tests.crash.forgetful import ForgetfulFilesystem
from tests.kinds import KINDS
from tests.queues.helpers import numbered

MAPPING = ["log", "fifo", "deadline"]
WEAK = ["interval", "os"]


def unmapped() -> ForgetfulFilesystem:
    filesystem = ForgetfulFilesystem(seed=1)
    filesystem.maps = False
    return filesystem


@pytest.mark.parametrize("sync", WEAK)
@pytest.mark.parametrize("kind", MAPPING)
def test_a_disk_that_copies_on_write_is_never_mapped_and_a_kill_loses_nothing(
    kind: str, sync: str
) -> None:
    filesystem = unmapped()
    case = KINDS[kind]
    queue = case.queue("/q", filesystem=filesystem, sync=sync, **case.small)
    for value in numbered(30):
        case.put(queue, value)
    case.put_many(queue, numbered(20, first=30))

    killed = filesystem.kill()
    queue.close()

    with case.queue("/q", filesystem=killed, sync=sync, **case.small) as queue:
        assert case.drain(queue) == numbered(50)


@pytest.mark.parametrize("kind", MAPPING)
def test_the_option_uses_no_staging_buffer_on_any_disk(kind: str) -> None:
    filesystem = ForgetfulFilesystem(seed=1)
    case = KINDS[kind]

    with case.queue("/q", filesystem=filesystem, sync="os", mapped=False, **case.small) as queue:
        for value in numbered(30):
            case.put(queue, value)
        names = {path.rpartition("/")[2] for path in filesystem.files()}

    assert "staging" not in names


def open_fifo(filesystem: ForgetfulFilesystem, **options: Any) -> Fifo:
    return Fifo("/q", filesystem=filesystem, sync="os", mapped=False, background=False, **options)


@pytest.mark.slow
def test_what_was_popped_or_taken_stays_gone_after_a_kill_and_what_is_lent_comes_back() -> None:
    filesystem = unmapped()
    fifo = open_fifo(filesystem)
    fifo.push_many(numbered(20))
    popped = [fifo.pop(), *fifo.pop_many(3)]
    with fifo.take() as entry:
        popped.append(entry.value)
    with fifo.take():
        killed = filesystem.kill()
    fifo.close()

    assert popped == numbered(5)
    with open_fifo(killed) as fifo:
        assert fifo.pop_many(100) == numbered(15, first=5)


@pytest.mark.slow
def test_a_pop_that_cannot_be_noted_takes_nothing() -> None:
    filesystem = unmapped()
    fifo = open_fifo(filesystem)
    fifo.push_many(numbered(20))
    first = fifo.pop()
    fifo.pop()
    filesystem.fail_at(1, errno.ENOSPC)

    with pytest.raises(OSError, match="No space"):
        fifo.pop()

    filesystem.heal()
    killed = filesystem.kill()
    fifo.close()
    with open_fifo(killed) as fifo:
        assert (first, fifo.pop()) == (numbered(1)[0], numbered(3)[2])
