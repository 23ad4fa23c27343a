"""A toy from outside."""

from __future__ import annotations

from forebay.damage import Damage
from forebay.queues.shared.reports import Facts, Findings, Progress, Report
from forebay.storage.filesystem import lock_owner
from tests.support.toy.reader import ToyReader


def check(path: str, progress: Progress) -> Report:
    facts = describe(path)
    with ToyReader(path) as reader:
        findings = Findings([item for item in reader.scan() if isinstance(item, Damage)])
    return Report(
        kind="toy",
        path=facts.path,
        state=facts.state,
        records=facts.records - len(findings.found),
        segments=1,
        bytes=facts.bytes,
        **findings.as_fields(),
    )


def describe(path: str) -> Facts:
    owner = lock_owner(path)
    with ToyReader(path) as reader:
        return Facts(
            kind="toy",
            path=reader.path,
            state="closed" if owner is None else "open",
            owner=owner,
            records=len(reader.lines),
            segments=1,
            bytes=reader.size_of("toy.txt"),
        )
