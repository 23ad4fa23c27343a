"""Settings of the property tests here: a busy machine must not fail one by its pace."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
