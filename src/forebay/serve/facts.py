"""What a server tells about a queue to those who watch it."""

from __future__ import annotations

from typing import Any

from forebay.errors import ForebayError
from forebay.queues.kinds import describe
from forebay.serve.holding import Served


def facts_of(served: Served, written: int, taken: int) -> dict[str, Any]:
    """Returns the state of a queue; on a thread, because it may read files.

    `written` and `taken` are records that went through the server since it began. `oldest_ms` is
    when the oldest entry of a fifo was put, `next_ms` when the first item of a deadline queue is
    due. A queue that cannot tell has an `error` instead of `info`.
    """
    facts: dict[str, Any] = {
        "name": served.name,
        "kind": served.kind,
        "written": written,
        "taken": taken,
        "handles": served.handles,
    }
    try:
        facts["info"] = served.queue.info()
        if served.kind == "fifo":
            # From outside: a look at the queue itself would be the one that damage is raised to.
            facts["oldest_ms"] = getattr(describe(served.queue.path), "next_time_ms", None)
        elif served.kind == "deadline":
            first = served.queue.peek()
            facts["next_ms"] = None if first is None else first.deadline_ms
    except (ForebayError, OSError) as error:
        facts["error"] = str(error)
    return facts
