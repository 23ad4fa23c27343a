"""The kinds of queue under test: one table, which all suites ask."""

from __future__ import annotations

from tests.kinds.base import Kind
from tests.kinds.beats import BeatsKind
from tests.kinds.deadline import DeadlineKind
from tests.kinds.fifo import FifoKind
from tests.kinds.log import LogKind

__all__ = ["EACH", "KINDS", "POLICIES", "Kind"]
POLICIES = ("always", "interval", "os")
KINDS: dict[str, Kind] = {
    kind.name: kind for kind in (LogKind(), BeatsKind(), FifoKind(), DeadlineKind())
}
EACH = [(name, policy) for name in KINDS for policy in POLICIES]
