"""How pytest-xdist spreads the tests: each on its own, but those of Spark to one worker.

There is one Spark session, and a second one in another worker would cost its start again. The mark
`xdist_group` would say the same, but xdist 3.8 does not heed it with pytest 9.2.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

SPARK_TESTS = ("tests/spark/", "tests/pipelines/", "tests/docs/test_readme.py")
# These start a Spark of their own.
OWN_SPARK = ("tests/spark/test_connect.py", "tests/spark/test_java.py")


class OneWorkerForSpark(LoadScopeScheduling):
    """Hands out the tests of Spark as one piece, first, and the others one by one."""

    def _split_scope(self, nodeid: str) -> str:
        in_session = nodeid.startswith(SPARK_TESTS) and not nodeid.startswith(OWN_SPARK)
        return "spark" if in_session else nodeid
