"""Readers beside a healthy, busy owner: look after look, no alarm and no raw error."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import forebay
from tests.counting import Count
from tests.kinds import EACH, KINDS
from tests.kinds.session import Session
from tests.sources import ROOT
from tests.support.cases import full_seconds
from tests.threads.looking import look_until

# A process that sees neither the others nor their locks.
_CONTAINER = ["unshare", "--pid", "--fork", "--mount-proc"]


def look_from_a_container(kind: str, path: str, seconds: float) -> tuple[int, list[str]]:
    """Looks from a process that does not see who owns the queue."""
    result = subprocess.run(
        [*_CONTAINER, sys.executable, "-m", "tests.threads.looking", kind, path, str(seconds)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        capture_output=True,
        text=True,
        check=True,
    )
    looks, *alarms = result.stdout.splitlines()
    return int(looks), alarms


def has_containers() -> bool:
    """Says whether this user may have processes that see no others."""
    if shutil.which(_CONTAINER[0]) is None:
        return False
    return subprocess.run([*_CONTAINER, "true"], capture_output=True, check=False).returncode == 0


def look_for(
    kind: str, policy: str, path: Path, seconds: float, *, elsewhere: bool = False
) -> tuple[int, list[str]]:
    """Looks again and again while the queue is used; returns how often, and the alarms.

    `elsewhere`: from another process, in a container of its own.
    """
    look = look_from_a_container if elsewhere else look_until
    session = Session(KINDS[kind], str(path), sync=policy)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            if elsewhere:
                # A queue that only grows: the looks take long, and the end moves on meanwhile.
                session.put()
                continue
            session.put_many(20)
            session.take(18)
            session.put()
            if kind == "log":
                session.kind.verbs()["trim"](session)

    owner = threading.Thread(target=work)
    owner.start()
    looks, alarms = look(kind, str(path), seconds)
    stop.set()
    owner.join(30)
    with contextlib.suppress(forebay.Closed):
        session.queue.close()
    return looks, alarms


@pytest.mark.parametrize(("kind", "policy"), EACH)
def test_a_reader_beside_a_healthy_owner_gets_no_alarm(
    kind: str, policy: str, tmp_path: Path, record_property: Count
) -> None:
    looks, alarms = look_for(kind, policy, tmp_path / "q", 0.5)

    record_property("looks beside an owner", looks)
    assert alarms == []


@pytest.mark.skipif(not has_containers(), reason="unshare --pid needs root")
@pytest.mark.parametrize(("kind", "policy"), [each for each in EACH if each[1] != "interval"])
def test_a_reader_that_cannot_see_the_owner_gets_no_alarm(
    kind: str, policy: str, tmp_path: Path, record_property: Count
) -> None:
    looks, alarms = look_for(kind, policy, tmp_path / "q", 1.0, elsewhere=True)

    record_property("looks from a container", looks)
    assert alarms == []


@pytest.mark.skipif(not has_containers(), reason="unshare --pid needs root")
def test_that_a_queue_has_an_owner_is_seen_from_a_container(tmp_path: Path) -> None:
    script = "import sys; from forebay.storage.filesystem import *; print(is_owned(sys.argv[1]))"
    command = [*_CONTAINER, sys.executable, "-c", script, str(tmp_path / "q")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}

    with forebay.Log(tmp_path / "q"):
        owned = subprocess.check_output(command, env=environment, text=True)

    assert owned == "True\n"
    assert subprocess.check_output(command, env=environment, text=True) == "False\n"


@pytest.mark.full
@pytest.mark.slow
def test_readers_beside_healthy_owners_for_minutes(tmp_path: Path, record_property: Count) -> None:
    total = 0
    for kind, policy in EACH:
        looks, alarms = look_for(kind, policy, tmp_path / f"{kind}-{policy}", full_seconds() / 12)
        total += looks
        assert alarms == [], f"{kind} {policy}"

    record_property("looks beside an owner", f"{total:,}")
