"""The files that the original deadline queue left, as a kind of queue that is only scanned."""

from __future__ import annotations

from collections.abc import Iterator

from forebay.damage import Damage
from forebay.queues.deadline.kind import file_records, in_batches
from forebay.queues.deadline.original import is_file, scan_folder
from forebay.queues.shared.rows import Rows


def scan(path: str, *, raw: bool = False) -> Iterator[Rows | Damage]:
    """Yields one file as it is, or the live items of a folder; `raw`: all that its files hold."""
    one = is_file(path)
    return in_batches(file_records(path) if one else scan_folder(path, raw=raw))
