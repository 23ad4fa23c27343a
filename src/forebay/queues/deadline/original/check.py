"""The files that the original deadline queue left: a check, and a copy into a queue."""

from __future__ import annotations

import os
from collections.abc import Iterator

from forebay.damage import Damage
from forebay.formats.deadline.wal import Record
from forebay.queues.deadline.check import Copying, DeadlineCopy, DeadlineReport, count_records
from forebay.queues.deadline.names import original_names
from forebay.queues.deadline.original import scan_folder
from forebay.queues.shared.reader import size_of
from forebay.queues.shared.reports import Findings, Progress
from forebay.storage.filesystem import DiskFilesystem


def check(path: str, progress: Progress) -> DeadlineReport:
    """Verifies the files as far as they can be."""
    findings = Findings()
    directory = DiskFilesystem().open_directory(path)
    try:
        names = original_names(directory.names())
        size = sum(size_of(directory, name) for name in names)
    finally:
        directory.close()
    records, buried = count_records(scan_folder(path, raw=False), findings, progress, None)
    findings.notes.append("these files have no checksums: only sizes, order and counts are checked")
    return DeadlineReport(
        kind="original",
        path=directory.path,
        state="closed",
        records=records,
        segments=len(names),
        bytes=size,
        buried=buried,
        **findings.as_fields(),
    )


def copy(path: str, target: str, progress: Progress) -> DeadlineCopy:
    """Brings the live items into a queue."""

    def scan() -> Iterator[Record | Damage]:
        return scan_folder(path, raw=False)

    copying = Copying(target, progress, None, [])
    return copying.run("original", os.path.abspath(path), scan, has_buried=False)
