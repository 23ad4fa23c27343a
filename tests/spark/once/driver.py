"""A driver in a process of its own: runs a query of `queries.py` until it is killed.

Run as `python -m tests.spark.once.driver PATH DIRECTORY`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from forebay.spark.session import session
from tests.conftest import SPARK_CONF
from tests.spark.once.queries import Query
from tests.support.killing import end_with_parent

STARTED = "right after the start"


def main() -> None:
    end_with_parent()
    query = Query(sys.argv[1], Path(sys.argv[2]))
    started = query.start(session("local[2,3]", **SPARK_CONF))
    query.points.meet(STARTED)
    started.awaitTermination()


if __name__ == "__main__":
    main()
