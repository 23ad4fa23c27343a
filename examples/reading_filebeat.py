"""Reads the disk queue of Filebeat, or of another Beat, that is stuck or was left behind.

When to use it:
    A Beat cannot deliver any more, its output has gone, or its queue is damaged or encrypted.
    `forebay.read` needs no lock and writes nothing: the Beat may even run while you look.
    To acknowledge them as well, stop the Beat and use `forebay.BeatsQueue`.

Run it: python examples/reading_filebeat.py /var/lib/filebeat/diskqueue
"""

from __future__ import annotations

import sys

import forebay


def main(path: str) -> None:
    """Prints the events that were not sent yet, and then what is damaged."""
    with forebay.read(path, kind="beats") as queue:
        for event in queue.events(unread=True):
            print(event.timestamp_ns, event.fields.get("message"))
        for damage in queue.damage:
            print("damaged:", damage.path, damage.position, damage.reason)


if __name__ == "__main__":
    main(*sys.argv[1:])
