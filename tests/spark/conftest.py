"""What all tests of the streams have in common: a clock that does not go by itself."""

from __future__ import annotations

import pytest

from forebay.spark import watch
from tests.support.clocks import FakeClock
from tests.support.libraries import start_threads


@pytest.fixture(autouse=True)
def _time_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stops the clock of the streams of this process; those of Spark have processes of their own.

    A poll that took long makes the next ones give what it saw, and ten seconds make it look for
    queues anew: a test that is held up by others would see neither too much nor too little.
    """
    monkeypatch.setattr(watch, "time", FakeClock())


@pytest.fixture(autouse=True, scope="session")
def _libraries() -> None:
    start_threads()
