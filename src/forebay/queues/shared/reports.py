"""Reports on a queue from outside: what a check found, what a copy did, what the queue holds.

Values only, the same for every kind; a kind adds its own fields in a subclass. Only `settle` reads
a file: it compares damage with the losses on record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from forebay.clock import SystemClock
from forebay.damage import Damage
from forebay.errors import Damaged, NotAQueue
from forebay.storage.filesystem import Directory
from forebay.storage.losses import Loss, is_same, read_losses
from forebay.storage.posted import count_files
from forebay.storage.quarantine import count_kept

# Called with the amount done, and the total if that is known. It may raise to stop.
Progress = Callable[[int, int | None], None]

# The states of a queue, each in one word, and what they mean.
STATES = {
    "open": "open",
    "closed": "closed",
    "archived": "an archive, up to where segments were finished",
    "crashed": "was not closed; the next open recovers it",
    "foreign": "was made by another program; the next open takes it over",
    "tail-damaged": "its tail file is lost; the next open makes a new one",
    "head-damaged": "its head file is lost; what is there comes again, popped or not",
    "manifest-damaged": "its manifest is lost; the next open makes one of all files that are there",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a check found.

    `damage` is what counts: it costs records, or something else that was promised. `torn` are
    unfinished ends that a crash left, which cost nothing; `foreign` are names that do not belong to
    the queue. `unverifiable` are the parts without checksums, where damage cannot be seen.
    """

    kind: str
    path: str
    state: str
    records: int
    segments: int
    bytes: int
    damage: tuple[Damage, ...] = ()
    torn: tuple[Damage, ...] = ()
    foreign: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unverifiable: tuple[Damage, ...] = ()

    @property
    def unverified(self) -> int:
        """How many bytes have no checksum."""
        return sum(part.length for part in self.unverifiable)

    @property
    def lost(self) -> int | None:
        """How many records the damage costs; None if that is not known."""
        return total_lost(self.damage)


