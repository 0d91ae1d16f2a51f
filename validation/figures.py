"""Frequencies against bounds, and looseness: every mark has its interval, a zero count is a one-sided bar."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from validation.claims import group, is_covered, is_vacuous, n_eff
from validation.plotting import (
    BLUE,
    DASHES,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PAPER,
    SERIES,
    SHADE,
    Canvas,
    Figure,
    Panel,
)
from validation.results import Measured, Misalignment

WEAK = 0.5
"""A bound above 1/2 promises less than a coin toss gives, though a bound of 3/4 can be attained."""
SHOWN, _FOLDED = 9, 2  # panels shown, and folded for each one shown
_FLOOR = 1e-8
_CEILING = 1e12


def plain(text: str) -> str:
    """Text without subscript markup, for alternative texts and CSV headers.

    >>> plain("B_{exact}")
    'B_exact'
    """
    return text.replace("_{", "_").replace("}", "")


def positive(values: Iterable[float | None]) -> list[float]:
    return [v for v in values if v is not None and v > 0]


def _log10_truth(cell: Misalignment) -> float | None:
    return None if cell.log_probability is None else max(cell.log_probability / math.log(10), -300.0)


def value_of(measured: Measured) -> float:
    return math.nan if measured.value is None else measured.value


# -- 1. frequency against the bounds -----------------------------------------------------------------------


def misalignment(cells: Sequence[Misalignment], id: str, title: str, shown: int = SHOWN) -> Figure | None:
    """Misalignment frequency with intervals against B_exact and B_align, one panel per law or place."""
    cells = [c for c in cells if c.frequency.value is not None]
    if not cells:
        return None
    several = len({c.positions for c in cells}) > 1
    panels: list[Panel] = []
    x_of, x_title, ticks = _x_axis(cells)
    low = probability_floor(cells)
    facets = group(cells, lambda c: (c.label, c.width, c.module, c.positions))
    for i, members in enumerate(facets.values()):
        first = members[0]
        name = first.label if first.module in ("", "law", "none") else f"{first.label} · {first.module}"
        name += f" · positions {first.positions}" if several else ""
        canvas = Canvas(
            x_title=x_title, y_title="probability", note="shaded: above ½, weaker than a coin toss"
        )
        canvas.log_x_at(*ticks)
        canvas.log_y(low, 1.3)
        _draw_misalignment(canvas, members, x_of, low)
        panels.append(Panel(name, canvas.svg(f"{id}-{i}", _misalignment_alt(members, name))))
    caption = _misalignment_caption(cells, max(len(panels) - shown * (1 + _FOLDED), 0), brief=shown < SHOWN)
    return figure(id, title, caption, panels, tuple(cell_row(c) for c in cells), shown)


def figure(
    id: str, title: str, caption: str, panels: Sequence[Panel], rows: tuple[dict[str, Any], ...], shown: int
) -> Figure:
    """A figure with ``shown`` panels spaced evenly over all of them and the others folded away."""
    first, rest = _representative(panels, shown)
    return Figure(
        id,
        title,
        caption,
        first,
        rows,
        more=rest[: _FOLDED * shown],
        more_title=_more(rest[: _FOLDED * shown]),
    )


def _representative(panels: Sequence[Panel], shown: int) -> tuple[tuple[Panel, ...], tuple[Panel, ...]]:
    """Up to ``shown`` panels spaced evenly over all, and the rest."""
    if len(panels) <= shown:
        return tuple(panels), ()
    chosen = {round(i * (len(panels) - 1) / (shown - 1)) for i in range(shown)}
    return (
        tuple(p for i, p in enumerate(panels) if i in chosen),
        tuple(p for i, p in enumerate(panels) if i not in chosen),
    )


def _more(panels: Sequence[Panel]) -> str:
    return f"{len(panels)} more panel{'' if len(panels) == 1 else 's'}"


def _x_axis(
    cells: Sequence[Misalignment],
) -> tuple[Callable[[Misalignment], float], str, tuple[list[float], list[str]]]:
    if all(c.M == c.K for c in cells):
        values = sorted({c.M for c in cells})
        return (
            lambda c: float(c.M),
            "units averaged on each side, M = K",
            ([float(v) for v in values], [str(v) for v in values]),
        )
    sizes = {n_eff(c.M, c.K): f"{c.M}×{c.K}" for c in cells}
    values_n = sorted(sizes)
    return (
        lambda c: n_eff(c.M, c.K),
        "M × K, placed at n_{eff}",
        (values_n, [sizes[v] for v in values_n]),
    )


def probability_floor(cells: Sequence[Misalignment]) -> float:
    # a bar that reaches further down is cut at the axis; one count in many must not stretch it by decades
    marks = positive(value_of(c.frequency) / 2 if c.events else (c.frequency.high or 1.0) / 4 for c in cells)
    marks += positive(c.B_exact.value for c in cells)
    return max(10 ** math.floor(math.log10(min(marks, default=0.1)) + 0.2), _FLOOR)


def _draw_misalignment(
    canvas: Canvas, members: Sequence[Misalignment], x_of: Callable[[Misalignment], float], low: float
) -> None:
    ax = canvas.ax
    ax.axhspan(WEAK, ax.get_ylim()[1], color=SHADE, linewidth=0)
    series = list(group(members, lambda c: (c.case, c.seed, c.protocol)).values())
    ends: dict[str, list[tuple[float, float]]] = {}
    x_low, x_high = ax.get_xlim()
    dodge = (x_high / x_low) ** 0.014
    for s, run in enumerate(series):
        run = sorted(run, key=x_of)
        x = [x_of(c) for c in run]
        for name, colour, dash, width in (("B_align", ORANGE, DASHES[1], 1.4), ("B_exact", BLUE, "-", 1.6)):
            bounds: list[Measured] = [getattr(c, name) for c in run]
            ax.plot(x, [value_of(b) for b in bounds], color=colour, linestyle=dash, linewidth=width)
            empty = [(xi, value_of(b)) for xi, b in zip(x, bounds, strict=True) if is_vacuous(b)]
            ax.plot([e[0] for e in empty], [e[1] for e in empty], "x", color=colour, markersize=5.5)
            ends.setdefault(name, []).append((x[-1], value_of(bounds[-1])))
        truths = [_log10_truth(c) for c in run]
        known = [(xi, t) for xi, t in zip(x, truths, strict=True) if t is not None]
        if known:
            ax.plot([k[0] for k in known], [10 ** k[1] for k in known], color=GREEN, linewidth=1.2)
            below = [k[0] for k in known if 10 ** k[1] < low]
            ax.plot(below, [low * 1.25] * len(below), "v", color=GREEN, markersize=5, clip_on=False)
            ends.setdefault("exact P", []).append((known[-1][0], 10 ** known[-1][1]))
        offset = dodge ** (s - (len(series) - 1) / 2)
        for xi, c in zip(x, run, strict=True):
            draw_frequency(ax, xi * offset, c, INK)
        last = run[-1].frequency
        ends.setdefault("measured", []).append(
            (x[-1], value_of(last) if run[-1].events else last.high or 1.0)
        )
    colours = {"B_align": ORANGE, "B_exact": BLUE, "exact P": GREEN, "measured": INK}
    texts = {"B_align": "B_{align}", "B_exact": "B_{exact}", "exact P": "exact P", "measured": "measured"}
    wishes = []
    for name, points in ends.items():
        values = positive(y for _, y in points)
        if values:
            middle = math.exp(sum(math.log(v) for v in values) / len(values))
            wishes.append((middle, texts[name], colours[name]))
    canvas.labels_right(wishes)


def draw_frequency(ax: Any, x: float, cell: Misalignment, colour: str, marker: str = "o") -> None:
    """A frequency with its interval; with no event, the upper limit and an arrow down from it."""
    f = cell.frequency
    high = 1.0 if f.high is None else f.high
    if cell.events == 0:
        ax.plot([x, x], [high / 2.6, high], color=colour, linewidth=1.1)
        ax.plot([x], [high], marker="_", markersize=7, color=colour, linestyle="none")
        ax.plot([x], [high / 2.6], marker="v", markersize=5, color=colour, linestyle="none")
        return
    ax.plot([x, x], [max(f.low or 0.0, 1e-300), high], color=colour, linewidth=1.4)
    ax.plot(
        [x],
        [f.value],
        marker=marker,
        markersize=5.4,
        color=colour,
        markerfacecolor=colour,
        markeredgecolor=PAPER,
        markeredgewidth=0.6,
        linestyle="none",
    )


_UNCOVERED = {
    "without_replacement": (
        "Units drawn without replacement are not independent; B_{exact} here is Cantelli's inequality with "
        "the finite pool's mean and variance of T, which holds, and B_{align} is the iid formula, shown for "
        "comparison."
    ),
    "fresh": (
        "Every trial uses units of its own, so trials are few; the lines are estimates of the bounds, the "
        "counts above refer to their upper confidence limits."
    ),
}


def _misalignment_caption(cells: Sequence[Misalignment], hidden: int, brief: bool) -> str:
    zero = sum(c.events == 0 for c in cells)
    both = [c.B_exact for c in cells], [c.B_align for c in cells]
    weak = [sum((b.value or 1.0) > WEAK for b in bs) for bs in both]
    vacuous = [sum(is_vacuous(b) for b in bs) for bs in both]
    above = sum(c.verdict == "violated" for c in cells)
    covered = sum(c.verdict == "holds" for c in cells)
    f = cells[0].frequency
    bars = f"{f.method}, {100 * f.confidence:.5g} % each"
    known = sum(c.log_probability is not None for c in cells)
    text = (
        f"What to see: the measured frequency of T ≤ 0 (black points, bars: {bars}) should stay below "
        f"B_{{exact}} (blue, solid) and B_{{align}} (orange, dashed). The whole interval is below "
        f"B_{{exact}} in {covered} of {len(cells)} cells and above it in {above}. B_{{exact}} is above ½, "
        f"weaker than a coin toss, in {weak[0]} cells, B_{{align}} in {weak[1]}; vacuous, 1 to printing "
        f"accuracy (crosses), are {vacuous[0]} and {vacuous[1]} of these. "
    )
    if brief:
        return (
            f"Read as above. The whole interval is below B_{{exact}} in {covered} of {len(cells)} cells and "
            f"above it in {above}. {_UNCOVERED.get(cells[0].protocol, '')}"
        )
    if zero:
        text += (
            f"No event was seen in {zero} cells: a bar at the upper limit with an arrow down, "
            "the frequency itself being 0. "
        )
    if known:
        text += (
            "The green line is the probability computed exactly; triangles mark where it leaves the axis. "
            f"The claim table decides by that probability in {known} of the {len(cells)} cells, not by the "
            "interval as counted here, so its counts can be larger. "
        )
    if len({c.seed for c in cells}) > 1:
        text += "Seeds stand side by side; each has its own pair of bounds. "
    if hidden:
        text += f"{hidden} further panels are left out of the page but not of the data. "
    return text.strip()


def _misalignment_alt(members: Sequence[Misalignment], name: str) -> str:
    first, last = min(members, key=lambda c: n_eff(c.M, c.K)), max(members, key=lambda c: n_eff(c.M, c.K))
    return (
        f"{name}: measured misalignment goes from {value_of(first.frequency):.3g} at M = {first.M}, K = "
        f"{first.K} to {value_of(last.frequency):.3g} at M = {last.M}, K = {last.K}; B_exact from "
        f"{value_of(first.B_exact):.3g} to {value_of(last.B_exact):.3g}; B_align from "
        f"{value_of(first.B_align):.3g} to {value_of(last.B_align):.3g}."
    )


def cell_row(c: Misalignment) -> dict[str, Any]:
    return {
        "label": c.label,
        "module": c.module,
        "positions": c.positions,
        "unit": c.unit,
        "width": c.width,
        "seed": c.seed,
        "M": c.M,
        "K": c.K,
        "protocol": c.protocol,
        "events": c.events,
        "trials": c.trials,
        "frequency": c.frequency.value,
        "low": c.frequency.low,
        "high": c.frequency.high,
        "confidence": c.frequency.confidence,
        "bound_source": c.bound_source,
        "B_exact": c.B_exact.value,
        "B_align": c.B_align.value,
        "log_probability": c.log_probability,
        "verdict": c.verdict,
        "verdict_align": c.verdict_align,
    }


# -- 2. looseness ------------------------------------------------------------------------------------------


def looseness(cells: Sequence[Misalignment], id: str, title: str) -> Figure | None:
    """Bound divided by truth against n_eff d_align, log-log; truth exact where known, else measured."""
    cells = [
        c for c in cells if is_covered(c) and c.B_align.value and c.B_exact.value and c.B_align.value < 1
    ]
    if not cells:
        return None
    marks = [_looseness_mark(c) for c in cells]
    xs = [m["n_eff_d_align"] for m in marks]
    tops = positive(m[k] for m in marks for k in ("exact_ratio", "align_ratio", "exact_high", "align_high"))
    top = min(max(tops, default=10.0), _CEILING)
    panels = []
    for which, text, colour in (("exact", "B_{exact}", BLUE), ("align", "B_{align}", ORANGE)):
        canvas = Canvas(
            x_title="n_{eff} d_{align}",
            y_title=f"{text} / P(T ≤ 0)",
            note="shaded: bound below the truth",
            margin=58,
        )
        canvas.log_x(min(xs) / 1.6, max(xs) * 1.6)
        canvas.log_y(0.4, top * 4)
        ax = canvas.ax
        ax.axhspan(0.4, 1.0, color=SHADE, linewidth=0)
        ax.axhline(1.0, color=MUTED, linewidth=1.0)
        for m in marks:
            _draw_ratio(ax, m, which, colour, top)
        canvas.labels_right([(1.0, "attained", MUTED)])
        ratios = positive(m[f"{which}_ratio"] for m in marks)
        alt = f"{plain(text)} divided by the truth against n_eff d_align, {len(marks)} cells" + (
            f", from {min(ratios):.3g} to {max(ratios):.3g}." if ratios else ", no finite ratio."
        )
        panels.append(Panel(f"How loose is {text}?", canvas.svg(f"{id}-{which}", alt)))
    panels.append(_summary_panel(marks, id))
    return Figure(id, title, _looseness_caption(marks), tuple(panels), tuple(marks))


def _summary_panel(marks: Sequence[dict[str, Any]], id: str) -> Panel:
    """What the one-number summary costs: B_align / B_exact, which depends on the choice of unit."""
    xs = [m["n_eff_d_align"] for m in marks]
    ratios = [m["B_align"] / m["B_exact"] for m in marks]
    canvas = Canvas(x_title="n_{eff} d_{align}", y_title="B_{align} / B_{exact}", margin=58)
    canvas.log_x(min(xs) / 1.6, max(xs) * 1.6)
    canvas.log_y(0.8, max(*ratios, 2.0) * 1.4)
    canvas.ax.axhline(1.0, color=MUTED, linewidth=1.0)
    canvas.ax.plot(
        xs, ratios, "o", markersize=5.4, color=SERIES[3], markeredgecolor=PAPER, markeredgewidth=0.5
    )
    canvas.labels_right([(1.0, "equal", MUTED)])
    alt = f"B_align divided by B_exact against n_eff d_align, from {min(ratios):.3g} to {max(ratios):.3g}."
    return Panel("What does one number cost?", canvas.svg(f"{id}-summary", alt))


def _looseness_mark(c: Misalignment) -> dict[str, Any]:
    out: dict[str, Any] = {
        "label": c.label,
        "module": c.module,
        "width": c.width,
        "seed": c.seed,
        "M": c.M,
        "K": c.K,
        "B_exact": value_of(c.B_exact),
        "B_align": value_of(c.B_align),
        "n_eff_d_align": 1 / value_of(c.B_align) - 1,
    }
    truth = _log10_truth(c)
    out["truth"] = "exact" if truth is not None else "measured" if c.events else "upper limit"
    for name, bound in (("exact", value_of(c.B_exact)), ("align", value_of(c.B_align))):
        if truth is not None:
            ratio = 10 ** min(math.log10(bound) - truth, 290.0)
            low = high = ratio
        else:
            f = c.frequency
            ratio = bound / f.value if f.value else None  # type: ignore[assignment]
            low = bound / f.high if f.high else None  # type: ignore[assignment]
            high = bound / f.low if f.low else None  # type: ignore[assignment]
        out |= {f"{name}_ratio": ratio, f"{name}_low": low, f"{name}_high": high}
    return out


def _draw_ratio(ax: Any, m: dict[str, Any], which: str, colour: str, top: float) -> None:
    x, ratio, low, high = m["n_eff_d_align"], m[f"{which}_ratio"], m[f"{which}_low"], m[f"{which}_high"]
    if ratio is None:  # no event: the ratio is at least bound / upper limit
        ax.plot([x, x], [low, low * 2.2], color=colour, linewidth=1.0, alpha=0.8)
        ax.plot([x], [low * 2.2], "^", color=colour, markersize=4.2)
        return
    if ratio > top:
        ax.plot([x], [top * 2], "^", color=colour, markersize=5)
        return
    if high is not None and high > low:
        ax.plot([x, x], [low, min(high, top * 4)], color=colour, linewidth=0.9, alpha=0.8)
    hollow = m["truth"] == "exact"
    ax.plot(
        [x],
        [ratio],
        "o",
        markersize=5.4,
        color=colour,
        markerfacecolor=PAPER if hollow else colour,
        markeredgewidth=1.1 if hollow else 0.5,
    )


def _looseness_caption(marks: Sequence[dict[str, Any]]) -> str:
    kinds = {k: sum(m["truth"] == k for m in marks) for k in ("exact", "measured", "upper limit")}
    parts = []
    if kinds["exact"]:
        parts.append(f"{kinds['exact']} cells against the exactly computed probability (rings)")
    if kinds["measured"]:
        parts.append(f"{kinds['measured']} against the measured frequency (dots with its interval)")
    if kinds["upper limit"]:
        parts.append(f"{kinds['upper limit']} without an event, where only a lower limit is known (arrows)")
    off = sum((m["align_ratio"] or 0) > _CEILING for m in marks)
    text = (
        "What to see: a factor of 1 would be a bound attained; higher is looser. A second-moment bound "
        "decays like 1/n_{eff} while a light-tailed truth decays exponentially, so looseness grows to the "
        "right. " + "; ".join(parts) + "."
    )
    text += (
        " Right: B_{align} sees only the smaller of d_{par} and d_{2}; averaging b* = d_{par}/d_{2} units "
        "into one would make the two bounds equal."
    )
    return text + (f" {off} ratios above 10¹² are arrows at the top edge." if off else "")
