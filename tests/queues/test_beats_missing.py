"""What is missing in a Beats queue is told: segments, zeros, and what side files say of them."""

from __future__ import annotations

import errno
import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay import BeatsQueue, BeatsReader, Damage, Damaged
from forebay.queues.beats import recovery
from forebay.queues.beats.segments import list_event_segments
from tests.cli.helpers import run
from tests.queues.beats_helpers import (
    PER_SEGMENT,
    WRITABLE,
    leave_segment,
    make_key,
    numbered,
    numbers_of,
    open_queue,
    segment_names,
    state_of,
)
from tests.queues.helpers import flip, snapshot
from tests.support.bad_disk import BadDisk

ALL = list(range(4 * PER_SEGMENT))
Harm = Callable[[Path], object]


def make(path: Path, *, version: str = "v2", acked: int = 0, killed: bool = False) -> None:
    """Makes a queue of four segments; killed, its files are those of a queue that is open."""
    made = path.with_name("made") if killed else path
    with open_queue(made, version, background=False) as queue:
        for first in range(0, len(ALL), PER_SEGMENT):
            queue.put_many(numbered(PER_SEGMENT, first=first))
        if acked:
            queue.read(acked).ack()
        if killed:
            shutil.copytree(made, path)


def take_with_losses(queue: BeatsQueue) -> tuple[list[int], list[int | None]]:
    """Takes everything; returns what was given out and what was told as lost."""
    found: list[int] = []
    lost: list[int | None] = []
    for _ in range(100):
        try:
            batch = queue.read(5)
        except Damaged as error:
            lost.append(error.damage.count)
            continue
        if not batch.events:
            break
        found += numbers_of(batch)
        batch.ack()
    return found, lost


def salvage(path: Path) -> tuple[list[int], list[int | None]]:
    """Returns what a reader gives out, and what it tells as lost."""
    with BeatsReader(path, key_file=make_key(path.parent), salvage=True) as reader:
        found = numbers_of(reader.events(unread=True))
        lost = [item.count for item in reader.damage if not item.torn and item.count != 0]
    return found, lost


def fsck(path: Path) -> tuple[int, str]:
    key = str(make_key(path.parent))
    result = run("fsck", str(path), "--key-file", key)
    return result.exit_code, result.output


def zero(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def empty(file: Path) -> None:
    file.write_bytes(b"")


def cut_at_a_frame(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: 12 + 4 * 100])


def replace_by_link(file: Path) -> None:
    file.rename(file.with_suffix(".moved"))
    file.symlink_to(file.with_suffix(".moved"))


def replace_by_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def replace_by_fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


WHOLE: dict[str, Harm] = {
    "zeroed": zero,
    "emptied": empty,
    "removed": Path.unlink,
    "directory": replace_by_directory,
    "link": replace_by_link,
    "fifo": replace_by_fifo,
}


@pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed"])
@pytest.mark.parametrize("number", [0, 1, 3], ids=["first", "middle", "newest"])
@pytest.mark.parametrize("harm", WHOLE)
def test_a_segment_that_is_gone_is_told_with_its_events(
    tmp_path: Path, harm: str, number: int, killed: bool
) -> None:
    path = tmp_path / "q"
    make(path, killed=killed)
    WHOLE[harm](path / f"{number}.seg")
    first = number * PER_SEGMENT
    left = [item for item in ALL if not first <= item < first + PER_SEGMENT]

    seen = salvage(path)
    code, text = fsck(path)
    with open_queue(path) as queue:
        taken = take_with_losses(queue)
        queue.put_many(numbered(1, first=99))
        more = take_with_losses(queue)
        losses = queue.info().losses

    assert seen == (left, [PER_SEGMENT])
    assert code == 4
    assert f"{number}.seg" in text
    assert f"{PER_SEGMENT} events lost" in text
    assert taken == (left, [PER_SEGMENT])
    assert more == ([99], [])
    assert losses == 1
    assert fsck(path)[0] == 4
    forebay.accept_losses(path)
    assert fsck(path)[0] == 0


@pytest.mark.parametrize("version", WRITABLE)
def test_a_missing_segment_is_told_to_whoever_reads_first(tmp_path: Path, version: str) -> None:
    path = tmp_path / "q"
    with open_queue(path, version) as queue:
        for first in range(0, 40, 20):
            queue.put_many(numbered(20, first=first))
    names = segment_names(path)
    assert len(names) > 1
    (path / names[0]).unlink()

    for _ in range(2):
        with open_queue(path) as queue:
            queue.put_many(numbered(1, first=90))
    with open_queue(path) as queue:
        _, lost = take_with_losses(queue)
    with open_queue(path) as queue:
        assert take_with_losses(queue) == ([], [])
        assert queue.info().losses == 1
    assert len(lost) == 1


