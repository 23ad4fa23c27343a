"""What is in memory of a deadline queue: items, tombstones, marks, and the way to runs and logs."""

from __future__ import annotations

from random import Random

import pytest

from forebay.damage import Damage
from forebay.formats.deadline.run_encoder import RunEncoder
from forebay.formats.deadline.runs import Run
from forebay.formats.deadline.wal import Batches, Header, scan_rows
from forebay.kernels.deadline import Block, BlockBuilder, seal_batch
from forebay.queues.deadline.schedule import (
    ITEM,
    MARK,
    TOMBSTONE,
    Memory,
    put_records,
    record_size,
    replay,
)

BURIED = 1 << 47
NOW_MS = 1_700_000_000_000


def filled() -> Memory:
    memory = Memory()
    memory.add_new(30, 1, 5, b"late", True)
    memory.add_new(10, 2, 5, b"early", True)
    memory.add(20, 3, 5, 6, 2, b"", b"requeued")
    memory.add(BURIED | 40, 4, 5, 7, 3, b"no good", b"buried")
    memory.kill(9, 100)
    memory.mark(8, 101, 4, 77)
    return memory


def test_items_and_their_tombstones_leave_nothing() -> None:
    memory = Memory()
    memory.add_new(1, 1, 0, b"a", True)
    memory.add_new(2, 2, 0, b"b", True)
    memory.mark(1, 1, 1, 9)
    memory.kill(1, 1)
    memory.kill(2, 2)

    assert (memory.count, memory.bytes, memory.pending, memory.settle()) == (0, 0, 0, False)


def test_counts_say_what_it_adds_to_the_queue() -> None:
    memory = filled()

    assert (memory.pending, memory.buried, memory.count) == (2, 1, 6)
    assert [memory.due(now) for now in (8, 9, 10, 20, 30, 10**13)] == [0, -1, 0, 1, 2, 2]
    assert [memory.state(*key) for key in ((30, 1), (9, 100), (8, 101), (1, 1))] == [
        ITEM,
        TOMBSTONE,
        MARK,
        0,
    ]


def test_only_what_is_shown_is_given_out_and_nothing_that_is_buried() -> None:
    memory = filled()
    memory.show(20, 3)
    memory.show(BURIED | 40, 4)
    order = []
    while memory.settle():
        order.append(memory.order.id)
        memory.order.pop()

    assert order == [2, 3, 1]


def test_a_mark_that_came_before_its_item_counts() -> None:
    memory = Memory()
    memory.mark(10, 1, 3, 50)
    row = memory.add(10, 1, 5, 0, 1, b"", b"value")

    assert memory.row(row) == (10, 1, 0, 5, 0, 3, b"", b"value")
    assert memory.add(10, 1, 5, 0, 1, b"", b"again") == -1


def test_rows_go_into_blocks_by_key() -> None:
    memory = filled()
    builder = BlockBuilder(10**6)
    bodies = {}
    for state in (ITEM, TOMBSTONE, MARK):
        rows = memory.sorted(state)
        assert memory.fill(rows, 0, builder) == len(rows)
        count = builder.count
        bodies[state] = Block(builder.take(), count)

    assert [bodies[ITEM].row(at) for at in range(4)] == [
        (10, 2, 0, 5, 0, 0, b"", b"early"),
        (20, 3, 0, 5, 6, 2, b"", b"requeued"),
        (30, 1, 0, 5, 0, 0, b"", b"late"),
        (BURIED | 40, 4, 2, 5, 7, 3, b"no good", b"buried"),
    ]
    assert bodies[TOMBSTONE].row(0) == (9, 100, 1, 0, 0, 0, b"", b"")
    assert bodies[MARK].row(0) == (8, 101, 0, 77, 0, 4, b"", b"")


def test_rows_go_into_a_log_and_come_back() -> None:
    memory = filled()
    header = Header(1, bytes(8))
    data, row, number = header.encode(), 0, 0
    while row < memory.used:
        buffer = bytearray(8 + max(60, record_size(memory, row)))
        row, size = put_records(memory, row, buffer, len(buffer))
        seal_batch(buffer, size, number, Batches(header).seed)
        data += buffer[: 8 + size]
        number += 1
    again = Memory()
    for part, _ in scan_rows(data, "log"):
        assert isinstance(part, list)
        replay(again, part)

    assert number > 2
    for state in (ITEM, TOMBSTONE, MARK):
        before = [memory.row(at) for at in memory.sorted(state) if state == ITEM]
        assert [again.row(at) for at in again.sorted(state) if state == ITEM] == before
        assert len(again.sorted(state)) == len(memory.sorted(state))
    assert again.dequeue_count(8, 101) == 4


@pytest.mark.parametrize("state", [ITEM, TOMBSTONE, MARK])
def test_many_blocks_at_once_are_the_bytes_of_one_after_the_other(state: int) -> None:
    memory, draw = Memory(), Random(1)
    for id in range(4000):
        deadline = draw.choice((NOW_MS, BURIED | NOW_MS)) + draw.randrange(10**6)
        if state == ITEM:
            size = draw.choice((0, 10, 300, 9000 if id % 50 == 0 else 40))
            memory.add(deadline, id, NOW_MS - id, NOW_MS, id % 3, b"", draw.randbytes(size))
        elif state == TOMBSTONE:
            memory.kill(deadline, id)
        else:
            memory.mark(deadline, id, 1 + id % 5, NOW_MS)
    rows = memory.sorted(state)
    runs = []
    for at_once in (True, False):
        encoder = RunEncoder(b"saltsalt", block_bytes=4096, id_index=True)
        at = 0
        while at < len(rows):
            if at_once:
                at = encoder.encode_rows(memory, rows, at)
            else:
                at = memory.fill(rows, at, encoder.builder)
            encoder.end_block()
        runs.append(encoder.take() + encoder.finish())

    assert runs[0] == runs[1]
    run = Run.open(lambda at, size: runs[0][at : at + size], len(runs[0]), "run")
    assert run.footer.count == 4000
    assert not [entry for entry in run.scan() if isinstance(entry, Damage)]
