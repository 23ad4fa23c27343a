"""How the demo talks: lines for people, or claims as JSON."""

from __future__ import annotations

import os

from forebay.cli.demo_records import Claim
from forebay.cli.output import write_json


class Teller:
    """Tells the story: lines for people, or claims as JSON."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.claims = 0
        self.failed = 0

    def line(self, text: str) -> None:
        """Tells what happens."""
        if not self.as_json:
            print(text, flush=True)

    def claim(self, claim: Claim) -> None:
        """Tells what was checked, and whether it holds."""
        self.claims += 1
        self.failed += not claim.holds
        if self.as_json:
            write_json({"claim": claim.name, "holds": claim.holds, **claim.facts})
        else:
            print(f"   {'ok    ' if claim.holds else 'FAILED'} {claim.text}", flush=True)

    def end(self, seconds: float, directory: str | None) -> None:
        """Tells the verdict."""
        if self.as_json:
            write_json({"claims": self.claims, "failed": self.failed, "seconds": round(seconds, 2)})
            return
        if self.failed:
            print(f"{self.failed} of {self.claims} claims FAILED; {seconds:.1f} s")
        else:
            print(f"all {self.claims} claims hold; {seconds:.1f} s")
        if directory is not None:
            print(f"kept; look at it with: forebay info {os.path.join(directory, 'log')}")
        else:
            print("next: echo hello | forebay put my-log; forebay cat my-log; forebay info my-log")
