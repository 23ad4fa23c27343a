"""`forebay serve ROOT`: one server for all queues of a root, with and without a supervisor."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import forebay
from forebay import InvalidOption, NotAQueue
from forebay.client import queues as client
from forebay.client.finding import IDLE_VARIABLE
from forebay.exchange import verbs_of
from forebay.serve.access import VERBS, class_of
from forebay.serve.config import read_config
from tests.cli.helpers import run
from tests.docs.pages import only_block
from tests.kinds import KINDS, Kind
from tests.sharing.test_ends import push_and_note
from tests.sources import python_path
from tests.support.clients import Peer, peers
from tests.support.servers import is_locked, server_pid, serving
from tests.support.values import numbered
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("servers")]
EACH_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Lends a root that is served."""
    path = tmp_path_factory.mktemp("served") / "root"
    with serving(path):
        yield path


@EACH_KIND
def test_a_queue_of_every_kind_is_made_on_demand_and_found_again(root: Path, kind: Kind) -> None:
    path = root / f"made-{kind.name}"
    with kind.queue(path, shared=True, sync="os") as queue:
        kind.put_many(queue, numbered(3))
    with forebay.open(path, shared=True) as again:
        sync = again.options.sync
        found = kind.drain(again)

    assert (found, sync) == (numbered(3), "os")
    assert not (path / "server.log").exists()


def test_all_queues_have_one_server_and_every_process_finds_it(root: Path) -> None:
    with peers(2) as others:
        for peer, name in zip(others, ("one", "two"), strict=True):
            peer.do(partial(push_until_stored, root / name))
    facts = client.facts(str(root))

    assert facts is not None
    counts = {each["name"]: each["written"] for each in facts["queues"]}
    assert (counts["one"], counts["two"]) == (1, 1)
    assert not (root / "one" / "server.sock").exists()


def test_options_stay_with_the_queue_when_all_have_closed_it(root: Path) -> None:
    with forebay.Fifo(root / "kept", shared=True, max_bytes=1_000_000):
        pass
    with pytest.raises(InvalidOption, match=r"max_bytes = 2000000.*max_bytes = 1000000"):
        forebay.Fifo(root / "kept", shared=True, max_bytes=2_000_000)
    with forebay.Fifo(root / "kept", shared=True) as fifo:
        assert fifo.options.max_bytes == 1_000_000


def test_what_is_no_queue_of_the_root_is_refused(root: Path) -> None:
    with pytest.raises(NotAQueue, match="does not exist"):
        forebay.open(root / "nothing", shared=True)
    with pytest.raises(InvalidOption, match="name"):
        forebay.Fifo(root / "no good name", shared=True)
    with forebay.Fifo(root / "fifo", shared=True), pytest.raises(NotAQueue, match="fifo"):
        forebay.Log(root / "fifo", shared=True)

    assert not (root / "nothing").exists()
    assert not (root / "no good name").exists()


def test_a_queue_that_was_there_before_is_taken_into_the_root(root: Path) -> None:
    with forebay.Fifo(root / "older") as fifo:
        fifo.push(b"x")
    with forebay.open(root / "older", kind="fifo", shared=True) as fifo:
        found = fifo.pop()
    with pytest.raises(NotAQueue, match="fifo"):
        forebay.Log(root / "older", shared=True)

    assert found == b"x"


@EACH_KIND
def test_the_command_line_works_on_a_served_root(root: Path, kind: Kind) -> None:
    path = root / f"cli-{kind.name}"
    lines = b"".join(b'{"fields":{"value":"%s"}}\n' % value for value in numbered(3))
    consumer = ["--consumer", "c"] if kind.record.has_consumers else []
    put = run("put", path, "--kind", kind.name, "--json", stdin=lines)
    info = run("info", path, "--json")
    taken = run("take", path, "--count", 2, *consumer)
    listed = run("ls", root, "--json")
    checked = run("fsck", path)

    assert (put.exit_code, json.loads(put.stdout)["count"]) == (0, 3)
    assert json.loads(info.stdout)["records"] == 3
    assert (taken.exit_code, taken.stdout.count("\n")) == (0, 2)
    assert f'"{path}"' in listed.stdout
    assert checked.exit_code == 0


def test_a_second_server_is_refused_and_says_who_serves(root: Path) -> None:
    refused = run("serve", root)

    assert refused.exit_code == 75
    assert "stop that server first" in refused.stderr


def test_a_clean_stop_under_load_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "root" / "jobs"
    with serving(tmp_path / "root") as service, peers(2) as others:
        for number, peer in enumerate(others):
            peer.begin(partial(push_and_note, path, f"p{number}", tmp_path / "stop"))
        with forebay.Fifo(path, shared=True) as fifo:
            wait_until(lambda: len(fifo) > 50)
            code = service.end()
            # Whoever still pushes has started another server by now.
            before = len(fifo)
            wait_until(lambda: len(fifo) > before + 50)
        (tmp_path / "stop").touch()
        results = [peer.result() for peer in others]
        with forebay.Fifo(path, shared=True) as fifo:
            found: list[bytes] = []
            while some := fifo.pop_many(1_000):
                found += some

    assert code == 0
    assert "ended" in service.text
    for number, (done, unsure) in enumerate(results):
        mine = [int(value.split()[1]) for value in found if value.startswith(b"p%d " % number)]
        assert mine == sorted(set(mine))
        assert done <= len(mine) <= done + unsure


