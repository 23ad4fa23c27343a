"""A fifo that a stream follows: by its durable mark, and by what is left on its tape.

A poll is one read of `fifo-tail`. The place in the checkpoint gets `position`, where on the tape
the next entry goes, if that is known, with the incarnation in which it does; and `popped`: how many
entries were gone from the tape before a batch was planned that would have had them, since the
stream began.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forebay.queues.fifo.names import TAIL, list_files
from forebay.queues.fifo.scanner import Place
from forebay.spark.fifo_view import FifoView
from forebay.spark.watch import RECORD_BYTES, LogMark
from forebay.storage.filesystem import DiskFilesystem
from forebay.storage.tail import TailFile

_KEPT = ("position", "popped")


@dataclass(frozen=True, slots=True)
class FifoMark(LogMark):
    """How far a fifo is durable; `position` is where on the tape that is."""

    position: int = 0

    def _is_there(self, offset: int) -> bool:
        with FifoView(self.path) as view:
            return view.end >= offset


class FifoLive:
    """A fifo, by its open `fifo-tail`; one that lost it is looked at every ten seconds."""

    def __init__(self, path: str) -> None:
        self._path = path
        directory = DiskFilesystem().open_directory(path)
        try:
            self._tail_file = TailFile.open(directory, write=False, name=TAIL)
        finally:
            directory.close()
        try:
            with FifoView(path) as view:
                self._begin = view.head.place
                self._file_bytes = view.file_bytes
                mark = view.mark
        except BaseException:
            self.close()
            raise
        self._mark = FifoMark(path, "", 0, mark.number, RECORD_BYTES, None, mark.position)

    def look(self) -> FifoMark:
        """Returns where it stands now."""
        tail = self._tail_file.read() if self._tail_file is not None else None
        if tail is not None:
            position = tail.segment * self._file_bytes + tail.position
            entries = tail.durable - self._begin.number
            size = (position - self._begin.position) // entries if entries > 0 else RECORD_BYTES
            self._mark = FifoMark(
                self._path,
                tail.queue_id.hex(),
                tail.incarnation,
                tail.durable,
                max(size, 1),
                tail,
                position,
            )
        return self._mark

    def is_same(self) -> bool:
        """Says no: one that was removed and made anew has another file under the same name."""
        return False

    def fields(self, mark: FifoMark, place: dict[str, Any], end: int) -> dict[str, Any]:
        """Returns where on the tape `end` is, and how many entries were popped unread."""
        if end == place["offset"]:
            return {name: place[name] for name in _KEPT if name in place}
        fields: dict[str, Any] = {}
        with FifoView(self._path) as view:
            known = known_places(view, place)
            popped = place.get("popped", 0) + popped_before(view, place["offset"], end, known)
        if popped:
            fields["popped"] = popped
        if end == mark.durable:
            fields["position"] = [mark.incarnation, mark.position]
        return fields

    def close(self) -> None:
        """Closes its file."""
        if self._tail_file is not None:
            self._tail_file.close()


def known_places(view: FifoView, place: dict[str, Any]) -> list[Place]:
    """Returns where on the tape a stream stands, if its checkpoint says so and it is still true.

    In another incarnation it may not be, and of a file that is gone it is not.
    """
    incarnation, position = place.get("position", (-1, 0))
    same = view.tail is not None and incarnation == view.tail.incarnation
    if same and position // view.file_bytes in list_files(view.directory):
        return [Place(position, place["offset"], 0)]
    return []


def popped_before(view: FifoView, start: int, end: int, known: Sequence[Place] = ()) -> int:
    """Returns how many entries from `start` up to `end` are not on the tape any more."""
    stop = min(end, view.mark.number)
    if start >= stop:
        return 0
    place = view.place_before(start, known)
    return stop - start if place is None else max(0, min(place.number, stop) - start)
