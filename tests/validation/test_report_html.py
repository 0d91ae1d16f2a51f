"""Pages are valid HTML, accessible, self-contained and small: checked with a parser, without a browser."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic_records import make_records, make_run, network

from validation import compare, report
from validation.claims import of
from validation.results import Geometry, Misalignment, Record, Training

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import html5lib

LIMIT = 5_000_000


def errors_of(text: str) -> list[str]:
    """Parse errors by the WHATWG rules; an empty list means that a browser has nothing to repair."""
    parser = html5lib.HTMLParser(strict=False)
    parser.parse(text)
    return [f"{position}: {code} {data}" for position, code, data in parser.errors]


class Tree(HTMLParser):
    """Every element with its attributes and the text inside it."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.links: list[tuple[dict[str, str | None], str]] = []
        self._link: tuple[dict[str, str | None], list[str]] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "a":
            self._link = (dict(attrs), [])

    def handle_data(self, data: str) -> None:
        if self._link is not None:
            self._link[1].append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag == "a" and self._link is not None:
            self.links.append((self._link[0], "".join(self._link[1]).strip()))
            self._link = None


def faults(text: str) -> list[str]:
    """What a page would be marked down for by an accessibility check."""
    tree, out = Tree(text), []
    ids = [a["id"] for _, a in tree.elements if "id" in a]
    out += [f"id {i!r} is used twice" for i in set(ids) if ids.count(i) > 1]
    if not any(t == "html" and a.get("lang") for t, a in tree.elements):
        out.append("no language")
    if sum(t == "title" for t, _ in tree.elements) < 1:
        out.append("no title")
    if sum(t == "main" for t, _ in tree.elements) != 1:
        out.append("not one main")
    levels = [int(t[1]) for t, _ in tree.elements if re.fullmatch(r"h[1-6]", t)]
    if levels.count(1) != 1 or levels[:1] != [1]:
        out.append("not one first heading")
    out += [f"h{a} before h{b}" for a, b in pairwise(levels) if b > a + 1]
    for tag, a in tree.elements:
        if tag == "svg" and not (a.get("role") == "img" and len(a.get("aria-label") or "") > 20):
            out.append("a picture without a text")
        if tag == "img" and not a.get("alt"):
            out.append("an image without a text")
        if tag == "th" and a.get("scope") not in ("col", "row", "rowgroup"):
            out.append("a table heading without scope")
        if a.get("tabindex") == "0" and not (
            a.get("role") and (a.get("aria-label") or a.get("aria-labelledby"))
        ):
            out.append("something to focus without a name")
        refs = (a.get("aria-labelledby") or "").split() + (a.get("aria-describedby") or "").split()
        out += [f"refers to {r!r}, which does not exist" for r in refs if r not in ids]
        href = a.get("href") or ""
        if href.startswith("#") and href[1:] not in ids:
            out.append(f"link to {href!r}, which does not exist")
    out += [f"a link without a name: {a}" for a, name in tree.links if len(name) < 2]
    for figure in re.findall(r"<figure.*?</figure>", text, flags=re.S):
        if "<figcaption>" not in figure or "download=" not in figure:
            out.append("a figure without caption or data")
    return out


def outside(text: str) -> list[str]:
    """Addresses that opening the page would fetch."""
    tree = Tree(text)
    found = [
        v
        for _, a in tree.elements
        for k, v in a.items()
        if k in ("src", "href", "srcset", "xlink:href") and v
    ]
    found = [v for v in found if not v.startswith(("#", "data:"))]
    return found + re.findall(r"@import[^;]*|url\((?!#|data:)[^)]*\)", text)


