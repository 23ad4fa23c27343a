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
        sizes = {name: size_of(directory, name) for name in names}
    finally:
        directory.close()
    records, buried = count_records(scan_folder(path, raw=False), findings, progress, None)
    reason = "these files have no checksums: only sizes, order and counts are checked"
    findings.notes.append(reason)
    return DeadlineReport(
        kind="original",
        path=directory.path,
        state="closed",
        records=records,
        segments=len(names),
        bytes=sum(sizes.values()),
        buried=buried,
        unverifiable=tuple(
            Damage(f"{directory.path}/{name}", 0, size, reason, count=0)
            for name, size in sizes.items()
        ),
        **findings.as_fields(),
    )


def copy(path: str, target: str, progress: Progress) -> DeadlineCopy:
    """Brings the live items into a queue."""

    def scan() -> Iterator[Record | Damage]:
        return scan_folder(path, raw=False)

    copying = Copying(target, progress, None, [])
    return copying.run("original", os.path.abspath(path), scan, has_buried=False)
