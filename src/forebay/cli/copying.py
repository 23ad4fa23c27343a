"""What checks and copies of queues share: their words on damage, a clock for what is copied."""

from __future__ import annotations

from collections.abc import Iterable

from forebay.cli.inspection import damage_fields
from forebay.cli.output import write_json
from forebay.clock import SystemClock
from forebay.damage import Damage


class CopyClock(SystemClock):
    """Stands at the time of the entries that are copied."""

    ms = 0

    def now_ms(self) -> int:
        """Returns the time of the entries."""
        return self.ms

    def boot_ms(self) -> int:
        """Returns the same, so that an open queue follows it."""
        return self.ms


def write_damage(found: Iterable[Damage]) -> None:
    """Prints damage as lines of JSON, with what it costs."""
    for damage in found:
        fields = damage_fields(damage)
        write_json({"damage": {**fields, "offset": damage.offset, "count": damage.count}})
