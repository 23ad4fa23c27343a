"""A queue goes on in what its own Beat reads; what it cannot read is told and passed by."""

from __future__ import annotations

import logging
import struct
import threading
import time
from pathlib import Path

import pytest

from forebay import (
    BeatsQueue,
    BeatsReader,
    Damaged,
    ForebayError,
    Full,
    Overtaken,
    UnsupportedVersion,
    WrongKey,
)
from tests.cli.helpers import run
from tests.formats.beats_independent import frame, read_segment
from tests.queues.beats_helpers import (
    WRITABLE,
    leave_segment,
    make_key,
    numbered,
    numbers_of,
    open_queue,
    segment_names,
    take_all,
)

LOSSY = ["v2-lz4", "v2-aes-lz4"]
SOUND = [name for name in WRITABLE if name not in LOSSY]


@pytest.mark.parametrize("version", WRITABLE)
def test_a_directory_goes_on_in_the_version_that_its_beat_reads(
    tmp_path: Path, version: str
) -> None:
    leave_segment(tmp_path / "q", 4, version, numbered(3))

    with open_queue(tmp_path / "q") as queue:
        queue.put_many(numbered(5, first=3))
        queue.read(2).ack()

    data = (tmp_path / "q" / "5.seg").read_bytes()
    assert len(read_segment(version, data)) == 5
    with open_queue(tmp_path / "q") as queue:
        assert take_all(queue) == list(range(2, 8))


@pytest.mark.parametrize("version", ["v2-aes", "v2-aes-lz4"])
def test_a_released_encrypted_segment_is_laid_out_as_beats_lays_it_out(
    tmp_path: Path, version: str
) -> None:
    with open_queue(tmp_path / "q", version) as queue:
        queue.put_many(numbered(6))
        queue.read(2).ack()
        position = struct.unpack("<IQQQ", (tmp_path / "q" / "state.dat").read_bytes())[2]

    data = (tmp_path / "q" / "0.seg").read_bytes()
    options = 1 if version == "v2-aes" else 3
    assert struct.unpack_from("<III", data) == (2, 6, options)
    assert len(read_segment(version, data)) == 6
    # Positions count the header, and not the vector.
    assert position == 12 + 2 * 100


def test_the_directory_of_an_old_beat_is_read_and_not_written(tmp_path: Path) -> None:
    leave_segment(tmp_path / "q", 0, "v0", numbered(5))

    with open_queue(tmp_path / "q") as queue:
        with pytest.raises(UnsupportedVersion, match=r"version v0.*7\.10 to 7\.13"):
            queue.put_many(numbered(1))
        batch = queue.read(2)
        batch.ack()
        state = (tmp_path / "q" / "state.dat").read_bytes()

    assert segment_names(tmp_path / "q") == ["0.seg"]
    # What such a Beat reads: version 0, bytes counted from the end of the header.
    assert (len(state), struct.unpack("<IQ", state[:12])) == (20, (0, 0))
    with open_queue(tmp_path / "q", "v2") as queue:
        queue.put_many(numbered(1, first=5))
        assert take_all(queue) == [2, 3, 4, 5]


def test_an_emptied_directory_of_a_beat_gets_no_version_that_it_would_overwrite(
    tmp_path: Path,
) -> None:
    (tmp_path / "q").mkdir(mode=0o700)
    (tmp_path / "q" / "state.dat").write_bytes(b"")

    with open_queue(tmp_path / "q") as queue:
        assert queue.version == "v2-aes"


@pytest.mark.parametrize("version", LOSSY)
def test_a_version_that_beats_itself_loses_warns_where_it_is_chosen(
    tmp_path: Path, version: str, caplog: pytest.LogCaptureFixture
) -> None:
    leave_segment(tmp_path / "old", 0, "v2", numbered(3))
    caplog.set_level(logging.WARNING)
    open_queue(tmp_path / "q", version).close()
    key = str(make_key(tmp_path))
    result = run(
        "convert", tmp_path / "old", "--to-version", version, "--to", tmp_path / "new",
        "--key-file", key,
    )  # fmt: skip

    assert "released Beat reads only some" in caplog.text
    assert "released Beat reads only some" in result.output
    assert result.exit_code == 0


@pytest.mark.parametrize("version", SOUND)
def test_a_version_that_beats_keeps_does_not_warn(
    tmp_path: Path, version: str, caplog: pytest.LogCaptureFixture
) -> None:
    open_queue(tmp_path / "q", version).close()

    assert caplog.text == ""


