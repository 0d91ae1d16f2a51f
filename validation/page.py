"""The parts of a report's page: headline, facts, claim table, figures and tables of a suite, methods."""

from __future__ import annotations

import csv
import dataclasses
import html
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from validation import figures, tables, width_figures
from validation.claims import CLAIMS, RANGE, ClaimRow, group, is_covered, is_exact, of, suites
from validation.plotting import Figure
from validation.results import Geometry, Measured, Misalignment, Record, Run, Training

TITLES = {
    "gaussian": "Known laws",
    "resnet20": "ResNet-20",
    "neox": "GPT-NeoX (Pythia)",
    "llama": "LLaMA-like",
}
_INTROS = {
    "gaussian": (
        "Gradients drawn from laws whose mean and covariance are known exactly, so that the bounds carry no "
        "estimation error and, for normal laws, the true probability is known."
    ),
    "resnet20": (
        "Residual networks trained on real images; the gradients are those of single held-out examples at "
        "the outputs of residual blocks."
    ),
    "neox": (
        "Transformers of the Pythia architecture trained on real text; the unit is a held-out sequence, "
        "because tokens of one sequence are not independent."
    ),
}
_PROTOCOLS = {
    "fresh": "fresh: M + K independent units for every trial, none used twice",
    "with_replacement": (
        "with replacement: units drawn from a finite pool of held-out units, which then is the population; "
        "B_{exact} from the pool's own moments is exactly valid for these draws"
    ),
    "without_replacement": (
        "without replacement: disjoint units from a finite pool; not independent, so B_{exact} is Cantelli's "
        "inequality with the finite pool's mean and variance of T, and B_{align} is shown for comparison only"
    ),
}
_SOURCES = {
    "population": "population: the law's own moments, no estimation",
    "pool": "pool: the finite pool's own moments (divisor N), no estimation for draws from that pool",
    "estimate": "estimate: unbiased estimates from other units, so the bound itself is uncertain",
}
_ASSUMED = {
    "IID": "units are independent and identically distributed",
    "INDEPENDENT_SAMPLES": "units are independent of each other and of the trained network",
    "FINITE_SECOND_MOMENT": "finite second moments",
    "FINITE_FOURTH_MOMENT": "finite fourth moments (for asymptotic intervals)",
    "NONZERO_MEAN": "a mean gradient other than 0",
    "BOUNDED": "a known bound on the gradient's length",
    "SUBGAUSSIAN": "sub-Gaussian tails",
    "GAUSSIAN": "Gaussian gradients",
    "GIVEN_TRAIN_MEAN": "the training mean is given",
}


def math_html(text: str) -> str:
    """Escaped HTML with ``B_{exact}`` as an italic letter with a subscript.

    >>> math_html("B_{exact} < 1")
    '<i>B</i><sub>exact</sub> &lt; 1'
    """
    text = str(text).replace("|μ|²", "|\u2060μ\u2060|\u2060²")  # no line break inside
    return re.sub(r"\b([A-Za-z])_\{([^}]*)\}", r"<i>\1</i><sub>\2</sub>", html.escape(text, quote=False))


