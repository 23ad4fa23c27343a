"""Readers beside a healthy, busy owner: look after look, no alarm and no raw error."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import pytest

import forebay
from tests.counting import Count
from tests.support.cases import full_seconds
from tests.support.kinds import EACH, KINDS, Session

# What a reader may be told beside an owner that removes what is done with.
_FAIR = (forebay.Overtaken,)


def look_for(kind: str, policy: str, path: Path, seconds: float) -> tuple[int, list[str]]:
    """Looks again and again while the queue is used; gives how often, and the alarms."""
    session = Session(KINDS[kind], str(path), sync=policy)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            session.put_many(20)
            session.take(18)
            session.put()
            if kind == "log":
                session.kind.verbs()["trim"](session)

    owner = threading.Thread(target=work)
    owner.start()
    looks, alarms = 0, []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        looks += 1
        try:
            values = session.kind.look(str(path))
        except _FAIR:
            continue
        except Exception as error:
            alarms.append(f"{type(error).__name__}: {error}")
            continue
        if len(set(values)) != len(values):
            alarms.append("a value came twice in one look")
    stop.set()
    owner.join(30)
    with contextlib.suppress(forebay.Closed):
        session.queue.close()
    return looks, alarms


@pytest.mark.parametrize(("kind", "policy"), EACH)
def test_a_reader_beside_a_healthy_owner_gets_no_alarm(
    kind: str, policy: str, tmp_path: Path, record_property: Count
) -> None:
    looks, alarms = look_for(kind, policy, tmp_path / "q", 0.8)

    record_property("looks beside an owner", looks)
    assert alarms == []


@pytest.mark.full
@pytest.mark.slow
def test_readers_beside_healthy_owners_for_minutes(tmp_path: Path, record_property: Count) -> None:
    total = 0
    for kind, policy in EACH:
        looks, alarms = look_for(kind, policy, tmp_path / f"{kind}-{policy}", full_seconds() / 12)
        total += looks
        assert alarms == [], f"{kind} {policy}"

    record_property("looks beside an owner", f"{total:,}")