def along_training(records: list[Record]) -> list[Record]:
    """The same records with two earlier steps of every network and with pairs of samples."""
    out = list(records)
    for r in records:
        if isinstance(r, (Training, Geometry)) and r.suite in ("neox", "llama"):
            for k, step in enumerate((10, 60)):
                moved: dict[str, Any] = {"step": step}
                if isinstance(r, Training):
                    shift = 0.5 - 0.2 * k
                    moved["test_loss"] = replace(
                        r.test_loss,
                        value=(r.test_loss.value or 0) + shift,
                        low=(r.test_loss.low or 0) + shift,
                        high=(r.test_loss.high or 0) + shift,
                    )
                out.append(replace(r, **moved))
        if isinstance(r, Misalignment) and r.bound_source == "pool" and r.suite == "neox":
            out += [replace(r, pair="train-test"), replace(r, pair="train-train")]
        if isinstance(r, Misalignment) and r.suite == "gaussian":
            where = out.index(r)
            out[where] = replace(
                r,
                B_regrouped=replace(r.B_exact, value=(r.B_exact.value or 0) * 1.02),
                regrouping=15,
                normal_log_probability=(r.log_probability or -1.0) * 1.05,
            )
    return out


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return along_training(make_records(small=True))


@pytest.fixture(scope="module")
def text(records: list[Record]) -> str:
    return report.render(records)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("two") / "comparison.html"
    one, two = make_records(0, small=True), make_records(1, small=True)
    report.comparison_page(one, two, path)
    return path.read_text(encoding="utf-8")


def test_report_is_valid_accessible_and_offline(text: str) -> None:
    assert errors_of(text) == []
    assert faults(text) == []
    assert outside(text) == []


def test_comparison_is_valid_accessible_and_offline(comparison: str) -> None:
    assert errors_of(comparison) == []
    assert faults(comparison) == []
    assert outside(comparison) == []


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("<p>x</p>", "no language"),
        ('<html lang="en"><main><h1>a</h1><h3>b</h3></main>', "h1 before h3"),
        ("<svg></svg>", "a picture without a text"),
        ('<img src="data:,">', "an image without a text"),
        ("<table><tr><th>a</th></tr></table>", "a table heading without scope"),
        ('<a href="#x"></a>', "link to '#x', which does not exist"),
        ('<p id="a"></p><p id="a"></p>', "id 'a' is used twice"),
        ('<a href="data:,"></a>', "a link without a name"),
        ('<div tabindex="0"></div>', "something to focus without a name"),
        ("<figure></figure>", "a figure without caption or data"),
    ],
)
def test_checks_can_fail(page: str, expected: str) -> None:
    assert any(f.startswith(expected) for f in faults(page))


def test_validator_and_offline_check_can_fail() -> None:
    assert errors_of("<!DOCTYPE html><title>x</title><p><b>x</p>")
    assert errors_of("<!DOCTYPE html><title>x</title><table><p>x</p></table>")
    assert outside(
        '<link href="https://example.org/a.css"><style>@import "b.css"; p{background:url(c.png)}</style>'
    )


def test_pages_are_shown_by_their_address_and_all_in_print(text: str) -> None:
    sections = re.findall(r'<section id="([\w-]+)" class="page"', text)
    assert sections == ["claims", "gaussian", "resnet20", "neox", "methods"]
    rules = re.findall(r"@media screen \{.*?display: none.*?\n\}", text, flags=re.S)
    assert len(rules) == 1  # hiding is for screens: paper and old browsers show every page
    assert all(f'href="#{s}"' in text for s in sections)
    assert "<script" not in text


def test_every_suite_page_has_its_claims_and_its_methods(text: str) -> None:
    pages = re.findall(r'<section id="(\w+)" class="page".*?</section>', text, flags=re.S)
    assert len(pages) == 5
    for s in ("gaussian", "resnet20", "neox"):
        page = text[text.index(f'<section id="{s}"') :]
        page = page[: page.index("</section>")]
        assert page.index('class="claims"') < page.index("<figure")
        methods = page[page.index("Methods of this suite") :]
        for word in ("Unit", "Protocols", "Seeds", "Seconds", "Intervals"):
            assert f"<dt>{word}</dt>" in methods


