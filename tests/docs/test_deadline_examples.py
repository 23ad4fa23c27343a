"""The worked examples of docs/formats/deadline.md are what the codecs write and read."""

from __future__ import annotations

from forebay.formats.deadline import items as deadline
from forebay.formats.deadline import run_encoder as deadline_run_encoder
from forebay.formats.deadline import runs as deadline_runs
from forebay.formats.deadline.items import Entry, FileKind, Item, Key, Stats, Tombstone, scan_run
from forebay.formats.deadline.manifest import (
    LogRow,
    Manifest,
    SetCounts,
    SetRow,
    decode_manifest,
)
from forebay.formats.deadline.mark import End, Mark
from forebay.formats.deadline.wal import (
    Batches,
    Dequeued,
    Header,
    Origin,
    Record,
    scan_all,
    scan_wal,
)
from tests.docs.pages import hex_bytes, only_block
from tests.formats.deadline_independent import read_run_1, read_run_2, read_wal
from tests.formats.deadline_rows import row_of

PAGE = "docs/formats/deadline.md"
TIME_MS = 1_700_000_000_000
SALT = bytes(range(1, 9))
QUEUE_ID = b"0123456789abcdef"
HELLO = Item(Key(TIME_MS, 1), b"hello", Stats(TIME_MS - 1000))


def test_the_version_1_run_is_what_the_codec_writes_and_reads() -> None:
    data = hex_bytes(only_block(PAGE, "hex run 1"))
    entries: list[Entry] = [HELLO, Tombstone(Key(TIME_MS + 1000, 2))]
    encoder = deadline.RunEncoder()

    assert encoder.encode(entries) + encoder.finish() == data
    assert list(scan_run(data, "example")) == entries
    assert read_run_1(data) == [row_of(entry) for entry in entries]


def test_the_log_is_what_the_codec_writes_and_reads() -> None:
    data = hex_bytes(only_block(PAGE, "hex wal"))
    header = Header(1, SALT)
    batches = Batches(header)
    gone: list[Record] = [Dequeued(HELLO.key, 1, TIME_MS + 2), Tombstone(HELLO.key)]
    first = bytearray(batches.fresh_size([b"hello"]))
    batches.encode_fresh([b"hello"], [TIME_MS], first, 1, TIME_MS - 1000, 0)

    assert header.encode() + first + batches.encode(gone, 1) == data
    assert list(scan_wal(data, "example")) == [HELLO, *gone]
    assert read_wal(data)[0] == row_of(HELLO)


def test_the_version_2_run_is_what_the_codec_writes_and_reads() -> None:
    data = hex_bytes(only_block(PAGE, "hex run 2"))
    entries: list[Entry] = [
        HELLO,
        Item(Key(TIME_MS + 5, 2), b"hi", Stats(TIME_MS - 999, TIME_MS - 1, 1)),
    ]
    encoder = deadline_run_encoder.RunEncoder(SALT)

    assert encoder.encode(entries) + encoder.finish() == data
    run = deadline_runs.Run.open(lambda position, size: data[position:][:size], len(data), "e")
    assert list(run.scan()) == entries
    assert read_run_2(data) == [row_of(entry) for entry in entries]


def test_the_start_of_a_log_is_what_the_codec_writes_and_reads() -> None:
    data = hex_bytes(only_block(PAGE, "hex wal 2"))
    header = Header(1, SALT, QUEUE_ID)

    assert header.encode() + Batches(header).encode_origin(Origin(first_id=1)) == data
    assert list(scan_all(data, "example")) == [Origin(first_id=1)]


def test_the_manifest_is_what_the_codec_writes_and_reads() -> None:
    data = hex_bytes(only_block(PAGE, "hex manifest"))
    row = SetRow(1, frozenset({FileKind.PENDING_RUN}), Key(TIME_MS, 2), SetCounts(3, 1))
    log = LogRow(2, SALT, first_id=4, copied=1)
    manifest = Manifest(QUEUE_ID, 65_537, TIME_MS, 2, (row,), 7, (log,))

    assert manifest.encode() == data
    assert decode_manifest(data, "example") == manifest


def test_the_mark_is_what_the_codec_writes_and_reads() -> None:
    data = hex_bytes(only_block(PAGE, "hex mark"))
    end = End(2, 139, 2, 5, 4)
    mark = Mark(QUEUE_ID, b"b" * 16, 7, SALT, end, end, clean=True)

    assert mark.encode() == data
    assert Mark.decode(data) == mark
