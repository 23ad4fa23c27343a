"""Memory stays flat: an outage of a simulated day, at a full queue that goes on filling."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.counting import Count
from tests.sources import python_path

_GROWTH_BYTES_MAX = 8 << 20
_PROGRAM = """
import json, os, re, sys
from pathlib import Path
from forebay import Log
from forebay.forward.forwarder import Forwarder
from forebay.forward.function import FunctionOutput
from forebay.forward.options import ForwardOptions
from forebay.forward.outputs import Again, Delivered
from forebay.forward.sources import LogSource
from forebay.forward.state import State
from tests.support.clocks import FakeClock

DAY_MS = 86_400_000

def rss():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10

path = sys.argv[1]
options = {"segment_bytes": 4_000_000, "max_bytes": 40_000_000, "when_full": "drop_oldest"}
log = Log(path, sync="os", background=False, **options)
clock = FakeClock()
start = clock.ms
state = State(path + "-state", clock)
attempts, measured, sent, gaps = 0, [], 0, 0

def send(batch):
    global attempts, sent
    attempts += 1
    if clock.ms - start < DAY_MS:
        return Again("HTTP 503")
    sent += len(batch)
    return Delivered()

def tell(batch):
    global gaps
    if clock.ms - start < DAY_MS:
        return Again("HTTP 503")
    gaps += batch.gap.count
    return Delivered()

def pause(seconds):
    clock.ms += round(seconds * 1000)
    log.append_many([os.urandom(500) * 2] * 100)
    measured.append(rss())

for _ in range(450):
    log.append_many([os.urandom(500) * 2] * 100)
forwarder = Forwarder(
    LogSource(log, "forward"), FunctionOutput(send, on_gap=tell), state, ForwardOptions(),
    clock, pause=pause,
)
forwarder.run(until_empty=True)
settled = forwarder.settled
print(json.dumps({
    "attempts": attempts, "days": (clock.ms - start) / DAY_MS, "first": measured[0],
    "growth": max(measured[1:]) - measured[0], "end": rss() - measured[0], "sent": sent,
    "gaps": gaps, "records": log.end - settled.start, "accounted": settled.accounted,
}))
state.close()
log.close()
"""


@pytest.mark.slow
def test_a_day_without_the_output_costs_no_memory_and_no_count(
    tmp_path: Path, record_property: Count
) -> None:
    found = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path / "q")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": python_path()},
        check=True,
    )

    facts = json.loads(found.stdout)
    record_property("RSS growth in a day without the output, KiB", facts["growth"] >> 10)
    assert facts["days"] >= 1
    assert facts["attempts"] > 1000
    assert facts["growth"] <= _GROWTH_BYTES_MAX
    assert facts["end"] <= _GROWTH_BYTES_MAX
    assert facts["sent"] + facts["gaps"] == facts["records"] == facts["accounted"]
    assert facts["gaps"] > 0
