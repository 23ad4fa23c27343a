"""Drills of operators: versions that do not fit, backups of what is in use, a server that forks."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import forebay
from forebay.client import queues as client
from tests.kinds import KINDS, Kind
from tests.sources import ROOT
from tests.support.clients import peers
from tests.support.servers import serving
from tests.support.values import numbered
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("servers")]
EACH_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)

CLIENT = """
import sys
import forebay

with forebay.Fifo(sys.argv[1], shared=True) as fifo:
    if len(sys.argv) > 2:
        fifo.push(sys.argv[2].encode())
    print(forebay.__version__, len(fifo))
"""


def installed(folder: Path, *, protocols: str = "(1, 1)", version: str = "9.9.9") -> Path:
    """Makes a copy of the package, as another version of it would be installed."""
    shutil.copytree(
        ROOT / "src" / "forebay",
        folder / "forebay",
        ignore=shutil.ignore_patterns("__pycache__", "*.c"),
    )
    for name, before, after in (
        ("wire/messages.py", "PROTOCOLS = (1, 1)", f"PROTOCOLS = {protocols}"),
        ("__init__.py", f'__version__ = "{forebay.__version__}"', f'__version__ = "{version}"'),
    ):
        file = folder / "forebay" / name
        text = file.read_text()
        assert before in text
        file.write_text(text.replace(before, after))
    return folder


def run_client(package: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CLIENT, *arguments],
        env={**os.environ, "PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


@pytest.mark.parametrize(
    ("protocols", "said"),
    [("(0, 0)", "speaks versions 0 to 0"), ("(2, 3)", "speaks versions 2 to 3")],
    ids=["older", "newer"],
)
def test_a_client_of_a_version_that_does_not_fit_is_told_so_and_changes_nothing(
    tmp_path: Path, protocols: str, said: str
) -> None:
    other = installed(tmp_path / "other", protocols=protocols)
    with forebay.Fifo(tmp_path / "q", shared=True) as fifo:
        fifo.push(b"kept")
        refused = run_client(other, str(tmp_path / "q"), "of the other")
        found = fifo.pop_many(10)

    assert refused.returncode == 1
    assert f"the client {said} of the protocol, this server 1 to 1" in refused.stderr
    assert "restart the older of the two" in refused.stderr
    assert found == [b"kept"]


def test_the_package_is_upgraded_under_running_clients(tmp_path: Path) -> None:
    new = installed(tmp_path / "new")
    root = tmp_path / "root"
    with forebay.Root(root):
        pass
    with serving(root) as old:
        fifo = forebay.Fifo(root / "jobs", shared=True)
        fifo.push(b"by the old")
        # A new client speaks to the old server.
        first = run_client(new, str(root / "jobs"), "by the new")
        old.end()
        # The next server is the new one; the old client speaks to it.
        second = run_client(new, str(root / "jobs"), "by the new again")
        fifo.push(b"by the old again")
        found = fifo.pop_many(10)
        serves = client.facts(str(root))
        fifo.close()

    assert (first.stdout.split(), second.stdout.split()) == (["9.9.9", "2"], ["9.9.9", "3"])
    assert found == [b"by the old", b"by the new", b"by the new again", b"by the old again"]
    assert serves is not None


def put_until(path: Path, kind: str, stop: Path) -> int:
    number = 0
    with KINDS[kind].queue(path, shared=True) as queue:
        while not stop.exists():
            KINDS[kind].put(queue, b"later %06d" % number)
            number += 1
    return number


@EACH_KIND
@pytest.mark.parametrize("tool", ["cp", "tar"])
def test_a_backup_of_a_queue_in_use_can_be_restored_elsewhere(
    tmp_path: Path, kind: Kind, tool: str
) -> None:
    path, copy = tmp_path / "q", tmp_path / "copy"
    with kind.queue(path, shared=True) as queue, peers(1) as [peer]:
        kind.put_many(queue, numbered(100))
        peer.begin(partial(put_until, path, kind.name, tmp_path / "stop"))
        wait_until(lambda: forebay.describe(path).records > 120)
        copy.mkdir(mode=0o700)
        if tool == "cp":
            subprocess.run(["cp", "-a", f"{path}/.", str(copy)], check=True)
        else:
            archive = tmp_path / "backup.tar"
            told = subprocess.run(["tar", "-cf", archive, "-C", path, "."], check=False)
            # 1: a file has changed while it was read.
            assert told.returncode in (0, 1)
            subprocess.run(["tar", "-xf", archive, "-C", copy], check=True)
        (tmp_path / "stop").touch()
        peer.result()
    # A file that was read late may tell of records that another one, read early, does not have.
    forebay.recover(copy, tmp_path / "restored")
    with kind.queue(tmp_path / "restored", shared=True) as restored:
        found = kind.drain(restored)
    later = [value for value in found if value.startswith(b"later ")]

    # Until the copy began all is there, and of what came meanwhile the first ones.
    assert set(numbered(100)) <= set(found)
    assert sorted(later) == [b"later %06d" % number for number in range(len(later))]


def work(fifo: forebay.Fifo, name: bytes, stop: Path) -> None:
    """What a worker of a server does that has opened its queue before it forked."""
    while not stop.exists():
        fifo.push(name)
    os._exit(0)


def test_a_server_that_forks_may_open_first_and_replace_its_workers(tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    workers: list[int] = []

    def fork(name: bytes) -> None:
        child = os.fork()
        if child == 0:
            work(fifo, name, stop)
        workers.append(child)

    with forebay.Fifo(tmp_path / "q", shared=True, sync="os") as fifo:
        fifo.push(b"of the master")
        for name in (b"one", b"two", b"three"):
            fork(name)
        wait_until(lambda: len(fifo) > 60)
        killed = workers.pop(0)
        os.kill(killed, signal.SIGKILL)
        os.waitpid(killed, 0)
        fork(b"another")
        wait_until(lambda: any(entry.value == b"another" for entry in fifo))
        stop.touch()
        codes = [os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) for worker in workers]
        found: list[bytes] = []
        while some := fifo.pop_many(1_000):
            found += some

    assert codes == [0, 0, 0]
    assert found[0] == b"of the master"
    assert set(found) == {b"of the master", b"one", b"two", b"three", b"another"}
