"""`OutputManager`: a queue, an output, and the thread between them."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import forebay
from forebay.clock import BootClock, SystemClock
from forebay.errors import Closed, InvalidOption, NotAQueue
from forebay.forward.forwarder import Forwarder
from forebay.forward.function import FunctionOutput
from forebay.forward.options import ForwardOptions
from forebay.forward.outputs import Answer, Batch, Output
from forebay.forward.sources import open_source
from forebay.forward.state import Settled, State
from forebay.queues.kinds import kind_of
from forebay.queues.shared.forwarding import DIRECTORY, Live
from forebay.queues.shared.handle import Closing
from forebay.queues.shared.options import Duration, SyncPolicy, WhenFull, as_seconds
from forebay.storage.filesystem import Buffer

_logger = logging.getLogger(__name__)
_STOP_SECONDS = 5.0
_LOOK_SECONDS = 0.02


class OutputManager(Closing):
    """Writes what goes out into a queue on the disk, and sends it on. Any thread may call it.

    Page: docs/forwarding.md. Records are durable in the queue when `put` returns; they leave it
    once the output has taken them, has refused them one by one, or a limit of yours has dropped
    them. However long the output is away, nothing else removes them.

    - `queue`: the directory of a log, which is created if it is missing, or an open queue: a `Log`,
      a `Fifo` or a `BeatsQueue`. An open one is not closed by `close`.
    - `output`: an output such as `forebay.forward.http.HttpOutput`, or a function that is called
      with each batch (see `forebay.forward.function.FunctionOutput`).
    - `name`: of the consumer and of the state; two forwarders of a log need two names.
    - `state`: the state directory; None: `forward/NAME` in the directory of the queue.
    - `max_bytes`, `when_full`: the bound of the log, and what happens at it: by default the oldest
      records are dropped, counted, and told to the output. None: no bound.
    - `shared`: other processes may put into the queue as well, with `shared=True`.
    - `batch_records`, `batch_bytes`, `batch_seconds`: the most that is sent at once, and how long a
      batch waits to be filled.
    - `in_flight`: how many batches may be on their way; above 1 their order is not promised.
    - `retry_seconds`, `retry_seconds_max`: the first and the longest delay after a failure. There
      is no last attempt.
    - `ttl_seconds`: records that are older when their turn comes are dropped; None: never.
    - `background`: False starts no thread; call `run` instead.
    - `sync`, `segment_bytes`: of the log, as in `forebay.Log`; None: as it has them. Open the log
      yourself for its other options.
    """

    def __init__(
        self,
        queue: str | os.PathLike[str] | forebay.Log | forebay.Fifo | forebay.BeatsQueue,
        output: Output | Callable[[Batch], Answer | None],
        *,
        name: str = "forward",
        state: str | os.PathLike[str] | None = None,
        max_bytes: int | None = None,
        when_full: WhenFull = "drop_oldest",
        shared: bool = False,
        batch_records: int = 1000,
        batch_bytes: int = 1 << 20,
        batch_seconds: Duration = 0.2,
        in_flight: int = 1,
        retry_seconds: Duration = 0.5,
        retry_seconds_max: Duration = 60.0,
        ttl_seconds: Duration | None = None,
        background: bool = True,
        sync: SyncPolicy | None = None,
        segment_bytes: int | None = None,
        clock: BootClock | None = None,
    ) -> None:
        options = ForwardOptions(
            batch_records=batch_records,
            batch_bytes=batch_bytes,
            batch_seconds=as_seconds(batch_seconds),
            in_flight=in_flight,
            retry_seconds=as_seconds(retry_seconds),
            retry_seconds_max=as_seconds(retry_seconds_max),
            ttl_seconds=None if ttl_seconds is None else as_seconds(ttl_seconds),
        )
        self._output = as_output(output)
        self._clock = clock or SystemClock()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._closed = False
        with contextlib.ExitStack() as opened:
            # The output is closed first: a request under way then fails at once.
            if isinstance(queue, str | os.PathLike):
                given: dict[str, Any] = {"max_bytes": max_bytes, "segment_bytes": segment_bytes}
                given = {key: each for key, each in {**given, "sync": sync}.items() if each}
                if max_bytes is not None:
                    given["when_full"] = when_full
                found = _open_log(queue, {"shared": shared, **given})
                opened.callback(found.close)
            else:
                if shared or max_bytes or segment_bytes or sync:
                    raise InvalidOption(
                        "shared and the options of a log are those of the queue that is open"
                    )
                found = queue
            self.queue: Any = found
            source = open_source(found, name)
            opened.callback(source.close)
            path = state_path(source.path, name) if state is None else os.fspath(state)
            self._state = State(path, self._clock)
            opened.callback(self._state.close)
            self._forwarder = Forwarder(
                source, self._output, self._state, options, self._clock, name=name
            )
            opened.callback(self._output.close)
            self._opened = opened.pop_all()
        if background:
            self._thread = threading.Thread(
                target=self._run, name=f"forebay-forward-{name}", daemon=True
            )
            self._thread.start()

    def put(self, value: Buffer, *, timeout: Duration | None = None) -> None:
        """Puts a record into the queue, as its `put` does: durable on return, as it says."""
        self._check()
        self.queue.put(value, timeout=timeout)

    def put_many(self, values: Iterable[Buffer], *, timeout: Duration | None = None) -> None:
        """Puts records into the queue with one commit."""
        self._check()
        self.queue.put_many(values, timeout=timeout)

    def run(self, *, until_empty: bool = False) -> None:
        """Forwards on this thread until `stop`, or until nothing waits."""
        if self._thread is not None:
            raise InvalidOption("it runs in the background: run() needs background=False")
        self._check()
        self._forwarder.run(until_empty=until_empty)

    def stop(self) -> None:
        """Makes `run` return."""
        self._forwarder.stop()

    def wait_until_empty(self, timeout: Duration | None = None) -> bool:
        """Waits until all that was put before is settled; False if that takes longer."""
        until = None if timeout is None else time.monotonic() + as_seconds(timeout)
        end = self._end()
        while not self._is_settled(end):
            self._check()
            if until is not None and time.monotonic() >= until:
                return False
            time.sleep(_LOOK_SECONDS)
        return True

    @property
    def settled(self) -> Settled:
        """The counts of what is delivered, set aside, dropped and damaged, and the place."""
        return self._forwarder.settled

    def live(self) -> Live:
        """Returns what it is doing."""
        failing = self._forwarder.is_failing
        return self._forwarder.live("waiting" if failing else "sending")

    def close(self) -> None:
        """Stops sending and closes what it has opened; what was not sent stays in the queue.

        A request under way gets a few seconds to end; otherwise it is repeated, under the same key.
        """
        if self._closed:
            return
        self._closed = True
        self._forwarder.stop()
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)
            if self._thread.is_alive():
                self._output.close()
                self._thread.join()
        self._opened.close()

    def __repr__(self) -> str:
        return f"<OutputManager {self.queue.path} to {self._output.name}>"

    def _run(self) -> None:
        try:
            self._forwarder.run()
        except BaseException as error:
            # `put` and `wait_until_empty` raise it.
            self._error = error
            _logger.error("%s: forwarding has ended: %s", self._forwarder.name, error)

    def _check(self) -> None:
        if self._closed:
            raise Closed(f"{self!r} is closed")
        if self._error is not None:
            raise Closed(f"{self!r}: forwarding has ended: {self._error}") from self._error

    def _end(self) -> int | None:
        return self.queue.end if isinstance(self.queue, forebay.Log) else None

    def _is_settled(self, end: int | None) -> bool:
        if end is not None:
            return self.settled.place >= end
        # What is lent has not left a fifo yet.
        fifo = isinstance(self.queue, forebay.Fifo)
        return (self.queue.info().records if fifo else len(self.queue)) == 0


def as_output(output: Output | Callable[[Batch], Answer | None]) -> Output:
    """Returns an output; a function becomes one."""
    if hasattr(output, "encode") and hasattr(output, "send"):
        return output  # type: ignore[return-value]  # the protocol, as far as one can see
    if callable(output):
        return FunctionOutput(output)
    raise InvalidOption(f"output = {output!r:.80}: must be an output, or a function")


def state_path(queue: str, name: str) -> str:
    """Returns where the state of a forwarder is, unless the user says otherwise.

    It is in the directory of the queue, so that a copy of that has both.
    """
    if not name or name.startswith(".") or "/" in name or len(name) > 100:
        raise InvalidOption(f"name = {name!r}: must be 1 to 100 characters without a slash")
    return f"{queue}/{DIRECTORY}/{name}"


def _open_log(path: str | os.PathLike[str], options: dict[str, Any]) -> Any:
    """Opens the log, or makes it; another kind of queue must be opened by the caller."""
    try:
        kind = kind_of(path)
    except FileNotFoundError:
        kind = None
    if kind is not None and kind.name != "log" and kind.queue:
        raise NotAQueue(
            f"{os.fspath(path)} is {kind.title}: open it, and give the open queue, not its path"
        )
    return forebay.Log(path, **options)
