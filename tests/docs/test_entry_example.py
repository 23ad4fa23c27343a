"""The worked example of docs/formats/entry.md is what the codec writes, and what a queue reads."""

from __future__ import annotations

from pathlib import Path

import forebay
from forebay.formats.entry import decode_entry, encode_entry
from forebay.kernels.entry import Entry
from tests.docs.pages import hex_bytes, only_block
from tests.formats.entries import make_id
from tests.formats.entry_independent import read_tape

PAGE = "docs/formats/entry.md"
TIME_MS = 1_700_000_000_000
VERSION = b"FBE2\xc7\x1f\x88\x5e"
ENTRIES = [Entry(0, make_id(TIME_MS, 0), 60, b"hello"), Entry(1, make_id(TIME_MS, 1), 0, b"")]


def test_the_example_is_what_the_codec_writes_and_reads() -> None:
    data = hex_bytes(only_block(PAGE, "hex entry"))

    first, end = decode_entry(data, 0, 0, "example", VERSION)
    second, behind = decode_entry(data, end, 1, "example", VERSION)

    assert data == b"".join(encode_entry(entry, VERSION) for entry in ENTRIES)
    assert ([first, second], behind) == (ENTRIES, len(data))


def test_the_example_is_read_as_a_queue_without_its_other_files(tmp_path: Path) -> None:
    data = hex_bytes(only_block(PAGE, "hex entry"))
    (tmp_path / "0000000000.tape").write_bytes(data.ljust(200, b"\0"))

    with forebay.read(tmp_path, kind="fifo") as reader:
        read = list(reader)

    assert read == ENTRIES
    assert "what was popped may come again" in reader.trouble[0].reason
    assert [row[2] for row in read_tape(tmp_path)] == [b"hello", b""]
