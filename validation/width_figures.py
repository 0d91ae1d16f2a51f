"""Figures against width: alignment dimensions and misalignment of trained networks, seeds as points."""

from __future__ import annotations

import math
from collections.abc import Sequence

from validation.claims import group, is_covered, n_eff
from validation.figures import (
    SHOWN,
    cell_row,
    draw_frequency,
    figure,
    plain,
    positive,
    probability_floor,
    value_of,
)
from validation.plotting import DASHES, MARKERS, PAPER, SERIES, Canvas, Figure, Panel
from validation.results import Geometry, Measured, Misalignment


def short(module: str) -> str:
    """The last two parts of a module's name, which fit beside a line.

    >>> short("gpt_neox.layers.5"), short("layer3.2")
    ('layers.5', 'layer3.2')
    """
    return ".".join(module.split(".")[-2:])


_DIMENSIONS = (
    ("d_align", "d_{align} = min(d_{par}, d_{2})"),
    ("d_par", "d_{par} = |μ|⁴ / μᵀΣμ"),
    ("d_2", "d_{2} = |μ|⁴ / tr Σ²"),
)


def dimensions(geometry: Sequence[Geometry], id: str, title: str) -> Figure | None:
    """d_align, d_par and d_2 against width: seeds as points with intervals, a line per insertion point."""
    geometry = [g for g in geometry if g.sample != "population"]
    widths = sorted({g.width for g in geometry})
    if len(widths) < 2:
        return None
    several = len({g.positions for g in geometry}) > 1
    panels: list[Panel] = []
    for positions, members in group(geometry, lambda g: g.positions).items():
        for attribute, text in _DIMENSIONS:
            canvas = Canvas(x_title="width", y_title="dimension", margin=76)
            low, high = _dimension_range(members, attribute)
            canvas.log_x_at([float(w) for w in widths])
            canvas.log_y(low, high)
            _draw_dimension(canvas, members, attribute, low, high)
            name = text + (f" · positions {positions}" if several else "")
            seen = sum(_is_drawn(g, attribute) for g in members)
            alt = (
                f"{plain(name)} against width {widths[0]} to {widths[-1]}, {seen} estimates, "
                f"{len(members) - seen} not detected."
            )
            panels.append(Panel(name, canvas.svg(f"{id}-{len(panels)}", alt)))
    lost = sum(not _is_drawn(g, a) for g in geometry for a, _ in _DIMENSIONS[:1])
    methods = " or ".join(dict.fromkeys(g.d_align.method for g in geometry if _is_drawn(g, "d_align")))
    caption = (
        "What to see: whether the dimension grows from left to right. Points are trained networks, one per "
        f"seed, with {100 * geometry[0].d_align.confidence:g} % intervals ({methods or 'none'}); lines join "
        f"geometric means over seeds; unit: {geometry[0].unit}. "
    )
    if lost:
        caption += (
            f"In {lost} of {len(geometry)} measurements no signal was detected: hollow arrows at the upper "
            "limit, at the top edge where it lies beyond the axis, "
            "or at the bottom where none exists; they enter no mean."
        )
    rows = tuple(
        {
            "label": g.label,
            "module": g.module,
            "positions": g.positions,
            "unit": g.unit,
            "n": g.n,
            "d": g.d,
            "width": g.width,
            "depth": g.depth,
            "seed": g.seed,
            "detected": g.detected,
            **{
                f"{a}{s}": getattr(getattr(g, a), f)
                for a, _ in _DIMENSIONS
                for s, f in (("", "value"), ("_low", "low"), ("_high", "high"))
            },
        }
        for g in geometry
    )
    return Figure(id, title, caption.strip(), tuple(panels), rows)


def _is_drawn(g: Geometry, attribute: str) -> bool:
    m: Measured = getattr(g, attribute)
    return g.detected and m.value is not None and m.value > 0


def _dimension_range(members: Sequence[Geometry], attribute: str) -> tuple[float, float]:
    drawn = [getattr(g, attribute) for g in members if _is_drawn(g, attribute)]
    values = positive(m.value for m in drawn)
    if not values:
        return 1e-3, 1.0
    lows = positive(m.low for m in drawn)
    highs = positive(m.high for m in drawn)
    # an interval that touches zero would stretch a log axis without end: at most two decades below the points
    low = max(min(lows + values), min(values) / 100) / 1.8
    limits = positive(getattr(g, attribute).high for g in members if not _is_drawn(g, attribute))
    return low, min(max(highs + values + limits), max(values) * 100) * 1.5


