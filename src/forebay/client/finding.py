"""Finds the server of a directory, or starts one.

A queue in a root is served by the server of the root, any other one by that of its own directory.
The socket is reached by way of a descriptor of its directory: the length of the path does not
matter. Whoever holds the lock of `server.log` is the server, or is starting it. A starter binds the
socket itself, so that its own connection, and that of any other client from then on, waits in the
queue of the socket until the server accepts it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import forebay
from forebay.errors import Locked, NotAQueue, ServerGone
from forebay.queues.kinds import ROOT
from forebay.queues.shared.names import SERVER_LOG, SOCKET
from forebay.storage.filesystem import lock_owner

# How long a server lives without a client. Tests and short-lived programs may set another one.
IDLE_SECONDS = 10.0
IDLE_VARIABLE = "FOREBAY_SERVER_IDLE_SECONDS"
# How long to wait for another process that is starting the server, or for one that is ending.
_START_SECONDS = 30.0
_PAUSE_SECONDS = 0.005
_LOG_BYTES_MAX = 1 << 20
_BACKLOG = 128
# There is no server, or it is about to end.
_NOBODY = (errno.ENOENT, errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE)


def home(path: str | os.PathLike[str]) -> str:
    """Returns the directory whose server has a queue: its root, or its own."""
    above = os.path.dirname(os.path.abspath(path))
    return above if os.path.exists(f"{above}/{ROOT}") else os.fspath(path)


def connect(path: str) -> socket.socket:
    """Returns a connection to the server of a directory; starts one if there is none."""
    directory = _open(path)
    try:
        give_up_at = time.monotonic() + _START_SECONDS
        while True:
            connection = _try_to_connect(directory) or _start(directory, path)
            if connection is not None:
                return connection
            if time.monotonic() > give_up_at:
                raise ServerGone(f"{path}: its server does not answer; see {path}/{SERVER_LOG}")
            time.sleep(_PAUSE_SECONDS)
    finally:
        os.close(directory)


def is_served(path: str) -> bool:
    """Says whether a server has a queue: that of its directory, or of its root."""
    try:
        directory = _open(home(path))
    except OSError:
        return False
    try:
        connection = _try_to_connect(directory)
    finally:
        os.close(directory)
    if connection is not None:
        connection.close()
    return connection is not None


def knock(path: str) -> socket.socket | None:
    """Returns a connection to the server of a directory; None if there is none."""
    directory = _open(path)
    try:
        return _try_to_connect(directory)
    finally:
        os.close(directory)


@contextlib.contextmanager
def claimed(path: str, retire: Callable[[], bool]) -> Iterator[int]:
    """Makes this process the one that may serve a directory; yields a descriptor of it.

    `retire` asks the server that has it to end; if that says no, this raises `Locked`.
    """
    directory = _open(path)
    try:
        log = _open_log(directory, path)
        try:
            _lock(log, path, retire)
            yield directory
        finally:
            os.close(log)
    finally:
        os.close(directory)


def bind(directory: int, mode: int = 0o600) -> socket.socket:
    """Makes the socket of a directory; the lock of the log is held."""
    with contextlib.suppress(FileNotFoundError):
        # It is that of a server that was killed.
        os.unlink(SOCKET, dir_fd=directory)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        # Before it has its name: nobody else may connect in between.
        os.fchmod(listener.fileno(), 0o600)
        listener.bind(_address(directory))
        # After that: the mask of the process would take from it.
        os.chmod(SOCKET, mode, dir_fd=directory)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _open(path: str) -> int:
    """Opens a directory; it need not be readable to reach what is in it."""
    return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _lock(log: int, path: str, retire: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + _START_SECONDS
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if not retire() or time.monotonic() > give_up_at:
            raise Locked(path, lock_owner(f"{path}/{SERVER_LOG}"), "stop that server first")
        time.sleep(_PAUSE_SECONDS)


def _try_to_connect(directory: int) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connection.connect(_address(directory))
    except OSError as error:
        connection.close()
        if error.errno not in _NOBODY:
            raise
        return None
    return connection


def _start(directory: int, path: str) -> socket.socket | None:
    """Starts a server and returns a connection to it; None if another process is doing so."""
    try:
        log = _open_log(directory, path)
    except PermissionError:
        # The server of another user, which that user must start.
        if os.stat(path).st_uid == os.geteuid():
            raise
        return None
    try:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        if os.fstat(log).st_size > _LOG_BYTES_MAX:
            os.ftruncate(log, 0)
        with bind(directory) as listener:
            connection = _try_to_connect(directory)
            code = _run(directory, listener, log)
            if code > 0:
                raise ServerGone(f"{path}: no server could be started; see {path}/{SERVER_LOG}")
            return connection
    finally:
        os.close(log)


def _open_log(directory: int, path: str) -> int:
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    log = os.open(SERVER_LOG, flags, 0o600, dir_fd=directory)
    if not stat.S_ISREG(os.fstat(log).st_mode):
        os.close(log)
        raise NotAQueue(f"{path}/{SERVER_LOG} is not a file; move it away")
    return log


def _run(directory: int, listener: socket.socket, log: int) -> int:
    """Starts the server, which leaves this process at once; returns its exit code."""
    idle = os.environ.get(IDLE_VARIABLE, str(IDLE_SECONDS))
    command = [sys.executable, "-P", "-m", "forebay.serve", "--detach"]
    command += ["--directory", str(directory), "--listener", str(listener.fileno())]
    command += ["--idle-seconds", idle]
    # The package of this process, however it was found: not that of the working directory.
    package = str(Path(forebay.__file__).resolve().parent.parent)
    paths = [package, os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=log,
        pass_fds=[directory, listener.fileno()],
        start_new_session=True,
        cwd="/",
        env=environment,
        check=False,
    ).returncode


def _address(directory: int) -> str:
    return f"/proc/self/fd/{directory}/{SOCKET}"
