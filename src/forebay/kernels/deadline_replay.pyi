from typing import Any

from forebay.kernels.deadline_memory import Memory

def replay(memory: Memory, records: list[Any]) -> None: ...
