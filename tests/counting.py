"""What a test counted, for the summary of `./test`: the type of pytest's `record_property`."""

from __future__ import annotations

from collections.abc import Callable

Count = Callable[[str, object], None]
