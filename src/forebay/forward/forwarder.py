"""The forwarder: joins a source, an output and a state.

One thread reads, encodes, writes down and decides; others only call `Output.send`. So all that a
crash may interrupt is in one order: the cut is written, the batch is sent, the answer comes, the
slot says that it is settled, the queue is told.

A *piece* is what is sent at once: some consecutive records, or a gap. The pieces that are not
settled are in a window, in the order of the queue. The first `in_flight` of them may be on their
way; one more is read and encoded meanwhile.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from queue import Empty as NoAnswer
from queue import SimpleQueue

from forebay.clock import BootClock
from forebay.errors import DataLoss, ForebayError, InvalidOption, OutputRefused, ServerGone
from forebay.forward.options import ForwardOptions
from forebay.forward.outputs import (
    Again,
    Answer,
    Batch,
    Context,
    Delivered,
    Gap,
    Mixed,
    Output,
    Record,
    Refused,
)
from forebay.forward.sources import Bounds, Source
from forebay.forward.state import CUTS_MAX, Cut, Settled, State
from forebay.kernels.buffers import crc32
from forebay.queues.shared.forwarding import Live

_logger = logging.getLogger(__name__)
_RETRY_AFTER_SECONDS_MAX = 3600.0
_COMMIT_SECONDS = 0.25
_LIVE_SECONDS = 1.0
# The longest that an idle forwarder waits before it looks at its orders again.
_WAIT_SECONDS = 0.5
# Pieces in memory; those after the ones in flight are settled, and hold no bytes.
_WINDOW_MAX = CUTS_MAX // 2 - 1
_MESSAGE_SECONDS = 60.0
_UNSENT_SECONDS = 1.0
_REASON_MAX = 500
# A batch is read again by its bounds, whatever its size.
_NO_BOUND = 1 << 62


@dataclass(slots=True, eq=False)
class Piece:
    """What is sent at once: records, or a gap."""

    records: Sequence[Record]
    body: bytes
    # Its numbers; None: a gap whose numbers are not known.
    first: int | None
    end: int | None
    gap: Gap | None = None
    cut: Cut | None = None
    generation: int = 1
    attempts: int = 0
    due_ms: int = 0
    flying: bool = False
    settled: bool = False
    # A gap that the output cannot be told of: it is settled in its turn.
    silent: bool = False
    # The records that are left after an answer for single ones, by index; None: all of them.
    left: list[int] | None = None
    refused: int = 0


class Forwarder:
    """Sends the records of a source to an output. One thread runs it; any thread may `stop` it."""

    def __init__(
        self,
        source: Source,
        output: Output,
        state: State,
        options: ForwardOptions,
        clock: BootClock,
        *,
        name: str = "forward",
        limit: int | None = None,
        pause: Callable[[float], None] | None = None,
        shuffle: Callable[[], float] = random.random,
    ) -> None:
        """`limit`: how many records to settle at most; `pause`: waits between two attempts."""
        if options.in_flight > 1 and not output.takes_key:
            raise InvalidOption(
                f"in_flight = {options.in_flight}: {output.name} takes no key, so batches go one "
                "after the other; leave it at 1"
            )
        if options.ttl_seconds is not None and source.kind != "log":
            raise InvalidOption(
                f"ttl_seconds = {options.ttl_seconds}: {source.path} is not a log; fifos have it"
            )
        self._source = source
        self._output = output
        self._state = state
        self._options = options
        self._clock = clock
        self._pause = pause
        self._shuffle = shuffle
        self.name = name
        self._settled = self._begin()
        self._context = Context(self._settled.queue, source.incarnation)
        self._window: deque[Piece] = deque()
        # What may have been sent before a crash.
        self._owed = deque(self._settled.cuts)
        # Records that were read and do not fill a batch yet, and a gap that follows them.
        self._pending: list[Record] = []
        self._pending_bytes = 0
        self._pending_since_ms = 0
        self._pending_full = False
        self._next_gap: Gap | None = None
        self._gap_number = self._settled.dropped + self._settled.damaged
        self._hurry = False
        self._left = limit
        self._answers: SimpleQueue[tuple[Piece, Answer] | None] = SimpleQueue()
        self._orders: SimpleQueue[tuple[Piece, Batch] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._stopping = threading.Event()
        self._too_large = 0
        # The records of batches that are not settled which were set aside.
        self._refused: set[int] = set()
        self._changed = False
        self._committed = -1
        self._due_ms = {"commit": 0, "live": 0, "unsent": 0, "message": 0}
        self._failing_since_ms: int | None = None
        self._message = ""
        self._last_error: tuple[str, int] | None = None
        self._rate = 0.0
        self._rate_from = (clock.boot_ms(), self._settled.delivered)

    @property
    def settled(self) -> Settled:
        """What is settled; any thread may read it."""
        return self._settled

    @property
    def is_failing(self) -> bool:
        """Whether the last attempt failed."""
        return self._failing_since_ms is not None

    def run(self, *, until_empty: bool = False) -> None:
        """Forwards until it is stopped, or until nothing waits; raises what ends it."""
        self._hurry = until_empty
        looked = False
        try:
            while not self._stopping.is_set():
                try:
                    self._fill()
                except ServerGone as error:
                    # The next call starts another server.
                    _logger.warning("%s: %s", self.name, error)
                self._advance()
                self._launch()
                if self._window:
                    self._wait()
                    self._commit_if_due()
                    continue
                self._rest()
                if until_empty and self._source.kind == "fifo" and not looked:
                    # What has left it unseen is told at the end too.
                    self._due_ms["unsent"], looked = 0, True
                    continue
                if (self._left is not None and self._left <= 0) or (
                    until_empty and not self._owed and not self._pending
                ):
                    return
                self._tell("idle")
                with contextlib.suppress(ServerGone):
                    self._source.wait(self._idle_seconds())
        finally:
            self._end()

    def stop(self) -> None:
        """Makes `run` return soon; a request under way is repeated by the next one."""
        self._stopping.set()
        self._answers.put(None)

    # The beginning and the end.

    def _begin(self) -> Settled:
        """Finds the place to go on from."""
        source, found = self._source, self._state.settled
        queue_id = source.queue_id
        if found is None:
            dropped, damaged = source.unsent()
            start, place = source.start()
            found = Settled(
                queue_id or self._state.new_id(),
                source.incarnation,
                start,
                place,
                told_dropped=dropped,
                told_damaged=damaged,
            )
            self._state.begin(found)
        elif queue_id is not None and found.queue_id != queue_id:
            raise DataLoss(
                f"{self._state.path} is the state for queue {found.queue}, and {source.path} is "
                f"queue {queue_id.hex()}: it was made again. Give a new state directory"
            )
        source.seek(found.place)
        return found

    def _end(self) -> None:
        for _ in self._threads:
            self._orders.put(None)
        with contextlib.suppress(ForebayError, OSError):
            self._rest()
        self._tell("stopped", now=True)

    def _rest(self) -> None:
        """Writes down what was put off while batches followed one another."""
        if self._changed:
            self._save()
        self._commit_if_due(now=True)

    def _save(self) -> None:
        """Writes the slot: the place, the counts, and what may be on its way."""
        cuts = tuple(piece.cut for piece in self._window if piece.cut is not None)
        end = self._state.set_aside_end
        self._settled = replace(self._settled, cuts=cuts + tuple(self._owed), set_aside_end=end)
        self._state.save(self._settled)
        self._changed = False

    def _commit_if_due(self, *, now: bool = False) -> None:
        """Tells the queue what is settled; only what the slot says."""
        place = self._state.settled.place if self._state.settled is not None else 0
        if place <= self._committed:
            return
        if not now and not self._source.eager and not self._comes_due("commit", _COMMIT_SECONDS):
            return
        try:
            self._source.commit(place)
            self._committed = place
        except (ServerGone, OSError) as error:
            # The slot is what counts; the queue is told the next time.
            _logger.warning("%s: the place in the queue is not moved yet: %s", self.name, error)

    def _comes_due(self, name: str, seconds: float) -> bool:
        now_ms = self._clock.boot_ms()
        if now_ms < self._due_ms[name]:
            return False
        self._due_ms[name] = now_ms + round(seconds * 1000)
        return True

    # Reading and encoding.

    def _fill(self) -> None:
        """Reads and encodes until the window has what may be sent, and one piece more."""
        while len(self._window) < _WINDOW_MAX:
            if sum(not piece.settled for piece in self._window) > self._options.in_flight:
                return
            piece = self._next_piece()
            if piece is None:
                return
            self._window.append(piece)
            if self._left is not None:
                self._left -= len(piece.records)

    def _next_piece(self) -> Piece | None:
        """Returns what comes next; what may have been sent before a crash comes as it was cut."""
        while self._owed:
            cut = self._owed[0]
            if cut.gap and not cut.numbered:
                self._owed.popleft()
                if not cut.settled:
                    self._gap_number = cut.first
                    return self._piece_of_gap(Gap(cut.count, cut.dropped))
            elif cut.gap or cut.end <= self._settled.place:
                # A gap in the numbers is found again where it is.
                self._owed.popleft()
            else:
                piece = self._gather(cut.first) or self._owed_piece(cut)
                if piece is not None:
                    return piece
        if self._left is not None and self._left <= 0:
            return None
        return self._unseen_gap() or self._gather(None)

    def _owed_piece(self, cut: Cut) -> Piece | None:
        """Returns a batch as it was cut before a crash; None if nothing of it is there any more."""
        found = self._source.read(Bounds(cut.count, _NO_BOUND, end=cut.end))
        if found.gap is not None:
            return self._piece_of_gap(found.gap)
        self._owed.popleft()
        if not found.records:
            return None
        piece = self._piece_of(found.records)
        if cut.settled:
            return Piece((), b"", cut.first, cut.end, cut=cut, settled=True)
        if self._cut_of(piece, cut.incarnation, cut.generation) == cut:
            piece.cut = cut
            return piece
        _logger.warning(
            "%s: records %d to %d may arrive twice: they were sent before, and cannot be sent with "
            "the same bytes again",
            *(self.name, cut.first, cut.end - 1),
        )
        piece.generation = cut.generation + 1
        return piece

    def _gather(self, end: int | None) -> Piece | None:
        """Reads on; returns the next batch if it is full, or has waited long enough."""
        while self._next_gap is None and not self._pending_full:
            most, size = self._bounds()
            count = len(self._pending)
            bounds = Bounds(most - count, size - self._pending_bytes, 0 if count else 1, end)
            found = self._source.read(bounds)
            if found.records and not count:
                self._pending_since_ms = self._clock.boot_ms()
            self._pending += found.records
            self._pending_bytes += found.size
            self._next_gap = found.gap
            self._pending_full = found.more
            if not found.records:
                break
        if self._options.ttl_seconds is not None and end is None:
            expired = self._expired()
            if expired is not None:
                return expired
        if not self._pending:
            self._pending_full = False
            gap, self._next_gap = self._next_gap, None
            return None if gap is None else self._piece_of_gap(gap)
        waits = not (self._pending_full or self._next_gap or self._hurry or end is not None)
        if waits and (self._window or self._idle_seconds() > 0):
            return None
        records, self._pending = self._pending, []
        self._pending_bytes, self._pending_full = 0, False
        return self._piece_of(records)

    def _bounds(self) -> tuple[int, int]:
        bounds = [self._options.batch_records, self._source.records_max, self._output.records_max]
        count = min(each for each in [*bounds, self._left] if each is not None)
        size = self._options.batch_bytes
        return max(1, count), min(size, self._settled.batch_bytes or size)

    def _idle_seconds(self) -> float:
        """Returns how long to wait for more; 0 if a batch has waited long enough."""
        if not self._pending:
            return _WAIT_SECONDS
        waited = (self._clock.boot_ms() - self._pending_since_ms) / 1000
        return min(_WAIT_SECONDS, max(0.0, self._options.batch_seconds - waited))

    def _expired(self) -> Piece | None:
        """Returns the records at the front that are older than the user wants, as a gap."""
        assert self._options.ttl_seconds is not None
        oldest_ms = self._clock.now_ms() - round(self._options.ttl_seconds * 1000)
        count = 0
        for record in self._pending:
            if record.time_ms is None or record.time_ms >= oldest_ms:
                break
            count += 1
        if not count:
            return None
        first, end = self._pending[0].offset, self._pending[count - 1].offset + 1
        del self._pending[:count]
        self._pending_bytes = sum(len(record.value) for record in self._pending)
        self._pending_full = self._pending_full and bool(self._pending)
        return self._piece_of_gap(Gap(count, True, first, end))

    def _unseen_gap(self) -> Piece | None:
        """Returns what has left a fifo unseen since the last gap record."""
        if self._source.kind != "fifo" or not self._comes_due("unsent", _UNSENT_SECONDS):
            return None
        dropped, damaged = self._source.unsent()
        news = dropped - self._settled.told_dropped, damaged - self._settled.told_damaged
        if max(news) <= 0 or any(piece.gap for piece in self._window):
            return None
        self._due_ms["unsent"] = 0
        return self._piece_of_gap(Gap(news[0] or news[1], dropped=bool(news[0])))

    def _piece_of(self, records: Sequence[Record]) -> Piece:
        body = self._output.encode(records, self._context)
        return Piece(records, body, records[0].offset, records[-1].offset + 1)

    def _piece_of_gap(self, gap: Gap) -> Piece:
        _logger.warning("%s: %d records were %s", self.name, gap.count, gap.reason)
        gap = replace(gap, number=self._gap_number)
        self._gap_number += gap.count
        body = self._output.encode_gap(gap, self._context)
        return Piece((), body or b"", gap.first, gap.end, gap, silent=body is None)

    def _cut_of(self, piece: Piece, incarnation: int, generation: int) -> Cut:
        """Returns the bounds of a piece, as they are written down."""
        gap = piece.gap
        if piece.first is None or piece.end is None:
            assert gap is not None
            # Such gaps are numbered by what they count.
            bounds = gap.number, gap.number + gap.count
        else:
            bounds = piece.first, piece.end
        return Cut(
            *(*bounds, len(piece.records) if gap is None else gap.count),
            *(len(piece.body), crc32(piece.body), incarnation, generation),
            gap=gap is not None,
            dropped=gap is not None and gap.dropped,
            numbered=piece.first is not None,
        )

    # Sending, and what the output says.

    def _launch(self) -> None:
        """Sends what is due; what was not sent before is written down first."""
        now_ms = self._clock.boot_ms()
        due = [each for each in self._active() if not each.flying and each.due_ms <= now_ms]
        new = [piece for piece in due if piece.cut is None]
        for piece in new:
            piece.cut = self._cut_of(piece, self._source.incarnation, piece.generation)
        if new or (self._changed and not due):
            self._save()
        for piece in due:
            piece.flying = True
            self._orders.put((piece, self._batch(piece)))
        while len(self._threads) < self._options.in_flight:
            thread = threading.Thread(target=self._send, name=f"forebay-{self.name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _active(self) -> list[Piece]:
        """Returns the pieces that may be on their way."""
        left = [each for each in self._window if not each.settled and not each.silent]
        return left[: self._options.in_flight]

    def _batch(self, piece: Piece) -> Batch:
        assert piece.cut is not None
        records, body, key = piece.records, piece.body, piece.cut.key(self._context.queue)
        if piece.left is not None:
            records = [piece.records[index] for index in piece.left]
            body = self._output.encode(records, self._context)
            key = f"{key}/part-{crc32(body):08x}"
        return Batch(
            *(self._context.queue, piece.cut.incarnation, key, records, body),
            gap=piece.gap,
            attempt=piece.attempts + 1,
        )

    def _send(self) -> None:
        """Sends on a thread of its own; an error of any kind means that the answer is not known."""
        while (order := self._orders.get()) is not None:
            piece, batch = order
            answer: Answer
            try:
                answer = self._output.send(batch)
            except OutputRefused as error:
                answer = Refused(str(error))
            except Exception as error:
                answer = Again(f"{type(error).__name__}: {error}")
            self._answers.put((piece, answer))

    def _wait(self) -> None:
        """Waits for an answer, or for the time of the next attempt."""
        active = self._active()
        flying = any(piece.flying for piece in active)
        now_ms = self._clock.boot_ms()
        due_ms = min((piece.due_ms for piece in active if not piece.flying), default=None)
        seconds = _WAIT_SECONDS if due_ms is None else max(0.0, (due_ms - now_ms) / 1000)
        self._tell("waiting" if self.is_failing else "sending")
        if not flying and self._pause is not None and active:
            self._pause(seconds)
            return
        try:
            # In steps: the time asleep of a suspended machine counts too.
            answer = self._answers.get(timeout=min(seconds, _WAIT_SECONDS)) if active else None
        except NoAnswer:
            return
        while answer is not None:
            self._judge(*answer)
            try:
                answer = self._answers.get_nowait()
            except NoAnswer:
                answer = None
        self._advance()

    def _judge(self, piece: Piece, answer: Answer) -> None:
        """Does what an answer asks for."""
        piece.flying = False
        if isinstance(answer, Again):
            self._fail(piece, answer.reason, answer.after_seconds)
            return
        if isinstance(answer, Mixed):
            self._judge_each(piece, answer)
        elif isinstance(answer, Refused):
            self._recover()
            self._refuse(piece, answer)
        elif isinstance(answer, Delivered):
            self._recover()
            self._count(piece)
        else:
            # A function of the user may return anything.
            self._fail(piece, f"the output answered {answer!r:.80}", None)

    def _judge_each(self, piece: Piece, answer: Mixed) -> None:
        left = range(len(piece.records)) if piece.left is None else piece.left
        refused = [(left[index], reason) for index, reason in answer.refused.items()]
        again = sorted(left[index] for index in answer.again)
        for index, reason in refused:
            self._set_aside(piece, piece.records[index], reason)
            piece.refused += 1
        if not again:
            self._recover()
            self._count(piece)
            return
        if len(again) < len(left):
            # Some went through: the others need not wait longer each time.
            piece.attempts = 0
        piece.left = again
        reason = next(iter(answer.again.values()))
        self._fail(piece, f"{len(again)} of {len(left)} items: {reason}", answer.after_seconds)

    def _refuse(self, piece: Piece, answer: Refused) -> None:
        """Halves a refused batch; sets a record aside that is alone."""
        count = len(piece.records) if piece.left is None else len(piece.left)
        if count <= 1:
            alone = piece.records[piece.left[0] if piece.left else 0] if piece.records else None
            self._set_aside(piece, alone, answer.reason)
            piece.refused += 1 if alone is not None else 0
            self._count(piece)
            return
        if answer.too_large:
            self._too_large += 1
            if self._too_large > 1:
                self._lower(piece)
        place = self._window.index(piece)
        del self._window[place]
        for half in reversed(self._halves(piece)):
            self._window.insert(place, half)
        self._changed = True

    def _halves(self, piece: Piece) -> list[Piece]:
        """Returns a refused batch as two; what was settled in it stays with its half."""
        records, left = piece.records, piece.left
        middle = len(records) // 2 if left is None else left[len(left) // 2]
        halves = [self._piece_of(records[:middle]), self._piece_of(records[middle:])]
        halves[0].end = halves[1].first
        halves[0].first, halves[1].end = piece.first, piece.end
        if left is not None:
            halves[0].left = [index for index in left if index < middle]
            halves[1].left = [index - middle for index in left if index >= middle]
            refused = self._refused_in(records[:middle])
            halves[0].refused, halves[1].refused = refused, piece.refused - refused
        return halves

    def _refused_in(self, records: Sequence[Record]) -> int:
        return sum(record.offset in self._refused for record in records)

    def _lower(self, piece: Piece) -> None:
        size = max(1, sum(len(record.value) for record in piece.records) // 2)
        if size < (self._settled.batch_bytes or self._options.batch_bytes):
            self._settled = replace(self._settled, batch_bytes=size)
            _logger.warning(
                "%s: %s takes no batches of %d bytes; they have at most %d from now on",
                *(self.name, self._output.name, len(piece.body), size),
            )

    def _set_aside(self, piece: Piece, record: Record | None, reason: str) -> None:
        """Adds a record to those that were refused; durable on return."""
        assert piece.cut is not None
        facts: dict[str, object] = {
            "reason": reason[:_REASON_MAX],
            "attempts": piece.attempts + 1,
            "key": piece.cut.key(self._context.queue),
            "output": self._output.name,
        }
        self._state.set_aside(record, piece.gap, facts)
        if record is not None:
            self._refused.add(record.offset)

    def _count(self, piece: Piece) -> None:
        """Counts a piece as settled."""
        settled, gap, refused = self._settled, piece.gap, piece.refused
        if gap is None:
            delivered = settled.delivered + len(piece.records) - refused
            settled = replace(settled, delivered=delivered, set_aside=settled.set_aside + refused)
        elif gap.dropped:
            settled = replace(settled, dropped=settled.dropped + gap.count)
        else:
            settled = replace(settled, damaged=settled.damaged + gap.count)
        if gap is not None and self._source.kind == "fifo":
            name = "told_dropped" if gap.dropped else "told_damaged"
            told: int = getattr(settled, name) + gap.count
            settled = replace(settled, **{name: told})  # type: ignore[arg-type]  # both are numbers
        if refused:
            self._refused.difference_update(record.offset for record in piece.records)
        self._settled = settled
        piece.settled = True
        piece.records, piece.body = (), b""
        if piece.cut is not None:
            piece.cut = replace(piece.cut, settled=True)
        self._changed = True

    def _advance(self) -> None:
        """Moves the place past what is settled at the front."""
        place = self._settled.place
        while self._window and (self._window[0].settled or self._window[0].silent):
            piece = self._window.popleft()
            if not piece.settled:
                self._count(piece)
            place = max(place, piece.end or 0)
        if place != self._settled.place:
            self._settled = replace(self._settled, place=place)

    # Failures.

    def _fail(self, piece: Piece, reason: str, after_seconds: float | None) -> None:
        """Plans the next attempt; says once that the output is away."""
        longest = self._options.retry_seconds_max
        delay = min(longest, self._options.retry_seconds * 2.0 ** min(piece.attempts, 60))
        delay *= 0.5 + self._shuffle() / 2
        if after_seconds is not None:
            delay = max(delay, min(after_seconds, _RETRY_AFTER_SECONDS_MAX))
        now_ms = self._clock.boot_ms()
        piece.attempts += 1
        piece.due_ms = now_ms + round(delay * 1000)
        reason = " ".join(reason.split())[:_REASON_MAX]
        self._last_error = reason, self._clock.now_ms()
        if self._failing_since_ms is None:
            self._failing_since_ms = now_ms
            self._complain(reason)
        elif reason != self._message and self._comes_due("message", _MESSAGE_SECONDS):
            self._complain(reason)

    def _complain(self, reason: str) -> None:
        self._message = reason
        self._due_ms["message"] = self._clock.boot_ms() + round(_MESSAGE_SECONDS * 1000)
        _logger.warning(
            "%s: %s does not take records: %s. Trying again until it does; nothing is dropped",
            *(self.name, self._output.name, reason),
        )

    def _recover(self) -> None:
        if self._failing_since_ms is not None:
            seconds = (self._clock.boot_ms() - self._failing_since_ms) / 1000
            self._failing_since_ms = None
            _logger.warning(
                "%s: %s takes records again, after %.1f s", self.name, self._output.name, seconds
            )

    # What others see.

    def live(self, state: str) -> Live:
        """Returns what it is doing, for people to look at."""
        settled, head = self._settled, self._window[0] if self._window else None
        error, error_ms = self._last_error or (None, None)
        next_ms = None
        if head is not None and head.attempts and not head.flying:
            next_ms = head.due_ms + self._clock.now_ms() - self._clock.boot_ms()
        try:
            lag = self._source.lag(settled.place)
        except ForebayError:
            lag = None
        return Live(
            name=self.name,
            queue=self._source.path,
            output=self._output.name,
            path=self._state.path,
            state=state,
            lag=lag,
            delivered=settled.delivered,
            set_aside=settled.set_aside,
            dropped=settled.dropped,
            damaged=settled.damaged,
            rate=round(self._rate, 1),
            attempts=head.attempts if head is not None else 0,
            last_error=error,
            last_error_ms=error_ms,
            next_try_ms=next_ms,
            updated_ms=self._clock.now_ms(),
        )

    def _tell(self, state: str, *, now: bool = False) -> None:
        """Publishes what it is doing, at most once a second."""
        if not self._comes_due("live", _LIVE_SECONDS) and not now:
            return
        now_ms, delivered = self._clock.boot_ms(), self._settled.delivered
        from_ms, before = self._rate_from
        if now_ms > from_ms:
            lately = (delivered - before) * 1000 / (now_ms - from_ms)
            self._rate = lately if self._rate == 0 else (self._rate + lately) / 2
            self._rate_from = now_ms, delivered
        self._state.tell(self.live(state))
