"""The result of an audit as one HTML page that needs nothing else: no script, no network.

A map has a strip for each queue and a cell for each of its files, as wide as the file is large,
in the colour of the worst that was found in it. Colour is never alone: what is wrong is also listed
with file and byte, and each cell tells its file as its title. A page of many queues shows those
with findings first and leaves the rest of the good ones out, and says how many.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape

from forebay.pipelines.maintenance.audit import (
    WORDS,
    Audit,
    AuditedFile,
    AuditedPlace,
    AuditedQueue,
    AuditFinding,
)
from forebay.queues.shared.reports import plural, size_text

_STRIPS_MAX = 300
_CELLS_MAX = 150
_FINDINGS_MAX = 2000
_PLACES_MAX = 500
_MEANINGS = {
    "ok": "every checksum verified",
    "damage": "bytes that do not verify",
    "gap": "records are missing here",
    "torn": "unfinished end, costs nothing",
    "unverifiable": "no checksums to verify",
    "unreadable": "cannot be read",
}
_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c2330; --faint: #5d6778; --line: #d8dde6;
  --ok: #2f9e6e; --damage: #d3323f; --gap: #8d1fb0; --torn: #c98a00; --unverifiable: #98a1b0;
  --unreadable: #d3323f; --good: #e5f5ee; --bad: #fdeaec; }
@media (prefers-color-scheme: dark) { :root { --paper: #12161d; --ink: #e8ecf3; --faint: #9aa5b6;
  --line: #2c3442; --ok: #3fbf88; --damage: #ff6470; --gap: #c77dff; --torn: #f0b429;
  --unverifiable: #6b7687; --unreadable: #ff6470; --good: #12312a; --bad: #3a1a1f; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 72rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2.5rem 0 .5rem; }
p { margin: .25rem 0; } .faint { color: var(--faint); }
.verdict { padding: .75rem 1rem; border-radius: .5rem; margin: 1rem 0; font-weight: 600; }
.verdict.good { background: var(--good); } .verdict.bad { background: var(--bad); }
.facts { display: flex; flex-wrap: wrap; gap: .25rem 2rem; margin: 1rem 0; }
.facts b { display: block; font-size: 1.3rem; font-variant-numeric: tabular-nums; }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; margin: .5rem 0 1rem; }
.legend i { display: inline-block; width: .9em; height: .9em; border-radius: 2px;
  margin-right: .4em; vertical-align: -.1em; }
.queue { display: grid; grid-template-columns: minmax(12rem, 22rem) 1fr; gap: .1rem 1rem;
  padding: .35rem 0; border-top: 1px solid var(--line); align-items: center; }
.name { overflow-wrap: anywhere; font: 13px/1.35 ui-monospace, monospace; }
.name small { display: block; color: var(--faint); font: 12px/1.35 system-ui, sans-serif; }
.strip { display: flex; gap: 1px; height: 1.4rem; min-width: 0; }
.strip i { min-width: 2px; flex-shrink: 1; flex-basis: 0; border-radius: 2px; }
.ok { background: var(--ok); } .damage { background: var(--damage); }
.torn { background: var(--torn); } .unverifiable { background: var(--unverifiable); }
.gap { background: repeating-linear-gradient(45deg, var(--gap) 0 4px, var(--paper) 4px 6px); }
.unreadable { background: repeating-linear-gradient(-45deg, var(--unreadable) 0 4px,
  var(--paper) 4px 8px); }
.strip .damage, .strip .gap, .strip .unreadable { min-width: 7px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; }
th, td { text-align: left; padding: .35rem .75rem .35rem 0; border-top: 1px solid var(--line);
  vertical-align: top; }
th { color: var(--faint); font-weight: 500; border-top: 0; white-space: nowrap; }
td.path { font: 13px/1.4 ui-monospace, monospace; overflow-wrap: anywhere; min-width: 11rem; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.what { white-space: nowrap; } td.wrong { color: var(--damage); font-weight: 600; }
@media (max-width: 42rem) { body { padding: 1.25rem .9rem 3rem; }
  .queue { grid-template-columns: 1fr; } .strip { height: 1.7rem; }
  .findings th, .findings td.rare, .findings td:empty { display: none; }
  .findings tr { display: flex; flex-wrap: wrap; gap: 0 .9rem; padding: .4rem 0;
    border-top: 1px solid var(--line); }
  .findings td { border: 0; padding: 0; } .findings td.path, .findings td.why { flex-basis: 100%; }
  .findings td.number::before { content: attr(data-name) " "; color: var(--faint); } }
"""


