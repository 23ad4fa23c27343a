"""What `top` and `metrics` show: the queues of a root, as its server or their files tell them.

One place for both: what one of them is to show is a field here. They are clients like any other,
and take no lock.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from forebay.client import queues as client
from forebay.errors import ForebayError
from forebay.queues.kinds import describe
from forebay.queues.root import definitions
from forebay.queues.shared.forwarding import Live, forwarders_of

# How long a server may take to answer.
ANSWER_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """A queue at one moment; None where it has no such thing, or nobody can tell.

    - `records`: how many are to be taken: those pending of a deadline queue, those unread of a
      Beats queue, all that a log or fifo holds.
    - `lag`: how far each consumer of a log is behind its end.
    - `leased`: how many are lent, leased or delivered, and not settled.
    - `due`: how many items of a deadline queue are due.
    - `aside`: how many were buried or put aside.
    - `written`, `taken`: records that went through the server since it began.
    - `oldest_ms`: when the oldest entry of a fifo was put; `next_ms`: when the first item is due.
    - `handles`: how many handles clients have; None without a server.
    - `forwarders`: what those are doing whose state is in the directory of the queue.
    - `error`: why it cannot be told.
    """

    name: str
    kind: str
    records: int | None = None
    bytes: int | None = None
    lag: Mapping[str, int] = field(default_factory=dict)
    leased: int | None = None
    due: int | None = None
    aside: int | None = None
    losses: int | None = None
    written: int | None = None
    taken: int | None = None
    oldest_ms: int | None = None
    next_ms: int | None = None
    handles: int | None = None
    forwarders: tuple[Live, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RootView:
    """A root at one moment; `clients` and `up_seconds` are None if it has no server."""

    root: str
    queues: list[QueueView]
    clients: int | None = None
    up_seconds: float | None = None

    @property
    def is_served(self) -> bool:
        """Whether a server answers."""
        return self.clients is not None


class Watcher:
    """Looks at a root, at most once at a time. Any thread may call it."""

    def __init__(self, root: str) -> None:
        self._root = os.path.abspath(root)
        self._mutex = threading.Lock()
        self._asking: threading.Thread | None = None
        self._answer: dict[str, Any] | None = None

    def look(self) -> RootView:
        """Returns the present state; raises `TimeoutError` if the server does not answer in time.

        Raises `NotAQueue` if it is no root.
        """
        with self._mutex:
            defined = definitions(self._root)
            facts = self._ask()
        if facts is None:
            queues = [self._from_files(name, defined[name].kind) for name in sorted(defined)]
            return RootView(self._root, [self._with_forwarders(each) for each in queues])
        there = {row["name"]: _from_server(row) for row in facts["queues"]}
        for name in defined:
            if name not in there:
                there[name] = self._from_files(name, defined[name].kind)
        queues = [self._with_forwarders(there[name]) for name in sorted(there)]
        return RootView(self._root, queues, facts["clients"], facts["up_seconds"])

    def _ask(self) -> dict[str, Any] | None:
        """Asks on a thread: a server that is stopped never answers."""
        if self._asking is None:
            self._answer = None
            self._asking = threading.Thread(target=self._ask_now, daemon=True)
            self._asking.start()
        self._asking.join(ANSWER_SECONDS)
        if self._asking.is_alive():
            raise TimeoutError(f"the server of {self._root} does not answer")
        self._asking = None
        return self._answer

    def _ask_now(self) -> None:
        self._answer = client.facts(self._root)

    def _with_forwarders(self, view: QueueView) -> QueueView:
        # They are processes of their own, whoever has the queue.
        return replace(view, forwarders=tuple(forwarders_of(f"{self._root}/{view.name}")))

    def _from_files(self, name: str, kind: str) -> QueueView:
        path = f"{self._root}/{name}"
        if not os.path.isdir(path):
            # Defined, and not made yet.
            return QueueView(name=name, kind=kind, records=0, bytes=0)
        try:
            info = describe(path)
        except (ForebayError, OSError) as error:
            return QueueView(name=name, kind=kind, error=str(error))
        return QueueView(
            name=name,
            kind=kind,
            **_numbers(info),
            oldest_ms=getattr(info, "next_time_ms", None),
            next_ms=getattr(info, "next_deadline_ms", None),
        )


def _from_server(row: Mapping[str, Any]) -> QueueView:
    given: dict[str, Any] = {
        name: row.get(name) for name in ("written", "taken", "handles", "oldest_ms", "next_ms")
    }
    if "info" not in row:
        return QueueView(name=row["name"], kind=row["kind"], error=row["error"], **given)
    return QueueView(name=row["name"], kind=row["kind"], **_numbers(row["info"]), **given)


def _numbers(info: Any) -> dict[str, Any]:
    """Returns the fields of a view that are in the facts of a queue, under whatever name."""
    consumers = {**getattr(info, "consumers", {}), **getattr(info, "cursors", {})}
    return {
        "records": _first(info, "pending", "unread", "records"),
        "bytes": info.bytes,
        "lag": {name: place["lag"] for name, place in consumers.items()},
        "leased": _first(info, "working", "outstanding", "taken"),
        "due": getattr(info, "due", None),
        "aside": _first(info, "buried", "dead"),
        "losses": info.losses,
    }


def _first(info: Any, *names: str) -> Any:
    return next((getattr(info, name) for name in names if hasattr(info, name)), None)
