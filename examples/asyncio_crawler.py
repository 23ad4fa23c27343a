"""A crawler on asyncio: many tasks, one queue of pages that are still to be fetched.

When to use it:
    The list of work grows while it is done, and must survive an interruption: run it again, and it
    goes on. Tasks that wait for a page hold no thread, and a task that is cancelled loses nothing.
    Pages that fail are put aside after three attempts, and do not block the others.

Run it: python examples/asyncio_crawler.py /tmp/spool
"""

from __future__ import annotations

import asyncio
import sys

import forebay
import forebay.aio

# The web, for this example: a page and its links.
WEB = {"/": ["/a", "/b"], "/a": ["/b", "/c"], "/b": ["/"], "/c": ["/lost"]}


async def fetch(page: str) -> list[str]:
    """Returns the links of a page."""
    await asyncio.sleep(0.01)
    return WEB[page]


async def crawl(pages: forebay.aio.Fifo, seen: set[str]) -> None:
    """Fetches pages until none came for half a second."""
    while True:
        try:
            async with pages.take(timeout=0.5) as entry:
                links = await fetch(entry.value.decode())
        except forebay.Empty:
            return
        except KeyError:
            continue  # the page went back to the queue, or aside after the third attempt
        new = [link for link in links if link not in seen]
        seen.update(new)
        await pages.push_many([link.encode() for link in new])


async def crawl_all(directory: str) -> None:
    """Crawls from the first page on with four tasks, and prints what was found."""
    async with forebay.aio.Fifo(f"{directory}/pages", max_attempts=3) as pages:
        seen = {"/"}
        await pages.push(b"/")
        await asyncio.gather(*(crawl(pages, seen) for _ in range(4)))
        print("found:", *sorted(seen))
        print("failed:", *(entry.value.decode() for entry in await pages.dead()))


def main(directory: str) -> None:
    """Runs the crawler."""
    asyncio.run(crawl_all(directory))


if __name__ == "__main__":
    main(*sys.argv[1:])
