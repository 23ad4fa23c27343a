"""What the tour sees of producers and ingest while they run: samples, marks and batches.

It asks none of them: what was appended is what the producers acknowledged, and what has landed
stands in the manifests of the batches that are published.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from forebay.cli.tour_processes import Producer
from forebay.dashboard.history import Mark, Sample
from forebay.pipelines.ingest.output import Output, read_manifest

_INTERVAL_SECONDS = 0.1


class Watch:
    """Looks at a running tour. The clock starts with it."""

    def __init__(self, producers: Sequence[Producer], tables: str) -> None:
        self.samples: list[Sample] = []
        self.marks: list[Mark] = []
        self.batches: dict[int, str] = {}
        self._producers = producers
        self._output = Output.at(tables)
        self._landed = {producer.path: 0 for producer in producers}
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """The time since the beginning."""
        return time.monotonic() - self._started

    def mark(self, text: str) -> Mark:
        """Notes that something happens now."""
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
        """How far the ingest is, over all queues."""
        return sum(self._landed.values())

    @property
    def appended(self) -> int:
        """How much the producers have acknowledged."""
        return sum(producer.acknowledged for producer in self._producers)

    @property
    def lag(self) -> int:
        """How far the ingest is behind."""
        return max(0, self.appended - self.landed)

    def names(self) -> dict[int, str]:
        """Returns the batches that are published, by the names of their directories."""
        return self._output.current().batches() if self._output.exists else {}

    def _look_at_batches(self) -> None:
        for batch, directory in self.names().items():
            if batch not in self.batches:
                self.batches[batch] = directory
                for queue, share in read_manifest(directory).queues.items():
                    self._landed[queue] += share.offsets.count