def html(audit: Audit) -> str:
    """Returns the page."""
    files: dict[str, list[AuditedFile]] = defaultdict(list)
    for file in audit.files:
        files[file.queue].append(file)
    findings: dict[str, list[AuditFinding]] = defaultdict(list)
    for finding in audit.findings:
        findings[finding.queue].append(finding)
    when = datetime.fromtimestamp(audit.time, UTC).isoformat(" ", "seconds").replace("+00:00", "Z")
    parts = [
        f"<h1>Audit of {plural(len(audit.queues), 'queue')}</h1>",
        f'<p class="faint">{escape(", ".join(audit.paths))} · {when}</p>',
        _verdict(audit),
        _facts(audit),
        _findings(audit.findings),
        "<h2>Files</h2>",
        _legend(),
        _map(audit.queues, files, findings),
        _places(audit.places),
    ]
    title = f"Audit: {'something is wrong' if audit.wrong else 'nothing is wrong'}"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _verdict(audit: Audit) -> str:
    if not audit.wrong:
        return '<p class="verdict good">Every checksum verified; nothing is wrong.</p>'
    queues = len({finding.queue for finding in audit.findings if finding.wrong})
    text = f"{plural(audit.wrong, 'finding')} in {plural(queues, 'queue')}: something is wrong."
    return f'<p class="verdict bad">{text}</p>'


def _facts(audit: Audit) -> str:
    size = sum(queue.bytes for queue in audit.queues)
    facts = {
        "good records": f"{sum(queue.records for queue in audit.queues):,}",
        "files": f"{len(audit.files):,}",
        "verified": size_text(size - sum(queue.unverified_bytes for queue in audit.queues)),
        "without checksums": size_text(sum(queue.unverified_bytes for queue in audit.queues)),
        "seconds": f"{audit.seconds:,.1f}",
    }
    cells = (
        f'<div><b>{value}</b><span class="faint">{name}</span></div>'
        for name, value in facts.items()
    )
    return f'<div class="facts">{"".join(cells)}</div>'


def _findings(found: Sequence[AuditFinding]) -> str:
    if not found:
        return ""
    ordered = sorted(found, key=lambda one: (not one.wrong, WORDS.index(one.what), one.queue))
    rows = []
    for finding in ordered[:_FINDINGS_MAX]:
        where = f"{finding.queue}/{finding.file}" if finding.file else finding.queue
        count = "unknown" if finding.count is None and finding.what == "damage" else finding.count
        rows.append(
            f'<tr><td class="what{" wrong" if finding.wrong else ""}">{finding.what}</td>'
            f'<td class="path">{escape(where)}</td>'
            f'<td class="number rare">{finding.position:,}</td>'
            f'<td class="number rare">{finding.length:,}</td>'
            f'<td class="number" data-name="offset">{_number(finding.offset)}</td>'
            f'<td class="number" data-name="records">{_number(count)}</td>'
            f'<td class="why">{escape(finding.reason)}</td></tr>'
        )
    head = (
        '<tr><th>what</th><th>where</th><th class="rare">byte</th><th class="rare">bytes</th>'
        "<th>offset</th><th>records</th><th>why</th></tr>"
    )
    table = f'<table class="findings">{head}{"".join(rows)}</table>'
    return (
        f'<h2>Findings</h2><div class="scroll">{table}</div>'
        f"{_more(len(ordered) - len(rows), 'finding')}"
    )


def _legend() -> str:
    items = (f'<span><i class="{name}"></i>{text}</span>' for name, text in _MEANINGS.items())
    return f'<div class="legend faint">{"".join(items)}</div>'


