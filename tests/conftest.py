"""Settings that all tests share."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Machines are shared: a slow example says nothing. The long tier tries harder.
settings.register_profile(
    "forebay",
    deadline=None,
    max_examples=1000 if os.environ.get("FOREBAY_FULL") == "1" else 100,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("forebay")
