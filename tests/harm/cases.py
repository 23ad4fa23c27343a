"""Runs one cell of the matrix: makes a copy, harms it, looks at it in every way, judges."""

from __future__ import annotations

import contextlib
import json
import random
import re
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

import forebay
from forebay.cli.main import main
from forebay.damage import Damage
from forebay.errors import Damaged, ForebayError, UndecodableEvent
from forebay.formats.fflg import LAYOUTS, VERSION_DEFAULT
from forebay.storage.losses import is_same
from tests.harm.alive import LiveOwner
from tests.harm.cells import Cell
from tests.harm.harms import HARMS, Hit, NotHere, Target, failing
from tests.harm.judging import BATCH_ITEMS_MAX, Bounds, Fault, judge_look, judge_told, judge_values
from tests.harm.recipes import RECIPES, Recipe, Seen
from tests.harm.roles import files_by_role
from tests.harm.rows import Row, row_of
from tests.harm.states import Place, copy_queue, keep_something, place_of
from tests.harm.values import LATER, ONE_MORE, OURS, marks_in, value_of

# A look that is not done by then never will be: on a busy machine too.
SECONDS_MAX = 25
# The looks that take place beside a living owner.
_BESIDE = ("read", "salvage", "recovered (sum)")
_LOST = re.compile(r"\b0 (record|item|entrie|entry|event)s? lost")
_LOG_HEADER = LAYOUTS[VERSION_DEFAULT].header_bytes
# Bytes of a record's frame before its value, and after it.
_BEFORE = {"log": 12, "fifo": 32, "beats": 120}
_AFTER = {"log": 0, "fifo": 0, "beats": 16}


@dataclass(slots=True)
class Outcome:
    """What became of a cell: its row, its faults, and the story in lines."""

    cell: Cell
    row: Row
    faults: list[Fault] = field(default_factory=list)
    story: list[str] = field(default_factory=list)

    @property
    def sorts(self) -> str:
        """The classes of its faults, in a line."""
        return ", ".join(sorted({fault.sort for fault in self.faults}))


@dataclass(frozen=True, slots=True)
class Baseline:
    """What the verbs say of a queue that nobody harmed."""

    read: list[int]
    records: int
    copied: int


def run_cell(root: Path, cell: Cell, seed: int = 0) -> Outcome:
    """Runs a cell in a directory of its own below `root`, and removes that again."""
    work = Path(tempfile.mkdtemp(dir=root))
    work.chmod(0o711)
    try:
        return Case(root / "made", cell, work, seed).run()
    finally:
        shutil.rmtree(work)


