"""What happened over time: samples of the counts, and the rates and lags derived from them.

The samples are taken from outside: the appended records are those that the producers acknowledged,
and the landed ones are those in the manifests of the published batches.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from examples.tour.processes import Actor
from forebay.pipelines.ingest.output import Output

_INTERVAL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Sample:
    """How much each queue had accepted, and how much of it had landed, at one moment."""

    seconds: float
    appended: tuple[int, ...]
    landed: tuple[int, ...]

    @property
    def lag(self) -> int:
        """Returns the lag of the ingest; a record may land before its count is seen."""
        return max(0, sum(self.appended) - sum(self.landed))


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at one moment."""

    seconds: float
    text: str


def rates(samples: Sequence[Sample], window_seconds: float) -> list[tuple[float, float]]:
    """Returns for each sample the rates, per second, of appended and landed records before it.

    They are averaged over the window. A batch lands at one moment, so a window shorter than the
    time between two batches would show peaks and zeros.
    """
    found = []
    start = 0
    for sample in samples:
        while samples[start + 1].seconds <= sample.seconds - window_seconds:
            start += 1
        first = samples[start]
        # At the beginning there is no whole window yet: nothing happened before the first sample.
        passed = max(sample.seconds - first.seconds, window_seconds)
        appended = sum(sample.appended) - sum(first.appended)
        landed = sum(sample.landed) - sum(first.landed)
        found.append((appended / passed, landed / passed))
    return found


@dataclass(frozen=True, slots=True)
class Outage:
    """How long the ingest was away after a kill, and how far it fell behind; in seconds."""

    until_back: float | None
    until_caught_up: float | None
    lag_before: int
    lag_most: int


def outage(samples: Sequence[Sample], killed: float) -> Outage:
    """Returns when records landed again after a kill, and when the lag was as small as before."""
    before = [one for one in samples if one.seconds <= killed]
    after = [one for one in samples if one.seconds > killed]
    landed, lag = (sum(before[-1].landed), before[-1].lag) if before else (0, 0)
    back = [one for one in after if sum(one.landed) > landed]
    level = [one for one in back if one.lag <= lag]
    return Outage(
        until_back=back[0].seconds - killed if back else None,
        until_caught_up=level[0].seconds - killed if level else None,
        lag_before=lag,
        lag_most=max((one.lag for one in after), default=lag),
    )


class Watch:
    """Takes samples of a running tour. Its clock starts when it is created."""

    def __init__(self, producers: Sequence[Actor], tables: str) -> None:
        self.samples: list[Sample] = []
        self.marks: list[Mark] = []
        self.batches: set[int] = set()
        self._producers = producers
        self._output = Output.at(tables)
        self._landed = {producer.path: 0 for producer in producers}
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Returns the time since the beginning."""
        return time.monotonic() - self._started

    def mark(self, text: str) -> Mark:
        """Records that something happens now."""
        mark = Mark(self.seconds, text)
        self.marks.append(mark)
        return mark

    def look(self) -> None:
        """Takes a sample, if it is time for one."""
        if not self.samples or self.seconds - self.samples[-1].seconds >= _INTERVAL_SECONDS:
            self.sample()

    def sample(self) -> None:
        """Takes a sample."""
        self._look_at_batches()
        appended = tuple(producer.acknowledged for producer in self._producers)
        landed = tuple(self._landed[producer.path] for producer in self._producers)
        self.samples.append(Sample(self.seconds, appended, landed))

    @property
    def landed(self) -> int:
        """Returns how many records the ingest has covered, over all queues."""
        return sum(self._landed.values())

    @property
    def appended(self) -> int:
        """Returns how much the producers have acknowledged."""
        return sum(producer.acknowledged for producer in self._producers)

    @property
    def lag(self) -> int:
        """Returns how far the ingest is behind."""
        return max(0, self.appended - self.landed)

    def names(self) -> dict[int, str]:
        """Returns the published batches, with the text of their manifests."""
        if not self._output.exists:
            return {}
        return {one.batch: one.encode().decode() for one in self._output.manifests()}

    def _look_at_batches(self) -> None:
        for batch in self._output.batches():
            if batch not in self.batches:
                self.batches.add(batch)
                for queue, share in self._output.manifest(batch).queues.items():
                    self._landed[queue] += share.offsets.count
