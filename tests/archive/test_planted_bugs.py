"""Bugs that are planted in the archiver, and the hunts that find them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forebay.queues.archive import archiver, manifest, store
from forebay.queues.archive.archiver import Archiver
from forebay.queues.archive.manifest import Finished, HostQueue, Manifest
from forebay.queues.log import archiving
from forebay.queues.log.reader import LogReader
from forebay.storage import objects
from forebay.storage.objects import DiskFolder
from tests.archive import hunts
from tests.counting import Count
from tests.support.planting import Bug, Patch, check_caught, each

pytestmark = [pytest.mark.slow, pytest.mark.crash]


def trimmed_before_verified(patch: Patch) -> None:
    patch.setattr(archiver, "read_back", lambda *_: None)


def verified_by_its_frames_alone(patch: Patch) -> None:
    def add(self: Any, data: memoryview) -> None:
        self.end += len(data)

    whole = store.read_back

    def read_back(folder: Any, kind: str, row: manifest.Row, key_file: str | None) -> Any:
        return whole(folder, kind, row._replace(crc=f"{0:08x}"), key_file)

    patch.setattr(store._Summed, "add", add)
    patch.setattr(archiver, "read_back", read_back)


def manifest_before_its_segments(patch: Patch) -> None:
    send = Archiver._send

    def early(self: Archiver, each: Finished, incarnation: int, done: Any, tell: Any) -> Any:
        before = store.read_manifest(self._folder)
        kept: list[tuple[str, list[bytes]]] = []

        class Later:
            def write(self, name: str, chunks: Iterator[bytes]) -> None:
                kept.append((name, list(chunks)))

        folder, self._folder = self._folder, Later()  # type: ignore[assignment]
        row = send(self, each, incarnation, done, tell)
        self._folder = folder
        if before is not None and row is not None:
            self._publish(manifest.with_row(before, row))
        for name, chunks in kept:
            folder.write(name, iter(chunks))
        return row

    patch.setattr(Archiver, "_send", early)


def objects_go_before_the_manifest_forgets(patch: Patch) -> None:
    publish = Archiver._publish

    def late(self: Archiver, made: Manifest) -> None:
        for name in made.forgotten:
            self._folder.remove(name)
        publish(self, made)

    patch.setattr(Archiver, "_publish", late)


def objects_are_written_in_place(patch: Patch) -> None:
    def write(self: DiskFolder, name: str, chunks: Iterator[bytes]) -> None:
        self.remove(name)
        file = self._directory.create(name)
        end = 0
        try:
            for chunk in chunks:
                vars(objects)["write_all"](file, chunk, end)
                end += len(chunk)
        finally:
            file.close()

    patch.setattr(DiskFolder, "write", write)


def cursor_before_the_objects(patch: Patch) -> None:
    bring_up = Archiver._bring_up

    def eager(self: Archiver, host: HostQueue, *rest: Any) -> Manifest:
        assert self._cursor is not None
        self._cursor.advance(host.end, host.incarnation)
        return bring_up(self, host, *rest)

    patch.setattr(Archiver, "_bring_up", eager)


def trimmed_unasked(patch: Patch) -> None:
    run = Archiver.run

    def careless(self: Archiver, *arguments: Any) -> Any:
        self._trim = True
        return run(self, *arguments)

    patch.setattr(Archiver, "run", careless)


def open_segments_count_as_finished(patch: Patch) -> None:
    on_host = archiving.on_host

    def hasty(path: str, **options: Any) -> HostQueue:
        found = on_host(path, **options)
        with LogReader(path) as reader:
            name = reader.segments.names[reader.segments.bases[-1]]
        newest = Finished(name, found.end, found.written)
        return replace(found, segments=[*found.segments, newest], end=found.written)

    patch.setattr(archiving, "on_host", hasty)


def incarnations_are_overlooked(patch: Patch) -> None:
    patch.setattr(archiver, "superseded_by", lambda found, _: found)


def queues_are_told_apart_by_name(patch: Patch) -> None:
    begin = Archiver._begin

    def trusting(self: Archiver, host: HostQueue, before: Manifest | None) -> Manifest:
        if before is not None:
            before = replace(before, queue_id=host.queue_id)
        return begin(self, host, before)

    patch.setattr(Archiver, "_begin", trusting)


def sizes_are_those_of_the_objects(patch: Patch) -> None:
    side_files = archiving.side_files

    def short(found: Manifest) -> dict[str, bytes]:
        *most, last = found.segments
        return side_files(replace(found, segments=(*most, last._replace(end=last.first))))

    patch.setattr(archiving, "side_files", short)


BUGS: dict[str, Bug] = {
    "trimmed before verified": (trimmed_before_verified, hunts.damage_a_copy),
    "verified by frames alone": (verified_by_its_frames_alone, hunts.swap_a_copy),
    "manifest before its segments": (manifest_before_its_segments, hunts.cut_everywhere),
    "objects before the manifest forgets": (
        objects_go_before_the_manifest_forgets,
        hunts.cut_everywhere,
    ),
    "objects written in place": (objects_are_written_in_place, hunts.cut_everywhere),
    "cursor before the objects": (cursor_before_the_objects, hunts.cut_everywhere),
    "trimmed unasked": (trimmed_unasked, hunts.archive_without_trim),
    "open segments count as finished": (open_segments_count_as_finished, hunts.archive_while_open),
    "incarnations overlooked": (incarnations_are_overlooked, hunts.lose_and_assign_again),
    "told apart by name": (queues_are_told_apart_by_name, hunts.archive_another_queue),
    "an end of the objects' own": (sizes_are_those_of_the_objects, hunts.cut_a_copy),
}


@each(BUGS)
def test_a_planted_bug_is_caught(
    bug: Bug, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Count
) -> None:
    check_caught(bug, monkeypatch, record_property, tmp_path)


HUNTS = {bug[1].__name__: bug[1] for bug in BUGS.values() if bug[1] is not hunts.cut_everywhere}


@pytest.mark.parametrize("name", HUNTS)
def test_a_hunt_finds_nothing_in_what_is_right(name: str, tmp_path: Path) -> None:
    # A hunt raises where it finds something.
    assert HUNTS[name](tmp_path) is None


def test_a_run_that_is_cut_anywhere_loses_nothing(tmp_path: Path, record_property: Count) -> None:
    cuts = hunts.cut_everywhere(tmp_path)

    assert cuts > 10
    record_property("runs of an archiver cut at a change", cuts)
