"""`python -m forebay` is the command `forebay`."""

from __future__ import annotations

from forebay.cli.main import main

if __name__ == "__main__":
    main(prog_name="forebay")
