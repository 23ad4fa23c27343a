"""Sends batches to Elasticsearch or OpenSearch by `_bulk`.

Every document has an `_id` that says which record it is, and the action is `create` wherever the
event does not ask for another: so a repeat finds it there (409) and changes nothing. The answer has
a status for each item, and each is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from forebay.errors import InvalidOption
from forebay.forward import encoding
from forebay.forward.http import HttpOutput, judge
from forebay.forward.outputs import (
    Again,
    Answer,
    Batch,
    Context,
    Delivered,
    EventRecord,
    Gap,
    Mixed,
    Record,
)
from forebay.forward.sources import time_text

_ANSWER_BYTES = 256 << 20
_WORDS_MAX = 300
_TIMESTAMP = re.compile(rb'"@timestamp"\s*:')
# The whole cluster takes no writes, as on a full disk: that says nothing on the document.
_OUTAGES = ("cluster_block_exception",)
_AGAIN = 429


class BulkOutput(HttpOutput):
    """Sends each batch as one `_bulk` request.

    - `url`: ends in `/_bulk`, or in `/INDEX/_bulk`.
    - `index`: of documents that name none; None: the one in the address, or, for events, that of
      their Beat. A data stream is named like an index.
    - Other options are those of `HttpOutput`.
    """

    def __init__(self, url: str, *, index: str | None = None, **options: Any) -> None:
        super().__init__(url, key_header=None, **options)
        path = self._target.partition("?")[0]
        if not path.endswith("/_bulk"):
            raise InvalidOption(f"{self.name}: the address of a bulk output ends in /_bulk")
        # By the ids of the documents.
        self.takes_key = True
        self._index = index
        self._has_index = path.count("/") > 1

    def encode(self, records: Sequence[Record], context: Context) -> bytes:
        """Returns the action and the document of each record."""
        return b"".join([part for record in records for part in self._item(record, context)])

    def encode_gap(self, gap: Gap, context: Context) -> bytes | None:
        """Returns a document that tells of a gap."""
        place = f"lost-{gap.number}" if gap.first is None else f"gap-{gap.first}-{gap.end}"
        action = {
            "_id": f"{context.queue}-{context.incarnation}-{place}",
            **self._named(None, None),
        }
        document = encoding.with_field(
            encoding.gap_document(gap, context), b'"@timestamp":"1970-01-01T00:00:00.000Z"'
        )
        return b'{"create":' + msgspec.json.encode(action) + b"}\n" + document + b"\n"

    def send(self, batch: Batch) -> Answer:
        """Sends a batch and judges each item of the answer."""
        status, headers, words = self._exchange(batch.body, batch.key, _ANSWER_BYTES)
        whole = judge(status, headers, words)
        if not isinstance(whole, Delivered):
            return whole
        try:
            answer = msgspec.json.decode(words)
            items = [next(iter(item.items())) for item in answer["items"]]
            statuses = [(action, result["status"], result) for action, result in items]
        except (msgspec.DecodeError, TypeError, KeyError, AttributeError, StopIteration) as error:
            return Again(f"HTTP {status}, but the answer is not that of _bulk: {error!r:.100}")
        count = max(1, len(batch.records))
        if len(statuses) != count:
            return Again(f"the answer has {len(statuses)} items for {count} documents")
        return _judge_items(statuses)

    def _content_type(self) -> str:
        return "application/x-ndjson"

    def _item(self, record: Record, context: Context) -> tuple[bytes, ...]:
        action, document = "create", record.value
        meta: dict[str, Any] = {"_id": f"{context.queue}-{context.incarnation}-{_place(record)}"}
        if isinstance(record, EventRecord):
            given = msgspec.json.decode(record.meta)
            action = given.get("op_type") if given.get("op_type") in _ACTIONS else "create"
            if isinstance(given.get("_id"), str) and given["_id"]:
                meta["_id"] = given["_id"]
            if isinstance(given.get("pipeline"), str) and given["pipeline"]:
                meta["pipeline"] = given["pipeline"]
            meta |= self._named(_index_of(given, record.time_ms), record)
        else:
            document = _with_time(encoding.as_object(record.value), record.time_ms)
            meta |= self._named(None, None)
        head = b'{"%b":%b}\n' % (action.encode(), msgspec.json.encode(meta))
        return (head,) if action == "delete" else (head, document, b"\n")

    def _named(self, index: str | None, event: EventRecord | None) -> dict[str, str]:
        """Returns the index of an action; nothing if that of the address counts."""
        found = index or self._index
        if found is None and not self._has_index:
            found = _index_of_beat(event)
            if found is None:
                raise InvalidOption(
                    f"{self.name}: a record names no index; give one (index=…, --index), or an "
                    "address that ends in /INDEX/_bulk"
                )
        return {} if found is None else {"_index": found}


_ACTIONS = ("create", "index", "delete")


def _judge_items(statuses: Sequence[tuple[str, int, dict[str, Any]]]) -> Answer:
    again: dict[int, str] = {}
    refused: dict[int, str] = {}
    for number, (action, status, result) in enumerate(statuses):
        if 200 <= status < 300 or (status == 409 and action == "create"):
            continue
        if status == 404 and action == "delete":
            # It is gone, as the event asks.
            continue
        error = result.get("error")
        words = f"{status}: {json.dumps(error)}"[:_WORDS_MAX]
        kind = error.get("type") if isinstance(error, dict) else None
        if 400 <= status < 500 and status != _AGAIN and kind not in _OUTAGES:
            refused[number] = words
        else:
            again[number] = words
    if not again and not refused:
        return Delivered()
    return Mixed(again, refused)


def _place(record: Record) -> str:
    """Returns the part of an id that names the record in its queue."""
    if isinstance(record, EventRecord):
        return f"{record.offset >> 32}-{record.offset & 0xFFFFFFFF}"
    return str(record.offset)


def _index_of(meta: dict[str, Any], time_ms: int) -> str | None:
    """Returns the index that an event names, as Filebeat's output takes it."""
    if isinstance(meta.get("alias"), str) and meta["alias"]:
        return str(meta["alias"])
    if isinstance(meta.get("index"), str) and meta["index"]:
        moment = datetime.fromtimestamp(time_ms // 1000, UTC)
        return f"{meta['index']}-{moment.year}.{moment.month:02}.{moment.day:02}"
    raw = meta.get("raw_index")
    return raw if isinstance(raw, str) and raw else None


def _index_of_beat(event: EventRecord | None) -> str | None:
    """Returns the data stream to which a Beat sends by default: its name and version."""
    if event is None:
        return None
    agent = msgspec.json.decode(event.value).get("agent")
    if not isinstance(agent, dict) or not agent.get("version"):
        return None
    return f"{agent.get('type') or agent.get('name')}-{agent['version']}"


def _with_time(document: bytes, time_ms: int | None) -> bytes:
    """Returns a document that has a `@timestamp`, which data streams need."""
    if time_ms is None:
        return document
    # Only an object that may have one is parsed.
    if _TIMESTAMP.search(document) and "@timestamp" in msgspec.json.decode(document):
        return document
    return encoding.with_field(document, b'"@timestamp":"%b"' % time_text(time_ms))
