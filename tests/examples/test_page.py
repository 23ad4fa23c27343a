from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from examples.tour.page import Finding, Line, Page, Plot, Table, cell_text
from tests.examples.reading import PageReader
from tests.sources import ROOT

ASSETS = ROOT / "examples" / "tour"
SECONDS = [0.0, 1.0, 2.5]
PAGE = Page(
    title="A <page> & more",
    lead="What was done.",
    numbers=[(12_345, "events"), (0, "lost"), (7.25, "seconds")],
    findings=[
        Finding(True, "nothing is lost", "5 of 5"),
        Finding(False, "</script><b>", 'a "quoted" text'),
    ],
    marks=[("A", 0.5, "start"), ("B", 2.0, "</script> end")],
    plots=[
        Plot(
            "Rate", "a second", SECONDS, [Line("in", "in", [1, 2, 3]), Line("out", "out", [0] * 3)]
        ),
        Plot("Lag </script>", "records", SECONDS, [Line("behind", "lag", [5.123, 4, 0])]),
    ],
    tables=[
        Table("Sums", ("queue", "range", "share"), [["doors", 1_234, 0.5], ["<lamps>", 7, None]]),
        Table("None", ("name",), [], "A note."),
    ],
    settings='key = "value" # <x>',
)
HTML = PAGE.html()
READ = PageReader(HTML)


def test_every_number_and_text_of_the_tables_is_in_the_page_as_it_was() -> None:
    for table in PAGE.tables:
        found = READ.table(table.caption)
        assert found.columns == list(table.columns)
        assert found.rows == [[cell_text(cell) for cell in row] for row in table.rows]
    assert [one.text for one in READ.all("dd")] == ["12,345", "0", "7.2"]
    assert [one.text for one in READ.all("pre")] == [PAGE.settings]
    assert [one.attributes["class"] for one in READ.all("li")] == ["holds", "failed"]


def test_numbers_stand_to_the_right_and_rows_have_heads() -> None:
    cells = [one for one in READ.elements if one.name in ("th", "td")]

    numbers = [one.text for one in cells if one.attributes.get("class") == "number"]
    scopes = [one.attributes["scope"] for one in READ.all("th")]
    assert numbers[:2] == ["range", "share"]
    assert {"1,234", "0.5", "7", "–"} <= set(numbers)
    assert scopes == ["col", "col", "col", "row", "row", "col"]


def test_the_policy_allows_the_scripts_and_styles_of_the_page_and_nothing_else() -> None:
    scripts = [one.text for one in READ.all("script") if "type" not in one.attributes]
    styles = [one.text for one in READ.all("style")]

    assert READ.policy == {
        "default-src": ["'none'"],
        "script-src": [source_of(text) for text in scripts],
        "style-src": [source_of(text) for text in styles],
        "base-uri": ["'none'"],
        "form-action": ["'none'"],
    }
    assert scripts == [read("vendor/uPlot.iife.min.js"), read("page.js")]
    assert styles == [read("vendor/uPlot.min.css"), read("page.css")]


def test_the_page_refers_to_nothing_outside_of_it() -> None:
    names = {name for one in READ.elements for name in one.attributes}
    styles = "".join(one.text for one in READ.all("style"))

    assert names.isdisjoint({"src", "href", "style", "srcset", "action", "data"})
    assert not [name for name in names if name.startswith("on")]
    assert not re.search(r"url\(|@import", styles)
    assert {one.name for one in READ.elements}.isdisjoint({"link", "img", "iframe", "object"})


def test_the_plots_get_their_data_and_no_text_can_end_the_script() -> None:
    (data,) = (one.text for one in READ.all("script") if "type" in one.attributes)

    document = json.loads(data)
    assert document["marks"] == [["A", 0.5], ["B", 2.0]]
    assert [plot["data"] for plot in document["plots"]] == [
        [SECONDS, [1, 2, 3], [0, 0, 0]],
        [SECONDS, [5.12, 4, 0]],
    ]
    assert len(READ.all("script")) == 3
    assert len([one for one in READ.all("div") if "plot" in one.attributes.get("class", "")]) == 2


def test_the_vendored_files_are_those_that_their_page_names() -> None:
    text = read("vendor/README.md")
    named = dict(re.findall(r"^\| `(\S+)` \| `\S+` \| `([0-9a-f]{64})` \|$", text, re.MULTILINE))

    found = {
        name: hashlib.sha256((ASSETS / "vendor" / name).read_bytes()).hexdigest() for name in named
    }
    assert len(named) == 2
    assert found == named
    assert "v1.6.32" in read("vendor/uPlot.iife.min.js")[:100]
    assert "MIT" in read("vendor/LICENSE")


# The least of a browser that the page's own script asks for; it tells what is drawn.
STUB = """
const drawn = [];
const text = require("fs").readFileSync(process.argv[2], "utf8");
const data = /id="plots">(.*?)<\\/script>/s.exec(text)[1];
globalThis.document = {
  documentElement: {},
  getElementById: (id) => (id === "plots" ? { textContent: data } : { id, clientWidth: 600 }),
};
globalThis.getComputedStyle = () => ({ getPropertyValue: (name) => ` color of ${name}` });
globalThis.matchMedia = () => ({ addEventListener: () => {} });
globalThis.addEventListener = () => {};
globalThis.uPlot = class {
  constructor(options, data, place) {
    const labels = options.series.map((one) => one.label);
    drawn.push({ labels, data, place: place.id, width: options.width });
  }
};
require(process.argv[3]);
console.log(JSON.stringify(drawn));
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("node") is None, reason="runs the page's script, which needs node")
def test_the_script_of_the_page_draws_each_plot_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(HTML, encoding="utf-8")
    (tmp_path / "stub.js").write_text(STUB)

    result = subprocess.run(
        ["node", tmp_path / "stub.js", tmp_path / "page.html", ASSETS / "page.js"],
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )

    first, second = json.loads(result.stdout)
    assert first["labels"] == ["time", "in", "out"]
    assert first["data"] == [SECONDS, [1, 2, 3], [0, 0, 0]]
    assert (second["place"], second["width"]) == ("plot-1", 600)


def source_of(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def read(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")