def test_a_segment_that_was_cut_at_the_end_of_a_frame_is_told_exactly(tmp_path: Path) -> None:
    path = tmp_path / "q"
    make(path)
    cut_at_a_frame(path / "1.seg")

    assert salvage(path) == ([*ALL[:13], *ALL[18:]], [5])
    with open_queue(path) as queue:
        assert take_with_losses(queue) == ([*ALL[:13], *ALL[18:]], [5])


def test_a_flipped_count_in_a_header_costs_nothing_and_raises_no_alarm(tmp_path: Path) -> None:
    path = tmp_path / "q"
    make(path)
    flip(path / "1.seg", 5)

    code, text = fsck(path)
    with open_queue(path) as queue:
        assert take_with_losses(queue) == (ALL, [])
        assert queue.info().losses == 0
    assert (code, "no damage" in text, "missing" in text) == (0, True, False)


def test_events_that_were_put_behind_a_finished_segment_are_not_given_out(tmp_path: Path) -> None:
    path = tmp_path / "q"
    make(path)
    data = (path / "2.seg").read_bytes()
    with (path / "1.seg").open("ab") as file:
        file.write(data[12:])

    assert salvage(path) == (ALL, [])
    with open_queue(path) as queue:
        assert take_with_losses(queue) == (ALL, [])


def test_a_segment_that_goes_while_the_queue_is_open_is_told(tmp_path: Path) -> None:
    path = tmp_path / "q"
    with open_queue(path, "v2", background=False) as queue:
        for first in range(0, len(ALL), PER_SEGMENT):
            queue.put_many(numbered(PER_SEGMENT, first=first))
        (path / "1.seg").unlink()

        found, lost = take_with_losses(queue)

        assert found == [*ALL[:PER_SEGMENT], *ALL[2 * PER_SEGMENT :]]
        assert lost == [PER_SEGMENT]


def test_all_segments_gone_are_told_and_the_queue_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "q"
    make(path, acked=12)
    for name in segment_names(path):
        (path / name).unlink()

    assert salvage(path) == ([], [6, 9, 9])
    with open_queue(path) as queue:
        found, lost = take_with_losses(queue)
        queue.put_many(numbered(1, first=99))
        assert take_with_losses(queue) == ([99], [])
        assert segment_names(path) == ["4.seg"]
    assert (found, lost) == ([], [6, 9, 9])


def test_what_is_done_with_may_go(tmp_path: Path) -> None:
    path = tmp_path / "q"
    make(path, acked=len(ALL))
    for name in segment_names(path):
        (path / name).unlink()

    assert salvage(path) == ([], [])
    with open_queue(path) as queue:
        assert take_with_losses(queue) == ([], [])


SIDE_FILES = ["mark", "contents", "state.dat", "reserve", "losses"]


def harms_of(name: str) -> dict[str, Harm]:
    return {
        **WHOLE,
        "cut": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
        "junk": lambda file: file.write_bytes(file.read_bytes() + b"junk" * 40),
        "flipped": lambda file: flip(file, 2) if file.stat().st_size else None,
        "sibling": lambda file: shutil.copy(file.parent.with_name("sibling") / name, file),
    }


@pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed"])
@pytest.mark.parametrize("harm", harms_of(""))
@pytest.mark.parametrize("name", SIDE_FILES)
def test_a_side_file_costs_no_event_and_no_open(
    tmp_path: Path, name: str, harm: str, killed: bool
) -> None:
    path = tmp_path / "q"
    make(path, acked=12, killed=killed)
    make(tmp_path / "sibling", acked=20)
    for queue_path in (path, tmp_path / "sibling"):
        forebay.accept_losses(queue_path, [Damage(f"{queue_path}/9.seg", 0, 1, "old", count=1)])
    harms_of(name)[harm](path / name)
    told = [None] if name == "losses" and harm not in ("removed", "sibling") else []

    seen = salvage(path)
    with open_queue(path) as queue:
        queue.put_many(numbered(1, first=99))
        found, lost = take_with_losses(queue)

    # Only both records of the place together are sure.
    assert found[-25:] == [*ALL[12:], 99]
    assert seen[0][-24:] == ALL[12:]
    if (name, harm) not in (("mark", "sibling"), ("contents", "sibling")):
        assert found == [*ALL[12:], 99]
        assert seen[0] == ALL[12:]
    assert lost == told
    with open_queue(path) as queue:
        assert take_with_losses(queue)[0] == []