class Case:
    """One cell, in a directory of its own."""

    def __init__(self, root: Path, cell: Cell, work: Path, seed: int = 0) -> None:
        self.cell = cell
        self.recipe: Recipe = RECIPES[cell.kind]
        self.place: Place = place_of(root, cell.kind, cell.policy, cell.state)
        files = files_by_role(cell.kind, self.place.queue)
        if cell.role not in files:
            raise NotHere("there is no such file in this state")
        self.name = files[cell.role]
        self.work = work
        self.baseline = _baseline(self.recipe, self.place, cell)
        self.queue = work / "queue"
        self.owner: LiveOwner | None = None
        chance = random.Random(f"{cell.id} {seed}")
        self.target = Target(self.queue, self.name, self.place, chance, seed)
        row = row_of(cell.kind, cell.role, cell.harm, alive=cell.state == "alive")
        self.outcome = Outcome(cell, row)
        # What a living owner gave out and told, by look, and what it acknowledged since the harm.
        self.before: dict[str, Seen] = {}
        self.later: list[int] = []
        self.raised: Damaged | None = None
        self.missing = False
        self.hangs = False

    def run(self) -> Outcome:
        """Harms the file and looks at the queue in every way."""
        if self.cell.state != "alive":
            return self._run()
        self.owner = LiveOwner(self.recipe, self.queue, self.cell.policy)
        try:
            keep_something(self.queue, OURS)
            return self._run()
        finally:
            self.owner.end()

    def harm(self) -> Hit:
        """Makes the copy, unless a living owner has made it, and harms it."""
        if self.owner is None:
            copy_queue(self.place.queue, self.queue)
        hit = HARMS[self.cell.harm].do(self.target)
        self._say(f"{self.name}: {self.cell.harm}, bytes {hit.low} to {hit.high}")
        self.bounds = self._bounds(hit)
        self._say(f"row: {self.bounds.row.text}; may miss {sorted(self.bounds.may_miss)}")
        return hit

    def _run(self) -> Outcome:
        hit = self.harm()
        looks: dict[str, Callable[[], None]] = {
            "read": lambda: self._read(salvage=False),
            "salvage": lambda: self._read(salvage=True),
            "fsck": self._fsck,
            "info": self._info,
            "recover": self._recover,
            "living owner": lambda: self._go_on(hit),
            "owner": self._own,
            "afterwards": self._afterwards,
        }
        if self.owner is None:
            del looks["living owner"]
        with failing(HARMS[self.cell.harm], self.target, hit):
            for what, look in looks.items():
                self._look(what, look)
                if self.hangs:
                    break
        return self.outcome

    def _look(self, what: str, look: Callable[[], None]) -> None:
        try:
            with time_limit():
                look()
        except (ForebayError, OSError) as error:
            self._fault("refused", f"{what}: {type(error).__name__}: {error}")
        except Hangs:
            self.hangs = True
            self._fault("hangs", f"{what}: not done in {SECONDS_MAX} s")
        except Exception as error:
            self._fault("raw error", f"{what}: {type(error).__name__}: {error}")

    def _read(self, *, salvage: bool) -> None:
        expected = self.baseline.read
        try:
            seen = self.recipe.read_all(self.queue, salvage=salvage)
        except Damaged as error:
            if salvage:
                raise
            self._say(f"read: Damaged: {error}")
            self.raised = error
            return
        except UndecodableEvent as error:
            if salvage or self.bounds.row.missing == "none":
                raise
            self._say(f"read: {error}")
            return
        self._judge(seen, expected)
        if salvage and self.raised is not None and not seen.told:
            self._fault("alarm", f"read: nothing is told of with salvage, it raised {self.raised}")

    def _fsck(self) -> None:
        result = self._verb("fsck", "--json")
        lines = _json_lines(result)
        summary = lines[-1]["summary"] if lines and "summary" in lines[-1] else None
        if result.exit_code not in (0, 4) or summary is None:
            self._fault("refused", f"fsck: code {result.exit_code}: {_text(result)}")
            return
        told = [_damage(line["damage"]) for line in lines if "damage" in line]
        if self.bounds.row.told and not self.bounds.row.late:
            missing = [0] * max(0, self.baseline.records - summary["records"])
            self._judge_code("fsck", result, len(missing) > len(self.bounds.untold))
            if summary["records"] > self.baseline.records and not self.bounds.row.again:
                self._fault("counts", f"fsck: {summary}, and {self.baseline.records} were there")
            for fault in judge_told("fsck", missing, told, 0, self.bounds):
                self.outcome.faults.append(fault)
            if missing:
                self._judge_text()

    def _judge_code(self, what: str, result: Result, missing: bool) -> None:
        if missing and result.exit_code != 4:
            self._fault("silent", f"{what}: code {result.exit_code}: {_text(result)}")

    def _judge_text(self) -> None:
        text = _text(self._verb("fsck"))
        if _LOST.search(text):
            self._fault("unknown as 0", f"fsck: {text[-200:]}")

    def _info(self) -> None:
        result = self._verb("info", "--json")
        if result.exit_code != 0:
            self._fault("refused", f"info: code {result.exit_code}: {_text(result)}")

    def _recover(self) -> None:
        target = self.work / "recovered"
        result = self._verb("recover", "--to", str(target), "--json")
        lines = _json_lines(result)
        summary = lines[-1].get("summary") if lines else None
        if result.exit_code not in (0, 4) or summary is None:
            self._fault("refused", f"recover: code {result.exit_code}: {_text(result)}")
            return
        if not self.bounds.row.told:
            return
        seen = self.recipe.read_all(target, salvage=False)
        seen.what = "recovered (sum)"
        self._judge(seen, self.baseline.read)
        if self.bounds.row.late:
            return
        missing = [0] * max(0, self.baseline.copied - summary["copied"])
        told = [_damage(line["damage"]) for line in lines if "damage" in line]
        self.outcome.faults += judge_told("recover", missing, told, 0, self.bounds)

    def _go_on(self, hit: Hit) -> None:
        """Has the living owner take everything, put more and close."""
        assert self.owner is not None
        answers = self.owner.go_on(self.cell.harm, self.target, hit)
        self._say(f"living owner: acknowledged {answers.acknowledged}, signal {answers.signal}")
        self.outcome.story += [f"    raised {text}" for text in answers.refused]
        self.later = answers.acknowledged
        self.before = {seen.what: seen for seen in answers.looks}
        for seen in self.before.values():
            self.outcome.faults += judge_values(seen, self.bounds)
            if len(set(seen.told)) < len(seen.told):
                self._fault("told twice", f"living {seen.what}: {seen.told}")
        for text in answers.raw:
            self._fault("raw error", f"living owner: {text}")
        if answers.hangs:
            self._fault("hangs", "living owner: it does not answer")
        if answers.refused and not self.bounds.row.kills:
            self._fault("goes on", f"living owner: {answers.refused}")
        if answers.signal and not (answers.signal == signal.SIGBUS and self.bounds.row.kills):
            self._fault("killed", f"living owner: by signal {answers.signal}")

    def _own(self) -> None:
        queue = self.recipe.open_later(self.queue, self.cell.policy)
        try:
            self._take(queue)
            self._say(f"info: {queue.info()}")
        finally:
            queue.close()

    def _take(self, queue: Any) -> None:
        truth = self.place.truth
        for now in self.recipe.take_all(queue, truth):
            seen, expected = now, truth.there
            name = now.what.removeprefix("consumer ")
            if name in truth.places:
                expected = [n for n in truth.there if n >= truth.places[name]]
            if self.owner is not None:
                expected = [n for n in expected if n not in truth.lent] + truth.lent + self.later
                seen = _together(self.before.get(now.what), now)
            self._judge(seen, expected)
            self.missing = self.missing or bool(
                set(expected) - set(seen.given) - self.bounds.untold
            )
        value = self.recipe.put_and_take(queue)
        if value != value_of(ONE_MORE):
            self._fault("goes on", f"one more was put, and {value!r} taken")
        if self.recipe.left(queue):
            self._fault(
                "counts", f"all is taken, and {self.recipe.left(queue)} are said to be left"
            )

    def _afterwards(self) -> None:
        """The owner has been there: what is missing stands until somebody says that he saw it."""
        if not hasattr(forebay, "accept_losses") or not self.bounds.row.told:
            return
        if self.missing:
            self._judge_code("fsck after the owner", self._verb("fsck"), True)
        accepted = self._verb("fsck", "--accept")
        again = self._verb("fsck")
        if again.exit_code != 0:
            text = f"code {again.exit_code} after --accept: {_text(accepted)} {_text(again)}"
            self._fault("accept", text)
        queue = self.recipe.open_later(self.queue, self.cell.policy)
        queue.close()

    def _judge(self, seen: Seen, expected: list[int]) -> None:
        missing = [number for number in expected if number not in set(seen.given)]
        extra = [number for number in seen.given if number not in set(expected)]
        self._say(
            f"{seen.what}: {len(seen.given)} of {len(expected)} given; missing {missing}; "
            f"others {extra}; told {[(Path(d.path).name, d.count, d.torn) for d in seen.told]}"
            f" overtaken {seen.overtaken}"
        )
        for damage in seen.told:
            self._say(f"    {damage}")
        if self.bounds.row.late and seen.what in _BESIDE and not seen.told:
            # Nothing but the newest, which the owner's next mark shows.
            expected = expected[: len(expected) - len(missing)]
        self.outcome.faults += judge_look(seen, expected, self.place.truth, self.bounds)

    def _bounds(self, hit: Hit) -> Bounds:
        row, base = self.outcome.row, self.cell.kind.partition("-")[0]
        touched: set[int] = set()
        # A change of a deadline queue costs its batch, wherever it is hit.
        if row.missing == "file" or (row.missing == "hit" and (hit.whole or base == "deadline")):
            touched = self._numbers(0, 2**60)
        elif row.missing == "hit" and base == "log" and _is_more_of_a_header(hit):
            # It cannot be repaired, and without it no record can be checked.
            touched = self._numbers(0, 2**60)
        elif row.missing == "hit":
            touched = self._numbers(hit.low - _AFTER[base], hit.high + _BEFORE[base])
        partial = row.missing == "hit" and base == "deadline"
        count_max = BATCH_ITEMS_MAX if partial else len(touched)
        if self.owner is not None and row.missing != "none":
            # What is put into the file that was harmed is lost with it, and told.
            touched |= {*LATER, *self._staged()}
            count_max = len(touched)
        return Bounds(
            row,
            frozenset(touched),
            count_max,
            Path(self.name).name,
            self.place.queue.joinpath(self.name).stat().st_size,
            alive=self.owner is not None,
            untold=frozenset(self._untold(hit) if row.last else ()),
        )

    def _untold(self, hit: Hit) -> set[int]:
        """Returns the newest records of the staging buffer, as far as they were hit."""
        newest = max(self._staged(), default=None)
        found = self._numbers(hit.low - 64, hit.high + 64)
        return {newest, *found} if newest in found else set()

    def _staged(self) -> set[int]:
        """Returns the records that wait in the staging buffer."""
        staging = self.place.queue / "staging"
        return {n for n, _, _ in marks_in(staging.read_bytes())} if staging.exists() else set()

    def _numbers(self, low: int, high: int) -> set[int]:
        """Returns the records with bytes from one position of the file to another."""
        file, before = self.place.queue / self.name, 0
        data = file.read_bytes()
        if self.cell.role.startswith("tape"):
            # An entry may lie in two files.
            tapes = sorted(self.place.queue.glob("*.tape"))
            data = b"".join(tape.read_bytes() for tape in tapes)
            before = sum(tape.stat().st_size for tape in tapes if tape.name < file.name)
            high = min(high, file.stat().st_size + _BEFORE["fifo"])
        found = marks_in(data)
        return {n for n, first, last in found if first < before + high and before + low < last}

    def _verb(self, verb: str, *arguments: str) -> Result:
        result = CliRunner().invoke(main, [verb, str(self.queue), *arguments])
        self._say(f"$ forebay {verb} {' '.join(arguments)}  -> {result.exit_code}")
        self.outcome.story += [f"    {line}" for line in _text(result).splitlines()]
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            self._fault("raw error", f"{verb}: {result.exception!r}")
        elif "Traceback" in _text(result):
            self._fault("raw error", f"{verb}: {_text(result)}")
        return result

    def _say(self, line: str) -> None:
        self.outcome.story.append(line)

    def _fault(self, sort: str, story: str) -> None:
        self.outcome.faults.append(Fault(sort, story))


