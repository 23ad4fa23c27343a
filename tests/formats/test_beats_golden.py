"""Directories that Beats wrote: every case is read exactly, damaged ones as far as they go."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from forebay.formats.beats.events import decode_event
from forebay.formats.beats.state import State, decode_state
from forebay.formats.beats.text import TextDecoder, decode_parts, event_document
from forebay.formats.beats.versions import LAYOUTS
from tests.formats.beats_independent import read_segment
from tests.formats.beats_reading import Read, read

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "beats"
CASES: list[dict[str, Any]] = json.loads((GOLDEN / "manifest.json").read_text())
CLEAN = [case for case in CASES if "made_from" not in case]
DAMAGED = [case for case in CASES if "made_from" in case]


def name_of(case: dict[str, Any]) -> str:
    return str(case["case"])


each_clean = pytest.mark.parametrize("case", CLEAN, ids=name_of)
each_small = pytest.mark.parametrize("case", [c for c in CLEAN if "expected" in c], ids=name_of)
each_bulk = pytest.mark.parametrize("case", [c for c in CLEAN if "next" in c], ids=name_of)
each_damaged = pytest.mark.parametrize("case", DAMAGED, ids=name_of)


def key_of(case: dict[str, Any]) -> bytes | None:
    return case["key"].encode() if "key" in case else None


def segments_of(case: dict[str, Any]) -> list[bytes]:
    """Returns the segments of a case; a damaged one is made from the clean one it came from."""
    if "made_from" not in case:
        return [(GOLDEN / case["case"] / entry["file"]).read_bytes() for entry in case["segments"]]
    data = bytearray((GOLDEN / case["made_from"] / "0.seg").read_bytes())
    if "flipped_bit" in case:
        data[case["flipped_bit"] // 8] ^= 1 << case["flipped_bit"] % 8
    return [bytes(data[: case.get("cut_to", len(data))])]


def expected_of(case: dict[str, Any]) -> list[dict[str, Any]]:
    text = (GOLDEN / "expected" / case["expected"]).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n")[:-1]]


def read_all(case: dict[str, Any]) -> list[Read]:
    return [read(data, key_of(case)) for data in segments_of(case)]


def documents(reads: list[Read]) -> list[dict[str, Any]]:
    return [event_document(decode_event(event)) for found in reads for event in found.events]


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_the_files_are_those_of_the_manifest(case: dict[str, Any]) -> None:
    digests = [entry["sha256"] for entry in case.get("segments", [case])]

    assert [hashlib.sha256(data).hexdigest() for data in segments_of(case)] == digests


@each_small
def test_every_event_of_a_clean_segment_is_what_beats_was_given(case: dict[str, Any]) -> None:
    reads = read_all(case)

    assert documents(reads) == expected_of(case)
    assert [found.damage for found in reads] == [[]]


@pytest.mark.slow
@each_bulk
def test_every_event_of_a_directory_is_what_beats_was_given(case: dict[str, Any]) -> None:
    reads = read_all(case)

    lines = [json.dumps(d, sort_keys=True, ensure_ascii=False) for d in documents(reads)]
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    assert digest == case["expected_sha256"]
    assert len(lines) == 5000 - case["first_on_disk"]
    assert all(found.damage == [] for found in reads)


@each_clean
def test_the_header_tells_version_and_number_of_frames(case: dict[str, Any]) -> None:
    reads = read_all(case)

    frames = [entry["frames"] for entry in case["segments"]]
    assert [found.header.layout.name for found in reads] == [case["version"]] * len(reads)
    assert [len(found.events) for found in reads] == frames
    counted = reads[0].header.layout.counted
    assert [found.header.count for found in reads] == (frames if counted else [0] * len(reads))
    assert not any(found.header.repaired for found in reads)


@each_clean
def test_an_independent_decoder_gives_the_same_bytes(case: dict[str, Any]) -> None:
    key = key_of(case) or b""

    for data in segments_of(case):
        assert read(data, key_of(case)).events == read_segment(case["version"], data, key)


@each_clean
def test_the_text_of_every_event_is_the_same_on_both_ways(case: dict[str, Any]) -> None:
    decoder = TextDecoder()

    for found in read_all(case):
        for event in found.events:
            assert decoder.decode(event) == decode_parts(event)


@each_damaged
def test_a_damaged_segment_gives_its_good_prefix(case: dict[str, Any]) -> None:
    (found,) = read_all(case)

    assert found.good_prefix is not None
    assert found.good_prefix >= case["good_prefix"]
    prefix = documents([found])[: case["good_prefix"]]
    assert prefix == expected_of(case)[: case["good_prefix"]]


@each_damaged
def test_salvage_gives_all_that_can_be_had(case: dict[str, Any]) -> None:
    (found,) = read_all(case)

    expected = expected_of(case)
    numbers = [expected.index(document) for document in documents([found])]
    assert numbers == sorted(set(numbers))
    assert set(numbers) >= set(case["salvage"])
    assert found.damage


@pytest.mark.parametrize("case", [c for c in DAMAGED if LAYOUTS[c["version"]].counted], ids=name_of)
def test_the_count_of_a_closed_segment_accounts_for_every_lost_event(case: dict[str, Any]) -> None:
    (data,) = segments_of(case)

    found = read(data, key_of(case), counted=True)

    assert len(found.events) + found.lost == 12


@each_clean
def test_the_state_points_at_the_first_event_that_was_not_acknowledged(
    case: dict[str, Any],
) -> None:
    state = decode_state((GOLDEN / case["case"] / "state.dat").read_bytes(), "state.dat")

    expected = case["state"] and State(*case["state"].values())
    assert state == expected


@each_bulk
def test_reading_from_the_state_on_gives_the_next_event(case: dict[str, Any]) -> None:
    state = decode_state((GOLDEN / case["case"] / "state.dat").read_bytes(), "state.dat")
    assert state is not None
    data = (GOLDEN / case["case"] / f"{state.segment_id}.seg").read_bytes()
    start = state.position(read(data).header.layout.header_bytes)

    rest = read(data[: read(data).header.layout.header_bytes] + data[start:])

    first = decode_event(rest.events[0])
    assert first.fields["seq"] == case["next"]
    assert rest.damage == []
