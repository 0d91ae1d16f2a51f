"""The report: valid, self-contained, accessible, honest about what is not known, from records alone."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from synthetic_records import known, make_records, make_run, network, some_cell, with_false_bound

from validation import report, tables, width_figures
from validation.claims import CLAIMS, of
from validation.figures import draw_frequency, looseness, misalignment
from validation.page import headline, math_html, number
from validation.plotting import Canvas, spread
from validation.results import Geometry, Misalignment, Record, Training, to_json
from validation.verdicts import claim_table
from validation.width_figures import dimensions

VOID = {"meta", "link", "br", "hr", "img", "input", "path", "use", "col"}


class Page(HTMLParser):
    """Structure of a page: open tags, identifiers, references, headings, outside resources."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.stack: list[str] = []
        self.problems: list[str] = []
        self.ids: list[str] = []
        self.references: set[str] = set()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[int] = []
        self.feed(text)
        self.problems += [f"<{tag}> is never closed" for tag in self.stack]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append((tag, values))
        if len(values) != len(attrs):
            self.problems.append(f"<{tag}> repeats an attribute")
        if tag not in VOID:
            self.stack.append(tag)
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            elif name in ("aria-labelledby", "aria-describedby"):
                self.references |= set((value or "").split())
            elif name == "href" and (value or "").startswith("#"):
                self.references.add((value or "")[1:])
            self.references |= set(re.findall(r"url\(#([^)]+)\)", value or ""))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.stack.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if not self.stack or self.stack[-1] != tag:
            self.problems.append(f"</{tag}> closes {self.stack[-1:]}")
        else:
            self.stack.pop()


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return make_records(small=True)


@pytest.fixture(scope="module")
def text(records: list[Record]) -> str:
    return report.render(records)


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


# -- the page ----------------------------------------------------------------------------------------------


def test_page_is_well_formed(page: Page) -> None:
    assert not page.problems
    assert len(page.ids) == len(set(page.ids))
    assert page.references <= set(page.ids)
    assert {"meta", "title", "main", "nav", "figure", "svg", "table"} <= {t for t, _ in page.tags}


def test_structure_checker_sees_faults() -> None:
    assert Page("<p><b>x</p></b>").problems
    assert Page("<p>").problems
    assert Page('<a href="#x">x</a>').references == {"x"}


def test_page_loads_nothing_and_runs_nothing(text: str, page: Page, tmp_path: Path) -> None:
    assert not {"script", "iframe", "object", "img"} & {t for t, _ in page.tags}
    for tag, values in page.tags:
        assert "src" not in values
        assert not any(name.startswith("on") for name in values)
        href = values.get("href") or "#"
        assert href.startswith(("#", "data:")), (tag, href[:60])
    assert not re.search(r"@import|https?://", text)
    assert len(text.encode()) < 5_000_000


def test_headings_do_not_skip_a_level(page: Page) -> None:
    assert page.headings.count(1) == 1
    assert all(b <= a + 1 for a, b in zip(page.headings, page.headings[1:], strict=False))


def test_pictures_have_descriptions_and_captions(text: str, page: Page) -> None:
    pictures = [values for tag, values in page.tags if tag == "svg"]
    assert len(pictures) > 15
    for values in pictures:
        assert values["role"] == "img"
        assert len(values["aria-label"] or "") > 20
    figures = re.findall(r"<figure.*?</figure>", text, flags=re.S)
    for figure in figures:
        assert figure.count("<figcaption>") == 1
        assert "What to see" in figure or "Read as above" in figure
        assert figure.count("download=") == 1
    for tag, values in page.tags:
        if tag == "th":
            assert values.get("scope") in ("col", "row", "rowgroup")


def test_svg_styles_do_not_leak_into_the_page(text: str) -> None:
    assert text.count("<style") == 1
    pictures = re.findall(r"<svg.*?</svg>", text, flags=re.S)
    assert not any("<style" in p or "<metadata" in p or "#000" in p for p in pictures)
    assert all("var(--" in p for p in pictures)


def data_of(text: str, name: str) -> list[dict[str, str]]:
    (uri,) = re.findall(rf'download="{re.escape(name)}" href="data:text/csv;charset=utf-8,([^"]+)"', text)
    return list(csv.DictReader(io.StringIO(unquote(uri))))


