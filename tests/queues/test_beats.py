"""What a Beats queue does: put, read, acknowledge, in every version that it writes."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path

import pytest

import forebay
from forebay import BeatsQueue, BeatsReader, Empty, Event, InvalidEvent, InvalidOption
from tests.formats.beats_independent import read_segment
from tests.queues.beats_helpers import (
    PER_SEGMENT,
    WRITABLE,
    numbered,
    numbers_of,
    open_queue,
    segment_names,
    state_of,
    take_all,
    unread,
)
from tests.queues.helpers import run_threads
from tests.support.inside import sync_together, writer_of

each_version = pytest.mark.parametrize("version", WRITABLE)


@each_version
@pytest.mark.parametrize("sync", ["always", "interval", "os"])
def test_events_come_out_in_order_as_they_were_put(tmp_path: Path, version: str, sync: str) -> None:
    with open_queue(tmp_path / "q", version, sync=sync) as queue:
        for event in numbered(12):
            queue.put(event)
        queue.put_many(numbered(40, first=12))

        assert take_all(queue) == list(range(52))
        assert len(queue.read(5)) == 0


@each_version
def test_a_reopened_queue_goes_on_from_its_place(tmp_path: Path, version: str) -> None:
    with open_queue(tmp_path / "q", version) as queue:
        queue.put_many(numbered(30))
        queue.read(13).ack()
        queue.read(4)

    with open_queue(tmp_path / "q") as queue:
        assert queue.version == version
        assert take_all(queue) == list(range(13, 30))


@each_version
def test_a_reader_sees_what_the_owner_has_put(tmp_path: Path, version: str) -> None:
    with open_queue(tmp_path / "q", version) as queue:
        queue.put_many(numbered(30))
        queue.read(13).ack()
        live = unread(tmp_path / "q")

    assert live == list(range(13, 30))
    assert unread(tmp_path / "q") == live


def test_the_place_moves_over_acknowledgements_without_a_gap(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q", "v2") as queue:
        queue.put_many(numbered(PER_SEGMENT))
        first, second, third = queue.read(2), queue.read(3), queue.read(1)
        third.ack()
        before = state_of(tmp_path / "q")
        second.ack()
        first.ack()

        assert before == (0, 0, 0)
        assert state_of(tmp_path / "q") == (0, 12 + 6 * 100, 6)


def test_a_batch_that_is_given_back_comes_again_before_newer_ones(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q") as queue:
        queue.put_many(numbered(30))
        first, second = queue.read(12), queue.read(3)
        first.nack()

        assert [numbers_of(queue.read(5)) for _ in range(4)] == [
            [0, 1, 2, 3, 4],
            [5, 6, 7, 8, 9],
            [10, 11],
            [15, 16, 17, 18, 19],
        ]
        assert numbers_of(second) == [12, 13, 14]


def test_a_batch_is_settled_once(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q") as queue:
        queue.put_many(numbered(5))
        batch = queue.read(2)
        batch.ack()
        batch.nack()
        batch.ack()

        assert take_all(queue) == [2, 3, 4]


def test_segments_go_when_they_are_done_with_and_the_newest_stays(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q", "v2") as queue:
        queue.put_many(numbered(3 * PER_SEGMENT))
        names = segment_names(tmp_path / "q")
        queue.read(PER_SEGMENT).ack()
        after_one = segment_names(tmp_path / "q")
        take_all(queue)

        assert names == ["0.seg", "1.seg", "2.seg"]
        assert after_one == ["1.seg", "2.seg"]
        assert segment_names(tmp_path / "q") == ["2.seg"]


def test_a_new_process_never_appends_to_an_old_segment(tmp_path: Path) -> None:
    for first in range(3):
        with open_queue(tmp_path / "q", "v2") as queue:
            queue.put_many(numbered(1, first))

    assert segment_names(tmp_path / "q") == ["0.seg", "1.seg", "2.seg"]
    assert unread(tmp_path / "q") == [0, 1, 2]


def test_numbers_of_segments_never_go_back(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q", "v2") as queue:
        queue.put_many(numbered(2 * PER_SEGMENT))
        take_all(queue)
    for file in (tmp_path / "q").glob("*.seg"):
        file.unlink()

    with open_queue(tmp_path / "q") as queue:
        state = (tmp_path / "q" / "state.dat").read_bytes()
        queue.put_many(numbered(1))

        assert state == b""
        assert segment_names(tmp_path / "q") == ["2.seg"]
        assert take_all(queue) == [0]


def test_a_state_alone_keeps_the_numbers_from_going_back(tmp_path: Path) -> None:
    (tmp_path / "q").mkdir(mode=0o700)
    state = bytes.fromhex("01000000 0700000000000000 0000000000000000 0000000000000000")
    (tmp_path / "q" / "state.dat").write_bytes(state)

    with open_queue(tmp_path / "q") as queue:
        queue.put_many(numbered(1))

        assert segment_names(tmp_path / "q") == ["8.seg"]
        assert take_all(queue) == [0]


@each_version
def test_a_closed_segment_is_what_beats_writes(tmp_path: Path, version: str) -> None:
    with open_queue(tmp_path / "q", version) as queue:
        for event in numbered(20):
            queue.put(event)

    frames = []
    for name in segment_names(tmp_path / "q"):
        data = (tmp_path / "q" / name).read_bytes()
        events = read_segment(version, data)
        counted = version in ("v1", "v2", "v2-lz4")
        assert not counted or int.from_bytes(data[4:8], "little") == len(events)
        frames += events
    assert len(frames) == 20


def test_a_map_is_an_event_with_the_present_time(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q") as queue:
        queue.put({"fields": {"message": "hello", "when": datetime(2021, 2, 3, tzinfo=UTC)}})
        (event,) = queue.read(1)

    assert event.fields == {"message": "hello", "when": "2021-02-03T00:00:00.000Z"}
    assert event.timestamp_ns > 1_700_000_000_000_000_000
    assert (event.flags, event.meta) == (0, {})


@pytest.mark.parametrize(
    "bad",
    [
        {"fields": {"": 1}},
        {"fields": None},
        {"meta": None},
        {"fields": {1: 2}},
        {"fields": {"a": object}},
        {"fields": {"a": 2**64}},
        {"flags": 256},
        {"timestamp_ns": "now"},
        {"Timestamp": 1},
        "text",
    ],
    ids=str,
)
def test_what_beats_would_not_read_back_is_refused_before_anything_is_written(
    tmp_path: Path, bad: object
) -> None:
    with open_queue(tmp_path / "q") as queue:
        with pytest.raises(InvalidEvent):
            queue.put_many([*numbered(3), bad])  # type: ignore[list-item]  # that is tested

        assert segment_names(tmp_path / "q") == []
        assert len(queue.read(5)) == 0


def test_odd_values_come_back_as_they_were(tmp_path: Path) -> None:
    fields = {"b": b"\xff\0", "inf": -math.inf, "bad": "a\udcff", "deep": [[{"n": -200}], None]}
    with open_queue(tmp_path / "q") as queue:
        queue.put(Event(-1, 255, {"_id": "x"}, fields))

        assert queue.read(1).events == [Event(-1, 255, {"_id": "x"}, fields)]


def test_a_read_with_a_timeout_waits_for_the_first_event(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q") as queue:
        with pytest.raises(Empty):
            queue.read(1, timeout=0.01)

        def work(number: int) -> None:
            if number:
                queue.put_many(numbered(1))
            else:
                assert numbers_of(queue.read(3, timeout=120)) == [0]

        run_threads(2, work)


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["always", "os"])
def test_many_threads_put_and_take_everything_once(tmp_path: Path, sync: str) -> None:
    taken: list[int] = []

    with open_queue(tmp_path / "q", "v2", sync=sync, segment_bytes=4000) as queue:

        def work(number: int) -> None:
            if number < 4:
                for event in numbered(40, first=100 * number):
                    queue.put(event)
                return
            while len(taken) < 160:
                batch = queue.read(9)
                taken.extend(numbers_of(batch))
                batch.ack()

        run_threads(6, work)

        assert sorted(taken) == [100 * part + number for part in range(4) for number in range(40)]
        assert len(segment_names(tmp_path / "q")) == 1


def test_durable_puts_of_many_threads_share_syncs(tmp_path: Path) -> None:
    with open_queue(tmp_path / "q", "v2", segment_bytes=4000) as queue:
        sync_together(writer_of(queue).commit, 4)
        run_threads(4, lambda _: list(map(queue.put, numbered(40))))

        assert queue.info().syncs == 40


def test_open_and_read_tell_an_event_queue_by_what_is_there(tmp_path: Path) -> None:
    open_queue(tmp_path / "q").close()
    with forebay.open(tmp_path / "q", kind="beats") as queue:
        queue.put_many(numbered(2))

    with forebay.read(tmp_path / "q") as reader:
        assert isinstance(queue, BeatsQueue)
        assert isinstance(reader, BeatsReader)
        assert numbers_of(reader) == [0, 1]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"version": "v0"}, "version = 'v0'"),
        ({"version": "v3-seed", "key_file": None}, "needs a key_file"),
        ({"version": True}, "version = True"),
        ({"dialect": "mine"}, "dialect = 'mine'"),
        ({"retry_seconds": -1}, "retry_seconds = -1"),
        ({"max_bytes": 5}, "max_bytes = 5"),
    ],
)
def test_a_wrong_option_is_named_with_its_bound(
    tmp_path: Path, options: dict[str, object], text: str
) -> None:
    with pytest.raises(InvalidOption) as caught:
        open_queue(tmp_path / "q", **options)  # type: ignore[arg-type]  # that is what is tested

    assert text in str(caught.value)
    assert not (tmp_path / "q").exists()


@pytest.mark.parametrize(
    ("version", "dialect", "name"),
    [(1, None, "v1"), (2, None, "v2"), (2, "seed", "v2-seed"), (3, None, "v3-seed")],
)
def test_a_number_stands_for_a_version(
    tmp_path: Path, version: int, dialect: str | None, name: str
) -> None:
    with open_queue(tmp_path / "q", version, dialect=dialect) as queue:  # type: ignore[arg-type]
        assert queue.version == name


def test_the_default_is_the_released_version_and_with_a_key_the_seeds(tmp_path: Path) -> None:
    with BeatsQueue(tmp_path / "plain") as plain, open_queue(tmp_path / "secret") as secret:
        assert (plain.version, secret.version) == ("v2", "v3-seed")
