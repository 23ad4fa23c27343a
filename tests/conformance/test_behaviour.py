"""What every kind of queue does alike: one suite for four kinds and a toy, owned and shared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay import Closed, Full, InvalidOption, NotAQueue, RecordTooLarge
from forebay.queues.shared.options import SyncPolicy
from tests.kinds import KINDS, Kind
from tests.kinds.shared import EACH_SHARED
from tests.kinds.toy import ToyKind, toys
from tests.queues.helpers import SYNCS, run_threads, snapshot
from tests.support.killing import Tell, kill_a_writer
from tests.support.values import numbered

pytestmark = [
    pytest.mark.parametrize(
        "kind",
        [*KINDS.values(), ToyKind(), *EACH_SHARED],
        ids=lambda kind: kind.name,
    ),
    pytest.mark.usefixtures("servers"),
]
SYNC = pytest.mark.parametrize("sync", SYNCS)


@pytest.fixture(autouse=True)
def _toys() -> Iterator[None]:
    with toys():
        yield


@SYNC
def test_values_come_back_in_their_order_across_files_and_reopenings(
    tmp_path: Path, kind: Kind, sync: str
) -> None:
    values = numbered(40)
    with kind.queue(tmp_path / "q", sync=sync, **kind.small) as queue:
        for value in values[:10]:
            kind.put(queue, value)
        kind.put_many(queue, values[10:25])
    with kind.queue(tmp_path / "q", sync=sync, **kind.small) as queue:
        kind.put_many(queue, values[25:])
        found = kind.drain(queue)

    assert found == values


@SYNC
def test_posts_keep_their_order_and_are_there_after_a_flush(
    tmp_path: Path, kind: Kind, sync: str
) -> None:
    if isinstance(kind, ToyKind):
        pytest.skip("a toy has no posts")
    values = numbered(40)
    with kind.queue(tmp_path / "q", sync=sync, **kind.small) as queue:
        queue.flush()
        tickets = [kind.post(queue, value) for value in values[:20]]
        queue.flush(tickets[3])
        queue.flush()
        tickets += [kind.post(queue, value) for value in values[20:]]
        queue.flush(tickets[-1])
        found = kind.drain(queue)

        # An item that had to wait for memory has a later deadline than one that came after it.
        assert (found if kind.ordered else sorted(found)) == values
        assert tickets == sorted(set(tickets))


def test_a_post_of_what_is_refused_is_refused_at_the_latest_by_the_flush(
    tmp_path: Path, kind: Kind
) -> None:
    if isinstance(kind, ToyKind):
        pytest.skip("a toy has no posts")
    with kind.queue(tmp_path / "q", **kind.bounded) as queue:
        with pytest.raises((RecordTooLarge, Full), match=r"of 50\d\d bytes"):
            _post_and_flush(kind, queue, bytes(5_000))
        kind.post(queue, b"fits")
        queue.flush()

        assert kind.drain(queue) == [b"fits"]


def _post_and_flush(kind: Kind, queue: Any, value: bytes) -> None:
    kind.post(queue, value)
    queue.flush()


def test_a_closed_queue_takes_no_posts(tmp_path: Path, kind: Kind) -> None:
    if isinstance(kind, ToyKind):
        pytest.skip("a toy has no posts")
    queue = kind.queue(tmp_path / "q", sync="os")
    kind.post(queue, b"one")
    queue.close()

    with pytest.raises(Closed):
        kind.post(queue, b"two")
    with kind.queue(tmp_path / "q") as queue:
        assert kind.drain(queue) == [b"one"]


@pytest.mark.slow
@SYNC
def test_kill_9_takes_nothing_that_was_acknowledged(
    tmp_path: Path, kind: Kind, sync: SyncPolicy
) -> None:
    def write(tell: Tell) -> None:
        queue = kind.queue(tmp_path / "q", sync=sync)
        for number in range(200):
            kind.put(queue, b"v%d" % number)
            tell(number + 1)

    acknowledged = kill_a_writer(write, told=50)

    with kind.queue(tmp_path / "q", sync=sync) as queue:
        found = kind.drain(queue)

    assert found[:acknowledged] == [b"v%d" % number for number in range(acknowledged)]
    assert len(found) - acknowledged <= 1


def fill(kind: Kind, queue: Any) -> int:
    """Puts until the queue is full; gives how many it took."""
    for number, value in enumerate(numbered(100)):
        try:
            kind.put(queue, value)
        except Full:
            return number
    raise AssertionError("it is never full")


def test_a_full_queue_refuses_and_takes_again_when_there_is_room(
    tmp_path: Path, kind: Kind
) -> None:
    with kind.queue(tmp_path / "q", when_full="reject", **kind.bounded) as queue:
        put = fill(kind, queue)
        found = kind.drain(queue)
        kind.put(queue, b"again")

        assert found == numbered(put)
        assert put > 10


def test_drop_oldest_keeps_the_newest_and_counts_the_rest(tmp_path: Path, kind: Kind) -> None:
    if not kind.record.drops_oldest:
        pytest.skip("what is due later is never dropped")
    with kind.queue(tmp_path / "q", when_full="drop_oldest", **kind.bounded) as queue:
        for value in numbered(100):
            kind.put(queue, value)
        found = kind.drain(queue)
        dropped = queue.info().dropped

        assert found == numbered(100)[-len(found) :]
        assert dropped == 100 - len(found) > 0


def test_what_can_never_fit_is_refused_and_nothing_is_written(tmp_path: Path, kind: Kind) -> None:
    with kind.queue(tmp_path / "q", **kind.bounded) as queue:
        with pytest.raises((RecordTooLarge, Full), match=r"of 50\d\d bytes"):
            kind.put(queue, bytes(5_000))

        assert kind.drain(queue) == []


def test_a_wrong_option_is_named_with_its_bound(tmp_path: Path, kind: Kind) -> None:
    with pytest.raises(InvalidOption, match=r"sync = 'never': must be one of 'always'"):
        kind.queue(tmp_path / "q", sync="never")
    with pytest.raises(TypeError, match="unexpected keyword argument 'sink'"):
        kind.queue(tmp_path / "q", sink="always")

    assert not (tmp_path / "q").exists()


def test_a_directory_of_something_else_is_left_alone(tmp_path: Path, kind: Kind) -> None:
    (tmp_path / "q").mkdir(mode=0o700)
    (tmp_path / "q" / "letter.txt").write_text("dear")

    with pytest.raises(NotAQueue, match=r"letter\.txt"):
        kind.queue(tmp_path / "q")

    assert snapshot(tmp_path / "q") == {"letter.txt": b"dear"}


def test_threads_that_put_at_once_lose_and_double_nothing(tmp_path: Path, kind: Kind) -> None:
    with kind.queue(tmp_path / "q") as queue:
        run_threads(8, lambda number: [kind.put(queue, b"%d %d" % (number, n)) for n in range(25)])
        found = kind.drain(queue)

    assert sorted(found) == sorted(b"%d %d" % (t, n) for t in range(8) for n in range(25))
    for thread in range(8):
        own = [value for value in found if value.startswith(b"%d " % thread)]
        assert own == [b"%d %d" % (thread, n) for n in range(25)]
