"""`forebay merge`: merges a deadline queue into one run, without removed items."""

from __future__ import annotations

import os
import threading
from typing import Any

import click

from forebay.cli import exits
from forebay.cli.arguments import json_option, path_argument, wait_option
from forebay.cli.interrupts import Interrupted, Interrupts
from forebay.cli.leases import opened
from forebay.cli.output import (
    Bar,
    check_stdout,
    plural,
    say,
    size_text,
    write_json,
    write_line,
)
from forebay.queues.kinds import segments

_LOOK_SECONDS = 0.1


@click.command("merge")
@path_argument
@wait_option
@json_option
def command(path: str, wait: float | None, as_json: bool) -> int:
    """Merge all runs of the deadline queue PATH into one, and drop removed items from the disk.

    An open queue does this on its own, part by part. Prints files and bytes before and after, with
    --json as {"before":{"runs":N,"files":N,"bytes":N}, "after":{...},"damage":N}. Items that do not
    verify are dropped, with code 4; run "forebay fsck" first to see which. Needs the lock of the
    queue.
    """
    check_stdout()
    with Interrupts() as interrupts:
        try:
            with opened(path, "merge", wait) as queue:
                before = after = _sizes(path)
                if before["runs"]:
                    _merge(queue, interrupts)
                    after = _sizes(path)
                damage = queue.info().damaged
        except Interrupted as stop:
            say("interrupted: nothing was merged")
            return stop.code
    if as_json:
        write_json({"before": before, "after": after, "damage": damage})
    else:
        for name, sizes in (("before", before), ("after", after)):
            write_line(f"{name}: {plural(sizes['files'], 'file')}, {size_text(sizes['bytes'])}")
    if damage:
        say(f"damage at {plural(damage, 'place')}: what did not verify was dropped")
    return exits.DAMAGE if damage else exits.OK


def _sizes(path: str) -> dict[str, int]:
    files = segments(path)
    runs = sum(1 for file in files if file.records is not None or file.error is not None)
    return {"runs": runs, "files": len(files), "bytes": sum(file.bytes for file in files)}


def _merge(queue: Any, interrupts: Interrupts) -> None:
    """Merges in a thread, to show a bar; Ctrl-C closes the queue, which ends the merge."""
    # Freeze the log first: the items that it removes are in the runs.
    queue.freeze()
    with os.scandir(queue.path) as entries:
        old = {entry.name: entry.stat().st_size for entry in entries}
    failed: list[BaseException] = []

    def work() -> None:
        try:
            queue.merge()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, name="merge", daemon=True)
    thread.start()
    with Bar("merge", sum(old.values())) as bar:
        while thread.is_alive():
            with interrupts.waiting():
                thread.join(_LOOK_SECONDS)
            done = _new_bytes(queue.path, set(old))
            bar.update(done, size_text(done))
    if failed:
        raise failed[0]


def _new_bytes(path: str, old: set[str]) -> int:
    """Returns how many bytes are in files that did not exist before."""
    done = 0
    for name in set(os.listdir(path)) - old:
        try:
            done += os.path.getsize(os.path.join(path, name))
        except FileNotFoundError:
            continue
    return done
