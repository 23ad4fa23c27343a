"""How the crash tests look for a bug: by cutting the power, and by failing calls."""

from __future__ import annotations

import contextlib
import errno
import gc
import itertools
import logging
from collections.abc import Callable, Iterator

from forebay.errors import ForebayError
from forebay.queues.beats.queue import BeatsQueue
from forebay.queues.deadline.queue import DeadlineQueue
from forebay.queues.fifo.queue import Fifo
from forebay.queues.log.queue import Log
from tests.crash.campaign import Campaign
from tests.crash.kinds import Kind
from tests.crash.test_io_errors import check_healed, fail_each_call
from tests.crash.workload import Workload
from tests.support.planting import Patch

# Gives how many states or calls it has tried.
Hunt = Callable[[], int]
# A bug is caught by the first of them as a rule; none of the hunts should hang on one.
_SEEDS = range(3, 7)
# How many choices are tried at each point: a few at all points find most bugs, and soon.
_LIMITS = (6, None)


def cut_power(kind: Kind, *names: str) -> Hunt:
    """Looks for a bug by cutting the power in scenarios."""

    def hunt() -> int:
        states = 0
        for limit, seed, name in itertools.product(_LIMITS, _SEEDS, names):
            campaign = Campaign(kind)
            campaign.run_scenario(name, seed, limit=limit)
            states += campaign.states
        return states

    return hunt


def fail_calls(kind: Kind, name: str, error: int | None) -> Hunt:
    """Looks for a bug by failing every call of a scenario."""

    def hunt() -> int:
        return fail_each_call(kind, name, error, forever=False, check=check_healed)

    return hunt


def power_cut_after_a_failed_sync(kind: Kind, **options: str) -> Hunt:
    """A call fails, the append is tried again, the process dies: what is served must stay."""

    def hunt() -> int:
        states = 0
        for call in range(1, 12):

            def steps(run: Workload, call: int = call) -> None:
                run.append(300)
                run.filesystem.fail_at(call, errno.EIO)
                for _ in range(2):
                    with contextlib.suppress(OSError, ForebayError):
                        run.append(700)
                    run.filesystem.heal()
                run.kill()
                run.append(20)

            campaign = Campaign(kind)
            campaign.run(steps, dict(options), 5, f"call {call} fails")
            states += campaign.states
        return states

    return hunt


def quietly(patch: Patch) -> Iterator[None]:
    """Lets a hunt end in the middle, which leaves queues behind that nobody closes."""
    patch.setattr(logging.getLogger("forebay"), "disabled", True)
    patch.setattr(Log, "__del__", lambda self: None)
    patch.setattr(BeatsQueue, "__del__", lambda self: None)
    patch.setattr(Fifo, "__del__", lambda self: None)
    patch.setattr(DeadlineQueue, "__del__", lambda self: None)
    yield
    gc.collect()
