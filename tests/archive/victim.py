"""An archiver that goes on until it is killed: `python -m tests.archive.victim PATH ADDRESS`."""

from __future__ import annotations

import sys

from forebay.queues.archive.archiver import Archiver
from tests.archive.helpers import HOST
from tests.support.killing import end_with_parent

if __name__ == "__main__":
    end_with_parent()
    path, address = sys.argv[1:]
    with Archiver(path, address, host=HOST, trim=True) as archiver:
        while True:
            archiver.run()
