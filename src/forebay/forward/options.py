"""The options of a forwarder."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.errors import InvalidOption

IN_FLIGHT_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardOptions:
    """How a forwarder cuts and repeats.

    - `batch_records`, `batch_bytes`: the most that is sent at once; one record may be larger. Two
      batches are in memory, and one more for each in flight.
    - `batch_seconds`: how long a batch that is not full waits for more.
    - `in_flight`: how many batches may be on their way; above 1 order is not promised, and only
      outputs that take a key allow it.
    - `retry_seconds`, `retry_seconds_max`: the delay after the first failure, and the longest one;
      each is up to half as long, by chance.
    - `ttl_seconds`: records of a log that are older are dropped; None: never.
    """

    batch_records: int = 1000
    batch_bytes: int = 1 << 20
    batch_seconds: float = 0.2
    in_flight: int = 1
    retry_seconds: float = 0.5
    retry_seconds_max: float = 60.0
    ttl_seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("batch_records", "batch_bytes", "in_flight"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InvalidOption(f"{name} = {value!r}: must be a number of at least 1")
        if self.in_flight > IN_FLIGHT_MAX:
            raise InvalidOption(f"in_flight = {self.in_flight}: must be at most {IN_FLIGHT_MAX}")
        for name in ("batch_seconds", "retry_seconds", "retry_seconds_max", "ttl_seconds"):
            value = getattr(self, name)
            if name == "ttl_seconds" and value is None:
                continue
            if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
                raise InvalidOption(f"{name} = {value!r}: must be a number of seconds, at least 0")
        if self.retry_seconds_max < self.retry_seconds:
            raise InvalidOption(
                f"retry_seconds_max = {self.retry_seconds_max}: must be at least retry_seconds = "
                f"{self.retry_seconds}"
            )
