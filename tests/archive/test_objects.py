"""Archives in an S3 server on loopback: every verb that takes an address, and faults of the way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forebay import BeatsQueue, Log
from tests.archive.helpers import HOST, append, check_both, check_target, decoded, value_of
from tests.counting import Count
from tests.support.campaigns import FULL
from tests.support.objects import ObjectStore, Remote, RemoteError

pytestmark = pytest.mark.slow

FAULTY_PASSES = 500 if FULL else 15


def filled(path: Path, count: int = 300) -> Path:
    """Makes a log of several segments."""
    with Log(path, segment_bytes=2_000) as log:
        append(log, count)
    return path


def test_every_verb_that_reads_takes_an_address(
    tmp_path: Path, store: ObjectStore, remote: Remote
) -> None:
    path = filled(tmp_path / "verbs")
    with BeatsQueue(tmp_path / "events", segment_bytes=4_096) as queue:
        queue.put_many([{"fields": {"number": number}} for number in range(200)])
    for each in (path, tmp_path / "events"):
        assert remote.call("run_verb", "archive", str(each), store.address, "--host", "h")[0] == 0
    logs, events = f"{store.address}/h/verbs", f"{store.address}/h/events"

    def verb(*arguments: str) -> str:
        code, output, messages = remote.call("run_verb", *arguments)
        assert (code, messages) == (0, "")
        assert isinstance(output, str)
        return output

    printed = verb("cat", logs, "--start", "290").splitlines()
    assert printed == [value_of(number).decode() for number in range(290, 300)]
    assert verb("tail", logs, "-n", "2").splitlines() == printed[-2:]
    assert len(verb("cat", events).splitlines()) == 200
    assert json.loads(verb("info", logs, "--json"))["state"] == "archived"
    assert len(verb("segments", logs, "--json").splitlines()) > 3
    assert "300 good records" in verb("fsck", logs)
    assert "200 good events" in verb("fsck", events)
    assert "300 records copied" in verb("recover", logs, "--to", str(tmp_path / "again"))
    rows = [json.loads(line) for line in verb("ls", f"{store.address}/h", "--json").splitlines()]
    assert [row["path"] for row in rows] == [events, logs]
    assert not list(tmp_path.glob("s3*"))


def test_options_may_stand_in_the_query_and_are_not_shown(
    tmp_path: Path, store: ObjectStore, remote: Remote
) -> None:
    path = filled(tmp_path / "query")
    address = f"{store.address}?endpoint_override=127.0.0.1:{store.port}&scheme=http"

    report = remote.call("archive", path, address, host=HOST)

    assert report["address"] == f"{store.address}/{HOST}/query"
    read = address.replace("?", f"/{HOST}/query?")
    assert len(remote.call("records", read)) == 300


def test_what_is_no_archive_is_told(store: ObjectStore, remote: Remote) -> None:
    code, _, message = remote.call("run_verb", "cat", f"{store.address}/none")

    assert (code, message) == (
        1,
        f"forebay: {store.address}/none is not an archive: it has no manifest.json\n",
    )


def test_a_store_that_does_not_answer_ends_a_pass_with_code_1(
    tmp_path: Path, remote: Remote
) -> None:
    path = filled(tmp_path / "silent")
    address = "s3://spool?endpoint_override=127.0.0.1:9&scheme=http"

    code, _, message = remote.call("run_verb", "archive", str(path), address)

    assert code == 1
    assert message.count("\n") == 1


def test_faults_of_the_way_lose_nothing_and_leave_nothing_wrong(
    tmp_path: Path, store: ObjectStore, remote: Remote, record_property: Count
) -> None:
    path = tmp_path / "faults"
    target = store.folder / HOST / "faults"
    failed = 0
    with Log(path, segment_bytes=2_000, trim_interval_seconds=0.01) as log:
        for _ in range(FAULTY_PASSES):
            append(log, 150)
            failed += fails(remote, path, store.faulty)
            check_target(target)
        remote.call("archive", path, store.address, host=HOST, trim=True)
        archived = decoded(remote.call("records", f"{store.address}/{HOST}/faults"))
        check_both(path, archived, log.end)
        assert len(archived) > log.end - 150

    assert remote.call("damage", f"{store.address}/{HOST}/faults") == []
    record_property("passes of an archiver over a faulty way", FAULTY_PASSES)
    record_property("of these, failed and repeated", failed)


def fails(remote: Remote, path: Path, address: str) -> bool:
    """Makes a pass; says whether it failed, as a pass may if its target does."""
    try:
        remote.call("archive", path, address, host=HOST, trim=True)
    except RemoteError as error:
        if error.kind != "OSError":
            raise
        return True
    return False