def test_every_figure_and_table_can_be_downloaded(text: str, records: list[Record]) -> None:
    cells = [c for c in of(records, Misalignment) if c.suite == "gaussian"]
    rows = data_of(text, "gaussian-frequency-0.csv")
    assert [(int(r["M"]), int(r["events"])) for r in rows] == [(c.M, c.events) for c in cells]
    assert [float(r["high"]) for r in rows] == [c.frequency.high for c in cells]
    rows = data_of(text, "resnet20-geometry.csv")
    assert len(rows) == sum(g.suite == "resnet20" for g in of(records, Geometry))
    undetected = [r for r in rows if r["detected"] == "False"]
    assert len(undetected) == 1
    assert undetected[0]["d_align"] == ""  # an estimate that does not exist stays empty
    assert len(data_of(text, "resnet20-training.csv")) == 4


def test_methods_tell_how_to_repeat_the_run(text: str) -> None:
    run = make_run()
    methods = text[text.index('id="methods"') :]
    assert run.command in methods
    for needed in ("3f9a3f9a", "2.13.0", "x86_64", "Clopper-Pearson", "sequence", "example", "AdamW"):
        assert needed in methods
    assert "independent of each other and of the trained network" in methods


def test_claims_come_first_and_are_complete(text: str, records: list[Record]) -> None:
    assert text.index('id="claims"') < text.index('id="gaussian"') < text.index('id="methods"')
    rows = claim_table(records)
    assert {r.claim for r in rows} == {"cantelli", "align", "follow", "misalign-down", "width-up"}
    for claim in {r.claim for r in rows}:
        assert CLAIMS[claim]
        # once in the summary, once on the page of each suite that it was judged in
        assert text.count(f"<code>{claim}</code>") == 1 + len({r.suite for r in rows if r.claim == claim})


def test_same_records_make_the_same_pictures(text: str, records: list[Record]) -> None:
    cells = [c for c in of(records, Misalignment) if c.suite == "gaussian"]
    figure = misalignment(cells, "gaussian-frequency-0", "t")
    assert figure is not None
    assert all(panel.svg in text for panel in figure.panels)


def test_labels_from_outside_are_escaped() -> None:
    nasty = 'width $5$ <script>alert("x")</script> & more'
    chosen = [
        replace(r, label=nasty, module="a$b$<i>") if isinstance(r, (Geometry, Misalignment)) else r
        for r in make_records(small=True)
        if not isinstance(r, (Geometry, Misalignment)) or r.suite == "neox"
    ]
    text = report.render(chosen)
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "a$b$&lt;i&gt;" in text
    assert not Page(text).problems


def test_page_without_measurements_says_so() -> None:
    text = report.render([make_run()])
    assert "Nothing to judge yet" in text
    assert "No claim has records yet" in text
    assert "No records yet from Known laws, ResNet-20 and GPT-NeoX" in text
    assert not Page(text).problems


def test_failing_claim_is_in_the_headline(records: list[Record]) -> None:
    assert headline(claim_table(records)).startswith("12 of 16 checks hold, none fails, 4 undecided")
    assert headline(claim_table(with_false_bound(records))).startswith(
        "cantelli and follow fail in 2 of 16 checks"
    )


# -- figures -----------------------------------------------------------------------------------------------


class Marks:
    """Stands in for axes and remembers what is plotted."""

    def __init__(self) -> None:
        self.points: list[tuple[list[float], list[float], dict[str, object]]] = []

    def plot(self, x: list[float], y: list[float], *args: object, **kw: object) -> None:
        self.points.append((x, y, kw | {"args": args}))


def test_no_event_is_a_bar_at_the_upper_limit_with_an_arrow() -> None:
    c = some_cell(events=0)
    assert c.events == 0
    marks = Marks()
    draw_frequency(marks, 3.0, c, "black")
    heights = [y for _, ys, _ in marks.points for y in ys]
    assert max(heights) == c.frequency.high
    assert min(heights) > 0  # nothing at zero, which a log axis cannot show
    assert [kw["marker"] for _, _, kw in marks.points if "marker" in kw] == ["_", "v"]


def test_frequency_is_drawn_with_its_interval() -> None:
    c = some_cell(events=300)
    marks = Marks()
    draw_frequency(marks, 3.0, c, "black")
    (_, bar, _), (_, point, _) = marks.points
    assert bar == [c.frequency.low, c.frequency.high]
    assert point == [c.frequency.value]