_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float | None, digits: int = 3) -> str:
    """A number for readers: three significant digits, powers of ten where it is small or large.

    >>> number(0.25), number(-0.000123), number(540000), number(None)
    ('0.250', '−1.23 × 10⁻⁴', '540,000', '–')
    """
    if value is None:
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if isinstance(value, int) or value == 0 or (float(value).is_integer() and 100 <= abs(value) < 1e6):
        return f"{int(value):,}".replace("-", "−")
    size = abs(value)
    if size >= 1e5 or size < 1e-3:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return f"{mantissa} × 10{str(int(exponent)).translate(_SUPERSCRIPT)}".replace("-", "−")
    text = f"{value:,.0f}" if size >= 1000 else f"{value:#.{digits}g}".rstrip(".")
    return text.replace("-", "−")


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV with the union of their keys as header; None is an empty cell."""
    keys = list(dict.fromkeys(k for row in rows for k in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, keys, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: "" if v is None else v for k, v in row.items()} for row in rows)
    return out.getvalue()


def _data_uri(rows: Sequence[Mapping[str, Any]]) -> str:
    return "data:text/csv;charset=utf-8," + quote(to_csv(rows), safe=" !'()*,-./:;=?@_~".replace(" ", ""))


def flat(record: Any) -> dict[str, Any]:
    """A record as one CSV row; intervals take several columns."""
    out: dict[str, Any] = {}
    for f in dataclasses.fields(record):
        value = getattr(record, f.name)
        if isinstance(value, Measured):
            out |= {
                f.name: value.value,
                f"{f.name}_low": value.low,
                f"{f.name}_high": value.high,
                f"{f.name}_confidence": value.confidence,
                f"{f.name}_method": value.method,
            }
        else:
            out[f.name] = "; ".join(value) if isinstance(value, tuple) else value
    return out


def date(started: str) -> str:
    """A stored time as readers write it."""
    try:
        return datetime.fromisoformat(started).strftime("%-d %B %Y, %H:%M %Z").strip()
    except ValueError:
        return started


def _join(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def headline(rows: Sequence[ClaimRow]) -> str:
    """The verdicts in one line."""
    if not rows:
        return "Nothing to judge yet"
    failed = list(dict.fromkeys(r.claim for r in rows if r.verdict == "fails"))
    open_ = [r for r in rows if r.verdict == "undecided"]
    held = sum(r.verdict == "holds" for r in rows)
    if failed:
        verb = "fails" if len(failed) == 1 else "fail"
        where = [r for r in rows if r.verdict == "fails"]
        return (
            f"{_join(failed)} {verb} in {len(where)} of {len(rows)} checks; {held} hold, {len(open_)} "
            "undecided"
        )
    if not open_:
        return f"All {len(rows)} checks of {len({r.claim for r in rows})} claims hold"
    return f"{held} of {len(rows)} checks hold, none fails, {len(open_)} undecided"


def lead(records: Sequence[Record], run: Run) -> str:
    """What was run, in two or three sentences."""
    cells, training = of(records, Misalignment), of(records, Training)
    names = [TITLES.get(s, s) for s in suites(records)]
    text = f"Suites run: {_join(names)}. " if names else "No suite has finished a cell yet. "
    missing = [TITLES.get(s, s) for s in run.suites if s not in suites(records)]
    if missing:
        text += f"No records yet from {_join(missing)}: this run is not complete. "
    trials = sum(c.trials for c in cells)
    if cells:
        text += (
            "The event T ≤ 0, a mean gradient over M units pointing against one over K others, was counted "
            f"in {number(trials)} trials over {number(len(cells))} cells"
        )
        if training:
            trained = len({(t.suite, t.case, t.seed) for t in training})
            text += f" and {trained} trained networks"
        text += ". "
        covered = [c for c in cells if is_exact(c)]
        over = sum(c.verdict == "violated" for c in covered)
        text += (
            f"Where B_{{exact}} is exactly valid ({len(covered)} cells), "
            f"{'no interval lies' if over == 0 else f'the interval of {over} lies'} above it."
        )
    return text


def facts(records: Sequence[Record]) -> list[dict[str, str]]:
    """The counts under the headline."""
    cells, geometry, training = of(records, Misalignment), of(records, Geometry), of(records, Training)
    timed: list[Any] = [*cells, *geometry, *training]
    seconds = sum(r.seconds for r in timed)
    facts = [
        ("cells", number(len(cells))),
        ("trials", number(sum(c.trials for c in cells))),
        ("without an event", number(sum(c.events == 0 for c in cells))),
        ("insertion points measured", number(sum(g.sample != "population" for g in geometry))),
        ("signal not detected", number(sum(not g.detected for g in geometry))),
        ("trained networks", number(len(training))),
        ("seconds of work", number(round(seconds))),
    ]
    return [{"name": n, "value": v} for n, v in facts if v != "0" or n in ("cells", "signal not detected")]


_WORDS = {
    "cells": ("below", "undecided", "above"),
    "steps": ("fall", "overlap", "rise"),
    "width steps": ("as claimed", "equal", "against"),
}


def claim_views(rows: Sequence[ClaimRow]) -> list[dict[str, Any]]:
    """The claim table, a group of rows for each claim."""
    out = []
    for claim, members in group(rows, lambda r: r.claim).items():
        views = []
        for r in members:
            total = max(r.holds + r.undecided + r.violated, 1)
            words = _WORDS[r.counted]
            counts = [f"{n} {w}" for n, w in zip((r.holds, r.undecided, r.violated), words, strict=True)]
            shares = [
                (k, round(100 * n / total, 1))
                for k, n in (("h", r.holds), ("u", r.undecided), ("v", r.violated))
            ]
            views.append(
                {
                    **{f.name: getattr(r, f.name) for f in dataclasses.fields(r)},
                    "suite_title": TITLES.get(r.suite, r.suite),
                    "counts": counts,
                    "shares": shares,
                    "is_range": r.effect is not None and r.effect.method == RANGE,
                }
            )
        out.append({"name": claim, "statement": CLAIMS[str(claim)], "rows": views})
    return out


def suite_view(records: Sequence[Record], suite: str) -> dict[str, Any]:
    """Figures and tables of one suite."""
    cells = sorted((c for c in of(records, Misalignment) if c.suite == suite), key=_sum_first)
    geometry = sorted((g for g in of(records, Geometry) if g.suite == suite), key=_sum_first)
    training = [t for t in of(records, Training) if t.suite == suite]
    id = re.sub(r"[^a-z0-9]+", "-", suite.lower()).strip("-")
    covered = [c for c in cells if is_covered(c)]
    others = [c for c in cells if not is_covered(c)]
    by_positions = group(covered, lambda c: c.positions)
    several = len(by_positions) > 1
    drawn: list[Figure | None] = [
        *(
            figures.misalignment(
                list(members),
                f"{id}-frequency-{i}",
                "Misalignment frequency against the bounds" + (f" (positions: {p})" if several else ""),
            )
            for i, (p, members) in enumerate(by_positions.items())
        ),
        figures.looseness(cells, f"{id}-looseness", "Looseness: bound divided by truth"),
        width_figures.dimensions(geometry, f"{id}-dimensions", "Alignment dimensions against width"),
        width_figures.misalignment_by_width(
            cells, f"{id}-width", "Misalignment against width at fixed M and K"
        )
        if training
        else None,
    ]
    drawn += [
        figures.misalignment(list(members), f"{id}-other-{i}", _other(members[0]), shown=3)
        for i, members in enumerate(group(others, lambda c: (c.protocol, c.bound_source)).values())
    ]
    made = [tables.training(training, id), tables.geometry(geometry, id), tables.cells(cells, id)]
    return {
        "id": id,
        "title": TITLES.get(suite, suite),
        "intro": _INTROS.get(suite, ""),
        "figures": [_with_csv(f) for f in drawn if f is not None],
        "tables": [
            {"table": t, "csv": _data_uri([flat(r) for r in t.records])} for t in made if t is not None
        ],
    }


def _sum_first(record: Any) -> tuple[bool, str]:
    """Sort key: the default way of reducing positions first; the sort keeps the stored order within."""
    return record.positions != "sum", record.positions


def _other(cell: Misalignment) -> str:
    source = {"estimate": "bounds estimated from other units"}.get(
        cell.bound_source, f"bounds from the {cell.bound_source}"
    )
    return f"Other protocol: {cell.protocol.replace('_', ' ')}, {source}"


def _with_csv(f: Figure) -> dict[str, Any]:
    return {
        **{k: getattr(f, k) for k in ("id", "title", "caption", "panels", "more", "more_title")},
        "csv": _data_uri(f.rows),
    }


def methods(records: Sequence[Record], run: Run) -> list[dict[str, Any]]:
    """The methods box."""
    cells, geometry, training = of(records, Misalignment), of(records, Geometry), of(records, Training)
    measured: list[Any] = [*cells, *geometry]
    out: list[dict[str, Any]] = []

    def item(name: str, entries: Iterable[str]) -> None:
        texts = list(dict.fromkeys(e for e in entries if e))
        if texts:
            out.append(
                {"name": name, "text": texts[0]} if len(texts) == 1 else {"name": name, "entries": texts}
            )

    def per_suite(text: Callable[[Any], str]) -> list[str]:
        found = group(measured, lambda r: r.suite)
        return [f"{TITLES.get(str(s), s)}: {_join(sorted({text(r) for r in rs}))}" for s, rs in found.items()]

    item(
        "Event",
        [
            "T = mean over M units · mean over K units; T ≤ 0 is misalignment, ties included. "
            "n_{eff} = MK/(M+K+1)."
        ],
    )
    item("Unit of independence", per_suite(lambda r: r.unit))
    item("Positions", per_suite(lambda r: r.positions))
    item("Protocols", (_PROTOCOLS.get(c.protocol, c.protocol) for c in cells))
    item("Bounds from", (_SOURCES.get(c.bound_source, c.bound_source) for c in cells))
    item(
        "Intervals",
        [
            *(f"frequencies: {c.frequency.method}, {100 * c.frequency.confidence:.5g} % each" for c in cells),
            *(
                f"dimensions: {g.d_align.method}, {100 * g.d_align.confidence:g} %"
                for g in geometry
                if g.sample != "population"
            ),
            "verdicts on bounds: Holm over all cells of a row of the claim table, family-wise 5 %",
        ],
    )
    item("Training", (f"{TITLES.get(t.suite, t.suite)}: {t.recipe}; data: {t.data}" for t in training))
    item("Assumptions", (_ASSUMED.get(a, a.replace("_", " ")) for g in geometry for a in g.assumptions))
    item(
        "Seeds",
        [
            f"run seed {run.seed}; seeds in the records: "
            + ", ".join(str(s) for s in sorted({r.seed for r in (*measured, *training)}))
        ],
    )
    item(
        "Seconds", [f"{TITLES.get(s, s)}: {_seconds(s, training, geometry, cells)}" for s in suites(records)]
    )
    item("Data", (f"{k}: {v}" for k, v in run.data.items()))
    item("Versions", [", ".join(f"{k} {v}" for k, v in run.versions.items())])
    item("Hardware", [", ".join(f"{k}: {v}" for k, v in run.hardware.items())])
    return out


def _seconds(suite: str, training: Iterable[Any], geometry: Iterable[Any], cells: Iterable[Any]) -> str:
    parts = []
    for name, rs in (("training", training), ("gradients", geometry), ("resampling", cells)):
        mine = [r for r in rs if r.suite == suite]
        if mine:
            cached = sum(getattr(r, "cached", False) for r in mine)
            total = sum(r.seconds for r in mine)
            parts.append(
                f"{name} {total:.0f}" + (f" ({cached} of {len(mine)} from the cache)" if cached else "")
            )
    return ", ".join(parts)
