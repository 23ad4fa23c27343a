"""A function of the user as an output."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from forebay.forward import encoding
from forebay.forward.outputs import (
    Again,
    Answer,
    Batch,
    Context,
    Delivered,
    Gap,
    Mixed,
    Record,
    Refused,
)


class FunctionOutput:
    """Calls a function with each batch; what it returns without an error is delivered.

    It may raise `OutputRefused` to say that it will never take these records; any other exception
    means "again later". It may also return an answer of `forebay.forward.outputs`.

    - `takes_key`: a repeat under the same `batch.key` changes nothing.
    - `on_gap`: called with a batch that has a `gap` and no records; None: gaps are only logged.
    """

    records_max: int | None = None

    def __init__(
        self,
        function: Callable[[Batch], Answer | None],
        *,
        takes_key: bool = False,
        on_gap: Callable[[Batch], Answer | None] | None = None,
    ) -> None:
        self._function = function
        self._on_gap = on_gap
        self.takes_key = takes_key
        self.name = getattr(function, "__qualname__", None) or repr(function)

    def encode(self, records: Sequence[Record], context: Context) -> bytes:
        """Returns the records with their sizes: only the check of a repeat needs it."""
        sizes = [b"%d:" % len(record.value) for record in records]
        values = [record.value for record in records]
        return b"".join([part for pair in zip(sizes, values, strict=True) for part in pair])

    def encode_gap(self, gap: Gap, context: Context) -> bytes | None:
        """Returns the gap as JSON, if the user wants to know of it."""
        return None if self._on_gap is None else encoding.gap_document(gap, context)

    def send(self, batch: Batch) -> Answer:
        """Calls the function."""
        function = self._function if batch.gap is None else self._on_gap
        assert function is not None
        answer = function(batch)
        if answer is None:
            return Delivered()
        if isinstance(answer, Delivered | Again | Refused | Mixed):
            return answer
        raise TypeError(f"{self.name} returned {answer!r:.80}; return None if it took the batch")

    def close(self) -> None:
        """Does nothing."""
