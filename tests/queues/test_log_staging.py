"""What recovery makes of a staging buffer in which bytes of older chunks lie after the newest."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import forebay
from forebay import Log
from forebay.formats.fflg import Frames, decode_header
from forebay.queues.log.recovery import StagedBytes, staged_batches
from forebay.storage.filesystem import DiskFilesystem
from forebay.storage.segments import scan_segment
from forebay.storage.staging import HEADER_BYTES, find_staged


@pytest.mark.parametrize("sync", ["interval", "os"])
def test_a_frame_by_chance_beyond_the_noted_ones_is_none(tmp_path: Path, sync: str) -> None:
    with Log(tmp_path / "live", sync=sync, background=False) as log:  # type: ignore[arg-type]
        log.append_many([b"a", b"b", b"c"])
        log.append(b"d")
        # As a killed owner leaves it.
        shutil.copytree(tmp_path / "live", tmp_path / "q")
    plant(tmp_path / "q")

    with forebay.read(tmp_path / "q", kind="log") as reader:
        seen = list(reader.values())
    with Log(tmp_path / "q") as log:
        found = [record.value for record in log.consumer("c")]
        counts = log.end, log.info().losses

    assert seen == found == [b"a", b"b", b"c", b"d"]
    assert counts == (4, 0)


def plant(path: Path) -> None:
    """Writes frames far ahead, which verify, some bytes after the last one of the buffer."""
    directory = DiskFilesystem().open_directory(str(path))
    staged = find_staged(directory)
    directory.close()
    assert staged is not None
    assert staged.count is not None
    *_, last = staged_batches(staged, "staging")
    frames = Frames(decode_header(staged.header, "staging"))
    ahead = staged.index + 4
    count, size = frames.fit([b"false", b"too"], 0, 2**62)
    buffer = bytearray(size)
    frames.encode([b"false", b"too"], 0, count, buffer, ahead, 0, [5, 6])
    with (path / "staging").open("r+b") as file:
        file.seek(HEADER_BYTES + last.end_position)
        file.write(b"of older chunks " * 20 + buffer)
    check_planted(path, ahead)


def check_planted(path: Path, ahead: int) -> None:
    """Makes sure that a search without a limit finds them."""
    directory = DiskFilesystem().open_directory(str(path))
    staged = find_staged(directory)
    directory.close()
    assert staged is not None
    frames = Frames(decode_header(staged.header, "staging"))
    content = StagedBytes(staged.frames)
    items = scan_segment(content, "staging", frames, position=0, index=staged.index)
    assert ahead in [getattr(item, "index", None) for item in items]