def test_a_server_that_a_client_started_gives_way_to_one_that_stays(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with forebay.Root(root) as made:
        made.define("jobs", "fifo", sync="os")
    with forebay.Fifo(root / "jobs", shared=True) as fifo:
        fifo.push(b"before")
        assert server_pid(root / "server.log") is not None
        with serving(root) as service:
            fifo.push(b"after")
            found = fifo.pop_many(10)
            sync = fifo.options.sync
            assert service.end() == 0

    assert (found, sync) == ([b"before", b"after"], "os")


def test_a_server_that_was_killed_leaves_what_was_acknowledged(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with serving(root) as service, KINDS["deadline"].queue(root / "d", shared=True) as queue:
        KINDS["deadline"].put_many(queue, numbered(5))
        service.end(signal.SIGKILL)
        with serving(root):
            found = KINDS["deadline"].drain(queue)

    assert sorted(found) == numbered(5)


def test_a_queue_that_cannot_be_opened_does_not_hold_up_the_others(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with forebay.Root(root) as made:
        for name in ("bad", "good"):
            made.define(name, "fifo")
            made.queue(name, "fifo").push(b"x")
    shutil.rmtree(root / "bad")
    (root / "bad").touch()
    with serving(root) as service:
        with forebay.open(root / "good", kind="fifo", shared=True) as fifo:
            found = fifo.pop()
        with pytest.raises(NotAQueue):
            forebay.open(root / "bad", shared=True)

    assert found == b"x"
    assert "root/bad: cannot be opened" in service.text


def test_the_examples_of_the_page_do_what_it_says(root: Path, tmp_path: Path) -> None:
    program = only_block("docs/serve.md", "python").replace("/spool", str(root))
    exec(compile(program, "docs/serve.md", "exec"), {})
    config = tmp_path / "forebay.toml"
    config.write_text(only_block("docs/serve.md", "toml").replace("www-data", "root"))
    read = read_config(str(config))
    with forebay.open(root / "jobs", kind="fifo", shared=True) as jobs:
        found = jobs.pop()

    assert found == b"..."
    assert read.access.users["jobs"] == {"write": {0}, "take": {1001}}
    assert read.queues["jobs"].options["max_bytes"] == 1_000_000_000


CONFIG = """
[limits]
clients = 3

[queues.jobs]
kind = "fifo"
sync = "interval"
max_bytes = 70000000

[queues.events]
kind = "log"
"""


def test_queues_come_from_a_file(tmp_path: Path) -> None:
    config, root = tmp_path / "forebay.toml", tmp_path / "root"
    config.write_text(CONFIG)
    with serving(root, "--config", str(config), "--log-format", "json") as service:
        with forebay.open(root / "jobs", shared=True) as queue:
            options = queue.options
        assert isinstance(queue, forebay.Fifo)
        with forebay.Log(root / "events", shared=True) as log:
            log.append(b"x")
        service.end()
    lines = [json.loads(line) for line in service.text.splitlines()]

    assert (options.sync, options.max_bytes) == ("interval", 70_000_000)
    assert [line["message"] for line in lines] == [f"serving {root}", "ended"]
    assert {line["level"] for line in lines} == {"info"}


def test_every_verb_has_a_class_and_every_class_only_verbs() -> None:
    queues = [forebay.Log, forebay.Fifo, forebay.DeadlineQueue, forebay.BeatsQueue]
    verbs = {verb for queue in queues for verb in verbs_of(queue)} | {"had_left", "popping"}
    administered = {verb for verb in verbs if class_of(verb) == "admin"}

    # Whoever adds a verb decides here who may use it.
    assert administered == {
        *("damage", "delete", "forget_consumer", "freeze", "kick", "merge", "trim"),
    }
    assert {verb for group in VERBS.values() for verb in group} <= verbs


WRONG = {
    "not TOML": ("queues = [", "TOML|array|value"),
    "an unknown table": ("[queue.a]\nkind = 'fifo'", r"queue: there are \[limits\]"),
    "an unknown limit": ("[limits]\nclient = 3", "client: there are clients"),
    "a limit of 0": ("[limits]\nclients = 0", "clients = 0"),
    "a limit in words": ("[limits]\nclients = 'many'", "clients = 'many'"),
    "a frame beyond the protocol": ("[limits]\nframe_bytes = 1000000000", "frame_bytes"),
    "a queue without a kind": ("[queues.a]\nsync = 'os'", "kind = None"),
    "an unknown kind": ("[queues.a]\nkind = 'heap'", "heap"),
    "an unknown option": ("[queues.a]\nkind = 'fifo'\ncolour = 1", "colour"),
    "an option out of bounds": ("[queues.a]\nkind = 'fifo'\nmax_bytes = -1", "max_bytes"),
    "an option of the owner": ("[queues.a]\nkind = 'fifo'\nbackground = false", "background"),
    "an unknown class of verbs": ("[queues.a]\nkind='fifo'\nallow={read=[1]}", "read: there are"),
    "an unknown user": ("[queues.a]\nkind='fifo'\nallow={take=['nobody there']}", "no user"),
    "a user that is no list": ("[queues.a]\nkind='fifo'\nallow={take=1}", "must be a list"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_refused_by_name_and_place(tmp_path: Path, name: str) -> None:
    text, expected = WRONG[name]
    config = tmp_path / "forebay.toml"
    config.write_text(text)
    with pytest.raises(InvalidOption, match=expected) as refused:
        read_config(str(config))

    assert str(refused.value).startswith(f"{config}: ")


def messages(supervisor: socket.socket) -> list[str]:
    """Returns what was sent to a supervisor so far."""
    found = []
    supervisor.setblocking(False)
    while True:
        try:
            found += supervisor.recv(4096).decode().split("\n")
        except BlockingIOError:
            return found


def test_a_supervisor_is_told_that_it_is_ready_alive_and_ends(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(address)
        told = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "200000"}
        with serving(tmp_path / "root", **told) as service:
            heard: list[str] = []

            def is_alive() -> bool:
                heard.extend(messages(supervisor))
                return heard.count("WATCHDOG=1") >= 3

            assert wait_until(is_alive)
            service.end()
        heard += messages(supervisor)

    assert heard.index("READY=1") < heard.index("WATCHDOG=1") < heard.index("STOPPING=1")
    assert heard[-1] == "STOPPING=1"


def test_a_supervisor_may_hold_the_socket_while_the_server_restarts(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir(mode=0o700)
    with forebay.Root(root):
        pass
    script = f'exec 3<&"$0"; LISTEN_FDS=1 LISTEN_PID=$$ exec "$1" -m forebay serve "{root}"'
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, peers(1) as [peer]:
        listener.bind(str(root / "server.sock"))
        listener.listen()
        # Before there is a server: it waits.
        peer.begin(partial(push_until_stored, root / "jobs"))
        for round in range(2):
            server = subprocess.Popen(
                ["bash", "-c", script, str(listener.fileno()), sys.executable],
                pass_fds=[listener.fileno()],
                env={**os.environ, "PYTHONPATH": python_path()},
                stderr=subprocess.DEVNULL,
            )
            try:
                if round == 0:
                    assert peer.result() == 1
                else:
                    with forebay.open(root / "jobs", kind="fifo", shared=True) as fifo:
                        assert fifo.pop() == b"x"
            finally:
                server.terminate()
                code = server.wait(60)
            assert code == 0
            assert (root / "server.sock").exists()
        client.disconnect()


def push_until_stored(path: Path) -> int:
    with forebay.Fifo(path, shared=True) as fifo:
        fifo.push(b"x")
        return len(fifo)


def test_units_for_systemd_name_the_root_and_the_program(tmp_path: Path) -> None:
    root = tmp_path / "a root"
    service = run("unit", root)
    made = run("unit", root, "--socket")

    assert (service.exit_code, made.exit_code) == (0, 0)
    assert "Type=notify" in service.stdout
    assert f'serve "{root}" --log-format json' in service.stdout
    assert f"ListenStream={root}/server.sock" in made.stdout
    assert "SocketMode=0600" in made.stdout
    assert not root.exists()


def test_a_server_in_the_background_of_a_root_ends_when_nobody_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(IDLE_VARIABLE, "0.2")
    root = tmp_path / "root"
    with forebay.Root(root) as made:
        made.define("jobs", "fifo", sync="os")
    with peers(1) as [peer]:
        assert peer.do(partial(push_until_stored, root / "jobs")) == 1
        assert is_locked(root / "server.log")
    assert wait_until(lambda: not is_locked(root / "server.log"))
    with forebay.Root(root) as made:
        assert made.queue("jobs", "fifo").pop() == b"x"


def test_the_limit_of_clients_is_that_of_the_file(tmp_path: Path) -> None:
    config = tmp_path / "forebay.toml"
    config.write_text("[limits]\nclients = 2\n")
    with serving(tmp_path / "root", "--config", str(config)), peers(3) as others:
        for peer in others[:2]:
            peer.do(partial(connect, tmp_path / "root" / "jobs"))
        with pytest.raises(forebay.ProtocolError, match="2 clients, which is its limit"):
            others[2].do(partial(connect, tmp_path / "root" / "jobs"))
        others[0].kill()
        assert wait_until(lambda: connects(others[2], tmp_path / "root" / "jobs"))


# What a peer holds from one call to the next.
held: list[forebay.Fifo] = []


def connect(path: Path) -> None:
    held.append(forebay.Fifo(path, shared=True))


def connects(peer: Peer, path: Path) -> bool:
    try:
        peer.do(partial(connect, path))
    except forebay.ProtocolError:
        return False
    return True
