"""Takes fenced blocks out of the pages of the documentation."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
_BLOCK = re.compile(r"^```([^\n`]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEX = re.compile(r"((?:[0-9a-f]{2} )*[0-9a-f]{2})(?:  .*)?$")


def blocks(page: str, kind: str) -> list[str]:
    """Returns the text of all blocks of a kind, which is what stands behind the three signs."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [body for info, body in _BLOCK.findall(text) if info.strip() == kind]


def only_block(page: str, kind: str) -> str:
    """Returns the text of the one block of a kind."""
    (body,) = blocks(page, kind)
    return body


def hex_bytes(block: str) -> bytes:
    """Returns the bytes at the beginnings of the lines; a line that is indented has none."""
    matches = [_HEX.match(line) for line in block.splitlines() if not line.startswith(" ")]
    assert all(matches), "a line is neither bytes nor indented"
    return b"".join(bytes.fromhex(match[1]) for match in matches if match is not None)
