"""`fsck` of a deadline queue: every block, batch and index of its files, and its manifest."""

from __future__ import annotations

import os
from collections.abc import Iterable

from forebay.cli import exits
from forebay.cli.deadline_folder import Folder
from forebay.cli.deadline_inspection import STATES, state_of
from forebay.cli.fsck import Findings, summary, write_findings, write_text
from forebay.cli.inspection import owner_of
from forebay.cli.kinds import NAMES
from forebay.cli.output import Bar, plural, size_text
from forebay.damage import Damage
from forebay.formats.deadline.items import FileKind, Item, file_name, parse_file_name
from forebay.formats.deadline.manifest import NAME
from forebay.formats.deadline.wal import Record
from forebay.queues.deadline.names import OWN_DIRECTORIES, OWN_NAMES, is_temporary, list_files
from forebay.queues.deadline.original import scan_folder


def check_deadline(path: str, accept: bool, as_json: bool) -> int:
    """Verifies all that the files of a queue hold."""
    with Folder(path) as folder:
        findings, buried = _check(folder)
    findings.settle(path, accept=accept)
    return _report(findings, buried, as_json)


def check_original(path: str, as_json: bool) -> int:
    """Verifies the files that the original program left, as far as they can be."""
    findings = Findings(state="closed")
    names = [name for name in os.listdir(path) if parse_file_name(name) is not None]
    findings.segments = len(names)
    findings.bytes = sum(os.path.getsize(os.path.join(path, name)) for name in names)
    _count(scan_folder(path, raw=False), findings, total=None)
    findings.notes.append("these files have no checksums: only sizes, order and counts are checked")
    return _report(findings, 0, as_json)


def _check(folder: Folder) -> tuple[Findings, int]:
    """Reads everything; gives what was found, and how many of the items are buried."""
    findings = Findings()
    # The owner first: one that ends meanwhile has finished what it was writing.
    owner = owner_of(folder.path)
    findings.state = state_of(folder, owner)
    findings.segments = len(folder.runs) + len(folder.logs)
    findings.bytes = folder.size
    for damage in [*folder.damage, *folder.mended]:
        findings.add(damage)
    buried = _count(folder.items(whole=True), findings, folder.entry_count)
    for run in folder.runs:
        for damage in run.check_ids():
            findings.add(_harmless(damage))
    if owner is None:
        for damage in folder.torn:
            findings.add(damage)
    _check_names(folder, findings)
    kept_files, kept_bytes = folder.kept()
    if kept_files:
        size = size_text(kept_bytes)
        findings.notes.append(f"quarantine/ keeps {plural(kept_files, 'file')} ({size})")
    return findings, buried


def _count(items: Iterable[Record | Damage], findings: Findings, total: int | None) -> int:
    """Takes note of items and damage; gives how many items are buried."""
    buried = 0
    with Bar("fsck", total) as bar:
        for item in items:
            if isinstance(item, Damage):
                findings.add(item)
            elif isinstance(item, Item):
                findings.records += 1
                buried += item.buried
                bar.update(findings.records)
    return buried


def _harmless(damage: Damage) -> Damage:
    reason = f"{damage.reason}; lookups by id read all blocks"
    return Damage(damage.path, damage.position, damage.length, reason, count=0)


def _check_names(folder: Folder, findings: Findings) -> None:
    """Takes note of files that do not count, and of those that do not belong there."""
    counting = {run.name for run in folder.runs} | set(folder.logs)
    ours = {file_name(*found): found[1] for found in list_files(folder.names)}
    for name in sorted(set(folder.names) - counting - OWN_NAMES - OWN_DIRECTORIES):
        if name in ours:
            what = "log" if ours[name] is FileKind.WAL else "run"
            findings.notes.append(f"{name} is a {what} that {NAME} does not count any more")
        elif is_temporary(name):
            findings.notes.append(f"{name} was left half made; the next open removes it")
        else:
            findings.foreign.append(name)


def _report(findings: Findings, buried: int, as_json: bool) -> int:
    if as_json:
        write_findings(findings, {**summary(findings), "buried": buried})
    else:
        if buried:
            findings.notes.append(f"{buried} of the items are buried")
        write_text(findings, record="item", file="file", queue=NAMES["deadline"], states=STATES)
    return exits.DAMAGE if findings.damage else exits.OK
