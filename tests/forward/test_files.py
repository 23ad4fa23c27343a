"""Files as an output: whole, synced, and no batch in them twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forebay import Log
from forebay.errors import Locked
from forebay.forward.files import FilesOutput
from forebay.forward.outputs import Batch
from tests.support.clocks import FakeClock
from tests.support.forwarding import check_holds, forward_all, kill_until_done, numbered_objects
from tests.support.inside import leave_files


def forward(queue: Path, values: list[bytes], output: FilesOutput) -> None:
    with Log(queue) as log:
        log.append_many(values)
        forward_all(log, output)


def numbers_in(folder: Path) -> list[int]:
    lines = [
        line for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()
    ]
    return [json.loads(line)["n"] for line in lines]


def batch(key: str, number: int) -> Batch:
    return Batch("q", 1, key, [], b'{"n":%d}\n' % number)


def test_files_are_whole_and_named_by_their_offsets(tmp_path: Path) -> None:
    forward(tmp_path / "q", numbered_objects(200), FilesOutput(tmp_path / "out", rotate_bytes=500))

    names = sorted(file.name for file in (tmp_path / "out").iterdir())

    assert names[0] == f"{0:020}-{59:020}.jsonl"
    assert names[-1] == "part-state"
    assert numbers_in(tmp_path / "out") == list(range(200))


def test_a_file_is_renamed_after_its_time(tmp_path: Path) -> None:
    clock = FakeClock()
    output = FilesOutput(tmp_path / "out", rotate_seconds=60, clock=clock)

    output.send(batch("a", 1))
    clock.ms += 61_000
    before = list((tmp_path / "out").glob("*.jsonl"))
    output.send(batch("b", 2))
    after = list((tmp_path / "out").glob("*.jsonl"))
    output.close()

    assert (len(before), len(after)) == (0, 1)


def test_a_key_that_comes_again_is_not_written_twice(tmp_path: Path) -> None:
    for _ in range(2):
        output = FilesOutput(tmp_path / "out")
        output.send(batch("a", 1))
        output.send(batch("a", 1))
        output.close()

    assert numbers_in(tmp_path / "out") == [1]


def test_a_half_written_batch_is_cut_off(tmp_path: Path) -> None:
    output = FilesOutput(tmp_path / "out")
    output.send(batch("a", 1))
    with (tmp_path / "out" / "part").open("ab") as file:
        file.write(b'{"n":')
    leave_files(output)

    again = FilesOutput(tmp_path / "out")
    again.send(batch("b", 2))
    again.close()

    assert numbers_in(tmp_path / "out") == [1, 2]


def test_one_process_writes_to_a_directory(tmp_path: Path) -> None:
    output = FilesOutput(tmp_path / "out")

    with pytest.raises(Locked):
        FilesOutput(tmp_path / "out")

    output.close()


@pytest.mark.slow
@pytest.mark.crash
def test_kills_leave_each_record_in_the_files_once(tmp_path: Path) -> None:
    with Log(tmp_path / "q") as log:
        log.append_many(numbered_objects(400))

    killed = kill_until_done(
        tmp_path / "q", lambda: FilesOutput(tmp_path / "out", rotate_bytes=700), 12, seed=3
    )

    assert killed >= 3
    assert numbers_in(tmp_path / "out") == list(range(400))
    assert check_holds(tmp_path / "q").records == 400
