"""What a forwarder must not forget: its cuts, its place, its counts, and what was set aside.

The state directory holds, besides `live` (see `queues/shared/forwarding.py`):

- `cuts`, the source of truth: a slot file (`storage/slots.py`). A slot says up to where all is
  settled, how that was, and which batches may be on their way. Place and counts are in one slot, so
  they agree after any crash; a cut is written, and synced, before its batch is sent.
- `set-aside/`, a log with one record for each that the output refused. A crash may come after a
  record was added and before the slot says so: its offset is then found there, and it is not added
  again.

Payload of a slot, big-endian: `queue id 16 | incarnation 4 | start 8 | place 8 | delivered 8 | set
aside 8 | dropped 8 | damaged 8 | told 8 + 8 | batch bytes 8 | set-aside end 8 | cuts 2`, then for
each of 64 cuts `first 8 | end 8 | count 4 | size 8 | crc 4 | incarnation 4 | generation 4 | flags
1`, unused ones zero.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from forebay.clock import Clock
from forebay.damage import Damage
from forebay.errors import Damaged, NotAQueue
from forebay.forward.outputs import Gap, Record
from forebay.queues.log.queue import Log
from forebay.queues.log.reader import LogReader
from forebay.queues.shared.forwarding import Live, LiveFile
from forebay.storage.filesystem import Directory, DiskFilesystem, Filesystem
from forebay.storage.slots import SlotFile

NAME = "cuts"
SET_ASIDE = "set-aside"
CUTS_MAX = 64
_MAGIC = b"FBFW"
_HEAD = struct.Struct(">16sI10QH")
_CUT = struct.Struct(">QQIQIIIB")
_PAYLOAD_BYTES = _HEAD.size + CUTS_MAX * _CUT.size
assert (_HEAD.size, _CUT.size, _PAYLOAD_BYTES) == (102, 41, 2726)
_COUNTS = (
    *("delivered", "set_aside", "dropped", "damaged"),
    *("told_dropped", "told_damaged", "batch_bytes", "set_aside_end"),
)
_FLAGS = {"settled": 1, "gap": 2, "dropped": 4, "numbered": 8}


@dataclass(frozen=True, slots=True)
class Cut:
    """The bounds of a batch: `end` is the number after its last record."""

    first: int
    end: int
    count: int
    size: int
    crc: int
    incarnation: int
    # Above 1: the bytes of an earlier cut with these bounds could not be made again.
    generation: int = 1
    settled: bool = False
    gap: bool = False
    # Of a gap: by a limit of the user, not by damage.
    dropped: bool = False
    # False: a gap whose place in the queue is not known; its bounds count what is gone.
    numbered: bool = True

    def key(self, queue: str) -> str:
        """Returns the key under which it is sent."""
        place = f"{self.first}-{self.end - 1}" if self.numbered else f"lost-{self.first}"
        text = f"{queue}/{self.incarnation}/{place}" + ("/gap" if self.gap else "")
        return text if self.generation == 1 else f"{text}/{self.generation}"

    @property
    def flags(self) -> int:
        """Its claims as bits."""
        return sum(bit for name, bit in _FLAGS.items() if getattr(self, name))


@dataclass(frozen=True, slots=True)
class Settled:
    """What a forwarder has settled, and which batches may be on their way.

    - `start`, `place`: where it began, and the number below which all is settled.
    - `told_dropped`, `told_damaged`: how many entries had left a fifo unseen, as of its last gap
      records.
    - `batch_bytes`: the bound that the output has enforced; 0: none.
    - `set_aside_end`: the end of the log of refused records when this was written.
    """

    queue_id: bytes
    incarnation: int
    start: int
    place: int
    delivered: int = 0
    set_aside: int = 0
    dropped: int = 0
    damaged: int = 0
    told_dropped: int = 0
    told_damaged: int = 0
    batch_bytes: int = 0
    set_aside_end: int = 0
    cuts: tuple[Cut, ...] = field(default=())

    @property
    def queue(self) -> str:
        """The id of the queue as text."""
        return self.queue_id.hex()

    @property
    def accounted(self) -> int:
        """How many records are settled, in whichever way."""
        return self.delivered + self.set_aside + self.dropped + self.damaged

    def encode(self) -> bytes:
        """Returns the payload of a slot."""
        cuts = b"".join(
            _CUT.pack(
                *(cut.first, cut.end, cut.count, cut.size, cut.crc, cut.incarnation),
                *(cut.generation, cut.flags),
            )
            for cut in self.cuts
        )
        head = _HEAD.pack(
            *(self.queue_id, self.incarnation, self.start, self.place, self.delivered),
            *(self.set_aside, self.dropped, self.damaged, self.told_dropped, self.told_damaged),
            *(self.batch_bytes, self.set_aside_end, len(self.cuts)),
        )
        return (head + cuts).ljust(_PAYLOAD_BYTES, b"\0")

    @classmethod
    def decode(cls, payload: bytes) -> Settled:
        """Reads the payload of a slot."""
        fields: tuple[Any, ...] = _HEAD.unpack_from(payload)
        cuts = []
        for number in range(fields[-1]):
            *bounds, flags = _CUT.unpack_from(payload, _HEAD.size + number * _CUT.size)
            claims = {name: bool(flags & bit) for name, bit in _FLAGS.items()}
            cuts.append(Cut(*bounds, **claims))
        return replace(
            cls(*fields[:4]), **dict(zip(_COUNTS, fields[4:-1], strict=True)), cuts=tuple(cuts)
        )


class State:
    """The open state directory of one forwarder; only one process at a time has it."""

    def __init__(self, path: str, clock: Clock, filesystem: Filesystem | None = None) -> None:
        """Opens the directory or creates it; raises `Locked` if another forwarder has it."""
        self._filesystem = filesystem or DiskFilesystem()
        self._clock = clock
        # That of a queue is made with its first forwarder.
        self._filesystem.open_directory(os.path.dirname(path) or ".", create=True).close()
        self._directory: Directory = self._filesystem.open_directory(path, create=True)
        self.path = self._directory.path
        self._log: Log | None = None
        self._slots: SlotFile | None = None
        try:
            self._directory.lock()
            self._live = LiveFile(self._directory)
            self._slots = SlotFile.open(self._directory, NAME, _MAGIC, _PAYLOAD_BYTES, write=True)
        except BaseException:
            self._directory.close()
            raise
        self.settled = self._found()
        # Offsets that a crash left in the log of refused records without a slot that says so.
        self._added: set[int] = set()
        if self.settled is not None:
            self._added = set(_added_since(self.path, self.settled.set_aside_end))

    def begin(self, settled: Settled) -> None:
        """Creates the slots of a new forwarder; durable on return."""
        if self._slots is None:
            payload = settled.encode()
            self._slots = SlotFile.create(self._directory, NAME, _MAGIC, payload)
        self.settled = settled

    def save(self, settled: Settled) -> None:
        """Writes a slot; durable on return."""
        assert self._slots is not None
        assert len(settled.cuts) <= CUTS_MAX
        self._slots.write(settled.encode(), sync=True)
        self.settled = settled

    def set_aside(self, record: Record | None, gap: Gap | None, facts: dict[str, object]) -> None:
        """Adds a refused record, or a gap record, to the log; durable on return."""
        offset = record.offset if record is not None else -1
        if offset in self._added:
            self._added.discard(offset)
            return
        document: dict[str, object] = {
            "offset": None if record is None else record.offset,
            "put_ms": None if record is None else record.time_ms,
            "refused_ms": self._clock.now_ms(),
            **facts,
        }
        if gap is not None:
            document["gap"] = asdict(gap)
        if record is not None:
            document["value_b64"] = base64.b64encode(record.value).decode()
        self._refused().append(json.dumps(document).encode())

    def new_id(self) -> bytes:
        """Returns an id for a directory that has none."""
        return self._filesystem.random_bytes(16)

    @property
    def set_aside_end(self) -> int:
        """How many records the log of refused ones has."""
        if self._log is None:
            return self.settled.set_aside_end if self.settled is not None else 0
        return self._log.end

    def tell(self, live: Live) -> None:
        """Publishes what the forwarder is doing."""
        # It is for people to look at: a disk that fails here fails elsewhere too.
        with contextlib.suppress(OSError):
            self._live.write(live)

    def close(self) -> None:
        """Closes the files, and frees the directory."""
        if self._log is not None:
            self._log.close()
        if self._slots is not None:
            self._slots.close()
        self._live.close()
        self._directory.close()

    def _found(self) -> Settled | None:
        if self._slots is None:
            return None
        if self._slots.payload is None:
            # A crash came while it was created: nothing was sent, unless something follows it.
            if self._slots.sequence or _has_set_aside(self.path):
                raise _damaged(self.path)
            self._slots.close()
            self._directory.unlink(NAME)
            self._slots = None
            return None
        return Settled.decode(self._slots.payload)

    def _refused(self) -> Log:
        if self._log is None:
            # Most outputs refuse nothing: then there is no such log.
            self._log = Log(f"{self.path}/{SET_ASIDE}", filesystem=self._filesystem)
        return self._log


def read_state(path: str | os.PathLike[str]) -> Settled | None:
    """Returns what a state directory says now; None if there is none, without its lock."""
    try:
        directory = DiskFilesystem().open_directory(os.fspath(path))
    except FileNotFoundError:
        return None
    with contextlib.closing(directory):
        slots = SlotFile.open(directory, NAME, _MAGIC, _PAYLOAD_BYTES, write=False)
        if slots is None:
            return None
        slots.close()
        if slots.payload is None:
            raise _damaged(directory.path)
        return Settled.decode(slots.payload)


def refused_offsets(path: str, begin: int = 0) -> list[int]:
    """Returns the offsets of the records that were set aside, in the order in which they were."""
    try:
        with LogReader(f"{path}/{SET_ASIDE}") as reader:
            if begin >= reader.end:
                return []
            documents: Sequence[bytes] = list(reader.values(max(begin, reader.begin)))
    except (FileNotFoundError, NotAQueue):
        return []
    found = (json.loads(document)["offset"] for document in documents)
    return [offset for offset in found if offset is not None]


def _added_since(path: str, end: int) -> list[int]:
    return refused_offsets(path, end)


def _has_set_aside(path: str) -> bool:
    return bool(refused_offsets(path))


def _damaged(path: str) -> Damaged:
    reason = "neither slot verifies; what was sent is not known"
    remedy = "move the state directory away to go on from the place in the queue"
    return Damaged(Damage(f"{path}/{NAME}", 0, 0, reason, count=0), remedy)
