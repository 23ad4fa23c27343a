"""Writing segments, the list of them, and the walk round damage."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from forebay.damage import Damage
from forebay.errors import NotAQueue
from forebay.formats.fflg import Frames, Header
from forebay.storage.segments import Batch, SegmentList, SegmentWriter, check_base, scan_segment
from tests.crash.forgetful import ForgetfulFilesystem
from tests.crash.handles import ForgetfulDirectory
from tests.storage.helpers import open_directory

HEADER = b"header"
CODEC = Frames(Header(2, 0, b"8 bytes!", 1_000))


def disk() -> tuple[ForgetfulFilesystem, ForgetfulDirectory]:
    filesystem = ForgetfulFilesystem()
    return filesystem, filesystem.open_directory("/d", create=True)


def test_a_segment_is_its_header_and_what_was_appended(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    writer = SegmentWriter(directory, "seg", HEADER, allocate_bytes=1000)
    writer.append(b"one")
    writer.append(memoryview(b"two"))
    live = (tmp_path / "d" / "seg").read_bytes()
    writer.seal()
    writer.close()
    directory.close()

    assert writer.end == 12
    assert live.rstrip(b"\0") == b"headeronetwo"
    assert len(live) >= 1000
    assert (tmp_path / "d" / "seg").read_bytes() == b"headeronetwo"


def test_without_preallocation_a_segment_ends_at_its_last_byte(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    writer = SegmentWriter(directory, "seg", HEADER, allocate_bytes=0)
    writer.append(b"one")

    assert (tmp_path / "d" / "seg").read_bytes() == b"headerone"
    writer.close()
    directory.close()


def test_a_segment_is_never_made_over_an_existing_file(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    (tmp_path / "d" / "seg").write_bytes(b"precious")

    with pytest.raises(FileExistsError):
        SegmentWriter(directory, "seg", HEADER, allocate_bytes=0)

    assert (tmp_path / "d" / "seg").read_bytes() == b"precious"
    directory.close()


def test_a_failed_write_is_cut_back_and_the_next_goes_on() -> None:
    filesystem, directory = disk()
    writer = SegmentWriter(directory, "seg", HEADER, allocate_bytes=0)
    filesystem.fail_at(1, None, forever=True)

    with pytest.raises(OSError, match="No space left"):
        writer.append(b"lost" * 100)

    assert filesystem.read_file("/d/seg") == HEADER
    assert (writer.broken, writer.end) == (False, len(HEADER))
    filesystem.heal()
    writer.append(b"next")
    assert filesystem.read_file("/d/seg") == b"headernext"
    writer.close()


def test_a_failed_write_into_preallocated_space_leaves_no_bytes() -> None:
    filesystem, directory = disk()
    writer = SegmentWriter(directory, "seg", HEADER, allocate_bytes=1000)
    filesystem.fail_at(1, None, forever=True)

    with pytest.raises(OSError, match="No space left"):
        writer.append(b"lost" * 100)

    assert filesystem.read_file("/d/seg") == HEADER
    filesystem.heal()
    writer.append(b"next")
    assert filesystem.read_file("/d/seg").rstrip(b"\0") == b"headernext"
    writer.close()


def test_a_short_write_is_finished() -> None:
    filesystem, directory = disk()
    writer = SegmentWriter(directory, "seg", HEADER, allocate_bytes=0)
    filesystem.fail_at(1, None)

    writer.append(b"whole" * 100)

    assert filesystem.faults == 1
    assert filesystem.read_file("/d/seg") == HEADER + b"whole" * 100
    writer.close()


def test_a_failed_cut_marks_the_segment_as_broken() -> None:
    filesystem, directory = disk()
    writer = SegmentWriter(directory, "seg", HEADER, allocate_bytes=0)
    filesystem.fail_at(1, errno.EIO, forever=True)

    with pytest.raises(OSError, match="Input/output error"):
        writer.append(b"lost")

    assert writer.broken
    filesystem.heal()
    writer.close()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EOPNOTSUPP])
def test_a_failed_preallocation_is_tolerated(error: int) -> None:
    filesystem, directory = disk()
    writer = SegmentWriter(directory, "seg", HEADER, allocate_bytes=1000)
    filesystem.fail_at(1, error)

    writer.append(b"one")

    assert filesystem.faults == 1
    assert filesystem.read_file("/d/seg").rstrip(b"\0") == b"headerone"
    writer.close()


def test_another_error_of_preallocation_leaves_the_segment_as_it_was() -> None:
    filesystem, directory = disk()
    writer = SegmentWriter(directory, "seg", HEADER, allocate_bytes=1000)
    filesystem.fail_at(1, errno.EIO)

    with pytest.raises(OSError, match="Input/output error"):
        writer.append(b"lost")

    assert (writer.end, writer.broken) == (len(HEADER), False)
    assert filesystem.read_file("/d/seg") == HEADER
    writer.close()


def test_a_header_that_cannot_be_written_takes_the_new_file_away() -> None:
    filesystem, directory = disk()
    filesystem.fail_at(2, errno.ENOSPC)

    with pytest.raises(OSError, match="No space left"):
        SegmentWriter(directory, "seg", HEADER, allocate_bytes=1000)

    assert filesystem.files() == {}


def test_the_last_bytes_of_a_disk_are_used_without_preallocation() -> None:
    filesystem, directory = disk()
    filesystem.capacity_bytes = 100

    writer = SegmentWriter(directory, "seg", HEADER, allocate_bytes=1000)
    writer.append(b"x" * 94)

    with pytest.raises(OSError, match="No space left"):
        writer.append(b"y")
    assert filesystem.read_file("/d/seg") == HEADER + b"x" * 94
    writer.close()


def test_the_list_finds_segments_by_offset() -> None:
    segments = SegmentList({20: "c", 0: "a", 10: "b"})

    assert segments.bases == [0, 10, 20]
    assert [segments.containing(offset) for offset in (0, 9, 10, 99)] == [0, 0, 10, 20]
    assert [segments.after(base) for base in (0, 10, 20)] == [10, 20, None]
    segments.drop_first(1)
    assert segments.containing(5) is None
    segments.add(30, "d")
    segments.drop_last()
    assert (segments.bases, segments.names) == ([10, 20], {10: "b", 20: "c"})


def frames(count: int, size: int = 20) -> bytearray:
    values = [b"%02d" % number + b"." * (size - 2) for number in range(count)]
    buffer = bytearray(count * (12 + size))
    CODEC.encode(values, 0, count, buffer, 0, 1)
    return buffer


def scan(data: bytes, expected: int = 0, limit: int = 2**62) -> list[Batch | Damage]:
    filesystem, directory = disk()
    filesystem.write_file("/d/seg", data)
    file = directory.open("seg")
    found = list(scan_segment(file, "seg", CODEC, position=0, expected=expected, limit=limit))
    file.close()
    return found


def counts(found: list[Batch | Damage]) -> list[tuple[int | None, int | None, bool]]:
    """Returns first index, count and whether it is damage."""
    return [
        (item.offset, item.count, True)
        if isinstance(item, Damage)
        else (item.index, len(item.values), False)
        for item in found
    ]


def test_a_whole_segment_is_one_batch() -> None:
    assert counts(scan(bytes(frames(10)))) == [(0, 10, False)]


def test_a_segment_that_is_being_written_ends_at_its_zeros() -> None:
    assert counts(scan(bytes(frames(10)) + bytes(5000))) == [(0, 10, False)]


def test_the_scan_goes_round_damage() -> None:
    data = frames(10)
    data[3 * 32 + 20] ^= 1
    data[7 * 32 + 20] ^= 1

    assert counts(scan(bytes(data))) == [
        (0, 3, False),
        (3, 1, True),
        (4, 3, False),
        (7, 1, True),
        (8, 2, False),
    ]


def test_a_torn_end_is_told_from_damage_by_what_is_expected() -> None:
    data = bytes(frames(10)[:-5])

    torn, damaged = scan(data)[-1], scan(data, expected=10)[-1]

    assert isinstance(torn, Damage)
    assert isinstance(damaged, Damage)
    assert (torn.torn, damaged.torn, damaged.count) == (True, False, 1)


def test_missing_entries_at_the_end_are_counted() -> None:
    damage = scan(bytes(frames(6)), expected=10)[-1]

    assert isinstance(damage, Damage)
    assert (damage.offset, damage.count, damage.torn) == (6, 4, False)


def test_entries_from_the_limit_on_do_not_count() -> None:
    assert counts(scan(bytes(frames(10)), limit=4)) == [(0, 4, False)]


def test_a_frame_larger_than_a_chunk_is_read_whole() -> None:
    found = scan(bytes(frames(2, size=3 << 20)))

    assert counts(found) == [(0, 1, False), (1, 1, False)]


def test_a_header_with_another_base_is_refused() -> None:
    check_base(5, 5, "seg")

    with pytest.raises(NotAQueue, match="header has base offset 6, the name has 5"):
        check_base(6, 5, "seg")
