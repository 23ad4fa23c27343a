"""What must hold of a log and its archive at any moment: every record is there, all is true."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from pathlib import Path

import forebay
from forebay.damage import Damage
from forebay.kernels.buffers import crc32
from forebay.queues.archive.manifest import NAME, Manifest
from forebay.queues.log.scanner import OpenSegment
from forebay.storage.filesystem import DiskFilesystem
from forebay.storage.segments import scan_segment
from tests.support.planting import Broken

SEGMENT_BYTES = 1_000
HOST = "host"


def value_of(offset: int) -> bytes:
    """Returns the record that the tests append at an offset."""
    return b"record %08d" % offset


def append(log: forebay.Log, count: int) -> None:
    """Appends the next records."""
    log.append_many([value_of(log.end + number) for number in range(count)])


def check_both(path: Path, archived: Iterable[tuple[int, bytes]], acknowledged: int) -> None:
    """Raises `Broken` unless host and archive together hold every record, as it was appended.

    The archive must have been read after the host: what left the host meanwhile is in it.
    """
    there = host_records(path)
    for offset, value in [*there.items(), *archived]:
        if value != value_of(offset):
            raise Broken(f"offset {offset} holds {value!r}")
        there[offset] = value
    lost = [offset for offset in range(acknowledged) if offset not in there]
    if lost:
        raise Broken(f"{len(lost)} records are neither here nor there, the first is {lost[0]}")


def host_records(path: Path) -> dict[int, bytes]:
    """Returns what is on the host."""
    with forebay.read(path, kind="log") as reader:
        return {record.offset: record.value for record in reader}


def archived_records(target: Path) -> list[tuple[int, bytes]]:
    """Returns what the archive in a directory holds; nothing if there is none yet."""
    if not (target / NAME).exists():
        return []
    with forebay.read(target, kind="log") as reader:
        return [(record.offset, record.value) for record in reader]


def decoded(rows: list[tuple[int, str]]) -> list[tuple[int, bytes]]:
    """Returns the records that another process has read."""
    return [(offset, base64.b64decode(value)) for offset, value in rows]


def check_target(target: Path) -> None:
    """Raises `Broken` if an object of a log's archive is wrong or half, named or not."""
    if not target.exists():
        return
    named = manifest_of(target)
    rows = {} if named is None else {row.object: row for row in named.segments}
    for name in rows:
        if not (target / name).exists():
            raise Broken(f"the manifest names {name}, which is not there")
    for file in target.iterdir():
        # What was not renamed is not an object yet.
        if file.name == NAME or file.suffix == ".new":
            continue
        data = file.read_bytes()
        row = rows.get(file.name)
        if row is not None and (len(data), f"{crc32(data):08x}") != (row.bytes, row.crc):
            raise Broken(f"{file.name} is not what the manifest says")
        _check_whole(file)


def manifest_of(target: Path) -> Manifest | None:
    """Returns the manifest in a directory; None if there is none."""
    file = target / NAME
    return Manifest.decode(file.read_bytes(), str(file)) if file.exists() else None


def _check_whole(file: Path) -> None:
    """Raises `Broken` unless an object is a segment that ends with a whole record."""
    directory = DiskFilesystem().open_directory(str(file.parent))
    try:
        base = int(file.name.partition("-")[0], 16)
        segment = OpenSegment(directory, file.name, base)
        start = end = segment.frames.layout.header_bytes
        try:
            for item in scan_segment(segment.file, str(file), segment.frames, position=start):
                if isinstance(item, Damage):
                    raise Broken(f"{file.name} at the target: {item}")
                end = item.end_position
            if end != segment.file.size() or end == start:
                raise Broken(f"{file.name} at the target is half")
        finally:
            segment.file.close()
    except forebay.ForebayError as error:
        raise Broken(f"{file.name} at the target: {error}") from None
    finally:
        directory.close()
