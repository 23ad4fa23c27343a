"""HTTP: a server in another process that misbehaves, and what must come of it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from forebay import Log, OutputManager
from forebay.errors import InvalidOption
from forebay.forward.http import HttpOutput, judge
from forebay.forward.outputs import Again, Delivered, Refused
from tests.sources import python_path
from tests.support.forwarding import FAST, check_holds, forward_all, numbered_objects
from tests.support.receiver import FAULTS, Receiver, value_of
from tests.support.waiting import wait_until

CANARY = "canary-9f3a"


def forward(
    path: Path, values: list[bytes], url: str, options: dict[str, Any] | None = None, **more: Any
) -> Any:
    output = HttpOutput(url, **{"timeout_seconds": 1, **(options or {})})
    with Log(path) as log:
        log.append_many(values)
        return forward_all(log, output, **more).settled


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_costs_no_record_and_repeats_none(
    tmp_path: Path, receiver: Receiver, fault: str
) -> None:
    receiver.script(fault, script=["ok", fault, fault, "ok", fault], number="n")

    settled = forward(tmp_path / "q", numbered_objects(100), receiver.url(fault))

    found = receiver.summary(fault)
    assert settled.delivered == 100
    assert found["violations"] == []
    assert (found["records"], found["last"], found[fault]) == (100, 99, 3)
    assert check_holds(tmp_path / "q").holds


def test_a_server_that_is_not_there_is_waited_for(tmp_path: Path, receiver: Receiver) -> None:
    receiver.script("down", down=True, number="n")
    output = HttpOutput(receiver.url("down"), timeout_seconds=1)

    with Log(tmp_path / "q") as log:
        log.append_many(numbered_objects(50))
        with OutputManager(log, output, **{**FAST, "retry_seconds_max": 0.01}) as manager:
            assert wait_until(lambda: manager.live().attempts > 5)
            before = manager.settled.delivered
            receiver.script("down", down=False)
            assert manager.wait_until_empty(30)

    assert before == 0
    assert receiver.summary("down")["records"] == 50


def test_poison_and_413_are_told_apart_from_an_outage(tmp_path: Path, receiver: Receiver) -> None:
    bad = [3, 4, 50, 99]
    receiver.script("poison", poison="poison", body_max=150, number="n")

    settled = forward(tmp_path / "q", numbered_objects(100, bad), receiver.url("poison"))

    found = receiver.summary("poison")
    assert (settled.delivered, settled.set_aside) == (96, 4)
    assert 0 < settled.batch_bytes <= 150
    assert found["violations"] == []
    assert [value["n"] for value in receiver.values("poison")] == [
        number for number in range(100) if number not in bad
    ]


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        *((status, Delivered) for status in (200, 201, 202, 204, 299)),
        *((status, Refused) for status in (400, 413, 422)),
        *((status, Again) for status in (401, 402, 403, 404, 405, 408, 409, 410, 415, 429, 451)),
        *((status, Again) for status in (301, 302, 307, 500, 502, 503, 504, 599, 199, 600)),
    ],
)
def test_each_status_means_one_thing(status: int, answer: type) -> None:
    assert type(judge(status, {}, b"words")) is answer


def test_retry_after_is_read_as_seconds_and_as_a_date() -> None:
    seconds = judge(429, {"Retry-After": "17"}, b"")
    past = judge(503, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, b"")
    nonsense = judge(503, {"Retry-After": "soon"}, b"")

    assert isinstance(seconds, Again)
    assert isinstance(past, Again)
    assert isinstance(nonsense, Again)
    assert (seconds.after_seconds, past.after_seconds, nonsense.after_seconds) == (17, 0, None)


def test_a_certificate_for_another_name_is_an_outage(tmp_path: Path, receiver: Receiver) -> None:
    receiver.script("tls", tls_name="elsewhere.example", number="n")
    options: Any = {"ca_file": str(receiver.ca_file), "timeout_seconds": 5}
    attempts: list[str] = []

    class Counting(HttpOutput):
        def send(self, batch: Any) -> Any:
            try:
                return super().send(batch)
            except Exception as error:
                attempts.append(str(error))
                if len(attempts) == 3:
                    receiver.script("tls", tls_name="localhost")
                raise

    with Log(tmp_path / "q") as log:
        log.append_many(numbered_objects(5))
        settled = forward_all(log, Counting(receiver.tls_url("tls"), **options)).settled

    assert settled.delivered == 5
    assert len(attempts) == 3
    assert all("CERTIFICATE_VERIFY_FAILED" in text for text in attempts)
    assert receiver.summary("tls")["requests"] == 1


def test_records_of_all_sorts_come_back_byte_for_byte(tmp_path: Path, receiver: Receiver) -> None:
    values = [
        b'{"a": 1}',
        b'{"a":\n[1,\r\n2]}',
        b"plain",
        b"\xff\x00",
        b"",
        b"[1]",
        b'{"a":1',
        b"{}",
    ]

    forward(tmp_path / "q", values, receiver.url("sorts"))

    found = receiver.values("sorts")
    assert found[:2] == [{"a": 1}, {"a": [1, 2]}]
    assert [value_of(value) for value in found[2:]] == values[2:]


def test_stored_bodies_go_as_they_are_one_a_request(tmp_path: Path, receiver: Receiver) -> None:
    bodies = [b'{"n":0}\n{"n":1}\n', b'{"n":2}\n']
    receiver.script("raw", number="n")

    forward(tmp_path / "q", bodies, receiver.url("raw"), {"format": "raw"})

    found = receiver.summary("raw")
    assert (found["applied"], found["records"]) == (2, 3)
    assert found["headers"]["content-type"] == "application/octet-stream"


def test_secrets_reach_the_server_and_nothing_else(
    tmp_path: Path,
    receiver: Receiver,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(f"Bearer {CANARY}\n")
    secret.chmod(0o600)
    monkeypatch.setenv("CANARY", f"key {CANARY}")
    headers = {
        "header_files": {"Authorization": str(secret)},
        "header_environment": {"X-Key": "CANARY"},
    }
    url = receiver.url("secret") + f"?token={CANARY}"
    path = f"secret?token={CANARY}"
    receiver.script(path, script=["500", "reset", "429"], poison="poison")

    with caplog.at_level(logging.DEBUG, logger="forebay"):
        settled = forward(tmp_path / "q", [b"x", b"poison"], url, headers)

    assert receiver.summary(path)["headers"]["authorization"] == f"Bearer {CANARY}"
    assert settled.set_aside == 1
    assert CANARY not in caplog.text
    files = [file for file in (tmp_path / "q").rglob("*") if file.is_file()]
    assert not [file for file in files if CANARY.encode() in file.read_bytes()]


def test_a_secret_that_others_may_read_is_refused(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o640)

    with pytest.raises(InvalidOption, match="chmod 600"):
        HttpOutput("http://localhost/", header_files={"A": str(secret)})


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://user:pass@host/", "a user or a password"),
        ("ftp://host/", "not http"),
        ("http://", "not http"),
        ("http://host:99999/", "not valid"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(url: str, message: str) -> None:
    with pytest.raises(InvalidOption, match=message) as raised:
        HttpOutput(url)

    assert "pass@" not in str(raised.value)


def test_a_missing_library_is_named_with_its_extra() -> None:
    program = (
        "import sys; sys.modules['urllib3'] = None\n"
        "import forebay\n"
        "from forebay.forward.http import HttpOutput\n"
        "try:\n    HttpOutput('http://localhost/')\n"
        "except forebay.NotInstalled as error:\n    print(error)\n"
    )

    found = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": python_path()},
    )

    assert 'pip install "forebay[forward]"' in found.stdout
