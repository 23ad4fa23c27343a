"""The heap and the table of keys, against the heap and the dictionary of Python."""

from __future__ import annotations

import heapq

from hypothesis import given
from hypothesis import strategies as st

from forebay.kernels.deadline import KeyHeap
from forebay.queues.deadline.schedule import KeyTable, Leases

LARGE = 2**64 - 1
# Few of them, so that they meet.
deadlines = st.sampled_from((0, 1, 2, 2**47, 2**48 - 1))
ids = st.one_of(st.integers(0, 200), st.sampled_from((2**63, LARGE)))
keys = st.tuples(deadlines, ids)


@given(st.lists(st.one_of(st.none(), st.tuples(deadlines, ids, st.integers(0, LARGE)))))
def test_a_heap_gives_the_lowest_key(steps: list[tuple[int, int, int] | None]) -> None:
    heap, expected = KeyHeap(), list[tuple[int, int, int]]()
    for step in [*steps, *[None] * len(steps)]:
        if step is not None:
            heap.push(*step)
            heapq.heappush(expected, step)
        elif expected:
            lowest = expected[0][:2]
            assert (heap.deadline, heap.id) == lowest
            # Among equal keys any tag may be the first.
            expected.remove((*lowest, heap.tag))
            heapq.heapify(expected)
            heap.pop()
        assert heap.count == len(expected)


@given(st.lists(keys, max_size=300), st.booleans())
def test_a_table_finds_what_was_put_in_and_not_taken_out(
    steps: list[tuple[int, int]], dense: bool
) -> None:
    table, expected = KeyTable(dense), dict[tuple[int, int], int]()
    for key in steps:
        assert table.find(*key) == expected.get(key, -1)
        if key in expected:
            table.remove(expected.pop(key))
        else:
            expected[key] = table.insert(*key, 1)
        assert table.count == len(expected) == len(set(expected.values()))
    assert {key: table.find(*key) for key in expected} == expected


def test_a_row_that_is_free_is_used_again() -> None:
    table = KeyTable()
    rows = [table.insert(1, id, 1) for id in range(1000)]
    for row in rows[::2]:
        table.remove(row)
    for id in range(2000, 2500):
        table.insert(1, id, 1)

    assert (table.used, table.count) == (1000, 1000)
    assert all(table.find(1, id) >= 0 for id in (*range(1, 1000, 2), *range(2000, 2500)))


def test_a_lease_ends_when_its_time_is_up_or_its_item_is_gone() -> None:
    leases = Leases()
    for id in range(4):
        leases.lend(10, id, 1, 100 + id)
    leases.extend(10, 0, 500)
    leases.end(10, 1)

    leases.expire(103)

    assert [leases.holds(10, id, 1) for id in range(4)] == [True, False, False, False]
    assert (leases.working, leases.settle(), leases.returned.id) == (1, True, 2)
    assert not leases.holds(10, 0, 2)
    assert (leases.lowest(), leases.due(9), leases.due(10)) == ((10, 0), 0, 1)
    leases.lend(10, 2, 2, 900)
    assert (leases.settle(), leases.returned.id, leases.next_end()) == (True, 3, 500)


def test_leases_that_were_over_early_do_not_pile_up() -> None:
    leases = Leases()
    for id in range(100_000):
        leases.lend(10, id, 1, 10**9 + id)
        leases.end(10, id)
    leases.lend(10, 7, 1, 50)

    leases.expire(50)

    assert (leases.count, leases.working, leases.used) == (1, 0, 1)
    end = leases.next_end()
    assert end is None or end > 10**9 + 90_000
