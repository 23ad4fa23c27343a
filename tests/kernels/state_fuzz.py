"""Random calls of the compiled state of queues: `python -m tests.kernels.state_fuzz SEED ROUNDS`.

Made for a build under AddressSanitizer, as `scan_fuzz`: buffers end where their bytes end, so that
a read or a write past one ends the process. The windows that entries are taken from, the records
that are replayed and the blocks of runs are harmed; the calls are those that the queues make.
"""

from __future__ import annotations

import contextlib
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from forebay.errors import LeaseLost
from forebay.kernels import deadline, entry
from forebay.queues.deadline import schedule
from forebay.queues.fifo.staged import HEAD_FIXED_BYTES, LENT_BYTES, HeadCursor, StagedEntries
from forebay.queues.log.staged import StagedFrames
from tests.kernels.scan_fuzz import ALL, SEED, VERSION, Random, body_of, exact, harmed, values_of

NOW_MS = 1_700_000_000_000
# A slot of the head, and the check at its end.
SLOT_BYTES, CHECK_BYTES = 4096, 4
LENT_MAX = (SLOT_BYTES - HEAD_FIXED_BYTES - CHECK_BYTES) // LENT_BYTES
LAST_KEY = (2**48, 0)


def run(seed: int, rounds: int) -> int:
    """Does so many rounds of each; returns how many that were."""
    chance = Random(seed)
    for _ in range(rounds):
        for use in USES:
            use(chance)
    return rounds * len(USES)


def room_of(size: int) -> Any:
    """Returns memory to write to, in place of the mapped memory of a queue."""
    return exact(bytes(size))


def stage_frames(chance: Random) -> None:
    size = chance.choice((8, 20, 60, 300))
    start = chance.choice((0, 8))
    clock = chance.choice((None, lambda: NOW_MS))
    staged = StagedFrames(threading.Lock(), clock, acknowledges=chance.random() < 0.8)
    staged.use_buffer(room_of(size))
    epoch_ms = int(time.time() * 1000) - 1_000 if clock is None else NOW_MS
    staged.begin(start, size, 0, chance.randrange(9), SEED, epoch_ms)
    for value in values_of(chance):
        if staged.append(value) is None and staged.put(value) is None and chance.random() < 0.5:
            staged.rewind(start)
    staged.finish()
    staged.append(b"")
    staged.release_buffer()


def push_and_pop(chance: Random) -> None:
    """Entries in memory, popped from there."""
    lock, clock = threading.Lock(), chance.choice((None, lambda: NOW_MS))
    size = chance.choice((8, 40, 100, 900))
    memory = room_of(size)
    staged = StagedEntries(lock, clock, 0, VERSION, acknowledges=chance.random() < 0.8)
    staged.use(memory)
    staged.begin(chance.choice((0, 8)), size, chance.choice((ALL, 2)))
    cursor = made_cursor(chance, lock, clock)
    cursor.open(memory, 0, staged)
    for value in values_of(chance):
        if staged.push(value, chance.choice((0, 1, 2**32 - 1))) is None:
            staged.put(value, 0)
        if chance.random() < 0.5:
            use_cursor(chance, cursor)
    use_cursor(chance, cursor)
    cursor.leave_memory()
    staged.release_buffer()
    cursor.release_slots()


def pop_from_the_tape(chance: Random) -> None:
    """Harmed entries on the tape, popped from there."""
    values = values_of(chance)
    buffer = bytearray(sum(map(len, values)) + entry.METADATA_BYTES * len(values))
    entry.encode(values, 0, len(values), buffer, 0, 1000, 0, chance.choice((0, 60)), VERSION)
    data = exact(harmed(chance, bytes(buffer)))
    cursor = made_cursor(chance, threading.Lock(), lambda: 2_000)
    # The head may be anywhere from the beginning of the window on, also past its end.
    cursor.place(chance.choice((0, 0, 0, 1, 33, 5_000)), 0, 0)
    cursor.open(data, 0, None)
    for _ in range(len(values) + 1):
        use_cursor(chance, cursor)
    cursor.release_slots()


def made_cursor(chance: Random, lock: Any, clock: Any) -> HeadCursor:
    slots = room_of(2 * SLOT_BYTES)
    cursor = HeadCursor(slots, 1_000, chance.randrange(3), lock, clock, 0, VERSION)
    cursor.lent = bytes(LENT_BYTES * chance.choice((0, 0, 1, LENT_MAX)))
    return cursor


def use_cursor(chance: Random, cursor: HeadCursor) -> None:
    calls: list[Callable[[], object]] = [
        cursor.pop,
        cursor.skip_expired,
        cursor.next_expiry_ms,
        cursor.next_entry,
        cursor.save,
        cursor.state,
        lambda: cursor.take_many(3),
    ]
    chance.choice(calls)()


