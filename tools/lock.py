"""Writes the lock files again: `python -m tools.lock`, with `uv` on the PATH.

`requirements.lock` holds what the package, its extras and `./run` need, and what builds the
package; `requirements-tests.lock` holds what only `./test` needs besides. Versions that still fit
stay as they are; delete a file to have the newest ones. Both files have hashes and no index.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.boot import LOCK, TESTS_LOCK, packages_of  # noqa: E402  (only now it is found)

USED = ("arrow", "spark", "beats", "lz4", "metrics", "forward", "archive", "delta", "iceberg")
TESTED = ("connect", "test", "tools")
OPTIONS = ["--universal", "--python-version=3.11", "--generate-hashes", "--quiet"]
OPTIONS += ["--custom-compile-command=python -m tools.lock"]


def main() -> None:
    """Resolves both sets of extras, the second one with the versions of the first."""
    resolve(("build", *USED), LOCK)
    first = packages_of(LOCK)
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch, "whole.lock")
        # The versions that the files have now are preferred.
        present = TESTS_LOCK.read_text() if TESTS_LOCK.exists() else ""
        whole.write_text(LOCK.read_text() + present)
        resolve(("build", *USED, *TESTED), whole, "-c", str(LOCK))
        rest = {name: text for name, text in packages_of(whole).items() if name not in first}
    head = (
        "# Written by: python -m tools.lock. What is in requirements.lock is not repeated here.\n"
    )
    TESTS_LOCK.write_text(head + "".join(rest.values()))


def resolve(extras: tuple[str, ...], target: Path, *options: str) -> None:
    """Writes the lock file of some extras."""
    chosen = [f"--extra={name}" for name in extras]
    command = ["uv", "pip", "compile", "pyproject.toml", *chosen, *OPTIONS, *options]
    subprocess.run([*command, "-o", str(target)], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
