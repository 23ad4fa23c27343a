from datetime import datetime

class DeadlineItem:
    id: int
    value: bytes
    deadline_ms: int
    enqueue_ms: int
    requeue_ms: int
    dequeue_count: int
    buried: bool
    reason: str
    def __init__(
        self,
        id: int,
        value: bytes,
        deadline_ms: int,
        enqueue_ms: int,
        requeue_ms: int,
        dequeue_count: int,
        buried: bool = False,
        reason: str = "",
    ) -> None: ...
    @property
    def deadline(self) -> datetime: ...
    @property
    def token(self) -> tuple[int, int]: ...
    @property
    def key(self) -> tuple[int, int]: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...
