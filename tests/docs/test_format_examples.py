"""The worked examples of docs/formats/fflg.md are what the codec writes and reads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import forebay
from forebay.formats.fflg import (
    Frames,
    Header,
    decode_header,
    decode_index,
    encode_index,
    parse_segment_name,
    segment_name,
)
from tests.docs.pages import hex_bytes, only_block

PAGE = "docs/formats/fflg.md"
HEADER_1 = Header(1, 255)
HEADER_2 = Header(2, 255, bytes([1, 2, 3, 4, 5, 6, 7, 8]), 1_700_000_000_000)
CONSUMERS = {"billing": 255, "größe": 256}


def encode(header: Header, values: list[bytes], times: list[int] | None) -> bytes:
    frames = Frames(header)
    buffer = bytearray(frames.fit(values, 0, 2**62)[1])
    frames.encode(values, 0, len(values), buffer, 0, 0, times)
    return header.encode() + buffer


def decode(data: bytes) -> tuple[Header, list[bytes], list[int]]:
    header = decode_header(data, "example")
    times: list[int] = []
    values, stop = Frames(header).scan(data, header.layout.header_bytes, 0, 2**62, times)
    assert stop == len(data)
    return header, values, times


def test_the_example_of_version_1_is_what_the_codec_writes_and_reads() -> None:
    data = hex_bytes(only_block(PAGE, "hex fflg-v1"))

    assert data == encode(HEADER_1, [b"hello", b"forebay"], None)
    assert decode(data) == (HEADER_1, [b"hello", b"forebay"], [])


def test_the_example_of_version_2_is_what_the_codec_writes_and_reads() -> None:
    data = hex_bytes(only_block(PAGE, "hex fflg-v2"))

    assert data == encode(HEADER_2, [b"hello", b"", b"forebay"], [1, 1, 1000])
    assert decode(data) == (HEADER_2, [b"hello", b"", b"forebay"], [1, 1, 1000])


def test_the_example_of_the_index_is_what_the_codec_writes_and_reads() -> None:
    data = hex_bytes(only_block(PAGE, "hex fflg-index"))

    assert data == encode_index(CONSUMERS)
    assert decode_index(data, "index") == (CONSUMERS, None)


def test_the_examples_are_read_as_a_directory(tmp_path: Path) -> None:
    for version in ("v1", "v2"):
        queue = tmp_path / version
        queue.mkdir(mode=0o700)
        (queue / "00000000ff").write_bytes(hex_bytes(only_block(PAGE, f"hex fflg-{version}")))
        (queue / "index").write_bytes(hex_bytes(only_block(PAGE, "hex fflg-index")))

        with forebay.read(queue, kind="log") as reader:
            assert [record.value for record in reader][-1] == b"forebay"
            assert reader.begin == 255
            assert reader.consumers() == CONSUMERS


def test_the_name_in_the_examples_is_that_of_their_base_offset() -> None:
    assert segment_name(255) == "00000000ff"
    assert parse_segment_name("00000000ff") == 255


def run_checker(tmp_path: Path, segment: Path) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "check.py"
    program.write_text(only_block(PAGE, "python"), encoding="utf-8")
    command = [sys.executable, "-I", str(program), str(segment)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_third_party_verifies_a_segment_by_the_page_alone(tmp_path: Path) -> None:
    with forebay.Log(tmp_path / "q", background=False) as log:
        log.append_many([b"", b"one", bytes(40), b"last"])

    result = run_checker(tmp_path, tmp_path / "q" / "0000000000")

    with forebay.read(tmp_path / "q", kind="log") as reader:
        lines = [f"{record.offset} {record.time_ms} {record.value!r}\n" for record in reader]
    assert len(lines) == 4
    assert (result.stdout, result.stderr, result.returncode) == ("".join(lines), "", 0)


def test_a_third_party_reads_a_segment_that_is_still_being_written(tmp_path: Path) -> None:
    with forebay.Log(tmp_path / "q", background=False) as log:
        log.append_many([b"one", b"two"])
        result = run_checker(tmp_path, tmp_path / "q" / "0000000000")

    assert result.returncode == 0
    assert [line.split()[-1] for line in result.stdout.splitlines()] == ["b'one'", "b'two'"]


def test_a_third_party_sees_damage_and_a_torn_end(tmp_path: Path) -> None:
    data = bytearray(hex_bytes(only_block(PAGE, "hex fflg-v2")))
    segment = tmp_path / "00000000ff"

    segment.write_bytes(data[:-1])
    torn = run_checker(tmp_path, segment)
    data[46] ^= 1
    segment.write_bytes(data)
    damaged = run_checker(tmp_path, segment)

    assert torn.stderr == "entry 2, byte 63: does not verify\n"
    assert damaged.stderr == "entry 0, byte 34: does not verify\n"


def test_the_checker_of_the_page_has_at_most_15_lines() -> None:
    assert len(only_block(PAGE, "python").splitlines()) <= 15