def test_captions_count_what_is_vacuous_and_what_had_no_event(records: list[Record]) -> None:
    cells = [c for c in of(records, Misalignment) if c.suite == "gaussian"]
    figure = misalignment(cells, "f", "t")
    assert figure is not None
    zero = sum(c.events == 0 for c in cells)
    weak = [sum((getattr(c, b).value or 1) > 0.5 for c in cells) for b in ("B_exact", "B_align")]
    vacuous = [sum((getattr(c, b).value or 1) >= 0.9995 for c in cells) for b in ("B_exact", "B_align")]
    assert zero > 0
    assert 0 < weak[0] < weak[1]
    assert f"No event was seen in {zero} cells" in figure.caption
    assert f"weaker than a coin toss, in {weak[0]} cells, B_{{align}} in {weak[1]};" in figure.caption
    assert f"(crosses), are {vacuous[0]} and {vacuous[1]} of these" in figure.caption
    assert "decides by that probability" in figure.caption
    assert len(figure.rows) == len(cells)


def test_only_a_bound_of_one_is_called_vacuous() -> None:
    base = some_cell(events=300)
    bounds = (0.75, 0.9994, 0.9996, None)  # 3/4 is attained by a fair coin
    table = tables.cells([replace(base, B_exact=known(b)) for b in bounds], "t")  # type: ignore[arg-type]
    assert table is not None
    (column,) = [i for i, c in enumerate(table.columns) if c.title == "B_{exact}"]
    called = [table.columns[column].vacuous(row[column]) for row in table.rows]
    assert called == [False, False, True, True]
    page = report.render([make_run(), *(replace(base, B_exact=known(b)) for b in bounds[:3])])  # type: ignore[arg-type]
    assert page.count('<span class="ci">vacuous</span>') == 1


def test_ranges_are_not_written_like_intervals(records: list[Record]) -> None:
    page = report.render(records)
    rows = [r for r in claim_table(records) if r.claim == "align"]
    for r in rows:
        assert r.effect is not None
        assert f"range {number(r.effect.low)} to {number(r.effect.high)}</span>" in page
        assert f"[{number(r.effect.low)},</span> <span>{number(r.effect.high)}]" not in page


def test_undecided_counts_are_not_coloured_like_a_verdict(records: list[Record]) -> None:
    page = report.render(records)
    undecided = sum(r.verdict == "undecided" for r in claim_table(records))
    assert undecided > 0
    assert page.count('class="bar open"') == 2 * undecided  # in the summary and on the suite's page


def test_detection_beside_a_limit_of_zero_is_explained(records: list[Record]) -> None:
    geometry = [g for g in of(records, Geometry) if g.suite == "resnet20" and g.detected]
    touching = replace(geometry[0], d_align=replace(geometry[0].d_align, low=0.0))
    table = tables.geometry([touching, *geometry[1:]], "t")
    plain_table = tables.geometry(geometry, "t")
    assert table is not None
    assert plain_table is not None
    assert sum("detected, lower limit 0" in row for row in table.rows) == 1
    assert f"“Lower limit 0” (1 of {len(geometry)})" in table.note
    assert "ower limit 0" not in plain_table.note


def test_upper_limits_beyond_the_axis_stay_inside_it() -> None:
    rng = np.random.default_rng(5)
    chosen = of(network(rng, "neox", "N", (32, 64), ("a",), 0.01, undetected=1), Geometry)
    low, high = width_figures._dimension_range(chosen, "d_par")
    far = [g if g.detected else replace(g, d_par=replace(g.d_par, high=1e9)) for g in chosen]
    assert far != chosen
    canvas = Canvas(x_title="x", y_title="y")
    canvas.log_x_at([32.0, 64.0])
    canvas.log_y(low, high)
    width_figures._draw_dimension(canvas, far, "d_par", low, high)
    hollow = [line for line in canvas.ax.lines if line.get_marker() == "v"]
    assert len(hollow) == 1
    assert low <= float(hollow[0].get_ydata()[0]) <= high


def test_looseness_uses_the_exact_truth_even_far_below_float_range() -> None:
    base = next(c for c in of(make_records(small=True), Misalignment) if c.suite == "gaussian")
    figure = looseness([base, replace(base, log_probability=-5001.0)], "f", "t")
    assert figure is not None
    near, far = figure.rows
    assert near["exact_ratio"] == pytest.approx((base.B_exact.value or 0) / np.exp(base.log_probability))
    assert far["exact_ratio"] > 1e280  # finite: the axis cuts it, JSON and CSV can hold it
    assert "1 ratios above" in figure.caption


def test_undetected_geometry_is_drawn_and_counted(records: list[Record]) -> None:
    geometry = [g for g in of(records, Geometry) if g.suite == "resnet20"]
    figure = dimensions(geometry, "f", "t")
    assert figure is not None
    assert f"In 1 of {len(geometry)} measurements no signal was detected" in figure.caption
    assert sum(not r["detected"] for r in figure.rows) == 1
    assert dimensions([g for g in geometry if g.width == 4], "f", "t") is None  # one width shows no trend


