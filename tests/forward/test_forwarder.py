"""The promise: every record ends delivered, set aside, waiting or dropped, and the sums add up."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from forebay import Log, LogReader, OutputManager, OutputRefused
from forebay.errors import Closed, DataLoss, InvalidOption, Locked
from forebay.forward.forwarder import Forwarder
from forebay.forward.function import FunctionOutput
from forebay.forward.options import ForwardOptions
from forebay.forward.outputs import Again, Batch, Delivered, Mixed, Refused
from forebay.forward.sources import LogSource
from forebay.forward.state import State, read_state
from forebay.queues.shared.forwarding import forwarders_of, read_live
from tests.support.clocks import FakeClock
from tests.support.forwarding import FAST, POISON, Taker, check_holds, forward_all, state_of
from tests.support.values import numbered
from tests.support.waiting import wait_until


def log_with(path: Path, values: list[bytes], **options: Any) -> Log:
    log = Log(path, **options)
    log.append_many(values)
    return log


def set_aside(queue: Path) -> list[dict[str, Any]]:
    with LogReader(state_of(queue) / "set-aside") as reader:
        return [json.loads(value) for value in reader.values()]


def test_all_records_arrive_in_order_and_are_counted(tmp_path: Path) -> None:
    taker = Taker()

    with log_with(tmp_path / "q", numbered(205)) as log:
        manager = forward_all(log, taker)

    assert taker.values == numbered(205)
    assert [len(batch) for batch in taker.batches] == [20] * 10 + [5]
    assert (manager.settled.delivered, manager.settled.place) == (205, 205)
    assert check_holds(tmp_path / "q").records == 205


def test_a_manager_sends_what_is_put_in_the_background(tmp_path: Path) -> None:
    taker = Taker()

    with OutputManager(tmp_path / "q", taker, **FAST) as out:
        out.put(b"one")
        out.put_many([b"two", b"three"])
        empty = out.wait_until_empty(30)

    assert empty
    assert taker.values == [b"one", b"two", b"three"]
    with pytest.raises(Closed):
        out.put(b"four")


def test_an_outage_is_waited_for_whatever_it_is(tmp_path: Path) -> None:
    failures: list[Any] = [
        Again("503"),
        OSError("reset"),
        ValueError("a bug"),
        Again("429", 0.001),
    ] * 3
    taker = Taker(answers=[*failures])

    with log_with(tmp_path / "q", numbered(3)) as log:
        manager = forward_all(log, taker, retry_seconds_max=0.01)

    assert taker.values == numbered(3)
    assert taker.requests == len(failures) + 1
    assert manager.settled.set_aside == 0


def test_poison_is_set_aside_alone_with_the_words_of_the_output(tmp_path: Path) -> None:
    values = numbered(100)
    for number in (0, 7, 8, 50, 99):
        values[number] += POISON
    taker = Taker()

    with log_with(tmp_path / "q", values) as log:
        manager = forward_all(log, taker)

    assert taker.values == [value for value in values if POISON not in value]
    assert [
        (each["offset"], each["reason"], each["attempts"]) for each in set_aside(tmp_path / "q")
    ] == [(number, "poison", 1) for number in (0, 7, 8, 50, 99)]
    assert manager.settled.set_aside == 5
    assert check_holds(tmp_path / "q").records == 100


def test_a_function_refuses_with_an_exception(tmp_path: Path) -> None:
    def refuse(batch: Batch) -> None:
        raise OutputRefused("never")

    with log_with(tmp_path / "q", numbered(3)) as log:
        manager = forward_all(log, refuse)

    assert (manager.settled.delivered, manager.settled.set_aside) == (0, 3)


def test_batches_that_are_too_large_make_them_smaller_for_good(tmp_path: Path) -> None:
    sizes = []

    def take(batch: Batch) -> Delivered | Refused:
        sizes.append(sum(len(record.value) for record in batch.records))
        return Refused("413", too_large=True) if sizes[-1] > 300 else Delivered()

    with log_with(tmp_path / "q", [b"x" * 100] * 60) as log:
        first = forward_all(log, take)
        count = len(sizes)
        log.append_many([b"x" * 100] * 60)
        second = forward_all(log, take)

    assert first.settled.batch_bytes <= 600
    assert (second.settled.delivered, second.settled.set_aside) == (120, 0)
    assert max(sizes[count:]) <= first.settled.batch_bytes


def test_answers_for_single_records_repeat_only_those(tmp_path: Path) -> None:
    asked: list[list[bytes]] = []

    def take(batch: Batch) -> Mixed | Delivered:
        asked.append([record.value for record in batch.records])
        if len(asked) == 1:
            return Mixed(again={1: "busy", 4: "busy"}, refused={2: "bad"})
        return Mixed(refused={1: "bad too"}) if len(asked) == 2 else Delivered()

    with log_with(tmp_path / "q", numbered(6)) as log:
        manager = forward_all(log, take)

    assert asked == [numbered(6), [numbered(6)[1], numbered(6)[4]]]
    assert (manager.settled.delivered, manager.settled.set_aside) == (4, 2)
    assert [each["offset"] for each in set_aside(tmp_path / "q")] == [2, 4]


def test_what_is_left_after_mixed_answers_can_be_halved(tmp_path: Path) -> None:
    asked = []

    def take(batch: Batch) -> Mixed | Delivered | Refused:
        asked.append([record.offset for record in batch.records])
        if len(asked) == 1:
            return Mixed(again={1: "busy", 3: "busy", 5: "busy"}, refused={0: "bad"})
        return Refused("poison") if 3 in asked[-1] else Delivered()

    with log_with(tmp_path / "q", numbered(6)) as log:
        manager = forward_all(log, take)

    assert (manager.settled.delivered, manager.settled.set_aside) == (4, 2)
    assert [each["offset"] for each in set_aside(tmp_path / "q")] == [0, 3]
    assert check_holds(tmp_path / "q").records == 6


def test_a_repeat_after_a_restart_has_the_same_key_and_bytes(tmp_path: Path) -> None:
    seen: list[Batch] = []
    stop = threading.Event()

    def fail(batch: Batch) -> Again:
        seen.append(batch)
        stop.set()
        return Again("away")

    with log_with(tmp_path / "q", numbered(30)) as log:
        with OutputManager(log, fail, **FAST):
            assert stop.wait(30)
        # Now more would fit into the batch.
        taker = Taker()
        forward_all(log, taker, batch_records=100)

    assert (taker.batches[0].key, taker.batches[0].body) == (seen[0].key, seen[0].body)
    assert [len(batch) for batch in taker.batches] == [20, 10]


def test_another_encoding_of_a_batch_on_its_way_gets_another_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Shouting(FunctionOutput):
        def encode(self, records: Any, context: Any) -> bytes:
            return super().encode(records, context).upper()

    with log_with(tmp_path / "q", [b"a"]) as log:
        stuck = OutputManager(log, Taker(answers=[Again("away")] * 10_000), **FAST)
        assert wait_for_cut(tmp_path / "q")
        stuck.close()
        taker = Taker()
        forward_all(log, Shouting(taker))

    assert taker.batches[0].key.endswith("/0-0/2")
    assert "may arrive twice" in caplog.text


def wait_for_cut(queue: Path) -> bool:
    def has_cut() -> bool:
        found = read_state(state_of(queue))
        return found is not None and bool(found.cuts)

    return wait_until(has_cut)


def test_dropped_records_are_counted_and_the_output_is_told(tmp_path: Path) -> None:
    gaps: list[Batch] = []
    taker = Taker()
    output = FunctionOutput(taker, on_gap=gaps.append)

    options: Any = {"segment_bytes": 1000, "max_bytes": 3000, "when_full": "drop_oldest"}

    with Log(tmp_path / "q", sync="os", **options) as log:
        forward_all(log, output)
        for value in numbered(500):
            log.append(value)
        begin = log.begin
        manager = forward_all(log, output)

    assert begin > 0
    assert taker.values == numbered(500)[begin:]
    assert manager.settled.dropped == begin
    assert [(batch.gap.first, batch.gap.count) for batch in gaps if batch.gap] == [(0, begin)]
    assert json.loads(gaps[0].body)["forebay_gap"]["last"] == begin - 1
    assert check_holds(tmp_path / "q").records == 500


def test_max_bytes_is_asserted_when_the_log_is_opened(tmp_path: Path) -> None:
    with log_with(tmp_path / "q", [], segment_bytes=1000) as log:
        forward_all(log, Taker())
        log.append_many(numbered(500))
    taker = Taker()

    with OutputManager(tmp_path / "q", taker, max_bytes=3000, segment_bytes=1000, **FAST) as out:
        assert out.wait_until_empty(30)
        settled = out.settled

    assert 0 < settled.dropped < 500
    assert settled.dropped + settled.delivered == 500


def test_records_older_than_their_time_to_live_are_dropped(tmp_path: Path) -> None:
    clock = FakeClock()
    gaps: list[Batch] = []
    taker = Taker()

    with Log(tmp_path / "q", clock=clock, background=False) as log:
        log.append_many(numbered(30))
        clock.ms += 10_000
        log.append_many([b"young"] * 3)
        options = {"ttl_seconds": 5, "clock": clock}
        manager = forward_all(log, FunctionOutput(taker, on_gap=gaps.append), **options)

    assert taker.values == [b"young"] * 3
    assert (manager.settled.dropped, manager.settled.delivered) == (30, 3)
    assert sum(batch.gap.count for batch in gaps if batch.gap) == 30


def test_damaged_records_are_counted_and_told_once(tmp_path: Path) -> None:
    log_with(tmp_path / "q", numbered(60), segment_bytes=1000).close()
    first = sorted(file for file in (tmp_path / "q").iterdir() if file.name.isalnum())[0]
    data = bytearray(first.read_bytes())
    data[200] ^= 0xFF
    first.write_bytes(data)
    gaps: list[Batch] = []
    taker = Taker()

    with Log(tmp_path / "q") as log:
        manager = forward_all(log, FunctionOutput(taker, on_gap=gaps.append))

    assert manager.settled.damaged == len(gaps) == 1
    assert manager.settled.delivered == 59
    assert not gaps[0].gap.dropped  # type: ignore[union-attr]  # a batch of a gap has one
    assert check_holds(tmp_path / "q").records == 60


def test_several_batches_in_flight_lose_and_repeat_nothing(tmp_path: Path) -> None:
    failures: list[Any] = [Again("busy"), Delivered(), OSError("reset"), Delivered()] * 5
    taker = Taker(answers=[*failures])
    values = numbered(400)
    values[77] += POISON

    with log_with(tmp_path / "q", values) as log:
        manager = forward_all(log, FunctionOutput(taker, takes_key=True), in_flight=4)

    assert sorted(taker.values) == sorted(value for value in values if POISON not in value)
    assert (manager.settled.delivered, manager.settled.set_aside) == (399, 1)
    assert check_holds(tmp_path / "q").records == 400


def test_several_in_flight_are_refused_without_a_key(tmp_path: Path) -> None:
    with Log(tmp_path / "q") as log, pytest.raises(InvalidOption, match="takes no key"):
        OutputManager(log, Taker(), in_flight=2)


class Outage:
    """A simulated outage: the clock goes on as fast as the forwarder waits."""

    def __init__(self, path: Path, answers: list[Any], limit: int | None = None) -> None:
        self.clock = FakeClock()
        self.pauses: list[float] = []
        self.log = Log(path, background=False)
        self.taker = Taker(answers=answers)
        self.state = State(str(path) + "-state", self.clock)
        self.forwarder = Forwarder(
            *(LogSource(self.log, "forward"), FunctionOutput(self.taker), self.state),
            *(ForwardOptions(batch_seconds=0), self.clock),
            limit=limit,
            pause=self._pause,
            shuffle=lambda: 1.0,
        )

    def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.clock.ms += round(seconds * 1000)

    def close(self) -> None:
        self.state.close()
        self.log.close()


def test_the_delay_doubles_up_to_a_minute_on_the_boot_clock(tmp_path: Path) -> None:
    outage = Outage(tmp_path / "q", [Again("away")] * 10)
    outage.log.append(b"x")

    outage.forwarder.run(until_empty=True)
    outage.close()

    assert outage.pauses == [0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_an_output_says_how_long_to_wait_and_is_heard_up_to_an_hour(tmp_path: Path) -> None:
    outage = Outage(tmp_path / "q", [Again("429", 120), Again("429", 1e9)])
    outage.log.append(b"x")

    outage.forwarder.run(until_empty=True)
    outage.close()

    assert outage.pauses == [120, 3600]


def test_an_outage_is_logged_when_it_begins_and_when_it_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outage = Outage(tmp_path / "q", [Again("HTTP 503")] * 20)
    outage.log.append(b"x")

    with caplog.at_level(logging.WARNING):
        outage.forwarder.run(until_empty=True)
    outage.close()

    begun, ended = [record.getMessage() for record in caplog.records]
    assert "does not take records: HTTP 503" in begun
    assert "takes records again" in ended


def test_the_present_state_can_be_read_from_outside(tmp_path: Path) -> None:
    with log_with(tmp_path / "q", numbered(50)) as log:
        forward_all(log, Taker(answers=[Again("HTTP 503")]))

    (live,) = forwarders_of(tmp_path / "q")

    assert (live.state, live.delivered, live.lag, live.pid) == ("stopped", 50, 0, None)
    assert live.last_error == "HTTP 503"
    assert live == read_live(state_of(tmp_path / "q"))


def test_a_state_is_used_by_one_forwarder_at_a_time(tmp_path: Path) -> None:
    with (
        Log(tmp_path / "q") as log,
        Log(tmp_path / "r") as other,
        OutputManager(log, Taker(), state=tmp_path / "s", background=False),
        pytest.raises(Locked),
    ):
        OutputManager(other, Taker(), state=tmp_path / "s")


def test_the_state_of_another_queue_is_refused(tmp_path: Path) -> None:
    with log_with(tmp_path / "q", numbered(3)) as log:
        forward_all(log, Taker(), state=tmp_path / "s")

    with (
        log_with(tmp_path / "r", numbered(3)) as other,
        pytest.raises(DataLoss, match="made again"),
    ):
        forward_all(other, Taker(), state=tmp_path / "s")


def test_a_consumer_that_was_moved_by_hand_is_noticed(tmp_path: Path) -> None:
    with log_with(tmp_path / "q", numbered(3)) as log:
        forward_all(log, Taker())
        log.append_many(numbered(3))
        with log.consumer("forward") as consumer:
            consumer.read(2)
            consumer.commit()

        with pytest.raises(DataLoss, match="another program has moved it"):
            forward_all(log, Taker())


def test_a_lost_state_goes_on_from_the_place_in_the_queue(tmp_path: Path) -> None:
    with log_with(tmp_path / "q", numbered(40)) as log:
        forward_all(log, Taker(), state=tmp_path / "one")
        log.append(b"new")
        taker = Taker()
        forward_all(log, taker, state=tmp_path / "two")

    assert taker.values == [b"new"]


def test_trimming_waits_for_the_output(tmp_path: Path) -> None:
    with Log(tmp_path / "q", segment_bytes=1000) as log:
        log.append_many(numbered(200))
        with OutputManager(log, Taker(answers=[Again("away")] * 100_000), **FAST):
            before = log.trim()
        forward_all(log, Taker())
        after = log.trim()

    assert before == 0
    assert after > 100


def test_a_limit_ends_after_so_many_records(tmp_path: Path) -> None:
    outage = Outage(tmp_path / "q", [], limit=10)
    outage.log.append_many(numbered(100))

    outage.forwarder.run()
    outage.close()

    assert outage.taker.values == numbered(10)
