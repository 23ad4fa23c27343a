"""A worker that does jobs, tries a failed one again later, and puts a hopeless one aside.

When to use it:
    Each job must be done, also if the worker is killed in the middle of it: then it comes again.
    A job that fails is tried again after a pause that doubles; after `max_attempts` it is buried.
    A job may be done twice, if the worker dies after it and before the release: make it repeatable.

Run it: python examples/job_worker.py /tmp/spool
"""

from __future__ import annotations

import sys

import forebay


def resize(name: bytes) -> None:
    """Does one job; a broken picture fails each time."""
    if b"broken" in name:
        raise ValueError(f"{name.decode()} is not a picture")
    print("resized", name.decode())


def main(directory: str) -> None:
    """Enqueues three jobs, and works until nothing is left but what was buried."""
    with forebay.DeadlineQueue(
        f"{directory}/jobs", lease_seconds=60, max_attempts=3, retry_seconds=0.1
    ) as jobs:
        jobs.enqueue_many([b"1.png", b"broken.png", b"2.png"])
        while jobs.pending:
            try:
                with jobs.take(timeout=5) as job:  # released at the end, or requeued on an error
                    resize(job.value)
            except ValueError as error:
                print("failed:", error)

        for job in jobs.browse():
            print(
                "buried:", job.value.decode(), "after", job.dequeue_count, "attempts;", job.reason
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
