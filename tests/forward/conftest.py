"""The receiver that these tests send to."""

from tests.support.forwarding import receiver

__all__ = ["receiver"]