@dataclass(frozen=True, slots=True)
class CopiedRun:
    """Records that are consecutive in both queues: the first offset in each, and how many."""

    source: int
    target: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyReport:
    """What a copy did. `damage` is what could not be read, and the unfinished end, if any."""

    kind: str
    path: str
    target: str
    copied: int
    damage: tuple[Damage, ...] = ()
    runs: tuple[CopiedRun, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def lost(self) -> int | None:
        """How many records could not be read; None if that is not known."""
        return total_lost(self.damage)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInfo:
    """The state of a queue, for people and for scripts: `dataclasses.asdict` prepares it for JSON.

    `info()` of a queue and a look from outside, such as `forebay info`, fill the same fields. What
    one of them cannot know, or would have to count, is None.

    - `kind`, `path`: what it is, and where.
    - `state`: a word of `STATES`, such as "open", "closed" or "crashed".
    - `owner`: the process that owns it; None if there is none.
    - `records`: how many records it still holds.
    - `segments`, `bytes`: how many files hold them, and the space that these take.
    - `damage`: the damage that this look has found; for most kinds it reads only the end.
    - `losses`: how many losses are on record that have not been marked as seen.
    - `quarantined_files`, `quarantined_bytes`: what recoveries have set aside.
    - `maintenance`: the state of the background work, or why it does not run; only from the owner.
    - `syncs`: how many syncs there were since it was opened; only from the owner.
    """

    kind: str
    path: str
    state: str
    owner: int | None
    records: int
    segments: int
    bytes: int
    damage: tuple[Damage, ...] = ()
    losses: int | None = None
    quarantined_files: int = 0
    quarantined_bytes: int = 0
    maintenance: str | None = None
    syncs: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """One file of a queue; `error` says why it cannot be read, or what is wrong with it."""

    name: str
    records: int | None
    bytes: int
    error: str | None = None


@dataclass(slots=True)
class Findings:
    """What a check has found so far."""

    found: list[Damage] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def note_half_made(self, name: str) -> None:
        """Notes a file that a crash left half made."""
        self.notes.append(f"{name} was left half made; the next open removes it")

    def note_faults(self, name: str, find: Callable[[], Iterable[str]]) -> None:
        """Notes faults in a side file that cost no record."""
        try:
            self.notes += [f"{name}: {fault}" for fault in find()]
        except (OSError, NotAQueue, Damaged) as error:
            self.notes.append(f"{name}: {error}; the next open sets it aside")

    def note_junk(self, name: str, size: int, end: int) -> None:
        """Notes bytes after the end of a file."""
        if size > end:
            rest = plural(size - end, "byte")
            self.notes.append(f"{name} has {rest} after its end that are not used")

    def note_kept(self, directory: Directory) -> None:
        """Notes what `quarantine/` holds, and whether clients have left files."""
        files, size = count_kept(directory)
        if files:
            self.notes.append(f"quarantine/ keeps {plural(files, 'file')} ({size_text(size)})")
        clients = count_files(directory)
        if clients:
            text = f"posted/ has {plural(clients, 'file')} of clients"
            self.notes.append(f"{text}; whoever opens the queue takes in what was posted")

    def as_fields(self) -> dict[str, Any]:
        """Returns the findings as fields of a `Report`."""
        return {
            "damage": tuple(damage for damage in self.found if is_loss(damage)),
            "torn": tuple(damage for damage in self.found if not is_loss(damage)),
            "foreign": tuple(self.foreign),
            "notes": tuple(self.notes),
        }


class CopyClock(SystemClock):
    """Shows the time of the records that are being copied, so that they keep their times."""

    def __init__(self, ms: int | None = None) -> None:
        self.ms = ms

    def now_ms(self) -> int:
        """Returns the time of the records, or the present time where they have none."""
        return super().now_ms() if self.ms is None else self.ms

    def boot_ms(self) -> int:
        """Returns the same as `now_ms`, so that an open queue follows it."""
        return self.now_ms()


def own_fields(value: Report | CopyReport) -> dict[str, Any]:
    """Returns the fields that a kind adds to a report."""
    base = CopyReport if isinstance(value, CopyReport) else Report
    common = {each.name for each in fields(base)}
    return {
        each.name: getattr(value, each.name) for each in fields(value) if each.name not in common
    }


def settle(report: Report, directory: Directory) -> Report:
    """Compares a report with the losses on record.

    Damage that was found counts unless it was accepted before; so does a loss that is only on
    record.
    """
    losses = read_losses(directory)
    damage = [item for item in report.damage if not _accepted(item, losses)]
    damage += [
        loss.damage
        for loss in losses
        if not loss.accepted and not any(is_same(loss.damage, item) for item in report.damage)
    ]
    notes = report.notes
    seen = sum(loss.accepted for loss in losses)
    if seen:
        notes = (*notes, f"{plural(seen, 'loss')} marked as seen before")
    return replace(report, damage=tuple(damage), notes=notes)


def _accepted(damage: Damage, losses: Sequence[Loss]) -> bool:
    return any(loss.accepted and is_same(loss.damage, damage) for loss in losses)


def is_loss(damage: Damage) -> bool:
    """Says whether damage counts; an unfinished end that was never acknowledged does not."""
    return not damage.torn or bool(damage.count)


def costs_records(damage: Damage) -> bool:
    """Says whether damage costs records, or may cost some."""
    return is_loss(damage) and damage.count != 0


def total_lost(found: Iterable[Damage]) -> int | None:
    """Returns how many records the damage costs; None if that is not known for one of them."""
    counts = [damage.count for damage in found if is_loss(damage)]
    return None if None in counts else sum(count or 0 for count in counts)


def describe_damage(damage: Damage, record: str = "record") -> str:
    """Returns damage as a line for people; `record` is what the queue calls a record."""
    kind = "damage" if is_loss(damage) else "unfinished end"
    lost = ""
    if is_loss(damage):
        number = "an unknown number" if damage.count is None else str(damage.count)
        told = damage.offset is not None and damage.count != 0
        place = f" from offset {damage.offset}" if told else ""
        lost = f"; {plural_of(record)} lost: {number}{place}"
    return f"{kind}: {place_of(damage)}: {damage.reason}{lost}"


def place_of(damage: Damage) -> str:
    """Returns where damage is, as text."""
    return f"{damage.path}, byte {damage.position}, {damage.length} bytes"


def places(offsets: Mapping[str, int], end: int) -> dict[str, dict[str, int]]:
    """Returns saved places by name: the next offset, and how many records are left."""
    return {
        name: {"offset": offset, "lag": max(0, end - offset)} for name, offset in offsets.items()
    }


def size_text(size: float) -> str:
    """Returns a number of bytes for people, in powers of ten."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def plural(count: int, noun: str) -> str:
    """Returns a count with its noun: "1 record", "2,000 entries"."""
    return f"{count:,} {noun if count == 1 else plural_of(noun)}"


def plural_of(noun: str) -> str:
    """Returns the plural of a noun."""
    if noun.endswith("s"):
        return f"{noun}es"
    return f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
