"""Manifests, the ledger, and the moves of an adoption."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forebay.errors import Damaged, InvalidOption
from forebay.kernels.buffers import crc32
from forebay.storage import inbox
from tests.crash.forgetful import ForgetfulFilesystem
from tests.storage.helpers import open_directory

PARTS = [inbox.Part("a.part", 3, 100), inbox.Part("b.part", 1, 50)]


def test_a_manifest_is_read_as_it_was_published(tmp_path: Path) -> None:
    queue = open_directory(tmp_path)
    manifest = inbox.Manifest("writer", 7, PARTS)
    inbox.publish(queue, "stem", manifest)
    work = queue.directory(inbox.DIRECTORY)

    assert inbox.read_manifests(work) == [("stem.ready", manifest)]
    assert work.names() == ["stem.ready"]
    inbox.remove(work, "stem.ready")
    inbox.remove(work, "stem.ready")
    assert inbox.read_manifests(work) == []
    work.close()
    queue.close()


def test_manifests_come_by_batch_then_by_writer(tmp_path: Path) -> None:
    queue = open_directory(tmp_path)
    for number, (writer, batch) in enumerate([("b", 2), ("a", 2), ("b", 1), ("a", 10)]):
        inbox.publish(queue, f"s{number}", inbox.Manifest(writer, batch, []))
    work = queue.directory(inbox.DIRECTORY)

    manifests = [manifest for _, manifest in inbox.read_manifests(work)]
    found = [(manifest.writer, manifest.batch) for manifest in manifests if manifest is not None]

    assert found == [("b", 1), ("a", 2), ("b", 2), ("a", 10)]
    work.close()
    queue.close()


@pytest.mark.parametrize("stem", ["", ".x", "a/b", "../x", "a b", "x" * 201])
def test_a_bad_name_is_refused(tmp_path: Path, stem: str) -> None:
    queue = open_directory(tmp_path)

    with pytest.raises(InvalidOption, match="inbox name"):
        inbox.publish(queue, stem, inbox.Manifest("w", 1, []))

    assert queue.names() == []
    queue.close()


def test_a_damaged_manifest_is_told_and_hides_no_other(tmp_path: Path) -> None:
    queue = open_directory(tmp_path)
    inbox.publish(queue, "stem", inbox.Manifest("w", 1, PARTS))
    path = tmp_path / "d" / "inbox" / "stem.ready"
    path.write_bytes(path.read_bytes().replace(b'"w"', b'"v"'))
    work = queue.directory(inbox.DIRECTORY)

    good = inbox.Manifest("w", 2, [])
    inbox.publish(queue, "other", good)

    assert inbox.read_manifests(work) == [("stem.ready", None), ("other.ready", good)]
    work.close()
    queue.close()


def test_a_published_manifest_is_durable_and_never_half_there() -> None:
    filesystem = ForgetfulFilesystem()
    queue = filesystem.open_directory("/d", create=True)
    many = [inbox.Part(f"{number}.part", 3, 100) for number in range(40)]
    manifest = inbox.Manifest("w", 1, many)
    inbox.publish(queue, "stem", manifest)
    filesystem.acknowledge("published")

    found: dict[int, set[int]] = {}
    for state in filesystem.crash_states(4, torn=True):
        try:
            work = state.restore().open_directory("/d/inbox")
        except FileNotFoundError:
            continue
        manifests = inbox.read_manifests(work)
        assert all(item == ("stem.ready", manifest) for item in manifests)
        found.setdefault(state.acknowledged, set()).add(len(manifests))

    assert found == {0: {0, 1}, 1: {1}}


def test_the_ledger_reads_back_and_is_empty_at_first(tmp_path: Path) -> None:
    queue = open_directory(tmp_path)
    ledger = inbox.Ledger({"w": 3}, [inbox.Move("a.part", "0000000000", "00ff")])
    before = inbox.read_ledger(queue)
    inbox.write_ledger(queue, ledger)

    assert (before, inbox.read_ledger(queue)) == (inbox.Ledger(), ledger)
    queue.close()


@pytest.mark.parametrize("data", [b"", b"rubbish", b"{}\n00000000\n", b'{"moves":[]}'])
def test_a_damaged_ledger_is_never_taken_for_an_empty_one(tmp_path: Path, data: bytes) -> None:
    queue = open_directory(tmp_path)
    (tmp_path / "d" / "ledger").write_bytes(data)

    with pytest.raises(Damaged, match="ledger"):
        inbox.read_ledger(queue)
    queue.close()


PART = '{"name":"a.part","count":3,"size":100}'
GOOD_MANIFEST = f'{{"writer":"w","batch":1,"parts":[{PART}]}}'
GOOD_LEDGER = (
    '{"adopted":{"w":1},"moves":[{"part":"a.part","segment":"0000000001","header":"00ff"}]}'
)


def with_check(text: str) -> bytes:
    body = text.encode()
    return body + f"\n{crc32(body):08x}\n".encode()


def test_the_files_hold_one_line_of_json_and_one_of_its_check(tmp_path: Path) -> None:
    queue = open_directory(tmp_path)
    inbox.publish(queue, "stem", inbox.Manifest("w", 1, [inbox.Part("a.part", 3, 100)]))
    inbox.write_ledger(queue, inbox.Ledger({"w": 1}, [inbox.Move("a.part", "0000000001", "00ff")]))

    path = tmp_path / "d"
    assert (path / "inbox" / "stem.ready").read_bytes() == with_check(GOOD_MANIFEST)
    assert (path / "ledger").read_bytes() == with_check(GOOD_LEDGER)
    queue.close()


def test_a_writer_of_any_name_is_read_as_it_was_written(tmp_path: Path) -> None:
    queue = open_directory(tmp_path)
    ledger = inbox.Ledger({'q"\\\n\x00é\u2028😀': 2**63})
    inbox.write_ledger(queue, ledger)

    assert inbox.read_ledger(queue) == ledger
    queue.close()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"w"', "7"),
        ('"w"', "null"),
        ('"batch":1', '"batch":"1"'),
        ('"batch":1', '"batch":1.0'),
        ('"batch":1', '"batch":true'),
        ('"batch":1,', ""),
        ('"count":3', '"count":null'),
        ('"size":100', '"size":1e2'),
        ('"name":"a.part"', '"name":["a.part"]'),
        (f"[{PART}]", PART),
        (PART, '"a.part"'),
        (GOOD_MANIFEST, f"[{GOOD_MANIFEST}]"),
        (GOOD_MANIFEST, "[" * 100_000),
        ("}]}", "}]"),
    ],
)
def test_a_manifest_of_wrong_types_does_not_verify(tmp_path: Path, old: str, new: str) -> None:
    queue = open_directory(tmp_path)
    work = queue.directory(inbox.DIRECTORY, create=True)
    (tmp_path / "d" / "inbox" / "a.ready").write_bytes(with_check(GOOD_MANIFEST))
    (tmp_path / "d" / "inbox" / "b.ready").write_bytes(with_check(GOOD_MANIFEST.replace(old, new)))

    good = inbox.Manifest("w", 1, [inbox.Part("a.part", 3, 100)])
    assert inbox.read_manifests(work) == [("b.ready", None), ("a.ready", good)]
    work.close()
    queue.close()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('{"w":1}', '{"w":"1"}'),
        ('{"w":1}', '{"w":false}'),
        ('{"w":1}', '[["w",1]]'),
        ('"00ff"', '"0"'),
        ('"00ff"', '"zz"'),
        ('"segment":"0000000001"', '"segment":0'),
        ('"part":"a.part",', ""),
        (GOOD_LEDGER, "null"),
    ],
)
def test_a_ledger_of_wrong_types_is_damage(tmp_path: Path, old: str, new: str) -> None:
    queue = open_directory(tmp_path)
    path = tmp_path / "d" / "ledger"
    path.write_bytes(with_check(GOOD_LEDGER))
    assert inbox.read_ledger(queue).adopted == {"w": 1}

    path.write_bytes(with_check(GOOD_LEDGER.replace(old, new)))

    with pytest.raises(Damaged, match="ledger"):
        inbox.read_ledger(queue)
    queue.close()


def test_a_name_tells_when_it_was_made_and_no_two_are_the_same() -> None:
    stems = {inbox.new_stem(1_800_000_000_123) for _ in range(100)}

    assert len(stems) == 100
    assert {inbox.made_ms(stem + inbox.PART) for stem in stems} == {1_800_000_000_123}


@pytest.mark.parametrize("name", ["a.part", "12.part", "12-zz.part", "x-" + "0" * 32 + ".part"])
def test_a_name_that_another_program_gave_tells_nothing(name: str) -> None:
    assert inbox.made_ms(name) is None


def test_moves_give_parts_their_header_and_name_and_may_be_repeated(tmp_path: Path) -> None:
    queue = open_directory(tmp_path)
    work = queue.directory(inbox.DIRECTORY, create=True)
    for name in ("a.part", "b.part"):
        (tmp_path / "d" / "inbox" / name).write_bytes(b"old header, frames")
    moves = [
        inbox.Move("a.part", "0000000000", b"NEW HEADER".hex()),
        inbox.Move("b.part", "0000000005", b"OTHER HEAD".hex()),
    ]

    for _ in range(2):
        inbox.finish_moves(queue, work, moves)

    assert (tmp_path / "d" / "0000000000").read_bytes() == b"NEW HEADER, frames"
    assert (tmp_path / "d" / "0000000005").read_bytes() == b"OTHER HEAD, frames"
    assert os.listdir(tmp_path / "d" / "inbox") == []
    work.close()
    queue.close()
