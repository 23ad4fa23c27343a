"""The page for a stuck Filebeat is followed, command by command, to a server that is no Elastic."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

import forebay
from tests.cli.helpers import run
from tests.docs.pages import blocks
from tests.support.forwarding import receiver
from tests.support.receiver import Receiver

__all__ = ["receiver"]
PAGE = "docs/how-to/stuck-filebeat.md"
QUEUE = "/var/lib/filebeat/diskqueue"
ADDRESS = "https://elastic.example:9200/_bulk"
EVENTS = 250
FIELDS = {"agent": {"type": "filebeat", "version": "8.4.0"}}


def commands() -> list[str]:
    """Lists the commands of the page that are ours, in their order."""
    lines = [line for block in blocks(PAGE, "sh") for line in block.splitlines()]
    return [line for line in lines if line.startswith("forebay ")]


class Operator:
    """Types the commands of the page, with other names for queue, address and key."""

    def __init__(self, folder: Path, address: str) -> None:
        self._folder = folder
        self._address = address

    def type(self, command: str) -> tuple[int, str]:
        command = command.replace(ADDRESS, self._address).replace(
            QUEUE, str(self._folder / "queue")
        )
        command = command.replace("/root/elastic-key", str(self._folder / "key"))
        state = self._folder / "home" / "forebay"
        words = []
        for word in shlex.split(command.replace("~/.local/state/forebay", str(state)))[1:]:
            words += (
                [str(found) for found in sorted(Path("/").glob(word[1:]))]
                if "*" in word
                else [word]
            )
        result = run(*words)
        return result.exit_code, result.output


@pytest.mark.slow
def test_the_commands_of_the_page_bring_every_event_to_the_server(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    (tmp_path / "key").touch(mode=0o600)
    (tmp_path / "key").write_text("ApiKey secret")
    with forebay.BeatsQueue(tmp_path / "queue", segment_bytes=4000) as queue:
        queue.put_many([{"fields": {"n": number, **FIELDS}} for number in range(EVENTS)])
        queue.read(20).ack()
    receiver.script("_bulk", poison='"n": 77')
    operator = Operator(tmp_path, receiver.url("_bulk"))
    info, fsck, peek, first, rest, check, refused, take = commands()

    looked = [operator.type(command)[0] for command in (info, fsck, peek)]
    some = operator.type(first)[0], receiver.summary("_bulk")["records"]
    sent = operator.type(rest)[0]
    checked, told = operator.type(check)
    shown, words = operator.type(refused)
    taken = operator.type(take)[0]

    assert looked == [0, 0, 0]
    assert some == (0, 10)
    assert (sent, checked, shown, taken) == (0, 0, 0, 0)
    assert "holds\tyes" in told
    assert "waiting\t0" in told
    assert '"reason": "400' in words
    numbers = [value["document"]["n"] for value in receiver.values("_bulk")]
    assert numbers == [number for number in range(20, EVENTS) if number != 77]
    assert receiver.summary("_bulk")["repeats"] == 0
    with forebay.BeatsReader(tmp_path / "queue") as reader:
        assert list(reader.events(unread=True)) == []
