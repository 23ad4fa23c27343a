"""Measures what the formats of the deadline queue take on the disk for each item.

    python benchmarks/deadline.py --sizes [--items 1000000]

Items of 278 bytes, ids without gaps, enqueued within ten seconds, in batches of 1,000. The seed's
log is the figure of its own text: 67 bytes over the payload for the same million items.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterable

from forebay.formats.deadline import items as deadline
from forebay.formats.deadline.items import Item, Key, Stats
from forebay.formats.deadline.run_encoder import RunEncoder
from forebay.formats.deadline.wal import Batches, Header

SIZE = 278
BATCH = 1000
SEED_LOG_BYTES = 67
NOW_MS = 1_700_000_000_000
ENQUEUE_MS = 10_000
DAY_MS = 24 * 3600 * 1000
SPREADS = {"24 hours": DAY_MS, "10 years": 3652 * DAY_MS}
WORDS = [
    "order",
    "shipped",
    "delayed",
    "customer",
    "warehouse",
    "invoice",
    "retry",
    "reminder",
    "timeout",
    "payment",
    "pending",
    "accepted",
    "rejected",
    "address",
    "package",
    "courier",
    "status",
    "update",
    "queue",
    "worker",
    "message",
    "deadline",
]
SALT = bytes(range(8))


def noise(chance: random.Random) -> bytes:
    return chance.randbytes(SIZE)


def text(chance: random.Random) -> bytes:
    """Returns words and numbers, as messages have them."""
    parts = [f'{{"id": {chance.randrange(10**9)}, "text": "']
    size = len(parts[0])
    while size < SIZE:
        parts.append(chance.choice(WORDS) + " ")
        size += len(parts[-1])
    return "".join(parts).encode()[:SIZE]


PAYLOADS: dict[str, Callable[[random.Random], bytes]] = {"random bytes": noise, "text": text}


def make_items(count: int, spread_ms: int, payload: Callable[[random.Random], bytes]) -> list[Item]:
    """Returns items in the order of enqueueing."""
    chance = random.Random(1)
    return [
        Item(
            Key(NOW_MS + chance.randrange(spread_ms), 1_000_000 + at),
            payload(chance),
            Stats(NOW_MS + at * ENQUEUE_MS // count),
        )
        for at in range(count)
    ]


def wal_size(items: list[Item]) -> int:
    batches = Batches(Header(1, SALT))
    chunks = range(0, len(items), BATCH)
    values = ([item.value for item in items[at : at + BATCH]] for at in chunks)
    return batches.header.size + sum(map(batches.fresh_size, values))


def run_size(encoder: RunEncoder | deadline.RunEncoder, items: Iterable[Item]) -> int:
    """Encodes in chunks, so that no whole run is held in memory."""
    size = 0
    chunk: list[Item] = []
    for item in items:
        chunk.append(item)
        if len(chunk) == BATCH:
            size += len(encoder.encode(chunk))
            chunk.clear()
    return size + len(encoder.encode(chunk)) + len(encoder.finish())


def print_sizes(count: int) -> None:
    print(f"| payload | deadlines over | {' | '.join(names())} |")
    print("| --- " * (len(names()) + 2) + "|")
    for payload_name, payload in PAYLOADS.items():
        for spread_name, spread_ms in SPREADS.items():
            items = make_items(count, spread_ms, payload)
            wal = wal_size(items)
            items.sort(key=lambda item: item.key)
            sizes = [
                wal,
                run_size(deadline.RunEncoder(), items),
                run_size(RunEncoder(SALT), items),
                run_size(RunEncoder(SALT, id_index=True), items),
                run_size(RunEncoder(SALT, compression="lz4"), items),
            ]
            cells = [f"{SIZE}", f"{SIZE + SEED_LOG_BYTES}"]
            cells += [f"{size / count:.1f}" for size in sizes]
            print(f"| {payload_name} | {spread_name} | {' | '.join(cells)} |", flush=True)


def names() -> list[str]:
    runs = ["version 1", "version 2", "with id index", "with LZ4"]
    return ["raw", "the seed's log", "WAL", *runs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", action="store_true", help="bytes on the disk for each item")
    parser.add_argument("--items", type=int, default=1_000_000)
    options = parser.parse_args()
    if not options.sizes:
        parser.error("say what to measure: --sizes")
    print_sizes(options.items)


if __name__ == "__main__":
    main()
