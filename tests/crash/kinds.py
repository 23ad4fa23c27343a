"""The kinds of queue that the crash tests run on: each with its workload and scenarios."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from forebay.formats.beats.versions import LAYOUTS
from tests.crash import scenarios
from tests.crash.beats_kind import BeatsWorkload
from tests.crash.deadline_kind import DeadlineWorkload
from tests.crash.fifo_kind import FifoWorkload
from tests.crash.log_kind import LogWorkload
from tests.crash.scenarios import Steps
from tests.crash.workload import Workload


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of queue under test.

    `policies` are the options that random operations run under. `keeps_all` says whether what was
    written and did reach the disk is kept after a power cut, although nobody had synced it.
    """

    workload: type[Workload]
    scenarios: dict[str, tuple[Steps, dict[str, Any]]]
    policies: list[dict[str, Any]]
    random_steps: Steps
    failing: tuple[str, ...]
    keeps_all: Callable[[dict[str, Any]], bool]


LOG = Kind(
    LogWorkload,
    scenarios.LOG_SCENARIOS,
    [{}, {"sync": "os"}, {"sync": "interval"}, {"version": 1}],
    scenarios.random_log_steps,
    (
        "rolling",
        "closing",
        "trimming",
        "adoption",
        "one-time adoption",
        "killed",
        "version 1",
        "os draining",
        "os rolling",
        "os killed",
        "interval draining",
        "unmapped killed",
    ),
    lambda options: options.get("version") != 1,
)
BEATS = Kind(
    BeatsWorkload,
    scenarios.BEATS_SCENARIOS,
    [
        {"version": "v2"},
        {"version": "v2", "sync": "os"},
        {"version": "v2", "sync": "interval"},
        {"version": "v1"},
        {"version": "v3-seed"},
        {"version": "v2-lz4"},
        {"version": "v2-seed", "sync": "os"},
        {"version": "v2-lz4", "sync": "os"},
    ],
    scenarios.random_steps,
    ("rolling", "closing", "trimming", "killed", "os rolling", "os killed", "v2-lz4", "v3-seed"),
    lambda options: LAYOUTS[options["version"]].encrypted,
)
FIFO = Kind(
    FifoWorkload,
    scenarios.FIFO_SCENARIOS,
    [{}, {"sync": "os"}, {"sync": "interval"}],
    scenarios.random_steps,
    (
        "rolling",
        "closing",
        "popping",
        "lending",
        "killed",
        "os draining",
        "os popping",
        "os staged",
        "unmapped popping",
    ),
    lambda options: True,
)
DEADLINE = Kind(
    DeadlineWorkload,
    scenarios.DEADLINE_SCENARIOS,
    [{}, {"sync": "os"}, {"sync": "interval"}],
    scenarios.random_deadline_steps,
    (
        "closing",
        "killed",
        "giving out",
        "freezing",
        "merging",
        "os giving out",
        "unmapped giving out",
        "os freezing",
        "os handing over",
        "os freezing again",
    ),
    lambda options: True,
)
KINDS = {kind.workload.kind: kind for kind in (LOG, BEATS, FIFO, DEADLINE)}
# The long runs of this folder: one a kind, and the controls of the planted bugs.
CRASH_CAMPAIGNS = len(KINDS) + 1
EACH_SCENARIO = [(kind, name) for kind in KINDS for name in KINDS[kind].scenarios]
EACH_FAILING = [(kind, name) for kind in KINDS for name in KINDS[kind].failing]
