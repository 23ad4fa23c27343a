"""Keeps the mark of a deadline queue: how far its logs are durable, and how far written.

Called with the queue's lock held, except `sync`. The durable end moves only after a sync of what
lies below it: recovery treats a bad batch below it as damage, and skips it.
"""

from __future__ import annotations

from forebay.errors import ForebayError
from forebay.formats.deadline.mark import MAGIC, NAME, PAYLOAD_BYTES, Mark, is_sound, pack
from forebay.queues.shared.mark import DurableMark
from forebay.storage import atomic, quarantine
from forebay.storage.filesystem import Directory
from forebay.storage.slots import SlotFile

Ends = tuple[int, int, int, int, int]


class MarkFile(DurableMark[bytes]):
    """The open mark of a queue that this process owns."""

    def __init__(self, slots: SlotFile, mark: Mark) -> None:
        super().__init__(slots, mark.encode())
        self.queue_id = mark.queue_id
        self._boot_id = mark.boot_id
        self.durable: Ends = mark.durable
        self.written: Ends = mark.written

    @classmethod
    def create(cls, directory: Directory, mark: Mark) -> MarkFile:
        """Writes a mark, durably, over whatever is in its place."""
        try:
            slots = SlotFile.open(directory, NAME, MAGIC, PAYLOAD_BYTES, write=True)
        except (OSError, ForebayError):
            # A directory, a link, or a file that cannot be read: the mark can be made again.
            quarantine.keep_file(directory, NAME)
            slots = None
        payload = mark.encode()
        if slots is None:
            slots = atomic.with_reserve(
                directory, lambda: SlotFile.create(directory, NAME, MAGIC, payload)
            )
        else:
            try:
                # Both slots: an older mark must not come back when the newer one is damaged.
                for _ in range(2):
                    atomic.with_reserve(directory, lambda: slots.write(payload))
                slots.sync()
            except BaseException:
                slots.close()
                raise
        return cls(slots, mark)

    def publish(
        self, generation: int, salt: bytes, durable: Ends, written: Ends, flags: int
    ) -> None:
        """Writes a mark; it survives the process, and after `sync` a power cut.

        The ends are those of `End`, as plain numbers: every sync calls this.
        """
        self.write(pack(self.queue_id, self._boot_id, generation, salt, *durable, *written, flags))
        self.durable, self.written = durable, written


def read_mark(directory: Directory) -> Mark | None:
    """Returns the mark that is in the file now; None if none verifies."""
    try:
        slots = _open(directory)
    except (OSError, ForebayError):
        return None
    if slots is None:
        return None
    try:
        return None if slots.payload is None else Mark.decode(slots.payload)
    finally:
        slots.close()


def mark_faults(directory: Directory) -> list[str]:
    """Lists the slots that are not good, in a queue that is not being written."""
    slots = _open(directory)
    if slots is None:
        return []
    try:
        return slots.faults() if slots.payload is not None else []
    finally:
        slots.close()


def _open(directory: Directory) -> SlotFile | None:
    return SlotFile.open(directory, NAME, MAGIC, PAYLOAD_BYTES, write=False, sound=is_sound)
