"""Proves where every record of a queue is: delivered, set aside, waiting, dropped or damaged.

Reads the state of the forwarder, the log of what was set aside, and the queue itself; takes no lock
and changes nothing. The counts of the state are compared with what can be counted otherwise: with
offsets, with the events that are still in the files, with the records that were set aside.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import forebay
from forebay.damage import Damage
from forebay.errors import NotAQueue
from forebay.forward.state import Settled, read_state, refused_offsets
from forebay.queues.kinds import describe, sure_kind_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Where the records are. `faults` says what does not add up; nothing does if it is empty.

    - `records`: all that there were since the forwarder began, counted without its counts; None if
      they can no longer be counted, because segments were removed.
    - `sending`: of those that wait, how many may be on their way.
    - `notes`: what a reader should know.
    """

    queue: str
    state: str
    delivered: int
    set_aside: int
    waiting: int
    dropped: int
    damaged: int
    sending: int
    records: int | None
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether all of it adds up."""
        return not self.faults


@dataclass(slots=True)
class _Count:
    """What was counted in the queue: from where the forwarder began to its place, and after it."""

    settled: int | None
    waiting: int
    faults: list[str]
    notes: list[str]


def prove(queue: str, state: str, *, key_file: str | None = None) -> Proof:
    """Returns where the records of a queue are, by the state of its forwarder."""
    settled = read_state(state)
    if settled is None:
        raise NotAQueue(f"{state}: no forwarder has been here")
    kind = sure_kind_of(queue)
    if kind.name == "log":
        count = _count_log(queue, settled)
    elif kind.name == "fifo":
        count = _count_fifo(queue, settled)
    elif kind.name == "beats":
        count = _count_beats(queue, settled, key_file)
    else:
        raise NotAQueue(f"{queue} is {kind.title}, which is not forwarded")
    if count.settled is not None and count.settled != settled.accounted:
        count.faults.append(
            f"{count.settled} records lie before the place, and {settled.accounted} are counted"
        )
    _compare_set_aside(state, settled, count)
    return Proof(
        queue=queue,
        state=state,
        **{
            name: getattr(settled, name)
            for name in ("delivered", "set_aside", "dropped", "damaged")
        },
        waiting=count.waiting,
        sending=sum(cut.count for cut in settled.cuts if not cut.settled and not cut.gap),
        records=None if count.settled is None else count.settled + count.waiting,
        faults=tuple(count.faults),
        notes=tuple(count.notes),
    )


def _ahead(settled: Settled) -> int:
    """Returns how many records after the place are settled."""
    return sum(cut.count for cut in settled.cuts if cut.settled and cut.numbered)


def _count_log(queue: str, settled: Settled) -> _Count:
    with forebay.LogReader(queue) as reader:
        ahead, faults = _ahead(settled), []
        if reader.tail is not None and reader.tail.queue_id != settled.queue_id:
            faults.append(f"the state belongs to queue {settled.queue}, not to this one")
        if settled.place > reader.end:
            faults.append(f"the place {settled.place} is past the end {reader.end}")
        waiting = max(0, reader.end - settled.place - ahead)
        if reader.begin > settled.place:
            gone = reader.begin - settled.place
            note = f"{gone} of those that wait were dropped; the forwarder has yet to find that"
            return _Count(settled.place - settled.start + ahead, waiting, faults, [note])
        return _Count(settled.place - settled.start + ahead, waiting, faults, [])


def _count_fifo(queue: str, settled: Settled) -> _Count:
    info = describe(queue)
    begin = dataclasses.asdict(info)["begin"]
    with forebay.FifoReader(queue, salvage=True) as reader:
        ids = [entry.id for entry in reader]
    # A crash came between the slot and their removal.
    removable = sum(id < settled.place for id in ids)
    left = begin - settled.start + removable + _ahead(settled)
    faults, notes = [], []
    if left < settled.accounted:
        faults.append(f"{left} entries have left, and {settled.accounted} are accounted for")
    elif left > settled.accounted:
        notes.append(f"{left - settled.accounted} entries were taken by other programs, or expired")
    return _Count(settled.accounted, len(ids) - removable - _ahead(settled), faults, notes)


def _count_beats(queue: str, settled: Settled, key_file: str | None) -> _Count:
    from forebay.queues.beats.place import offset_of

    before = after = 0
    with forebay.BeatsReader(queue, salvage=True, key_file=key_file) as reader:
        place = reader.place()
        mine = max(settled.place, offset_of(place.segment, place.frame_index))
        first = min(reader.numbers, default=0)
        for segment in reader.numbers:
            for item in reader.scan_segment(segment):
                index = item.offset or 0 if isinstance(item, Damage) else item.index
                count = (item.count or 1) if isinstance(item, Damage) else len(item.payloads)
                if isinstance(item, Damage) and (item.torn or item.count == 0):
                    continue
                number = offset_of(segment, index)
                passed = min(max(mine - number, 0), count)
                skipped = min(max(settled.start - number, 0), count)
                before, after = before + passed - min(skipped, passed), after + count - passed
    ahead = _ahead(settled)
    if settled.start < offset_of(first, 0):
        note = "segments were removed since it began: what was in them cannot be counted again"
        return _Count(None, after - ahead, [], [note])
    return _Count(before + ahead, after - ahead, [], [])


def _compare_set_aside(state: str, settled: Settled, count: _Count) -> None:
    offsets = refused_offsets(state)
    if len(set(offsets)) != len(offsets):
        count.faults.append(f"{len(offsets) - len(set(offsets))} records were set aside twice")
    # What a crash left without a slot that says so is still counted as waiting.
    sure = len(offsets[: settled.set_aside_end])
    open_ends = [cut for cut in settled.cuts if not cut.settled]
    unsure = sum(any(cut.first <= each < cut.end for cut in open_ends) for each in offsets)
    if not sure - unsure <= settled.set_aside <= len(offsets):
        count.faults.append(
            f"{len(offsets)} records are in the log of what was set aside, and {settled.set_aside} "
            "are counted"
        )
