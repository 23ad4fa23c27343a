"""Starts the tour: `python examples/tour` in any directory, or `python -m examples.tour`."""

from __future__ import annotations

import sys
from pathlib import Path

# Replaces this directory, because its files have names that other modules may have too.
sys.path[0] = str(Path(__file__).resolve().parents[2])

from examples.tour.tour import main  # noqa: E402  (it can be found only now)

if __name__ == "__main__":
    main()