def _map(
    queues: Sequence[AuditedQueue],
    files: dict[str, list[AuditedFile]],
    findings: dict[str, list[AuditFinding]],
) -> str:
    ordered = sorted(queues, key=lambda one: (not one.wrong, not findings[one.queue], one.queue))
    strips = [
        _strip(queue, files[queue.queue], findings[queue.queue]) for queue in ordered[:_STRIPS_MAX]
    ]
    return "\n".join(strips) + _more(len(ordered) - len(strips), "queue")


def _strip(
    queue: AuditedQueue, files: Sequence[AuditedFile], findings: Sequence[AuditFinding]
) -> str:
    cells = _cells(files)
    known = {file.file for file in files}
    # Wrong files that hold no records, such as a queue's small files, and those that are missing.
    others = {one.file or "the directory": one for one in findings if one.wrong}
    for name, finding in others.items():
        if name not in known:
            cells.append(_cell(finding.what, 0, f"{name}: {finding.reason}"))
        elif finding.what == "gap":
            cells.insert(_after(files, name, len(cells)), _cell("gap", 0, finding.reason))
    kind = f"{queue.kind}, {queue.state} · " if queue.kind else ""
    told = f"{kind}{plural(queue.records, 'record')} · {size_text(queue.bytes)}"
    return (
        f'<div class="queue"><div class="name">{escape(queue.queue)}<small>{told}</small></div>'
        f'<div class="strip">{"".join(cells)}</div></div>'
    )


def _cells(files: Sequence[AuditedFile]) -> list[str]:
    """Returns a cell for each file, or for some files in a row if there are very many."""
    step = -(-len(files) // _CELLS_MAX) or 1
    cells = []
    for first in range(0, len(files), step):
        group = files[first : first + step]
        states = [file.state if file.state in _MEANINGS else "ok" for file in group]
        worst = min(states, key=(*WORDS, "ok").index)
        # A gap is where bytes are missing: it has a cell of its own after the file.
        shown = "ok" if worst == "gap" and step == 1 else worst
        names = group[0].file if len(group) == 1 else f"{group[0].file} to {group[-1].file}"
        size = sum(file.bytes for file in group)
        cells.append(_cell(shown, size, f"{names}: {size_text(size)}, {_MEANINGS[worst]}"))
    return cells


def _after(files: Sequence[AuditedFile], name: str, cells: int) -> int:
    index = next(number for number, file in enumerate(files) if file.file == name)
    return index + 1 if len(files) <= _CELLS_MAX else cells


def _cell(state: str, size: int, title: str) -> str:
    state = state if state in _MEANINGS else "damage"
    return f'<i class="{state}" style="flex-grow:{max(size, 1)}" title="{escape(title)}"></i>'


def _places(places: Sequence[AuditedPlace]) -> str:
    if not places:
        return ""
    states = {"beyond": 0, "missed": 1, "ok": 2}
    ordered = sorted(places, key=lambda one: (states[one.state], -one.lag, one.queue))
    rows = [
        f'<tr><td class="path">{escape(place.queue)}</td><td>{escape(place.name)}</td>'
        f'<td class="number">{place.offset:,}</td><td class="number">{place.lag:,}</td>'
        f'<td class="what{" wrong" if place.state == "beyond" else ""}">{place.state}</td></tr>'
        for place in ordered[:_PLACES_MAX]
    ]
    head = "<tr><th>queue</th><th>reader</th><th>offset</th><th>lag</th><th>state</th></tr>"
    return (
        f'<h2>Places of readers</h2><div class="scroll"><table>{head}{"".join(rows)}</table></div>'
        + _more(len(ordered) - len(rows), "place")
    )


def _more(count: int, noun: str) -> str:
    if count <= 0:
        return ""
    return f'<p class="faint">{plural(count, f"more {noun}")} not shown here.</p>'


def _number(value: int | str | None) -> str:
    return f"{value:,}" if isinstance(value, int) else value or ""
