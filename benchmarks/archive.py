"""The CPU of the archiver against `pyarrow.fs.copy_files` of the same files to a directory.

    python benchmarks/archive.py [--megabytes 500] [--rounds 5]

Both copy the sealed segments of one log, in turns, each in a process of its own; what is compared
is the CPU time of the process, user and system, after its imports. The archiver also forms a
checksum, syncs every file and writes a manifest.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

GOAL = 1.3
RECORD_BYTES = 278


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measured(work: Callable[[], object]) -> float:
    before = cpu_seconds()
    work()
    return cpu_seconds() - before


def run_archiver(queue: str, target: str) -> float:
    from forebay import Log, archive

    # What a run imports is not what it copies.
    small = os.path.join(target, "small")
    Log(small).close()
    archive(small, target)
    return measured(lambda: archive(queue, target))


def run_copy(queue: str, target: str) -> float:
    from pyarrow import fs

    local = fs.LocalFileSystem()
    names = [name for name in sorted(os.listdir(queue)) if name.startswith("00")]
    source = os.path.join(target, "source")
    os.makedirs(source)
    for name in names:
        os.symlink(os.path.join(queue, name), os.path.join(source, name))
    copied = os.path.join(target, "copied")
    os.makedirs(copied)
    return measured(
        lambda: fs.copy_files(source, copied, source_filesystem=local, destination_filesystem=local)
    )


RUNS = {"archive": run_archiver, "copy_files": run_copy}


def fill(queue: Path, megabytes: int) -> None:
    from forebay import Log

    with Log(queue, sync="os", segment_bytes=32_000_000) as log:
        batch = [os.urandom(RECORD_BYTES)] * 10_000
        for _ in range(max(1, megabytes * 1_000_000 // (10_000 * RECORD_BYTES))):
            log.append_many(batch)


def once(what: str, queue: Path, place: Path) -> float:
    target = place / what
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    command = [sys.executable, __file__, "--run", what, str(queue), str(target)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    shutil.rmtree(target)
    return float(result.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--run", nargs=3, metavar=("WHAT", "QUEUE", "TARGET"))
    arguments = parser.parse_args()
    if arguments.run:
        what, queue, target = arguments.run
        print(RUNS[what](queue, target))
        return
    with tempfile.TemporaryDirectory(dir=os.environ.get("FOREBAY_BENCHMARK_DIR")) as folder:
        place = Path(folder)
        fill(place / "queue", arguments.megabytes)
        seconds: dict[str, list[float]] = {what: [] for what in RUNS}
        for _ in range(arguments.rounds):
            for what in RUNS:
                seconds[what].append(once(what, place / "queue", place))
    for what, each in seconds.items():
        print(f"{what:12} {min(each):.3f} s of CPU at best, {statistics.median(each):.3f} median")
    ratio = min(seconds["archive"]) / min(seconds["copy_files"])
    print(f"archive / copy_files: {ratio:.2f} (goal: at most {GOAL})")


if __name__ == "__main__":
    main()