def replay_records(chance: Random) -> None:
    """Harmed records of a log, in memory, and from there into blocks and into another log."""
    memory = schedule.Memory()
    schedule.replay(memory, records_of(chance))
    memory.show_all()
    for state in (schedule.ITEM, schedule.TOMBSTONE, schedule.MARK):
        rows, at = memory.sorted(state), 0
        builder = deadline.BlockBuilder(chance.choice((100, 4000)))
        while (at := memory.fill(rows, at, builder)) < len(rows):
            builder.take()
    row, room = 0, room_of(chance.choice((8, 60, 500)))
    with contextlib.suppress(ValueError):
        while row < memory.used:
            row, _ = schedule.put_records(memory, row, room, chance.choice((8, len(room))))
    live_items(chance, memory)


def records_of(chance: Random) -> list[Any]:
    values = values_of(chance)
    times = [chance.choice((5, 7, chance.getrandbits(47))) for _ in values]
    buffer = bytearray(deadline.BATCH_BYTES + sum(map(len, values)) + 25 * len(values))
    deadline.encode_fresh(values, times, 0, len(values), buffer, 7, 9, 0, SEED)
    key = struct.pack("<IHQ", 5, 0, chance.choice((7, 8)))
    others = [b"\2" + key + bytes(17) + struct.pack("<HI", 2, 3) + b"whyval", b"\3" + key]
    others.append(b"\4" + key + bytes(10))
    chance.shuffle(others)
    records = harmed(chance, bytes(buffer[deadline.BATCH_BYTES :]) + b"".join(others))
    batch = bytearray(deadline.BATCH_BYTES) + records
    deadline.seal_batch(batch, len(records), 0, SEED)
    found: list[Any] = []
    deadline.scan_batches(exact(bytes(batch)), 0, 0, SEED, ALL, found)
    return found


def live_items(chance: Random, memory: schedule.Memory) -> None:
    """What is live in harmed blocks and in memory."""
    with contextlib.suppress(ValueError):
        view = deadline.RunView()
        for kind in (deadline.ITEMS, deadline.TOMBSTONES, deadline.MARKS):
            blocks = [deadline.Block(*body_of(chance, 100 * at)) for at in range(2)]
            load = iter([*blocks, None, None]).__next__
            view.add(deadline.Cursor(kind, load, 0, 0))
        live = schedule.LiveItems(view, [memory], (0, 0), LAST_KEY, [])
        while live.items(5):
            pass


def change_a_schedule(chance: Random) -> None:
    """Changes of a deadline queue, in logs that are soon full."""
    hides, revocable = chance.random() < 0.5, chance.random() < 0.5
    memory = schedule.Memory()
    changed = schedule.Schedule(
        memory,
        deadline.RunView(),
        [],
        lambda *key: memory.item(memory.find(*key), 0),
        refuse,
        next_id=1,
        items_max=chance.choice((3, 50)),
        attempts_max=chance.choice((0, 2)),
        hides=hides,
        now_ms=lambda: NOW_MS,
    )
    changed.ids_end = 1_000
    items: list[schedule.DeadlineItem] = []
    for _ in range(12):
        if chance.random() < 0.4:
            size = chance.choice((8, 40, 200, 2_000))
            changed.open(room_of(size), 0, size, 0, SEED, 0, revocable)
        changed.show(10**6)
        with contextlib.suppress(LeaseLost):
            change(chance, changed, items)
    if revocable:
        changed.undo()
    changed.close()


def change(chance: Random, changed: schedule.Schedule, items: list[schedule.DeadlineItem]) -> None:
    values = values_of(chance)
    item = chance.choice(items) if items else None
    delay = chance.choice((0, 0, 5))
    kind = chance.randrange(7 if item is not None else 3)
    if kind == 0:
        changed.enqueue(b"".join(values), delay, None, None)
    elif kind == 1 and values:
        changed.enqueue_many(values, delay, None, None)
    elif kind <= 2:
        found = changed.dequeue(chance.choice((1, 9)), chance.choice((1, 60_000)))
        items += found if found is not schedule.FULL else []
    elif item is not None:
        change_an_item(chance, changed, item, values)


def change_an_item(
    chance: Random,
    changed: schedule.Schedule,
    item: schedule.DeadlineItem,
    values: list[bytes],
) -> None:
    calls: list[Callable[[], object]] = [
        lambda: changed.release([item]),
        lambda: changed.requeue(item, b"".join(values), 0, None, None, "why" * len(values)),
        lambda: changed.bury(item, "why" * len(values)),
        lambda: changed.touch(item, 5),
        lambda: changed.give_back([item]),
    ]
    chance.choice(calls)()


def refuse(*_: object) -> NoReturn:
    raise AssertionError("nothing is damaged")


USES: tuple[Callable[[Random], None], ...] = (
    stage_frames,
    push_and_pop,
    pop_from_the_tape,
    replay_records,
    change_a_schedule,
)

if __name__ == "__main__":
    run(int(sys.argv[1]), int(sys.argv[2]))
