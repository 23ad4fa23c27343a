"""The page for operators with a damaged disk: its commands do what it says."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

import forebay
from forebay.cli.main import main
from tests.docs.pages import blocks

PAGE = "docs/damaged-disk.md"
PLACES = {"/mnt/rescue/events": "events", "/var/spool/app/events": "events", "/new-disk": "new"}


@pytest.fixture
def events(tmp_path: Path) -> Path:
    """A log of 5,000 records with one flipped bit."""
    path = tmp_path / "events"
    with forebay.Log(path) as log:
        log.append_many([b"%d" % number for number in range(1, 5_001)])
    segment = path / "0000000000"
    data = bytearray(segment.read_bytes())
    data[26_310] ^= 4
    segment.write_bytes(data)
    return path


def run(command: str, root: Path) -> tuple[int, str]:
    """Runs a `forebay` command of the page below a directory."""
    for place, name in PLACES.items():
        command = command.replace(place, str(root / name))
    result = CliRunner().invoke(main, shlex.split(command, comments=True)[1:])
    return result.exit_code, result.output


def commands() -> list[str]:
    """Lists the commands of the page that are ours, in their order."""
    lines = [line for block in blocks(PAGE, "sh") for line in block.splitlines()]
    return [line for line in lines if line.startswith("forebay ")]


def test_the_commands_of_the_page_end_with_a_queue_that_is_accepted(
    events: Path, tmp_path: Path
) -> None:
    fsck, recover, cat, accept = commands()

    code, told = run(fsck, tmp_path)
    assert code == 4
    assert told.replace(str(events), "/mnt/rescue/events") == blocks(PAGE, "text")[0]

    assert run(recover, tmp_path)[0] == 0
    with forebay.read(tmp_path / "new" / "events") as reader:
        assert sum(1 for _ in reader) == 4_999

    code, printed = run(cat, tmp_path)
    assert code == 0
    assert sum('"offset"' in line and "value_b64" in line for line in printed.splitlines()) == 4_999

    assert run(accept, tmp_path)[0] == 0
    assert run(fsck, tmp_path)[0] == 0


def test_the_loop_of_the_page_reads_everything_but_the_damage(
    events: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (loop,) = blocks(PAGE, "python")
    counting = loop.replace("    if not records:", "    count += len(records)\n    if not records:")

    with forebay.Log(events) as log:
        names = {"forebay": forebay, "consumer": log.consumer("billing"), "count": 0}
        exec(compile(counting, PAGE, "exec"), names)
        losses = log.info().losses

    assert names["count"] == 4_999
    assert capsys.readouterr().out.count("checksum does not match") == 1
    assert losses == 1
