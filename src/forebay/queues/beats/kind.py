"""A Beats queue behind the protocol of all kinds of queue: scan, put and lend.

Its records are lines of JSON, one event each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial

from forebay.clock import SystemClock
from forebay.damage import Damage
from forebay.errors import UndecodableEvent
from forebay.formats.beats.events import encode_event, join_events
from forebay.formats.beats.frames import FRAME_BYTES
from forebay.formats.beats.text import TextDecoder, event_text, parse_event
from forebay.queues.beats.queue import BeatsQueue
from forebay.queues.beats.reader import BeatsReader, Payloads, undecodable
from forebay.queues.shared.rows import Lent, Limits, Rows


def scan(
    path: str, *, unread: bool = False, key_file: str | None = None, salvage: bool = True
) -> Iterator[Rows | Damage]:
    """Yields all events, or the unacknowledged ones, and damage where it occurs between them.

    With `salvage` a segment of another key or of an unknown version is damage too.
    """
    decoder = TextDecoder()
    with BeatsReader(path, key_file=key_file, salvage=salvage) as reader:
        yield from reader.side_damage
        for item in reader.scan(unread=unread):
            if isinstance(item, Damage):
                yield item
            else:
                yield from _rows_of(item, decoder)


def peek(path: str, *, key_file: str | None = None) -> Iterator[Rows | Damage]:
    """Yields the events that come next, without removing them."""
    return scan(path, unread=True, key_file=key_file)


def next_ms(path: str, *, key_file: str | None = None) -> int | None:
    """Returns 0 if there may be an event that is not acknowledged, else None."""
    with BeatsReader(path, key_file=key_file, salvage=True) as reader:
        return 0 if any(True for _ in reader.scan(unread=True)) else None


def limits(queue: BeatsQueue) -> Limits:
    """Returns the limits of a queue; text is longer than what is stored, which `put` checks."""
    return Limits(8 * queue.options.segment_bytes, FRAME_BYTES, queue.options.max_bytes)


def parse(line: bytes) -> bytes | None:
    """Returns the event of a line as it is stored; None for an empty line.

    An event without a time gets the present time. Raises `InvalidEvent` or `RecordTooLarge`.
    """
    if not line.strip():
        return None
    return encode_event(parse_event(line, SystemClock().now_ms() * 1_000_000))


def put(queue: BeatsQueue, values: list[bytes]) -> tuple[None, None]:
    """Puts events that `parse` returned."""
    queue.put_encoded(join_events(values), len(values))
    return None, None


def lender(queue: BeatsQueue) -> Callable[[int], AbstractContextManager[Lent]]:
    """Returns a function that lends the next events; they are acknowledged as the block ends."""
    return partial(_lend, queue)


@contextlib.contextmanager
def _lend(queue: BeatsQueue, count: int) -> Iterator[Lent]:
    batch = queue.read(count)
    texts = [event_text(event).encode() for event in batch]
    yield Lent(_rows(texts, None))
    if texts:
        batch.ack()


def _rows_of(item: Payloads, decoder: TextDecoder) -> Iterator[Rows | Damage]:
    texts: list[bytes] = []
    for number, payload in enumerate(item.payloads):
        try:
            parts = decoder.decode(payload)
        except UndecodableEvent as error:
            yield _rows(texts, item.segment)
            texts = []
            yield undecodable(item, number, error)
            continue
        texts.append(b'{"timestamp_ns":%d,"flags":%d,"meta":%b,"fields":%b}' % parts)
    yield _rows(texts, item.segment)


def _rows(texts: Sequence[bytes], segment: int | None) -> Rows:
    """Returns events as rows to print; the JSON adds kind, segment, and the time as text."""
    head = b'"kind":"beats",' + (b"" if segment is None else b'"segment":%d,' % segment)

    def line(index: int) -> bytes:
        time, _, rest = texts[index][1:].partition(b",")
        nanoseconds = time.partition(b":")[2]
        return b'{%b%b,"timestamp_ns_str":"%b",%b\n' % (head, time, nanoseconds, rest)

    return Rows(texts, line)
