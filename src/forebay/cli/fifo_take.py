"""Takes entries off a fifo: an entry is removed only after it was written to stdout."""

from __future__ import annotations

import contextlib
import time

from forebay import Entry, Fifo, FifoReader
from forebay.cli import exits
from forebay.cli.fifo_printing import entries_text
from forebay.cli.inspection import describe, owner_of
from forebay.cli.interrupts import Interrupted, Interrupts
from forebay.cli.output import write_bytes
from forebay.cli.printing import framing_of
from forebay.errors import Damaged, Empty, Locked

# So many are lent out at a time; the queue's own bound is a little above.
_BATCH_ENTRIES = 100
_LOOK_SECONDS = 0.1


def take_entries(
    path: str, count: int, timeout: float | None, *, framing: str | None, as_json: bool
) -> int:
    """Prints up to `count` entries and removes them; with a timeout it waits for the first.

    It does not own the queue while it waits: nobody could push then.
    """
    framing = framing_of(framing, as_json)
    deadline = time.monotonic() + (timeout or 0)
    with Interrupts() as interrupts:
        try:
            while True:
                interrupts.check()
                late = time.monotonic() >= deadline
                if late or _is_ready(path):
                    with contextlib.nullcontext() if late else contextlib.suppress(Locked):
                        if _take_all(path, count, interrupts, framing, as_json):
                            return exits.OK
                if late:
                    return exits.NOTHING
                time.sleep(_LOOK_SECONDS)
        except Interrupted as stop:
            return stop.code


def _is_ready(path: str) -> bool:
    """Says whether there is an entry, and nobody owns the queue."""
    with FifoReader(path) as reader:
        return len(reader) > 0 and owner_of(reader.path) is None


def _take_all(path: str, count: int, interrupts: Interrupts, framing: str, as_json: bool) -> int:
    """Takes up to `count` entries in batches; gives how many there were."""
    taken = 0
    # A sync for each batch instead of several for each entry: what a power cut in between brings
    # back was printed, so it comes twice and is not lost.
    with Fifo(path, sync="os") as fifo:
        while taken < count:
            interrupts.check()
            number = _take_batch(fifo, min(_BATCH_ENTRIES, count - taken), framing, as_json)
            if not number:
                break
            taken += number
    return taken


def _take_batch(fifo: Fifo, count: int, framing: str, as_json: bool) -> int:
    """Takes one batch; all of it stays if it cannot be written. Gives how many were taken."""
    damaged: Damaged | None = None
    entries: list[Entry] = []
    with contextlib.ExitStack() as lent:
        try:
            while len(entries) < count:
                entries.append(lent.enter_context(fifo.take()))
        except Empty:
            pass
        except Damaged as error:
            damaged = error
        write_bytes(entries_text(entries, framing, as_json=as_json), flush=True)
    fifo.sync()
    if damaged is not None:
        text = f"{describe(damaged.damage)}; it is passed over, the next take goes on behind it"
        raise exits.Failure(text, exits.DAMAGE)
    return len(entries)
