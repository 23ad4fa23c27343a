"""The queues for programs on asyncio: the same objects, the same verbs, awaited.

    async with forebay.aio.Fifo("spool/jobs") as fifo:
        await fifo.push(b"...")
        async with fifo.take(timeout=5) as entry: ...

**Threads.** Whatever may touch the disk or take the queue's lock runs on a thread. That goes for
single pushes under the weak sync policies too, though they are memory copies: the lock is held over
writes, sometimes over a sync, and a copy into a mapped file waits while the system writes that
page. Such a call costs a fraction of a millisecond, most of it the way to the thread and back; for
speed there are the verbs for many. Only what reads a number in memory, such as the size of a fifo,
is a plain call.

Each queue has two lanes of up to 64 threads, started as they are needed. What adds runs in one, so
that many tasks share a sync, and may fill it while it waits for room; everything else runs in the
other, where nothing waits but for the disk. So a full log cannot hold up the commit that makes room
in it. To open and to close takes a thread of its own.

**Waiting.** Who waits for an entry, an item, an event or a record, or for room in a fifo or a
deadline queue, holds no thread: the queue tells its news to the loop. Tasks stand in line, and at
news the first of them tries; in a deadline queue also when the next item is due or the next lease
ends. Once a second it tries without news, to find a handle that failed.

**Cancellation.** A call on a thread cannot be stopped.

- A call that waits for something to take, or for room in a fifo or a deadline queue, is cancelled
  at once; nothing happened.
- A call that adds is cancelled at once, too. What it adds may be there, or come to be there later.
- Every other call is seen to its end first, which takes as long as the disk does. Then `take` puts
  its entry back to the front, `read` of events gives its batch back, `dequeue` and `take` of a
  deadline queue give their items back, `read` of a consumer keeps its records for the next one, and
  the cancellation is raised.
- What `pop` has taken off cannot be put back. It is given to the caller, who goes on with it; the
  cancellation is raised by the next call of that task that takes something. An error likewise comes
  before a cancellation.

**Errors** are those of the blocking queues, unchanged. After `close` every call raises `Closed`.

A queue belongs to the loop that opened it. Its attribute `queue` is the blocking one, which threads
of the same process may use meanwhile.
"""

from __future__ import annotations

import importlib
import os
from functools import partial
from typing import TYPE_CHECKING, Any

import forebay
from forebay.aio.queue import open_queue

if TYPE_CHECKING:
    from forebay.aio.consumer import Consumer
    from forebay.aio.deadline import DeadlineQueue
    from forebay.aio.event import BeatsQueue, EventBatch
    from forebay.aio.fifo import Fifo
    from forebay.aio.log import Log

# Imported at first use, as in `forebay`: who only has logs needs neither LZ4 nor AES nor CBOR.
_MODULES = {
    "Consumer": "forebay.aio.consumer",
    "DeadlineQueue": "forebay.aio.deadline",
    "EventBatch": "forebay.aio.event",
    "BeatsQueue": "forebay.aio.event",
    "Fifo": "forebay.aio.fifo",
    "Log": "forebay.aio.log",
}

__all__ = ["Consumer", "DeadlineQueue", "EventBatch", "BeatsQueue", "Fifo", "Log", "open"]


async def open(path: str | os.PathLike[str], **options: Any) -> Any:
    """Opens a queue that is there, of whatever kind it is; raises `NotAQueue` if there is none.

    `async with await forebay.aio.open(path) as queue: ...`
    """
    blocking = await open_queue(partial(forebay.open, path, **options))
    queue = __getattr__(type(blocking).__name__)(path)
    queue.serve(blocking)
    return queue


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
