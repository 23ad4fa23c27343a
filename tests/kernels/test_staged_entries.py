"""Pushes into memory and pops from it: the bytes of the tape, and a head that verifies."""

from __future__ import annotations

import threading

from forebay.formats.entry import encode_entry
from forebay.kernels.entry import Entry, scan
from forebay.queues.fifo.head import Head, Lent
from forebay.queues.fifo.staged import HeadCursor, StagedEntries
from tests.formats.entries import VERSION, make_id

NOW_MS = 1_700_000_000_000
ALL = 2**62


class Now:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.ms = NOW_MS

    def __call__(self) -> int:
        return self.ms


def make(now: Now, *, size: int = 4_000) -> tuple[bytearray, StagedEntries, bytearray, HeadCursor]:
    lock = threading.Lock()
    memory, slots = bytearray(size), bytearray(8_192)
    pusher = StagedEntries(lock, now, 0, VERSION, acknowledges=True)
    pusher.use(memory)
    return memory, pusher, slots, HeadCursor(slots, 1_000, 0, lock, now, 0, VERSION)


def newest(slots: bytearray) -> Head:
    heads = [Head.decode(bytes(slots[start:])) for start in (0, 4_096)]
    return max((head for head in heads if head is not None), key=lambda head: head.sequence)


def test_a_push_is_the_exact_bytes_of_an_entry() -> None:
    memory, pusher, _, _ = make(Now())
    pusher.empty(7, 0)
    pusher.begin(100, 4_000, ALL)

    pushed = [pusher.push(b"one", 60), pusher.push(b"", 0)]

    ids = [make_id(NOW_MS, 7), make_id(NOW_MS, 8)]
    assert pushed == ids
    entries = [Entry(7, ids[0], 60, b"one"), Entry(8, ids[1], 0, b"")]
    expected = b"".join(encode_entry(entry, VERSION) for entry in entries)
    assert memory[100 : pusher.position] == expected


def test_a_push_without_room_or_of_something_else_gives_nothing() -> None:
    _, pusher, _, _ = make(Now())

    before = pusher.push(b"x", 0)
    pusher.begin(0, 40, ALL)

    assert before is None
    assert pusher.push(b"nine long", 0) is None
    assert pusher.push("text", 0) is None
    assert pusher.push(b"eight by", 2**32 - 1) is not None
    pusher.finish()
    assert pusher.push(b"", 0) is None


def test_pops_follow_the_pushes_and_note_each_in_a_slot() -> None:
    now = Now()
    memory, pusher, slots, popper = make(now)
    pusher.begin(96, 4_000, ALL)
    popper.place(5_000, 0, 0)
    popper.open(memory, 5_000 - 96, pusher)
    pusher.push(b"one", 0)

    first, nothing = popper.pop(), popper.pop()
    pusher.push(b"two", 0)
    last = pusher.push(b"three", 0)
    rest = popper.take_many(5)

    assert (first, nothing, rest) == (b"one", None, [b"two", b"three"])
    head = newest(slots)
    assert (head.position, head.number, head.last_id) == (5_000 + 3 * 32 + 11, 3, last)
    assert (head.file_bytes, head.sequence, head.version) == (1_000, 2, VERSION)
    assert popper.state() == (2, head.position, 3, last, 0, 0, 0)


def test_expired_entries_are_passed_over_and_counted() -> None:
    now = Now()
    memory, pusher, slots, popper = make(now)
    pusher.begin(0, 4_000, ALL)
    popper.open(memory, 0, pusher)
    for ttl in (1, 2, 0, 1):
        pusher.push(b"%d" % ttl, ttl)
    now.ms += 1_000

    skipped = popper.skip_expired()
    popped = popper.take_many(9)

    assert (skipped, popper.skip_expired()) == (True, False)
    assert popped == [b"2", b"0"]
    assert (popper.expired, newest(slots).expired, popper.number) == (2, 2, 4)


def test_what_is_held_or_closed_gives_nothing_and_keeps_its_place() -> None:
    memory, pusher, _, popper = make(Now())
    pusher.begin(0, 4_000, ALL)
    popper.open(memory, 0, pusher)
    pusher.push(b"x", 0)

    popper.held = True
    held = popper.pop()
    popper.held = False
    popper.close()

    assert (held, popper.pop(), popper.position) == (None, None, 0)


def test_what_is_lent_out_is_noted_with_the_place() -> None:
    memory, pusher, slots, popper = make(Now())
    pusher.begin(0, 4_000, ALL)
    popper.open(memory, 0, pusher)
    pusher.push(b"lent", 5)

    found = popper.next_entry()
    lent = Lent(0, 0, make_id(NOW_MS, 0), attempts=3)
    popper.lent = lent.encode()
    popper.save()

    assert found == (b"lent", lent.id, 5, 0)
    assert newest(slots).lent == (lent,)
    assert popper.next_entry() is None


def test_a_window_of_bytes_ends_where_an_entry_is_cut_off_or_bad() -> None:
    memory, pusher, _, popper = make(Now())
    pusher.begin(0, 4_000, ALL)
    for value in (b"one", b"two", b"three"):
        pusher.push(value, 0)
    data = bytes(memory[: pusher.position])
    assert len(scan(data, 0, 0, 0, 9, VERSION)[0]) == 3

    popper.open(data[:-1], 0, None)

    assert popper.take_many(9) == [b"one", b"two"]
    assert (popper.position, popper.number) == (70, 2)


def test_a_push_notes_how_many_there_are_and_ends_at_the_number_to_stop_at() -> None:
    memory, pusher, _, _ = make(Now())
    pusher.empty(7, 0)
    pusher.begin(96, 4_000, 9)
    notes = [bytes(memory[88:96])]

    pushed = []
    for value in (b"one", b"two", b"three"):
        pushed.append(pusher.push(value, 0) is not None)
        notes.append(bytes(memory[88:96]))

    assert pushed == [True, True, False]
    counts = [int.from_bytes(note[:4], "little") for note in notes]
    complements = [0xFFFFFFFF - int.from_bytes(note[4:], "little") for note in notes]
    assert counts == complements == [0, 1, 2, 2]
