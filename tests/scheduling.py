"""How pytest-xdist spreads the tests: each on its own, but those of Spark in two pieces.

A piece has one Spark session, whose start costs as much as many tests. The mark `xdist_group` would
say the same, but xdist 3.8 does not heed it with pytest 9.2.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

PIECES = {
    "tests/spark/": "source and sink",
    "tests/pipelines/": "pipelines",
    "tests/docs/test_readme.py": "pipelines",
}
# These start a Spark of their own.
OWN_SPARK = ("tests/spark/test_connect.py", "tests/spark/test_java.py")


class FewWorkersForSpark(LoadScopeScheduling):
    """Hands out the tests of Spark as two pieces, first, and the others one by one."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(OWN_SPARK):
            return nodeid
        pieces = (piece for start, piece in PIECES.items() if nodeid.startswith(start))
        return next(pieces, nodeid)
