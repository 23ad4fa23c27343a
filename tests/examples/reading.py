"""Reads a page back as a browser without JavaScript would: its tables, its policy, its elements."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

Attributes = dict[str, str]
VOID = {"meta", "br"}


@dataclass
class Element:
    """One element: its name, its attributes, and the text directly in it."""

    name: str
    attributes: Attributes
    text: str = ""


@dataclass
class ReadTable:
    caption: str = ""
    columns: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)


class PageReader(HTMLParser):
    """Takes a page apart; fails if an element is not closed in its place."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[Element] = []
        self.tables: list[ReadTable] = []
        self._open: list[Element] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.elements.append(element)
        if tag == "table":
            self.tables.append(ReadTable())
        if tag == "tr" and self._is_in("tbody"):
            self.tables[-1].rows.append([])
        if tag not in VOID:
            self._open.append(element)

    def handle_data(self, data: str) -> None:
        if self._open:
            self._open[-1].text += data

    def handle_endtag(self, tag: str) -> None:
        element = self._open.pop()
        assert element.name == tag
        if tag == "caption":
            self.tables[-1].caption = element.text
        elif tag in ("th", "td") and self._is_in("tbody"):
            self.tables[-1].rows[-1].append(element.text)
        elif tag == "th":
            self.tables[-1].columns.append(element.text)

    def all(self, name: str) -> list[Element]:
        return [element for element in self.elements if element.name == name]

    def table(self, caption: str) -> ReadTable:
        (found,) = (table for table in self.tables if table.caption == caption)
        return found

    @property
    def policy(self) -> dict[str, list[str]]:
        (meta,) = (one for one in self.all("meta") if "http-equiv" in one.attributes)
        assert meta.attributes["http-equiv"] == "Content-Security-Policy"
        parts = (part.split() for part in meta.attributes["content"].split(";"))
        return {name: sources for name, *sources in parts}

    def _is_in(self, name: str) -> bool:
        return any(element.name == name for element in self._open)
