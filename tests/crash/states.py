"""The states in which a power cut may leave a disk.

Owns the choice of what survives: replays a log and yields, after each of its entries, what is left
if nothing that is pending came, all of it, each prefix, all but one, one alone, and random subsets.
A state is found by (seed, point, description), whatever other points and limits were asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from random import Random

from tests.crash.disk import Disk, Entry, FileHistory, Image, Tree, Variant

Choice = tuple[str, int, Variant]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Which states are wanted; see `ForgetfulFilesystem.crash_states`."""

    random_subsets: int
    seed: int
    seen: set[bytes]
    since: int
    points: Callable[[int], bool] | None
    limit: int | None
    garbage: bool
    torn: bool


@dataclass(frozen=True, slots=True)
class Remains:
    """What one power cut left."""

    point: int
    description: str
    acknowledged: int
    key: bytes
    tree: Tree
    files: dict[int, FileHistory]
    mask: int
    variant: Variant
    horizon: int

    def image(self) -> Image:
        """Returns the content of the disk."""
        contents = {
            number: self.files[number].content(self.mask, self.variant, self.horizon)
            for number in self.tree.numbers
        }
        return Image(self.tree.names, self.tree.folders, contents)


def find_remains(image: Image, log: Sequence[Entry], plan: Plan) -> Iterator[Remains]:
    """Yields what a power cut may leave of a disk that was `image`, after each entry of `log`.

    Nothing is yielded twice for the same acknowledgements. It is after another acknowledgement:
    what could be lost before it must not be lost any more.
    """
    disk = Disk(image, plan.seed)
    tried: set[tuple[int, Variant]] = set()
    for point in range(len(log) + 1):
        if point and disk.apply(log[point - 1]):
            tried.clear()
        if point >= plan.since and (plan.points is None or plan.points(point)):
            yield from _remains_at(disk, point, plan, tried)


def _remains_at(
    disk: Disk, point: int, plan: Plan, tried: set[tuple[int, Variant]]
) -> Iterator[Remains]:
    random = Random(plan.seed * 1_000_003 + point)
    horizon = disk.horizon
    files = dict(disk.files)
    for description, mask, variant in _limited(list(_choices(disk, random, plan)), random, plan):
        if (mask, variant) in tried:
            continue
        # What is garbage depends on all that was written by now, not on the choice alone.
        if variant != " with garbage":
            tried.add((mask, variant))
        tree = disk.names.tree(mask, disk.folders)
        digests = [files[number].digest(mask, variant, horizon) for number in tree.numbers]
        key = blake2b(tree.digest + b"".join(digests), digest_size=16).digest()
        identity = blake2b(key + disk.promises, digest_size=16).digest()
        if identity in plan.seen:
            continue
        plan.seen.add(identity)
        yield Remains(
            point,
            description + variant,
            disk.acknowledged,
            key,
            tree,
            files,
            mask,
            variant,
            horizon,
        )


def _choices(disk: Disk, random: Random, plan: Plan) -> Iterator[Choice]:
    bits = disk.pending()
    count = len(bits)
    everything = sum(bits)
    yield "nothing", 0, ""
    yield "everything", everything, ""
    if not count:
        return
    if plan.torn:
        yield "everything", everything, " torn"
    if plan.garbage:
        yield "all but data", everything & ~disk.data_mask(), " with garbage"
    prefix = 0
    for index, bit in enumerate(bits, 1):
        prefix |= bit
        yield f"first {index} of {count}", prefix, ""
        yield f"all but {index} of {count}", everything & ~bit, ""
        yield f"only {index} of {count}", bit, ""
        if plan.torn:
            yield f"first {index} of {count}", prefix, " torn"
        if plan.garbage:
            yield f"all but {index} of {count}", everything & ~bit, " with garbage"
    for index in range(plan.random_subsets):
        drawn = random.getrandbits(count)
        mask = sum(bit for place, bit in enumerate(bits) if drawn >> place & 1)
        yield f"random {index} of {count}", mask, ""
        if plan.garbage:
            yield f"random {index} of {count}", mask, " with garbage"


def _limited(choices: list[Choice], random: Random, plan: Plan) -> list[Choice]:
    """Cuts to `plan.limit`, but keeps nothing and everything."""
    if plan.limit is None or len(choices) <= plan.limit:
        return choices
    kept = choices[: min(2, plan.limit)]
    return kept + random.sample(choices[2:], plan.limit - len(kept))
