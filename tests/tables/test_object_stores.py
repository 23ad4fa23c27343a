"""Tables in an object store: the same commits, against S3 servers on loopback."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sources import ROOT, python_path
from tests.support.waiting import wait_until

KEY, SECRET, BUCKET = "testkey", "testsecret", "lakehouse"
EXPECTED = [[0, 0], [1, 1], [2, 2], [3, 3]]

pytestmark = pytest.mark.full


class Server:
    """A server and the environment of those who use it."""

    def __init__(self, command: list[str], port: int) -> None:
        nowhere = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdout=nowhere, stderr=nowhere)
        self.environment = {
            **os.environ,
            "PYTHONPATH": python_path(),
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            # These servers do not know checksums in trailers.
            "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
        }
        assert wait_until(lambda: answers(port))

    def close(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def moto(tmp_path: Path) -> Iterator[Server]:
    port = free_port()
    server = Server([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], port)
    yield server
    server.close()


@pytest.fixture
def rclone(tmp_path: Path) -> Iterator[Server]:
    port = free_port()
    (tmp_path / "store" / BUCKET).mkdir(parents=True)
    program = str(Path(sys.executable).with_name("rclone"))
    command = [program, "serve", "s3", "--addr", f"127.0.0.1:{port}"]
    command += ["--auth-key", f"{KEY},{SECRET}", str(tmp_path / "store")]
    server = Server(command, port)
    yield server
    server.close()


def run(server: Server, *arguments: str, **variables: str) -> dict[str, object]:
    """Runs the other process and returns what it found."""
    command = [sys.executable, "-m", "tests.tables.against_a_store", *arguments]
    done = subprocess.run(
        command,
        env={**server.environment, **variables},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


# What is found; a server that takes removals badly is not asked to remove anything.
WHOLE = {
    "half": [EXPECTED, EXPECTED[:3]],
    "whole": [EXPECTED] * 3,
    "joined": [4, 1],
    "directories": [],
    "after": EXPECTED,
    "batches": [0, 1, 2, 3],
}


def test_delta_tables_in_an_object_store(moto: Server) -> None:
    create = (
        "from pyarrow import fs\n"
        f"fs.FileSystem.from_uri('s3://{BUCKET}?allow_bucket_creation=true')[0]"
        f".create_dir('{BUCKET}')"
    )
    subprocess.run([sys.executable, "-c", create], env=moto.environment, check=True)

    found = run(moto, "delta", f"s3://{BUCKET}/events")

    assert found == {**WHOLE, "left": 4}


def test_iceberg_tables_in_an_object_store(rclone: Server, tmp_path: Path) -> None:
    found = run(
        rclone,
        "iceberg",
        f"s3://{BUCKET}/events",
        "prod.events",
        PYICEBERG_CATALOG__PROD__TYPE="sql",
        PYICEBERG_CATALOG__PROD__URI=f"sqlite:///{tmp_path}/catalog.db",
        PYICEBERG_CATALOG__PROD__S3__ENDPOINT=rclone.environment["AWS_ENDPOINT_URL"],
        PYICEBERG_CATALOG__PROD__S3__REGION="us-east-1",
        # Seconds: a busy machine takes longer than the three of the library.
        PYICEBERG_CATALOG__PROD__S3__REQUEST_TIMEOUT="120",
    )

    assert found == WHOLE


def test_iceberg_tables_in_an_object_store_need_a_catalog(rclone: Server) -> None:
    with pytest.raises(AssertionError, match=r"needs a catalog: catalog = 'NAME\.NAMESPACE'"):
        run(rclone, "iceberg", f"s3://{BUCKET}/events")