def _draw_dimension(
    canvas: Canvas, members: Sequence[Geometry], attribute: str, low: float, high: float
) -> None:
    ax = canvas.ax
    x_low, x_high = ax.get_xlim()
    dodge = (x_high / x_low) ** 0.012
    modules = group(members, lambda g: g.module)
    wishes = []
    for k, (module, of_module) in enumerate(modules.items()):
        colour, marker = SERIES[k % len(SERIES)], MARKERS[k % len(MARKERS)]
        means: list[tuple[float, float]] = []
        for width, at_width in sorted(
            group(of_module, lambda g: g.width).items(), key=lambda kv: int(str(kv[0]))
        ):
            x0 = float(str(width)) * dodge ** (3 * (k - (len(modules) - 1) / 2))
            logs = []
            for s, g in enumerate(at_width):
                x = x0 * dodge ** (s - (len(at_width) - 1) / 2)
                m: Measured = getattr(g, attribute)
                if not _is_drawn(g, attribute):
                    limit = m.high if m.high is not None and m.high > low else low * 1.15
                    at = min(limit, high / 1.15)  # a limit beyond the axis is drawn at its edge
                    ax.plot([x], [at], "v", markersize=6, markerfacecolor=PAPER, color=colour, clip_on=False)
                    continue
                ends = (max(m.low or 0.0, low / 10), m.high or value_of(m))
                ax.plot([x, x], ends, color=colour, linewidth=1.1, alpha=0.75)
                ax.plot(
                    [x],
                    [value_of(m)],
                    marker,
                    markersize=5,
                    color=colour,
                    markeredgecolor=PAPER,
                    markeredgewidth=0.5,
                )
                logs.append(math.log(value_of(m)))
            if logs:
                means.append((x0, math.exp(sum(logs) / len(logs))))
        if means:
            ax.plot(
                [p[0] for p in means],
                [p[1] for p in means],
                color=colour,
                linewidth=1.3,
                linestyle=DASHES[k % len(DASHES)],
            )
            wishes.append((means[-1][1], short(str(module)), colour))
    canvas.labels_right(wishes)


def misalignment_by_width(cells: Sequence[Misalignment], id: str, title: str) -> Figure | None:
    """Frequency against width at fixed M, K: one panel per place, one series per (M, K)."""
    cells = [c for c in cells if is_covered(c) and c.frequency.value is not None]
    widths = sorted({c.width for c in cells})
    sizes = sorted({(c.M, c.K) for c in cells}, key=lambda s: n_eff(*s))
    if len(widths) < 2:
        return None
    if len(sizes) > 5:
        sizes = [sizes[round(i * (len(sizes) - 1) / 4)] for i in range(5)]
    cells = [c for c in cells if (c.M, c.K) in sizes]
    low = probability_floor(cells)
    panels = []
    for i, members in enumerate(group(cells, lambda c: (c.module, c.positions)).values()):
        canvas = Canvas(x_title="width", y_title="frequency of T ≤ 0", margin=76)
        canvas.log_x_at([float(w) for w in widths])
        canvas.log_y(low, 1.3)
        _draw_by_width(canvas, members, sizes)
        name = f"{members[0].module} · positions {members[0].positions}"
        alt = (
            f"{name}: misalignment frequency against width {widths[0]} to {widths[-1]} for {len(sizes)} "
            "sample sizes."
        )
        panels.append(Panel(name, canvas.svg(f"{id}-{i}", alt)))
    seeds = len({c.seed for c in cells})
    f = cells[0].frequency
    caption = (
        "What to see: whether each line falls from left to right: wider networks, same M and K. Points are "
        f"trained networks, {seeds} seed{'s' if seeds > 1 else ''} per width; bars: {f.method}, "
        f"{100 * f.confidence:.5g} % each, which do not show the spread between networks; lines join means "
        "over seeds; arrows down: no event."
    )
    return figure(id, title, caption, panels, tuple(cell_row(c) for c in cells), SHOWN)


def _draw_by_width(canvas: Canvas, members: Sequence[Misalignment], sizes: Sequence[tuple[int, int]]) -> None:
    ax = canvas.ax
    x_low, x_high = ax.get_xlim()
    dodge = (x_high / x_low) ** 0.012
    wishes = []
    for k, (M, K) in enumerate(sizes):
        colour, marker = SERIES[k % len(SERIES)], MARKERS[k % len(MARKERS)]
        means = []
        chosen = [c for c in members if (c.M, c.K) == (M, K)]
        for width, at_width in sorted(
            group(chosen, lambda c: c.width).items(), key=lambda kv: int(str(kv[0]))
        ):
            for s, c in enumerate(at_width):
                x = float(str(width)) * dodge ** (s - (len(at_width) - 1) / 2)
                draw_frequency(ax, x, c, colour, marker)
            mean = sum(value_of(c.frequency) for c in at_width) / len(at_width)
            if mean > 0:
                means.append((float(str(width)), mean))
        if means:
            ax.plot(
                [p[0] for p in means],
                [p[1] for p in means],
                color=colour,
                linewidth=1.2,
                linestyle=DASHES[k % len(DASHES)],
            )
        if chosen:
            widest = [c for c in chosen if c.width == max(c.width for c in chosen)]
            y = means[-1][1] if means and means[-1][0] == widest[0].width else widest[0].frequency.high or 1.0
            wishes.append((y, f"M = K = {M}" if M == K else f"{M}, {K}", colour))
    canvas.labels_right(wishes)