def test_figures_along_training_and_of_pairs_are_there(text: str, records: list[Record]) -> None:
    for id in (
        "neox-training",
        "neox-pairs",
        "gaussian-alternatives",
        "gaussian-regrouping",
        "neox-regrouping",
    ):
        assert f'<figure id="{id}"' in text
    assert '<figure id="resnet20-training"' not in text  # no earlier step was stored
    main = report.page.suite_view(records, "neox")["figures"][0]
    final = [c for c in of(records, Misalignment) if c.suite == "neox" and c.pair == "test-test"]
    pool = [c for c in final if c.bound_source == "pool" and c.step is None]
    data = report.page.download("neox-frequency-0", [])
    assert main["id"] == "neox-frequency-0"
    assert data["name"] == "neox-frequency-0.csv"
    from validation.figures import misalignment

    drawn = misalignment(pool, "x", "t")
    assert drawn is not None
    assert main["csv"]["uri"] == report.page.download("neox-frequency-0", drawn.rows)["uri"]


def test_long_data_are_compressed_and_come_back_whole() -> None:
    import base64
    import gzip

    rows = [{"a": i, "b": f"µ {i}"} for i in range(5000)]
    found = report.page.download("x", rows)
    assert found["name"] == "x.csv.gz"
    packed = base64.b64decode(found["uri"].split("base64,")[1])
    assert gzip.decompress(packed).decode() == report.page.to_csv(rows)
    assert report.page.download("x", rows) == found  # no time of day inside


def test_six_large_suites_stay_under_the_limit() -> None:
    """Pictures are cut to their room; here, what else a suite takes: at most a sixth of what is left."""
    rng = np.random.default_rng(0)
    places = ("model.layers.1", "model.layers.3", "model.layers.5")
    made = network(rng, "llama", "LLaMA-like", (32, 64, 128, 256), places, 0.01, seeds=3)
    cells = of(made, Misalignment)
    more = [replace(c, seed=c.seed + 10 * k) for k in range(1, 4) for c in cells]
    text = report.render([make_run(), *made, *more])
    pictures = sum(len(p) for p in re.findall(r"<svg.*?</svg>", text, flags=re.S))
    assert len(cells + more) > 1000
    assert len(text.encode()) - pictures < (LIMIT - report._ROOM) / 6
    assert report._ROOM < LIMIT


def test_pictures_beyond_the_room_are_left_out_and_said(records: list[Record]) -> None:
    views = [report.page.suite_view(records, "neox")]
    views[0]["figures"][0] |= {"more": views[0]["figures"][0]["panels"][:1], "more_title": "1 more panel"}
    before = sum(len(f["more"]) for f in views[0]["figures"])
    whole = [len(f["csv"]["uri"]) for f in views[0]["figures"]]
    report.page.fit(views, 10**9)
    assert sum(len(f["more"]) for f in views[0]["figures"]) == before
    report.page.fit(views, 1)
    assert sum(len(f["more"]) for f in views[0]["figures"]) == 0
    assert [len(f["csv"]["uri"]) for f in views[0]["figures"]] == whole
    assert before > 0
    assert all(len(f["panels"]) == 1 for f in views[0]["figures"])
    assert all(f["caption"].count("in the data only") == ("left_out" in f) for f in views[0]["figures"])
    assert any(f"in the data only: {f.get('left_out')} panel" in f["caption"] for f in views[0]["figures"])


