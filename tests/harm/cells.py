"""A cell of the matrix: kind, policy, state, file and harm; all of them, and slices of them."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from tests.harm.harms import HARMS
from tests.harm.recipes import RECIPES
from tests.harm.roles import roles_of
from tests.harm.states import STATES
from tests.kinds import POLICIES

SLICES = 5


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One case of the matrix."""

    kind: str
    policy: str
    state: str
    role: str
    harm: str

    @property
    def id(self) -> str:
        return ":".join((self.kind, self.policy, self.state, self.role, self.harm))

    @property
    def slice(self) -> int:
        """Which of the everyday slices it is in."""
        return zlib.crc32(self.id.encode()) % SLICES


def all_cells() -> list[Cell]:
    """Lists all cells, those of one made queue together."""
    return [
        Cell(kind, policy, state, role, harm)
        for kind in RECIPES
        for policy in POLICIES
        for state in STATES
        for role in roles_of(kind)
        for harm in HARMS
    ]
