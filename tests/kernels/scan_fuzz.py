"""Harmed bytes for every scan: `python -m tests.kernels.scan_fuzz SEED ROUNDS`.

Made for a build under AddressSanitizer, where a read past a buffer ends the process. A scan may
find less or nothing, and may raise ValueError; nothing else may happen. Where a checksum would keep
harm from the code behind it, some of the harm is done first and the checksum is made after it.
"""

from __future__ import annotations

import contextlib
import random
import struct
import sys
import zlib
from array import array
from collections.abc import Callable

from forebay.kernels import beats, deadline, entry, fflg

Random = random.Random
SEED = zlib.crc32(b"saltsalt")
VERSION = b"FBE2salt"
ALL = 1 << 40
ODD = (0, 1, 4, 11, 12, 13, 127, 128, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 13, 2**32 - 1)
# "FBDB", number, count, size stored, size, and the check of these and the body.
BLOCK_HEAD = struct.Struct("<4s5I")


def run(seed: int, rounds: int) -> int:
    """Does so many rounds of each scan; returns how many scans that were."""
    chance = Random(seed)
    for _ in range(rounds):
        for scan in SCANS:
            scan(chance)
    return rounds * len(SCANS)


def values_of(chance: Random) -> list[bytes]:
    return [chance.randbytes(chance.choice((0, 1, 7, 40, 300))) for _ in range(chance.randrange(9))]


def harmed(chance: Random, data: bytes) -> bytes:
    """Returns bytes with a few changes; sometimes none."""
    out = bytearray(data)
    for _ in range(chance.randrange(4)):
        at = chance.randrange(len(out) + 1)
        kind = chance.randrange(6)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            out[at : at + 4] = chance.choice(ODD).to_bytes(4, chance.choice(("little", "big")))
        elif kind == 2:
            del out[at : at + chance.randrange(20)]
        elif kind == 3:
            out[at:at] = chance.randbytes(chance.randrange(20))
        elif kind == 4:
            out[at:at] = out[chance.randrange(len(out) + 1) :][:50]
        else:
            del out[at:]
    return bytes(out)


def exact(data: bytes) -> memoryview:
    """Returns the bytes in memory that ends where they end; that of `bytes` has one more."""
    return memoryview(array("B", data))


def scan_fflg(chance: Random) -> None:
    values = values_of(chance)
    buffer = bytearray(sum(map(len, values)) + fflg.FRAME_BYTES * len(values))
    fflg.encode(values, 0, len(values), buffer, 5, SEED, 9)
    data = exact(harmed(chance, bytes(buffer)))

    _, stop = fflg.scan(data, 0, 5, SEED, ALL, [])
    fflg.verify(data, 0, 5, SEED, ALL, 0)
    fflg.find(data, min(stop + 1, len(data)), 5, SEED, 2**32 - 1, 1)
    columns = fflg.Columns(chance.choice((1, 50, 3000)), chance.choice((1, 5, 20)), True)
    columns.take(data, 0, 5, SEED, ALL, 0, 0)
    columns.positions(0)
    for zero_size_ends in (False, True):
        fflg.scan_unchecked(bytes(data), 0, ALL, zero_size_ends)


def encode_columns(chance: Random) -> None:
    ends = array("i", [0, 3, 3, 40, 90])
    for _ in range(chance.randrange(3)):
        ends[chance.randrange(5)] = chance.choice((-1, 0, 3, 89, 91, 2**31 - 1, -(2**31)))
    first, count = chance.randrange(-1, 6), chance.randrange(6)
    room = bytearray(chance.choice((0, 5, 60, 300)))
    with contextlib.suppress(ValueError):
        fflg.encode_columns(ends, exact(bytes(90)), first, count, room, 0, SEED, 1)


def scan_entries(chance: Random) -> None:
    values = values_of(chance)
    buffer = bytearray(sum(map(len, values)) + entry.METADATA_BYTES * len(values))
    entry.encode(values, 0, len(values), buffer, 3, 1000, 0, 60, VERSION)
    data = exact(harmed(chance, bytes(buffer)))

    _, stop, _ = entry.scan(data, 0, 3, 0, ALL, VERSION, [], [])
    entry.claimed_size(data, min(stop, len(data)), VERSION)
    entry.find(bytes(data), 0, 3, 0, 2**16, VERSION)
    columns = entry.EntryColumns(chance.choice((1, 50, 3000)), chance.choice((1, 5, 20)), True)
    columns.take(data, 3, 0, ALL, len(data), VERSION)


def scan_beats(chance: Random) -> None:
    values = [value or b"x" for value in values_of(chance)]
    buffer = bytearray(sum(map(len, values)) + beats.FRAME_BYTES * len(values))
    beats.encode(values, 0, len(values), buffer)
    data = exact(harmed(chance, bytes(buffer)))

    beats.scan(data, 0, ALL)
    beats.find(data, 0)
    beats.find_block(data, 0, 1 << 20)
    beats.hop(data, 0, len(data))
    rows = chance.choice((1, 5, 20))
    ends, positions = array("i", bytes(4 * rows + 4)), array("q", bytes(8 * rows))
    payload = bytearray(chance.choice((1, 50, 3000)))
    beats.gather(data, 0, rows, payload, memoryview(ends), memoryview(positions))