class Hangs(BaseException):
    """A look takes too long; not an `Exception`, so that nothing takes it for one of its own."""


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS_MAX)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _is_more_of_a_header(hit: Hit) -> bool:
    """Says whether a harm of more than a byte reaches into the header of a log's segment."""
    return hit.low < _LOG_HEADER and hit.high - hit.low > 1


def _together(before: Seen | None, after: Seen) -> Seen:
    """Adds what a reopened queue gave to what its owner did before: each damage once."""
    if before is None:
        return after
    told = list(before.told)
    told += [damage for damage in after.told if not any(is_same(damage, it) for it in told)]
    return Seen(
        after.what,
        before.given + after.given,
        told,
        before.overtaken + after.overtaken,
        after.wrong,
    )


_baselines: dict[tuple[Path, bool], Baseline] = {}


def _baseline(recipe: Recipe, place: Place, cell: Cell) -> Baseline:
    """Asks the verbs about the queue as it was, beside its owner if it lives; once in a process."""
    alive = cell.state == "alive"
    if (place.queue, alive) not in _baselines:
        work = Path(tempfile.mkdtemp(dir=place.queue.parent))
        owner = LiveOwner(recipe, work / "queue", cell.policy) if alive else None
        queue = place.queue if owner is None else work / "queue"
        try:
            found = _ask(recipe, queue, work / "recovered")
        finally:
            if owner is not None:
                owner.end()
            shutil.rmtree(work)
        # A reader may see what has left and is still in the files; what is there, it must.
        unseen = set(place.truth.there) - set(found.read)
        assert not unseen, unseen
        _baselines[place.queue, alive] = found
    return _baselines[place.queue, alive]


def _ask(recipe: Recipe, queue: Path, target: Path) -> Baseline:
    read = recipe.read_all(queue, salvage=False)
    assert not read.wrong, read.wrong
    assert not read.told, read.told
    summary = _json_lines(CliRunner().invoke(main, ["fsck", str(queue), "--json"]))
    arguments = ["recover", str(queue), "--to", str(target), "--json"]
    copied = _json_lines(CliRunner().invoke(main, arguments))
    return Baseline(read.given, summary[-1]["summary"]["records"], copied[-1]["summary"]["copied"])


def _json_lines(result: Result) -> list[Any]:
    try:
        return [json.loads(line) for line in result.stdout.splitlines()]
    except ValueError:
        return []


def _damage(fields: dict[str, Any]) -> Damage:
    return Damage(
        fields["path"],
        fields["position"],
        fields["length"],
        fields["reason"],
        fields["torn"],
        fields.get("offset"),
        fields.get("count"),
    )


def _text(result: Result) -> str:
    return result.output
