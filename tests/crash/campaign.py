"""Runs scenarios and cuts the power everywhere: the loop that the crash tests share."""

from __future__ import annotations

from typing import Any

from forebay.errors import Damaged, ForebayError
from tests.crash.forgetful import ForgetfulFilesystem
from tests.crash.kinds import LOG, Kind
from tests.crash.scenarios import Steps
from tests.crash.workload import Promise, place_of, promises_of
from tests.support.planting import Broken

_GO_ON_EVERY = 8
_NESTED_EVERY = 25


class Campaign:
    """Counts the distinct states that were checked and found whole."""

    def __init__(self, kind: Kind = LOG) -> None:
        self._kind = kind
        self.seen: set[bytes] = set()
        self.contents: set[bytes] = set()
        self._checked = 0

    @property
    def states(self) -> int:
        """How many states there were, distinct by content."""
        return len(self.contents)

    def run_scenario(self, name: str, seed: int, **limits: Any) -> None:
        """Runs a scenario by name and checks every state that a power cut may leave."""
        steps, options = self._kind.scenarios[name]
        self.run(steps, options, seed, f"scenario {name!r}", **limits)

    def run_random(self, seed: int, **limits: Any) -> None:
        """Runs random operations, under the policy that the seed gives."""
        options = self._kind.policies[seed % len(self._kind.policies)]
        what = f"random operations under {options}"
        self.run(self._kind.random_steps, options, seed, what, **limits)

    def run(
        self, steps: Steps, options: dict[str, Any], seed: int, what: str, **limits: Any
    ) -> None:
        """Runs steps on a new machine and checks every state that a power cut may leave."""
        work = self._kind.workload(ForgetfulFilesystem(seed), seed, **options)
        try:
            steps(work)
        except Damaged as error:
            # Nothing has hurt the disk.
            raise Broken(f"{what}, seed {seed}: {error}") from error
        finally:
            work.forget()
        settings = {"random_subsets": 8, "torn": True, **limits}
        # What was found on each content. It depends on nothing else within a run: the seed of a
        # restored machine, its boot id and its clock are given by the run and the content.
        known: dict[bytes, Any] = {}
        for state in work.filesystem.crash_states(seen=self.seen, **settings):
            self.contents.add(state.key)
            self._checked += 1
            promises = promises_of(state, work.filesystem)
            if state.description == "everything" and self._kind.keeps_all(options):
                # The same bytes as after `kill -9`, which under no policy takes what was stored.
                stored = max((promise.seen for promise in promises), default=0)
                promises = [*promises, Promise(end=stored)]
            nested = self._checked % _NESTED_EVERY == 0
            go_on = not nested and self._checked % _GO_ON_EVERY == 0
            where, place = f"{what}, seed {seed}", place_of(state)
            try:
                if state.key in known and not nested and not go_on:
                    # Only more was promised since.
                    self._kind.workload.hold(known[state.key], promises, work.model, where=place)
                    continue
                machine = state.restore()
                known[state.key] = self._kind.workload.check(
                    machine,
                    promises,
                    work.model,
                    options=work.options,
                    where=place,
                    go_on=go_on,
                )
                if not nested:
                    continue
                # Recovery is cut itself: it must be able to start again from anything.
                for again in machine.crash_states(1, seen=self.seen, limit=6):
                    where = f"{what}, seed {seed}, {place}"
                    self.contents.add(again.key)
                    work.check(
                        again.restore(),
                        promises,
                        work.model,
                        options=work.options,
                        where=place_of(again),
                    )
            except (Broken, ForebayError, OSError) as error:
                raise Broken(f"{where}: {error}") from error
