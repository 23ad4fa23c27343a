"""What happened over time: samples of the counts, and the rates and lags that follow from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """How much each queue had taken, and how much of it had landed, at one moment."""

    seconds: float
    appended: tuple[int, ...]
    landed: tuple[int, ...]

    @property
    def lag(self) -> int:
        """How many records the ingest was behind; a promise may be seen after its record landed."""
        return max(0, sum(self.appended) - sum(self.landed))


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at one moment."""

    seconds: float
    text: str


def rates(samples: Sequence[Sample], window_seconds: float) -> list[tuple[float, float]]:
    """Returns for each sample how many records a second were appended, and landed, just before it.

    Averaged over the window. A batch lands at one moment, so a window shorter than the time between
    two batches would show peaks and zeros.
    """
    found = []
    start = 0
    for sample in samples:
        while samples[start + 1].seconds <= sample.seconds - window_seconds:
            start += 1
        first = samples[start]
        # At the beginning there is no whole window yet: nothing happened before it.
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
    """Says when records landed again after a kill, and when the lag was as small as before."""
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