def test_a_page_is_kept_below_its_limit(records: list[Record], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = len(report.render(records).encode())
    monkeypatch.setattr(report, "_PAGE", whole - 50_000)
    assert len(report.render(records).encode()) <= whole - 45_000  # captions grow by a sentence


# -- colours -------------------------------------------------------------------------------------------------


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1, 2])
def test_every_colour_of_text_reaches_aa_on_every_ground_it_stands_on(theme: int) -> None:
    css = (Path(report.__file__).parent / "templates" / "report.css").read_text(encoding="utf-8")
    block = re.findall(r":root \{(.*?)\}", css, flags=re.S)[theme]
    colour = {
        k: "#" + "".join(c * 2 for c in v[1:]) if len(v) == 4 else v
        for k, v in re.findall(r"--([\w-]+): (#[0-9a-f]{3,6})\b", block)
    }
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    used = set(re.findall(r"(?<!-)color: var\(--([\w-]+)\)", css))
    assert {"ink", "muted", "accent", "ok", "bad", "open"} <= used
    for front in sorted(used | {f"c{i}" for i in range(1, 7)}):
        grounds = [f"{front}-bg"] if front in ("ok", "bad", "open") else ["card"]
        if front in ("ink", "muted", "accent"):
            grounds.append("bg")
        for ground in grounds:
            assert contrast(colour[front], colour[ground]) >= 4.5, (theme, front, ground)


# -- comparison ----------------------------------------------------------------------------------------------


def test_a_run_equals_itself(records: list[Record]) -> None:
    found = compare.compare(
        records, [replace(r, seconds=9.0) if hasattr(r, "seconds") else r for r in records]
    )
    assert found.identical == found.matched == len(records) - 1
    assert not found.differences
    assert not found.only_a
    assert not found.only_b
    assert not found.protocol
    assert all(v["a"] == v["b"] for v in found.verdicts)
    assert found.fingerprint_a == found.fingerprint_b


def test_shared_seed_or_data_gives_no_interval() -> None:
    one = make_records(0, small=True)
    two = [replace(r, seed=7, data={}) if not hasattr(r, "suite") else r for r in make_records(1, small=True)]
    found = compare.compare(one, two)
    assert found.shared  # the training data have the same name
    assert found.differences
    assert all(d.low is None and d.high is None for d in found.differences)


def test_independent_estimates_have_an_interval_that_covers() -> None:
    """400 pairs of independent binomial frequencies: the 95 % interval of the difference misses rarely.

    The threshold has a false-alarm rate below 1e-6 at a true miss rate of 5 %; half the width must fail it.
    """
    from scipy import stats
    from synthetic_records import clopper_pearson

    rng = np.random.default_rng(4)
    missed = narrow = 0
    for _ in range(400):
        p, q = rng.uniform(0.05, 0.6, 2)
        x, y = (clopper_pearson(int(rng.binomial(300, v)), 300) for v in (p, q))
        d = compare._difference("s", "w", "frequency", x, y, logs=False, shared=())
        if d.difference == 0:
            continue
        assert d.low is not None
        assert d.high is not None
        missed += not d.low <= q - p <= d.high
        middle = d.difference or 0.0
        narrow += not middle + (d.low - middle) / 2 <= q - p <= middle + (d.high - middle) / 2
    limit = stats.binom.ppf(1 - 1e-6, 400, 0.05)
    assert missed <= limit
    assert narrow > limit


def test_what_is_only_in_one_run_is_named(records: list[Record]) -> None:
    part = [r for r in records if getattr(r, "suite", "neox") == "neox"]
    found = compare.compare(records, part)
    assert not found.only_b
    assert len(found.only_a) == len(records) - len(part)
    assert any(v["b"] == "not judged" for v in found.verdicts)


def test_runs_without_a_common_cell_are_refused(records: list[Record]) -> None:
    one = [r for r in records if getattr(r, "suite", "neox") == "neox"]
    two = [r for r in records if getattr(r, "suite", "gaussian") == "gaussian"]
    with pytest.raises(ValueError, match="A and B have no cell in common"):
        compare.compare(one, two)
    with pytest.raises(ValueError, match="B: no run is described"):
        compare.compare(one, two[1:])
    with pytest.raises(ValueError, match="A: no run is described"):
        compare.compare([], [make_run()])
