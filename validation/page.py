"""The parts of a report's page: headline, facts, claim table, figures and tables of a suite, methods."""

from __future__ import annotations

import base64
import csv
import dataclasses
import gzip
import html
import io
import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from validation import bound_figures, figures, tables, training_figures, width_figures
from validation.claims import (
    CLAIMS,
    RANGE,
    ClaimRow,
    final,
    group,
    held_out,
    is_covered,
    is_exact,
    of,
    plural,
    suites,
)
from validation.methods import INTROS, TITLES, join, suite_methods
from validation.parts import PARTS, part
from validation.plotting import Figure
from validation.results import Geometry, Measured, Misalignment, Record, Run, Training


def math_html(text: str) -> str:
    """Escaped HTML with ``B_{exact}`` as an italic letter with a subscript.

    >>> math_html("B_{exact} < 1")
    '<i>B</i><sub>exact</sub> &lt; 1'
    """
    text = str(text).replace("|μ|²", "|\u2060μ\u2060|\u2060²")  # no line break inside
    return re.sub(r"\b([A-Za-zΑ-ω])_\{([^}]*)\}", r"<i>\1</i><sub>\2</sub>", html.escape(text, quote=False))


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


_PLAIN = 24_000
"""Bytes up to which a download is plain CSV; a longer one is compressed, or the page would be too large."""


def download(name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Name and content of a CSV file inside the page, ``.csv.gz`` where it is long."""
    text = to_csv(rows)
    uri = quote(text, safe="!'()*,-./:;=?@_~")
    if len(uri) <= _PLAIN:
        return {"name": f"{name}.csv", "uri": f"data:text/csv;charset=utf-8,{uri}"}
    packed = base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()
    return {"name": f"{name}.csv.gz", "uri": f"data:application/gzip;base64,{packed}"}


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
            f"{join(failed)} {verb} in {len(where)} of {len(rows)} checks; {held} hold, {len(open_)} "
            "undecided"
        )
    if not open_:
        return f"All {len(rows)} checks of {len({r.claim for r in rows})} claims hold"
    return f"{held} of {len(rows)} checks hold, none fails, {len(open_)} undecided"


def lead(records: Sequence[Record], run: Run) -> str:
    """What was run, in two or three sentences."""
    cells, training = of(records, Misalignment), of(records, Training)
    names = [TITLES.get(s, s) for s in suites(records)]
    text = f"Suites run: {join(names)}. " if names else "No suite has finished a cell yet. "
    missing = [TITLES.get(s, s) for s in run.suites if s not in suites(records)]
    if missing:
        text += f"No records yet from {join(missing)}: this run is not complete. "
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
            words = _WORDS.get(r.counted, ("for the claim", "undecided", "against"))
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
        out.append({"name": claim, "statement": CLAIMS.get(str(claim), members[0].statement), "rows": views})
    return out


def suite_view(records: Sequence[Record], suite: str) -> dict[str, Any]:
    """Figures and tables of one suite."""
    all_cells = sorted((c for c in of(records, Misalignment) if c.suite == suite), key=_sum_first)
    all_geometry = sorted((g for g in of(records, Geometry) if g.suite == suite), key=_sum_first)
    all_training = [t for t in of(records, Training) if t.suite == suite]
    cells, training = held_out(final(all_cells)), final(all_training)
    geometry = [g for g in final(all_geometry) if g.sample != "train"]
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
        bound_figures.alternatives(
            cells, f"{id}-alternatives", "Regrouped bound and normal approximation against the truth"
        ),
        bound_figures.regrouping(geometry, cells, f"{id}-regrouping", "Looseness against regrouping size"),
        width_figures.dimensions(geometry, f"{id}-dimensions", "Alignment dimensions against width")
        if suite not in PARTS
        else None,
        width_figures.misalignment_by_width(
            cells, f"{id}-width", "Misalignment against width at fixed M and K"
        )
        if training
        else None,
        training_figures.trajectories(
            all_geometry, all_training, f"{id}-training", "Along the training, and at matched test loss"
        ),
        training_figures.pairs(final(all_cells), f"{id}-pairs", "Training and held-out units"),
    ]
    drawn += [
        figures.misalignment(list(members), f"{id}-other-{i}", _other(members[0]), shown=3)
        for i, members in enumerate(group(others, lambda c: (c.protocol, c.bound_source)).values())
    ]
    drawn += part(suite, "figures", records, id)
    made = [
        tables.training(all_training, id),
        tables.geometry(all_geometry, id),
        tables.cells(all_cells, id),
        *part(suite, "tables", records, id),
    ]
    return {
        "id": id,
        "title": TITLES.get(suite, suite),
        "suite": suite,
        "intro": INTROS.get(suite, ""),
        "methods": suite_methods(records, suite),
        "figures": [_with_csv(f) for f in drawn if f is not None],
        "tables": [
            {
                "table": t,
                "csv": download(t.id, [r if isinstance(r, Mapping) else flat(r) for r in t.records]),
            }
            for t in made
            if t is not None
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
        "csv": download(f.id, f.rows),
    }


def fit(views: Sequence[dict[str, Any]], room: int) -> int:
    """Leave panels out of the page until the pictures take at most ``room`` bytes; returns what they take.

    Folded panels go first, largest figures first; then the last panels of the largest figures, down to one.
    The data of a figure stay whole; its caption says what was left out.
    """
    shown = [f for v in views for f in v["figures"]]

    def bytes_of(panels: Sequence[Any]) -> int:
        return sum(len(p.svg) for p in panels)

    def leave_out(figure: dict[str, Any], where: str, kept: int) -> int:
        gone = figure[where][kept:]
        figure[where] = figure[where][:kept]
        figure.setdefault("whole_caption", figure["caption"])
        figure["left_out"] = figure.get("left_out", 0) + len(gone)
        figure["caption"] = (
            f"{figure['whole_caption']} To keep this page small, in the data only: "
            f"{plural(figure['left_out'], 'panel')}."
        )
        return bytes_of(gone)

    size = sum(bytes_of(f["panels"]) + bytes_of(f["more"]) for f in shown)
    for f in sorted(shown, key=lambda f: -bytes_of(f["more"])):
        if size <= room or not f["more"]:
            break
        size -= leave_out(f, "more", 0)
    while size > room:
        f = max(shown, key=lambda f: bytes_of(f["panels"]) if len(f["panels"]) > 1 else 0)
        if len(f["panels"]) < 2:
            break
        size -= leave_out(f, "panels", len(f["panels"]) - 1)
    return size
