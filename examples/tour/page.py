"""A page as one HTML file: texts, tables and plots, with nothing fetched from elsewhere.

Scripts and styles are inside the page, and its policy allows only those, by their hashes. Without
JavaScript the page shows everything except the plots. uPlot draws the plots, see
`vendor/README.md`.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files

_STYLES = ("vendor/uPlot.min.css", "page.css")
_SCRIPTS = ("vendor/uPlot.iife.min.js", "page.js")

Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that was checked, and whether it holds."""

    holds: bool
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings; the first column names the row."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a plot; `color` is one of those in page.css."""

    label: str
    color: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Plot:
    """Lines over seconds."""

    title: str
    note: str
    seconds: Sequence[float]
    lines: Sequence[Line]


@dataclass(frozen=True, slots=True)
class Page:
    """The content of a page, from top to bottom."""

    title: str
    lead: str
    numbers: Sequence[tuple[Cell, str]]
    findings: Sequence[Finding]
    # A letter for each moment that the plots mark.
    marks: Sequence[tuple[str, float, str]]
    plots: Sequence[Plot]
    tables: Sequence[Table]
    settings: str

    def html(self) -> str:
        """Returns the whole file."""
        styles = [_asset(name) for name in _STYLES]
        scripts = [_asset(name) for name in _SCRIPTS]
        policy = (
            f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes(styles)}; "
            "base-uri 'none'; form-action 'none'"
        )
        return "".join(
            [
                '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
                f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n',
                '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
                '<meta name="color-scheme" content="light dark">\n',
                f"<title>{escape(self.title)}</title>\n",
                *(f"<style>{text}</style>\n" for text in styles),
                "</head>\n<body>\n<main>\n",
                *self._body(),
                "</main>\n",
                f'<script type="application/json" id="plots">{self._data()}</script>\n',
                *(f"<script>{text}</script>\n" for text in scripts),
                "</body>\n</html>\n",
            ]
        )

    def _body(self) -> Iterable[str]:
        yield f"<h1>{escape(self.title)}</h1>\n<p>{escape(self.lead)}</p>\n"
        yield '<dl class="numbers">\n'
        for value, label in self.numbers:
            yield f"<div><dt>{escape(label)}</dt><dd>{escape(cell_text(value))}</dd></div>\n"
        yield '</dl>\n<h2>What was claimed, and checked</h2>\n<ul class="findings">\n'
        for one in self.findings:
            verdict = "holds" if one.holds else "failed"
            yield (
                f'<li class="{verdict}"><strong>{verdict}</strong> '
                f"{escape(one.name)}<br><span>{escape(one.text)}</span></li>\n"
            )
        yield "</ul>\n<h2>What happened over time</h2>\n"
        yield "<noscript><p>The plots need JavaScript. Their numbers are below.</p></noscript>"
        for number, plot in enumerate(self.plots):
            yield (
                f"<figure><figcaption><strong>{escape(plot.title)}</strong> "
                f"{escape(plot.note)}</figcaption>"
                f'<div class="plot" id="plot-{number}" role="img" '
                f'aria-label="{escape(plot.title)}"></div></figure>\n'
            )
        for table in self.tables:
            yield from _table(table)
        yield f"<h2>The ingest</h2>\n<pre>{escape(self.settings)}</pre>\n"

    def _data(self) -> str:
        document = {
            "marks": [[letter, round(seconds, 2)] for letter, seconds, _ in self.marks],
            "plots": [
                {
                    "lines": [{"label": one.label, "color": one.color} for one in plot.lines],
                    "data": [
                        [round(value, 2) for value in values]
                        for values in (plot.seconds, *(one.values for one in plot.lines))
                    ],
                }
                for plot in self.plots
            ],
        }
        # No text may end the element that contains it.
        return json.dumps(document, separators=(",", ":")).replace("<", "\\u003c")


def cell_text(value: Cell) -> str:
    """Returns a value as a table shows it."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else value


def _table(table: Table) -> Iterable[str]:
    numeric = [
        not any(isinstance(row[place], str) for row in table.rows)
        for place in range(len(table.columns))
    ]
    classes = [' class="number"' if one else "" for one in numeric]
    yield f'<div class="table"><table>\n<caption>{escape(table.caption)}</caption>\n<thead><tr>'
    for name, css in zip(table.columns, classes, strict=True):
        yield f'<th scope="col"{css}>{escape(name)}</th>'
    yield "</tr></thead>\n<tbody>\n"
    for first, *rest in table.rows:
        yield f'<tr><th scope="row"{classes[0]}>{escape(cell_text(first))}</th>'
        for value, css in zip(rest, classes[1:], strict=True):
            yield f"<td{css}>{escape(cell_text(value))}</td>"
        yield "</tr>\n"
    yield "</tbody>\n</table></div>\n"
    if table.note:
        yield f"<p>{escape(table.note)}</p>\n"


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hashes(texts: Iterable[str]) -> str:
    """Returns the sources of a policy that allows exactly these texts."""
    digests = (hashlib.sha256(text.encode()).digest() for text in texts)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