def leave_foreign(path: Path, number: int, sort: str) -> bytes:
    """Leaves a segment that cannot be read: of another key, or with Protobuf events."""
    if sort == "key":
        with BeatsQueue(path.parent / "other", key_file=make_key(path.parent, b"o" * 16)) as other:
            other.put_many(numbered(4))
        make_key(path.parent)
        data = (path.parent / "other" / "0.seg").read_bytes()
    else:
        data = struct.pack("<III", 2, 3, 4) + frame(b"\x0a\x06\x08\x80\x92\xb8\xc3\x98xx") * 3
    (path / f"{number}.seg").write_bytes(data)
    return data


@pytest.mark.parametrize("sort", ["key", "protobuf"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_segment_that_is_not_ours_to_read_is_told_once_and_passed_by(
    tmp_path: Path, sort: str, number: int
) -> None:
    path = tmp_path / "q"
    for part in range(3):
        leave_segment(path, part, "v2", numbered(3, first=3 * part))
    data = leave_foreign(path, number, sort)
    left = [item for item in range(9) if item // 3 != number]
    with BeatsReader(path, key_file=make_key(tmp_path), salvage=True) as reader:
        seen = numbers_of(reader)

    found: list[int] = []
    told: list[ForebayError] = []
    with open_queue(path, "v2") as queue:
        for _ in range(20):
            try:
                batch = queue.read(1000)
            except (WrongKey, UnsupportedVersion) as error:
                told.append(error)
                continue
            found += numbers_of(batch)
            batch.ack()
        queue.put_many(numbered(1, first=9))
        assert take_all(queue) == [9]
        assert queue.info().losses == 1

    assert seen == left
    assert found == left
    assert len(told) == 1
    kept = [*path.glob(f"{number}.seg"), *path.glob(f"quarantine/{number}.seg")]
    assert [file.read_bytes() for file in kept] == [data]


def test_the_numbers_of_segments_end_with_a_clear_error(tmp_path: Path) -> None:
    leave_segment(tmp_path / "q", 2**64 - 1, "v2", numbered(3))

    with open_queue(tmp_path / "q") as queue:
        with pytest.raises(Full, match="18446744073709551615"):
            queue.put_many(numbered(1))
        assert take_all(queue) == [0, 1, 2]


@pytest.mark.slow
def test_a_search_that_gives_up_is_damage_and_no_unfinished_end(tmp_path: Path) -> None:
    hostile = struct.pack("<I", 12_000_000) * 3_500_000
    file = leave_segment(tmp_path / "q", 0, "v2", numbered(3), count=0)
    file.write_bytes(file.read_bytes() + hostile)
    leave_segment(tmp_path / "q", 1, "v2", numbered(3, first=3))

    result = run("fsck", tmp_path / "q")
    with open_queue(tmp_path / "q", "v2") as queue:
        assert numbers_of(queue.read(3)) == [0, 1, 2]
        with pytest.raises(Damaged, match="given up"):
            queue.read(9)
        assert numbers_of(queue.read(9)) == [3, 4, 5]
    assert result.exit_code == 4


def test_taking_with_a_timeout_does_not_own_the_queue_while_it_waits(tmp_path: Path) -> None:
    path = tmp_path / "q"
    open_queue(path, "v2").close()
    results: list[str] = []
    thread = threading.Thread(
        target=lambda: results.append(run("take", path, "--timeout", "60").output)
    )
    thread.start()
    time.sleep(0.3)
    with BeatsQueue(path) as queue:
        queue.put({"fields": {"message": "hello"}})
    thread.join(60)

    assert "hello" in results[0]


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["always", "os"])
def test_a_reader_beside_a_busy_owner_sees_a_run_without_holes_or_is_told(
    tmp_path: Path, sync: str
) -> None:
    path = tmp_path / "q"
    stop = threading.Event()
    looks = overtaken = 0

    def work(queue: BeatsQueue) -> None:
        first = 0
        while not stop.is_set():
            queue.put_many(numbered(5, first=first))
            first += 5
            queue.read(5).ack()

    with open_queue(path, "v2", sync=sync) as queue:
        queue.put_many(numbered(30, first=1_000_000))
        thread = threading.Thread(target=work, args=(queue,))
        thread.start()
        until = time.monotonic() + 3
        while time.monotonic() < until:
            looks += 1
            try:
                with BeatsReader(path) as reader:
                    seen = [item for item in numbers_of(reader) if item < 1_000_000]
            except Overtaken:
                overtaken += 1
                continue
            assert seen == list(range(seen[0], seen[0] + len(seen))) if seen else True
            assert reader.damage == []
        stop.set()
        thread.join(60)
    assert looks > overtaken