@pytest.mark.slow
def test_a_flipped_bit_in_the_state_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "q"
    make(path, acked=12)
    good = (path / "state.dat").read_bytes()

    for position in range(8 * len(good)):
        bad = bytearray(good)
        bad[position // 8] ^= 1 << position % 8
        (path / "state.dat").write_bytes(bad)
        assert salvage(path) == (ALL[12:], []), position
        assert fsck(path)[0] == 0 if position % 37 == 0 else True


def test_a_flipped_bit_in_the_state_is_set_right_by_the_owner(tmp_path: Path) -> None:
    for position in (3, 9, 31, 33, 40, 97, 100, 161, 162):
        path = tmp_path / f"q{position}"
        make(path, acked=12)
        good = (path / "state.dat").read_bytes()
        bad = bytearray(good)
        bad[position // 8] ^= 1 << position % 8
        (path / "state.dat").write_bytes(bad)

        with open_queue(path) as queue:
            assert (path / "state.dat").read_bytes() == good
            assert "the mark has the place" in queue.damage[0].reason
            assert take_with_losses(queue) == (ALL[12:], [])


def test_an_older_state_does_not_bring_events_back(tmp_path: Path) -> None:
    path = tmp_path / "q"
    make(path, acked=3)
    older = (path / "state.dat").read_bytes()
    with open_queue(path) as queue:
        queue.read(4).ack()
    (path / "state.dat").write_bytes(older)

    assert salvage(path)[0] == ALL[7:]
    with open_queue(path) as queue:
        assert take_with_losses(queue)[0] == ALL[7:]


def test_a_place_that_a_beat_has_moved_counts(tmp_path: Path) -> None:
    path = tmp_path / "q"
    make(path, acked=3)
    for segment, index in ((0, 5), (1, 0), (1, 2), (2, 9)):
        for number in range(segment):
            (path / f"{number}.seg").unlink(missing_ok=True)
        position = 12 + 100 * index if index else 0
        (path / "state.dat").write_bytes(struct.pack("<IQQQ", 1, segment, position, index))

        assert salvage(path) == (ALL[9 * segment + index :], [])
    with open_queue(path) as queue:
        assert state_of(path) == (2, 912, 9)
        assert take_with_losses(queue) == (ALL[27:], [])


def test_a_beat_that_began_again_with_number_0_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "q"
    make(path, acked=len(ALL))
    for name in segment_names(path):
        (path / name).unlink()
    (path / "state.dat").write_bytes(b"")
    leave_segment(path, 0, "v2", numbered(3, first=50))

    assert salvage(path) == ([50, 51, 52], [])
    with open_queue(path) as queue:
        assert take_with_losses(queue) == ([50, 51, 52], [])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["state.dat", "mark", "contents"])
def test_side_files_of_any_content_cost_no_event(tmp_path: Path, name: str, seed: int) -> None:
    chance = random.Random(seed)
    path = tmp_path / "q"
    make(path)
    good = (path / name).read_bytes()

    for _ in range(25):
        size = chance.choice((0, 1, 4, 19, 20, 28, len(good), 5000))
        data = bytearray(good[:size].ljust(size, b"\0"))
        for _ in range(chance.randrange(1, 4)):
            start = chance.randrange(max(1, size))
            data[start : start + 8] = chance.randbytes(chance.randrange(9))
        (path / name).write_bytes(data)
        with BeatsReader(path, salvage=True) as reader:
            assert numbers_of(reader) == ALL
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(path, tmp_path / "copy")
        with open_queue(tmp_path / "copy") as queue:
            assert take_with_losses(queue) == (ALL, [])


@pytest.mark.slow
def test_a_mark_of_any_values_with_a_right_checksum_costs_no_event(tmp_path: Path) -> None:
    from forebay.kernels.buffers import crc32

    chance = random.Random(5)
    path = tmp_path / "q"
    make(path, acked=3)
    good = (path / "mark").read_bytes()

    for _ in range(60):
        data = bytearray(good)
        for slot in (0, 4096):
            body = data[slot : slot + 12 + 146]
            # Not the id of the queue: then it is the mark of another one.
            start = 12 + 16 + chance.randrange(100)
            body[start : start + 4] = chance.randbytes(4)
            data[slot : slot + len(body) + 4] = body + struct.pack(">I", crc32(bytes(body)))
        (path / "mark").write_bytes(data)
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(path, tmp_path / "copy")
        found, _ = salvage(path)
        with open_queue(tmp_path / "copy") as queue:
            taken, _ = take_with_losses(queue)

        assert found[-33:] == ALL[3:]
        assert taken[-33:] == ALL[3:]


@pytest.mark.parametrize("version", ["v1", "v2", "v2-aes", "v3-seed"])
def test_bad_sectors_cost_the_events_in_them(tmp_path: Path, version: str) -> None:
    path = tmp_path / "q"
    with open_queue(path, version, segment_bytes=100_000) as queue:
        queue.put_many(numbered(400))
    disk = BadDisk({"0.seg": [(8192, 8704)]})
    key = make_key(tmp_path)

    with BeatsReader(path, key_file=key, salvage=True, filesystem=disk) as reader:
        seen = numbers_of(reader)
        damage = list(reader.damage)
    with BeatsQueue(path, key_file=key, filesystem=disk) as queue:
        found, lost = take_with_losses(queue)

    assert 390 < len(seen) < 400
    assert found == seen
    assert sum(count or 0 for count in lost) == 400 - len(seen)
    assert "Input/output error" in damage[0].reason
    assert damage[0].path.endswith("0.seg")


@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES])
@pytest.mark.parametrize("name", ["0.seg", "3.seg", *SIDE_FILES])
def test_a_file_that_cannot_be_opened_costs_itself(tmp_path: Path, name: str, error: int) -> None:
    path = tmp_path / "q"
    make(path)
    disk = BadDisk(unopenable={name: error})

    with BeatsReader(path, salvage=True, filesystem=disk) as reader:
        seen = numbers_of(reader)
    with BeatsQueue(path, filesystem=disk) as queue:
        found, lost = take_with_losses(queue)

    assert found == seen
    if name.endswith(".seg"):
        assert (len(found), lost) == (27, [9])
    else:
        assert found == ALL


