"""`forebay forward`: one command from a queue to its output, and the proof."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.cli import exits
from tests.cli.helpers import json_lines, make_log, run, start
from tests.support.forwarding import numbered_objects, receiver
from tests.support.receiver import Receiver
from tests.support.waiting import wait_until

__all__ = ["receiver"]
pytestmark = pytest.mark.usefixtures("servers")


def make_beats(path: Path, count: int) -> Path:
    with forebay.BeatsQueue(path, segment_bytes=2000) as queue:
        queue.put_many([{"fields": {"n": number}} for number in range(count)])
    return path


def test_a_log_is_forwarded_until_it_is_empty_and_the_sums_add_up(
    tmp_path: Path, receiver: Receiver
) -> None:
    path = make_log(tmp_path / "q", numbered_objects(100, [7]))
    receiver.script("cli", poison="poison", number="n")

    sent = run("forward", path, "--to", receiver.url("cli"), "--until-empty", "--json")
    proof = run("forward", path, "--check", "--json")
    shown = run("forward", path, "--show", "--json")

    assert (sent.exit_code, proof.exit_code, shown.exit_code) == (0, 0, 0)
    assert json_lines(sent)[0]["delivered"] == 99
    found = json_lines(proof)[0]
    assert found["holds"]
    assert [found[name] for name in ("delivered", "set_aside", "waiting", "records")] == [
        99,
        1,
        0,
        100,
    ]
    assert json_lines(shown)[0]["state"] == "stopped"
    assert receiver.summary("cli")["violations"] == []


def test_a_check_fails_if_a_record_is_missing(tmp_path: Path, receiver: Receiver) -> None:
    path = make_log(tmp_path / "q", numbered_objects(100, [7]))
    receiver.script("missing", poison="poison")
    run("forward", path, "--to", receiver.url("missing"), "--until-empty")
    for file in (path / "forward" / "forward" / "set-aside").iterdir():
        if file.is_file():
            file.unlink()

    proof = run("forward", path, "--check")

    assert proof.exit_code == exits.ERROR
    assert "0 records are in the log of what was set aside, and 1 are counted" in proof.stderr


def test_a_rescued_beats_queue_reaches_elasticsearch_by_one_command(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_beats(tmp_path / "diskqueue", 120)
    before = {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    url = receiver.url("logs/_bulk")

    sent = run("forward", path, "--to", url, "--until-empty")
    again = run("forward", path, "--to", url, "--until-empty")
    proof = run("forward", path, "--check", "--json")

    assert (sent.exit_code, again.exit_code, proof.exit_code) == (0, 0, 0)
    assert [value["document"]["n"] for value in receiver.values("logs/_bulk")] == list(range(120))
    assert {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()} == before
    assert json_lines(proof)[0]["records"] == 120


def test_a_beats_queue_that_is_taken_is_empty_afterwards(
    tmp_path: Path, receiver: Receiver
) -> None:
    path = make_beats(tmp_path / "diskqueue", 50)
    state = tmp_path / "state"

    sent = run(
        *("forward", path, "--to", receiver.url("taken/_bulk"), "--state", state),
        *("--take", "--until-empty"),
    )

    with forebay.BeatsReader(path) as reader:
        left = list(reader.events(unread=True))
    assert (sent.exit_code, left) == (0, [])
    assert receiver.summary("taken/_bulk")["records"] == 50


def test_several_forwarders_stand_in_a_file(tmp_path: Path, receiver: Receiver) -> None:
    make_log(tmp_path / "one", numbered_objects(30))
    make_log(tmp_path / "two", numbered_objects(40))
    file = tmp_path / "forward.toml"
    file.write_text(
        f'[forward.a]\nqueue = "one"\nto = "{receiver.url("a")}"\n'
        f'[forward.b]\nqueue = "two"\nto = "file:out"\nbatch_records = 7\n'
    )

    sent = run("forward", file, "--until-empty", "--json")

    assert sent.exit_code == 0
    assert [(each["name"], each["delivered"]) for each in json_lines(sent)] == [
        ("a", 30),
        ("b", 40),
    ]
    assert receiver.summary("a")["records"] == 30
    lines = (next((tmp_path / "out").glob("*.jsonl"))).read_text().splitlines()
    assert [json.loads(line)["n"] for line in lines] == list(range(40))


def test_a_forwarder_goes_on_until_it_is_stopped(tmp_path: Path, receiver: Receiver) -> None:
    path = make_log(tmp_path / "q", numbered_objects(10))

    with start("forward", path, "--to", receiver.url("on")) as process:
        assert wait_until(lambda: receiver.summary("on")["records"] == 10)
        with forebay.Log(path, shared=True) as log:
            log.append(b'{"n":10}')
        assert wait_until(lambda: receiver.summary("on")["records"] == 11)
        process.send_signal(signal.SIGTERM)
        _, messages = process.communicate(timeout=60)

    assert process.returncode == 128 + signal.SIGTERM, messages
    assert json_lines(run("forward", path, "--check", "--json"))[0]["waiting"] == 0


def test_an_outage_is_said_on_stderr(tmp_path: Path, receiver: Receiver) -> None:
    path = make_log(tmp_path / "q", numbered_objects(3))
    receiver.script("away", script=["503"])

    sent = run("forward", path, "--to", receiver.url("away"), "--until-empty")

    assert "does not take records: HTTP 503" in sent.stderr
    assert "takes records again" in sent.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--to is missing"),
        (["--to", "ftp://host/"], "not http"),
        (["--to", "http://u:p@host/"], "give a header from a file"),
        (["--to", "http://host/", "--index", "i"], "index has no meaning"),
        (["--to", "http://host/", "--take"], "take and key_file have no meaning"),
        (["--to", "http://host/", "--header-file", "x"], "not NAME=VALUE"),
        (["--to", "file:out", "--format", "raw"], "format has no meaning"),
    ],
)
def test_a_command_that_cannot_work_is_refused(
    tmp_path: Path, arguments: list[Any], message: str
) -> None:
    path = make_log(tmp_path / "q", [b"x"])

    result = run("forward", path, *arguments)

    assert result.exit_code == exits.USAGE
    assert message in result.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no table"),
        ("[forward.a]\nqueue = 'q'\n", "to must be a text"),
        ("[forward.a]\nqueue = 'q'\nto = 'http://h/'\nfoo = 1\n", "no field 'foo'"),
        ("[forward.a]\nqueue = 'q'\nto = 'http://h/'\nin_flight = 99\n", "at most 16"),
        ("not toml", "not TOML"),
    ],
)
def test_a_file_that_cannot_work_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "f.toml"
    file.write_text(text)

    result = run("forward", file)

    assert result.exit_code == exits.USAGE
    assert message in result.stderr


def test_looking_changes_nothing(tmp_path: Path) -> None:
    path = make_log(tmp_path / "q", [b"x"])
    before = sorted(file.name for file in path.iterdir())

    check, show = run("forward", path, "--check"), run("forward", path, "--show")

    assert (check.exit_code, show.exit_code) == (exits.ERROR, exits.NOTHING)
    assert sorted(file.name for file in path.iterdir()) == before
