"""Which number comes closest to the truth, and how B_align depends on the choice of unit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from validation.claims import is_covered
from validation.figures import SHOWN, plain, positive
from validation.plotting import DASHES, MARKERS, MUTED, PAPER, SERIES, SHADE, Canvas, Figure, Panel
from validation.results import Geometry, Misalignment

_CEILING = 1e12
_LINES = 6


def alternatives(cells: Sequence[Misalignment], id: str, title: str) -> Figure | None:
    """Regrouped bound and normal approximation divided by the truth, where both are stored."""
    used = [
        c
        for c in cells
        if is_covered(c)
        and c.B_align.value
        and c.B_align.value < 1
        and (c.B_regrouped or c.normal_log_probability)
    ]
    used = [c for c in used if c.log_probability is not None or c.events]
    if not used:
        return None
    marks = [_mark(c) for c in used]
    panels = []
    for key, text, colour in (
        ("regrouped_ratio", "regrouped B_{align}", SERIES[3]),
        ("normal_ratio", "normal approximation", SERIES[5]),
    ):
        points = [m for m in marks if m[key] is not None]
        if not points:
            continue
        xs, ratios = [m["n_eff_d_align"] for m in points], [m[key] for m in points]
        low = max(min(*ratios, 0.5), 1e-4) / 1.6
        top = min(max(*ratios, 2.0), _CEILING) * 2.5
        canvas = Canvas(
            x_title="n_{eff} d_{align}",
            y_title="ratio to P(T ≤ 0)",
            note="shaded: below the truth",
            margin=58,
        )
        canvas.log_x(min(xs) / 1.6, max(xs) * 1.6)
        canvas.log_y(low, top)
        canvas.ax.axhspan(low, 1.0, color=SHADE, linewidth=0)
        canvas.ax.axhline(1.0, color=MUTED, linewidth=1.0)
        for known in (True, False):
            inside = [m for m in points if (m["truth"] == "exact") == known and low <= m[key] <= top]
            canvas.ax.plot(
                [m["n_eff_d_align"] for m in inside],
                [m[key] for m in inside],
                "o",
                color=colour,
                markersize=5.2,
                markerfacecolor=PAPER if known else colour,
            )
        off = [m["n_eff_d_align"] for m in points if m[key] > top]
        canvas.ax.plot(off, [top / 1.4] * len(off), "^", color=colour, markersize=5)
        under = [m["n_eff_d_align"] for m in points if m[key] < low]
        canvas.ax.plot(under, [low * 1.4] * len(under), "v", color=colour, markersize=5)
        canvas.labels_right([(1.0, "exact", MUTED)])
        alt = (
            f"{plain(text)} divided by the truth against n_eff d_align, {len(points)} cells, from "
            f"{min(ratios):.3g} to {max(ratios):.3g}."
        )
        panels.append(Panel(text[0].upper() + text[1:], canvas.svg(f"{id}-{key[:3]}", alt)))
    if not panels:
        return None
    below = [sum(m[k] is not None and m[k] < 1 for m in marks) for k in ("regrouped_ratio", "normal_ratio")]
    caption = (
        "What to see: a ratio of 1 is the truth itself. B_{align} with units averaged in groups of b* "
        f"is nearly as sharp as B_{{exact}}; it lies below the truth in {below[0]} of {len(marks)} cells, "
        "the normal "
        f"approximation, which is no bound, in {below[1]}. Rings: truth computed exactly; dots: measured "
        "frequency, whose interval is in the figure above. Arrows: beyond the axis."
    )
    return Figure(id, title, caption, tuple(panels), tuple(marks))


def _mark(c: Misalignment) -> dict[str, Any]:
    known = c.log_probability is not None
    log_truth = c.log_probability if c.log_probability is not None else math.log(c.events / c.trials)

    def ratio(log_value: float | None) -> float | None:
        return None if log_value is None else math.exp(min(max(log_value - log_truth, -600.0), 600.0))

    regrouped = c.B_regrouped.value if c.B_regrouped is not None else None
    return {
        "label": c.label,
        "module": c.module,
        "width": c.width,
        "seed": c.seed,
        "M": c.M,
        "K": c.K,
        "n_eff_d_align": 1 / (c.B_align.value or 1.0) - 1,
        "truth": "exact" if known else "measured",
        "log_truth": log_truth,
        "regrouping": c.regrouping,
        "B_regrouped": regrouped,
        "regrouped_ratio": ratio(math.log(regrouped) if regrouped else None),
        "normal_log_probability": c.normal_log_probability,
        "normal_ratio": ratio(c.normal_log_probability),
    }


def regrouping(
    geometry: Sequence[Geometry], cells: Sequence[Misalignment], id: str, title: str
) -> Figure | None:
    """B_align / B_exact against the number of units averaged into one, at the counted sizes."""
    places = [g for g in geometry if g.detected and positive([g.d_par.value]) and positive([g.d_2.value])]
    sizes = sorted({(c.M, c.K) for c in cells if min(c.M, c.K) > 1}, key=lambda s: s[0] * s[1])
    if not places or not sizes:
        return None
    if len(sizes) > 3:
        sizes = [sizes[0], sizes[len(sizes) // 2], sizes[-1]]
    step = max(1, math.ceil(len(places) / _LINES))
    chosen = places[::step][:_LINES]
    rows: list[dict[str, Any]] = []
    panels = []
    for M, K in sizes:
        best = [(g.d_par.value or 0.0) / (g.d_2.value or 1.0) for g in chosen]
        last = max(10.0, min(max(best) * 30, 1e7))
        bs = [10 ** (math.log10(last) * i / 60) for i in range(61)]
        curves = [[_loosened(g, M, K, b) for b in bs] for g in chosen]
        canvas = Canvas(x_title="units averaged into one, b", y_title="B_{align} / B_{exact}", margin=50)
        canvas.log_x(1.0, last)
        canvas.log_y(0.9, max(2.0, *(v for curve in curves for v in curve)) * 1.2)
        canvas.ax.axhline(1.0, color=MUTED, linewidth=1.0)
        for k, (g, curve, b) in enumerate(zip(chosen, curves, best, strict=True)):
            colour = SERIES[k % len(SERIES)]
            canvas.ax.plot(bs, curve, color=colour, linewidth=1.4, linestyle=DASHES[k % len(DASHES)])
            if 1 <= b <= last:
                canvas.ax.plot(
                    [b],
                    [_loosened(g, M, K, b)],
                    MARKERS[k % len(MARKERS)],
                    color=colour,
                    markersize=6,
                    clip_on=False,
                )
            rows += [
                {
                    "label": g.label,
                    "module": g.module,
                    "seed": g.seed,
                    "M": M,
                    "K": K,
                    "b": x,
                    "ratio": y,
                    "b_star": b,
                }
                for x, y in zip(bs, curve, strict=True)
            ]
        canvas.labels_right([(1.0, "equal", MUTED)])
        alt = (
            f"B_align divided by B_exact against the group size from 1 to {last:.3g} at M = {M}, K = {K}, "
            f"{len(chosen)} laws or places; each curve touches 1 at its own b*."
        )
        panels.append(Panel(f"M = {M}, K = {K}", canvas.svg(f"{id}-{M}-{K}", alt)))
    known = all(g.sample == "population" for g in chosen)
    names = "; ".join(
        f"{['blue', 'orange', 'green', 'purple', 'ochre', 'grey'][k]}: {g.label}"
        + ("" if g.module == "law" else f", {g.module}")
        for k, g in enumerate(chosen)
    )
    caption = (
        "What to see: averaging b units into one leaves B_{exact} as it is and brings B_{align} down to it "
        "at "
        "b* = d_{par}/d_{2} (markers), beyond which B_{align} grows again: its looseness is a matter of "
        "the unit. "
        + (
            "Computed from exact moments. "
            if known
            else "Computed from point estimates of d_{par} and d_{2}, whose "
            "intervals are in the geometry table. "
        )
        + f"{names}."
    )
    return Figure(id, title, caption, tuple(panels[:SHOWN]), tuple(rows))


def _loosened(g: Geometry, M: int, K: int, b: float) -> float:
    """B_align of groups of b units over B_exact, both at M, K units: a continuous b is the formula's own."""
    d_par, d_2 = g.d_par.value or math.nan, g.d_2.value or math.nan
    v = (1 / M + 1 / K) / d_par + 1 / (M * K * d_2)
    return (1 + 1 / v) / (1 + M * K / (M + K + b) * min(d_par, b * d_2))