def test_labels_are_spread_in_order() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        wishes = rng.random(int(rng.integers(1, 8)))
        placed = np.array(spread(list(wishes), 0.1))
        order = np.argsort(wishes, kind="stable")
        assert np.all(np.diff(placed[order]) >= 0.1 - 1e-9)
        assert placed.min() >= -1e-9
        assert placed.max() <= 1 + 1e-9


def test_panels_carry_no_foreign_identifiers() -> None:
    canvas = Canvas(x_title="x", y_title="B_{exact} / P")
    canvas.log_x(1, 100)
    canvas.log_y(1e-4, 1)
    canvas.ax.plot([1, 10], [0.1, 0.01], "o", markersize=4)
    one, two = canvas.svg("one", "first alt"), canvas.svg("two", "second alt")
    ids = set(re.findall(r' id="([^"]+)"', one))
    assert ids
    assert all(i.startswith("one-") for i in ids)
    assert not ids & set(re.findall(r' id="([^"]+)"', two))
    assert ">B</tspan>" in one
    canvas = Canvas(x_title="0.0015 units", y_title="y")
    assert ">0.0015 units<" in canvas.svg("three", "third alt")  # only coordinates are rounded
    assert ">exact</tspan>" in one
    assert "10⁻³" in one


# -- files -------------------------------------------------------------------------------------------------


def store(folder: Path, records: list[Record]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "results.jsonl"
    path.write_text("".join(to_json(r) + "\n" for r in records), encoding="utf-8")
    return path


def test_load_returns_what_was_stored(tmp_path: Path, records: list[Record]) -> None:
    path = store(tmp_path, records)
    assert report.load(tmp_path) == records
    with path.open("a", encoding="utf-8") as file:
        file.write(to_json(records[-1])[:50])  # a write that was cut off
    assert report.load(path) == records


def test_load_names_what_is_wrong(tmp_path: Path, records: list[Record]) -> None:
    with pytest.raises(ValueError, match=r"path='.*missing'.*certify validate --out"):
        report.load(tmp_path / "missing")
    path = store(tmp_path, records[:2])
    path.write_text(path.read_text(encoding="utf-8") + "nonsense\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"results.jsonl, line 3: .*expected a stored validation record"):
        report.load(tmp_path)
    store(tmp_path, records[1:3])
    with pytest.raises(ValueError, match="no run is described"):
        report.load(tmp_path)


def test_write_makes_html_json_and_csv(tmp_path: Path, records: list[Record]) -> None:
    few = [
        r for r in records if not isinstance(r, (Training, Geometry, Misalignment)) or r.suite == "gaussian"
    ]
    written = report.write(few, tmp_path / "new", ["html", "json", "csv", "html"])
    names = ["report.html", "summary.json", "claims.csv", "misalignment.csv", "geometry.csv"]
    assert [p.name for p in written] == names
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == sorted(names)  # no temporary file left
    summary = json.loads(written[1].read_text(encoding="utf-8"))
    assert summary["records"] == {"training": 0, "geometry": 2, "misalignment": 10}
    assert summary["verdicts"]["holds"] == sum(c["verdict"] == "holds" for c in summary["claims"])
    assert summary["run"]["command"] == make_run().command
    rows = list(csv.DictReader(io.StringIO(written[3].read_text(encoding="utf-8"))))
    assert float(rows[0]["frequency_high"]) == of(few, Misalignment)[0].frequency.high
    with pytest.raises(ValueError, match=r"format='pdf': expected some of html, json, csv"):
        report.write(few, tmp_path, ["pdf"])


def test_numbers_for_readers() -> None:
    cases = {0.5: "0.500", 12345.678: "12,346", 2e-7: "2.00 × 10⁻⁷", -0.25: "−0.250", 0: "0", 3: "3"}
    assert {v: number(v) for v in cases} == cases
    assert number(float("inf")) == "∞"
    assert math_html("−μ_{M}") == "−<i>μ</i><sub>M</sub>"
    assert math_html("d_{align} & B_{exact}") == "<i>d</i><sub>align</sub> &amp; <i>B</i><sub>exact</sub>"


def test_page_is_the_same_whatever_the_number_of_processes() -> None:
    records = make_records(small=True)
    assert report.render(records, jobs=2) == report.render(records, jobs=1)
