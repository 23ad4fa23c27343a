"""The table of names agrees with what each kind of queue calls its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.queues.beats import names as beats
from forebay.queues.deadline import names as deadline
from forebay.queues.fifo import names as fifo
from forebay.queues.shared.names import BEATS, DEADLINE, FIFO, LOG
from tests.kinds import KINDS

NAMES = {"log": LOG, "beats": BEATS, "fifo": FIFO, "deadline": DEADLINE}


def test_the_table_has_the_names_of_the_rooms() -> None:
    assert frozenset({fifo.HEAD, fifo.TAIL, fifo.BOUNDS, fifo.COPY}) == FIFO.marks
    assert {beats.STATE_NAME, beats.MARK_NAME, beats.CONTENTS_NAME} <= BEATS.own_files
    assert deadline.TAKEOVER in DEADLINE.files


@pytest.mark.parametrize("kind", KINDS)
def test_a_queue_in_use_holds_nothing_that_its_kind_does_not_know(
    tmp_path: Path, kind: str
) -> None:
    case, names = KINDS[kind], NAMES[kind]
    with case.queue(tmp_path / "q", sync="os", **case.small) as queue:
        case.put(queue, b"a")
        found = [path.name for path in (tmp_path / "q").iterdir()]

    known = names.own_files | names.directories
    assert [name for name in found if name not in known and not names.is_data(name)] == []
    assert [each.label for each in NAMES.values() if each.fit(found)] == [names.label]
