"""What an output is, and what it may answer.

An output turns records into the bytes of a batch and sends these. It keeps no state of the queue:
`send` may be called again with the same batch at any time, also in another process after a crash,
and then with the same key and the same bytes. Whatever `send` raises means "not known": the batch
is repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias


class Record(Protocol):
    """A record as it is read from a queue; those of a log are `forebay.Record`."""

    @property
    def offset(self) -> int:
        """Its number in the queue: an offset, the id of an entry, or the place of an event."""
        ...

    @property
    def time_ms(self) -> int | None:
        """When it was put."""
        ...

    @property
    def value(self) -> bytes:
        """Its bytes; of an event the document that Filebeat would send."""
        ...


class EventRecord(NamedTuple):
    """An event of a Beats queue."""

    offset: int
    time_ms: int
    value: bytes
    # `@metadata`, as JSON.
    meta: bytes


@dataclass(frozen=True, slots=True)
class Gap:
    """Records that will never come: dropped by a limit of the user, or destroyed by the disk."""

    count: int
    # False: the disk has destroyed them.
    dropped: bool
    # Their numbers, if these are known, and the one after them.
    first: int | None = None
    end: int | None = None
    # How many records were lost before these.
    number: int = 0

    @property
    def reason(self) -> str:
        """Why they are gone; always the same words, so that a repeat has the same bytes."""
        return "dropped by a limit" if self.dropped else "destroyed by damage"


@dataclass(frozen=True, slots=True)
class Batch:
    """What is sent at once: consecutive records, or one gap.

    - `queue`: an id that no other queue has, also not one that is made again at the same path.
    - `incarnation`: which life of the queue's offsets this is.
    - `key`: the same for every repeat of these bytes, and for nothing else.
    - `attempt`: 1 for the first time, as far as this process knows.
    """

    queue: str
    incarnation: int
    key: str
    records: Sequence[Record]
    body: bytes
    gap: Gap | None = None
    attempt: int = 1

    def __len__(self) -> int:
        return len(self.records)


@dataclass(frozen=True, slots=True)
class Delivered:
    """The output has all of the batch."""


@dataclass(frozen=True, slots=True)
class Again:
    """The output may take it later: an outage, for whatever reason."""

    reason: str
    after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The output will never take these bytes; a batch of several is halved."""

    reason: str
    too_large: bool = False


@dataclass(frozen=True, slots=True)
class Mixed:
    """Answers for single records, by their index in the batch; the others are delivered."""

    again: Mapping[int, str] = field(default_factory=dict)
    refused: Mapping[int, str] = field(default_factory=dict)
    after_seconds: float | None = None


Answer: TypeAlias = Delivered | Again | Refused | Mixed


class Context(NamedTuple):
    """What an encoding may use besides the records."""

    queue: str
    incarnation: int


class Output(Protocol):
    """Where records go. `send` is called on several threads at once if `in_flight` is above 1."""

    # For messages; never with a secret in it.
    name: str
    # Whether a repeat under the same key changes nothing at the other end.
    takes_key: bool
    # The most records of a batch; None: as many as the forwarder likes.
    records_max: int | None

    def encode(self, records: Sequence[Record], context: Context) -> bytes:
        """Returns the body of a batch; the same records give the same bytes."""
        ...

    def encode_gap(self, gap: Gap, context: Context) -> bytes | None:
        """Returns the body that tells of a gap; None if there is no way to tell."""
        ...

    def send(self, batch: Batch) -> Answer:
        """Sends a batch, and returns what the other end says."""
        ...

    def close(self) -> None:
        """Ends connections; a `send` under way fails."""
        ...