@pytest.mark.parametrize("name", ["0.seg", "3.seg", "mark", "contents", "state.dat"])
def test_a_file_of_which_nothing_can_be_read_costs_itself(tmp_path: Path, name: str) -> None:
    path = tmp_path / "q"
    make(path)
    disk = BadDisk({name: [(0, 1 << 30)]})

    with BeatsReader(path, salvage=True, filesystem=disk) as reader:
        seen = numbers_of(reader)
    with BeatsQueue(path, filesystem=disk) as queue:
        found, lost = take_with_losses(queue)

    assert found == seen
    if name.endswith(".seg"):
        assert (len(found), lost) == (27, [9])
    else:
        assert found == ALL


def test_a_reader_changes_nothing_of_a_damaged_queue(tmp_path: Path) -> None:
    path = tmp_path / "q"
    make(path)
    (path / "1.seg").unlink()
    before = snapshot(path)

    salvage(path)
    fsck(path)

    assert snapshot(path) == before


def describe(queue: BeatsQueue) -> Any:
    return queue.info().unread


def test_info_tells_how_many_events_wait(tmp_path: Path) -> None:
    path = tmp_path / "q"
    with open_queue(path, "v2", background=False) as queue:
        before = describe(queue)
        queue.put_many(numbered(25))
        put = describe(queue)
        queue.read(12).ack()
        acked = describe(queue)
    with open_queue(path) as queue:
        again = describe(queue)
        queue.put_many(numbered(2))
        assert (before, put, acked, again, describe(queue)) == (0, 25, 13, 13, 15)
        take_with_losses(queue)
        assert describe(queue) == 0


@pytest.mark.slow
def test_an_owner_that_removes_segments_during_every_look_of_a_reader_causes_no_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "q"
    count = 4_200
    with open_queue(path, background=False, sync="os") as queue:
        queue.put_many(numbered(count))

        def list_between_acks(directory: Any) -> Any:
            # More than a segment holds: one goes with each.
            queue.read(20).ack()
            segments = list_event_segments(directory)
            queue.read(20).ack()
            return segments

        monkeypatch.setattr(recovery, "list_event_segments", list_between_acks)
        reader = BeatsReader(path, key_file=make_key(tmp_path))
        monkeypatch.undo()
        with reader:
            found = numbers_of(reader.events(unread=True))

    assert found == list(range(count))[-len(found) :]
    assert found
    assert reader.missing == {}
