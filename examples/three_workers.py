"""Three processes that share one queue of work.

When to use it:
    One process is not enough for the work, and all of them run on one host.
    A worker that is killed gives its job back at once; the others do not notice.
    Nothing has to be started or configured: `shared=True` in each process is all.

Run it: python examples/three_workers.py /tmp/spool
"""

from __future__ import annotations

import multiprocessing
import sys

import forebay


def work(path: str, name: str) -> None:
    """Takes pages until no more come."""
    with forebay.Fifo(path, shared=True) as pages, forebay.Log(f"{path}-done", shared=True) as done:
        while True:
            try:
                with pages.take(timeout=1) as page:  # comes back if this worker dies
                    done.append(b"%s by %s" % (page.value, name.encode()))
            except forebay.Empty:
                return


def main(directory: str) -> None:
    """Pushes thirty pages, lets three workers do them, and prints what they did."""
    path = f"{directory}/pages"
    with forebay.Fifo(path, shared=True) as pages:
        pages.push_many([b"page %02d" % number for number in range(30)])
        workers = [
            multiprocessing.Process(target=work, args=[path, f"worker {n}"]) for n in (1, 2, 3)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    with forebay.read(f"{path}-done", kind="log") as done:
        for line in sorted(done.values()):
            print(line.decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