def scan_cbor(chance: Random) -> None:
    event = bytes.fromhex(
        "a46974696d657374616d701b17979cfe362a000065666c61677301646d657461a1616bf5"
        "666669656c6473a5616119ffff6162fb3ff199999999999a6163826161f661648141ff6165a16166627abf"
    )
    data = harmed(chance, event) if chance.random() < 0.9 else chance.randbytes(60)

    beats.check_cbor(data)
    beats.Transcoder().event(data)


def scan_batches(chance: Random) -> None:
    values = values_of(chance)
    times = [chance.getrandbits(47) for _ in values]
    buffer = bytearray(deadline.BATCH_BYTES + sum(map(len, values)) + 25 * len(values))
    deadline.encode_fresh(values, times, 0, len(values), buffer, 7, 9, 0, SEED)
    item = b"\2" + bytes(31) + struct.pack("<HI", 2, 3) + b"whyval"
    records = harmed(chance, bytes(buffer[deadline.BATCH_BYTES :]) + item + b"\x85\2\0\0\0ab")
    batch = bytearray(deadline.BATCH_BYTES) + records
    deadline.seal_batch(batch, len(records), 0, SEED)
    data = exact(harmed(chance, bytes(batch)) if chance.random() < 0.5 else bytes(batch))

    deadline.scan_batches(data, 0, 0, SEED, ALL, [])
    deadline.batch_verifies(data, 0, 0, SEED)
    deadline.find_batch(data, 0, 0, SEED, 0)


def body_of(chance: Random, first: int) -> tuple[bytes, int]:
    """Returns the body of a block, sound or harmed, and how many entries it has."""
    builder = deadline.BlockBuilder(1 << 20)
    for key in range(first, first + chance.randrange(1, 30)):
        value = chance.randbytes(chance.randrange(30))
        attributes = chance.choice((0, 0, deadline.IS_TOMBSTONE, deadline.IS_BURIED))
        builder.add(key, key, key * 3, chance.choice((0, key)), key % 5, attributes, b"y", value)
    count = builder.count
    body = builder.take()
    return (harmed(chance, body), count) if chance.random() < 0.5 else (body, count)


def read_block(chance: Random) -> None:
    body, count = body_of(chance, 0)
    with contextlib.suppress(ValueError):
        block = deadline.Block(body, chance.choice((count, count, 1, 65536)))
        for at in range(block.count):
            block.row(at)
        block.search(3, 3)
        block.find_id(3, 0)


def merge_blocks(chance: Random) -> list[bytes]:
    """Merges runs of harmed blocks; returns the blocks that this makes."""
    if not deadline.can_stream():
        return []
    made: list[bytes] = []
    runs = [[body_of(chance, 100 * at) for at in range(3)] for _ in range(chance.randrange(1, 4))]
    builders = [deadline.BlockBuilder(chance.choice((100, 4000))) for _ in range(3)]
    kinds = [chance.randrange(1, 4) for _ in runs]
    merger = deadline.Merger(False, kinds, [SEED] * len(runs), builders, [None] * 3)
    fed: set[int] = set()
    while (needed := merger.run()) != deadline.DONE:
        if needed == deadline.FULL:
            made.append(builders[merger.kind - 1].take())
        elif merger.source not in fed:
            fed.add(merger.source)
            merger.feed(*blocks_of(chance, runs[merger.source]))
        elif merger.block < 3:
            feed_block(merger, *runs[merger.source][merger.block])
        else:
            merger.forget()
            merger.end_source()
    return made + [builder.take() for builder in builders if builder.count]


def blocks_of(chance: Random, bodies: list[tuple[bytes, int]]) -> tuple[bytes, array[int]]:
    """Returns the bytes of blocks as a file has them, sometimes cut off, and their table."""
    data = b""
    table = array("Q")
    for number, (body, count) in enumerate(bodies):
        head = BLOCK_HEAD.pack(b"FBDB", number, count, len(body), len(body), 0)[:20]
        check = zlib.crc32(body, zlib.crc32(head, SEED))
        table.extend((len(data), number, count))
        data += head + check.to_bytes(4, "little") + body
    table.extend((len(data), 0, 0))
    return data[: -chance.choice((1, 30, 300))] if chance.random() < 0.2 else data, table


def feed_block(merger: deadline.Merger, body: bytes, count: int) -> None:
    try:
        merger.feed_block(deadline.Block(body, count))
    except ValueError:
        merger.skip_block()


SCANS: tuple[Callable[[Random], object], ...] = (
    scan_fflg,
    encode_columns,
    scan_entries,
    scan_beats,
    scan_cbor,
    scan_batches,
    read_block,
    merge_blocks,
)

if __name__ == "__main__":
    run(int(sys.argv[1]), int(sys.argv[2]))
