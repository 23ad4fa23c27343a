"""The worked examples of docs/formats/beats.md are what the codec writes and reads."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from forebay.formats.beats.events import Event, decode_event, encode_event
from forebay.formats.beats.state import State, decode_state
from forebay.formats.beats.text import event_text, parse_event
from forebay.formats.beats.versions import LAYOUTS, new_header
from tests.docs.pages import ROOT, hex_bytes, only_block
from tests.formats.beats_independent import KEY
from tests.formats.beats_reading import WRITABLE, read, write

PAGE = "docs/formats/beats.md"
EVENT = Event(1_700_000_000_000_000_000, 1, {}, {"message": "hello"})
SEGMENTS = ["v1", "v2-seed", "v3-seed", "v2-lz4"]


def example(name: str) -> bytes:
    return hex_bytes(only_block(PAGE, f"hex beats-{name}"))


@pytest.mark.parametrize("name", SEGMENTS)
def test_an_example_is_what_the_codec_writes_and_reads(name: str) -> None:
    data = example(name)

    assert data == write(name, [encode_event(EVENT)])
    assert [decode_event(event) for event in read(data).events] == [EVENT]
    assert read(data).header.layout.name == name


def test_the_example_of_version_0_is_what_the_codec_reads() -> None:
    found = read(example("v0"))

    assert [decode_event(event) for event in found.events] == [EVENT]
    assert found.header.layout.name == "v0"


def test_the_example_of_the_released_header_is_what_the_codec_writes() -> None:
    data = write("v2", [encode_event(EVENT)])

    assert data.startswith(example("v2"))
    assert data[12:] == example("v1")[8:]
    assert new_header("v2").encode() == example("v2")[:4] + bytes(8)


def test_the_key_of_the_page_is_that_of_the_tests() -> None:
    assert f"`{KEY.decode()}`" in (ROOT / PAGE).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "state"), [("state-0", State(1, 174416)), ("state-1", State(1, 92843, 633))]
)
def test_the_examples_of_the_state_are_what_the_codec_writes_and_reads(
    name: str, state: State
) -> None:
    assert example(name) == state.encode()
    assert decode_state(example(name), "state.dat") == state


def test_the_example_of_the_text_reads_and_is_written_back() -> None:
    text = only_block(PAGE, "json beats-text").removesuffix("\n")

    event = parse_event(text)

    assert event_text(event) == text
    assert event.fields == {
        "bytes": b"\x00\xff",
        "float": -math.inf,
        "not UTF-8": "a\udcff",
        "k\udcfe": "such a key",
    }


def test_the_table_of_versions_is_that_of_the_codec() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("| `v")][: len(LAYOUTS)]
    rows = [[cell.strip(" `") for cell in line.split("|")[1:]] for line in lines]

    assert [row[0] for row in rows] == list(LAYOUTS)
    assert [int(row[1]) for row in rows] == [layout.version for layout in LAYOUTS.values()]
    assert [row[0] for row in rows if row[5].startswith("reads, writes")] == WRITABLE


def run_checker(tmp_path: Path, data: bytes) -> subprocess.CompletedProcess[str]:
    program, segment = tmp_path / "check.py", tmp_path / "0.seg"
    program.write_text(only_block(PAGE, "python beats-check"), encoding="utf-8")
    segment.write_bytes(data)
    command = [sys.executable, "-I", str(program), str(segment)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["v1", "v2"])
def test_a_third_party_verifies_a_segment_by_the_page_alone(tmp_path: Path, name: str) -> None:
    events = [b"one", b"\xa4" * 40]
    start = LAYOUTS[name].header_bytes

    result = run_checker(tmp_path, write(name, events) + bytes(30))

    lines = f"{start} {events[0].hex()}\n{start + 15} {events[1].hex()}\n"
    assert (result.stdout, result.stderr, result.returncode) == (lines, "", 0)


@pytest.mark.parametrize(("size", "index", "position"), [(29, 1, 23), (18, 1, 23), (11, 0, 8)])
def test_a_third_party_sees_a_torn_end(
    tmp_path: Path, size: int, index: int, position: int
) -> None:
    data = write("v1", [b"one", b"two"])[: 8 + size]

    result = run_checker(tmp_path, data)

    assert result.stderr == f"frame {index}, byte {position}: does not verify\n"


def test_a_third_party_sees_damage(tmp_path: Path) -> None:
    data = bytearray(write("v1", [b"one", b"two"]))
    data[13] ^= 1

    result = run_checker(tmp_path, bytes(data))

    assert result.stderr == "frame 0, byte 8: does not verify\n"
