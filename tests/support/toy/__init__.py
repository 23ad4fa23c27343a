"""A fifth kind of queue, as small as it can be: a file with a line of text for each record.

It shows what a kind needs to be one: this record, and the four modules of a room.
"""

from __future__ import annotations

from forebay.queues.kinds import Kind

TOY = Kind(
    "toy",
    "a toy",
    lambda names: "toy.txt" in names,
    *("tests.support.toy", "Toy", "ToyReader", "tests.support.toy.queue:ToyOptions"),
    record="line",
    file="file",
)
