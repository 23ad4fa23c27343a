"""Which sets of runs are merged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import pytest

from forebay.formats.deadline.items import FileKind
from forebay.queues.deadline.compaction import SETS_MAX, choose_merge
from forebay.queues.deadline.runs import RunSet

MIB = 1 << 20


@dataclass
class SetOfSize:
    """A set as the choice sees it."""

    size: int
    items: int = 100
    tombstones: int = 0
    files: dict[FileKind, object] = field(default_factory=dict)

    def entry_count(self, kind: FileKind) -> int:
        return self.items if kind is FileKind.PENDING_RUN else self.tombstones


def choose(*sets: SetOfSize, everything: bool = False) -> tuple[int, int]:
    return choose_merge([cast(RunSet, each) for each in sets], everything=everything)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], (0, 0)),
        ([1], (0, 0)),
        ([1] * 23, (0, 0)),
        ([1] * 24, (0, 24)),
        ([4, 3, 2, 1] * 6, (0, 24)),
        ([100] + [1] * 24, (1, 24)),
        ([5] + [1] * 23, (0, 0)),
    ],
)
def test_many_neighbours_of_like_size_are_merged(
    sizes: list[int], expected: tuple[int, int]
) -> None:
    assert choose(*(SetOfSize(size * MIB) for size in sizes)) == expected


def test_sets_that_tombstones_have_emptied_are_merged_all() -> None:
    assert choose(SetOfSize(9 * MIB), SetOfSize(1, 0, 50)) == (0, 2)
    assert choose(SetOfSize(9 * MIB), SetOfSize(1, 0, 49)) == (0, 0)


def test_there_are_never_many_sets() -> None:
    sets = [SetOfSize(5**power * MIB) for power in range(SETS_MAX + 1, 0, -1)]

    assert choose(*sets)[1] > 1


def test_a_merge_of_everything_leaves_a_single_run_of_items_alone() -> None:
    single = SetOfSize(MIB, files={FileKind.PENDING_RUN: object()})

    assert choose(single, everything=True) == (0, 0)
    assert choose(single, single, everything=True) == (0, 2)
