"""What the crash simulation runs: a few scenarios by name, and random ones by seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.crash.deadline_kind import DeadlineWorkload
from tests.crash.log_kind import LogWorkload
from tests.crash.workload import Workload

# Of any kind of queue, or of one: then it uses what only that one has.
Steps = Callable[[Any], None]


def singles(run: Workload) -> None:
    for _ in range(6):
        run.append()


def batches(run: Workload) -> None:
    run.append_many(3)
    run.append_many(6, size=300)
    run.append_many(2, size=10)


def rolling(run: Workload) -> None:
    for size in (600, 700, 50, 800, 1200):
        run.append(size)


def closing(run: Workload) -> None:
    run.append(100)
    run.reopen()
    run.append(700)
    run.append(900)
    run.reopen()


def trimming(run: Workload) -> None:
    run.append_many(6, size=600)
    run.read_and_commit("a", 2)
    run.trim()
    run.read_and_commit("b", 4)
    run.read_and_commit("a", 4)
    run.trim()
    run.append(50)


def trimming_much(run: Workload) -> None:
    run.append_many(8, size=600)
    run.read_and_commit("a", 7)
    run.trim()
    run.append(50)


def cursors(run: LogWorkload) -> None:
    run.append_many(6, size=600)
    run.sync()
    run.move_cursor("spark", 2)
    run.trim()
    run.move_cursor("spark", 6)
    run.trim()


def draining(run: Workload) -> None:
    for size in (200, 300, 600):
        run.append(size)
    run.drain()
    run.append(400)
    run.append_many(2, size=30)
    run.append(90)
    run.sync()
    run.append(20)


def adoption(run: LogWorkload) -> None:
    run.append(60)
    run.publish_batch([2, 1])
    run.adopt()
    run.append(30)
    run.publish_batch([1])
    run.adopt()


def one_time_adoption(run: LogWorkload) -> None:
    run.append(60)
    run.leave_orphan()
    run.publish_batch([2, 1], writer="once:a")
    run.adopt()
    run.append(30)
    run.publish_batch([1])
    run.publish_batch([1], writer="once:b")
    run.adopt()
    run.append(20)


def killed(run: Workload) -> None:
    run.append(300)
    run.append(40)
    run.kill()
    run.append(600)
    run.append(700)
    run.kill()
    run.append(10)


def dropping(run: Workload) -> None:
    for _ in range(9):
        run.append(500)


def settling(run: Workload) -> None:
    run.append_many(9, size=300)
    for _ in range(3):
        run.read_and_commit("b", 2)
    run.append(700)
    run.read_and_commit("a", 20)
    run.read_and_commit("a", 20)
    run.append(50)


LOG_SCENARIOS: dict[str, tuple[Steps, dict[str, Any]]] = {
    "singles": (singles, {}),
    "batches": (batches, {}),
    "rolling": (rolling, {}),
    "closing": (closing, {}),
    "trimming": (trimming, {}),
    "trimming much": (trimming_much, {}),
    "cursors": (cursors, {}),
    "adoption": (adoption, {}),
    "one-time adoption": (one_time_adoption, {}),
    "killed": (killed, {}),
    "dropping": (dropping, {"max_bytes": 3000, "when_full": "drop_oldest"}),
    "version 1": (rolling, {"version": 1}),
    "version 1 closing": (closing, {"version": 1}),
    "version 1 trimming": (trimming, {"version": 1}),
    "os dropping": (dropping, {"max_bytes": 3000, "when_full": "drop_oldest", "sync": "os"}),
    "os draining": (draining, {"sync": "os"}),
    "os rolling": (rolling, {"sync": "os"}),
    "os batches": (batches, {"sync": "os"}),
    "os killed": (killed, {"sync": "os"}),
    "os closing": (closing, {"sync": "os"}),
    "os adoption": (adoption, {"sync": "os"}),
    "os trimming": (trimming, {"sync": "os"}),
    "os version 1": (rolling, {"sync": "os", "version": 1}),
    "interval draining": (draining, {"sync": "interval"}),
    "interval trimming": (trimming, {"sync": "interval"}),
    "unmapped killed": (killed, {"sync": "os", "mapped": False}),
    "unmapped draining": (draining, {"sync": "interval", "mapped": False}),
}


BEATS_SCENARIOS: dict[str, tuple[Steps, dict[str, Any]]] = {
    "singles": (singles, {"version": "v2"}),
    "batches": (batches, {"version": "v2"}),
    "rolling": (rolling, {"version": "v2"}),
    "closing": (closing, {"version": "v2"}),
    "trimming": (trimming, {"version": "v2"}),
    "settling": (settling, {"version": "v2"}),
    "killed": (killed, {"version": "v2"}),
    "dropping": (
        dropping,
        {"version": "v2", "max_bytes": 3000, "when_full": "drop_oldest"},
    ),
    "os dropping": (
        dropping,
        {"version": "v2", "max_bytes": 3000, "when_full": "drop_oldest", "sync": "os"},
    ),
    "os batches": (batches, {"version": "v2", "sync": "os"}),
    "os rolling": (rolling, {"version": "v2", "sync": "os"}),
    "os killed": (killed, {"version": "v2", "sync": "os"}),
    "os closing": (closing, {"version": "v2", "sync": "os"}),
    "os settling": (settling, {"version": "v2", "sync": "os"}),
    "interval draining": (draining, {"version": "v2", "sync": "interval"}),
    "interval trimming": (trimming, {"version": "v2", "sync": "interval"}),
    "v1": (settling, {"version": "v1"}),
    "v2-lz4": (settling, {"version": "v2-lz4"}),
    "v2-lz4 killed": (killed, {"version": "v2-lz4"}),
    "v2-seed": (settling, {"version": "v2-seed"}),
    "v3-seed": (settling, {"version": "v3-seed"}),
    "v3-seed killed": (killed, {"version": "v3-seed"}),
    "os v3-seed": (rolling, {"version": "v3-seed", "sync": "os"}),
    "os v2-lz4": (draining, {"version": "v2-lz4", "sync": "os"}),
}


def popping(run: Workload) -> None:
    run.append_many(9, size=300)
    run.read_and_commit("a", 2)
    run.read_and_commit("b", 1)
    run.append(700)
    run.read_and_commit("a", 1)
    run.read_and_commit("b", 1)
    run.read_and_commit("a", 20)
    run.read_and_commit("a", 20)
    run.append(50)


def lending(run: Workload) -> None:
    run.append_many(6, size=300)
    for _ in range(3):
        run.read_and_commit("b", 1)
    run.append(20)


def spanning(run: Workload) -> None:
    run.append(1100)
    run.read_and_commit("a", 1)
    run.append_many(2, size=900)
    run.read_and_commit("a", 1)


def popping_what_is_staged(run: Workload) -> None:
    run.append(200)
    run.append(90)
    run.read_and_commit("a", 1)
    run.append(700)
    run.drain()
    run.append(30)
    run.read_and_commit("b", 1)
    run.kill()
    run.read_and_commit("a", 2)
    run.append(20)
    run.sync()


FIFO_SCENARIOS: dict[str, tuple[Steps, dict[str, Any]]] = {
    "singles": (singles, {}),
    "batches": (batches, {}),
    "rolling": (rolling, {}),
    "closing": (closing, {}),
    "spanning": (spanning, {"file_bytes": 300}),
    "popping": (popping, {}),
    "lending": (lending, {}),
    "os lending": (lending, {"sync": "os"}),
    "killed": (killed, {}),
    "dropping": (dropping, {"max_bytes": 3000, "when_full": "drop_oldest"}),
    "os dropping": (dropping, {"max_bytes": 3000, "when_full": "drop_oldest", "sync": "os"}),
    "os batches": (batches, {"sync": "os"}),
    "os rolling": (rolling, {"sync": "os"}),
    "os killed": (killed, {"sync": "os"}),
    "os closing": (closing, {"sync": "os"}),
    "os popping": (popping, {"sync": "os"}),
    "os draining": (draining, {"sync": "os"}),
    "os staged": (popping_what_is_staged, {"sync": "os"}),
    "interval draining": (draining, {"sync": "interval"}),
    "interval popping": (popping, {"sync": "interval"}),
    "unmapped killed": (killed, {"sync": "os", "mapped": False}),
    "unmapped popping": (popping, {"sync": "interval", "mapped": False}),
    "unmapped lending": (lending, {"sync": "os", "mapped": False}),
}


def giving_out(run: Workload) -> None:
    run.append_many(5, size=100)
    run.read_and_commit("a", 2)
    run.append(20)
    run.read_and_commit("r", 2)
    run.sync()
    run.read_and_commit("k", 2)
    run.read_and_commit("d", 1)
    run.read_and_commit("l", 1)
    run.append(30)


def freezing(run: Workload) -> None:
    run.append_many(6, size=100)
    run.read_and_commit("a", 2)
    run.drain()
    run.read_and_commit("a", 1)
    run.read_and_commit("l", 1)
    run.append_many(3, size=50)
    run.trim()
    run.read_and_commit("r", 2)
    run.append(20)


def merging(run: Workload) -> None:
    for _ in range(3):
        run.append_many(3, size=60)
        run.read_and_commit("b", 2)
        run.trim()
    run.read_and_commit("a", 4)
    run.trim()
    run.append(20)
    run.reopen()
    run.read_and_commit("a", 1)


def freezing_again_and_again(run: Workload) -> None:
    for _ in range(5):
        run.append_many(6, size=30)
        run.read_and_commit("a", 2)
        run.drain()
    run.read_and_commit("l", 2)
    run.read_and_commit("k", 2)
    run.append_many(4, size=30)
    run.drain()
    run.kill()
    run.read_and_commit("a", 3)
    run.drain()


def handing_over(run: DeadlineWorkload) -> None:
    run.append_many(3, size=60)
    run.read_and_commit("a", 1)
    run.hand_over()
    run.append(40)
    run.read_and_commit("r", 1)
    run.hand_over()
    run.append_many(2, size=30)
    run.read_and_commit("b", 2)
    run.drain()
    run.append(20)
    run.hand_over()
    run.append(30)
    run.sync()
    run.append(40)
    run.kill()


def freezing_late(run: DeadlineWorkload) -> None:
    run.append_many(4, size=50)
    run.trim()
    run.append(20)
    run.hand_over()
    run.append(30)
    run.read_and_commit("a", 3)
    run.trim()
    run.append(10)


DEADLINE_SCENARIOS: dict[str, tuple[Steps, dict[str, Any]]] = {
    "singles": (singles, {}),
    "batches": (batches, {}),
    "closing": (closing, {}),
    "killed": (killed, {}),
    "giving out": (giving_out, {}),
    "freezing": (freezing, {}),
    "merging": (merging, {}),
    "freezing again": (freezing_again_and_again, {}),
    "os batches": (batches, {"sync": "os"}),
    "os closing": (closing, {"sync": "os"}),
    "os killed": (killed, {"sync": "os"}),
    "os giving out": (giving_out, {"sync": "os"}),
    "unmapped giving out": (giving_out, {"sync": "os", "mapped": False}),
    "unmapped freezing": (freezing, {"sync": "interval", "mapped": False}),
    "os freezing": (freezing, {"sync": "os"}),
    "os merging": (merging, {"sync": "os"}),
    "handing over": (handing_over, {}),
    "os handing over": (handing_over, {"sync": "os"}),
    "os freezing late": (freezing_late, {"sync": "os"}),
    "interval handing over": (handing_over, {"sync": "interval"}),
    "os freezing again": (freezing_again_and_again, {"sync": "os", "compression": "lz4"}),
    "interval freezing": (freezing, {"sync": "interval"}),
    "interval draining": (draining, {"sync": "interval"}),
}


def random_steps(run: Workload, *more: Callable[[], None]) -> None:
    """A few operations of all kinds, drawn by the run's seed."""
    draw = run.random
    operations: list[Callable[[], None]] = [
        run.append,
        run.append,
        lambda: run.append_many(draw.randrange(1, 6)),
        lambda: run.append_many(draw.randrange(1, 4), size=600),
        run.sync,
        run.drain,
        lambda: run.read_and_commit(draw.choice("ab"), draw.randrange(1, 5)),
        run.trim,
        run.reopen,
        run.kill,
        *more,
    ]
    for _ in range(draw.randrange(4, 9)):
        draw.choice(operations)()


def random_deadline_steps(run: DeadlineWorkload) -> None:
    """The same, with freezes that are not finished at once."""
    random_steps(run, run.hand_over, run.hand_over)


def random_log_steps(run: LogWorkload) -> None:
    """The same, and what only a log has."""
    random_steps(run)
    draw = run.random
    if draw.random() < 0.3:
        run.publish_batch([draw.randrange(1, 3) for _ in range(draw.randrange(1, 3))])
        run.adopt()
        run.append()
